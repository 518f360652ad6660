"""A rater's way through a survey in Chromium: consent, pairs and single pictures, a lost
connection, and coming back by a link."""

from __future__ import annotations

import numpy as np
import pytest

from superres.survey.credentials import link_key
from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.records import read_votes
from tests.journeys.helpers import GREY, add_faces
from tests.survey.helpers import add_study, serving, wait_for_pair

LAYOUT = """() => ['left', 'right'].map((side) => {
    const box = document.getElementById(`${side}-picture`).getBoundingClientRect();
    return [box.x, box.y, box.width, document.documentElement.scrollHeight];
})"""
PIXELS = """() => {
    const image = document.getElementById('left-picture');
    const canvas = document.createElement('canvas');
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext('2d');
    context.drawImage(image, 0, 0);
    return [getComputedStyle(image).imageRendering, ...context.getImageData(0, 0, 256, 256).data];
}"""


WINDOWS = {
    False: [((1400, 900), [256], False)],
    True: [((1400, 900), range(512, 700, 16), False), ((320, 320), [112], False),
           ((390, 664), range(160, 390, 16), True)]}
"""Sizes of the window by whether pictures fill it, with widths that they may have, and whether one
is above the other."""


def test_pictures_are_as_large_as_the_window_allows_pixel_by_pixel(look, sqlite):
    screens = look()
    page = screens.page
    for fill, windows in WINDOWS.items():
        study, _ = add_study(sqlite, f"fills {fill}", scale=16, practice=0, fill=fill)
        with serving(sqlite, study) as address:
            page.goto(address)
            screens.agree("me")
            wait_for_pair(page, 1)
            for (across, down), widths, is_stacked in windows:
                page.set_viewport_size({"width": across, "height": down})
                page.wait_for_function("([x, y]) => innerWidth === x && innerHeight === y",
                                       arg=[across, down])
                page.evaluate("new Promise(drawn => requestAnimationFrame(() => "
                              "requestAnimationFrame(drawn)))")  # the page hears of it
                check_layout(page, down, widths, is_stacked)


def check_layout(page, window, widths, is_stacked):
    (left, top, width, height), (right, bottom, other, _) = page.evaluate(LAYOUT)
    assert (left == right, top + width < bottom, top == bottom) == (is_stacked, is_stacked,
                                                                    not is_stacked)
    assert width == other
    assert width in widths
    assert height <= window or window < 400  # both pictures are seen at once
    kind, *pixels = page.evaluate(PIXELS)
    assert kind == "pixelated"
    received = np.array(pixels).reshape(256, 256, 4)
    assert np.array_equal(received, received[::16, ::16].repeat(16, 0).repeat(16, 1))


def practise(screens, address):
    """Go from the consent to the first pair that counts."""
    page = screens.page
    page.goto(f"{address}?PROLIFIC_PID=%7B%7B%25PROLIFIC_PID%25%7D%7D")
    screens.says("This link has {{%PROLIFIC_PID%}} where the value of PROLIFIC_PID belongs")
    screens.check("unfilled")
    page.goto(address)
    screens.agree(" ")
    screens.says("Please type your participant id.")
    screens.check("start")
    screens.agree("me")
    wait_for_pair(page, 1)
    screens.check("practice", GREY)  # whatever the theme
    screens.vote(1, ["ArrowLeft"])
    screens.says("Practice: your choice was")
    wait_for_pair(page, 2)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    focused = page.evaluate("(() => { const style = getComputedStyle(document.activeElement);"
                            " return [document.activeElement.id, style.outlineStyle, "
                            "style.outlineColor]; })()")
    assert focused == ["right", "solid", "rgb(0, 0, 0)"]
    screens.check("feedback", GREY)


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_a_rater_from_the_consent_to_the_end_on_every_screen(look, sqlite, width, scheme):
    study, _ = add_faces(sqlite)
    screens, down = look(width, scheme), []
    page = screens.page
    # From the first page on: a page that is open might send one more request past a new route.
    page.route("**/api/votes", lambda route: route.abort() if down else route.continue_())
    with serving(sqlite, study) as address:
        practise(screens, address)
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector("#continue")
        screens.check("again")
        page.click("#continue")
        wait_for_pair(page, 2)
        down.append(True)
        page.keyboard.press("j")
        screens.says("The server does not respond. No vote is lost")
        screens.check("no-server", GREY)
        down.clear()
        press = page.tap if width < 600 else page.click
        for position, way in enumerate((
            lambda: [page.keyboard.down("f") for _ in range(5)], lambda: press("#right-picture"),
            lambda: page.dblclick("#left"), lambda: page.keyboard.press("Space"),
            lambda: press("#unsure")), 3):
            wait_for_pair(page, position)
            way()
        page.wait_for_selector("#done:not([hidden])")
        screens.check("done")
        page.goto(f"{address}not/here")
        assert page.title() == "Page not found"
        screens.check("missing")
        page.click("text=Open the start page")
        page.wait_for_selector("#agree")  # and its style was found from below as well
    votes = read_votes(sqlite, study)
    assert [(vote["choice"], vote["input"]) for vote in votes] == [
        ("left", "key"), ("right", "key"), ("left", "key"), ("right", "pointer"),
        ("left", "pointer"), ("unsure", "key"), ("unsure", "pointer")]
    assert {(vote["viewport_width"], vote["pixel_ratio"]) for vote in votes} == {(width, 1)}
    assert all(vote["response_ms"] > 0 and vote["display_px"] >= 32 for vote in votes)


