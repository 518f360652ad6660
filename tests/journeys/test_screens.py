"""The keyboard alone, and each tab of the page on a wide and on a narrow screen: WCAG AA, and what
fits."""

from __future__ import annotations

import zipfile

import pytest
from playwright.sync_api import TimeoutError

from tests.journeys.helpers import (
    check_fits,
    check_wcag,
    choose_astronaut,
    choose_face,
    decode,
    open_settings,
    open_tab,
    upscale,
)
from tests.web.helpers import FACES, LABELS


def test_the_keyboard_alone_is_enough(visit):
    page = visit()

    def tab_to(name):
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.ariaLabel || "
                             "document.activeElement.textContent.trim()") == name:
                return
        raise AssertionError(f"Tab never reaches {name}")

    turn = "document.querySelector('#preview .sr-input').dataset.turn"
    before = page.evaluate(turn)
    tab_to(LABELS[2])
    page.keyboard.press("Enter")
    page.wait_for_function(f"before => {turn} !== before", arg=before)
    tab_to("Show the steps")
    page.keyboard.press("Enter")
    page.wait_for_selector("#results superres-viewer img")
    tab_to("Download PNG")


def upscale_and_unfold(page):
    choose_astronaut(page)
    open_settings(page)
    upscale(page)
    for summary in page.locator("#results .sr-fold > summary").all():
        if not summary.evaluate("summary => summary.parentElement.open"):
            summary.click()
    page.get_by_role("button", name="Zoom in").click()
    unnamed = page.evaluate("""[...document.querySelectorAll('button, input, select, textarea')]
        .filter(control => control.offsetParent && control.type !== 'file'
            && !control.labels?.length && !control.ariaLabel && !control.title
            && !control.textContent.trim()).map(control => control.outerHTML)""")
    assert unnamed == []


def draw_samples_and_change_the_input(page):
    choose_face(page, 1)
    decode(page, "#draw")
    page.get_by_role("button", name="Keep this face").click()
    page.get_by_role("button", name=LABELS[2]).click()
    page.wait_for_selector("#results[data-old]")


def begin_batch(page):
    """Press the button until the batch begins: the page lists a file before its button sends it."""
    for _ in range(20):
        page.click("#run-batch")
        try:
            page.wait_for_selector("#batch-state .sr-progress", timeout=5000)
        except TimeoutError:
            continue
        return
    raise AssertionError("no batch has begun")


def run_a_batch(page, folder):
    (folder / "bad.png").write_text("no picture")
    with page.expect_file_chooser() as chooser:
        page.get_by_text("Click to Upload").last.click()
    chooser.value.set_files([FACES[0], FACES[1], folder / "bad.png"])
    page.wait_for_selector("#files [aria-label='bad.png']")
    begin_batch(page)
    page.wait_for_selector("#gallery .sr-finished:nth-child(2)")
    page.wait_for_selector("#archive a[download]")
    page.wait_for_selector("#stop-batch", state="hidden")
    assert "2 of 3 ready" in page.inner_text("#batch-state")
    assert "bad.png is not an image" in page.inner_text("#batch-state .sr-bad")
    with page.expect_download() as caught:
        page.locator("#archive a[download]").first.click()
    with zipfile.ZipFile(caught.value.path()) as archive:
        assert sorted(archive.namelist()) == sorted([FACES[0].name, FACES[1].name,
                                                     "manifest.jsonl"])


def race_a_text(page):
    page.click("#race-text")
    page.locator("#translation summary", has_text="Step through it").click()
    page.wait_for_selector("#stop-text", state="hidden")


@pytest.mark.parametrize(("width", "theme"), [(1400, "light"), (320, "dark")])
def test_every_tab_works_meets_wcag_aa_and_fits_the_screen(visit, theme, width, tmp_path):
    page = visit(f"/?__theme={theme}", viewport={"width": width, "height": 900}, color_scheme=theme,
                 reduced_motion="reduce")

    def check(name):
        check_wcag(page, name)
        check_fits(page, width)

    upscale_and_unfold(page)
    check("upscale")
    draw_samples_and_change_the_input(page)
    check("samples")
    open_tab(page, "Batch")
    run_a_batch(page, tmp_path)
    check("batch")
    open_tab(page, "Translate")
    race_a_text(page)
    check("translate")
    open_tab(page, "Survey")
    page.frame_locator("iframe[title='Survey']").locator("#rater").wait_for()
    check("survey")


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_the_race_on_arrival_and_two_stages_meet_wcag_aa(visit, cascade, width, theme):
    page = visit(f"/?__theme={theme}", cascade, viewport={"width": width, "height": 900},
                 color_scheme=theme, reduced_motion="reduce")
    page.get_by_text("15,360 steps: done").wait_for()
    check_wcag(page, "arrival", "superres-race")
    decode(page)
    check_wcag(page, "stages", "#results")
    check_fits(page, width)
