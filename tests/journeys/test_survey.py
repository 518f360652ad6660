"""The survey in Chromium, as a rater, a rater who comes back, and an owner walk through it: votes,
layout, WCAG AA."""

from __future__ import annotations

import numpy as np
import pytest
from browser_tools import check_wcag
from PIL import Image
from skimage import data

from superres.survey.credentials import link_key
from superres.survey.pairs import SHUFFLED, Method, compare_methods, judge_methods, make_pairs
from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.records import read_votes
from superres.survey.study import JUDGING, StudySettings
from tests.survey.helpers import add_study, serving, vote_through, wait_for_pair

TARGET = 44
"""Smallest side of a control, in CSS pixels; a checkbox is as large as its label, which can be
clicked too."""
SMALL_TARGETS = """least => [...document.querySelectorAll('button, input, a, summary')].map(
    element => [element.id || element.outerHTML, (element.closest('label') ?? element).getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.width < least || box.height < least)).map(([name]) => name)"""
GREY = "rgb(128, 128, 128)"

PATIENCE = 180_000
SCREENS = pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])


def add_faces(store, name="faces", **settings):
    """Store a study that compares a face with its blurred versions, and shows all that a study can
    show."""
    face = Image.fromarray(data.astronaut()[:210, 140:350])
    sharp = {f"{side}": np.asarray(face.crop((0, 0, side, side)).resize((32, 32)))
             for side in range(150, 210, 10)}
    blurred = {key: np.asarray(Image.fromarray(value).resize((8, 8)).resize((32, 32))) for key,
               value in sharp.items()}
    made, judged = ([Method("bicubic", blurred, {}), Method("camera", sharp, {})],
                    settings.get("judge", False))
    compared = judge_methods(made) if judged else compare_methods(made[:1], made[1:])
    options = StudySettings(**{**(JUDGING if judged else {}), "trials": 6, "gold": 0, "repeats": 0,
                               "practice": 1, "allow_unsure": not judged, "completion_code": "C0DE",
                               "completion_url": "https://example.org/", **settings})
    return store.create_study(name, options, [comparison for comparison, _, _ in compared], {},
                              make_pairs(compared, options, SHUFFLED if judged else None))


class Screens:
    """A page of a fresh profile, and the assertions that hold for each of its screens."""

    def __init__(self, page, folder, width, scheme):
        self.page, self.folder, self.width = page, folder, width
        self.colour = "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 20, 20)"

    def check(self, name, colour=None):
        """Assert WCAG AA, that nothing scrolls sideways, that targets are large, and the
        background's colour."""
        page = self.page
        page.screenshot(path=self.folder / f"survey-{name}-{self.width}.png", full_page=True)
        check_wcag(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= self.width
        assert page.evaluate(SMALL_TARGETS, TARGET) == []
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (colour
                                                                                    or self.colour)

    def says(self, text):
        self.page.locator("#message", has_text=text).wait_for()

    def agree(self, rater=None):
        if rater is not None:
            self.page.fill("#rater", rater)
        self.page.check("#agree")
        self.page.click("#begin")

    def vote(self, first, keys):
        """Vote from the pair `first` on by keys."""
        for position, key in enumerate(keys, first):
            wait_for_pair(self.page, position)
            self.page.keyboard.press(key)


@pytest.fixture
def look(browser, screenshots):
    """Open a page for a screen; at the end no script has failed, and no other host was asked for
    anything."""
    contexts, failed, asked = [], [], []

    def opened(width=1000, scheme="light", height=844):
        context = browser.new_context(viewport={"width": width, "height": height},
                                      color_scheme=scheme, has_touch=width < 600,
                                      is_mobile=width < 600)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("console", lambda message: failed.append(message.text) if message.type == "error"
                # refusals are tested on purpose
                and "Failed to load resource" not in message.text else None)
        return Screens(page, screenshots, width, scheme)

    yield opened
    for context in contexts:
        context.close()
    assert all(url.startswith(("http://127.0.0.1:", "data:", "blob:")) for url in asked)
    assert failed == []


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


@pytest.mark.parametrize(("size", "fill", "widths", "is_stacked"), [
    ((1400, 900), False, [256], False), ((1400, 900), True, range(512, 700, 16), False),
    ((320, 320), True, [112], False), ((390, 664), True, range(160, 390, 16), True)])
def test_pictures_are_as_large_as_the_window_allows_pixel_by_pixel(look, sqlite, size, fill, widths,
                                                                   is_stacked):
    study, _ = add_study(sqlite, scale=16, practice=0, fill=fill)
    screens = look(size[0], height=size[1])
    page = screens.page
    with serving(sqlite, study) as address:
        page.goto(address)
        screens.agree("me")
        wait_for_pair(page, 1)
        (left, top, width, height), (right, bottom, other, _) = page.evaluate(LAYOUT)
        kind, *pixels = page.evaluate(PIXELS)
    assert (left == right, top + width < bottom, top == bottom) == (is_stacked, is_stacked,
                                                                    not is_stacked)
    assert width == other
    assert width in widths
    assert height <= size[1] or size[1] < 400  # both pictures are seen at once
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


@SCREENS
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


@SCREENS
def test_single_pictures_are_judged_by_keys_and_buttons_and_reported(look, sqlite, width, scheme):
    study, token = add_faces(sqlite, name="looks", judge=True, scale=8)
    screens = look(width, scheme)
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
            (page.tap if width < 600 else page.click)(f"#{name}")
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


@SCREENS
def test_all_screens_of_the_owner(look, sqlite, width, scheme):
    study, token = add_faces(sqlite, name="my faces", repeats=4)
    screens = look(width, scheme)
    page = screens.page
    with serving(sqlite, study) as address:
        page.goto(f"{address}results/")
        page.fill("#owner", "wrong")
        page.press("#owner", "Enter")
        page.locator("#message:has-text('That is not the token of this study')").wait_for()
        screens.check("owner")
        page.fill("#owner", token)
        page.press("#owner", "Enter")
        page.wait_for_selector("#report:not([hidden])")
        assert page.inner_text("#sentences").strip() == "bicubic or camera: no votes yet."
        screens.check("no-votes")
        for number in range(6):
            vote_through(sqlite, study, f"rater{number}")
        page.reload()
        page.fill("#owner", token)
        page.press("#owner", "Enter")
        page.locator("#summary:has-text('36 votes of 6 raters in my faces')").wait_for()
        page.wait_for_function("() => document.getElementById('plot').complete")
        assert page.evaluate("document.getElementById('plot').naturalWidth") == (900 if width > 600
                                                                                 else 420)
        command = page.locator("#warnings code").first.inner_text()
        assert " ".join(command.split()).startswith("superres survey exclude 'my faces' "
                                                    "'repeats<0.5' --reason ")
        assert not page.is_visible("#sections table")  # the experts' figures open on request
        page.locator("summary").press("Enter")
        screens.check("experts")
        page.locator("#sections .wide").nth(1).focus()
        if width < 600:
            page.keyboard.press("ArrowRight")
            page.wait_for_function("() => document.querySelectorAll('#sections "
                                   ".wide')[1].scrollLeft > 0")
        page.goto(f"{address}results/nothing")
        assert page.title() == "Page not found"
        page.click("text=Open the start page")
        page.wait_for_selector("#owner")
