"""The face that is there before any click, on the server's page, and what the browser's history
undoes."""

from __future__ import annotations

import numpy as np

from superres.pictures.read import read_image
from tests.journeys.helpers import (
    SIDE,
    cell,
    check_wcag,
    drawn,
    face_for,
    painted,
    pixels,
    wait_for_pixels,
)
from tests.web.helpers import FACES, LABELS

WATCH_QUESTIONS = """window.questions = [];
for (const kind of ["small", "large", "others"])
    document.addEventListener(`superres-ask-${kind}`, () => questions.push(kind));"""
PLACES = """selectors => selectors.map(selector => {
    const {x, y, width, height} = document.querySelector(selector).getBoundingClientRect();
    return [x, y, width, height].map(Math.round);
})"""


def release(page, pattern, held):
    """Answer the requests that a route has held, and hold no others."""
    page.route(pattern, lambda route: route.continue_())  # the last one counts
    for route in held:
        route.continue_()


def see_the_face_before_the_scripts(page, demo):
    """The page's first section has the box's places, and the box takes its place."""
    held, places = [], [".sr-cells", ".sr-canvas", ".sr-bars"]
    page.route("**/assets/*.js", lambda route: held.append(route))
    page.add_init_script(WATCH_QUESTIONS)
    page.goto(demo.url, wait_until="commit")
    page.get_by_text("The page is loading").wait_for()
    face = pixels(page.get_attribute("#first .sr-canvas img", "src"))
    np.testing.assert_array_equal(face, demo.decoding.example.images[0])
    before = page.evaluate(PLACES, places)
    check_wcag(page, "opening", "#first")
    release(page, "**/assets/*.js", held)
    np.testing.assert_array_equal(drawn(page), face)
    assert page.locator("#first").count() == 0
    assert np.abs(np.subtract(page.evaluate(PLACES, places), before)).max() <= 1
    assert page.evaluate("questions") == []


def go_back_and_forward(page, demo):
    first = painted(page)
    page.get_by_role("button", name="Smiley", exact=True).click()
    drawn(page)
    smiley, length = painted(page), page.evaluate("history.length")
    page.evaluate("questions.length = 0")
    page.go_back()
    np.testing.assert_array_equal(painted(page), first)
    drawn(page)
    assert "#" not in page.url
    assert page.evaluate("questions") == []  # its faces came with the page
    page.go_forward()
    np.testing.assert_array_equal(painted(page), smiley)
    cell(page, 0, 0).click()  # a stroke is no entry
    stroke = painted(page)
    assert page.evaluate("history.length") == length
    page.get_by_role("button", name=LABELS[2]).click()
    wait_for_pixels(page, read_image(FACES[2]))
    assert "#" not in page.url
    page.go_back()
    np.testing.assert_array_equal(painted(page), stroke)
    assert "#x=" in page.url
    page.go_forward()
    wait_for_pixels(page, read_image(FACES[2]))
    assert "#" not in page.url
    np.testing.assert_array_equal(drawn(page), face_for(demo, read_image(FACES[2])))


def wait_for_the_face_of_a_link(page, demo):
    held = []
    page.goto("about:blank")
    page.goto(f"{demo.url}/#x={'gICA' * SIDE ** 2}")
    page.wait_for_selector(".sr-paint[data-state=drawn]")
    page.route("**/gradio_api/**", lambda route: held.append(route))
    page.evaluate("hash => { location.hash = hash; }", f"x={'ECBA' * SIDE ** 2}")
    page.get_by_text("Your pixels, enlarged", exact=True).wait_for()
    assert pixels(page.get_attribute("img.sr-drawn", "src")).shape == (SIDE, SIDE, 3)
    for name in ("Save", "Copy picture", "Save card", "Other people"):
        button = page.get_by_role("button", name=name, exact=True)
        assert button.is_disabled()
        assert button.get_attribute("title") == "There is no face yet"
    release(page, "**/gradio_api/**", held)
    face = drawn(page)
    assert not page.is_visible(".sr-canvas figcaption")
    page.get_by_label("Finished").check()
    page.get_by_text("The mean of 2 pictures, sharpened").wait_for()
    assert not np.array_equal(pixels(page.get_attribute("img.sr-drawn", "src")), face)
    page.get_by_label("Finished").uncheck()
    np.testing.assert_array_equal(drawn(page), face)


def test_a_face_is_there_before_any_click_and_the_history_undoes_what_was_chosen(visit, cascade):
    page = visit("/", cascade)
    see_the_face_before_the_scripts(page, cascade)
    go_back_and_forward(page, cascade)
    wait_for_the_face_of_a_link(page, cascade)
    phone = visit("/", cascade, viewport={"width": 390, "height": 844})
    drawn(phone)
    top = phone.locator(".sr-actions:visible").bounding_box()["y"]
    for part in (".sr-canvas", ".sr-cells"):
        box = phone.locator(part).bounding_box()
        assert box["y"] + box["height"] <= top
    check_wcag(phone, "phone", "superres-paint")
