"""The owner's page of results in Chromium, alone and as a tab beside the survey's."""

from __future__ import annotations

import pytest

from superres.survey.records import read_votes
from tests.journeys.helpers import add_faces, open_tab
from tests.survey.helpers import serving, vote_through


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
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


def test_votes_by_keyboard_in_the_tab_reach_the_owner_in_the_other(visit, kept):
    store, study, token = kept
    page = visit()
    # not fetched before it is looked at
    assert "/survey/" not in "".join(frame.url for frame in page.frames)
    open_tab(page, "Survey")
    page.focus("iframe[title=Survey]")
    survey = page.frame_locator("iframe[title=Survey]")
    survey.locator("#rater").fill("by keyboard")
    survey.locator("#rater").press("Tab")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for position in range(1, 10):  # the last is 9 of 9
        survey.locator(f"#count:has-text('{position} of 9')").wait_for()
        frame = next(frame for frame in page.frames if frame.url.endswith("/survey/"))
        frame.wait_for_function("() => trial !== null")
        page.keyboard.press("ArrowLeft")
    survey.locator("#done").wait_for()
    votes = read_votes(store, study)
    assert [vote["choice"] for vote in votes] == ["left"] * len(votes)
    assert len(votes) > 5
    open_tab(page, "Results")
    results = page.frame_locator("iframe[title=Results]")
    results.locator("#owner").fill("wrong")
    results.locator("#owner").press("Enter")
    results.locator("#message:has-text('not the token')").wait_for()
    assert results.locator("#report").is_hidden()
    results.locator("#owner").fill(token)
    results.locator("#owner").press("Enter")
    results.locator("#summary:has-text('of 1 rater in ')").wait_for()
    results.locator("#plot").wait_for()
