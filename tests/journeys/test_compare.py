"""Any two pictures at the sides of the divider, the zoom of both, and the strip of results, in
Chromium."""

from __future__ import annotations

import json

import numpy as np
import pytest
from browser_tools import check_wcag, choose_face, decode, picture, see_as_drawn, seen, upscale

from superres.config import DecodeConfig
from superres.web.upscale_tab import made_by

SIDE = 640
DIVIDER = "Divider between the two pictures"
MOST = 24
HALVES = {".sr-before": np.s_[:, :SIDE // 2 - 30], ".sr-after": np.s_[:, SIDE // 2 + 30:]}
"""What is seen of each picture with the divider in the middle, away from its handle."""
FINISH = """async count => {
    const view = JSON.parse(document.querySelector("#results superres-viewer").dataset.view);
    const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
    canvas.width = canvas.height = 32;
    for (let number = 1; number <= count; number++) {
        context.fillStyle = `rgb(${number} 0 0)`;
        context.fillRect(0, 0, 32, 32);
        const face = {...view.faces[0], made: `epsilon ${number}`, uri: canvas.toDataURL()};
        document.querySelector("#results superres-viewer").dataset.view = JSON.stringify({...view, faces: [face]});
        await new Promise(requestAnimationFrame);
    }
}"""
"""Give the viewer new results, as the page does at the end of a decode; their colours tell them
apart."""

STORED = ("(() => { try { return sessionStorage.getItem('superres-kept'); } catch { return null; } "
          "})()")
"""The strip as the browser stores it."""


def upscale_face(page, face):
    choose_face(page, face)
    upscale(page)


def shown(page, side):
    """Return the picture of a side, uint8 [H, W, 3]."""
    return np.asarray(picture(page.get_attribute(side, "src")).convert("RGB"))


def check_seen(page, zoom=1, x=0.0, y=0.0):
    """Assert that the screen shows whole pixels of both pictures, the same part of each, that
    begins at (x, y)."""
    page.get_by_label(DIVIDER).fill("50")
    screen, left, top = seen(page), round(x * SIDE), round(y * SIDE)
    assert page.locator(".sr-zoom output").inner_text() == f"{zoom}x"
    for side, half in HALVES.items():
        image = shown(page, side)
        scale = zoom * SIDE // len(image)
        enlarged = image.repeat(scale, axis=0).repeat(scale, axis=1)[top:top + SIDE,
                                                                     left:left + SIDE]
        np.testing.assert_array_equal(screen[half], enlarged[half])


def names(page, side):
    return page.get_by_label(side).locator("option").all_inner_texts()


def strip(page):
    return [text.splitlines()[0] for text in page.locator("superres-kept li").all_inner_texts()]


@pytest.fixture
def page(visit):
    return visit(viewport={"width": 1400, "height": 900}, has_touch=True)


def test_any_two_pictures_are_compared(page):
    page.get_by_role("button", name="Astronaut").click()
    page.wait_for_selector("superres-crop [role=slider]")
    upscale(page)
    listed = ["Input, 8x8", "Lanczos", "Truth", "superres, 32x32", "Finished, 32x32"]
    assert names(page, "Left side") == names(page, "Right side") == listed
    check_seen(page)
    first = page.get_attribute(".sr-after", "src")
    upscale_face(page, 2)
    listed = ["Input, 8x8", "Lanczos", "superres, 32x32", "Finished, 32x32", "1: exact, finished"]
    assert names(page, "Left side") == names(page, "Right side") == listed
    page.get_by_label("Left side").select_option("1: exact, finished")
    page.get_by_label("Right side").select_option("Lanczos")
    assert page.get_attribute(".sr-before", "src") == first
    # nobody saves an enlargement as a result
    assert page.locator("superres-viewer .sr-download").count() == 0
    check_seen(page)
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
    page.get_by_label("Left side").select_option(samples[4])
    check_seen(page)
    page.get_by_label("Right side").select_option("Input, 8x8")
    assert page.locator(".sr-choice :checked").count() == 0
    assert not page.locator(".sr-keep").is_visible()
    page.locator(".sr-choice").nth(7).click()
    assert page.locator(".sr-right").inner_text() == samples[7]


def test_the_keyboard_zooms_and_moves_both_pictures(page):
    upscale_face(page, 2)
    divider = page.get_by_label(DIVIDER)
    divider.press("ArrowRight")
    assert divider.input_value() == "51"
    divider.press("+")
    check_seen(page, 2, 0.5, 0.5)
    divider.press("Shift+ArrowRight")
    divider.press("Shift+ArrowRight")
    divider.press("Shift+ArrowUp")
    check_seen(page, 2, 0.7, 0.4)
    for _ in range(9):
        divider.press("Shift+ArrowRight")
        divider.press("Shift+ArrowDown")
    assert divider.input_value() == "50"  # Shift moves the pictures, and not the divider
    check_seen(page, 2, 1, 1)
    for _ in range(9):
        divider.press("+")
    assert page.locator(".sr-zoom output").inner_text() == "8x"
    for _ in range(9):
        divider.press("-")
    check_seen(page)
    page.get_by_role("button", name="Zoom in").click()
    page.get_by_role("button", name="Zoom in").press("Enter")
    check_seen(page, 3, 1, 1)
    page.get_by_role("button", name="Zoom out").click()
    check_seen(page, 2, 0.5, 0.5)


def test_the_wheel_the_mouse_and_two_fingers_zoom_and_move_both_pictures(page):
    upscale_face(page, 2)
    frame, divider = page.locator(".sr-split"), page.get_by_label(DIVIDER)
    frame.scroll_into_view_if_needed()
    # The events of a mouse have whole places, so the frame has one, too.
    frame.evaluate("frame => { frame.style.marginTop = `${1 - frame.getBoundingClientRect().top % "
                   "1}px`; }")
    box = frame.bounding_box()

    def place(x, y):
        return box["x"] + x * SIDE, box["y"] + y * SIDE

    def drag(start, end):
        page.mouse.move(*place(*start))
        page.mouse.down()
        page.mouse.move(*place(*end), steps=4)
        page.mouse.up()

    page.mouse.move(*place(0.25, 0.75))
    page.keyboard.down("Control")
    page.mouse.wheel(0, -139)  # a factor of 2.004
    page.keyboard.up("Control")
    page.wait_for_function("document.querySelector('.sr-zoom output').textContent === '2x'")
    # the page keeps its size
    assert page.evaluate("[devicePixelRatio, visualViewport.scale]") == [1, 1]
    check_seen(page, 2, 0.25, 0.75)
    drag((0.8, 0.5), (0.7, 0.7))
    assert divider.input_value() == "50"
    check_seen(page, 2, 0.35, 0.55)
    drag((0.51, 0.1), (0.8, 0.2))
    assert divider.input_value() == "80"
    check_seen(page, 2, 0.35, 0.55)
    touch = page.context.new_cdp_session(page)
    for kind, reach in (("touchStart", 0.1), ("touchMove", 0.15), ("touchMove", 0.2),
                        ("touchEnd", None)):
        fingers = [] if reach is None else [place(0.2 - reach / 2, 0.5),
                                            place(0.2 + reach / 2, 0.5)]
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [
            {"x": x, "y": y, "id": number} for number, (x, y) in enumerate(fingers)]})
    page.wait_for_function("document.querySelector('.sr-zoom output').textContent === '4x'")
    assert divider.input_value() == "50"


