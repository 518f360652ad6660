"""The results on the page: the large picture and its divider, samples, stale results, and what is
in reach."""

from __future__ import annotations

import json
import shlex
import threading
import time
import zipfile

import numpy as np
import pytest
from browser_tools import (
    begin_batch,
    check_wcag,
    choose_face,
    decode,
    open_tab,
    picture,
    see_as_drawn,
    seen,
)
from PIL import Image
from skimage import data
from typer.testing import CliRunner
from web_demo import FACES, LABELS

from superres.cli.main import app as commands
from superres.pictures.read import read_image
from superres.tasks.faces import image_key
from superres.web.turns import StoppedError

SHOWN = "#results superres-viewer .sr-after"
DIVIDER = "Divider between the two pictures"


def upscale(page):
    decode(page, "#run")


def draw(page, count, button="#draw"):
    box = page.get_by_label("number input for Samples on a sheet")
    for _ in range(20):  # a slider that Gradio has only just drawn may take its first value again
        box.fill(str(count))
        box.press("Enter")
        page.wait_for_timeout(250)
        if box.input_value() == str(count):
            break
    decode(page, button)
    assert page.locator("#results .sr-choice").count() == count


def settings(page):
    page.get_by_text("Decoding settings").first.click()
    page.get_by_label("number input for Samples on a sheet").wait_for()


def split(page):
    return page.evaluate(
        "getComputedStyle(document.querySelector('.sr-split')).getPropertyValue('--split')")


def samples_of(demo, path, count, seed):
    """Return the samples that a sheet of a picture must show, the likeliest first, and their
    numbers."""
    source, upscaler = read_image(path), demo.decoder.upscaler
    options = upscaler.default.changed({"temperature": 0.7, "seed": seed})
    drawn = upscaler(source[None], options, samples=count).by_likelihood(count)
    return drawn.images, drawn.samples


def test_the_divider_follows_the_mouse_the_finger_and_the_keyboard(visit):
    page, side = visit(viewport={"width": 1400, "height": 900}, has_touch=True), 640
    page.get_by_role("button", name="Astronaut").click()
    page.wait_for_selector("superres-crop [role=slider]")
    upscale(page)
    frame = page.locator(".sr-split")
    frame.scroll_into_view_if_needed()
    box = frame.bounding_box()
    assert box["width"] == box["height"] == side
    page.mouse.move(box["x"] + 0.2 * side, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.7 * side, box["y"] + 90, steps=5)
    assert split(page) == "70%"
    page.mouse.move(box["x"] + 3 * side, box["y"] + 90)
    assert split(page) == "100%"
    page.mouse.up()
    page.mouse.move(box["x"] + 0.1 * side, box["y"] + 90)
    assert split(page) == "100%"  # the button is up
    page.touchscreen.tap(box["x"] + 0.4 * side, box["y"] + 90)
    assert split(page) == "40%"
    slider = page.get_by_label(DIVIDER)
    for _ in range(3):
        slider.press("ArrowRight")
    assert split(page) == "43%"
    assert slider.get_attribute("aria-valuetext") == "43 % Input, 8x8"
    shown = page.locator(".sr-before").get_attribute("src")
    page.get_by_label("Left side").select_option("Truth")
    assert page.locator(".sr-before").get_attribute("src") != shown
    assert slider.get_attribute("aria-valuetext") == "43 % Truth"


def run_the_command_of_the_page(page, folder, checkpoints):
    page.get_by_label("Consistent with the input").first.uncheck()
    draw(page, 4)
    page.get_by_text("The same on the command line").click()
    words = shlex.split(page.inner_text("#results .sr-fold pre"))
    assert "--no-consistent" in words  # the checkpoint's pictures are consistent by default
    shown = [np.asarray(picture(uri)) for uri in
             page.evaluate("[...document.querySelectorAll('.sr-choice img')].map(e => e.src)")]
    Image.fromarray(data.astronaut()).save(folder / "face.png")
    words[words.index("face.png")] = str(folder / "face.png")
    words[words.index("--output") + 1] = str(folder / "faces")
    words[words.index("8to32")] = str(checkpoints / "8to32")
    result = CliRunner().invoke(commands, [*words[1:], "--device", "cpu"])
    assert result.exit_code == 0, result.output
    names = page.evaluate("[...document.querySelectorAll('.sr-choice img')].map(e => e.alt)")
    assert sorted(names) == [f"Sample {number}" for number in range(1, 5)]
    for name, image in zip(names, shown, strict=True):
        number = name.removeprefix("Sample ")
        np.testing.assert_array_equal(
            np.asarray(Image.open(folder / "faces" / f"face-{number}.png")), image)
    page.get_by_label("Consistent with the input").first.check()


