"""The Translate tab, which shows a translation step by step, and its endpoint `/translate`.

All text is visitors' data: it is escaped, and never logged.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import gradio as gr
import numpy as np

from superres.config import TRANSLATION, BeamConfig, DecodeConfig
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import InvalidInputError
from superres.pipeline.line_translation import accepted_tokens, line_notes, trace_lines
from superres.pipeline.translated import Translated
from superres.system.machine import torch_version
from superres.tasks.translation import END
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.decoding import VisitorDecoding
from superres.web.drawing import is_complete
from superres.web.late import LateTranslator

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator

MAX_LINES = 20
MAX_CHARACTERS = 2000
MAX_BEAM = 8
SHOWN_BLOCK = 4
"""Block size with which the tab begins: by default, the translator takes one token per step
wherever that is faster."""
REPLAY_SECONDS = 4.0  # longest duration of the slow-motion replay of a finished translation
STEP_SECONDS = 0.3  # longest average duration of a step in the replay
LANGUAGES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French",
             "it": "Italian"}
EXAMPLES = {"en": ("A dog runs through the snow.", "Two men are talking on the street.",
                   "A girl in a red shirt is standing in front of a house and eating an ice "
                   "cream.")}
"""Example sentences by source language; they describe scenes as Multi30k does."""
INTRODUCTION = """{} becomes {}, several tokens per step. The bundled model knows captions of
photographs; it translates other sentences badly."""
HINT = ('<p class="sr-hint">The translation will appear here, step by step. The tokens of a step '
        "share a colour and the number of the step.</p>")
Times = list[tuple[int, float]]
"""Times of a decoding's frames: the model calls so far, which increase, and the seconds of
decoding."""


def translate_tab(decoding: VisitorDecoding, translator: Translator) -> None:
    """Lay out the tab of the decoding's `translator`."""
    default = (translator.expected if isinstance(translator, LateTranslator)
               else translator.default)
    source, target = (LANGUAGES.get(tag, tag) for tag in translator.languages)
    gr.Markdown(INTRODUCTION.format(source, target), elem_classes="sr-introduction")
    examples = EXAMPLES.get(translator.languages[0], ())
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            text = gr.Textbox(examples[0] if examples else "", label=f"{source}, one sentence per "
                              "line", lines=3, max_lines=MAX_LINES, max_length=MAX_CHARACTERS,
                              elem_id="text", info=f"At most {MAX_LINES} lines and "
                              f"{MAX_CHARACTERS:,} characters.")
            with gr.Column(elem_classes="sr-lines"):
                buttons = [gr.Button(example, size="sm") for example in examples]
            with gr.Accordion("Decoding settings", open=False):
                heads = translator.model_config.prediction_heads
                settings = controls.decoding_controls(default, heads, TRANSLATION,
                                                      min(SHOWN_BLOCK, heads))
                settings.append(gr.Slider(
                    0, MAX_BEAM, 0, step=1, label="Beam search", visible=bool(torch_version()),
                    info="0 decodes in blocks with these settings; above 0: number of hypotheses, "
                    "without blocks."))
        with gr.Column(scale=3, min_width=300):
            (run, race), bar = controls.buttons_of(decoding, "-text", "translation", "Translate",
                                                   "Race", verb="Translating")
            live = gr.HTML(HINT, elem_id="translation")
    for button, example in zip(buttons, examples, strict=True):
        button.click(functools.partial(str, example), None, text, **controls.INSTANT)
    for triggers, is_race in (([run.click, text.submit], False), ([race.click], True)):
        controls.decode_on(triggers, functools.partial(translate_for_page, decoding, translator,
                                                       is_race),
                           [text, *settings], [live], bar)
    controls.note_changes(bar, [text, *settings])
    endpoint(decoding, translator, default, settings)


def variant_of(default: DecodeConfig, *values: Value) -> DecodeConfig | BeamConfig:
    """Return `default` with values of the controls, see `options_of`; the last one is beam
    search's, 0 for blocks."""
    *settings, beam = values
    hypotheses = controls.whole_number("beam", beam, 0, MAX_BEAM)
    return BeamConfig(hypotheses) if hypotheses else controls.options_of(default, settings,
                                                                         TRANSLATION)


