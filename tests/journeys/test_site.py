"""The static page, from a plain web server: the engine in the browser draws what the same engine
draws in Python."""

from __future__ import annotations

import functools
import http.server
import os
import re
import threading
import time
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from browser_tools import PATIENCE, check_wcag, give, is_failure, picture, upload
from PIL import Image
from skimage import data
from stress_demo import encoded, huge_png
from web_demo import FACES

import superres
from superres.cli.main import run
from superres.evaluation.recording import stages_of
from superres.pictures.mark import DRAWN
from superres.pictures.read import Picture, read_image
from superres.pictures.write import XMP_KEYWORD, encode_png
from superres.pipeline.browser_export import exact_block
from superres.system.output import short_digest
from superres.tasks.faces import area_reduce, image_key
from superres.web.content import OTHERS, TEMPERATURE
from superres.web.paint import pixels_of


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("site")
    assert run(["export", "web", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def url(folder):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0),
                                             functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def upscaler():
    return superres.load("celeba-8to64", "cpu")


@pytest.fixture
def visit(browser, url):
    """Open the page as a new visitor; nobody asks another host, and no script fails, also not by
    the page's policy."""
    contexts, asked, failed = [], [], []

    def open_page(path="", **settings):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("console", lambda message: failed.append(message.text) if is_failure(message)
                else None)
        page.goto(url + path)
        page.wait_for_selector(".sr-paint[data-state]")
        return page

    open_page.asked = asked
    yield open_page
    for context in contexts:
        context.close()
    assert [one for one in asked if not one.startswith(("data:", "blob:", url))] == []
    assert failed == []


def until(page, condition, seconds=PATIENCE / 1000):
    """Wait for a condition in JavaScript: the page's policy forbids what Playwright's own waiting
    evaluates."""
    end = time.monotonic() + seconds
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.monotonic() < end, f"{condition}; the page says {page.inner_text('main')[:600]}"
        time.sleep(0.05)


def drawn(page, others=OTHERS):
    """Wait until all faces of the pixels in the box are there."""
    page.wait_for_selector(".sr-paint[data-state=drawn]")
    page.locator(".sr-others button img").nth(others - 1).wait_for()


def paint(page, name):
    """Paint a picture of the page, and return its pixels and the digest of the face in the
    address."""
    page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_url("**#x=*&d=*")
    drawn(page)
    return shown(page)


def shown(page):
    """Return the pixels and the digest in the address."""
    address = parse_qs(urlsplit(page.url).fragment)
    return address["x"][0], address["d"][0]


def drawn_in_python(upscaler, x, sample=1, block=0, **changes):
    """Return the number of steps of each stage, and the digest."""
    source, steps = pixels_of(x, upscaler.face_task), list[int]()
    for number, stage in enumerate(stages_of(upscaler)):
        options = {"adaptive": False, "block_size": block or exact_block(stage), **changes}
        result = upscaler.decode(source[None], upscaler.default.changed(options),
                                 keys=[image_key(source, sample)])
        steps.append(result.stages[number].traces[0].iterations)
    return steps, short_digest(result.images[0].tobytes())


def test_painting_starts_the_engine_and_draws_the_faces_of_the_engine_in_python(visit, upscaler):
    page = visit()
    example = read_image(FACES[0])[0, 0].tobytes().hex()
    page.locator(f".sr-cells [aria-label='row 1, column 1: #{example}']").wait_for()
    first = page.inner_text("main")
    assert re.search(r"download of \d\.\d MB, once", first)
    assert "non-commercial research" in first
    assert "never use it to identify anyone" in first
    check_wcag(page, "before the start")
    assert not any("weights.bin" in one or ".wasm" in one for one in visit.asked)
    x, digest = paint(page, "Smiley")
    steps, expected = drawn_in_python(upscaler, x)
    assert digest == expected
    assert page.locator(".sr-bars b").all_inner_texts() == ["15,360 steps", f"{sum(steps):,} steps"]
    assert "superres: the same picture" in page.inner_text(".sr-bars")
    page.locator(".sr-others button").nth(1).click()
    page.wait_for_url("**&n=2&d=*")
    assert shown(page)[1] == drawn_in_python(upscaler, x, 2, temperature=TEMPERATURE)[1]
    check_wcag(page, "a face")


def test_the_person_of_a_link_is_drawn_first_and_a_foreign_digest_stays_in_the_address(visit,
                                                                                       upscaler):
    x, foreign = "gICA" * 64, "0123456789ab"
    page = visit(link := f"#x={x}&t={TEMPERATURE}&s=0&n=3&d={foreign}")
    page.evaluate("""() => {
        window.answers = [];
        document.addEventListener("superres-answer", ({detail: {kind, question, faces, partial}}) => {
            if (faces && !partial) window.answers.push([kind, JSON.parse(question).n, faces[0].digest]);
        });
    }""")
    page.get_by_role("button", name="Start").click()
    drawn(page)
    assert page.get_by_text("Person 3: sample 3 of seed 0. Not the same picture as that of the "
                            "link").is_visible()
    assert page.url.endswith(link)
    answers = [one for one in page.evaluate("answers") if one[0] != "small"]
    assert [one[:2] for one in answers] == [["large", 3], ["large", 0], ["others", 3]]
    assert answers[0][2] == drawn_in_python(upscaler, x, 3, temperature=TEMPERATURE)[1]


def test_a_link_opens_to_the_same_picture_without_a_network(visit):
    page = visit()
    x, digest = paint(page, "Plumber")
    page.get_by_text("and the page works offline").wait_for()
    page.context.set_offline(True)
    for _ in range(2):
        page.reload()
        page.get_by_text("The same picture as that of the link.").wait_for()
    assert shown(page) == (x, digest)
    other = page.context.new_page()
    other.goto(page.url)
    other.get_by_text("The same picture as that of the link.").wait_for()


@pytest.mark.parametrize("square", [(0, 0, 64), (7, 3, 90), (20, 1, 71), (3, 50, 8)])
def test_a_square_of_a_photo_is_reduced_as_in_training(visit, url, rng, square):
    photo = rng.integers(0, 256, (93, 117, 3), np.uint8)
    page, (left, top, side) = visit(), square
    content = list(encode_png(Picture(photo), None))
    found = page.evaluate("""async ([content, square, sizes]) => {
        const {readPhoto, reduced} = await import("./photos.js");
        const photo = await readPhoto(new Blob([Uint8Array.from(content)], {type: "image/png"}), 8);
        return sizes.map(size => Array.from(reduced(photo, square, size)));
    }""", [content, square, sizes := [size for size in (8, 64) if size <= side]])
    for size, pixels in zip(sizes, found, strict=True):
        expected = area_reduce(photo[top:top + side, left:left + side], size, size)
        assert short_digest(bytes(pixels)) == short_digest(expected.tobytes())


def test_a_photo_is_cropped_and_hides_among_the_drawn_faces(visit, tmp_path):
    page, photo = visit(), data.astronaut()
    Image.fromarray(photo).save(tmp_path / "photo.png")
    upload(page, tmp_path / "photo.png")
    page.get_by_text("This page looks for no faces").wait_for()
    drawn(page, OTHERS + 1)
    frame = page.get_by_role("slider", name="Crop of the photo")
    for key in ("-", "-", "ArrowUp", "ArrowRight"):
        frame.press(key)
    left, top, side = (int(page.locator("superres-crop input").nth(at).input_value())
                       for at in range(3))
    assert side < 500
    square = photo[top:top + side, left:left + side]
    cells = area_reduce(square, 8, 8)
    page.locator(f".sr-cells [aria-label$='#{cells[0, 0].tobytes().hex()}']").first.wait_for()
    drawn(page, OTHERS + 1)
    uris = page.locator(".sr-others img").evaluate_all("images => images.map(image => image.src)")
    pictures = [np.asarray(picture(uri)) for uri in uris]
    truth = area_reduce(square, 64, 64)
    assert sum(np.array_equal(one[:, :, :3], truth) for one in pictures) == 1
    for one in pictures:
        if not np.array_equal(one[:, :, :3], truth):
            np.testing.assert_array_equal(area_reduce(one[:, :, :3], 8, 8, is_reduced=True), cells)
    assert "#" not in page.url  # a photo is never in the address
    check_wcag(page, "a photo")
    for name, content in (("text.png", b"no picture"),
                          ("notes.pdf", encoded(Image.fromarray(photo), "PDF")),
                          ("photo.heic", b""), ("bomb.png", huge_png(50_000)), ("dot.png", encoded(
                              Image.fromarray(photo[:1, :1]), "PNG"))):
        give(page, "drop", name, content)  # without a type, as Windows has none for a HEIC file
        page.locator(".sr-told").get_by_text(f"{name}: th").wait_for()
        assert page.is_visible(".sr-told")
        assert not page.is_visible("img.sr-drawn")


def test_the_camera_s_picture_fills_the_box(visit):
    page = visit(permissions=["camera"])
    page.get_by_role("button", name="Camera").click()
    until(page, "document.querySelector('.sr-camera video')?.videoWidth > 0")
    page.get_by_role("button", name="Take the picture").click()
    page.get_by_role("slider", name="Crop of the photo").wait_for()
    drawn(page, OTHERS + 1)


def test_a_race_is_run_and_replayed_and_a_decode_stepped_through(visit, upscaler):
    page = visit(reduced_motion="reduce")
    x, _ = paint(page, "Creeper")
    steps, _ = drawn_in_python(upscaler, x)
    for name in ("Compare it", "Race:", "Step through"):
        page.locator("summary").filter(has_text=name).click()
    page.get_by_role("button", name="Start the race").click()
    page.wait_for_selector("superres-race")
    assert page.locator("superres-stepper .sr-scrubber").evaluate_all("all => all.map(({max}) => "
                                                                      "Number(max))") == steps
    page.get_by_text("15,360 steps: done").wait_for()
    page.get_by_text(f"{sum(drawn_in_python(upscaler, x, block=4)[0]):,} steps: the same "
                     "picture").wait_for()
    page.locator("superres-viewer .sr-choice").nth(OTHERS).click()
    assert page.locator(".sr-right").inner_text() == f"Person {OTHERS}"
    assert page.get_by_text("As the model drew it").count() == 0  # this page finishes no faces
    check_wcag(page, "all parts")


def test_saved_pictures_have_the_mark(visit, tmp_path):
    page = visit()
    _, digest = paint(page, "Surprise me")
    for name in ("Save", "Save card"):
        with page.expect_download() as download:
            page.locator(".sr-portrait").get_by_text(name, exact=True).click()
        download.value.save_as(tmp_path / name)
    with Image.open(tmp_path / "Save card") as card, Image.open(tmp_path / "Save") as face:
        for image in (card, face):
            assert DRAWN in image.text[XMP_KEYWORD]
            assert "never use it to identify anyone" in image.text["superres"]
        assert card.size == (1200, 630)
        assert short_digest(np.asarray(face.convert("RGB")).tobytes()) == digest


def test_newer_strokes_end_what_is_drawn_for_older_ones(visit):
    page = visit()
    paint(page, "Smiley")
    page.evaluate("""() => {
        window.finished = [];
        document.addEventListener("superres-answer", ({detail: {partial, question}}) => {
            if (!partial) window.finished.push(JSON.parse(question).x);
        });
    }""")
    for at in range(8):
        page.locator(".sr-cells [role=gridcell]").nth(9 * at).click()
        page.wait_for_timeout(60)
    drawn(page)
    until(page, f"document.querySelectorAll('.sr-others button img').length === {OTHERS}")
    finished = page.evaluate("window.finished")
    assert finished.count(shown(page)[0]) == 3  # small, large, others
    assert len(finished) <= 3 + 7  # of older strokes, small faces at most


def test_a_failed_download_can_be_tried_again(visit):
    page = visit(service_workers="block", viewport={"width": 390, "height": 844},
                 color_scheme="dark")
    page.route("**/weights.bin", lambda route: route.abort())
    page.get_by_role("button", name="Start").click()
    page.get_by_text("The model could not be loaded").wait_for()
    check_wcag(page, "failed")
    page.unroute("**/weights.bin")
    page.get_by_role("button", name="Try again").click()
    drawn(page)
    check_wcag(page, "dark")
    for width in (390, 320):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_kept_files_of_no_use_are_forgotten(visit, folder):
    weights = folder / "weights.bin"
    content = weights.read_bytes()
    page = visit()
    weights.write_text("<p>Log in to this network.</p>")
    os.utime(weights, (0, 0))  # the times of a server are whole seconds
    try:
        page.get_by_role("button", name="Start").click()
        page.get_by_text("weights.bin is damaged. Reload the page.").wait_for()
    finally:
        weights.write_bytes(content)
    page.reload()
    page.get_by_role("button", name="Start").click()
    drawn(page)


def test_a_race_is_not_of_pixels_that_have_changed(visit):
    page = visit(reduced_motion="reduce")
    paint(page, "Smiley")
    page.locator("summary").filter(has_text="Race:").click()
    page.evaluate("""() => {
        document.querySelector(".sr-cells [role=gridcell]").focus();
        const press = key => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
        press(" ");
        setTimeout(() => document.querySelector("#race button").click(), 350);
    }""")
    drawn(page)  # no race of the old pixels has stopped it
    page.get_by_role("button", name="Start the race").click()
    page.get_by_text("steps: the same picture").wait_for()


def test_a_link_with_a_temperature_out_of_range_has_the_usual_one(visit):
    page = visit(f"#x={'gICA' * 64}&t=-1&n=1")
    page.get_by_role("button", name="Start").click()
    drawn(page)
    page.wait_for_url(f"**&t={TEMPERATURE}&*")