def see_each_picture_on_its_side(page):
    choose_face(page, 1)
    upscale(page)
    see_as_drawn(page)
    page.get_by_label(DIVIDER).press("Home")
    image = np.asarray(picture(page.get_attribute(SHOWN, "src")))
    away = np.ones((32, 32), bool)  # from the divider and its handle
    away[:, :3] = False
    np.testing.assert_array_equal(seen(page)[10::20, 10::20][away], image[away])
    page.get_by_label(DIVIDER).press("End")
    source = read_image(FACES[1]).repeat(4, axis=0).repeat(4, axis=1)
    away = away[:, ::-1]
    np.testing.assert_array_equal(seen(page)[10::20, 10::20][away], source[away])


def replace_results(page, demo):
    for face in (0, 1, 1, 0):
        choose_face(page, face)
        upscale(page)
        source = read_image(FACES[face])
        expected = demo.decoder.upscaler.decode(source[None], keys=[image_key(source, 1)]).images[0]
        np.testing.assert_array_equal(np.asarray(picture(page.get_attribute(SHOWN, "src"))),
                                      expected)
        assert page.locator("superres-viewer input[type=range]").count() == 1
        assert page.locator("superres-stepper .sr-scrubber").count() == 1


def choose_and_keep_a_sample(page, demo):
    choose_face(page, 0)
    draw(page, 4)
    expected, numbers = samples_of(demo, FACES[0], 4, seed=0)
    for uri, image in zip(page.evaluate("[...document.querySelectorAll('.sr-choice img')].map(e => "
                                        "e.src)"), expected,
                          strict=True):
        np.testing.assert_array_equal(np.asarray(picture(uri)), image)
    mean = page.get_attribute("#results img[alt='Mean of the samples']", "src")
    assert np.abs(np.asarray(picture(mean)) - expected.mean(axis=0)).max() <= 0.5
    first = page.locator("#results .sr-choice input").first
    first.focus()
    for _ in range(3):
        first.page.keyboard.press("ArrowRight")
    assert page.get_attribute(SHOWN, "alt") == f"Sample {numbers[3]}"
    np.testing.assert_array_equal(np.asarray(picture(page.get_attribute(SHOWN, "src"))),
                                  expected[3])
    before = page.locator("superres-kept li").count()
    page.get_by_role("button", name="Keep this face").click()
    page.get_by_role("button", name="Kept below").click()  # a second time changes nothing
    draw(page, 4, "#other")
    assert page.get_by_label("Seed", exact=True).first.input_value() == "1"
    others, _ = samples_of(demo, FACES[0], 4, seed=1)
    np.testing.assert_array_equal(np.asarray(picture(page.get_attribute(SHOWN, "src"))), others[0])
    assert page.locator("superres-kept li").count() == before + 1
    kept = page.locator("superres-kept li").first
    assert f"sample {numbers[3]} of seed 0" in kept.inner_text()
    saved = picture(kept.locator("a").get_attribute("href"))
    np.testing.assert_array_equal(np.asarray(saved), expected[3])
    record = json.loads(saved.text["superres"])
    assert (record["sample"], record["config"]["seed"],
            record["config"]["temperature"]) == (numbers[3], 0, 0.7)
    kept.get_by_role("button", name="Remove").click()
    assert page.locator("superres-kept li").count() == before


def make_results_stale_by_the_input_and_by_a_setting(page):
    stale = page.locator("#results > .sr-stale")

    def change_by_example():
        page.get_by_role("button", name=LABELS[4]).click()

    def change_setting():
        page.get_by_label("number input for Block size").first.fill("3")

    for change in (change_by_example, change_setting):
        upscale(page)
        assert stale.count() == 0
        assert (page.evaluate(f"getComputedStyle(document.querySelector('{SHOWN}')).filter")
                == "none")
        change()
        stale.wait_for()
        assert stale.inner_text() == "This result is of the earlier input or settings."
        assert ("opacity"
                in page.evaluate(f"getComputedStyle(document.querySelector('{SHOWN}')).filter"))
    upscale(page)
    assert stale.count() == 0


