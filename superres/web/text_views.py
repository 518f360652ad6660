"""Views of the tab Translate: translations with accepted blocks marked, and their steps; and the report for programs.

All text is visitors' data: it is escaped, and never logged.
"""

from __future__ import annotations

import itertools
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
from superres.web.decoding import is_complete
from superres.web.stepping import text_stepper
from superres.web.views import race_note

if TYPE_CHECKING:
    from superres.pipeline.translator import Translated, Translator

LANGUAGES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian"}
"""Names of languages by tag."""

REPLAY_SECONDS = 4.0
"""Longest duration of the slow-motion replay of a finished translation."""
STEP_SECONDS = 0.3
"""Longest average duration of a step in the replay."""


@dataclass
class Clock:
    """Times of a decoding's steps: model calls and seconds of decoding until each recorded frame."""

    calls: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def record(self, result: Translated) -> None:
        """Record the time of a frame."""
        if not self.calls or result.model_calls > self.calls[-1]:
            self.calls.append(result.model_calls)
            self.seconds.append(result.seconds)

    def at(self, step: int) -> float:
        """Return the decoding time in seconds until the end of iteration `step` (from 0)."""
        return float(np.interp(step + 2, self.calls, self.seconds))  # the first call only proposes


def slow_motion(clocks: dict[str, Clock]) -> float:
    """Return the factor by which the replay is slower than the decoding."""
    steps = max(clock.calls[-1] for clock in clocks.values())
    seconds = max(clock.seconds[-1] for clock in clocks.values())
    return min(REPLAY_SECONDS, STEP_SECONDS * steps) / max(seconds, 1e-9)


def translations_html(
    translator: Translator, lines: Sequence[str], frames: dict[str, Translated], clocks: dict[str, Clock] | None = None,
) -> str:
    """Return the partial or complete translations of source lines by all variants; `clocks` ask for a slow replay."""
    slower = 0.0 if clocks is None else slow_motion(clocks)
    parts = []
    for name, result in frames.items():
        clock = clocks[name] if clocks is not None else None
        heading = f"<h3>{escape(name)}</h3>" if name else ""
        statistics = drawing.statistics(statistics_of(result))
        parts.append(f'<section class="sr-variant">{heading}{lines_html(translator, lines, result, clock, slower)}'
                     f"{statistics}{steps_html(translator, result)}</section>")
    return (f'<div class="sr-result"><div class="sr-variants">{"".join(parts)}</div>'
            f"{hints_html(translator, frames, slower)}"
            f"{drawing.fold('Step through it', text_stepper(translator, frames)) if is_complete(frames) else ''}"
            f"{plain_html(translator, list(frames.values())[-1])}</div>")


def lines_html(
    translator: Translator, lines: Sequence[str], result: Translated, clock: Clock | None, slower: float,
) -> str:
    """Return the translations with accepted blocks marked; `clock` and `slower` give the times of a replay."""
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
    """Return the accepted blocks of a line; the numbers of the steps continue over the parts of the line."""
    parts, numbers = list[str](), itertools.count(1)
    for trace in traces:
        parts.append("")
        steps = accepted_tokens([trace])
        surfaces = iter(translator.codec.surfaces([token for tokens in steps for token in tokens]))
        for step, tokens in enumerate(steps):
            text, number = "".join(itertools.islice(surfaces, len(tokens))), next(numbers)
            block = text.lstrip()
            seconds = "" if clock is None else f' style="--at: {slower * clock.at(step):.3f}s"'
            title = f"Step {number}: {len(tokens)} token{'s' if len(tokens) > 1 else ''}"
            ends = " sr-ends" if END in tokens else ""
            parts[-1] += (f'{escape(text[:len(text) - len(block)])}<span class="sr-step{ends}" data-step="{number}" '
                          f'title="{title}"{seconds}>{escape(block)}</span>')
    return " ".join(parts)


def plain_html(translator: Translator, result: Translated) -> str:
    """Return the translations as plain text to copy."""
    tag = translator.languages[1]
    text = escape("\n".join(result.texts))
    return (f'<label class="sr-plain">{escape(language_name(tag))}<textarea readonly lang="{escape(tag)}" '
            f'rows="{max(2, len(result.texts))}">\n{text}</textarea></label>')  # HTML ignores this first line break


def language_name(tag: str) -> str:
    """Return the name of a language, or its tag if the name is not known."""
    return LANGUAGES.get(tag, tag)


def statistics_of(result: Translated) -> list[tuple[str, str]]:
    """Return the statistics of a decoding as names and values; the lines share the model calls."""
    traces = [trace for line in result.traces for trace in line]
    values = [("tokens", f"{sum(result.tokens):,}")]
    if traces:
        values += [("iterations", f"{sum(trace.iterations for trace in traces):,}"),
                   ("tokens per step", f"{mean_accepted_block_size(traces):.2f}")]
    return [*values, ("model calls", f"{result.model_calls:,}"), ("seconds", f"{result.seconds:.3f}")]


def steps_html(translator: Translator, result: Translated) -> str:
    """Return the accepted tokens of each step, as in section 7.4 of the paper; "" without any."""
    is_single = len(result.traces) == 1
    lists = ["\n".join([*([] if is_single else [f"Line {number}"]), *trace_lines(translator, traces)])
             for number, traces in enumerate(result.traces, 1) if traces]
    opened, text = " open" if is_single else "", escape("\n\n".join(lists))
    steps = f'<pre class="sr-trace" tabindex="0">{text}</pre>'
    return text and f"<details{opened}><summary>Steps</summary>{steps}</details>"


def hints_html(translator: Translator, frames: dict[str, Translated], slower: float) -> str:
    """Return notes on the results: the result of a race, lines that were too long, and the speed of the replay."""
    if not is_complete(frames):
        return '<p class="sr-hint">Translating ...</p>'
    hints = [f"{note[:1].upper()}{note[1:]}." for note in notes(translator, next(iter(frames.values())))]
    if len(frames) > 1:
        hints.append(race_note(frames))
        same = len({tuple(result.texts) for result in frames.values()}) == 1
        hints.append(f"The translations are {'equal' if same else 'different'}.")
    else:
        (result,) = frames.values()
        hints.append(f"Decoded in {result.seconds:.3f} seconds.")
    if slower > 1:
        hints.append(f'<span class="sr-slower">The replay is {slower:.0f} times slower than the decoding.</span>')
    return f'<p class="sr-hint" role="status">{" ".join(hints)}</p>'


def report_of(translator: Translator, options: DecodeConfig | BeamConfig, result: Translated) -> dict[str, Any]:
    """Return the report of a frame for programs, with one entry per line."""
    resolved = {} if isinstance(options, BeamConfig) else {"block_size": translator.block_size(options)}
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
            "config": {**options.to_dict(), **resolved}, "lines": lines}