def lines_of(text: Value) -> list[str]:
    """Return the lines in a visitor's text or list of lines; InvalidInputError if it is empty, too
    long or no text."""
    lines = text.removesuffix("\n").split("\n") if isinstance(text, str) else text
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise InvalidInputError("give text, or a list of lines of text")
    if not any(line.strip() for line in lines):
        raise InvalidInputError("there is no text yet; write a sentence or choose an example")
    characters = sum(map(len, lines))
    if len(lines) > MAX_LINES or characters > MAX_CHARACTERS:
        raise InvalidInputError(f"the text has {len(lines):,} lines and {characters:,} characters, "
                                f"and the limits are {MAX_LINES} and {MAX_CHARACTERS:,}; translate "
                                "it in parts")
    try:
        "".join(lines).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"character {error.start + 1} is half of a surrogate pair; correct "
                                "the text") from error
    return lines


def translate_for_page(
    decoding: VisitorDecoding, translator: Translator, is_race: bool, text: Value, *settings: Value,
) -> Iterator[str]:
    """Translate, also one token per step if it is a race, and yield the HTML of the page."""
    lines, variant = lines_of(text), variant_of(translator.default, *settings)
    variants = {"": variant}
    if is_race:
        name = f"Beam {variant.size}" if isinstance(variant, BeamConfig) else "In blocks"
        variants = {"One token per step": translator.default.sequential(), name: variant}
    times: dict[str, Times] = {name: [] for name in variants}
    is_first = True
    for frames, is_due in with_due(decoding.translate("translate", lines, variants),
                                   decoding.frame_seconds):
        for name, frame in frames.items():
            if not times[name] or frame.model_calls > times[name][-1][0]:
                times[name].append((frame.model_calls, frame.seconds))
        if is_due:
            # A decoding that is complete at the first frame was too fast to watch, and is replayed
            # slowly.
            yield translations_html(translator, lines, frames,
                                    times if is_first and is_complete(frames) else None)
            is_first = False


def with_due(
    steps: Iterator[dict[str, Translated]], frame_seconds: float,
) -> Iterator[tuple[dict[str, Translated], bool]]:
    """Yield all frames, and whether each is due: at most one per `frame_seconds`, and the complete
    frames."""
    due = time.monotonic() + frame_seconds
    for frames in steps:
        is_due = is_complete(frames) or time.monotonic() >= due
        yield frames, is_due
        if is_due:
            due = time.monotonic() + frame_seconds


def endpoint(decoding: VisitorDecoding, translator: Translator, default: DecodeConfig,
             settings: Sequence[gr.components.Component]) -> None:
    """Add the endpoint `/translate`, which streams translations and a report to programs."""
    def translate(lines: Value, *values: Value) -> Iterator[tuple[list[str], dict[str, Any]]]:
        variant = variant_of(translator.default, *values)
        steps = decoding.translate("translate", lines_of(lines), {"": variant})
        for frames, is_due in with_due(steps, decoding.frame_seconds):
            if is_due:
                yield frames[""].texts, report_of(translator, variant, frames[""])

    with gr.Row(visible=False):
        lines = gr.JSON(label="lines")
        translations, report = gr.JSON(label="translations"), gr.JSON(label="report")
        handler = controls.named(translate, *controls.offered(default, TRANSLATION), "beam")
        gr.Button("translate").click(handler, [lines, *settings], [translations, report],
                                     api_name="translate", **controls.QUEUED)