def test_single_pictures_are_judged_by_keys_and_buttons_and_reported(look, sqlite):
    study, token = add_faces(sqlite, name="looks", judge=True, scale=8)
    screens = look(390, "dark")
    page = screens.page
    with serving(sqlite, study) as address:
        page.goto(address)
        page.wait_for_selector("#consent:not([hidden])")
        assert "pictures of faces, one by one" in page.inner_text("#consent")
        screens.agree("me")
        screens.vote(1, "1")
        screens.says("Practice: your choice was correct.")
        wait_for_pair(page, 2)
        assert not page.is_visible("#pair")
        assert 200 <= page.locator("#single-picture").bounding_box()["width"] <= 256
        screens.check("judging", GREY)
        page.keyboard.press("j")  # an answer to pairs
        page.keyboard.press("4")
        screens.vote(2, "12")
        for position, name in enumerate(("torn", "unequal", "good"), 4):
            wait_for_pair(page, position)
            page.tap(f"#{name}")
        screens.vote(7, "3")
        page.wait_for_selector("#done:not([hidden])")
        page.goto(f"{address}results/")
        page.fill("#owner", token)
        page.press("#owner", "Enter")
        page.locator("#summary:has-text('6 votes of 1 rater in looks')").wait_for()
        page.wait_for_function("() => document.getElementById('plot').complete")
        page.locator("summary").press("Enter")
        screens.check("judgements")
    votes = read_votes(sqlite, study)
    assert [(vote["choice"], vote["input"]) for vote in votes] == [
        ("torn", "key"), ("torn", "key"), ("unequal", "key"), ("torn", "pointer"),
        ("unequal", "pointer"), ("good", "pointer"), ("good", "key")]
    assert all(vote["display_px"] >= 200 for vote in votes)


def test_a_rater_comes_back_by_a_link_and_another_browser_or_person_does_not(look, sqlite):
    study, _ = add_faces(sqlite, trials=3, practice=0)
    limit = EnrolmentLimit(per_address=3600)
    while not limit.take("127.0.0.1"):
        pass
    first, other = look(), look(390)
    page, elsewhere = first.page, other.page
    with serving(sqlite, study, "/lab", limit=limit) as address:
        page.goto(f"{address}?PROLIFIC_PID=me&STUDY_ID=x")
        page.wait_for_selector("#agree")
        assert not page.is_visible("#rater")
        first.agree()  # and the page waits by itself while many people start
        first.vote(1, "f")
        wait_for_pair(page, 2)
        page.reload()
        wait_for_pair(page, 2)  # resumes by itself
        elsewhere.goto(f"{address}?participant=me")
        other.agree()
        other.says("This participant id has started already;")
        other.check("refused")
        elsewhere.goto(f"{address}?participant=me&link_key={link_key(study.salt, 'me')}")
        other.agree()
        wait_for_pair(elsewhere, 2)
        page.keyboard.press("f")
        first.says("opened elsewhere")
        other.vote(2, "jj")
        for _ in range(2):
            elsewhere.wait_for_selector("#done:not([hidden])")
            assert elsewhere.inner_text("#code") == "C0DE"
            elsewhere.reload()  # a rater who has finished finds the last page again
        page.goto(address)
        first.agree("another")
        first.vote(1, "f")
        page.goto(address)
        page.click("#other")
        first.agree("a third")
        wait_for_pair(page, 1)
    assert (sorted(vote["panel"] for vote in read_votes(sqlite, study))
            == ["", *['{"STUDY_ID": "x"}'] * 3])


def test_a_window_that_is_too_small_is_told_its_size_before_anything_is_asked(look, sqlite):
    study, _ = add_faces(sqlite, minimum_viewport=(2000, 2000))
    screens = look(390, "dark")
    with serving(sqlite, study, "/lab") as address:
        screens.page.goto(address)
        screens.page.wait_for_selector("#small:not([hidden])")
        needs = "needs 2000 × 2000 pixels, and this window has 390 × 844."  # noqa: RUF001
        assert needs in screens.page.inner_text("#size")
        assert not screens.page.is_visible("#agree")
        screens.check("small")
