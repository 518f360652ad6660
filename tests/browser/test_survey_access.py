"""Every screen of the survey in Chromium, on wide and narrow screens, light and dark: WCAG AA, sizes, keyboard."""

from __future__ import annotations

import numpy as np
import pytest
from browser_tools import check_wcag
from PIL import Image
from skimage import data
from survey_tools import vote_through, wait_for_pair

from simulations.serving import serving
from superres.survey.pairs import Method, compare_methods, make_pairs
from superres.survey.study import StudySettings

TARGET = 44
"""Smallest side of a control, in CSS pixels; a checkbox is as large as its label, which can be clicked too."""
SMALL_TARGETS = """least => [...document.querySelectorAll('button, input, a, summary')].map(
    element => [element.id || element.outerHTML, (element.closest('label') ?? element).getBoundingClientRect()])
    .filter(([, box]) => box.width && (box.width < least || box.height < least)).map(([name]) => name)"""
GREY = "rgb(128, 128, 128)"

SCREENS = pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])


def add_faces(store, name="faces", **settings):
    """Store a study that compares a face with its blurred versions, and shows all that a study can show."""
    face = Image.fromarray(data.astronaut()[:210, 140:350])
    sharp = {f"{side}": np.asarray(face.crop((0, 0, side, side)).resize((32, 32))) for side in range(150, 210, 10)}
    blurred = {key: np.asarray(Image.fromarray(value).resize((8, 8)).resize((32, 32))) for key, value in sharp.items()}
    made = [Method("bicubic", blurred, {}), Method("camera", sharp, {})]
    compared = compare_methods(made[:1], made[1:])
    options = StudySettings(**{"trials": 6, "gold": 0, "repeats": 4, "practice": 1, "allow_unsure": True,
                               "completion_code": "C0DE", "completion_url": "https://example.org/", **settings})
    return store.create_study(name, options, [compared[0][0]], {}, make_pairs(compared, options))


