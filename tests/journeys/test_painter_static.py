"""The static page, from a plain web server: the engine in the browser draws what the same engine
draws in Python. Its paint box is that of `test_painter.py`."""

from __future__ import annotations

import base64
import functools
import http.server
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
from superres.pictures.mark import DRAWN
from superres.pictures.read import Picture, read_image
from superres.pictures.write import XMP_KEYWORD, encode_png
from superres.system.output import short_digest
from superres.tasks.crops import Crop
from superres.tasks.face_finder import find_faces
from superres.tasks.faces import FaceTask, area_reduce, image_key
from superres.tasks.photos import choose_crops
from superres.web.content import OTHERS, TEMPERATURE
from superres.web.paint import pixels_of
from superres.web.site import BLOCK
from tests.journeys.game import draft_a_face
from tests.journeys.helpers import (
    PATIENCE,
    WATCH_ANSWERS,
    cell,
    check_finished,
    check_fits,
    check_wcag,
    drawn,
    give,
    is_failure,
    other_faces,
    painted,
    until,
    upload,
)
from tests.web.helpers import FACES, encoded, huge_png

SQUARES = [(0, 0, 64, 0), (7, 3, 90, 0), (20, 1, 71, 0), (3, 50, 8, 0), (-9, 20, 60, 0),
           (30, 20, 50, 17.3), (-11, -25, 1100, -33.3), (400, 300, 640, 90)]
TASK = FaceTask(8, 64)


MOST_REQUESTS, MOST_BYTES = 25, 200_000
"""Before the first face is on the screen."""


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


def drawn_in_python(upscaler, x, sample=1, block=BLOCK, **changes):
    """Return the number of steps of each stage, and the digest."""
    source, steps = pixels_of(x, upscaler.face_task), list[int]()
    for number in range(upscaler.stages):
        options = {"adaptive": False, "block_size": block, **changes}
        result = upscaler.decode(source[None], upscaler.default.changed(options),
                                 keys=[image_key(source, sample)])
        steps.append(result.stages[number].traces[0].iterations)
    return steps, short_digest(result.images[0].tobytes())


def see_the_first_face(page, upscaler, folder, saved):
    """The first example's faces are in the page, before any download."""
    face, source = drawn(page), read_image(FACES[0])
    asked = page.evaluate("performance.getEntriesByType('resource').map(({name}) => name)")
    names = [urlsplit(one).path.strip("/") for one in asked if one.startswith("http")]
    assert 1 + len(names) <= MOST_REQUESTS
    assert sum((folder / name).stat().st_size for name in ["index.html", *names]) <= MOST_BYTES
    x = page.evaluate("JSON.parse(document.querySelector('superres-paint').dataset.view).first.x")
    np.testing.assert_array_equal(pixels_of(x, upscaler.face_task), source)
    steps, digest = drawn_in_python(upscaler, x)
    assert short_digest(face.tobytes()) == digest
    assert page.locator(".sr-bars b").all_inner_texts() == ["15,360 steps", f"{sum(steps):,} steps"]
    for number, other in enumerate(other_faces(page), 1):
        expected = drawn_in_python(upscaler, x, number, temperature=TEMPERATURE)[1]
        assert short_digest(other.tobytes()) == expected
    for part in (".sr-canvas", ".sr-cells"):
        box = page.locator(part).bounding_box()
        assert box["y"] + box["height"] <= 844
    for name in ("Other people", "Save card"):
        button = page.get_by_role("button", name=name)
        assert button.is_disabled()
        assert "Press Start first" in button.get_attribute("title")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save", exact=True).click()
    assert download.value.suggested_filename == "face.webp"
    download.value.save_as(saved / "first.webp")
    with Image.open(saved / "first.webp") as picture:
        assert DRAWN in picture.info["xmp"].decode()
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), face)
    home = page.url
    page.evaluate("hash => { location.hash = hash; }", f"x={'ECBA' * 64}")
    page.get_by_text("Your pixels, enlarged", exact=True).wait_for()
    assert page.inner_text(".sr-told") == ""  # one sentence: that of the download
    page.go_back()
    np.testing.assert_array_equal(drawn(page), face)
    assert page.url == home


def start_after_failures(page, folder):
    """The model's file is missing, then damaged, and the next visit has it."""
    example = read_image(FACES[0])[0, 0].tobytes().hex()
    page.locator(f".sr-cells [aria-label='row 1, column 1: #{example}']").wait_for()
    first = page.inner_text("main")
    assert re.search(r"Paint: downloads \d\.\d MB, once", first)
    assert "non-commercial research" in first
    assert "never use it to identify anyone" in first
    assert page.locator("#more button:disabled").all_inner_texts() == [
        "Show the steps", "Race", "Compare"]
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


def finish_bit_by_bit(page, upscaler, x):
    partial = check_finished(page, upscaler, pixels_of(x, upscaler.face_task))
    assert len(partial) > 3
    steps = [one["faces"][0]["steps"] for one in partial]
    assert steps == sorted(steps)


