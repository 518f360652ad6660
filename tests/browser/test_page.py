"""The web demo as visitors meet it, in Chromium."""

from __future__ import annotations

import json
import time
import zipfile

import numpy as np
import pytest
from browser_tools import open_tab, picture
from web_demo import FACES

from superres.tasks.faces import image_key
from superres.tasks.pictures import read_image

PREVIEW = "[...document.querySelectorAll('#preview img, #preview [role=alert]')].map(e => e.src || e.innerText).join()"


def choose(page, path):
    """Upload `path` in place of what is there, and wait until the server has looked at it."""
    before = page.evaluate(PREVIEW)
    page.set_input_files("#photo input[type=file]", path)
    wait_for_preview(page, before)


def wait_for_preview(page, before):
    """Wait until the preview is another one; Gradio may change what is around it before."""
    page.wait_for_function(f"before => {PREVIEW} !== before", arg=before)


def set_block_size(page, value):
    page.get_by_text("Decoding settings").first.click()
    page.get_by_label("number input for Block size").first.fill(str(value))
    page.get_by_label("number input for Block size").first.press("Enter")


def finish(page):
    page.wait_for_selector("#results superres-viewer img")


def downloaded(page):
    """Return the picture behind the first download link."""
    link = page.locator("#results a.sr-download").first
    return picture(link.get_attribute("href"))


@pytest.fixture
def slowly(demo, monkeypatch):
    """Let the decoder rest after every look at it, so that a browser on a busy machine sees what passes."""
    stream = demo.decoder.upscaler.stream

    def rest(*arguments, **settings):
        for shown in stream(*arguments, **settings):
            yield shown
            time.sleep(0.15)

    monkeypatch.setattr(demo.decoder.upscaler, "stream", rest)
    monkeypatch.setattr(demo.decoder, "frame_seconds", 0.0)


@pytest.mark.usefixtures("slowly")
def test_an_upload_is_decoded_block_by_block_to_the_end(visit, demo, screenshots):
    page = visit()
    seen = []
    page.expose_function("seen", lambda frame: seen.append(frame))
    page.evaluate("""new MutationObserver(() => {
        const caption = document.querySelector('#results [aria-label="Live decoding"] figcaption');
        if (caption) seen([caption.firstChild.textContent, !!document.querySelector('#results .sr-block')]);
    }).observe(document.querySelector('#results'), {childList: true, subtree: true, attributes: true})""")
    choose(page, FACES[1])
    page.wait_for_selector("superres-crop", state="detached")
    page.click("#run")
    page.wait_for_selector("#results .sr-block", state="attached")
    page.screenshot(path=screenshots / "live.png")
    finish(page)
    page.screenshot(path=screenshots / "upscale.png", full_page=True)
    shares = [int(caption.split()[1]) for caption, _ in seen]
    assert shares == sorted(shares)
    assert len(shares) > 2
    assert any(marked for _, marked in seen)
    assert page.locator("#results .sr-block").count() == 0
    source = read_image(FACES[1])
    expected = demo.decoder.upscaler(source[None], keys=[image_key(source, 1)])
    face = downloaded(page)
    np.testing.assert_array_equal(np.asarray(face), expected.images[0])
    record = json.loads(face.text["superres"])
    assert record["config"]["accept"] == "exact"
    assert record["checkpoint"].startswith("celeba-8to32@")


def test_a_photo_is_cropped_before_the_visitor_and_compared_with_its_truth(visit, screenshots):
    page = visit()
    page.get_by_role("button", name="Astronaut").click()
    page.wait_for_selector("superres-crop [role=slider]")
    before = page.evaluate(PREVIEW)
    page.get_by_role("slider", name="Crop of the photo").press("-")
    wait_for_preview(page, before)
    page.screenshot(path=screenshots / "crop.png")
    page.click("#run")
    finish(page)
    page.get_by_text("Side by side, with scores").click()
    captions = page.locator("#results [aria-label='Side by side'] figcaption").all_inner_texts()
    names = [caption.split(":")[0].split("\n")[0] for caption in captions[:4]]
    assert names == ["Input, 8x8", "Bicubic", "superres", "Truth"]
    assert all("dB, SSIM" in caption for caption in captions[:3])


