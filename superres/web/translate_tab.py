"""The tab Translate, which shows a translation step by step, and its endpoint `/translate`."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from superres.config import TRANSLATION, BeamConfig, DecodeConfig
from superres.errors import InvalidInputError
from superres.pipeline.translator import Translated, Translator
from superres.web import controls
from superres.web.controls import Value
from superres.web.decoding import Decoder, is_complete
from superres.web.text_views import Clock, language_name, report_of, translations_html

MAX_LINES = 20
MAX_CHARACTERS = 2000
MAX_BEAM = 8
EXAMPLES = {"en": ("A dog runs through the snow.", "Two men are talking on the street.",
                   "A girl in a red shirt is standing in front of a house and eating an ice cream.")}
"""Example sentences by source language; they describe scenes as Multi30k does."""
INTRODUCTION = """{} becomes {}, several tokens per step. The bundled model knows captions of photographs; it
translates other sentences badly."""
HINT = ('<p class="sr-hint">The translation will appear here, step by step. The tokens of a step share a colour '
        "and the number of the step.</p>")


def translate_tab(decoder: Decoder, translator: Translator) -> None:
    """Lay out the tab of the decoder's `translator`."""
    source = translator.languages[0]
    gr.Markdown(INTRODUCTION.format(*map(language_name, translator.languages)), elem_classes="sr-introduction")
    examples = EXAMPLES.get(source, ())
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            text = gr.Textbox(examples[0] if examples else "", label=f"{language_name(source)}, one sentence per line",
                              lines=3, max_lines=MAX_LINES, max_length=MAX_CHARACTERS, elem_id="text",
                              info=f"At most {MAX_LINES} lines and {MAX_CHARACTERS:,} characters.")
            with gr.Row(elem_classes="sr-examples"):
                buttons = [gr.Button(example, size="sm", min_width=200) for example in examples]
            with gr.Accordion("Decoding settings", open=False):
                heads = translator.model_config.prediction_heads
                settings = [*controls.decoding_controls(translator.default, heads, TRANSLATION), gr.Slider(
                    0, MAX_BEAM, 0, step=1, label="Beam search",
                    info="0 decodes in blocks with these settings; above 0: number of hypotheses, without blocks.")]
            race = gr.Checkbox(label="Race against greedy decoding", elem_id="race-text")
        with gr.Column(scale=3, min_width=300):
            (run,), stop = controls.buttons_of("-text", "Translate")
            live = gr.HTML(HINT, elem_id="translation")
    for button, example in zip(buttons, examples, strict=True):
        button.click(functools.partial(str, example), None, text, **controls.INSTANT)
    controls.decode_on([run.click, text.submit], functools.partial(translate_for_page, decoder, translator),
                       [text, race, *settings], live, [live], stop)
    controls.note_changes(live, [text, race, *settings])
    endpoint(decoder, translator, settings)


def variant_of(default: DecodeConfig, *values: Value) -> DecodeConfig | BeamConfig:
    """Return `default` with the values of the controls, any JSON values; the last one is beam search's, 0 for blocks.

    Raises:
        ConfigError: a value is missing or out of range.
    """
    *settings, beam = values
    hypotheses = controls.whole_number("beam", beam, 0, MAX_BEAM)
    return BeamConfig(hypotheses) if hypotheses else controls.options_of(default, settings, TRANSLATION)


def lines_of(text: Value) -> list[str]:
    """Return the lines in a visitor's text or list of lines.

    Raises:
        InvalidInputError: there is no text, the text is too long, or the value is not text.
    """
    lines = text.removesuffix("\n").split("\n") if isinstance(text, str) else text
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise InvalidInputError("give text, or a list of lines of text")
    if not any(line.strip() for line in lines):
        raise InvalidInputError("there is no text yet; write a sentence or choose an example")
    characters = sum(map(len, lines))
    if len(lines) > MAX_LINES or characters > MAX_CHARACTERS:
        raise InvalidInputError(f"the text has {len(lines):,} lines and {characters:,} characters, and the limits are "
                                f"{MAX_LINES} and {MAX_CHARACTERS:,}; translate it in parts")
    try:
        "".join(lines).encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"character {error.start + 1} is half of a surrogate pair; correct the text") from error
    return lines


def translate_for_page(
    decoder: Decoder, translator: Translator, text: Value, race: bool, *settings: Value,
) -> Iterator[str]:
    """Translate, and yield the HTML of the page."""
    lines, variant = lines_of(text), variant_of(translator.default, *settings)
    variants = {"": variant}
    if race:
        name = f"Beam {variant.size}" if isinstance(variant, BeamConfig) else "Blockwise"
        variants = {"Greedy": translator.default.sequential(), name: variant}
    clocks = {name: Clock() for name in variants}
    is_first = True
    for frames, is_due in with_due(decoder.translate("translate", lines, variants), decoder.frame_seconds):
        for name, frame in frames.items():
            clocks[name].record(frame)
        if is_due:
            # A decoding that is complete at the first frame was too fast to watch, and is replayed slowly.
            replayed = clocks if is_first and is_complete(frames) else None
            is_first = False
            yield translations_html(translator, lines, frames, replayed)


def with_due(
    steps: Iterator[dict[str, Translated]], frame_seconds: float,
) -> Iterator[tuple[dict[str, Translated], bool]]:
    """Yield all frames, and whether each is due: at most one per `frame_seconds`, and the complete frames."""
    due = time.monotonic() + frame_seconds
    for frames in steps:
        is_due = is_complete(frames) or time.monotonic() >= due
        yield frames, is_due
        if is_due:
            due = time.monotonic() + frame_seconds


def endpoint(decoder: Decoder, translator: Translator, settings: Sequence[gr.components.Component]) -> None:
    """Add the endpoint `/translate`, which streams translations and a report to programs."""

    def translate(lines: Value, *values: Value) -> Iterator[tuple[list[str], dict[str, Any]]]:
        variant = variant_of(translator.default, *values)
        steps = decoder.translate("translate", lines_of(lines), {"": variant})
        for frames, is_due in with_due(steps, decoder.frame_seconds):
            if is_due:
                yield frames[""].texts, report_of(translator, variant, frames[""])

    with gr.Row(visible=False):
        lines = gr.JSON(label="lines")
        translations, report = gr.JSON(label="translations"), gr.JSON(label="report")
        handler = controls.named(translate, *controls.offered(translator.default, TRANSLATION), "beam")
        gr.Button("translate").click(handler, [lines, *settings], [translations, report], api_name="translate",
                                     **controls.QUEUED)
