"""The tab Upscale, which shows the decoding of a picture block by block, and its endpoint `/upscale`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from superres.config import FACES
from superres.pipeline.options import resolve_options
from superres.tasks.photos import Crop
from superres.tasks.pictures import Pixels
from superres.web import controls, drawing
from superres.web.cropping import chosen_crop, crop_controls
from superres.web.decoding import Decoder, is_complete
from superres.web.files import Workspace
from superres.web.photos import CropShare, Subject, reduce_upload, take
from superres.web.views import live_html, record_of, report_of, results_html

HINT = ('<p class="sr-hint">Choose an example or your own photo, and press <b>Upscale</b>. The picture '
        "will appear here, block by block.</p>")


def upscale_tab(decoder: Decoder, workspace: Workspace, examples: Sequence[Path], queue: dict[str, Any]) -> None:
    """Lay out the tab.

    Args:
        decoder: decodes for the tab.
        workspace: folder for the files that programs get.
        examples: example pictures inside the workspace; the first one is chosen initially.
        queue: options of events that decode.
    """
    heads = decoder.upscaler.model_config.prediction_heads
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            upload = gr.Image(str(examples[0]), label="Face: a photo, or an 8x8 picture", type="filepath", format="png",
                              sources=["upload", "webcam", "clipboard"], height=220, buttons=[], elem_id="photo")
            buttons = example_buttons(examples)
            square = crop_controls(upload, examples[0])
            with gr.Accordion("Decoding settings", open=False):
                settings = controls.decoding_controls(decoder.upscaler.default, heads)
                samples = gr.Slider(1, controls.MAX_SAMPLES, 1, step=1, label="Samples",
                                    info="Number of pictures; more than 1 needs a temperature above 0.")
        with gr.Column(scale=3, min_width=300):
            with gr.Row():
                run = gr.Button("Upscale", variant="primary", elem_id="run")
                stop = gr.Button("Stop", variant="stop", elem_id="stop")
            race = gr.Checkbox(label="Race against greedy decoding", elem_id="race")
            live = gr.HTML(HINT, elem_id="live")
            results = gr.HTML(elem_id="results")
    for button, path in zip(buttons, examples, strict=True):
        button.click(functools.partial(str, path), None, upload, **controls.INSTANT)
    started = run.click(functools.partial(upscale_for_page, decoder),
                        [upload, square, race, samples, *settings], [live, results], show_progress="minimal",
                        api_visibility="private", **queue)
    stop.click(None, None, None, cancels=[started], queue=False)
    endpoint(decoder, workspace, samples, settings, queue)


def example_buttons(examples: Sequence[Path]) -> list[gr.Button]:
    """Lay out one button per example, with its picture and its name."""
    with gr.Row(elem_classes="sr-examples"):
        return [gr.Button(path.stem.replace("-", " ").capitalize(), icon=str(path), size="sm", min_width=80)
                for path in examples]


def upscale_for_page(
    decoder: Decoder, upload: controls.Uploaded | None, square: controls.Value, race: bool, samples: float,
    *settings: controls.Value,
) -> Iterator[tuple[str, str]]:
    """Upscale, and yield the HTML of the page: the live view, and at the end the results."""
    options = resolve_options(controls.options_of(decoder.upscaler.default, settings), decoder.upscaler)
    subject = subject_of(upload, lambda image: chosen_crop(image, square))
    variants = {"Greedy": options.sequential(), "Blockwise": options} if race else {"": options}
    count = 1 if race else controls.samples_of(samples)
    for frames in decoder.upscale("race" if race else "upscale", subject.source[None], variants, count):
        results = ""
        if is_complete(frames):
            results = results_html(decoder.upscaler, subject, options, list(frames.values())[-1])
        yield live_html(frames), results


def subject_of(upload: controls.Uploaded | None, choose: Callable[[Pixels], Crop]) -> Subject:
    """Return the input of a decoding for an upload, whose crop `choose` returns."""
    return reduce_upload(controls.path_of(upload), lambda image: take(image, choose(image)))


def endpoint(
    decoder: Decoder, workspace: Workspace, samples: gr.components.Component,
    settings: list[gr.components.Component], queue: dict[str, Any],
) -> None:
    """Add the endpoint `/upscale`, which streams pictures and a report to programs."""

    def upscale(
        image: controls.Uploaded | None, crop_x: float, crop_y: float, crop_size: float, samples: float,
        *values: controls.Value,
    ) -> Iterator[tuple[list[str], dict[str, Any]]]:
        options = resolve_options(controls.options_of(decoder.upscaler.default, values), decoder.upscaler)
        subject = subject_of(image, CropShare(crop_x, crop_y, crop_size).of)
        for frames in decoder.upscale("upscale", subject.source[None], {"": options}, controls.samples_of(samples)):
            result = frames[""]
            pictures = [(f"face-{row + 1}.png", drawing.unfinished(result, row),
                         record_of(decoder.upscaler, options, row + 1)) for row in range(len(result.images))]
            yield workspace.save_pictures(pictures), report_of(subject, result)

    with gr.Row(visible=False):
        image = gr.Image(type="filepath", format="png", label="image")
        crop = [gr.Number(getattr(CropShare(), name), label=f"crop {name}, %") for name in ("x", "y", "size")]
        files, report = gr.File(file_count="multiple", label="pictures"), gr.JSON(label="report")
        handler = controls.named(upscale, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale").click(handler, [image, *crop, samples, *settings], [files, report],
                                   api_name="upscale", **queue)
