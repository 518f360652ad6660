"""The tab that upscales one picture in front of the visitor, and its endpoint `/upscale`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from superres.config import FACES, DecodeConfig
from superres.errors import SuperresError
from superres.web import drawing
from superres.web.controls import (
    MAX_SAMPLES,
    RAW,
    Uploaded,
    Value,
    decoding_controls,
    greedy_like,
    named,
    offered,
    options_of,
    path_of,
    samples_of,
    streaming,
)
from superres.web.decoding import Decoder
from superres.web.files import Workspace
from superres.web.photos import Crop, Pixels, Subject, default_crop, is_photo, reduce_upload, take
from superres.web.views import live_html, preview_html, record_of, report_of, results_html

HINT = '<p class="sr-hint">The picture will appear here, block by block.</p>'


def upscale_tab(
    decoder: Decoder, workspace: Workspace, default: DecodeConfig, examples: Sequence[Path], queue: dict[str, Any],
) -> None:
    """Lay out the tab.

    Args:
        decoder: what decodes.
        workspace: where files for programs are written.
        default: settings at first.
        examples: pictures to try, inside the workspace; the first is chosen already.
        queue: how events that decode are queued.
    """
    heads = decoder.upscaler.model_config.prediction_heads
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            upload = gr.Image(str(examples[0]), label="Face: a photo, or an 8x8 picture", type="filepath", format="png",
                              sources=["upload", "webcam", "clipboard"], height=220, buttons=[], elem_id="photo")
            buttons = example_buttons(examples)
            crop_group, crop, preview = crop_controls(examples[0])
            with gr.Accordion("Decoding settings", open=False):
                settings = decoding_controls(default, heads)
                samples = gr.Slider(1, MAX_SAMPLES, 1, step=1, label="Samples",
                                    info="Pictures drawn at once; needs a temperature above 0")
        with gr.Column(scale=3, min_width=300):
            with gr.Row():
                run = gr.Button("Upscale", variant="primary", elem_id="run")
                stop = gr.Button("Stop", variant="stop", elem_id="stop")
            race = gr.Checkbox(label="Race: greedy beside blockwise, on the same clock", elem_id="race")
            live = gr.HTML(HINT, elem_id="live")
            results = gr.HTML(elem_id="results")
    for button, path in zip(buttons, examples, strict=True):
        button.click(functools.partial(str, path), None, upload, queue=False, show_progress="hidden",
                     api_visibility="private")
    upload.change(offer_crop, upload, [crop_group, preview, *crop], queue=False, show_progress="hidden",
                  api_visibility="private", **RAW)
    for slider in crop:
        slider.input(show_crop, [upload, *crop], preview, queue=False, show_progress="hidden",
                     trigger_mode="always_last", api_visibility="private", **RAW)
    started = run.click(streaming(functools.partial(upscale_for_page, decoder)),
                        [upload, *crop, race, samples, *settings], [live, results], show_progress="minimal",
                        api_visibility="private", **RAW, **queue)
    stop.click(None, None, None, cancels=[started], queue=False)
    endpoint(decoder, workspace, samples, settings, queue)


def example_buttons(examples: Sequence[Path]) -> list[gr.Button]:
    """Lay out a button an example, with its picture and its name."""
    with gr.Row(elem_classes="sr-examples"):
        return [gr.Button(path.stem.replace("-", " ").capitalize(), icon=str(path), size="sm", min_width=80)
                for path in examples]


def crop_controls(first: Path) -> tuple[gr.Group, list[gr.Slider], gr.HTML]:
    """Lay out the crop of a photo and the view of what becomes of it."""
    visible, html, *values = crop_of(str(first))
    preview = gr.HTML(html, elem_id="preview")
    with gr.Group(visible=visible, elem_id="crop") as group:
        labels = ("Crop: centre from the left, %", "Crop: centre from the top, %", "Crop: size, %")
        crop = [gr.Slider(low, 100, value, step=0.5, label=label)
                for label, value, low in zip(labels, values, (0, 0, 1), strict=True)]
    return group, crop, preview


def crop_of(path: str) -> tuple[bool, str, float, float, float]:
    """Return whether a picture is cropped, the view of it, and the crop to start with."""
    def offer(image: Pixels) -> tuple[bool, str, float, float, float]:
        crop = default_crop(image) if is_photo(image) else Crop()
        return is_photo(image), preview_html(image, crop), crop.x, crop.y, crop.size

    return reduce_upload(path, offer)


def offer_crop(upload: Uploaded | None) -> list[Any]:
    """Return the crop's visibility, the view and the sliders for a new upload."""
    try:
        visible, html, *values = (False, "", 50.0, 50.0, 100.0) if upload is None else crop_of(path_of(upload))
    except SuperresError as error:
        visible, html, values = False, drawing.message(str(error)), [50.0, 50.0, 100.0]
    return [gr.update(visible=visible), html, *values]


