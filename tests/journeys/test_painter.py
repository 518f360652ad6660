"""The paint box, on the server's page: strokes, people, links, photos, and files that are none. The
static page has the same box."""

from __future__ import annotations

import base64
import re

import numpy as np
from PIL import Image
from skimage import data

from superres.pictures.files import formats
from superres.pictures.mark import DRAWN
from superres.pictures.read import read_image
from superres.tasks.faces import FaceTask, area_reduce
from superres.web.content import OTHERS
from superres.web.crops import subjects
from superres.web.files import MAX_FILE_BYTES
from superres.web.paint import sampled
from tests.journeys.helpers import (
    SIDE,
    WATCH_ANSWERS,
    cell,
    check_finished,
    check_wcag,
    choose_face,
    decode,
    drawn,
    face_for,
    give,
    other_faces,
    painted,
    pixels,
    see_as_drawn,
    until,
    upload,
    use_face,
    wait_for_pixels,
)
from tests.web.helpers import FACES, LABELS, encoded, huge_png, zipped

PHOTO = Image.fromarray(data.astronaut())
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def paint(page, name):
    """Paint a picture of the page, and return its face."""
    page.get_by_role("button", name=name, exact=True).click()
    return drawn(page)


def text_of(source):
    return base64.urlsafe_b64encode(source.tobytes()).decode().rstrip("=")


# Strokes and people


def paint_by_mouse_and_keys(page, demo):
    before = painted(page)
    page.get_by_label("red", exact=True).check()
    box = page.locator(".sr-cells").bounding_box()
    x, y = box["x"] + box["width"] / 16, box["y"] + box["height"] / 16
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + box["width"] / 4, y, steps=8)
    page.mouse.up()
    expected = before.copy()
    expected[0, :3] = 0xc8, 0x32, 0x2b
    np.testing.assert_array_equal(painted(page), expected)
    np.testing.assert_array_equal(drawn(page), face_for(demo, expected))
    page.get_by_label("Mirror").check()
    page.keyboard.press("Tab")
    cell(page, 0, 2).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    expected[1, 2] = expected[1, 5] = expected[0, 0]
    np.testing.assert_array_equal(painted(page), expected)
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    np.testing.assert_array_equal(painted(page), before)
    cell(page, 7, 7).focus()
    page.keyboard.press("p")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    before[7, 6] = before[7, 1] = before[7, 7]
    np.testing.assert_array_equal(painted(page), before)


def choose_other_people(page, demo):
    face, source = paint(page, "Smiley"), painted(page)
    upscaler = demo.decoding.upscaler

    def expected(seed):
        options = sampled(upscaler.default).changed({"seed": seed})
        return upscaler(source[None], options, samples=OTHERS).images

    check_finished(page, upscaler, source)
    np.testing.assert_array_equal(other_faces(page), expected(0))
    reduced = area_reduce(other_faces(page), SIDE, SIDE, is_reduced=True)
    np.testing.assert_array_equal(reduced, source[None].repeat(OTHERS, axis=0))
    page.locator(".sr-others button").nth(2).click()
    np.testing.assert_array_equal(drawn(page), expected(0)[2])
    page.locator(".sr-others button").nth(2).click()
    np.testing.assert_array_equal(drawn(page), face)
    page.get_by_role("button", name="Other people").click()
    page.wait_for_function("document.querySelectorAll('.sr-others img').length === 0")
    drawn(page)
    np.testing.assert_array_equal(other_faces(page), expected(1))


def edit_a_face(page, demo):
    """Chips add up over a face; over a painting, which is no face, they begin with one."""
    paint(page, "Smiley")
    paint(page, "Red cap")
    assert any((painted(page)[3:] == read_image(path)[3:]).all() for path in FACES)
    choose_face(page, 2)
    paint(page, "Sunglasses")
    before, face = painted(page), read_image(FACES[2])
    assert (before != face).any((1, 2)).nonzero()[0].tolist() == [3, 4]
    np.testing.assert_array_equal(paint(page, "Beard"), face_for(demo, painted(page)))
    assert (painted(page) != before).any((1, 2)).nonzero()[0].min() > 3
    paint(page, "Surprise me")


