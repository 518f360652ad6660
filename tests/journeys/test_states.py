"""The states of the results in each tab: every edge of the page's table by what visitors do, and
what a state shows."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from superres.web.turns import VISITOR, Visitor
from tests.journeys.helpers import check_fits, check_wcag, decode, open_settings, open_tab
from tests.web.helpers import ALL, FACES, FAST, wait

OTHER = Visitor("192.0.2.1", "other")
WORDS = {"stale": "The input or a setting has changed since this result.",
         "stopping": "Stopping",
         "stopped": "Stopped before the end."}


class Tab(NamedTuple):
    """A tab, the suffix of its buttons' element ids, the element id of its results, and what a
    decode is called."""

    name: str
    suffix: str
    view: str
    buttons: list[str]
    verb: str = "Drawing"


UPSCALE, BATCH, TRANSLATE = TABS = (
    Tab("Upscale", "", "results", ["Show the steps", "Race", "Draw samples"]),
    Tab("Batch", "-batch", "batch", ["Upscale all"]),
    Tab("Translate", "-text", "translation", ["Translate", "Race"], "Translating"))
ALL_TABS = pytest.mark.parametrize("tab", TABS, ids=[tab.name for tab in TABS])
WALK = """
begin waiting, turn running, end fresh, begin waiting, turn running, end fresh, change stale
begin waiting, fail failed, begin waiting, turn running, fail failed
begin waiting, stop stopping, fail stopped, begin waiting, turn running, stop stopping, fail stopped
begin waiting, change waiting, turn running, end fresh, late stale
begin waiting, turn running, change running, end fresh, late stale
"""
"""What a visitor does, and the state after it, from a new page on. "late" is a change that was made
before the end."""
STEPS = [tuple(step.split()) for step in WALK.strip().replace("\n", ",").split(",")]


@dataclass
class Visit:
    """A visitor in a tab, whose decodes begin and go on when the test says so."""

    tab: Tab
    page: object
    demo: object
    frames: object
    patch: pytest.MonkeyPatch
    held: ExitStack
    values: itertools.cycle

    def __post_init__(self):
        page = self.page
        # the box waits for nothing
        page.wait_for_function("document.querySelectorAll('.sr-others img').length > 0")
        open_tab(page, self.tab.name)
        page.wait_for_selector(f"#run{self.tab.suffix}")
        if self.tab is BATCH:
            with page.expect_response("**/upload*"):
                page.set_input_files("#files input[type=file]", [FACES[0], FACES[1]])
            page.wait_for_selector(f"#files [aria-label='{FACES[1].name}']")
            page.wait_for_timeout(500)  # the page lists a file before its button sends it
        if self.tab is not TRANSLATE:
            open_settings(page)
            # a slider that has just been unfolded may lose what is typed into it
            page.wait_for_timeout(500)
        self.bar.evaluate("""bar => {
            window.before = [];
            new MutationObserver(all => before.push(...all.map(one => one.oldValue))).observe(
                bar, {attributeFilter: ["data-state"], attributeOldValue: true});
        }""")
        self.cancelled, self.joined, self.begun = [], [], 0
        page.route("**/cancel", lambda route: self.cancelled.append(route))
        page.on("request", lambda request: self.joined.append(request) if "queue/join"
                in request.url else None)

    @property
    def bar(self):
        return self.page.locator(f".sr-actions:has(#run{self.tab.suffix})")

    def states(self):
        """Return the states since the page was opened; the first one, "empty", has no attribute."""
        return [*self.page.evaluate("before")[1:], self.bar.get_attribute("data-state")]

    def await_state(self, state):
        self.page.wait_for_function("([id, state]) => "
                                    "document.querySelector(id).parentElement.dataset.state === "
                                    "state",
                                    arg=[f"#run{self.tab.suffix}", state])

    def says(self, text):
        self.bar.locator("[role=status]").get_by_text(text, exact=True).wait_for()

    def note_in(self, state):
        """Return the note that must be above the result in a state: why a decode failed."""
        if state != "failed":
            return ""
        is_there = self.page.locator(f"#{self.tab.view} .sr-result").count()
        return ("The server is stopping; try again in a "
                f"minute.{' The result below is an earlier one.' if is_there else ''}")

    def looks(self, state):
        """Check what the page shows in a state: one sentence, buttons, and pale pictures if they
        are earlier or unfinished ones."""
        page, notes = self.page, self.page.locator(f"#{self.tab.view} > .sr-failed")
        # the earlier result of a batch may leave at any moment, and its note with it
        wait(lambda: notes.all_inner_texts() == [note for note in [self.note_in(state)] if note])
        shown = f"#{self.tab.view} :is(img, canvas, .sr-text)"
        wait(lambda: set(page.locator(shown).evaluate_all(
            "all => all.map(one => getComputedStyle(one).filter.includes('grayscale'))"))
            <= {state not in ("running", "fresh")})
        if state == "failed":
            wait(lambda: self.bar.locator("[role=status]").inner_text() == "")  # said above
        elif state != "fresh":
            self.says({"waiting": "Waiting: 1 is before you", "running": self.tab.verb,
                       **WORDS}[state])
        is_busy = state in ("waiting", "running", "stopping")
        assert self.bar.locator("button:visible").all_inner_texts() == (["Stop"] if is_busy
                                                                        else self.tab.buttons)

    def try_to_begin(self):
        """Try what begins a decode, and is not offered while another one waits or runs."""
        self.page.locator(f"#run{self.tab.suffix}").evaluate("button => button.click()")
        if self.tab is TRANSLATE:
            self.page.press("#text textarea", "Shift+Enter")

    def hold(self):
        """Let another visitor have the decoding."""
        self.held.enter_context(self.other_turn())

    def other_turn(self):
        token = VISITOR.set(OTHER)
        try:
            turn = self.demo.decoding._turns.turn()
            stack = ExitStack()
            stack.enter_context(turn)
            return stack
        finally:
            VISITOR.reset(token)

    def begin(self):
        self.patch.setattr(self.demo.decoding, "is_closing", False)
        self.held.close()
        self.frames.hold()
        wait(lambda: not self.demo.decoding._turns._inside + self.demo.decoding._turns._waiting, 30)
        self.hold()
        self.begun += 1
        self.page.click(f"#run{self.tab.suffix}")

    def turn(self):
        self.held.close()
        self.frames.release()

    def change(self):
        if self.tab is TRANSLATE:
            self.page.fill("#text textarea", f"a dog {next(self.values)}")
        else:
            number = self.page.get_by_label("number input for Block size").locator("visible=true")
            number.fill(str(next(self.values)))

    def end(self):
        self.frames.release(ALL)

    def fail(self):
        if self.cancelled:  # Gradio reports a failure when it has cancelled
            self.cancelled.pop().continue_()
            self.frames.release(ALL)
            return
        self.patch.setattr(self.demo.decoding, "is_closing", True)
        self.held.close()
        self.frames.release(ALL)

    def stop(self):
        stop = self.page.locator(f"#stop{self.tab.suffix}")
        stop.click()
        stop.evaluate("button => button.click()")  # once more changes nothing
        while not self.cancelled:
            self.page.wait_for_timeout(20)

    def late(self):
        """Nothing: the change was before."""


@pytest.fixture
def walker(visit, demo, frames, monkeypatch):
    """Return a function that opens a tab for a walk."""
    with ExitStack() as held:
        def opened(tab, path="/", **settings):
            return Visit(tab, visit(path, **settings), demo, frames, monkeypatch, held,
                         itertools.cycle((3, 4, 5)))

        yield opened
        frames.release(ALL)


@ALL_TABS
def test_each_event_leads_to_its_state_and_to_no_other(walker, tab):
    narrow = {"viewport": {"width": 320, "height": 800}, "color_scheme": "dark"}
    walker = walker(tab, "/?__theme=dark", **narrow) if tab is UPSCALE else walker(tab)
    states, checked = [state for _, state in STEPS], set()
    for (event, state), (following, _) in itertools.zip_longest(STEPS, STEPS[1:],
                                                                fillvalue=("", "")):
        getattr(walker, event)()
        if following == "late":  # the state after it may be there at once
            continue
        walker.await_state(state)
        walker.looks(state)
        if state in ("waiting", "running", "stopping"):
            walker.try_to_begin()
        if tab is UPSCALE and walker.begun > 1 and state not in checked:
            checked.add(state)  # with an earlier result
            check_bar(walker, state)
    changes = [after for before, after in itertools.pairwise(["empty", *states]) if before != after]
    assert walker.states() == changes
    assert len(walker.joined) == walker.begun
    assert not walker.cancelled
    # and every edge of the page's table has been walked
    befores = ["empty", *(state for _, state in STEPS)]
    walked = {(before, "change" if event == "late" else event, state)
              for before, (event, state) in zip(befores, STEPS, strict=False)}
    table = walker.page.evaluate("superres.EDGES")
    assert walked == {(state, event, after) for state, edges in table.items()
                      for event, after in edges.items()}


def check_bar(walker, state):
    """Assert that the bar is at the lower edge of a narrow screen, fits, and hides nothing."""
    page = walker.page
    if state == "waiting":  # its begin has brought the results into view
        assert 0 <= page.locator("#results").bounding_box()["y"] <= 600
    bar, buttons = walker.bar.bounding_box(), walker.bar.locator("button:visible")
    boxes = [button.bounding_box() for button in buttons.all()]
    assert bar["y"] + bar["height"] == 800
    assert (bar["x"], bar["width"]) == (0, 320)
    assert {box["y"] for box in boxes} == {boxes[0]["y"]}
    assert min(box["height"] for box in boxes) >= 44
    check_fits(page, 320)
    for toast in page.locator(".toast-close").all():
        toast.click()  # or its clock would have to end first
    check_wcag(page, state, ".sr-actions")
    if state in ("running", "failed"):  # frames, and a note above an earlier result
        check_wcag(page, state, "#results")
    page.evaluate("scrollTo(0, 100_000)")
    lowest = page.evaluate("""Math.max(...[...document.querySelectorAll(".main.app *")].filter(
        one => !one.closest(".sr-actions") && one.checkVisibility()).map(
        one => one.getBoundingClientRect().bottom))""")
    assert lowest <= bar["y"]


def test_a_waiting_visitor_hears_how_many_are_before_and_no_seconds(visit, demo, frames):
    page = visit()
    # the paint box waits for nothing
    page.wait_for_function("document.querySelectorAll('.sr-others img').length > 0")
    for number in range(4):
        assert demo.join(f"visitor {number}", **FAST).status_code == 200
    wait(lambda: len(demo.decoding._turns._waiting) == 3)
    page.click("#run")
    words = page.locator(".sr-actions:has(#run) .sr-state")
    # in Gradio's queue: four of an address are under way
    words.get_by_text("Waiting: 4 are before you").wait_for()
    page.wait_for_function("/^, [1-9] s$/.test(document.querySelector('.sr-state > "
                           "[aria-hidden]').textContent)")
    assert words.locator("[role=status]").inner_text() == "Waiting: 4 are before you"
    open_tab(page, "Translate")
    page.click("#run-text")
    other = page.locator(".sr-actions:has(#run-text) .sr-state")
    other.get_by_text("Waiting: 4 are before you").wait_for()  # one's own request does not count
    frames.release(ALL)
    other.get_by_text("Done in").wait_for()
    assert words.locator("[role=status]").text_content().startswith("Done in")


def test_a_request_that_the_server_does_not_take_fails_and_says_so(visit):
    page = visit()
    page.route("**/queue/join*", lambda route: route.fulfill(status=503, json={"detail": "full"}))
    page.click("#run")
    page.get_by_text("The server did not answer; try again in a minute.").wait_for()


def test_the_focus_goes_to_stop_and_back_and_results_come_into_view(visit, frames):
    page = visit(viewport={"width": 390, "height": 844})
    focused = "document.activeElement.textContent.trim()"
    page.focus("#race")
    page.keyboard.press("Enter")
    page.wait_for_function(f"{focused} === 'Stop'")
    frames.release(ALL)
    page.wait_for_function(f"{focused} === 'Race'")
    for place in (0, 100_000):  # from above, and from below
        page.evaluate("place => scrollTo(0, place)", place)
        box = page.locator("#run").bounding_box()  # and the buttons stay in reach
        assert 760 <= box["y"] <= 844 - box["height"]
        decode(page)
        assert 0 <= page.locator("#results").bounding_box()["y"] <= 0.6 * 844