def test_the_strip_keeps_the_latest_results_without_the_server(page):
    upscale_face(page, 2)
    assert strip(page) == ["1: exact, finished"]
    see_as_drawn(page)
    sent = []
    page.on("request", lambda request: sent.append(f"{request.url} {request.post_data}"))
    page.evaluate(FINISH, 25)
    kept = [f"{number + 1}: epsilon {number}" for number in range(25, 25 - MOST, -1)]
    assert strip(page) == kept
    page.get_by_role("button", name="Show 10: epsilon 9").click()
    assert page.locator(".sr-left").inner_text() == "10: epsilon 9"
    assert (shown(page, ".sr-before") == (9, 0, 0)).all()
    assert page.evaluate("document.activeElement.ariaLabel") == DIVIDER
    page.get_by_role("button", name="Remove 10: epsilon 9").press("Enter")
    assert page.evaluate("document.activeElement.ariaLabel") == "Remove 9: epsilon 8"
    kept.remove("10: epsilon 9")
    assert strip(page) == kept
    # what is removed is no longer shown
    assert page.locator(".sr-left").inner_text() == "Input, 8x8"
    assert [one for one in sent if not one.startswith("data:")
            and ("data:image" in one or "upload" in one)] == []
    saved = page.locator("superres-kept li").first.locator("a")
    assert saved.get_attribute("download") == "face-1.png"
    page.reload()
    page.wait_for_selector("superres-kept li")
    assert strip(page) == kept
    # without a result, the strip has a viewer of its own
    for name in ("Show 26: epsilon 25", "Show 3: epsilon 2"):
        page.get_by_role("button", name=name).click()
    assert (shown(page, ".sr-after") == (25, 0, 0)).all()
    assert (shown(page, ".sr-before") == (2, 0, 0)).all()
    upscale(page)
    assert page.locator("superres-viewer").count() == 1
    assert strip(page) == ["27: exact, finished", *kept]
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("superres-kept", state="attached")
    assert strip(other) == []  # each tab has its own strip
    other.close()


