"""Moving the crop of a photo on the photo itself, in Chromium."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from browser_tools import check_wcag, choose_face, picture, see_as_drawn, upload
from PIL import Image
from skimage import data

from superres.pictures.read import read_image
from superres.tasks.crops import Crop
from superres.tasks.faces import FaceTask, image_key
from superres.tasks.photos import choose_crops
from superres.web.crops import take

TASK = FaceTask(8, 32)
SHOWN = "document.querySelector('#preview [data-square]')?.dataset.square"
SQUARE = "document.querySelector('superres-crop').square"
CHOSEN = "(square => (square[3] ? square : square.slice(0, 3)).join())"  # as a crop setting
INPUT = "document.querySelector('#preview [data-square] img').src"


def square(page):
    return page.evaluate(SQUARE)


def settle(page):
    """Wait until the server shows the chosen square."""
    page.wait_for_function(f"{SHOWN} === {CHOSEN}({SQUARE})")


def preview(page):
    """Return the model's input that the page shows."""
    return np.asarray(picture(page.evaluate(INPUT)).convert("RGB"))


def reduced(path, chosen):
    left, top, side, turn = chosen
    return take(read_image(path), TASK, Crop(left, top, side, turn=turn)).source


def as_found(crop):
    return [crop.left, crop.top, crop.size, crop.turn]


def middle(page, selector=".sr-crop"):
    # a mouse reaches only what is in the window
    page.locator(selector).scroll_into_view_if_needed()
    box = page.locator(selector).bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page, start, by):
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(start[0] + by[0], start[1] + by[1], steps=4)
    page.mouse.up()


def scale(page):
    """Return the number of pixels of the photo in one of the screen."""
    return page.evaluate("(e => e.data.width / "
                         "e.photo.clientWidth)(document.querySelector('superres-crop'))")


@pytest.fixture(scope="module")
def astronaut(tmp_path_factory):
    path = tmp_path_factory.mktemp("photos") / "astronaut.png"
    Image.fromarray(data.astronaut()).save(path)
    return path


@pytest.fixture(scope="module")
def two_faces(tmp_path_factory):
    """A photo with two faces, of which the right one is larger; the page shows fewer pixels than it
    has."""
    path, face = tmp_path_factory.mktemp("photos") / "two.png", Image.fromarray(data.astronaut())
    photo = Image.new("RGB", (1600, 1000), (90, 110, 140))
    photo.paste(face.resize((900, 900)), (650, 50))
    photo.paste(face.resize((500, 500)), (60, 200))
    photo.save(path)
    return path


def open_photo(page, path):
    """Upload a photo, and wait until the server shows its square, and the paint box its faces:
    nothing moves then."""
    photo = "(document.querySelector('superres-crop')?.dataset.photo ?? null)"
    before = page.evaluate(photo)
    upload(page, path)
    page.wait_for_function(f"before => {photo} !== before", arg=before)
    settle(page)
    page.wait_for_selector(".sr-others.sr-quiz img", state="attached")


def by_keyboard_and_numbers(page, astronaut):
    left, top, side, turn = square(page)
    crop = page.get_by_role("slider", name="Crop of the photo")
    for key, (*expected, degrees) in (
        ("ArrowRight", [left + 5, top, side, turn]),
        ("Shift+ArrowDown", [left + 5, top + 26, side, turn]),
        ("ArrowLeft", [left, top + 26, side, turn]), ("Shift+ArrowUp", [left, top, side, turn]),
        ("+", [left - 13, top - 13, side + 26, turn]), ("-", [left, top, side, turn]),
        (".", [left, top, side, turn + 1]), (",", [left, top, side, turn]),
        ("Home", [0, 0, 512, turn])):
        crop.press(key)
        assert square(page) == [*expected, pytest.approx(degrees)]
        place = (f"{expected[2]}x{expected[2]} pixels from column {expected[0]}, row "
                 f"{expected[1]}, turned by {degrees:g} degrees")
        assert crop.get_attribute("aria-valuetext") == place
        assert place in page.inner_text(".sr-where")
    page.get_by_text("Crop in numbers").click()
    for name, value in (("Side, pixels", 100), ("Left, pixels", 9999), ("Top, pixels", 45),
                        ("Turn, degrees", 350.04)):
        number = page.get_by_label(name)
        number.fill(str(value))
        number.press("Enter")
    assert page.get_by_label("Left, pixels").input_value() == "412"
    assert square(page) == [412, 45, 100, -10]
    assert ("Your crop: 100x100 pixels from column 412, row 45, turned by -10 "
            "degrees." in page.inner_text(".sr-where"))
    settle(page)
    np.testing.assert_array_equal(preview(page), reduced(astronaut, [412, 45, 100, -10]))


