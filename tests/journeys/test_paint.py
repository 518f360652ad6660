"""The paint box: strokes, keys, links, and what the rest of the page takes from it."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest
from browser_tools import check_wcag, decode, give, picture, see_as_drawn, upload
from PIL import Image
from skimage import data
from stress_demo import encoded, huge_png, zipped
from web_demo import FACES, LABELS

from superres.pictures.files import formats
from superres.pictures.mark import DRAWN
from superres.pictures.read import read_image
from superres.tasks.faces import FaceTask, area_reduce, image_key
from superres.web.crops import subjects
from superres.web.files import MAX_FILE_BYTES
from superres.web.paint import OTHERS, sampled

SIDE = 8
TASK = FaceTask(SIDE, 32)


def cell(page, row, column):
    return page.locator(".sr-cells [role=gridcell]").nth(SIDE * row + column)


def pixels_of(page):
    """Return the pixels of the box, uint8 [8, 8, 3]."""
    colours = page.locator(".sr-cells [role=gridcell]").evaluate_all("cells => cells.map(cell => "
                                                                     "cell.ariaLabel)")
    return np.array([list(bytes.fromhex(name[-6:])) for name in colours], np.uint8).reshape(SIDE,
                                                                                            SIDE, 3)


def drawn(page):
    """Wait until the faces of the pixels are there, and return the large one."""
    page.wait_for_function(f"""() => document.querySelector(".sr-paint")?.dataset.state === "drawn"
        && document.querySelectorAll(".sr-others img").length >= {OTHERS}""")
    return np.asarray(picture(page.get_attribute("img.sr-drawn", "src")))


def face_for(demo, source):
    return demo.decoder.upscaler.decode(source[None], keys=[image_key(source, 1)]).images[0]


def text_of(source):
    return base64.urlsafe_b64encode(source.tobytes()).decode().rstrip("=")


def test_strokes_and_keys_paint_and_the_face_is_drawn_again(visit, demo):
    page = visit()
    drawn(page)
    before = pixels_of(page)
    page.get_by_label("red", exact=True).check()
    box = page.locator(".sr-cells").bounding_box()
    x, y = box["x"] + box["width"] / 16, box["y"] + box["height"] / 16
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + box["width"] / 4, y, steps=8)
    page.mouse.up()
    painted = before.copy()
    painted[0, :3] = 0xc8, 0x32, 0x2b
    np.testing.assert_array_equal(pixels_of(page), painted)
    np.testing.assert_array_equal(drawn(page), face_for(demo, painted))

    page.get_by_label("Mirror").check()
    page.keyboard.press("Tab")
    cell(page, 0, 2).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    painted[1, 2] = painted[1, 5] = painted[0, 0]
    np.testing.assert_array_equal(pixels_of(page), painted)
    page.keyboard.press("Control+z")
    page.keyboard.press("Control+z")
    np.testing.assert_array_equal(pixels_of(page), before)
    cell(page, 7, 7).focus()
    page.keyboard.press("p")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    before[7, 6] = before[7, 1] = before[7, 7]
    np.testing.assert_array_equal(pixels_of(page), before)


def test_other_people_have_the_same_pixels_and_can_be_chosen(visit, demo):
    page = visit()
    page.get_by_role("button", name="Smiley").click()
    face, source = drawn(page), pixels_of(page)
    options = sampled(demo.decoder.upscaler.default)

    def expected(seed):
        return demo.decoder.upscaler(source[None], options.changed({"seed": seed}),
                                     samples=OTHERS).images

    def shown():
        uris = page.locator(".sr-others img").evaluate_all("images => images.map(image => "
                                                           "image.src)")
        return np.stack([np.asarray(picture(uri)) for uri in uris])

    np.testing.assert_array_equal(shown(), expected(0))
    reduced = area_reduce(shown(), SIDE, SIDE, is_reduced=True)
    np.testing.assert_array_equal(reduced, source[None].repeat(OTHERS, axis=0))
    page.locator(".sr-others button").nth(2).click()
    np.testing.assert_array_equal(drawn(page), expected(0)[2])
    page.locator(".sr-others button").nth(2).click()
    np.testing.assert_array_equal(drawn(page), face)
    page.get_by_role("button", name="Other people").click()
    page.wait_for_function("document.querySelectorAll('.sr-others img').length === 0")
    drawn(page)
    np.testing.assert_array_equal(shown(), expected(1))


def test_a_link_holds_the_pixels_and_the_chosen_person(visit, demo, rng):
    source = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    page = visit(f"/#x={text_of(source)}", permissions=["clipboard-read", "clipboard-write"])
    face = drawn(page)
    np.testing.assert_array_equal(pixels_of(page), source)
    np.testing.assert_array_equal(face, face_for(demo, source))
    page.locator(".sr-others button").nth(1).click()
    page.get_by_role("button", name="Copy link").click()
    page.get_by_role("button", name="Copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    assert re.search(r"#x=[\w-]{256}&t=0.7&s=0&n=2&d=[0-9a-f]{12}$", link)
    chosen = drawn(page)
    page.get_by_role("button", name="Copy link").wait_for()  # no button says "Copied"
    cell(page, 0, 0).focus()
    page.keyboard.press("Control+c")
    page.get_by_role("button", name="Copied").wait_for()
    copied = page.evaluate("""async () => {
        const [item] = await navigator.clipboard.read(), reader = new FileReader();
        reader.readAsDataURL(await item.getType("image/png"));
        return new Promise(done => { reader.onload = () => done(reader.result); });
    }""")
    np.testing.assert_array_equal(np.asarray(picture(copied).convert("RGB")), chosen)
    other = visit(link.removeprefix(demo.url), permissions=["clipboard-read", "clipboard-write"])
    np.testing.assert_array_equal(drawn(other), chosen)
    told = other.get_by_text("Person 2: sample 2 of seed 0. The same picture as that of the link.")
    assert told.is_visible()
    other.goto(foreign := link.replace("&t=0.7&s=0&n=2", ""))  # the digest is another picture's
    other.reload()
    np.testing.assert_array_equal(drawn(other), face)
    assert other.get_by_text("Not the same picture as that of the link: another version or "
                             "engine").is_visible()
    assert other.url == foreign
    # The address is that of this picture now.
    other.get_by_role("button", name="Copy link").click()
    other.wait_for_function("document.querySelector('.sr-told').textContent === ''")
    other.goto(foreign)
    drawn(other)
    cell(other, 0, 0).click()
    other.wait_for_function("address => location.href !== address", arg=foreign)
    drawn(other)
    assert "of the link" not in other.inner_text(".sr-told")
    warmer = visit(link.removeprefix(demo.url).replace("t=0.7", "t=1.3"))
    options = demo.decoder.upscaler.default.changed({"temperature": 1.3})
    np.testing.assert_array_equal(drawn(warmer), demo.decoder.upscaler(source[None], options,
                                                                       samples=OTHERS).images[1])


def test_the_person_of_a_link_is_drawn_before_all_others(visit, demo, rng):
    page = visit()
    drawn(page)
    page.evaluate("""() => {
        window.answers = [];
        document.addEventListener("superres-answer", ({detail: {kind, question, faces}}) => answers.push(
            [kind, JSON.parse(question).n, faces.length, document.querySelector("img.sr-drawn").src === faces[0].uri]));
    }""")
    source = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    page.evaluate("hash => { location.hash = hash; }", f"x={text_of(source)}&n=3")
    page.wait_for_function("answers.some(([kind]) => kind === 'others')")
    answers = [one for one in page.evaluate("answers") if one[0] != "small"]
    assert answers == [["large", 3, 1, True], ["large", 0, 1, False], ["others", 3, OTHERS, False]]
    assert page.get_by_text("Person 3: sample 3 of seed 0.").is_visible()


def test_what_was_painted_is_there_after_a_reload_and_a_photo_is_never_in_the_address(visit,
                                                                                      tmp_path):
    page = visit()
    drawn(page)
    assert "#" not in page.url
    page.get_by_role("button", name="Creeper").click()
    drawn(page)
    page.wait_for_url("**/#x=*")
    painted = pixels_of(page)
    page.reload()
    page.wait_for_selector(".sr-cells")
    drawn(page)
    np.testing.assert_array_equal(pixels_of(page), painted)
    upload(page, FACES[1])
    page.wait_for_selector(".sr-cells "
                           f"[aria-label$='#{read_image(FACES[1])[0, 0].tobytes().hex()}']")
    drawn(page)
    assert "#" not in page.url


def astronaut(page):
    page.get_by_role("button", name="Astronaut").click()
    page.wait_for_selector(".sr-others.sr-quiz")
    drawn_with_photo = f"document.querySelectorAll('.sr-others img').length === {OTHERS + 1}"
    page.wait_for_function(drawn_with_photo)
    return next(crop for crop in subjects(data.astronaut(), TASK))


def test_a_visitor_looks_for_the_photo_among_the_faces_that_were_drawn(visit):
    page = visit()
    drawn(page)
    for asked, is_right in enumerate((True, False), 1):
        truth = astronaut(page).truth
        pictures = page.locator(".sr-others img")
        shown = [np.asarray(picture(uri))
                 for uri in pictures.evaluate_all("images => images.map(image => image.src)")]
        (place,) = [number for number, image in enumerate(shown) if np.array_equal(image, truth)]
        assert "Which one is real?" in page.inner_text(".sr-strangers")
        check_wcag(page, "quiz", "superres-paint")
        page.locator(".sr-others button").nth(place if is_right else place - 1).click()
        told = page.inner_text(".sr-strangers p")
        assert told.startswith("Yes" if is_right else "No")
        assert f"1 of {asked} right" in told
        assert page.locator(".sr-others button.sr-real").get_attribute("aria-label") == "The photo"
        page.get_by_label("Person 2 with the same pixels").click()
        page.wait_for_selector(".sr-others [aria-pressed=true]")
        chosen = np.asarray(picture(page.get_attribute("img.sr-drawn", "src")))
        np.testing.assert_array_equal(chosen,
                                      [one for at, one in enumerate(shown) if at != place][1])
        page.get_by_role("button", name="Smiley").click()
        drawn(page)
        assert "Which one" not in page.inner_text(".sr-strangers")


@pytest.mark.parametrize("how", ["paste", "drop"])
def test_a_picture_that_is_pasted_or_dropped_fills_the_box(visit, demo, how):
    page = visit()
    drawn(page)
    for _ in range(2):
        give(page, how, "face.png", FACES[2].read_bytes(), "image/png")
        source = read_image(FACES[2])
        page.wait_for_selector(f".sr-cells [aria-label$='#{source[0, 0].tobytes().hex()}']")
        np.testing.assert_array_equal(drawn(page), face_for(demo, source))
        page.get_by_role("button", name="Smiley").click()
        drawn(page)


def test_the_camera_s_picture_is_cropped_and_fills_the_box(visit):
    page = visit(permissions=["camera"])
    before = drawn(page)
    page.get_by_role("button", name="Camera").click()
    page.wait_for_function("document.querySelector('.sr-camera video')?.videoWidth > 0")
    check_wcag(page, "camera", ".sr-camera")
    page.get_by_role("button", name="Take the picture").click()
    page.wait_for_selector("superres-crop [role=slider]")
    assert page.locator(".sr-camera").count() == 0
    page.wait_for_function("document.querySelector('.sr-paint').dataset.state === 'drawn'")
    # Chromium's camera shows a green disc
    assert "No face was found" in page.inner_text("superres-crop")
    assert not np.array_equal(drawn(page), before)


def test_a_card_and_a_film_of_the_chosen_face_are_saved(visit, demo, tmp_path):
    page = visit()
    drawn(page)
    page.locator(".sr-others button").nth(3).click()
    face = drawn(page)
    for kind in ("card", "film"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save {kind}").click()
        download.value.save_as(tmp_path / kind)
    with Image.open(tmp_path / "card") as card, Image.open(tmp_path / "film") as film:
        assert card.size == (1200, 630)
        assert DRAWN in card.text["XML:com.adobe.xmp"]
        assert film.n_frames > 10
        assert DRAWN in film.info["xmp"].decode()
        film.seek(film.n_frames - 1)
        last = np.asarray(film.convert("RGB").resize(face.shape[:2], Image.Resampling.BOX))
    assert np.abs(last.astype(float) - face).mean() < 8  # WebP loses some


@pytest.mark.parametrize("link", ["/#x=short", "/#x=" + "!" * 256, "/#nothing"])
def test_a_damaged_link_opens_the_first_example(visit, link):
    page = visit(link)
    drawn(page)
    assert len(np.unique(pixels_of(page))) > 9


def test_a_photo_fills_the_box_and_painted_pixels_are_what_the_buttons_take(visit, demo):
    page = visit()
    drawn(page)
    upload(page, FACES[1])
    source = read_image(FACES[1])
    page.wait_for_selector(f".sr-cells [aria-label$='#{source[0, 0].tobytes().hex()}']")
    np.testing.assert_array_equal(drawn(page), face_for(demo, source))
    page.get_by_label("blue", exact=True).check()
    cell(page, 3, 3).click()
    painted = source.copy()
    painted[3, 3] = 0x3d, 0x6f, 0xc4
    drawn(page)
    decode(page, "#run")
    see_as_drawn(page)
    face = picture(page.locator("#results a.sr-download").first.get_attribute("href"))
    np.testing.assert_array_equal(np.asarray(face), face_for(demo, painted))
    cell(page, 0, 0).click()
    page.get_by_text("The input or a setting has changed since this result.").wait_for()


def wrong_files():
    """Return contents by name of files that are no picture, or one that is refused."""
    photo = Image.fromarray(data.astronaut())
    jpeg, gif = encoded(photo, "JPEG"), encoded(photo, "GIF")
    return {
        "empty.png": b"", "text.png": b"no picture" * 50, "cut.jpg": jpeg[: len(jpeg) // 3],
        "notes.PDF": encoded(photo, "PDF"), "dot.png": encoded(photo.crop((0, 0, 1, 1)), "PNG"),
        "drawing.svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64"><circle r="9"/></svg>',
        "bomb.png": huge_png(50_000), "more.zip": zipped({"a.png": encoded(photo, "PNG")}),
        "film.mp4": b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(2000),
        "nosuffix": b"\x7fELF" + bytes(500), "broken.gif": gif[:40] + bytes(60) + gif[200:],
        "large.jpg": jpeg + bytes(MAX_FILE_BYTES)}


def test_a_file_that_cannot_be_read_is_named_where_the_old_face_was_and_every_picture_is_taken(
    visit, demo):
    """Of no file, the browser tells a type, as Windows does of a HEIC file."""
    page, told = visit(), ".sr-told"
    for name, content in wrong_files().items():
        drawn(page)
        assert page.is_visible("img.sr-drawn")
        give(page, "drop", name, content)
        page.get_by_text(f"{name}: the file ").wait_for()
        assert page.inner_text(told).startswith(f"{name}: the file ")
        assert page.is_visible(told)
        assert not page.is_visible("img.sr-drawn")
        assert page.locator(".sr-others img").count() == 0
        page.get_by_role("button", name="Smiley").click()
    photo = Image.fromarray(data.astronaut())
    pictures = {"icon.png": encoded(photo.resize((32, 32)), "PNG"),
                "upright.jfif": encoded(photo, "JPEG")}
    if "HEIF" in formats():
        pictures["photo.HEIC"] = encoded(photo, "HEIF")
    for name, content in pictures.items():
        drawn(page)
        before = pixels_of(page)
        give(page, "drop", name, content)
        page.wait_for_function("before => document.querySelector('.sr-cells').innerHTML !== before",
                               arg=page.inner_html(".sr-cells"))
        np.testing.assert_array_equal(drawn(page), face_for(demo, pixels_of(page)))
        assert (pixels_of(page) != before).any()
        page.get_by_role("button", name="Smiley").click()


def test_of_files_that_are_chosen_while_another_is_read_the_last_one_counts(visit, demo):
    page, photo = visit(), encoded(Image.fromarray(data.astronaut()), "JPEG")
    drawn(page)
    for _ in range(2):
        give(page, "drop", "text.png", b"no picture")
        give(page, "drop", "photo.jpg", photo)
        page.wait_for_selector(".sr-others.sr-quiz")
        np.testing.assert_array_equal(drawn(page), face_for(demo, pixels_of(page)))
        give(page, "drop", "photo.jpg", photo)
        page.get_by_role("button", name=LABELS[0]).click()
        give(page, "drop", "text.png", b"no picture")
        page.get_by_text("text.png: the file is not an image").wait_for()
        page.wait_for_function("!document.querySelector('superres-crop')")
        assert not page.is_visible("img.sr-drawn")
    large = photo + bytes(MAX_FILE_BYTES)
    page.get_by_role("button", name=LABELS[0]).click()
    drawn(page)
    give(page, "drop", "large.jpg", large)
    page.get_by_text("large.jpg: the file has").wait_for()
    page.click("#run")  # draws no picture that was chosen before
    page.locator("#results").get_by_text("There is no image yet").wait_for()


def test_a_photo_that_the_server_does_not_answer_is_told(visit):
    page = visit()
    drawn(page)
    page.route("**/gradio_api/run/**",
               lambda route: route.fulfill(status=500, json={"error": None}))
    give(page, "drop", "photo.png", FACES[1].read_bytes())
    page.get_by_text("photo.png: the server did not answer; check the connection").wait_for()
    assert not page.is_visible("img.sr-drawn")
    page.unroute("**/gradio_api/run/**")
    give(page, "drop", "photo.png", FACES[1].read_bytes())
    drawn(page)


def test_while_a_photo_is_read_the_box_says_so_and_the_old_face_is_pale(visit):
    page, held = visit(), []
    drawn(page)
    page.route("**/gradio_api/upload", lambda route: held.append(route))
    give(page, "drop", "photo.png", FACES[1].read_bytes())
    page.wait_for_selector(".sr-paint[data-state=reading]")
    assert page.get_by_text("Reading photo.png").is_visible()
    assert (float(page.locator(".sr-canvas").evaluate("face => getComputedStyle(face).opacity"))
            < 0.5)
    assert not page.is_visible(".sr-bars")
    check_wcag(page, "reading", "superres-paint")
    page.get_by_role("button", name="Smiley").click()  # strokes go on meanwhile
    face = drawn(page)
    for route in held:
        route.abort()
    page.get_by_text("photo.png: the file could not be sent to the server").wait_for()
    np.testing.assert_array_equal(drawn(page), face)


def test_what_goes_wrong_is_said_where_the_face_would_be(visit, demo, monkeypatch):
    page = visit()
    drawn(page)
    monkeypatch.setattr(demo.decoder, "time_limit", -1.0)
    page.get_by_role("button", name="Creeper").click()
    page.wait_for_selector(".sr-paint[data-state=failed]")
    assert "was stopped" in page.inner_text(".sr-told")
    assert page.get_attribute("img.sr-drawn", "src") is None
    monkeypatch.undo()
    page.get_by_role("button", name="Plumber").click()
    np.testing.assert_array_equal(drawn(page), face_for(demo, pixels_of(page)))


def test_strokes_leave_nothing_behind_in_the_page_nor_on_the_server(visit, demo):
    page, counts = visit(), []
    for at in range(12):
        page.get_by_label(("red", "yellow", "blue")[at % 3], exact=True).check()
        cell(page, at % SIDE, 3).click()
        drawn(page)
        counts.append((page.evaluate("document.querySelectorAll('*').length"),
                       len([*demo.folder.rglob("*")])))
    assert len(set(counts[2:])) == 1


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (320, "dark")])
def test_the_box_meets_wcag_and_fits(visit, width, theme):
    page = visit(f"/?__theme={theme}", viewport={"width": width, "height": 800})
    drawn(page)
    check_wcag(page, "paint box", "superres-paint")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
