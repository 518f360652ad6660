"""The web demo as visitors meet it, in Chromium."""

from __future__ import annotations

import json
import re

import numpy as np
from browser_tools import decode, picture, see_as_drawn, upload
from web_demo import ALL, FACES, LABELS, running, wait

from superres.pictures.read import read_image
from superres.tasks.faces import image_key

PREVIEW = "document.querySelector('#preview .sr-input').dataset.turn"


def choose(page, path):
    """Upload `path` in place of what is there, and wait until the server has looked at it."""
    before = page.evaluate(PREVIEW)
    upload(page, path)
    wait_for_preview(page, before)


def wait_for_preview(page, before):
    """Wait until the preview is another one; Gradio may change what is around it before."""
    page.wait_for_function(f"before => {PREVIEW} !== before", arg=before)


def set_block_size(page, value):
    page.get_by_label("number input for Block size").first.fill(str(value))
    page.get_by_label("number input for Block size").first.press("Enter")


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
    shown, before = [], ""
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
        shown.append((int(share.split()[1]), int(iterations.replace(",", ""))))
        assert page.is_visible("#stop")
    assert shown == sorted(shown)
    frames.release(ALL)
    page.wait_for_selector("#results superres-viewer img")
    page.wait_for_selector("#stop", state="hidden")
    assert page.locator("#results .sr-block").count() == 0
    source = read_image(FACES[1])
    expected = demo.decoder.upscaler.decode(source[None], keys=[image_key(source, 1)])
    see_as_drawn(page)
    face = picture(page.locator("#results a.sr-download").first.get_attribute("href"))
    np.testing.assert_array_equal(np.asarray(face), expected.images[0])
    record = json.loads(face.text["superres"])
    assert record["config"]["accept"] == "exact"
    assert record["checkpoint"].startswith("8to32@")


def stop_a_decode(page, demo, frames):
    page.get_by_text("Decoding settings").first.click()
    set_block_size(page, 1)
    frames.hold()
    page.click("#run")
    frames.release(4)
    page.wait_for_selector("#results .sr-block", state="attached")
    with page.expect_request("**/cancel"):
        page.click("#stop")
    # the decoding ends between two frames
    wait(lambda: frames.release() or not demo.decoder.is_busy)
    frames.release(ALL)
    page.locator(".sr-actions").get_by_text("Stopped before the end.").wait_for()
    assert "100 %" not in page.inner_text("#results")
    assert page.inner_text("#results > .sr-stale") == "This result is unfinished."
    assert page.locator("#results superres-viewer").count() == 0
    set_block_size(page, 10)  # and the next decode works


def compare_a_photo(page):
    page.get_by_role("button", name="Astronaut").click()
    page.wait_for_selector("superres-crop [role=slider]")
    before = page.evaluate(PREVIEW)
    page.get_by_role("slider", name="Crop of the photo").press("-")
    wait_for_preview(page, before)
    decode(page, "#run")
    for summary in page.locator("#results .sr-fold > summary").all():
        summary.click()
    captions = page.locator("#results [aria-label='Side by side'] figcaption").all_inner_texts()
    names = [caption.split(":")[0].split("\n")[0] for caption in captions[:4]]
    assert names == ["Input, 8x8", "Lanczos", "superres, 32x32", "Truth"]
    assert all("dB, SSIM" in caption for caption in captions[:3])
    pictures = page.evaluate("""[...document.querySelectorAll('#results img')].map(image => [
        getComputedStyle(image).imageRendering, image.clientWidth % image.naturalWidth, image.alt])""")
    assert len(pictures) > 5
    assert all(rendering == "pixelated" and rest == 0 and alt for rendering, rest, alt in pictures)
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input, select, textarea')].filter(control =>
        control.offsetParent && control.type !== 'file' && !control.labels?.length && !control.ariaLabel
        && !control.title && !control.textContent.trim()).map(control => control.outerHTML)""")
    assert unnamed == []


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


def test_gradio_leaves_no_rule_without_effect(visit):
    """Gradio adds its class after each comma of a rule; within `:has()`, such a rule finds
    nothing."""
    rules = visit().evaluate("""() => {
        const all = rules => [...rules].flatMap(rule => [rule.selectorText ?? "", ...all(rule.cssRules ?? [])]);
        return [...document.styleSheets].flatMap(sheet => all(sheet.cssRules));
    }""")
    assert any(":has(" in rule for rule in rules)
    assert [rule for rule in rules if re.search(r":has\([^{]*\.gradio-container", rule)] == []


def test_an_old_result_does_not_pass_for_that_of_a_failed_decode(visit, demo, monkeypatch):
    page = visit()
    choose(page, FACES[2])
    decode(page, "#run")
    monkeypatch.setattr(demo.decoder, "time_limit", -1.0)
    page.click("#run")
    note = page.locator("#results > .sr-stale")
    note.get_by_text("This is not its result.").wait_for()
    assert "was stopped; reduce the input" in note.inner_text()
    assert "was stopped; reduce the input" in page.inner_text(".toast-body")
    assert "grayscale" in page.locator("#results img").first.evaluate(
        "image => getComputedStyle(image).filter"
    )
    monkeypatch.undo()
    decode(page, "#run")
    assert note.count() == 0


def test_the_keyboard_alone_is_enough(visit):
    page = visit()
    before = page.evaluate(PREVIEW)

    def tab_to(name):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.ariaLabel || "
                             "document.activeElement.textContent.trim()") == name:
                return
        raise AssertionError(f"Tab never reaches {name}")

    tab_to(LABELS[2])
    page.keyboard.press("Enter")
    wait_for_preview(page, before)
    tab_to("Upscale")
    page.keyboard.press("Enter")
    page.wait_for_selector("#results superres-viewer img")
    tab_to("Download PNG")


def test_a_password_opens_the_page(browser, demo):
    with (running(demo.decoder.upscaler, auth=[("eve", "secret")]) as served,
          browser.new_context() as context):
        context.set_default_timeout(60_000)
        page, failed = context.new_page(), []
        page.on("pageerror", lambda error: failed.append(str(error)))
        for password, seen in (("wrong", "text=Incorrect credentials"), ("secret", ".sr-cells")):
            page.goto(served.url)
            page.get_by_label("username").fill("eve")
            page.get_by_label("password").fill(password)
            page.get_by_role("button", name="Login").click()
            page.wait_for_selector(seen)
        assert failed == []
