"""The static page, from a plain web server: the engine in the browser draws what the same engine
draws in Python. Its paint box is that of `test_painter.py`."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import threading
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image
from skimage import data

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
from tests.journeys.helpers import (
    PATIENCE,
    WATCH_ANSWERS,
    beat_a_score,
    cell,
    check_fits,
    check_wcag,
    draft_by_keys,
    drawn,
    give,
    is_failure,
    other_faces,
    painted,
    upload,
)
from tests.web.helpers import FACES, encoded, huge_png

GAME, VIEW = "superres-draft", "data-view"
SQUARES = [(0, 0, 64), (7, 3, 90), (20, 1, 71), (3, 50, 8)]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def folder(tmp_path):
    assert run(["export", "web", str(tmp_path / "site")]) == 0
    return tmp_path / "site"


@pytest.fixture
def page(browser, folder, screenshots):
    """The page of a new visitor; nobody asks another host, and no script fails, also not by the
    page's policy."""
    asked, failed = [], []
    handler = functools.partial(Quiet, directory=folder)
    with (http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
          browser.new_context(viewport={"width": 390, "height": 844}, color_scheme="dark",
                              reduced_motion="reduce") as context):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        context.set_default_timeout(PATIENCE)
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.asked = asked
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("console", lambda message: failed.append(message.text) if is_failure(message)
                else None)
        page.goto(url)
        page.wait_for_selector(".sr-paint[data-state]")
        yield page
        page.screenshot(path=screenshots / "static.png", full_page=True)
        server.shutdown()
    assert [one for one in asked if not one.startswith(("data:", "blob:", url))] == []
    assert failed == []


def address(page):
    """Return the pixels and the digest in the address."""
    fragment = parse_qs(urlsplit(page.url).fragment)
    return fragment["x"][0], fragment["d"][0]


def drawn_in_python(upscaler, x, sample=1, block=0, **changes):
    """Return the number of steps of each stage, and the digest."""
    source, steps = pixels_of(x, upscaler.face_task), list[int]()
    for number, stage in enumerate(stages_of(upscaler)):
        options = {"adaptive": False, "block_size": block or exact_block(stage), **changes}
        result = upscaler.decode(source[None], upscaler.default.changed(options),
                                 keys=[image_key(source, sample)])
        steps.append(result.stages[number].traces[0].iterations)
    return steps, short_digest(result.images[0].tobytes())


def start_after_failures(page, folder):
    """The model's file is missing, then damaged, and the next visit has it."""
    example = read_image(FACES[0])[0, 0].tobytes().hex()
    page.locator(f".sr-cells [aria-label='row 1, column 1: #{example}']").wait_for()
    first = page.inner_text("main")
    assert re.search(r"download of \d\.\d MB, once", first)
    assert "non-commercial research" in first
    assert "never use it to identify anyone" in first
    check_wcag(page, "before the start")
    assert not any("weights.bin" in one or ".wasm" in one for one in page.asked)
    weights = folder / "weights.bin"
    content = weights.read_bytes()
    weights.unlink()
    page.get_by_role("button", name="Start").click()
    page.get_by_text("The model could not be loaded").wait_for()
    check_wcag(page, "failed")
    weights.write_text("<p>Log in to this network.</p>")
    os.utime(weights, (0, 0))  # the times of a server are whole seconds
    page.get_by_role("button", name="Try again").click()
    page.get_by_text("weights.bin is damaged. Reload the page.").wait_for()
    weights.write_bytes(content)
    page.reload()


def draw_what_python_draws(page, upscaler):
    page.get_by_role("button", name="Smiley", exact=True).click()  # starts the engine, too
    page.wait_for_url("**#x=*&d=*")
    drawn(page)
    x, digest = address(page)
    steps, expected = drawn_in_python(upscaler, x)
    assert digest == expected
    assert page.locator(".sr-bars b").all_inner_texts() == ["15,360 steps", f"{sum(steps):,} steps"]
    assert "superres: the same picture" in page.inner_text(".sr-bars")
    page.locator(".sr-others button").nth(1).click()
    page.wait_for_url("**&n=2&d=*")
    assert address(page)[1] == drawn_in_python(upscaler, x, 2, temperature=TEMPERATURE)[1]
    return x, steps


