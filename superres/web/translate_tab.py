"""The tab that translates lines of text step by step in front of the visitor, and its endpoint `/translate`."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from superres.config import TRANSLATION, BeamConfig, DecodeConfig, require
from superres.errors import InvalidInputError
from superres.pipeline.translator import Translated, Translator
from superres.web.controls import (
    RAW,
    Value,
    decoding_controls,
    greedy_like,
    named,
    offered,
    options_of,
    streaming,
    whole_number,
)
from superres.web.decoding import Decoder
from superres.web.text_views import Clock, language_name, report_of, translations_html

MAX_LINES = 20
MAX_CHARACTERS = 2000
MAX_BEAM = 8
EXAMPLES = {"en": ("A dog runs through the snow.", "Two men are talking on the street.",
                   "A girl in a red shirt is standing in front of a house and eating an ice cream.")}
"""Sentences to try, by the source language: scenes such as Multi30k describes."""
HINT = ('<p class="sr-hint">The translation will appear here, step by step: the tokens that a step accepts together '
        "share a colour and the number of the step.</p>")

Way = DecodeConfig | BeamConfig


def translate_tab(decoder: Decoder, translator: Translator, queue: dict[str, Any]) -> None:
    """Lay out the tab.

    Args:
        decoder: what decodes.
        translator: its checkpoint for text.
        queue: how events that decode are queued.
    """
    source = translator.languages[0]
    examples = EXAMPLES.get(source, ())
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            text = gr.Textbox(examples[0] if examples else "", label=f"{language_name(source)}, a sentence a line",
                              lines=3, max_lines=MAX_LINES, max_length=MAX_CHARACTERS, elem_id="text",
                              info=f"At most {MAX_LINES} lines and {MAX_CHARACTERS:,} characters")
            with gr.Row(elem_classes="sr-examples"):
                buttons = [gr.Button(example, size="sm", min_width=200) for example in examples]
            with gr.Accordion("Decoding settings", open=False):
                settings = text_controls(translator)
        with gr.Column(scale=3, min_width=300):
            with gr.Row():
                run = gr.Button("Translate", variant="primary", elem_id="run-text")
                stop = gr.Button("Stop", variant="stop", elem_id="stop-text")
            race = gr.Checkbox(label="Race: greedy beside it, on the same clock", elem_id="race-text")
            live = gr.HTML(HINT, elem_id="translation")
    for button, example in zip(buttons, examples, strict=True):
        button.click(functools.partial(str, example), None, text, queue=False, show_progress="hidden",
                     api_visibility="private")
    started = gr.on([run.click, text.submit], streaming(functools.partial(translate_for_page, decoder, translator)),
                    [text, race, *settings], live, show_progress="minimal", api_visibility="private", **RAW, **queue)
    stop.click(None, None, None, cancels=[started], queue=False)
    endpoint(decoder, translator, settings, queue)


def text_controls(translator: Translator) -> list[gr.components.Component]:
    """Lay out the controls of the decoding settings and of beam search, in the order of `way_of`."""
    beam = gr.Slider(0, MAX_BEAM, 0, step=1, label="Beam search",
                     info="0: blocks, as set here; above: so many hypotheses, a token a step, without blocks")
    return [*decoding_controls(translator.default, translator.model_config.prediction_heads, TRANSLATION), beam]


def way_of(default: DecodeConfig, *values: Value) -> Way:
    """Return how the controls' values ask to decode; they may be anything that JSON can hold.

    Args:
        default: where settings without a control come from.
        values: of the controls of the decoding settings, and of beam search, where 0 decodes in blocks.

    Raises:
        ConfigError: a value is missing or out of range.
    """
    *settings, beam = values
    hypotheses = whole_number("beam", beam)
    require(0 <= hypotheses <= MAX_BEAM, f"beam must be 0 for blocks, or at most {MAX_BEAM}, not {hypotheses}")
    return BeamConfig(hypotheses) if hypotheses else options_of(default, settings, TRANSLATION)


def lines_of(text: Value) -> list[str]:
    """Return the lines that a visitor gave, as text or as a list of lines.

    Raises:
        InvalidInputError: there are none, too many or too long ones, or not text.
    """
    lines = text.removesuffix("\n").split("\n") if isinstance(text, str) else text
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise InvalidInputError("give text, or a list of lines of text")
    if not any(line.strip() for line in lines):
        raise InvalidInputError("there is no text yet; write a sentence or pick an example")
    characters = sum(map(len, lines))
    if len(lines) > MAX_LINES or characters > MAX_CHARACTERS:
        raise InvalidInputError(f"the text has {len(lines):,} lines and {characters:,} characters, at most {MAX_LINES} "
                                f"and {MAX_CHARACTERS:,} are translated at once; give it in parts")
    try:
        "".join(lines).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"character {error.start + 1} is half of a character; correct the text") from error
    return lines


def translate_for_page(
    decoder: Decoder, translator: Translator, text: Value, race: bool, *settings: Value,
) -> Iterator[str]:
    """Translate and yield what the page shows."""
    lines, way = lines_of(text), way_of(translator.default, *settings)
    lanes = {"": way}
    if race:
        name = f"Beam {way.size}" if isinstance(way, BeamConfig) else "Blockwise"
        lanes = {"Greedy": greedy_like(translator.default), name: way}
    clocks = {lane: Clock() for lane in lanes}
    unseen = True
    for shown, is_due in seldom(decoder.translate("translate", lines, lanes), decoder.frame_seconds):
        for lane, result in shown.items():
            clocks[lane].note(result)
        if is_due:
            # What went too fast to be seen is shown once more, slowly.
            replayed = clocks if unseen and is_complete(shown) else None
            unseen = False
            yield translations_html(translator, lines, shown, replayed)


def seldom(
    frames: Iterator[dict[str, Translated]], frame_seconds: float,
) -> Iterator[tuple[dict[str, Translated], bool]]:
    """Pass frames on, and tell which are due to be shown: the complete one, and before it one in `frame_seconds`."""
    due = time.monotonic() + frame_seconds
    for shown in frames:
        is_due = is_complete(shown) or time.monotonic() >= due
        yield shown, is_due
        if is_due:
            due = time.monotonic() + frame_seconds


def is_complete(shown: dict[str, Translated]) -> bool:
    """Tell whether all lanes are complete."""
    return all(result.is_complete for result in shown.values())


def endpoint(
    decoder: Decoder, translator: Translator, settings: Sequence[gr.components.Component], queue: dict[str, Any],
) -> None:
    """Offer `/translate` to programs: translations and a report, streamed while the decoding goes on."""

    def translate(lines: Value, *values: Value) -> Iterator[tuple[list[str], dict[str, Any]]]:
        way = way_of(translator.default, *values)
        for shown, is_due in seldom(decoder.translate("translate", lines_of(lines), {"": way}), decoder.frame_seconds):
            if is_due:
                yield shown[""].texts, report_of(translator, way, shown[""])

    with gr.Row(visible=False):
        lines = gr.JSON(label="lines")
        translations, report = gr.JSON(label="translations"), gr.JSON(label="report")
        handler = named(streaming(translate), *offered(translator.default, TRANSLATION), "beam")
        gr.Button("translate").click(handler, [lines, *settings], [translations, report], api_name="translate",
                                     **RAW, **queue)
