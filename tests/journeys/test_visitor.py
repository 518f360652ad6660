"""A visitor's way through the page: a picture is uploaded, its crop chosen, a decode watched,
stopped and raced."""

from __future__ import annotations

import json
import re
import threading
import time
from dataclasses import replace

import numpy as np

from superres.config import DecodeConfig
from superres.pictures.read import read_image
from superres.pipeline.translated import Translation
from superres.web.turns import StoppedError
from tests.journeys.helpers import (
    FINISHED,
    SHOWN,
    choose_astronaut,
    choose_face,
    decode,
    face_for,
    kept,
    open_settings,
    open_tab,
    picture,
    see_as_drawn,
    shown,
    upload,
)
from tests.web.helpers import ALL, FACES, running, wait

PREVIEW = "document.querySelector('#preview .sr-input').dataset.turn"

# A decode


def choose(page, path):
    """Upload `path` in place of what is there, and wait until the server has looked at it."""
    before = page.evaluate(PREVIEW)
    upload(page, path)
    page.wait_for_function(f"before => {PREVIEW} !== before", arg=before)


def upload_no_picture(page, folder):
    (folder / "<b>bad.png").write_text("no picture")
    choose(page, folder / "<b>bad.png")
    page.get_by_text("<b>bad.png: the file is not an image that can be read").wait_for()
    page.click("#run")
    toast = page.locator(".toast-body")
    toast.wait_for()
    assert "is not an image that can be read; provide one of PNG, JPEG" in toast.inner_text()
    page.wait_for_selector("#stop", state="hidden")


def watch_a_decode(page, demo, frames):
    progress, before = [], ""
    choose(page, FACES[1])
    page.wait_for_selector("superres-crop", state="detached")
    assert not page.is_visible("#stop")
    page.click("#run")
    for _ in range(3):
        frames.release(2)
        page.wait_for_function("""before => (document.querySelector("#results .sr-block")
            ?.closest("figure").innerText ?? before) !== before""", arg=before)
        before = page.inner_text("#results figure")
        share, _, iterations = before.splitlines()[:3]
        progress.append((int(share.split()[1]), int(iterations.replace(",", ""))))
        assert page.is_visible("#stop")
    assert progress == sorted(progress)
    frames.release(ALL)
    page.wait_for_selector("#results superres-viewer img")
    page.wait_for_selector("#stop", state="hidden")
    assert page.locator("#results .sr-block").count() == 0
    assert page.locator("superres-stepper").bounding_box()["x"] > 600  # beside the face
    see_as_drawn(page)
    face = picture(page.locator("#results a.sr-download").first.get_attribute("href"))
    np.testing.assert_array_equal(np.asarray(face), face_for(demo, read_image(FACES[1])))
    record = json.loads(face.text["superres"])
    assert record["config"]["accept"] == "exact"
    assert record["checkpoint"].startswith("8to32@")


def stop_a_decode(page, demo, frames):
    open_settings(page)
    block_size = page.get_by_label("number input for Block size").first
    block_size.fill("1")
    block_size.press("Enter")
    frames.hold()
    page.click("#run")
    frames.release(4)
    page.wait_for_selector("#results .sr-block", state="attached")
    with page.expect_request("**/cancel"):
        page.click("#stop")
    # the decoding ends between two frames
    wait(lambda: frames.release() or not demo.decoding.is_busy)
    frames.release(ALL)
    page.locator(".sr-actions").get_by_text("Stopped before the end.").wait_for()
    assert "100 %" not in page.inner_text("#results")
    assert page.locator("#results[data-old]").count() == 1
    assert page.locator("#results superres-viewer").count() == 0
    block_size.fill("10")  # and the next decode works
    block_size.press("Enter")