def race_compare_and_step(page, upscaler, x, steps):
    for name in ("Compare it", "Race:", "Step through"):
        page.locator("summary").filter(has_text=name).click()
    page.get_by_role("button", name="Start the race").click()
    page.wait_for_selector("superres-race")
    assert page.locator("superres-stepper .sr-scrubber").evaluate_all(
        "all => all.map(({max}) => Number(max))") == steps
    page.get_by_text("15,360 steps: done").wait_for()
    blocks = sum(drawn_in_python(upscaler, x, block=4)[0])
    page.get_by_text(f"{blocks:,} steps: the same picture").wait_for()
    page.locator("superres-viewer .sr-choice").nth(OTHERS).click()
    assert page.locator(".sr-right").inner_text() == f"Person {OTHERS}"
    assert page.get_by_text("As the model drew it").count() == 0  # this page finishes no faces
    check_wcag(page, "all parts")
    for width in (320, 390):
        page.set_viewport_size({"width": width, "height": 844})
        check_fits(page, width)


def save_marked_pictures(page, folder):
    for name in ("Save", "Save card"):
        with page.expect_download() as download:
            page.locator(".sr-portrait").get_by_text(name, exact=True).click()
        download.value.save_as(folder / name)
    with Image.open(folder / "Save card") as card, Image.open(folder / "Save") as face:
        for image in (card, face):
            assert DRAWN in image.text[XMP_KEYWORD]
            assert "never use it to identify anyone" in image.text["superres"]
        assert card.size == (1200, 630)
        assert short_digest(np.asarray(face.convert("RGB")).tobytes()) == address(page)[1]


def paint_on_while_a_face_is_drawn(page):
    """Newer strokes end what is drawn for older ones."""
    page.evaluate(WATCH_ANSWERS)
    for at in range(8):
        cell(page, at, at).click()
        page.wait_for_timeout(60)
    drawn(page)
    answers = page.evaluate("answers")
    assert [kind for kind, _, _, x in answers if x == address(page)[0]] == ["large", "others"]
    assert len(answers) == 2  # of older strokes, small faces at most


def open_links_without_a_network(page, upscaler):
    page.get_by_text("and the page works offline").wait_for()
    before = address(page)
    page.context.set_offline(True)
    page.reload()
    page.get_by_text("The same picture as that of the link.").wait_for()
    assert address(page) == before
    # the person of a link is drawn first, and a foreign digest stays in the address
    x, foreign = "gICA" * 64, "0123456789ab"
    page.evaluate(WATCH_ANSWERS)
    link = f"#x={x}&t={TEMPERATURE}&s=0&n=3&d={foreign}"
    page.evaluate("hash => { location.hash = hash; }", link)
    page.get_by_text("Person 3: sample 3 of seed 0. Not the same picture as that of the "
                     "link").wait_for()
    drawn(page)
    assert page.url.endswith(link)
    assert [answer[:2] for answer in page.evaluate("answers")] == [["large", 3], ["large", 0],
                                                                   ["others", 3]]
    digest = short_digest(other_faces(page)[2].tobytes())
    assert digest == drawn_in_python(upscaler, x, 3, temperature=TEMPERATURE)[1]
    page.context.set_offline(False)