def test_results_are_drawn_kept_replaced_and_marked_as_stale(visit, demo, checkpoints, tmp_path,
                                                             monkeypatch):
    # no frame between two results: they come at once
    monkeypatch.setattr(demo.decoder, "frame_seconds", 60)
    page = visit()
    settings(page)
    page.get_by_role("button", name="Astronaut").click()
    page.wait_for_selector("superres-crop [role=slider]")
    run_the_command_of_the_page(page, tmp_path, checkpoints)
    see_each_picture_on_its_side(page)
    replace_results(page, demo)
    choose_and_keep_a_sample(page, demo)
    make_results_stale_by_the_input_and_by_a_setting(page)


@pytest.fixture
def held(demo, monkeypatch):
    """An event without which no face is finished, and the number of faces that were asked for."""
    go, finish, asked = threading.Event(), demo.decoder.finish, []

    def finish_then(*arguments, **settings):
        asked.append(arguments)
        assert go.wait(300)
        return finish(*arguments, **settings)

    monkeypatch.setattr(demo.decoder, "finish", finish_then)
    yield go, asked
    go.set()


def finished_of(demo, face):
    return demo.decoder.upscaler(read_image(FACES[face])[None], finish="mean").images[0]


def shown(page):
    return np.asarray(picture(page.get_attribute(SHOWN, "src")))


def strip_of(page):
    return page.locator("superres-kept li > span").all_inner_texts()


def places(page):
    """Return where the parts of the viewer are, in pixels below its frame's top."""
    return page.evaluate("""() => {
        const top = element => element.getBoundingClientRect().top, frame = document.querySelector(".sr-split");
        return [...document.querySelectorAll("#results superres-viewer :not(option)")].map(
            element => [element.className, Math.round(top(element) - top(frame))]);
    }""")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_drawn_face_stays_until_the_finished_one_takes_its_place(visit, demo, held, width):
    page, (go, asked) = visit(viewport={"width": width, "height": 900}), held
    choose_face(page, 1)
    upscale(page)
    viewer = page.locator("#results superres-viewer")
    viewer.get_by_text("Drawing the finished face…").wait_for()
    assert page.get_attribute(SHOWN, "alt") == "superres, 32x32"
    assert viewer.get_by_role("radio", name="Finished").is_checked()
    assert strip_of(page) == []
    drawn, before = page.get_attribute(SHOWN, "src"), places(page)
    check_wcag(page, "a face that is being finished", "#results superres-viewer")
    go.set()
    viewer.get_by_text("The mean of 2 pictures, sharpened").wait_for()
    np.testing.assert_array_equal(shown(page), finished_of(demo, 1))
    assert page.get_attribute(SHOWN, "alt") == "Finished, 32x32"
    assert "The details below are of the face as the model drew it." in page.inner_text("#results")
    assert places(page) == before
    assert strip_of(page) == ["1: exact, finished"]
    check_wcag(page, "a finished face", "#results superres-viewer")
    see_as_drawn(page)
    assert page.get_attribute(SHOWN, "src") == drawn
    viewer.get_by_role("button", name="Keep this face").click()
    assert strip_of(page) == ["2: exact", "1: exact, finished"]
    viewer.get_by_role("radio", name="Finished").check()
    np.testing.assert_array_equal(shown(page), finished_of(demo, 1))
    assert len(asked) == 1


@pytest.mark.parametrize("choose", [
    see_as_drawn, lambda page: page.get_by_label("Right side").select_option("Lanczos")],
                         ids=["drawn", "Lanczos"])
def test_a_finished_face_does_not_replace_what_the_visitor_has_chosen_meanwhile(visit, held,
                                                                                choose):
    page, (go, _) = visit(), held
    choose_face(page, 1)
    upscale(page)
    page.get_by_text("Drawing the finished face…").wait_for()
    choose(page)
    assert page.get_by_text("Drawing the finished face…").count() == 0
    chosen = page.get_attribute(SHOWN, "src")
    go.set()
    page.locator(".sr-sides option", has_text="Finished, 32x32").first.wait_for(state="attached")
    assert page.get_attribute(SHOWN, "src") == chosen
    assert strip_of(page) == ["1: exact"]


def test_the_choice_of_the_drawn_face_lasts_and_the_finished_one_comes_when_asked(visit, demo,
                                                                                  held):
    page, (go, asked) = visit(), held
    go.set()
    for face in (1, 2):
        choose_face(page, face)
        upscale(page)
        see_as_drawn(page)
    assert len(asked) <= 1
    drawn = demo.decoder.upscaler.decode(read_image(FACES[2])[None],
                                         keys=[image_key(read_image(FACES[2]), 1)]).images[0]
    np.testing.assert_array_equal(shown(page), drawn)
    page.get_by_role("radio", name="Finished").check()
    page.get_by_text("The mean of 2 pictures, sharpened").wait_for()
    np.testing.assert_array_equal(shown(page), finished_of(demo, 2))
    choose_face(page, 3)
    upscale(page)
    page.get_by_text("The mean of 2 pictures, sharpened").wait_for()
    np.testing.assert_array_equal(shown(page), finished_of(demo, 3))