def compare_a_photo(page):
    choose_astronaut(page)
    decode(page)
    for summary in page.locator("#results .sr-fold > summary").all():
        if not summary.evaluate("summary => summary.parentElement.open"):
            summary.click()
    captions = page.locator("#results [aria-label='Side by side'] figcaption").all_inner_texts()
    names = [caption.split(":")[0].split("\n")[0] for caption in captions[:4]]
    assert names == ["Input, 8x8", "Lanczos", "superres, 32x32", "Truth"]
    assert all("dB, SSIM" in caption for caption in captions[:3])
    pictures = page.evaluate("""[...document.querySelectorAll('#results img')].map(image => [
        getComputedStyle(image).imageRendering, image.clientWidth % image.naturalWidth,
        image.alt])""")
    assert len(pictures) > 5
    assert all(rest == 0 and alt for _, rest, alt in pictures)
    # only the two at the divider are smooth
    assert [rendering for rendering, _, _ in pictures].count("pixelated") == len(pictures) - 2


def race(page):
    decode(page, "#race")
    text = page.inner_text("#results")
    assert "One pixel value per step: 100 %" in text
    assert "In blocks: 100 %" in text
    assert "3,072" in text  # steps of greedy decoding
    assert "times as fast" in text or "took about as long" in text


def test_a_visitor_uploads_watches_stops_compares_and_races(visit, demo, frames, tmp_path,
                                                            monkeypatch):
    page = visit()
    upload_no_picture(page, tmp_path)
    watch_a_decode(page, demo, frames)
    stop_a_decode(page, demo, frames)
    monkeypatch.undo()  # frames come as usual again
    compare_a_photo(page)
    race(page)
    # Gradio adds its class after each comma of a rule; within `:has()`, such a rule finds nothing
    rules = page.evaluate("""() => {
        const all = rules => [...rules].flatMap(
            rule => [rule.selectorText ?? "", ...all(rule.cssRules ?? [])]);
        return [...document.styleSheets].flatMap(sheet => all(sheet.cssRules));
    }""")
    assert any(":has(" in rule for rule in rules)
    assert [rule for rule in rules if re.search(r":has\([^{]*\.gradio-container", rule)] == []


def test_a_password_opens_the_page(browser, demo):
    with (running(demo.decoding.upscaler, auth=[("eve", "secret")]) as served,
          browser.new_context() as context):
        context.set_default_timeout(60_000)
        page, failed = context.new_page(), []
        page.on("pageerror", lambda error: failed.append(str(error)))
        for password, found in (("wrong", "text=Incorrect credentials"), ("secret", ".sr-cells")):
            page.goto(served.url)
            page.get_by_label("username").fill("eve")
            page.get_by_label("password").fill(password)
            page.get_by_role("button", name="Login").click()
            page.wait_for_selector(found)
        assert failed == []


# Finished faces


def finished_of(demo, face):
    return demo.decoding.upscaler(read_image(FACES[face])[None], finish="mean").images[0]


def places(page):
    """Return where the parts of the viewer are, in pixels below its frame's top."""
    return page.evaluate("""() => {
        const top = element => element.getBoundingClientRect().top;
        const frame = document.querySelector(".sr-split");
        return [...document.querySelectorAll("#results superres-viewer :not(option)")].map(
            element => [element.className, Math.round(top(element) - top(frame))]);
    }""")