def reduce_as_in_training(page, rng):
    photo = rng.integers(0, 256, (93, 117, 3), np.uint8)
    found = page.evaluate("""async ([content, squares]) => {
        const {readPhoto, reduced} = await import("./photos.js");
        const photo = new Blob([Uint8Array.from(content)], {type: "image/png"});
        const read = await readPhoto(photo, 8);
        return squares.map(square => [8, 64].filter(size => size <= square[2]).map(
            size => Array.from(reduced(read, square, size))));
    }""", [list(encode_png(Picture(photo), None)), SQUARES])
    for (left, top, side), sizes in zip(SQUARES, found, strict=True):
        for size, pixels in zip((8, 64), sizes, strict=False):
            expected = area_reduce(photo[top:top + side, left:left + side], size, size)
            assert short_digest(bytes(pixels)) == short_digest(expected.tobytes())


def crop_a_photo(page, folder):
    photo = data.astronaut()
    Image.fromarray(photo).save(folder / "photo.png")
    upload(page, folder / "photo.png")
    page.get_by_text("This page looks for no faces").wait_for()
    frame = page.get_by_role("slider", name="Crop of the photo")
    for key in ("-", "-", "ArrowUp", "ArrowRight"):
        frame.press(key)
    left, top, side = (int(page.locator("superres-crop input").nth(at).input_value())
                       for at in range(3))
    assert side < 500
    square = photo[top:top + side, left:left + side]
    cells = area_reduce(square, 8, 8)
    page.locator(f".sr-cells [aria-label$='#{cells[0, 0].tobytes().hex()}']").first.wait_for()
    np.testing.assert_array_equal(painted(page), cells)
    drawn(page, OTHERS + 1)
    truth, faces = area_reduce(square, 64, 64), other_faces(page)
    is_truth = [np.array_equal(face, truth) for face in faces]
    assert sum(is_truth) == 1
    strangers = faces[~np.array(is_truth)]
    np.testing.assert_array_equal(area_reduce(strangers, 8, 8, is_reduced=True),
                                  cells[None].repeat(len(strangers), axis=0))
    assert "#" not in page.url  # a photo is never in the address
    check_wcag(page, "a photo")
    for name, content in (
        ("text.png", b"no picture"), ("notes.pdf", encoded(Image.fromarray(photo), "PDF")),
        ("photo.heic", b""), ("bomb.png", huge_png(50_000)),
        ("dot.png", encoded(Image.fromarray(photo[:1, :1]), "PNG"))):
        give(page, "drop", name, content)  # without a type, as Windows has none for a HEIC file
        page.locator(".sr-told").get_by_text(f"{name}: th").wait_for()
        assert not page.is_visible("img.sr-drawn")


def draft_a_face(page, upscaler):
    """The game is behind its tab, by arrow keys; the paint box keeps what it has."""
    before = page.url
    page.get_by_role("tab", name="Paint").focus()
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("tab", name="You are the drafter").get_attribute(
        "aria-selected") == "true"
    assert not page.locator("superres-paint").is_visible()
    found = draft_by_keys(page, upscaler)
    check_wcag(page, "drafter")
    check_fits(page, 390)
    assert page.url == before
    face = json.loads(page.get_attribute(GAME, VIEW))["faces"][0]["x"]
    link = (f"{page.url.partition('#')[0]}#draft={face}&k=10&e=12&t={len(found.tokens)}&c={len(found.accepted)}")
    beat_a_score(page, link, found)
    draft_by_keys(page, upscaler)
    assert "a draw" in page.inner_text(".sr-draft .sr-told")
    page.goto(before)
    page.reload()
    drawn(page)


def test_the_engine_in_the_browser_draws_the_faces_of_the_engine_in_python(page, folder, tmp_path,
                                                                           rng):
    upscaler = superres.load("celeba-8to64", "cpu")
    start_after_failures(page, folder)
    x, steps = draw_what_python_draws(page, upscaler)
    save_marked_pictures(page, tmp_path)
    race_compare_and_step(page, upscaler, x, steps)
    paint_on_while_a_face_is_drawn(page)
    draft_a_face(page, upscaler)
    open_links_without_a_network(page, upscaler)
    reduce_as_in_training(page, rng)
    crop_a_photo(page, tmp_path)
