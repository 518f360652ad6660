"""The tabs Translate, Survey and Results, in Chromium."""

from __future__ import annotations

from dataclasses import replace

from browser_tools import decode, open_tab

from superres.config import DecodeConfig
from superres.survey.records import read_votes

TEXT = "the small red dog\n\na house"
DONE = "#translation [role=status]"
BLOCKS = "#translation .sr-step"


def translate(page, text=TEXT, button="#run-text"):
    open_tab(page, "Translate")
    page.fill("#text textarea", text)
    decode(page, button)
    page.wait_for_selector(DONE)


def repeat_until(page, act, selector):
    """Call `act` every two seconds until `selector` is there.

    The page takes no new run before it has heard that the last one is over, and a slider that has
    just been unfolded may still lose what is typed into it.
    """
    for attempt in range(1000):
        if attempt % 20 == 0:
            act()
        page.wait_for_timeout(100)
        if page.locator(selector).count():
            return
    raise AssertionError(page.inner_text("body"))


def styles(page, selector, *names):
    """Return computed styles of all elements that `selector` finds."""
    return page.evaluate(
        "([selector, names]) => [...document.querySelectorAll(selector)].map(element => "
        "names.map(name => getComputedStyle(element)[name]))", [selector, list(names)])


def see_blocks_by_colour_line_and_number(page, demo):
    translate(page)
    result = demo.decoding.translator(TEXT.split("\n"), DecodeConfig(block_size=4))
    assert page.input_value("#translation textarea") == "\n".join(result.texts)
    lines = page.locator("#translation .sr-text li")
    assert lines.all_inner_texts() == [result.texts[0], "an empty line", result.texts[2]]
    (trace,) = result.traces[0]
    blocks = lines.first.locator(".sr-step")
    assert blocks.count() == trace.iterations > 1
    assert blocks.nth(1).get_attribute("title").startswith("Step 2: ")
    looks = styles(page, "#translation .sr-text li:first-child .sr-step", "backgroundColor",
                   "borderBottomStyle")
    assert looks[0][0] != looks[1][0]
    assert [style for _, style in looks[:2]] == ["solid", "dotted"]
    page.get_by_text("Steps", exact=True).click()
    assert "Step 1 " in page.inner_text(".sr-trace")


def race_with_and_without_beam_search(page):
    translate(page, button="#race-text")
    assert page.locator("#translation .sr-variants h3").all_inner_texts() == ["One token per step",
                                                                              "In blocks"]
    done = page.inner_text(DONE)
    assert "times as fast" in done or "took about as long" in done
    assert "The translations are equal." in done
    page.locator("button:visible", has_text="Decoding settings").click()
    beam = page.get_by_label("number input for Beam search")

    def translate_by_beam():
        beam.fill("3")
        beam.press("Enter")
        page.click("#race-text")

    repeat_until(page, translate_by_beam, "#translation h3 >> text=Beam 3")
    page.wait_for_selector(DONE)
    assert page.locator("#translation section").nth(1).locator(".sr-step").count() == 0


def show_odd_text_as_text(page, demo, monkeypatch):
    odd = "<b>1</b> ${1+1} {{2+2}} &lt;"

    stream = demo.decoding.translator.stream

    def odd_stream(*arguments, **keywords):
        *_, last = stream(*arguments, **keywords)
        yield replace(last, texts=[odd], traces=[[]])

    monkeypatch.setattr(demo.decoding.translator, "stream", odd_stream)
    translate(page, "a dog")
    assert page.inner_text("#translation .sr-text li") == odd
    assert page.input_value("#translation textarea") == odd


def test_a_translation_shows_its_blocks_races_and_is_shown_as_text(visit, demo, monkeypatch):
    page = visit("/?__theme=dark", color_scheme="dark", reduced_motion="reduce")
    see_blocks_by_colour_line_and_number(page, demo)
    show_odd_text_as_text(page, demo, monkeypatch)
    monkeypatch.undo()
    race_with_and_without_beam_search(page)


def test_a_fast_translation_is_replayed_but_not_to_visitors_who_want_no_motion(visit, demo,
                                                                               monkeypatch):
    # too fast to see on a busy machine, too
    monkeypatch.setattr(demo.decoding, "frame_seconds", 60.0)
    moving, still = visit(reduced_motion="no-preference"), visit(reduced_motion="reduce")
    for page in (moving, still):
        translate(page)
    assert "times slower than the decoding" in moving.inner_text(DONE)
    names = [name for (name,) in styles(moving, BLOCKS, "animationName")]
    assert set(names) == {"sr-appear"}
    shown = styles(moving, "#translation .sr-text li:first-child .sr-step", "animationDelay")
    delays = [float(delay.removesuffix("s")) for (delay,) in shown]
    assert delays == sorted(delays)
    assert 0 < delays[0] < delays[-1] <= 4.1
    moving.wait_for_function("() => [...document.querySelectorAll('.sr-step')].every(block =>"
                             " getComputedStyle(block).opacity === '1')")
    assert {name for (name,) in styles(still, BLOCKS, "animationName")} == {"none"}
    assert "slower" not in still.inner_text(DONE)


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