def test_the_drawn_face_stays_until_the_finished_one_comes_and_so_does_the_choice(
    visit, demo, monkeypatch):
    go, finish, asked = threading.Event(), demo.decoding.finish, []

    def finish_then(*arguments, **settings):
        asked.append(arguments)
        assert go.wait(300)
        return finish(*arguments, **settings)

    monkeypatch.setattr(demo.decoding, "finish", finish_then)
    page = visit(viewport={"width": 390, "height": 900})
    viewer = page.locator("#results superres-viewer")
    pending = viewer.get_by_text("Drawing the finished face…")
    choose_face(page, 1)
    decode(page)
    pending.wait_for()
    assert page.get_attribute(SHOWN, "alt") == "superres, 32x32"
    assert viewer.get_by_role("radio", name="Finished").is_checked()
    assert kept(page) == []
    drawn, before = page.get_attribute(SHOWN, "src"), places(page)
    go.set()
    viewer.get_by_text(FINISHED).wait_for()
    np.testing.assert_array_equal(shown(page), finished_of(demo, 1))
    assert page.get_attribute(SHOWN, "alt") == "Finished, 32x32"
    assert "The details below are of the face as the model drew it." in page.inner_text("#results")
    assert places(page) == before
    see_as_drawn(page)
    assert page.get_attribute(SHOWN, "src") == drawn
    viewer.get_by_role("button", name="Keep this face").click()
    assert kept(page) == ["2: exact", "1: exact, finished"]
    assert len(asked) == 1
    # the choice lasts, and the finished face comes when it is asked for
    choose_face(page, 2)
    decode(page)
    np.testing.assert_array_equal(shown(page), face_for(demo, read_image(FACES[2])))
    assert len(asked) == 1
    viewer.get_by_role("radio", name="Finished").check()
    viewer.get_by_text(FINISHED).wait_for()
    np.testing.assert_array_equal(shown(page), finished_of(demo, 2))
    keep_what_was_chosen_meanwhile(page, go)


def keep_what_was_chosen_meanwhile(page, go):
    pending = page.get_by_text("Drawing the finished face…")
    for number, choose in ((3, lambda: page.get_by_label("Right side").select_option("Lanczos")),
                           (1, lambda: see_as_drawn(page))):
        go.clear()
        choose_face(page, number)
        decode(page)
        pending.wait_for()
        choose()
        assert pending.count() == 0
        chosen = page.get_attribute(SHOWN, "src")
        go.set()
        page.locator(".sr-sides option", has_text="Finished, 32x32").first.wait_for(
            state="attached")
        assert page.get_attribute(SHOWN, "src") == chosen


def test_where_no_face_is_finished_the_drawn_one_stays_and_the_next_decode_does_not_wait(
    visit, demo, monkeypatch):
    ended = threading.Event()

    def refuse(*_, **__):
        raise StoppedError("too many of your requests wait; try again in a minute")

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
        patch.setattr(demo.decoding, "finish", refuse)
        decode(page)
        page.get_by_text("Too many of your requests wait; try again in a minute.").wait_for()
        assert page.get_attribute(SHOWN, "alt") == "superres, 32x32"
        assert page.get_by_role("radio", name="As the model drew it").is_checked()
        assert kept(page) == ["1: exact"]
        patch.setattr(demo.decoding, "finish", finish)
        page.get_by_role("radio", name="Finished").check()
        page.get_by_text("Drawing the finished face…").wait_for()
        decode(page, "#draw")
        assert ended.wait(300)
    assert kept(page) == ["1: exact"]


# Translations

TEXT = "the small red dog\n\na house"
DONE = "#translation [role=status]"
BLOCKS = "#translation .sr-step"


def translate(page, text=TEXT, button="#run-text"):
    open_tab(page, "Translate")
    page.fill("#text textarea", text)
    decode(page, button)
    page.wait_for_selector(DONE)


def repeat_until(page, act, selector):
    """Call `act` every two seconds until `selector` is there.

    The page takes no new run before it has heard that the last one is over, and a slider that has
    just been unfolded may still lose what is typed into it.
    """
    for attempt in range(1000):
        if attempt % 20 == 0:
            act()
        page.wait_for_timeout(100)
        if page.locator(selector).count():
            return
    raise AssertionError(page.inner_text("body"))


def styles(page, selector, *names):
    """Return computed styles of all elements that `selector` finds."""
    return page.evaluate(
        "([selector, names]) => [...document.querySelectorAll(selector)].map(element => "
        "names.map(name => getComputedStyle(element)[name]))", [selector, list(names)])


