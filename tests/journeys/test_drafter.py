"""The tab "You are the drafter" on the server's page; the static page's is in
`test_painter_static.py`."""

from __future__ import annotations

from tests.journeys.game import beat_a_score, draft_by_keys, drafting, score
from tests.journeys.helpers import (
    check_fits,
    check_wcag,
    open_tab,
    until,
)

CLIPBOARD = ["clipboard-read", "clipboard-write"]
WHOLE = "document.querySelectorAll('.sr-lane figcaption')[1].textContent.includes('the whole')"


def let_the_left_pixel_draft(page):
    calls, _ = score(page)
    page.get_by_role("button", name="Let the left pixel draft").click()
    until(page, "parseInt(document.querySelector('.sr-lane figcaption').textContent) > "
          f"{calls + 3}")
    page.get_by_role("button", name="Stop", exact=True).click()
    calls, _ = score(page)
    assert score(page, 1)[0] == calls  # the heads do one call for each


def loosen_epsilon(page, upscaler):
    """The heads' lane is drawn at once by another epsilon and block size."""
    for number, value in ((1, 64), (0, 4)):
        page.locator("superres-draft input[type=range]").nth(number).fill(str(value))
        until(page, WHOLE)
    _, _, draft = drafting(page, upscaler, 3072)
    accepted = draft(block_size=4, epsilon=64).accepted
    until(page, f"document.querySelector('.sr-them b').textContent === "
                f"'{3072 / len(accepted):.1f}'")
    assert score(page, 1) == (len(accepted), 3072)


def translate(page):
    page.get_by_role("button", name="A translation").click()
    page.locator("superres-draft input[type=range]").first.fill("4")
    page.get_by_label("Your guess").fill("kleiner Hund liest")
    page.keyboard.press("Enter")
    assert score(page) == (1, 3)
    assert score(page, 1) == (1, 4)
    page.locator(".sr-words").get_by_role("button", name="durch", exact=True).click()
    page.get_by_role("button", name="Check the guess").click()
    assert score(page) == (2, 5)
    page.get_by_role("button", name="Let the heads draft").click()
    until(page, "document.querySelector('.sr-draft').textContent"
                ".includes('The translation is complete')")


def test_a_visitor_drafts_by_keys_shares_a_score_and_watches_the_others(visit, demo):
    page = visit(permissions=CLIPBOARD)
    open_tab(page, "You are the drafter")
    found = draft_by_keys(page, demo.decoding.upscaler)
    page.get_by_role("button", name="Copy a link to this score").click()
    page.get_by_text("The link is copied").wait_for()
    link = page.evaluate("navigator.clipboard.readText()")
    check_wcag(page, "drafter", "superres-draft")
    let_the_left_pixel_draft(page)
    beat_a_score(page, link, found)
    draft_by_keys(page, demo.decoding.upscaler)
    assert "a draw" in page.inner_text(".sr-draft .sr-told")
    loosen_epsilon(page, demo.decoding.upscaler)
    page.set_viewport_size({"width": 390, "height": 844})
    check_fits(page, 390)
    translate(page)
    check_wcag(page, "translation", "superres-draft")
    page.set_viewport_size({"width": 1280, "height": 900})
