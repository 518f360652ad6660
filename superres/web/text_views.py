"""The translate tab's views: translations with their accepted blocks marked, their steps, and the report for programs.

All text is a visitor's, or made from it: it is escaped, and never noted anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from superres.batch.text import accepted_tokens, notes, trace_lines
from superres.config import BeamConfig, DecodeConfig
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.tasks.translation import END
from superres.web import drawing
from superres.web.views import race_note

if TYPE_CHECKING:
    from superres.pipeline.translator import Translated, Translator

LANGUAGES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian"}
"""Names of languages."""

REPLAY_SECONDS = 4.0
"""How long the slower side of a finished translation is shown again in slow motion, at most."""
STEP_SECONDS = 0.3
"""The same for each step of it."""


@dataclass
class Clock:
    """When the steps of a decoding were done, as its frames told.

    Attributes:
        calls: model calls at each frame.
        seconds: of decoding until then.
    """

    calls: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def note(self, result: Translated) -> None:
        """Take down a frame."""
        if not self.calls or result.model_calls > self.calls[-1]:
            self.calls.append(result.model_calls)
            self.seconds.append(result.seconds)

    def at(self, step: int) -> float:
        """Return the seconds until iteration `step` (from 0) was done."""
        return float(np.interp(step + 2, self.calls, self.seconds))  # the first call only proposes


def slow_motion(clocks: dict[str, Clock]) -> float:
    """Return how many times slower than it was a decoding is shown again."""
    steps = max(clock.calls[-1] for clock in clocks.values())
    seconds = max(clock.seconds[-1] for clock in clocks.values())
    return min(REPLAY_SECONDS, STEP_SECONDS * steps) / max(seconds, 1e-9)


def translations_html(
    translator: Translator, lines: Sequence[str], shown: dict[str, Translated], clocks: dict[str, Clock] | None = None,
) -> str:
    """Return translations being made, in one way or in several by name.

    Args:
        translator: what makes them.
        lines: the sources.
        shown: what there is so far.
        clocks: if they are to be shown once more in slow motion: when the steps were done.
    """
    slower = 0.0 if clocks is None else slow_motion(clocks)
    parts = []
    for lane, result in shown.items():
        at = clocks[lane] if clocks is not None else None
        heading = f"<h3>{escape(lane)}</h3>" if lane else ""
        facts = drawing.statistics(facts_of(result))
        parts.append(f'<section class="sr-lane">{heading}{lines_html(translator, lines, result, at, slower)}{facts}'
                     f"{steps_html(translator, result)}</section>")
    return (f'<div class="sr-lanes">{"".join(parts)}</div>{hints_html(translator, shown, slower)}'
            f"{plain_html(translator, list(shown.values())[-1])}")


def lines_html(
    translator: Translator, lines: Sequence[str], result: Translated, clock: Clock | None, slower: float,
) -> str:
    """Return each line's translation, its accepted blocks marked; `clock` and `slower` as for a replay."""
    items = []
    for source, text, traces in zip(lines, result.texts, result.traces, strict=True):
        if traces:
            html = blocks_html(translator, traces, clock, slower)
        else:
            seconds = "" if clock is None else f' style="--at: {slower * clock.seconds[-1]:.3f}s"'
            html = f"<span{seconds}>{escape(text)}</span>" if source.strip() else "<i>an empty line</i>"
        items.append(f"<li>{html}</li>")
    replay = "" if clock is None else " sr-replay"
    return (f'<ol class="sr-text{replay}{" sr-single" if len(items) == 1 else ""}" '
            f'lang="{escape(translator.languages[1])}">{"".join(items)}</ol>')


def blocks_html(translator: Translator, traces: Sequence[RowTrace], clock: Clock | None, slower: float) -> str:
    """Return a line's translation as its accepted blocks, numbered on through its parts, a title each."""
    parts = []
    number = 0
    for trace in traces:
        spans = []
        steps = accepted_tokens([trace])
        surfaces = iter(translator.codec.surfaces([token for tokens in steps for token in tokens]))
        for step, tokens in enumerate(steps):
            number += 1
            text = "".join(next(surfaces) for _ in tokens)
            seconds = "" if clock is None else f' style="--at: {slower * clock.at(step):.3f}s"'
            spans.append(block_html(text, number, tokens, seconds))
        parts.append("".join(spans))
    return " ".join(parts)


