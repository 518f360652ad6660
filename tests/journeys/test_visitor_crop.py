"""Moving the crop of a photo on the photo itself: by mouse, finger, keyboard and numbers."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
from PIL import Image
from skimage import data

from superres.pictures.read import read_image
from superres.tasks.crops import Crop
from superres.tasks.faces import FaceTask
from superres.tasks.photos import choose_crops
from superres.web.crops import take
from tests.journeys.helpers import (
    check_fits,
    check_wcag,
    choose_face,
    drag,
    drawn,
    face_for,
    pixels,
    see_as_drawn,
    upload,
)

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
    return pixels(page.evaluate(INPUT))


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


def move(page, start, by):
    drag(page, start, (start[0] + by[0], start[1] + by[1]))


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


def accept(page):
    """Use the square, and wait until the server shows it, and the paint box its faces: nothing
    moves then."""
    page.get_by_role("button", name="Use this face").click()
    settle(page)
    page.wait_for_selector(".sr-paint[data-state=drawn] .sr-others.sr-quiz img")


def reopen(page):
    page.get_by_role("button", name="Move the frame").click()


def open_photo(page, path):
    """Upload a photo, and wait until its frame has the place of the paint box."""
    photo = "(document.querySelector('superres-crop')?.dataset.photo ?? null)"
    before = page.evaluate(photo)
    if page.is_visible(".sr-framing"):
        page.locator(".sr-crop").press("Escape")
    upload(page, path)
    page.wait_for_function(f"before => {photo} !== before", arg=before)
    page.get_by_role("button", name="Use this face").wait_for()
    assert not page.is_visible(".sr-cells")


def go_back_to_the_box(page, face, cells):
    """Without the photo, the box is as it was; its frame comes again."""
    page.get_by_role("slider", name="Crop of the photo").press("Escape")
    np.testing.assert_array_equal(drawn(page), face)
    assert page.inner_html(".sr-cells") == cells
    page.get_by_role("button", name="Frame the photo").click()


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
    accept(page)
    np.testing.assert_array_equal(preview(page), reduced(astronaut, [412, 45, 100, -10]))
    reopen(page)


def by_mouse(page, demo, astronaut):
    first = square(page)
    move(page, middle(page), (-60, 45))
    moved = square(page)
    assert moved[2:] == first[2:]
    assert moved[:2] == pytest.approx([first[0] - 60 * scale(page), first[1] + 45 * scale(page)],
                                      abs=2)
    page.locator(".sr-crop").press("Enter")
    settle(page)
    np.testing.assert_array_equal(preview(page), reduced(astronaut, moved))
    page.click("#run")
    see_as_drawn(page)
    link = page.locator("#results a.sr-download").first
    np.testing.assert_array_equal(pixels(link.get_attribute("href")),
                                  face_for(demo, reduced(astronaut, moved)))
    assert f"--crop {','.join(map(str, moved))}" in page.locator("#results").inner_html()
    reopen(page)


def corner(page, across, down):
    """Return where a corner of the crop is on the photo."""
    left, top, side, turn = square(page)
    at = (complex(left + side / 2, top + side / 2)
          + complex(across, down) * side / 2 * cmath.rect(1, math.radians(turn)))
    return at.real, at.imag


def by_turning(page, astronaut):
    """Turn by the handle, and resize in the turned axes."""
    (*kept, turn), (x, y), (knob_x, knob_y) = square(page), middle(page), middle(page, ".sr-turn")
    arm = complex(knob_x - x, knob_y - y)
    for degrees, shift in ((40, False), (-33, False), (20, True)):
        at = complex(*middle(page, ".sr-turn"))
        now = math.degrees(cmath.phase((at - complex(x, y)) / arm))
        to = complex(x, y) + arm * cmath.rect(1, math.radians(now + degrees))
        before = square(page)[3]
        if shift:
            page.keyboard.down("Shift")
        move(page, (at.real, at.imag), (to.real - at.real, to.imag - at.imag))
        page.keyboard.up("Shift")
        assert square(page)[:3] == kept
        assert square(page)[3] == pytest.approx(5 * round((before + degrees) / 5) if shift
                                                else before + degrees, abs=2)
        assert square(page)[3] % 5 == 0 or not shift
    accept(page)
    np.testing.assert_array_equal(preview(page), reduced(astronaut, square(page)))
    reopen(page)
    for across, down in ((1, 1), (-1, 1)):
        before, fixed, turn = square(page), corner(page, -across, -down), square(page)[3]
        by = complex(across * 20, down * 20) * cmath.rect(1, math.radians(turn))
        move(page, middle(page, f".sr-s{'e' if across > 0 else 'w'}"), (by.real, by.imag))
        assert square(page)[2:] == [pytest.approx(before[2] + 20 * scale(page), abs=3), turn]
        assert corner(page, -across, -down) == pytest.approx(fixed, abs=1)
    page.get_by_role("button", name="Upright").click()
    assert square(page)[3] == 0
    page.locator(".sr-crop").press(".")
    page.locator(".sr-crop").dblclick()
    assert square(page)[3] == 0


def by_corners(page):
    left, top, side, _ = square(page)
    move(page, middle(page, ".sr-se"), (20, 20))
    grown = square(page)
    assert grown[:2] == [left, top]
    assert grown[2] == pytest.approx(side + 20 * scale(page), abs=2)
    move(page, middle(page, ".sr-nw"), (2000, 2000))
    assert square(page) == [left + grown[2] - 8, top + grown[2] - 8, 8, 0]
    for by, edge in (((-2000, -2000), [0, 0]), ((2000, 0), [504, 0]), ((0, 2000), [504, 504])):
        move(page, middle(page), by)
        assert square(page) == [*edge, 8, 0]
    move(page, middle(page, ".sr-nw"), (-2000, -2000))
    assert square(page) == [0, 0, 512, 0]
    move(page, middle(page), (50, 50))
    assert square(page) == [0, 0, 512, 0]
    photo = page.locator(".sr-picture img").bounding_box()
    move(page, middle(page, ".sr-ne"), (-100, 100))
    kept = square(page)
    move(page, (photo["x"] + photo["width"] - 5, photo["y"] + 5), (-50, 50))  # beside the crop
    assert square(page) == kept


def test_the_crop_obeys_keyboard_mouse_and_corners_stays_in_the_photo_and_is_decoded(
    visit, demo, astronaut, tmp_path
):
    page = visit()
    before = drawn(page), page.inner_html(".sr-cells")
    open_photo(page, astronaut)
    go_back_to_the_box(page, *before)
    (found,) = choose_crops(read_image(astronaut), TASK)
    assert square(page) == as_found(found)
    assert found.turn
    by_keyboard_and_numbers(page, astronaut)
    by_mouse(page, demo, astronaut)
    by_turning(page, astronaut)
    by_corners(page)
    open_photo(page, astronaut)  # one that is chosen again begins anew
    assert square(page) == as_found(found)
    Image.fromarray(data.coffee()).save(tmp_path / "coffee.png")
    open_photo(page, tmp_path / "coffee.png")
    assert ("No face was found, so the centre: 400x400 pixels from column 100, row "
            "0." in page.inner_text(".sr-where"))
    assert "Is this a face?" in page.inner_text(".sr-framing")
    page.get_by_role("button", name="Back").click()
    choose_face(page, 0)  # an 8x8 picture has no crop
    page.wait_for_selector("superres-crop", state="detached")


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
    assert "Which face? 2 were found." in page.inner_text(".sr-framing")
    accept(page)
    np.testing.assert_array_equal(preview(page), reduced(two_faces, left))
    reopen(page)
    page.locator(".sr-found").nth(1).locator("span").click()
    assert square(page) == right
    page.locator(".sr-crop").press("Escape")
    assert square(page) == left
    reopen(page)
    two.click()
    page.get_by_text("Crop in numbers").click()
    check_wcag(page, "frame", "superres-paint")
    move(page, middle(page), (2000, 0))  # the handles of a small crop do not widen the page
    move(page, middle(page, ".sr-nw"), (2000, 2000))
    check_fits(page, 390)
    targets = page.evaluate("""[...document.querySelectorAll(
        '.sr-framing :is(button, input, summary, .sr-handle, .sr-turn)')]
        .map(target => target.getBoundingClientRect())
        .map(({width, height}) => Math.min(width, height))""")
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
    kept, photo = square(page), page.locator(".sr-picture img").bounding_box()
    swipe((photo["x"] + 15, photo["y"] + photo["height"] - 10), (0, -120))
    page.wait_for_function(f"scrollY > {scrolled + 50}")
    assert square(page) == kept