def report_of(translator: Translator, options: DecodeConfig | BeamConfig,
              result: Translated) -> dict[str, Any]:
    """Return the report of a frame for programs, with one entry per line."""
    resolved = {} if isinstance(options,
                                BeamConfig) else {"block_size": translator.block_size(options)}
    lines = []
    for number, line in enumerate(result, 1):
        entry: dict[str, Any] = {"line": number, "tokens": line.tokens, "parts": line.segments,
                                 "cut": line.truncated, "notes": line_notes(line)}
        if line.traces:
            entry["iterations"] = line.steps
            entry["mean_accepted_block_size"] = mean_accepted_block_size(line.traces)
            entry["steps"] = [translator.codec.names(tokens)
                              for tokens in accepted_tokens(line.traces)]
        lines.append(entry)
    return {"complete": result.is_complete, "seconds": result.seconds,
            "model_calls": result.model_calls,
            "checkpoint": f"{translator.name}@{translator.revision}",
            "languages": "-".join(translator.languages),
            "config": {**options.to_dict(), **resolved}, "lines": lines}


def slow_motion(times: dict[str, Times]) -> float:
    """Return the factor by which the replay is slower than the decoding of the slowest variant."""
    steps = max(frames[-1][0] for frames in times.values())
    seconds = max(frames[-1][1] for frames in times.values())
    return min(REPLAY_SECONDS, STEP_SECONDS * steps) / max(seconds, 1e-9)


def translations_html(
    translator: Translator, lines: Sequence[str], frames: dict[str, Translated],
    times: dict[str, Times] | None = None,
) -> str:
    """Return the partial or complete translations of source lines by all variants; `times` ask for
    a slow replay."""
    slower = slow_motion(times) if times else 0.0
    parts = []
    for name, result in frames.items():
        heading = f"<h3>{escape(name)}</h3>" if name else ""
        traces = result.traces  # none of beam search
        statistics = [("tokens", f"{sum(line.tokens for line in result):,}"),
                      ("steps", f"{drawing.steps_of(result):,}"),
                      *([("tokens per step", f"{mean_accepted_block_size(traces):.1f}")] if traces
                        else []), ("seconds", f"{result.seconds:.3f}")]
        shown = lines_html(translator, lines, result, times[name] if times else [], slower)
        parts.append(f'<section class="sr-variant">{heading}{shown}{drawing.statistics(statistics)}'
                     f"{steps_html(translator, result)}</section>")
    tag, texts = translator.languages[1], list(frames.values())[-1].texts
    plain = escape("\n" + "\n".join(texts))  # HTML ignores a first line break
    stepper = text_stepper(translator, frames) if is_complete(frames) else ""
    return (f'<div class="sr-result"><div class="sr-variants">{"".join(parts)}</div>'
            f"{hints_html(translator, frames, slower)}"
            f"{drawing.fold('Step through it', stepper)}"
            f'<label class="sr-plain">{escape(LANGUAGES.get(tag, tag))}'
            f'<textarea readonly lang="{escape(tag)}" rows="{max(2, len(texts))}">'
            f"{plain}</textarea></label></div>")


def lines_html(translator: Translator, lines: Sequence[str], result: Translated, times: Times,
               slower: float) -> str:
    """Return the translations with accepted blocks marked, and what speaks against a line below it;
    with `times`, when the replay shows them."""
    items = []
    for source, line in zip(lines, result, strict=True):
        if line.traces:
            html = blocks_html(translator, line.traces, times, slower)
        else:
            seconds = f' style="--at: {slower * times[-1][1]:.3f}s"' if times else ""
            html = (f"<span{seconds}>{escape(line.text)}</span>" if source.strip()
                    else "<i>an empty line</i>")
        noted = "; ".join(line_notes(line))
        note = noted and (f'<small class="sr-noted" lang="en">{escape(noted[0].upper())}'
                          f"{escape(noted[1:])}.</small>")
        items.append(f"<li>{html}{note}</li>")
    looks = f'sr-text{" sr-replay" if times else ""}{" sr-single" if len(items) == 1 else ""}'
    return (f'<ol class="{looks}" lang="{escape(translator.languages[1])}">'
            f'{"".join(items)}</ol>')