def test_pixels_stay_pixels_and_every_picture_and_control_has_a_name(visit):
    page = visit()
    page.get_by_role("button", name="Face 1").click()
    page.click("#run")
    finish(page)
    for summary in page.locator("#results .sr-fold > summary").all():
        summary.click()
    pictures = page.evaluate("""[...document.querySelectorAll('#results img')].map(image => [
        getComputedStyle(image).imageRendering, image.clientWidth % image.naturalWidth, image.alt])""")
    assert len(pictures) > 5
    assert all(rendering == "pixelated" and rest == 0 and alt for rendering, rest, alt in pictures)
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input, select, textarea')].filter(control =>
        control.offsetParent && control.type !== 'file' && !control.labels?.length && !control.ariaLabel
        && !control.title && !control.textContent.trim()).map(control => control.outerHTML)""")
    assert unnamed == []


@pytest.mark.usefixtures("slowly")
def test_stop_stops(visit, demo):
    page = visit()
    set_block_size(page, 1)
    page.click("#run")
    page.wait_for_selector("#results .sr-block", state="attached")
    page.click("#stop")
    demo.wait(lambda: not demo.decoder.is_busy)
    page.wait_for_timeout(300)
    shown = page.inner_text("#results")
    assert "100 %" not in shown
    page.wait_for_timeout(700)
    assert page.inner_text("#results") == shown
    assert page.locator("#results superres-viewer").count() == 0
    page.get_by_label("number input for Block size").first.fill("10")
    page.click("#run")  # and the next run works
    finish(page)


def test_a_race_shows_both_on_the_same_clock(visit, screenshots):
    page = visit()
    page.check("#race input")
    page.click("#run")
    page.wait_for_selector("#results figure:nth-child(2)")
    page.screenshot(path=screenshots / "race.png")
    finish(page)
    text = page.inner_text("#results")
    assert "Greedy: 100 %" in text
    assert "Blockwise: 100 %" in text
    assert "3,073" in text  # model calls of greedy decoding
    assert "times as fast" in text or "the same time" in text


def test_a_bad_upload_is_told_at_once_and_again_as_a_toast(visit, tmp_path, screenshots):
    (tmp_path / "<b>bad.png").write_text("no picture")
    page = visit()
    choose(page, tmp_path / "<b>bad.png")
    assert "is not an image that can be read" in page.inner_text("#preview [role=alert]")
    page.click("#run")
    toast = page.locator(".toast-body")
    toast.wait_for()
    assert "is not an image that can be read; provide one of PNG, JPEG" in toast.inner_text()
    page.screenshot(path=screenshots / "error.png")


def test_a_batch_names_the_bad_file_and_packs_the_others(visit, tmp_path, screenshots):
    (tmp_path / "bad.png").write_text("no picture")
    page = visit()
    page.get_by_role("tab", name="Batch").click()
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Click to Upload").last.click()
    chooser.value.set_files([FACES[0], FACES[1], tmp_path / "bad.png"])
    page.wait_for_selector("#files [aria-label='bad.png']")
    page.click("#run-batch")
    page.wait_for_selector("#gallery figure:nth-child(2)")
    page.wait_for_selector("#archive a[download]")
    page.screenshot(path=screenshots / "batch.png")
    assert "2 of 3 ready" in page.inner_text("#batch-state")
    assert "bad.png is not an image" in page.inner_text("#batch-state .sr-bad")
    with page.expect_download() as caught:
        page.locator("#archive a[download]").first.click()
    with zipfile.ZipFile(caught.value.path()) as archive:
        assert sorted(archive.namelist()) == ["face-1.png", "face-2.png", "manifest.jsonl"]
        rows = [json.loads(line) for line in archive.read("manifest.jsonl").splitlines()]
    statuses = {row["input"]: row["status"] for row in rows}
    assert statuses == {"bad.png": "failed", "face-1.png": "ok", "face-2.png": "ok"}


def test_the_keyboard_alone_is_enough(visit):
    page = visit()
    before = page.evaluate(PREVIEW)

    def tab_to(name):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.textContent.trim()") == name:
                return
        raise AssertionError(f"Tab never reaches {name}")

    tab_to("Face 3")
    page.keyboard.press("Enter")
    wait_for_preview(page, before)
    tab_to("Upscale")
    page.keyboard.press("Enter")
    finish(page)
    tab_to("Download PNG")


def test_a_narrow_screen_needs_no_sideways_scrolling(visit, screenshots):
    page = visit(viewport={"width": 390, "height": 844})
    page.click("#run")
    finish(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.screenshot(path=screenshots / "narrow.png", full_page=True)
    open_tab(page, "Translate")
    page.fill("#text textarea", "the small red dog sees a man\na house")
    page.click("#run-text")
    page.wait_for_selector("#translation [role=status]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.screenshot(path=screenshots / "translate-narrow.png", full_page=True)