def see_blocks_by_colour_line_and_number(page, demo):
    translate(page)
    result = demo.decoding.translator(TEXT.split("\n"), DecodeConfig(block_size=4))
    assert page.input_value("#translation textarea") == "\n".join(result.texts)
    lines = page.locator("#translation .sr-text li")
    assert lines.all_inner_texts() == [result.texts[0], "an empty line", result.texts[2]]
    (trace,) = result[0].traces
    blocks = lines.first.locator(".sr-step")
    assert blocks.count() == trace.iterations > 1
    assert blocks.nth(1).get_attribute("title").startswith("Step 2: ")
    looks = styles(page, "#translation .sr-text li:first-child .sr-step", "backgroundColor",
                   "borderBottomStyle")
    assert looks[0][0] != looks[1][0]
    assert [style for _, style in looks[:2]] == ["solid", "dotted"]
    page.get_by_text("Steps", exact=True).click()
    assert "Step 1 " in page.inner_text(".sr-trace")


def race_with_and_without_beam_search(page):
    translate(page, button="#race-text")
    assert page.locator("#translation .sr-variants h3").all_inner_texts() == ["One token per step",
                                                                              "In blocks"]
    done = page.inner_text(DONE)
    assert "times as fast" in done or "took about as long" in done
    assert "The translations are equal." in done
    page.locator("button:visible", has_text="Decoding settings").click()
    beam = page.get_by_label("number input for Beam search")

    def translate_by_beam():
        beam.fill("3")
        beam.press("Enter")
        page.click("#race-text")

    repeat_until(page, translate_by_beam, "#translation h3 >> text=Beam 3")
    page.wait_for_selector(DONE)
    assert page.locator("#translation section").nth(1).locator(".sr-step").count() == 0


def show_odd_text_as_text(page, demo, monkeypatch):
    odd = "<b>1</b> ${1+1} {{2+2}} &lt;"

    stream = demo.decoding.translator.stream

    def odd_stream(*arguments, **keywords):
        *_, last = stream(*arguments, **keywords)
        yield replace(last, lines=[Translation(odd)])

    monkeypatch.setattr(demo.decoding.translator, "stream", odd_stream)
    translate(page, "a dog")
    assert page.inner_text("#translation .sr-text li") == odd
    assert page.input_value("#translation textarea") == odd


def test_a_translation_shows_its_blocks_races_and_is_shown_as_text(visit, demo, monkeypatch):
    page = visit("/?__theme=dark", color_scheme="dark", reduced_motion="reduce")
    see_blocks_by_colour_line_and_number(page, demo)
    show_odd_text_as_text(page, demo, monkeypatch)
    monkeypatch.undo()
    race_with_and_without_beam_search(page)


def test_a_fast_translation_is_replayed_but_not_to_visitors_who_want_no_motion(visit, demo,
                                                                               monkeypatch):
    # too fast to see on a busy machine, too
    monkeypatch.setattr(demo.decoding, "frame_seconds", 60.0)
    moving, still = visit(reduced_motion="no-preference"), visit(reduced_motion="reduce")
    for page in (moving, still):
        translate(page)
    assert "times slower than the decoding" in moving.inner_text(DONE)
    names = [name for (name,) in styles(moving, BLOCKS, "animationName")]
    assert set(names) == {"sr-appear"}
    shown = styles(moving, "#translation .sr-text li:first-child .sr-step", "animationDelay")
    delays = [float(delay.removesuffix("s")) for (delay,) in shown]
    assert delays == sorted(delays)
    assert 0 < delays[0] < delays[-1] <= 4.1
    moving.wait_for_function("() => [...document.querySelectorAll('.sr-step')].every(block =>"
                             " getComputedStyle(block).opacity === '1')")
    assert {name for (name,) in styles(still, BLOCKS, "animationName")} == {"none"}
    assert "slower" not in still.inner_text(DONE)