def by_mouse(page, demo, astronaut):
    first = square(page)
    drag(page, middle(page), (-60, 45))
    moved = square(page)
    assert moved[2:] == first[2:]
    assert moved[:2] == pytest.approx([first[0] - 60 * scale(page), first[1] + 45 * scale(page)],
                                      abs=2)
    settle(page)
    np.testing.assert_array_equal(preview(page), reduced(astronaut, moved))
    page.click("#run")
    see_as_drawn(page)
    source = reduced(astronaut, moved)
    expected = demo.decoder.upscaler.decode(source[None], keys=[image_key(source, 1)])
    link = page.locator("#results a.sr-download").first
    np.testing.assert_array_equal(np.asarray(picture(link.get_attribute("href"))),
                                  expected.images[0])
    assert f"--crop {','.join(map(str, moved))}" in page.locator("#results").inner_html()


def by_turning(page, astronaut):
    """Turn by the handle, and resize in the turned axes."""
    def place(across, down):  # of a corner on the photo
        x, y = page.locator(f".sr-{'n' if down < 0 else 's'}{'w' if across < 0 else 'e'}").evaluate(
            """(e, [across, down]) => {
                const {square: [left, top, side, turn]} = e.closest("superres-crop"), angle = turn * Math.PI / 180;
                const [x, y] = [across * side / 2, down * side / 2];
                return [left + side / 2 + Math.cos(angle) * x - Math.sin(angle) * y,
                    top + side / 2 + Math.sin(angle) * x + Math.cos(angle) * y];
            }""", [across, down])
        return [x, y]

    (*kept, turn), (x, y), (knob_x, knob_y) = square(page), middle(page), middle(page, ".sr-turn")
    arm = complex(knob_x - x, knob_y - y)
    for degrees, shift in ((40, False), (-33, False), (20, True)):
        at = complex(*middle(page, ".sr-turn"))
        now = math.degrees(cmath.phase((at - complex(x, y)) / arm))
        to = complex(x, y) + arm * cmath.rect(1, math.radians(now + degrees))
        before = square(page)[3]
        if shift:
            page.keyboard.down("Shift")
        drag(page, (at.real, at.imag), (to.real - at.real, to.imag - at.imag))
        page.keyboard.up("Shift")
        assert square(page)[:3] == kept
        assert square(page)[3] == pytest.approx(5 * round((before + degrees) / 5) if shift
                                                else before + degrees, abs=2)
        assert square(page)[3] % 5 == 0 or not shift
    settle(page)
    np.testing.assert_array_equal(preview(page), reduced(astronaut, square(page)))
    for across, down in ((1, 1), (-1, 1)):
        before, fixed, turn = square(page), place(-across, -down), square(page)[3]
        by = complex(across * 20, down * 20) * cmath.rect(1, math.radians(turn))
        drag(page, middle(page, f".sr-s{'e' if across > 0 else 'w'}"), (by.real, by.imag))
        assert square(page)[2:] == [pytest.approx(before[2] + 20 * scale(page), abs=3), turn]
        assert place(-across, -down) == pytest.approx(fixed, abs=1)
    page.get_by_role("button", name="Upright").click()
    assert square(page)[3] == 0
    page.locator(".sr-crop").press(".")
    page.locator(".sr-crop").dblclick()
    assert square(page)[3] == 0


def by_corners(page):
    left, top, side, _ = square(page)
    drag(page, middle(page, ".sr-se"), (20, 20))
    grown = square(page)
    assert grown[:2] == [left, top]
    assert grown[2] == pytest.approx(side + 20 * scale(page), abs=2)
    drag(page, middle(page, ".sr-nw"), (2000, 2000))
    assert square(page) == [left + grown[2] - 8, top + grown[2] - 8, 8, 0]
    for by, edge in (((-2000, -2000), [0, 0]), ((2000, 0), [504, 0]), ((0, 2000), [504, 504])):
        drag(page, middle(page), by)
        assert square(page) == [*edge, 8, 0]
    drag(page, middle(page, ".sr-nw"), (-2000, -2000))
    assert square(page) == [0, 0, 512, 0]
    drag(page, middle(page), (50, 50))
    assert square(page) == [0, 0, 512, 0]
    photo = page.locator("superres-crop img").bounding_box()
    drag(page, middle(page, ".sr-ne"), (-100, 100))
    kept = square(page)
    drag(page, (photo["x"] + photo["width"] - 5, photo["y"] + 5), (-50, 50))  # beside the crop
    assert square(page) == kept


def test_the_crop_obeys_keyboard_mouse_and_corners_stays_in_the_photo_and_is_decoded(
    visit, demo, astronaut, tmp_path
):
    page = visit()
    open_photo(page, astronaut)
    (found,) = choose_crops(read_image(astronaut), TASK)
    assert square(page) == as_found(found)
    assert found.turn
    by_keyboard_and_numbers(page, astronaut)
    by_mouse(page, demo, astronaut)
    by_turning(page, astronaut)
    by_corners(page)
    Image.fromarray(data.coffee()).save(tmp_path / "coffee.png")
    open_photo(page, tmp_path / "coffee.png")
    assert ("No face was found, so the centre: 400x400 pixels from column 100, row "
            "0." in page.inner_text(".sr-where"))
    assert "Is this a face?" in page.inner_text("superres-crop")
    choose_face(page, 0)  # an 8x8 picture has no crop
    page.wait_for_selector("superres-crop", state="detached")