def block_html(text: str, number: int, tokens: Sequence[int], style: str) -> str:
    """Return an accepted block; a blank at its start stands before it."""
    start = len(text) - len(text.lstrip())
    title = f"Step {number}: {len(tokens)} token{'s' if len(tokens) > 1 else ''}"
    ends = " sr-ends" if END in tokens else ""
    return (f'{escape(text[:start])}<span class="sr-step{ends}" data-step="{number}" title="{title}"{style}>'
            f"{escape(text[start:])}</span>")


def plain_html(translator: Translator, result: Translated) -> str:
    """Return the translations as text to copy."""
    tag = translator.languages[1]
    text = escape("\n".join(result.texts))
    return (f'<label class="sr-plain">{escape(language_name(tag))}<textarea readonly lang="{escape(tag)}" '
            f'rows="{max(2, len(result.texts))}">\n{text}</textarea></label>')  # the line break there is not content


def language_name(tag: str) -> str:
    """Return the name of a language, or its tag where that is not known."""
    return LANGUAGES.get(tag, tag)


def facts_of(result: Translated) -> list[tuple[str, str]]:
    """Return the statistics of a decoding as names and values; all lines share the model calls."""
    traces = [trace for line in result.traces for trace in line]
    facts = [("tokens", f"{sum(result.tokens):,}")]
    if traces:
        facts += [("iterations", f"{sum(trace.iterations for trace in traces):,}"),
                  ("tokens a step", f"{mean_accepted_block_size(traces):.2f}")]
    return [*facts, ("model calls", f"{result.model_calls:,}"), ("seconds", f"{result.seconds:.3f}")]


def steps_html(translator: Translator, result: Translated) -> str:
    """Return the steps with the tokens that each accepted, as in section 7.4 of the paper."""
    lists = []
    for number, traces in enumerate(result.traces, 1):
        if traces:
            heading = [f"Line {number}"] if len(result.traces) > 1 else []
            lists.append("\n".join([*heading, *trace_lines(translator, traces)]))
    if not lists:
        return ""
    opened = " open" if len(result.traces) == 1 else ""
    text = escape("\n\n".join(lists))
    return f'<details{opened}><summary>Steps</summary><pre class="sr-trace" tabindex="0">{text}</pre></details>'


def hints_html(translator: Translator, shown: dict[str, Translated], slower: float) -> str:
    """Return what there is to say about results: how a race ended, what was too long, how they are shown."""
    if not all(result.is_complete for result in shown.values()):
        return '<p class="sr-hint">Translating.</p>'
    hints = [f"{note[:1].upper()}{note[1:]}." for note in notes(translator, next(iter(shown.values())))]
    if len(shown) > 1:
        hints.append(race_note(shown))
        same = len({tuple(result.texts) for result in shown.values()}) == 1
        hints.append(f"The translations are {'the same' if same else 'not the same'}.")
    else:
        (result,) = shown.values()
        hints.append(f"Done in {result.seconds:.3f} seconds of decoding.")
    if slower > 1:
        hints.append(f'<span class="sr-slower">Shown {slower:.0f} times slower than it was.</span>')
    return f'<p class="sr-hint" role="status">{" ".join(hints)}</p>'


def report_of(
    translator: Translator, options: DecodeConfig | BeamConfig, result: Translated,
) -> dict[str, Any]:
    """Return the report of a frame for programs: one entry a line."""
    lines = []
    for number, traces in enumerate(result.traces, 1):
        entry: dict[str, Any] = {"line": number, "tokens": result.tokens[number - 1], "parts": result.parts[number - 1],
                                 "cut": result.cut[number - 1]}
        if traces:
            entry["iterations"] = sum(trace.iterations for trace in traces)
            entry["mean_accepted_block_size"] = mean_accepted_block_size(list(traces))
            entry["steps"] = [translator.codec.names(tokens) for tokens in accepted_tokens(traces)]
        lines.append(entry)
    return {"complete": result.is_complete, "seconds": result.seconds, "model_calls": result.model_calls,
            "checkpoint": f"{translator.name}@{translator.revision}", "languages": "-".join(translator.languages),
            "config": options.to_dict(), "lines": lines}