def blocks_html(translator: Translator, traces: Sequence[RowTrace], times: Times,
                slower: float) -> str:
    """Return the accepted blocks of a line; the numbers of the steps continue over the parts of the
    line."""
    parts, numbers = list[str](), itertools.count(1)
    for trace in traces:
        parts.append("")
        steps = accepted_tokens([trace])
        surfaces = iter(translator.codec.surfaces([token for tokens in steps for token in tokens]))
        for step, tokens in enumerate(steps):
            text, number = "".join(itertools.islice(surfaces, len(tokens))), next(numbers)
            block = text.lstrip()
            # The first model call only proposes.
            seconds = (f' style="--at: {slower * np.interp(step + 2, *np.transpose(times)):.3f}s"'
                       if times else "")
            title = f"Step {number}: {len(tokens)} token{'s' if len(tokens) > 1 else ''}"
            parts[-1] += (f'{escape(text[:len(text) - len(block)])}<span class="sr-step'
                          f'{" sr-ends" if END in tokens else ""}" data-step="{number}" '
                          f'title="{title}"{seconds}>' f"{escape(block)}</span>")
    return " ".join(parts)


def steps_html(translator: Translator, result: Translated) -> str:
    """Return the accepted tokens of each step, as in section 7.4 of the paper; "" without any."""
    is_single = len(result) == 1
    text = "\n\n".join("\n".join([*([] if is_single else [f"Line {number}"]),
                                  *trace_lines(translator, line.traces)])
                       for number, line in enumerate(result, 1) if line.traces)
    return text and (f"<details{' open' if is_single else ''}><summary>Steps</summary>"
                     f'<pre class="sr-trace" tabindex="0">{escape(text)}</pre></details>')


def hints_html(translator: Translator, frames: dict[str, Translated], slower: float) -> str:
    """Return notes on the results: the result of a race, and the speed of the replay."""
    if not is_complete(frames):
        return '<p class="sr-hint">Translating ...</p>'
    first = next(iter(frames.values()))
    hints = list[str]()
    if len(frames) > 1:
        same = len({tuple(result.texts) for result in frames.values()}) == 1
        hints += [drawing.race_note(frames), "The translations are "
                  f"{'equal' if same else 'different'}."]
    else:
        hints.append(f"Decoded in {first.seconds:.3f} seconds.")
    if slower > 1:
        hints.append(f'<span class="sr-slower">The replay is {slower:.0f} times slower than the '
                     'decoding.</span>')
    return f'<p class="sr-hint" role="status">{" ".join(hints)}</p>'


def text_stepper(translator: Translator, frames: dict[str, Translated]) -> str:
    """Return the element that steps through finished translations, first the last variant's; "" if
    none has a trace."""
    decodes = [
        {"name": f"{name}, line {number}" if name else f"Line {number}",
         "seconds": result.seconds,
         "parts": [_stepper_part(translator, trace) for trace in line.traces]}
        for name, result in reversed(frames.items())
        for number, line in enumerate(result, 1) if line.traces]
    return drawing.stepper("text", decodes, translator.languages[1]) if decodes else ""


def _stepper_part(translator: Translator, trace: RowTrace) -> dict[str, Any]:
    """Return the steps of a segment: names of the proposed tokens, and the text that a step adds or
    would have added.

    White space at the start of a text is kept, so the texts of the steps, joined, are the
    translation.
    """
    codec, proposed = translator.codec, drawing.proposals(trace)
    texts, rejected, known = list[str](), list[str](), list[int]()
    surfaces = iter(codec.surfaces(trace.sequence.tolist()))
    for tokens, accepted in zip(proposed, accepted_tokens([trace]), strict=True):
        texts.append("".join(next(surfaces) for _ in accepted))
        before, after = codec.decode([known + accepted])[0], codec.decode([known + tokens])[0]
        # A token that is a part of a character ends `before` with a replacement character.
        pairs = itertools.takewhile(lambda pair: pair[0] == pair[1],
                                    zip(before, after, strict=False))
        rejected.append(after[sum(1 for _ in pairs):])
        known += accepted
    return {"accepted": trace.accepted, "proposed": [codec.names(tokens) for tokens in proposed],
            "texts": texts, "rejected": rejected}