def race_compare_and_step(page, upscaler, x, steps):
    for name in ("Show the steps", "Race", "Compare"):
        page.get_by_role("button", name=name, exact=True).click()
    page.wait_for_selector("superres-race")
    assert page.locator("superres-stepper .sr-scrubber").evaluate_all(
        "all => all.map(({max}) => Number(max))") == steps
    page.get_by_text("15,360 steps: done").wait_for()
    page.get_by_text(f"{sum(steps):,} steps: the same picture").wait_for()
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
    until(page, "navigator.serviceWorker.controller")
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
    """Upright squares, turned ones, and those beyond the photo."""
    photo = rng.integers(0, 256, (893, 1117, 3), np.uint8)
    found = page.evaluate("""async ([content, squares]) => {
        const {readPhoto, reduced} = await import("./photos.js");
        const photo = new Blob([Uint8Array.from(content)], {type: "image/png"});
        const read = await readPhoto(photo, 8);
        return squares.map(square => [8, 64].filter(size => size <= square[2]).map(
            size => Array.from(reduced(read, square, size))));
    }""", [list(encode_png(Picture(photo), None)), SQUARES])
    for (*place, turn), sizes in zip(SQUARES, found, strict=True):
        for size, pixels in zip((8, 64), sizes, strict=False):
            expected = area_reduce(Crop(*place, turn=turn).take(photo), size, size)
            assert short_digest(bytes(pixels)) == short_digest(expected.tobytes())


def scenes():
    """Photos: a large one of a face that is turned and off-centre, one of two faces, and one of
    none."""
    person, scene = Image.fromarray(data.astronaut()), Image.fromarray(data.coffee())
    one, two = scene.resize((2500, 1700)), scene.resize((900, 500))
    turned = person.resize((1200, 1200)).convert("RGBA").rotate(-14, Image.Resampling.BICUBIC)
    one.paste(turned, (1200, 350), turned)
    two.paste(person.resize((450, 450)), (20, 30))
    two.paste(person.resize((380, 380)), (500, 60))
    return [np.asarray(image) for image in (one, two, scene)]


def find_the_faces_that_python_finds(page, photos):
    """Find them to the pixel, and see a face in what the model draws of one alone."""
    found = page.evaluate("""async photos => {
        const {findFaces} = await import("./finder.js"), found = [];
        for (const content of photos) {
            const bytes = Uint8Array.from(atob(content), letter => letter.charCodeAt(0));
            found.push(await findFaces(await createImageBitmap(new Blob([bytes]))));
        }
        return found.map(faces => faces.map(({x, y, side, turn, doubt}) =>
            [x, y, side, turn, doubt]));
    }""", [base64.b64encode(encode_png(Picture(photo), None)).decode() for photo in photos])
    assert [len(faces) for faces in found] == [1, 2, 0]
    for faces, photo in zip(found, photos, strict=True):
        np.testing.assert_allclose(np.reshape(faces, (-1, 5)), find_faces(photo), atol=1e-6)
    is_face = """async () => {
        const image = document.querySelector("img.sr-drawn");
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        canvas.getContext("2d").drawImage(image, 0, 0);
        return (await import("./finder.js")).hasFace(canvas);
    }"""
    assert page.evaluate(is_face) is True
    page.get_by_role("button", name="Smiley", exact=True).click()
    page.wait_for_url("**#x=*&d=*")
    drawn(page)
    assert page.evaluate(is_face) is False


def choose_one_of_two_faces(page, photo, folder):
    """Choose by the keyboard, and again after the box has had its pixels."""
    Image.fromarray(photo).save(folder / "two.png")
    upload(page, folder / "two.png")
    page.get_by_text("Which face? 2 were found.").wait_for()
    check_wcag(page, "two faces")
    check_fits(page, 390)
    for number, crop in enumerate(choose_crops(photo, TASK), 1):
        if number > 1:
            page.get_by_role("button", name="Move the frame").press("Enter")
        page.get_by_role("button", name=f"Found face {number}").press("Enter")
        page.locator(".sr-crop").press("Enter")
        cells = area_reduce(crop.take(photo), 8, 8)
        until(page, f"document.querySelector('.sr-cells [role=gridcell]').ariaLabel.endsWith("
              f"'#{cells[0, 0].tobytes().hex()}')")
        np.testing.assert_array_equal(painted(page), cells)


def crop_a_photo(page, folder):
    photo = data.astronaut()
    Image.fromarray(photo).save(folder / "photo.png")
    upload(page, folder / "photo.png")
    frame = page.get_by_role("slider", name="Crop of the photo")
    (crop,) = choose_crops(photo, TASK)
    place = (f"Found face (clear): {crop.size}x{crop.size} pixels from column {crop.left}, row "
             f"{crop.top}, turned by {crop.degrees} degrees.")
    page.get_by_text(place).wait_for()
    check_wcag(page, "a frame")
    for key in ("-", "-", "ArrowUp", "ArrowRight", "Enter"):
        frame.press(key)
    square = Crop(*(int(page.locator(".sr-numbers input").nth(at).input_value())
                    for at in range(3)), turn=crop.turn).take(photo)
    assert len(square) < crop.size
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


def test_the_engine_in_the_browser_draws_the_faces_of_the_engine_in_python(page, folder, tmp_path,
                                                                           rng):
    upscaler = superres.load("celeba-8to64", "cpu")
    see_the_first_face(page, upscaler, folder, tmp_path)
    start_after_failures(page, folder)
    x, steps = draw_what_python_draws(page, upscaler)
    save_marked_pictures(page, tmp_path)
    finish_bit_by_bit(page, upscaler, x)
    race_compare_and_step(page, upscaler, x, steps)
    paint_on_while_a_face_is_drawn(page)
    draft_a_face(page, upscaler)
    open_links_without_a_network(page, upscaler)
    reduce_as_in_training(page, rng)
    photos = scenes()
    choose_one_of_two_faces(page, photos[1], tmp_path)
    drawn(page)
    find_the_faces_that_python_finds(page, photos)
    crop_a_photo(page, tmp_path)
