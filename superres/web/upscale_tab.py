"""The tab Upscale, which shows the decoding of a picture block by block, and its endpoint `/upscale`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from superres.config import FACES, DecodeConfig
from superres.pipeline.options import resolve_options
from superres.tasks.faces import FaceTask
from superres.tasks.photos import Crop
from superres.tasks.pictures import Pixels
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.cropping import chosen_crop, crop_controls
from superres.web.decoding import Decoder, is_complete
from superres.web.files import MAX_FILE_BYTES, save_pictures
from superres.web.photos import MAX_PIXELS, CropShare, Subject, reduce_picture, take
from superres.web.views import frames_html, record_of, report_of, results_html

INTRODUCTION = f"""A face of {{source}} pixels becomes one of {{target}}, several tokens per step. **The detail is
invented**: a plausible face, not a likeness, so never use it to identify anyone. The model was trained on CelebA's
faces, mostly light-skinned, young and frontal; results for other faces are worse. A photo may have
{MAX_FILE_BYTES // 10**6} MB and {MAX_PIXELS // 10**6} megapixels."""
"""Text above the tab, with places for the sizes of input and output."""
HINT = ('<p class="sr-hint">Choose an example or your own photo. <b>Upscale</b> makes the likeliest face, and <b>Draw '
        "samples</b> a sheet of faces that the input fits as well. They appear here, block by block.</p>")
SHEET_TEMPERATURE = 0.7
"""Temperature of a sheet if the settings are greedy; the higher it is, the more faces are torn."""


def upscale_tab(decoder: Decoder, examples: Sequence[Path]) -> None:
    """Lay out the tab with its examples, of which the first one is chosen initially."""
    heads, task = decoder.upscaler.model_config.prediction_heads, decoder.upscaler.face_task
    gr.Markdown(INTRODUCTION.format(source=task.source_size, target=task.target_size), elem_classes="sr-introduction")
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            upload = gr.Image(str(examples[0]), label=f"Face: a photo, or a picture of {task.source_size} pixels",
                              type="filepath", format="png", sources=["upload", "webcam", "clipboard"], height=220,
                              buttons=[], elem_id="photo")
            with gr.Row(elem_classes="sr-examples"):
                buttons = [gr.Button(path.stem.replace("-", " ").capitalize(), icon=str(path), size="sm", min_width=80)
                           for path in examples]
            square = crop_controls(upload, examples[0], task)
            with gr.Accordion("Decoding settings", open=False):
                settings = controls.decoding_controls(decoder.upscaler.default, heads)
                samples = gr.Slider(4, controls.MAX_SAMPLES, 9, step=1, label="Samples on a sheet",
                                    info=f"Drawn at temperature {SHEET_TEMPERATURE} if the temperature above is 0.")
            race = gr.Checkbox(label="Race against greedy decoding", elem_id="race")
        with gr.Column(scale=3, min_width=300):
            (run, draw, other), stop = controls.buttons_of("", "Upscale", "Draw samples", "Other samples")
            results = gr.HTML(HINT, elem_id="results", padding=False)
            gr.HTML("<superres-kept></superres-kept>", padding=False)
    for button, path in zip(buttons, examples, strict=True):
        button.click(functools.partial(str, path), None, upload, **controls.INSTANT)
    seed = settings[list(controls.offered(decoder.upscaler.default, FACES)).index("seed")]
    controls.decode_on([run.click], functools.partial(upscale_for_page, decoder), [upload, square, race, *settings],
                       results, [results], stop)
    controls.decode_on([draw.click, other.click(next_seed, seed, seed, **controls.INSTANT).then],
                       functools.partial(sheet_for_page, decoder), [upload, square, samples, *settings],
                       results, [results], stop)
    controls.note_changes(results, [upload, square, race, samples, *settings])
    endpoint(decoder, settings)


def upscale_for_page(decoder: Decoder, upload: Value, square: Value, race: bool, *settings: Value) -> Iterator[str]:
    """Upscale, and yield the HTML of the page: the live view, and at the end the results."""
    options = resolve_options(controls.options_of(decoder.upscaler.default, settings), decoder.upscaler)
    variants = {"Greedy": options.sequential(), "Blockwise": options} if race else {"": options}
    subject = subject_of(decoder, upload, lambda image, task: chosen_crop(image, square, task))
    yield from views_of(decoder, "race" if race else "upscale", subject, variants)


def sheet_for_page(decoder: Decoder, upload: Value, square: Value, samples: float, *settings: Value) -> Iterator[str]:
    """Draw samples, and yield the HTML of the page: the live view, and at the end the sheet."""
    options = controls.options_of(decoder.upscaler.default, settings)
    if not options.is_sampling:
        options = options.changed({"temperature": SHEET_TEMPERATURE})
    variants = {"": resolve_options(options, decoder.upscaler)}
    subject = subject_of(decoder, upload, lambda image, task: chosen_crop(image, square, task))
    count = controls.whole_number("samples", samples, 1, controls.MAX_SAMPLES)
    yield from views_of(decoder, "samples", subject, variants, count)


def views_of(
    decoder: Decoder, purpose: str, subject: Subject, variants: dict[str, DecodeConfig], count: int = 1,
) -> Iterator[str]:
    """Decode `count` pictures with each variant, and yield their live view, and at the end the results."""
    options = list(variants.values())[-1]
    for frames in decoder.upscale(purpose, subject.source[None], variants, count):
        shown = results_html(decoder.upscaler, subject, options, frames) if is_complete(frames) else frames_html(frames)
        yield f'<div class="sr-result">{shown}</div>'


def next_seed(seed: Value) -> int:
    """Return the seed of other samples."""
    return (controls.whole_number("seed", seed) + 1) % 2**63


def subject_of(decoder: Decoder, upload: Value, choose: Callable[[Pixels, FaceTask], Crop]) -> Subject:
    """Return the input of a decoding for an upload, whose crop `choose` returns."""
    task = decoder.upscaler.face_task
    return reduce_picture(controls.path_of(upload), lambda image: take(image, task, choose(image, task)), task.source)


def endpoint(decoder: Decoder, settings: list[gr.components.Component]) -> None:
    """Add the endpoint `/upscale`, which streams pictures and a report to programs."""

    def upscale(
        image: Value, crop_x: float, crop_y: float, crop_size: float, samples: float,
        *values: Value,
    ) -> Iterator[tuple[list[str], dict[str, Any]]]:
        options = resolve_options(controls.options_of(decoder.upscaler.default, values), decoder.upscaler)
        subject = subject_of(decoder, image, CropShare(crop_x, crop_y, crop_size).of)
        count = controls.whole_number("samples", samples, 1, controls.MAX_SAMPLES)
        for frames in decoder.upscale("upscale", subject.source[None], {"": options}, count):
            result = frames[""]
            pictures = [(f"face-{row + 1}.png", drawing.unfinished(result, row),
                         record_of(decoder.upscaler, options, row + 1)) for row in range(len(result.images))]
            yield save_pictures(pictures), report_of(subject, result)

    with gr.Row(visible=False):
        image = gr.Image(type="filepath", format="png", label="image")
        crop = [gr.Number(getattr(CropShare(), name), label=f"crop {name}, %") for name in ("x", "y", "size")]
        samples = gr.Number(1, label="samples")
        files, report = gr.File(file_count="multiple", label="pictures"), gr.JSON(label="report")
        handler = controls.named(upscale, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale").click(handler, [image, *crop, samples, *settings], [files, report],
                                   api_name="upscale", **controls.QUEUED)