@pytest.mark.parametrize("closed", [
    "Object.defineProperty(window, 'sessionStorage', {get() { throw new DOMException('closed', "
    "'SecurityError'); }})",
    "for (let size = 1e6; size >= 1; size /= 2) try { for (let at = 0; ; at++) "
    "sessionStorage.setItem(`${size} ${at}`, 'x'.repeat(size)); } catch {}",
], ids=["closed", "full"])
def test_the_strip_works_where_the_browser_stores_nothing(page, closed):
    page.add_init_script(closed)
    page.reload()
    page.wait_for_selector("#preview figure", state="attached")
    upscale(page)
    upscale_face(page, 2)
    assert strip(page) == ["2: exact, finished", "1: exact, finished"]
    page.get_by_role("button", name="Show 1: exact, finished").click()
    assert page.locator(".sr-left").inner_text() == "1: exact, finished"
    page.get_by_role("button", name="Remove 1: exact, finished").click()
    assert strip(page) == ["2: exact, finished"]
    assert page.evaluate(STORED) is None


@pytest.mark.parametrize(("width", "theme"), [(320, "light"), (1400, "dark")])
def test_the_viewer_and_the_strip_meet_wcag_aa_and_fit_the_screen(visit, width, theme):
    page = visit(f"/?__theme={theme}", viewport={"width": width, "height": 800}, color_scheme=theme)

    def check(name):
        page.mouse.move(0, 0)
        page.wait_for_function("document.getAnimations().every(one => one.playState !== 'running')")
        for selector in ("superres-viewer", "superres-kept"):
            check_wcag(page, name, selector)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name

    upscale_face(page, 2)
    see_as_drawn(page)
    page.evaluate(FINISH, 10)
    page.get_by_label(DIVIDER).press("+")
    check("zoomed")
    decode(page, "#draw")
    page.get_by_role("button", name="Keep this face").click()
    page.get_by_role("button", name="Show 11: epsilon 10").click()
    check("sheet")
    page.reload()
    page.get_by_role("button", name="Show 11: epsilon 10").click()
    check("alone")
    assert len(json.loads(page.evaluate(STORED))) == 12


@pytest.mark.parametrize(("settings", "made"), [
    ({"block_size": 8}, "exact"),
    ({"block_size": 1, "accept": "distance"}, "exact"),
    ({"block_size": 8, "accept": "distance", "epsilon": 4}, "epsilon 4"),
    ({"block_size": 8, "accept": "top-k", "top_k": 3, "min_block": 2}, "top 3, blocks of at least "
     "2"),
    ({"temperature": 0.7, "seed": 5}, "sample 3 of seed 5"),
    ({"temperature": 0.7, "seed": 5, "accept": "distance"}, "sample 3 of seed 5, epsilon 2"),
    ({"temperature": 0.7, "sampling": "speculative"}, "sample 3 of seed 0, speculative"),
])
def test_the_strip_says_how_a_picture_was_made(settings, made):
    assert made_by(DecodeConfig(**settings), 3) == made
