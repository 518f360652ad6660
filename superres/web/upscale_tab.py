"""The tab Upscale, which shows the decoding of a picture block by block, and its endpoint `/upscale`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from superres.config import FACES, DecodeConfig
from superres.errors import SuperresError
from superres.pipeline.options import resolve_options
from superres.tasks.pictures import Pixels
from superres.web import controls, drawing
from superres.web.decoding import Decoder, is_complete
from superres.web.files import Workspace
from superres.web.photos import MAX_PIXELS, Crop, Subject, default_crop, is_photo, reduce_upload, take
from superres.web.uploads import MAX_FILE_BYTES
from superres.web.views import live_html, preview_html, record_of, report_of, results_html

INTRODUCTION = f"""An 8x8 face becomes a 32x32 face, several tokens per step. **The detail is invented**: a plausible
face, not a likeness, so never use it to identify anyone. The model was trained on CelebA's faces, mostly light-skinned,
young and frontal; results for other faces are worse. A photo may have {MAX_FILE_BYTES // 10**6} MB and
{MAX_PIXELS // 10**6} megapixels."""
HINT = ('<p class="sr-hint">Choose an example or your own photo. <b>Upscale</b> makes the likeliest face, and <b>Draw '
        "samples</b> a sheet of faces that the input fits as well. They appear here, block by block.</p>")
SHEET_TEMPERATURE = 0.7
"""Temperature of a sheet if the settings are greedy: at 0.9 and above, faces of the bundled checkpoint are torn."""


def upscale_tab(decoder: Decoder, workspace: Workspace, examples: Sequence[Path], queue: dict[str, Any]) -> None:
    """Lay out the tab.

    Args:
        decoder: decodes for the tab.
        workspace: folder for the files that programs get.
        examples: example pictures inside the workspace; the first one is chosen initially.
        queue: options of events that decode.
    """
    heads = decoder.upscaler.model_config.prediction_heads
    gr.Markdown(INTRODUCTION, elem_classes="sr-introduction")
    with gr.Row(elem_classes="sr-columns"):
        with gr.Column(scale=2, min_width=300):
            upload = gr.Image(str(examples[0]), label="Face: a photo, or an 8x8 picture", type="filepath", format="png",
                              sources=["upload", "webcam", "clipboard"], height=220, buttons=[], elem_id="photo")
            buttons = example_buttons(examples)
            crop_group, crop, preview = crop_controls(examples[0])
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
    upload.change(offer_crop, upload, [crop_group, preview, *crop], **controls.INSTANT, **controls.RAW)
    for slider in crop:
        slider.input(show_crop, [upload, *crop], preview, trigger_mode="always_last", **controls.INSTANT,
                     **controls.RAW)
    seed = settings[list(controls.offered(decoder.upscaler.default, FACES)).index("seed")]
    controls.decode_on([run.click], functools.partial(upscale_for_page, decoder), [upload, *crop, race, *settings],
                       results, [results], stop, queue)
    controls.decode_on([draw.click, other.click(next_seed, seed, seed, **controls.INSTANT).then],
                       functools.partial(sheet_for_page, decoder), [upload, *crop, samples, *settings],
                       results, [results], stop, queue)
    controls.note_changes(results, [upload, *crop, race, samples, *settings])
    endpoint(decoder, workspace, settings, queue)


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
    decoder: Decoder, upload: controls.Uploaded | None, x: float, y: float, size: float, race: bool,
    *settings: controls.Value,
) -> Iterator[str]:
    """Upscale, and yield the HTML of the page: the live view, and at the end the results."""
    options = resolve_options(controls.options_of(decoder.upscaler.default, settings), decoder.upscaler)
    variants = {"Greedy": options.sequential(), "Blockwise": options} if race else {"": options}
    yield from views_of(decoder, "race" if race else "upscale", subject_of(upload, x, y, size), variants)


def sheet_for_page(
    decoder: Decoder, upload: controls.Uploaded | None, x: float, y: float, size: float, samples: float,
    *settings: controls.Value,
) -> Iterator[str]:
    """Draw samples, and yield the HTML of the page: the live view, and at the end the sheet."""
    options = controls.options_of(decoder.upscaler.default, settings)
    if not options.is_sampling:
        options = options.changed({"temperature": SHEET_TEMPERATURE})
    variants = {"": resolve_options(options, decoder.upscaler)}
    yield from views_of(decoder, "samples", subject_of(upload, x, y, size), variants, controls.samples_of(samples))


def views_of(
    decoder: Decoder, purpose: str, subject: Subject, variants: dict[str, DecodeConfig], count: int = 1,
) -> Iterator[str]:
    """Decode `count` pictures with each variant, and yield their live view, and at the end the results."""
    options = list(variants.values())[-1]
    for frames in decoder.upscale(purpose, subject.source[None], variants, count):
        yield results_html(decoder.upscaler, subject, options, frames) if is_complete(frames) else live_html(frames)


def next_seed(seed: controls.Value) -> int:
    """Return the seed of other samples."""
    return (controls.whole_number("seed", seed) + 1) % 2**63


def subject_of(upload: controls.Uploaded | None, x: float, y: float, size: float) -> Subject:
    """Return the input of a decoding for an upload and its crop."""
    crop = Crop(x, y, size)
    return reduce_upload(controls.path_of(upload), lambda image: take(image, crop))


def endpoint(
    decoder: Decoder, workspace: Workspace, settings: list[gr.components.Component], queue: dict[str, Any],
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
        samples = gr.Number(1, label="samples")
        files, report = gr.File(file_count="multiple", label="pictures"), gr.JSON(label="report")
        handler = controls.named(upscale, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale").click(handler, [image, *crop, samples, *settings], [files, report],
                                   api_name="upscale", **queue)