def test_where_no_face_is_finished_the_drawn_one_stays_with_the_reason(visit, demo, monkeypatch):
    def refuse(*_, **__):
        raise StoppedError("too many of your requests wait; try again in a minute")

    page = visit()
    with monkeypatch.context() as patch:
        patch.setattr(demo.decoder, "finish", refuse)
        choose_face(page, 1)
        upscale(page)
        page.get_by_text("Too many of your requests wait; try again in a minute.").wait_for()
    assert page.get_attribute(SHOWN, "alt") == "superres, 32x32"
    assert page.get_by_role("radio", name="As the model drew it").is_checked()
    assert strip_of(page) == ["1: exact"]
    page.get_by_role("radio", name="Finished").check()
    page.get_by_text("The mean of 2 pictures, sharpened").wait_for()
    np.testing.assert_array_equal(shown(page), finished_of(demo, 1))


def test_the_next_decode_does_not_wait_for_a_finished_face(visit, demo, monkeypatch):
    ended = threading.Event()

    def finish(*_, check, **__):
        try:
            for _ in range(3000):
                check()
                time.sleep(0.1)
        except StoppedError:
            ended.set()
            raise

    page = visit()
    choose_face(page, 1)
    with monkeypatch.context() as patch:
        patch.setattr(demo.decoder, "finish", finish)
        upscale(page)
        page.get_by_text("Drawing the finished face…").wait_for()
        decode(page, "#draw")
        assert ended.wait(300)
    assert strip_of(page) == ["1: exact"]


def test_on_a_phone_the_buttons_stay_in_reach_and_the_result_comes_into_view(visit):
    page = visit(viewport={"width": 390, "height": 844})
    for place in (0, 700, 10_000):
        page.evaluate("place => new Promise(drawn => { scrollTo(0, place); "
                      "requestAnimationFrame(drawn); })", place)
        box = page.locator("#run").bounding_box()
        assert 760 <= box["y"] <= 844 - box["height"]
        assert box["height"] >= 44
    page.evaluate("scrollTo(0, 0)")
    upscale(page)
    box = page.locator(".sr-split").bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 844


def run_a_batch(page, folder):
    (folder / "bad.png").write_text("no picture")
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Click to Upload").last.click()
    chooser.value.set_files([FACES[0], FACES[1], folder / "bad.png"])
    page.wait_for_selector("#files [aria-label='bad.png']")
    begin_batch(page)
    page.wait_for_selector("#gallery .sr-finished:nth-child(2)")
    page.wait_for_selector("#archive a[download]")
    page.wait_for_selector("#stop-batch", state="hidden")
    assert "2 of 3 ready" in page.inner_text("#batch-state")
    assert "bad.png is not an image" in page.inner_text("#batch-state .sr-bad")
    with page.expect_download() as caught:
        page.locator("#archive a[download]").first.click()
    with zipfile.ZipFile(caught.value.path()) as archive:
        assert sorted(archive.namelist()) == ["face-1.png", "face-2.png", "manifest.jsonl"]


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (390, "dark")])
def test_every_tab_works_meets_wcag_aa_and_fits_the_screen(visit, theme, width, tmp_path):
    page = visit(f"/?__theme={theme}", viewport={"width": width, "height": 900}, color_scheme=theme,
                 reduced_motion="reduce")

    def check(name):
        page.mouse.move(0, 0)
        # colours fade
        page.wait_for_function("document.getAnimations().every(one => one.playState !== 'running')")
        check_wcag(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name

    settings(page)
    upscale(page)
    for summary in page.locator("#results .sr-fold > summary").all():
        summary.click()
    check("upscale")
    draw(page, 4)
    page.get_by_role("button", name="Keep this face").click()
    page.get_by_role("button", name=LABELS[2]).click()
    page.wait_for_selector("#results > .sr-stale")
    check("samples")
    open_tab(page, "Batch")
    check("batch-start")
    run_a_batch(page, tmp_path)
    check("batch")
    open_tab(page, "Translate")
    page.click("#race-text")
    page.locator("#translation summary", has_text="Step through it").click()
    page.wait_for_selector("#stop-text", state="hidden")
    check("translate")
    open_tab(page, "Survey")
    page.frame_locator("iframe[title='Survey']").locator("#rater").wait_for()
    check("survey")
