"""The tab Upscale, which shows the decoding of a picture block by block, and its endpoint `/upscale`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from superres.config import FACES
from superres.errors import SuperresError
from superres.pipeline.options import resolve_options
from superres.tasks.pictures import Pixels
from superres.web import controls, drawing
from superres.web.decoding import Decoder, is_complete
from superres.web.files import Workspace
from superres.web.photos import Crop, Subject, default_crop, is_photo, reduce_upload, take
from superres.web.views import live_html, preview_html, record_of, report_of, results_html

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
            crop_group, crop, preview = crop_controls(examples[0])
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
    upload.change(offer_crop, upload, [crop_group, preview, *crop], **controls.INSTANT, **controls.RAW)
    for slider in crop:
        slider.input(show_crop, [upload, *crop], preview, trigger_mode="always_last", **controls.INSTANT,
                     **controls.RAW)
    started = run.click(functools.partial(upscale_for_page, decoder),
                        [upload, *crop, race, samples, *settings], [live, results], show_progress="minimal",
                        api_visibility="private", **queue)
    stop.click(None, None, None, cancels=[started], queue=False)
    endpoint(decoder, workspace, samples, settings, queue)


def example_buttons(examples: Sequence[Path]) -> list[gr.Button]:
    """Lay out one button per example, with its picture and its name."""
    with gr.Row(elem_classes="sr-examples"):
        return [gr.Button(path.stem.replace("-", " ").capitalize(), icon=str(path), size="sm", min_width=80)
                for path in examples]


def crop_controls(first: Path) -> tuple[gr.Group, list[gr.Slider], gr.HTML]:
    """Lay out the sliders of a photo's crop, and the view of the crop."""
    visible, html, *values = crop_of(str(first))
    preview = gr.HTML(html, elem_id="preview")
    with gr.Group(visible=visible, elem_id="crop") as group:
        labels = ("Crop: centre from the left, %", "Crop: centre from the top, %", "Crop: size, %")
        crop = [gr.Slider(low, 100, value, step=0.5, label=label)
                for label, value, low in zip(labels, values, (0, 0, 1), strict=True)]
    return group, crop, preview


def crop_of(path: str) -> tuple[bool, str, float, float, float]:
    """Return whether a picture is cropped, its view, and the initial crop (x, y, size)."""
    def offer(image: Pixels) -> tuple[bool, str, float, float, float]:
        crop = default_crop(image) if is_photo(image) else Crop()
        return is_photo(image), preview_html(image, crop), crop.x, crop.y, crop.size

    return reduce_upload(path, offer)


def offer_crop(upload: controls.Uploaded | None) -> list[Any]:
    """Return the visibility of the crop, the view and the sliders' values for a new upload."""
    try:
        visible, html, *values = (False, "", 50.0, 50.0, 100.0) if upload is None else crop_of(controls.path_of(upload))
    except SuperresError as error:
        visible, html, values = False, drawing.message(str(error)), [50.0, 50.0, 100.0]
    return [gr.update(visible=visible), html, *values]


def show_crop(upload: controls.Uploaded | None, x: float, y: float, size: float) -> str:
    """Return the view of an upload with another crop."""
    try:
        crop = Crop(x, y, size)
        if upload is None:
            return ""
        return reduce_upload(controls.path_of(upload), lambda image: preview_html(image, crop))
    except SuperresError as error:
        return drawing.message(str(error))


def upscale_for_page(
    decoder: Decoder, upload: controls.Uploaded | None, x: float, y: float, size: float, race: bool, samples: float,
    *settings: controls.Value,
) -> Iterator[tuple[str, str]]:
    """Upscale, and yield the HTML of the page: the live view, and at the end the results."""
    options = resolve_options(controls.options_of(decoder.upscaler.default, settings), decoder.upscaler)
    subject = subject_of(upload, x, y, size)
    variants = {"Greedy": options.sequential(), "Blockwise": options} if race else {"": options}
    count = 1 if race else controls.samples_of(samples)
    for frames in decoder.upscale("race" if race else "upscale", subject.source[None], variants, count):
        results = ""
        if is_complete(frames):
            results = results_html(decoder.upscaler, subject, options, list(frames.values())[-1])
        yield live_html(frames), results


def subject_of(upload: controls.Uploaded | None, x: float, y: float, size: float) -> Subject:
    """Return the input of a decoding for an upload and its crop."""
    crop = Crop(x, y, size)
    return reduce_upload(controls.path_of(upload), lambda image: take(image, crop))


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
        subject = subject_of(image, crop_x, crop_y, crop_size)
        for frames in decoder.upscale("upscale", subject.source[None], {"": options}, controls.samples_of(samples)):
            result = frames[""]
            pictures = [(f"face-{row + 1}.png", drawing.unfinished(result, row),
                         record_of(decoder.upscaler, options, row + 1)) for row in range(len(result.images))]
            yield workspace.save_pictures(pictures), report_of(subject, result)

    with gr.Row(visible=False):
        image = gr.Image(type="filepath", format="png", label="image")
        crop = [gr.Number(getattr(Crop(), name), label=f"crop {name}, %") for name in ("x", "y", "size")]
        files, report = gr.File(file_count="multiple", label="pictures"), gr.JSON(label="report")
        handler = controls.named(upscale, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale").click(handler, [image, *crop, samples, *settings], [files, report],
                                   api_name="upscale", **queue)