class Screens:
    """Looks at one screen after another."""

    def __init__(self, page, folder, width, scheme):
        self.page, self.folder, self.width, self.scheme = page, folder, width, scheme

    def check(self, name, small=()):
        """Assert that nothing of WCAG AA is violated, that nothing scrolls sideways, and that targets are large."""
        page = self.page
        page.screenshot(path=self.folder / f"survey-{name}-{self.width}-{self.scheme}.png", full_page=True)
        check_wcag(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= self.width
        assert page.evaluate(SMALL_TARGETS, TARGET) == list(small)

    def background(self):
        return self.page.evaluate("getComputedStyle(document.body).backgroundColor")


@pytest.fixture
def look(browser, screenshots):
    """Open a page for a screen of some width and colours; at the end no script has failed."""
    contexts, failed = [], []

    def opened(width, scheme):
        context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme,
                                      has_touch=width < 600, is_mobile=width < 600)
        context.set_default_timeout(120_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("console", lambda message: failed.append(message.text) if message.type == "error"
                and "Failed to load resource" not in message.text else None)  # refusals are tested on purpose
        return Screens(page, screenshots, width, scheme)

    yield opened
    for context in contexts:
        context.close()
    assert failed == []


def themed(scheme):
    return "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 20, 20)"


@SCREENS
def test_all_screens_of_a_rater(look, sqlite, width, scheme):
    study, _ = add_faces(sqlite)
    screens = look(width, scheme)
    page = screens.page
    with serving(sqlite, study) as address:
        page.goto(address)
        page.wait_for_selector("#agree")
        assert screens.background() == themed(scheme)
        page.fill("#rater", " ")
        page.check("#agree")
        page.click("#begin")
        page.wait_for_selector("#message >> text=Please type your participant id.")
        screens.check("start")
        page.fill("#rater", "me")
        page.click("#begin")
        wait_for_pair(page, 1)
        assert screens.background() == GREY  # whatever the theme
        assert page.evaluate("getComputedStyle(document.getElementById('pair')).backgroundColor") == "rgba(0, 0, 0, 0)"
        screens.check("practice")
        page.keyboard.press("ArrowLeft")
        page.locator("#message:has-text('Practice: your choice was')").wait_for()
        wait_for_pair(page, 2)
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        focused = page.evaluate("(() => { const style = getComputedStyle(document.activeElement);"
                                " return [document.activeElement.id, style.outlineStyle, style.outlineColor]; })()")
        assert focused == ["right", "solid", "rgb(0, 0, 0)"]
        screens.check("feedback")


@SCREENS
def test_all_screens_of_a_rater_who_comes_back(look, sqlite, width, scheme):
    study, _ = add_faces(sqlite)
    screens = look(width, scheme)
    page, down = screens.page, []
    # From the first page on: a page that is open might send one more request past a new route.
    page.route("**/api/votes", lambda route: route.abort() if down else route.continue_())
    with serving(sqlite, study) as address:
        page.goto(address)
        page.fill("#rater", "me")
        page.check("#agree")
        page.click("#begin")
        wait_for_pair(page, 1)
        page.goto("about:blank")
        page.goto(address)
        page.wait_for_selector("#continue")
        screens.check("again")
        page.click("#continue")
        wait_for_pair(page, 1)
        down.append(True)
        page.keyboard.press("j")
        page.locator("#message:has-text('The server does not respond. No vote is lost')").wait_for()
        screens.check("no-server")
        down.clear()
        for position in range(2, 12):
            wait_for_pair(page, position)
            page.keyboard.press("Space" if position % 3 else "f")
        page.wait_for_selector("#done:not([hidden])")
        assert screens.background() == themed(scheme)
        screens.check("done")
        page.goto(f"{address}not/here")
        assert page.title() == "Page not found"
        screens.check("missing")
        page.click("text=Open the start page")
        page.wait_for_selector("#agree")  # and its style was found from below as well


def test_a_rater_who_has_finished_finds_the_last_page_again_and_another_browser_is_refused(look, sqlite):
    study, _ = add_faces(sqlite, trials=1, repeats=0, practice=0)
    page, screens = look(390, "light").page, look(390, "light")
    with serving(sqlite, study) as address:
        for own in (page, screens.page):
            own.goto(f"{address}?participant=me")
            own.check("#agree")
            own.click("#begin")
            if own is page:
                wait_for_pair(page, 1)
                page.keyboard.press("f")
                page.wait_for_selector("#done:not([hidden])")
        page.reload()
        page.wait_for_selector("#done:not([hidden])")
        assert page.inner_text("#code") == "C0DE"
        screens.page.locator("#message:has-text('This participant id has started already;')").wait_for()
        screens.check("refused")


def test_a_window_that_is_too_small_is_told_its_size_before_anything_is_asked(look, sqlite):
    study, _ = add_faces(sqlite, minimum_viewport=(2000, 2000))
    screens = look(390, "dark")
    with serving(sqlite, study, "/lab") as address:
        screens.page.goto(address)
        screens.page.wait_for_selector("#small:not([hidden])")
        assert "needs 2000 × 2000 pixels, and this window has 390 × 844." in screens.page.inner_text("#size")  # noqa: RUF001
        assert not screens.page.is_visible("#agree")
        screens.check("small")


@SCREENS
def test_all_screens_of_the_owner(look, sqlite, width, scheme):
    study, token = add_faces(sqlite, name="my faces")
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
        assert page.evaluate("document.getElementById('plot').naturalWidth") == (900 if width > 600 else 420)
        command = page.locator("#warnings code").first.inner_text()
        assert " ".join(command.split()).startswith("superres survey exclude 'my faces' 'repeats<0.5' --reason ")
        assert not page.is_visible("#sections table")  # the experts' figures open on request
        page.locator("summary").press("Enter")
        screens.check("experts")
        page.locator("#sections .wide").nth(1).focus()
        if width < 600:
            page.keyboard.press("ArrowRight")
            page.wait_for_function("() => document.querySelectorAll('#sections .wide')[1].scrollLeft > 0")
        page.goto(f"{address}results/nothing")
        assert page.title() == "Page not found"
        page.click("text=Open the start page")
        page.wait_for_selector("#owner")