def test_a_photo_that_is_chosen_again_begins_anew(visit, astronaut):
    page = visit()
    open_photo(page, astronaut)
    found = square(page)
    page.get_by_role("slider", name="Crop of the photo").press("+")
    settle(page)
    assert square(page) != found
    open_photo(page, astronaut)
    assert square(page) == found


def test_every_found_face_can_be_chosen_on_a_narrow_screen_and_the_largest_is_first(visit,
                                                                                    two_faces):
    page = visit("/?__theme=dark", viewport={"width": 390, "height": 900}, color_scheme="dark")
    open_photo(page, two_faces)
    left, right = map(as_found, choose_crops(read_image(two_faces), TASK))
    assert square(page) == right
    assert "Found face 2 of 2 (clear): " in page.inner_text(".sr-where")
    outlines = page.locator(".sr-found").evaluate_all("found => found.map(({style}) => "
                                                      "style.transform)")
    assert outlines == [f"rotate({turn:g}deg)" for *_, turn in (left, right)]
    one, two = (page.get_by_role("button", name=f"Found face {number}") for number in (1, 2))
    assert two.get_attribute("aria-pressed") == "true"
    one.press("Enter")
    assert square(page) == left
    assert [button.get_attribute("aria-pressed") for button in (one, two)] == ["true", "false"]
    settle(page)
    np.testing.assert_array_equal(preview(page), reduced(two_faces, left))
    two.click()
    assert square(page) == right
    page.get_by_text("Crop in numbers").click()
    check_wcag(page, "crop", "superres-crop")
    drag(page, middle(page), (2000, 0))  # the handles of a small crop do not widen the page
    drag(page, middle(page, ".sr-nw"), (2000, 2000))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    targets = page.evaluate("""[...document.querySelectorAll(
        'superres-crop :is(button, input, summary, .sr-handle, .sr-turn)')]
        .map(target => Math.min(target.getBoundingClientRect().width, target.getBoundingClientRect().height))""")
    assert min(targets) >= 24


def test_a_finger_moves_the_crop_and_scrolls_the_page_beside_it(visit, astronaut):
    page = visit(viewport={"width": 390, "height": 700}, has_touch=True, is_mobile=True)
    open_photo(page, astronaut)
    page.locator(".sr-crop").evaluate("crop => crop.scrollIntoView({block: 'center'})")
    touch = page.context.new_cdp_session(page)

    def swipe(start, by):
        points = [[{"x": start[0] + by[0] * step / 8, "y": start[1] + by[1] * step / 8}]
                  for step in range(9)]
        for kind, at in [("touchStart", points[0]), *(("touchMove", point) for point in points[1:]),
                         ("touchEnd", [])]:
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})
        page.evaluate("new Promise(drawn => requestAnimationFrame(() => "
                      "requestAnimationFrame(drawn)))")

    scrolled, (left, top, side, turn) = page.evaluate("scrollY"), square(page)
    swipe(middle(page), (20, -30))
    assert page.evaluate("scrollY") == scrolled
    moved = square(page)
    assert moved[:2] == pytest.approx([left + 20 * scale(page), max(0, top - 30 * scale(page))],
                                      abs=3)
    assert moved[2:] == [side, turn]
    handle = page.locator(".sr-sw").bounding_box()
    assert min(handle["width"], handle["height"]) >= 44
    along = complex(-25, 25) * cmath.rect(1, math.radians(turn))
    swipe(middle(page, ".sr-sw"), (along.real, along.imag))
    grown = side + 25 * scale(page)
    page.wait_for_function(f"Math.abs({SQUARE}[2] - {grown}) <= 3")
    settle(page)  # nothing moves under the finger
    (x, y), (knob_x, knob_y) = middle(page), middle(page, ".sr-turn")
    arm, before = complex(knob_x - x, knob_y - y), square(page)
    to = arm * cmath.rect(1, math.radians(50)) - arm
    swipe((knob_x, knob_y), (to.real, to.imag))
    # Chromium resamples touches
    page.wait_for_function(f"Math.abs({SQUARE}[3] - {before[3] + 50}) <= 8")
    assert square(page)[:3] == before[:3]
    settle(page)
    kept, photo = square(page), page.locator("superres-crop img").bounding_box()
    swipe((photo["x"] + 15, photo["y"] + photo["height"] - 10), (0, -120))
    page.wait_for_function(f"scrollY > {scrolled + 50}")
    assert square(page) == kept
