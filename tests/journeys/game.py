"""The tab "You are the drafter", as the journeys of both pages play it."""

import functools
import json

from superres.decoding.drafting import drafted
from superres.web.draft import first_stage, left_of
from superres.web.paint import pixels_of
from tests.journeys.helpers import check_fits, check_wcag, drawn, until

SCORE = ".sr-lane figcaption"


def score(page, lane=0):
    """Return the calls and tokens of a lane of the game."""
    calls, tokens = page.locator(SCORE).nth(lane).inner_text().split(", ")[:2]
    return int(calls.split()[0].replace(",", "")), int(tokens.split()[0].replace(",", ""))


def drafting(page, upscaler, calls):
    """Return the game's data, the pixels of its first face, and a function that drafts it."""
    view = json.loads(page.get_attribute("superres-draft", "data-view"))
    stage = first_stage(upscaler)
    cells = pixels_of(view["faces"][0]["x"], upscaler.face_task)
    return view, cells, functools.partial(
        drafted, stage.scoring, stage.limits, stage.source_tokens(cells[None])[0], [],
        **{"block_size": view["heads"], "epsilon": view["epsilon"], "calls": calls})


def draft_by_keys(page, upscaler, calls=3):
    """Guess by keys that pixels are like those on the left, and check what the page says of both
    lanes."""
    until(page, "document.querySelector('button.sr-swatch:not([disabled])')")
    view, cells, draft = drafting(page, upscaler, calls)
    lanes = draft(propose=left_of(cells, view["side"], view["heads"])), draft()
    page.locator(".sr-swatch").first.focus()
    for call in range(calls):
        for key in ("2", "Backspace", "1", "r", "Enter"):
            page.keyboard.press(key)
        until(page, f"document.querySelector('{SCORE}').textContent.startsWith('{call + 1} call')")
    assert page.locator(".sr-checked .sr-accepted").count() == lanes[0].accepted[-1]
    until(page, f"[...document.querySelectorAll('{SCORE}')][1].textContent.startsWith('{calls} ')")
    for number, lane in enumerate(lanes):
        assert score(page, number) == (calls, len(lane.tokens))
    return lanes[0]


def beat_a_score(page, link, accepted):
    """Open the link to a score in a new visit, and see whose it is."""
    page.goto(link)
    page.reload()
    until(page, "document.querySelector('.sr-draft .sr-told')?.textContent.startsWith('To beat')")
    told = page.inner_text(".sr-draft .sr-told")
    assert f"{len(accepted.tokens)} values in {len(accepted.accepted)} calls" in told
    assert page.locator("superres-draft").is_visible()
    assert score(page) == (0, 0)


def draft_a_face(page, upscaler):
    """The game is behind its tab, by arrow keys; the paint box keeps what it has."""
    before = page.url
    page.get_by_role("tab", name="Paint").focus()
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("tab", name="You are the drafter").get_attribute(
        "aria-selected") == "true"
    assert not page.locator("superres-paint").is_visible()
    found = draft_by_keys(page, upscaler)
    check_wcag(page, "drafter")
    check_fits(page, 390)
    assert page.url == before
    face = json.loads(page.get_attribute("superres-draft", "data-view"))["faces"][0]["x"]
    link = (f"{page.url.partition('#')[0]}#draft={face}&k=10&e=12"
            f"&t={len(found.tokens)}&c={len(found.accepted)}")
    beat_a_score(page, link, found)
    draft_by_keys(page, upscaler)
    assert "a draw" in page.inner_text(".sr-draft .sr-told")
    page.goto(before)
    page.reload()
    drawn(page)
