"""What a visitor does with results: any two pictures are compared, zoomed and kept, samples chosen,
old results told apart, and faces finished."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from PIL import Image
from skimage import data
from typer.testing import CliRunner

from superres.cli.main import app as commands
from superres.pictures.read import read_image
from tests.journeys.helpers import (
    DIVIDER,
    SHOWN,
    choose_astronaut,
    choose_face,
    decode,
    drag,
    draw_sheet,
    face_for,
    kept,
    open_settings,
    picture,
    pixels,
    see_as_drawn,
    seen,
    sheet_of,
    shown,
    upscale,
)
from tests.web.helpers import FACES, LABELS

LARGE = 640
MOST = 24
HALVES = {".sr-before": np.s_[:, :LARGE // 2 - 30], SHOWN: np.s_[:, LARGE // 2 + 30:]}
"""What is seen of each picture with the divider in the middle, away from its handle."""
FINISH = """async count => {
    const viewer = document.querySelector("#results superres-viewer");
    const view = JSON.parse(viewer.dataset.view), canvas = document.createElement("canvas");
    const context = canvas.getContext("2d");
    canvas.width = canvas.height = 32;
    for (let number = 1; number <= count; number++) {
        context.fillStyle = `rgb(${number} 0 0)`;
        context.fillRect(0, 0, 32, 32);
        const face = {...view.faces[0], made: `epsilon ${number}`, uri: canvas.toDataURL()};
        viewer.dataset.view = JSON.stringify({...view, faces: [face]});
        await new Promise(requestAnimationFrame);
    }
}"""
"""Give the viewer new results, as the page does at the end of a decode; their colours tell them
apart."""
STORED = ("(() => { try { return sessionStorage.getItem('superres-kept'); } catch { return null; } "
          "})()")
"""The strip as the browser stores it."""

# Two pictures and the strip


def enlarged(image, zoom=1):
    scale = zoom * LARGE // len(image)
    return image.repeat(scale, axis=0).repeat(scale, axis=1)


def check_seen(page, zoom=1, x=0.0, y=0.0):
    """Assert that the screen shows whole pixels of both pictures, the same part of each, that
    begins at (x, y)."""
    page.get_by_label(DIVIDER).fill("50")
    screen, left, top = seen(page), round(x * LARGE), round(y * LARGE)
    assert page.locator(".sr-zoom output").inner_text() == f"{zoom}x"
    for side, half in HALVES.items():
        image = shown(page, side)
        np.testing.assert_array_equal(
            screen[half], enlarged(image, zoom)[top:top + LARGE, left:left + LARGE][half])
    assert page.locator(".sr-invite").is_hidden()


def names(page, side):
    return page.get_by_label(side).locator("option").all_inner_texts()


def choose_sides(page):
    choose_astronaut(page)
    upscale(page)
    assert page.get_by_label(DIVIDER).input_value() == "0"  # the whole face is seen, smooth
    assert page.locator(".sr-invite").inner_text() == "Drag to compare with: Input, 8x8"
    assert (seen(page) != enlarged(shown(page))).any()
    page.locator("superres-viewer").get_by_label("Pixels").check()  # from now on
    listed = ["Input, 8x8", "Lanczos", "Truth", "superres, 32x32", "Finished, 32x32"]
    assert names(page, "Left side") == names(page, "Right side") == listed
    check_seen(page)
    first = page.get_attribute(SHOWN, "src")
    choose_face(page, 2)
    upscale(page)
    listed = ["Input, 8x8", "Lanczos", "superres, 32x32", "Finished, 32x32", "1: exact, finished"]
    assert names(page, "Left side") == names(page, "Right side") == listed
    page.get_by_label("Left side").select_option("1: exact, finished")
    page.get_by_label("Right side").select_option("Lanczos")
    assert page.get_attribute(".sr-before", "src") == first
    # nobody saves an enlargement as a result
    assert page.locator("superres-viewer .sr-download").count() == 0
    check_seen(page)


def zoom_by_keyboard(page):
    divider = page.get_by_label(DIVIDER)
    divider.press("ArrowRight")
    assert divider.input_value() == "51"
    assert divider.get_attribute("aria-valuetext") == "51 % 1: exact, finished"
    divider.press("+")
    check_seen(page, 2, 0.5, 0.5)
    for key in ("ArrowRight", "ArrowRight", "ArrowUp"):
        divider.press(f"Shift+{key}")
    check_seen(page, 2, 0.7, 0.4)
    for _ in range(9):
        divider.press("Shift+ArrowRight")
        divider.press("Shift+ArrowDown")
    assert divider.input_value() == "50"  # Shift moves the pictures, and not the divider
    check_seen(page, 2, 1, 1)
    for key, zoom in (("+", 8), ("-", 1)):
        for _ in range(9):
            divider.press(key)
        assert page.locator(".sr-zoom output").inner_text() == f"{zoom}x"
    check_seen(page)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").press("Enter")
    check_seen(page, 3, 1, 1)
    for _ in range(2):
        page.get_by_role("button", name="Zoom out").click()
    check_seen(page)


def zoom_by_wheel_mouse_and_fingers(page):
    frame, divider = page.locator(".sr-split"), page.get_by_label(DIVIDER)
    frame.scroll_into_view_if_needed()
    # The events of a mouse have whole places, so the frame has one, too.
    frame.evaluate("frame => { frame.style.marginTop = `${1 - frame.getBoundingClientRect().top % "
                   "1}px`; }")
    box = frame.bounding_box()
    assert box["width"] == box["height"] == LARGE

    def place(x, y):
        return box["x"] + x * LARGE, box["y"] + y * LARGE

    # without a zoom, mouse and finger take the divider along
    drag(page, place(0.2, 0.1), place(0.7, 0.2))
    page.mouse.move(*place(0.1, 0.2))
    assert divider.input_value() == "70"  # the button is up
    page.touchscreen.tap(*place(0.4, 0.2))
    assert divider.input_value() == "40"
    page.mouse.move(*place(0.25, 0.75))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -139)  # a factor of 2.004
    page.keyboard.up("Control")
    zoomed = "document.querySelector('.sr-zoom output').textContent"
    page.wait_for_function(f"{zoomed} === '2x'")
    # the page keeps its size
    assert page.evaluate("[devicePixelRatio, visualViewport.scale]") == [1, 1]
    check_seen(page, 2, 0.25, 0.75)
    drag(page, place(0.8, 0.5), place(0.7, 0.7))
    assert divider.input_value() == "50"
    check_seen(page, 2, 0.35, 0.55)
    touch = page.context.new_cdp_session(page)
    for kind, reach in (("touchStart", 0.1), ("touchMove", 0.15), ("touchMove", 0.2),
                        ("touchEnd", None)):
        fingers = [] if reach is None else [place(0.2 - reach / 2, 0.5),
                                            place(0.2 + reach / 2, 0.5)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [
            {"x": x, "y": y, "id": number} for number, (x, y) in enumerate(fingers)]})
    page.wait_for_function(f"{zoomed} === '4x'")
    assert divider.input_value() == "50"


def choose_samples(page):
    decode(page, "#draw")
    samples = [name for name in names(page, "Left side") if name.startswith("Sample")]
    assert len(samples) == 9
    page.get_by_label("Left side").select_option("Mean of 9")
    page.get_by_label("Right side").select_option(samples[4])
    assert page.locator(".sr-choice :checked").count() == 1
    assert page.locator(".sr-choice input").nth(4).is_checked()
    page.locator(".sr-choice").nth(7).click()
    assert page.locator(".sr-right").inner_text() == samples[7]
    assert page.locator(".sr-left").inner_text() == "Mean of 9"
    page.get_by_label("Right side").select_option("Input, 8x8")
    assert page.locator(".sr-choice :checked").count() == 0
    assert not page.locator(".sr-keep").is_visible()


def keep_the_latest_results(page):
    decode(page)
    see_as_drawn(page)
    sent, first = [], len(kept(page))
    page.on("request", lambda request: sent.append(f"{request.url} {request.post_data}"))
    page.evaluate(FINISH, 25)
    strip = [f"{number + first}: epsilon {number}" for number in range(25, 25 - MOST, -1)]
    assert kept(page) == strip
    ninth = f"{9 + first}: epsilon 9"
    page.get_by_role("button", name=f"Show {ninth}").click()
    assert page.locator(".sr-left").inner_text() == ninth
    assert (shown(page, ".sr-before") == (9, 0, 0)).all()
    assert page.evaluate("document.activeElement.ariaLabel") == DIVIDER
    page.get_by_role("button", name=f"Remove {ninth}").press("Enter")
    assert page.evaluate("document.activeElement.ariaLabel") == f"Remove {8 + first}: epsilon 8"
    strip.remove(ninth)
    assert kept(page) == strip
    # what is removed is no longer shown
    assert page.locator(".sr-left").inner_text() == "Input, 8x8"
    assert [one for one in sent if not one.startswith("data:")
            and ("data:image" in one or "upload" in one)] == []
    page.reload()
    page.wait_for_selector("superres-kept li")
    assert kept(page) == strip
    assert len(json.loads(page.evaluate(STORED))) == MOST - 1
    # without a result, the strip has a viewer of its own
    for name in (strip[0], strip[-1]):
        page.get_by_role("button", name=f"Show {name}").click()
    assert (shown(page, ".sr-after") == (25, 0, 0)).all()
    assert (shown(page, ".sr-before") == (2, 0, 0)).all()
    upscale(page)
    assert page.locator("superres-viewer").count() == 1
    assert kept(page) == [f"{26 + first}: exact, finished", *strip]
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("superres-kept", state="attached")
    assert kept(other) == []  # each tab has its own strip
    other.close()


def test_any_two_pictures_are_compared_zoomed_and_kept(visit):
    page = visit(viewport={"width": 1400, "height": 900}, has_touch=True)
    choose_sides(page)
    zoom_by_keyboard(page)
    zoom_by_wheel_mouse_and_fingers(page)
    choose_samples(page)
    keep_the_latest_results(page)


@pytest.mark.parametrize("closed", [
    "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('closed', "
    "'SecurityError'); }})",
    "for (let size = 1e6; size >= 1; size /= 2) try { for (let at = 0; ; at++) "
    "sessionStorage.setItem(`${size} ${at}`, 'x'.repeat(size)); } catch {}",
], ids=["closed", "full"])
def test_the_strip_works_where_the_browser_stores_nothing(visit, closed):
    page = visit()
    page.add_init_script(closed)
    page.reload()
    page.wait_for_selector("#preview figure", state="attached")
    upscale(page)
    choose_face(page, 2)
    upscale(page)
    assert kept(page) == ["2: exact, finished", "1: exact, finished"]
    page.get_by_role("button", name="Show 1: exact, finished").click()
    assert page.locator(".sr-left").inner_text() == "1: exact, finished"
    page.get_by_role("button", name="Remove 1: exact, finished").click()
    assert kept(page) == ["2: exact, finished"]
    assert page.evaluate(STORED) is None


# Samples and earlier results


def run_the_command_of_the_page(page, folder, checkpoints):
    page.get_by_label("Consistent with the input").first.uncheck()
    draw_sheet(page, 4)
    page.get_by_text("The same on the command line").click()
    words = shlex.split(page.inner_text("#results .sr-fold pre"))
    assert "--no-consistent" in words  # the checkpoint's pictures are consistent by default
    found, images = sheet_of(page)
    Image.fromarray(data.astronaut()).save(folder / "face.png")
    words[words.index("face.png")] = str(folder / "face.png")
    words[words.index("--output") + 1] = str(folder / "faces")
    words[words.index("8to32")] = str(checkpoints / "8to32")
    result = CliRunner().invoke(commands, [*words[1:], "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert sorted(found) == [f"Sample {number}" for number in range(1, 5)]
    for name, image in zip(found, images, strict=True):
        file = folder / "faces" / f"face-{name.removeprefix('Sample ')}.png"
        np.testing.assert_array_equal(np.asarray(Image.open(file)), image)
    page.get_by_label("Consistent with the input").first.check()


def samples_of(demo, path, count, seed):
    """Return the samples that a sheet of a picture must show, the likeliest first, and their
    numbers."""
    source, upscaler = read_image(path), demo.decoding.upscaler
    options = upscaler.default.changed({"temperature": 0.7, "seed": seed})
    drawn = upscaler(source[None], options, samples=count).by_likelihood(count)
    return drawn.images, drawn.samples


def choose_and_keep_a_sample(page, demo):
    choose_face(page, 0)
    draw_sheet(page, 4)
    expected, numbers = samples_of(demo, FACES[0], 4, seed=0)
    np.testing.assert_array_equal(sheet_of(page)[1], expected)
    mean = page.get_attribute("#results img[alt='Mean of the samples']", "src")
    assert np.abs(pixels(mean) - expected.mean(axis=0)).max() <= 0.5
    page.locator("#results .sr-choice input").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.get_attribute(SHOWN, "alt") == f"Sample {numbers[3]}"
    np.testing.assert_array_equal(shown(page), expected[3])
    before = len(kept(page))
    page.get_by_role("button", name="Keep this face").click()
    page.get_by_role("button", name="Kept below").click()  # a second time changes nothing
    draw_sheet(page, 4, "#other")
    assert page.get_by_label("Seed", exact=True).first.input_value() == "1"
    np.testing.assert_array_equal(shown(page), samples_of(demo, FACES[0], 4, seed=1)[0][0])
    assert len(kept(page)) == before + 1
    assert f"sample {numbers[3]} of seed 0" in kept(page)[0]
    link = page.locator("superres-kept li").first.locator("a")
    assert link.get_attribute("download").startswith("face-")
    saved = picture(link.get_attribute("href"))
    np.testing.assert_array_equal(np.asarray(saved), expected[3])
    record = json.loads(saved.text["superres"])
    assert (record["sample"], record["config"]["seed"],
            record["config"]["temperature"]) == (numbers[3], 0, 0.7)


def make_results_stale_by_the_input_and_by_a_setting(page, demo):
    stale = page.locator("#results[data-old]")
    said = page.locator(".sr-actions:has(#run) [role=status]")
    for change in (lambda: page.get_by_role("button", name=LABELS[4]).click(),
                   lambda: page.get_by_label("number input for Block size").first.fill("3")):
        decode(page)
        assert stale.count() == 0
        style = f"getComputedStyle(document.querySelector('{SHOWN}')).filter"
        assert page.evaluate(style) == "none"
        change()
        stale.wait_for()
        assert said.inner_text() == "The input or a setting has changed since this result."
        assert "opacity" in page.evaluate(style)
    decode(page)
    assert stale.count() == 0
    see_as_drawn(page)
    np.testing.assert_array_equal(shown(page), face_for(demo, read_image(FACES[4])))
    assert page.locator("superres-viewer input[type=range]").count() == 1
    assert page.locator("superres-stepper .sr-scrubber").count() == 1


def test_samples_are_drawn_kept_and_repeated_and_old_results_are_told(
    visit, demo, checkpoints, tmp_path, monkeypatch):
    # no frame between two results: they come at once
    monkeypatch.setattr(demo.decoding, "frame_seconds", 60)
    page = visit()
    open_settings(page)
    page.get_by_label("number input for Samples on a sheet").wait_for()
    choose_astronaut(page)
    run_the_command_of_the_page(page, tmp_path, checkpoints)
    choose_and_keep_a_sample(page, demo)
    make_results_stale_by_the_input_and_by_a_setting(page, demo)