def show_crop(upload: Uploaded | None, x: float, y: float, size: float) -> str:
    """Return the view of an upload for a moved crop."""
    try:
        crop = Crop(x, y, size)
        return "" if upload is None else reduce_upload(path_of(upload), lambda image: preview_html(image, crop))
    except SuperresError as error:
        return drawing.message(str(error))


def upscale_for_page(
    decoder: Decoder, upload: Uploaded | None, x: float, y: float, size: float, race: bool, samples: float,
    *settings: Value,
) -> Iterator[tuple[str, str]]:
    """Decode and yield what the page shows: the live view, and at the end the results."""
    options = options_of(decoder.upscaler.default, settings)
    crop = Crop(x, y, size)
    subject = reduce_upload(path_of(upload), lambda image: take(image, crop))
    if race:
        yield from race_for_page(decoder, subject, options)
        return
    count = samples_of(samples)
    for result in decoder.watch("upscale", subject.source[None], options, count):
        finished = results_html(decoder.upscaler, subject, options, result) if result.is_complete else ""
        yield live_html({"": result}), finished


def race_for_page(decoder: Decoder, subject: Subject, options: DecodeConfig) -> Iterator[tuple[str, str]]:
    """Decode greedily and blockwise on the same clock, and yield what the page shows."""
    lanes = {"Greedy": greedy_like(options), "Blockwise": options}
    for shown in decoder.race(subject.source, lanes):
        finished = ""
        if all(result.is_complete for result in shown.values()):
            finished = results_html(decoder.upscaler, subject, options, shown["Blockwise"])
        yield live_html(shown), finished


def endpoint(
    decoder: Decoder, workspace: Workspace, samples: gr.components.Component,
    settings: list[gr.components.Component], queue: dict[str, Any],
) -> None:
    """Offer `/upscale` to programs: files and a report, streamed while the decoding goes on."""

    def upscale(
        image: Uploaded | None, crop_x: float, crop_y: float, crop_size: float, samples: float, *values: Value,
    ) -> Iterator[tuple[list[str], dict[str, Any]]]:
        options = options_of(decoder.upscaler.default, values)
        crop = Crop(crop_x, crop_y, crop_size)
        subject = reduce_upload(path_of(image), lambda photo: take(photo, crop))
        for result in decoder.watch("upscale", subject.source[None], options, samples_of(samples)):
            frame = [(f"face-{row + 1}.png", drawing.unfinished(result, row),
                      record_of(decoder.upscaler, options, row + 1)) for row in range(len(result.images))]
            yield workspace.save_pictures(frame), report_of(subject, result)

    with gr.Row(visible=False):
        image = gr.Image(type="filepath", format="png", label="image")
        crop = [gr.Number(getattr(Crop(), name), label=f"crop {name}, %") for name in ("x", "y", "size")]
        files, report = gr.File(file_count="multiple", label="pictures"), gr.JSON(label="report")
        handler = named(streaming(upscale), *offered(decoder.upscaler.default, FACES))
        gr.Button("upscale").click(handler, [image, *crop, samples, *settings], [files, report],
                                   api_name="upscale", **RAW, **queue)