def save_a_card_and_a_film(page, folder):
    page.locator(".sr-others button").nth(3).click()
    face = drawn(page)
    for kind in ("card", "film"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {kind}").click()
        download.value.save_as(folder / kind)
    with Image.open(folder / "card") as card, Image.open(folder / "film") as film:
        assert card.size == (1200, 630)
        assert DRAWN in card.text["XML:com.adobe.xmp"]
        assert film.n_frames > 10
        assert DRAWN in film.info["xmp"].decode()
        film.seek(film.n_frames - 1)
        last = np.asarray(film.convert("RGB").resize(face.shape[:2], Image.Resampling.BOX))
    assert np.abs(last.astype(float) - face).mean() < 8  # WebP loses some


def leave_nothing_behind(page, demo):
    counts = []
    for at in range(6):
        page.get_by_label(("red", "yellow", "blue")[at % 3], exact=True).check()
        cell(page, at % SIDE, 3).click()
        drawn(page)
        counts.append((page.evaluate("document.querySelectorAll('*').length"),
                       len([*demo.folder.rglob("*")])))
    assert len(set(counts[2:])) == 1


def test_strokes_paint_people_are_chosen_and_faces_saved(visit, demo, tmp_path):
    page = visit()
    drawn(page)
    assert "#" not in page.url
    check_wcag(page, "paint box", "superres-paint")
    paint_by_mouse_and_keys(page, demo)
    choose_other_people(page, demo)
    edit_a_face(page, demo)
    save_a_card_and_a_film(page, tmp_path)
    leave_nothing_behind(page, demo)
    before = painted(page)  # and it is there after a reload
    page.wait_for_url("**/#x=*")
    page.reload()
    drawn(page)
    np.testing.assert_array_equal(painted(page), before)


def test_a_link_holds_the_pixels_and_the_chosen_person(visit, demo, rng):
    source = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    page = visit(f"/#x={text_of(source)}", permissions=CLIPBOARD)
    face = drawn(page)
    np.testing.assert_array_equal(painted(page), source)
    np.testing.assert_array_equal(face, face_for(demo, source))
    page.locator(".sr-others button").nth(1).click()
    chosen = drawn(page)
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert re.search(r"#x=[\w-]{256}&t=0.7&s=0&n=2&d=[0-9a-f]{12}$", link)
    page.get_by_role("button", name="Copy link").wait_for()  # no button says "Copied"
    cell(page, 0, 0).focus()
    page.keyboard.press("Control+c")
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("""async () => {
        const [item] = await navigator.clipboard.read(), reader = new FileReader();
        reader.readAsDataURL(await item.getType("image/png"));
        return new Promise(done => { reader.onload = () => done(reader.result); });
    }""")
    np.testing.assert_array_equal(pixels(copied), chosen)
    page.goto("about:blank")
    page.goto(link)
    np.testing.assert_array_equal(drawn(page), chosen)
    page.get_by_text("Person 2: sample 2 of seed 0. The same picture as that of the "
                     "link.").wait_for()
    foreign = link.replace("&t=0.7&s=0&n=2", "")  # the digest is another picture's
    page.goto(foreign)
    page.reload()
    np.testing.assert_array_equal(drawn(page), face)
    page.get_by_text("Not the same picture as that of the link: another version or "
                     "engine").wait_for()
    assert page.url == foreign
    cell(page, 0, 0).click()  # the address is that of this picture now
    page.wait_for_function("address => location.href !== address", arg=foreign)
    drawn(page)
    assert "of the link" not in page.inner_text(".sr-told")
    open_other_links(page, demo, source)


def open_other_links(page, demo, source):
    # the person of a link is drawn before all others, at the temperature of the link
    page.evaluate(WATCH_ANSWERS)
    page.evaluate("hash => { location.hash = hash; }", f"x={text_of(source)}&t=1.3&s=0&n=3")
    page.wait_for_function("answers.some(([kind]) => kind === 'others')")
    assert [answer[:3] for answer in page.evaluate("answers")] == [
        ["large", 3, 1], ["large", 0, 1], ["others", 3, OTHERS]]
    page.get_by_text("Person 3: sample 3 of seed 0.").wait_for()
    upscaler = demo.decoding.upscaler
    warmer = upscaler(source[None], upscaler.default.changed({"temperature": 1.3}), samples=OTHERS)
    np.testing.assert_array_equal(drawn(page), warmer.images[2])
    for damaged in ("x=short", "x=" + "!" * 256):  # opens the first example
        page.goto("about:blank")
        page.goto(f"{demo.url}/#{damaged}")
        drawn(page)
        np.testing.assert_array_equal(painted(page), read_image(FACES[0]))


# Photos


def fill_by_upload_paste_and_drop(page, demo):
    upload(page, FACES[1])
    source = read_image(FACES[1])
    wait_for_pixels(page, source)
    np.testing.assert_array_equal(drawn(page), face_for(demo, source))
    assert "#" not in page.url  # a photo is never in the address
    page.get_by_label("blue", exact=True).check()
    cell(page, 3, 3).click()
    source = source.copy()
    source[3, 3] = 0x3d, 0x6f, 0xc4
    drawn(page)
    decode(page)  # the buttons take what was painted
    see_as_drawn(page)
    face = pixels(page.locator("#results a.sr-download").first.get_attribute("href"))
    np.testing.assert_array_equal(face, face_for(demo, source))
    cell(page, 0, 0).click()
    page.get_by_text("The input or a setting has changed since this result.").wait_for()
    for how in ("paste", "drop"):
        give(page, how, "face.png", FACES[2].read_bytes(), "image/png")
        wait_for_pixels(page, read_image(FACES[2]))
        drawn(page)
        paint(page, "Smiley")


def look_for_the_photo(page):
    """Look for the photo among the faces that were drawn."""
    truth = subjects(data.astronaut(), FaceTask(SIDE, 32))[0].truth
    for asked, is_right in enumerate((True, False), 1):
        page.get_by_role("button", name="Astronaut").click()
        page.wait_for_selector(".sr-others.sr-quiz")
        drawn(page, OTHERS + 1)
        faces = other_faces(page)
        (place,) = [number for number, face in enumerate(faces) if np.array_equal(face, truth)]
        assert "Which one is real?" in page.inner_text(".sr-strangers")
        if is_right:
            check_wcag(page, "quiz", "superres-paint")
        page.locator(".sr-others button").nth(place if is_right else place - 1).click()
        answer = page.inner_text(".sr-strangers p")
        assert answer.startswith("Yes" if is_right else "No")
        assert f"1 of {asked} right" in answer
        assert page.locator(".sr-others button.sr-real").get_attribute("aria-label") == "The photo"
        page.get_by_label("Person 2 with the same pixels").click()
        page.wait_for_selector(".sr-others [aria-pressed=true]")
        chosen = pixels(page.get_attribute("img.sr-drawn", "src"))
        np.testing.assert_array_equal(chosen, np.delete(faces, place, axis=0)[1])
        paint(page, "Smiley")
        assert "Which one" not in page.inner_text(".sr-strangers")


def take_a_picture(page):
    before = drawn(page)
    page.get_by_role("button", name="Camera").click()
    until(page, "document.querySelector('.sr-camera video')?.videoWidth > 0")
    check_wcag(page, "camera", ".sr-camera")
    page.get_by_role("button", name="Take the picture").click()
    # Chromium's camera shows a green disc
    page.get_by_text("No face was found").wait_for()
    assert page.locator(".sr-camera").count() == 0
    use_face(page)
    until(page, "document.querySelector('.sr-paint').dataset.state === 'drawn'")
    assert not np.array_equal(drawn(page), before)


def test_a_photo_fills_the_box_and_hides_among_the_drawn_faces(visit, demo):
    page = visit(permissions=["camera"])
    drawn(page)
    fill_by_upload_paste_and_drop(page, demo)
    look_for_the_photo(page)
    take_a_picture(page)


def wrong_files():
    """Return contents by name of files that are no picture, or one that is refused."""
    jpeg, gif = encoded(PHOTO, "JPEG"), encoded(PHOTO, "GIF")
    return {
        "empty.png": b"", "text.png": b"no picture" * 50, "cut.jpg": jpeg[: len(jpeg) // 3],
        "notes.PDF": encoded(PHOTO, "PDF"), "dot.png": encoded(PHOTO.crop((0, 0, 1, 1)), "PNG"),
        "drawing.svg": b'<svg xmlns="http://www.w3.org/2000/svg"><circle r="9"/></svg>',
        "bomb.png": huge_png(50_000), "more.zip": zipped({"a.png": encoded(PHOTO, "PNG")}),
        "film.mp4": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(2000),
        "nosuffix": b"\x7fELF" + bytes(500), "broken.gif": gif[:40] + bytes(60) + gif[200:],
        "large.jpg": jpeg + bytes(MAX_FILE_BYTES)}


def refuse_what_is_no_picture(page):
    """Of no file, the browser tells a type, as Windows does of a HEIC file."""
    for name, content in wrong_files().items():
        give(page, "drop", name, content)
        page.locator(".sr-told").get_by_text(f"{name}: the file ").wait_for()
        assert not page.is_visible("img.sr-drawn")
        assert page.locator(".sr-others img").count() == 0
    page.click("#run")  # draws no picture that was chosen before
    page.locator("#results").get_by_text("There is no image yet").wait_for()


def take_every_kind_of_picture(page, demo):
    files = {"icon.png": encoded(PHOTO.resize((32, 32)), "PNG"),
             "upright.jfif": encoded(PHOTO, "JPEG")}
    if "HEIF" in formats():
        files["photo.HEIC"] = encoded(PHOTO, "HEIF")
    for name, content in files.items():
        paint(page, "Smiley")
        before = page.inner_html(".sr-cells")
        give(page, "drop", name, content)
        use_face(page)
        page.wait_for_function("before => document.querySelector('.sr-cells').innerHTML !== before",
                               arg=before)
        np.testing.assert_array_equal(drawn(page), face_for(demo, painted(page)))


def count_the_last_choice(page, demo):
    """Of files that are chosen while another one is read, the last one counts."""
    photo = encoded(PHOTO, "JPEG")
    give(page, "drop", "text.png", b"no picture")
    give(page, "drop", "photo.jpg", photo)
    use_face(page)
    page.wait_for_selector(".sr-others.sr-quiz")
    np.testing.assert_array_equal(drawn(page), face_for(demo, painted(page)))
    give(page, "drop", "photo.jpg", photo)
    page.get_by_role("button", name=LABELS[0]).click()
    give(page, "drop", "text.png", b"no picture")
    page.get_by_text("text.png: the file is not an image").wait_for()
    page.wait_for_function("!document.querySelector('superres-crop')")
    assert not page.is_visible("img.sr-drawn")


def read_without_an_answer(page):
    """The server does not answer, and then the connection is lost, while strokes go on."""
    page.route("**/gradio_api/run/**",
               lambda route: route.fulfill(status=500, json={"error": None}))
    give(page, "drop", "photo.png", FACES[1].read_bytes())
    page.get_by_text("photo.png: the server did not answer; check the connection").wait_for()
    assert not page.is_visible("img.sr-drawn")
    page.unroute("**/gradio_api/run/**")
    paint(page, "Red cap")
    held = []
    page.route("**/gradio_api/upload", lambda route: held.append(route))
    give(page, "drop", "photo.png", FACES[1].read_bytes())
    page.wait_for_selector(".sr-paint[data-state=reading]")
    page.get_by_text("Reading photo.png").wait_for()
    assert (float(page.locator(".sr-canvas").evaluate("face => getComputedStyle(face).opacity"))
            < 0.5)
    assert not page.is_visible(".sr-bars")
    check_wcag(page, "reading", "superres-paint")
    face = paint(page, "Smiley")
    for route in held:
        route.abort()
    page.get_by_text("photo.png: the file could not be sent to the server").wait_for()
    np.testing.assert_array_equal(drawn(page), face)
    page.unroute("**/gradio_api/upload")


def test_a_file_that_cannot_be_read_is_named_and_the_last_choice_counts(visit, demo, monkeypatch):
    page = visit()
    drawn(page)
    refuse_what_is_no_picture(page)
    take_every_kind_of_picture(page, demo)
    count_the_last_choice(page, demo)
    read_without_an_answer(page)
    monkeypatch.setattr(demo.decoding, "time_limit", -1.0)
    page.get_by_role("button", name="Beard").click()
    page.wait_for_selector(".sr-paint[data-state=failed]")
    assert "was stopped" in page.inner_text(".sr-told")
    assert page.get_attribute("img.sr-drawn", "src") is None
    monkeypatch.undo()
    np.testing.assert_array_equal(paint(page, "Surprise me"), face_for(demo, painted(page)))
