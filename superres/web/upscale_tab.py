"""The tab Upscale, which shows the decoding of a picture block by block, and its endpoint `/upscale`."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from superres.batch.image_files import encode_png
from superres.config import DEFAULT_CHECKPOINT, FACES, DecodeConfig
from superres.decoding.trace import mean_accepted_block_size
from superres.evaluation.pictures import psnr, ssim
from superres.pipeline.options import as_option, resolve_options, unused_settings
from superres.pipeline.upscaler import Upscaled, Upscaler
from superres.tasks.faces import FaceTask, image_key
from superres.tasks.photos import Crop
from superres.tasks.pictures import Picture, Pixels
from superres.web import controls, drawing, photos
from superres.web.controls import Value
from superres.web.decoding import Decoder, is_complete
from superres.web.files import MAX_FILE_BYTES, new_folder, path_of

INTRODUCTION = f"""A face of {{source}} pixels becomes one of {{target}}, several tokens per step. **The detail is
invented**: a plausible face, not a likeness, so never use it to identify anyone. The model was trained on CelebA's
faces, mostly light-skinned, young and frontal; results for other faces are worse. A photo may have
{MAX_FILE_BYTES // 10**6} MB and {photos.MAX_PIXELS // 10**6} megapixels."""
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
            square = photos.crop_controls(upload, examples[0], task)
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
    next_seed = other.click(lambda value: (controls.whole_number("seed", value) + 1) % 2**63, seed, seed,
                            **controls.INSTANT)
    controls.decode_on([draw.click, next_seed.then],
                       functools.partial(sheet_for_page, decoder), [upload, square, samples, *settings],
                       results, [results], stop)
    controls.note_changes(results, [upload, square, race, samples, *settings])
    endpoint(decoder, settings)


def upscale_for_page(decoder: Decoder, upload: Value, square: Value, race: bool, *settings: Value) -> Iterator[str]:
    """Upscale, and yield the HTML of the page: the live view, and at the end the results."""
    options = resolve_options(controls.options_of(decoder.upscaler.default, settings), decoder.upscaler)
    variants = {"Greedy": options.sequential(), "Blockwise": options} if race else {"": options}
    subject = subject_of(decoder, upload, lambda image, task: photos.chosen_crop(image, square, task))
    yield from views_of(decoder, "race" if race else "upscale", subject, variants)


def sheet_for_page(decoder: Decoder, upload: Value, square: Value, samples: float, *settings: Value) -> Iterator[str]:
    """Draw samples, and yield the HTML of the page: the live view, and at the end the sheet."""
    options = controls.options_of(decoder.upscaler.default, settings)
    if not options.is_sampling:
        options = options.changed({"temperature": SHEET_TEMPERATURE})
    variants = {"": resolve_options(options, decoder.upscaler)}
    subject = subject_of(decoder, upload, lambda image, task: photos.chosen_crop(image, square, task))
    count = controls.whole_number("samples", samples, 1, controls.MAX_SAMPLES)
    yield from views_of(decoder, "samples", subject, variants, count)


def views_of(
    decoder: Decoder, purpose: str, subject: photos.Subject, variants: dict[str, DecodeConfig], count: int = 1,
) -> Iterator[str]:
    """Decode `count` pictures with each variant, and yield their live view, and at the end the results."""
    options = list(variants.values())[-1]
    for frames in decoder.upscale(purpose, subject.source[None], variants, count):
        shown = results_html(decoder.upscaler, subject, options, frames) if is_complete(frames) else frames_html(frames)
        yield f'<div class="sr-result">{shown}</div>'


def subject_of(decoder: Decoder, upload: Value, choose: Callable[[Pixels, FaceTask], Crop]) -> photos.Subject:
    """Return the input of a decoding for an upload, whose crop `choose` returns."""
    task = decoder.upscaler.face_task
    return photos.reduce_picture(
        path_of(upload), lambda image: photos.take(image, task, choose(image, task)), task.source)


def endpoint(decoder: Decoder, settings: list[gr.components.Component]) -> None:
    """Add the endpoint `/upscale`, which streams pictures and a report to programs."""
    def upscale(
        image: Value, crop_x: float, crop_y: float, crop_size: float, samples: float, *values: Value,
    ) -> Iterator[tuple[list[str], dict[str, Any]]]:
        options = resolve_options(controls.options_of(decoder.upscaler.default, values), decoder.upscaler)
        subject = subject_of(decoder, image, photos.CropShare(crop_x, crop_y, crop_size).of)
        count = controls.whole_number("samples", samples, 1, controls.MAX_SAMPLES)
        for frames in decoder.upscale("upscale", subject.source[None], {"": options}, count):
            result, folder = frames[""], new_folder()
            paths = [folder / f"face-{sample}.png" for sample in range(1, count + 1)]
            for row, path in enumerate(paths):
                record = drawing.record_of(decoder.upscaler, options, row + 1)
                path.write_bytes(encode_png(Picture(drawing.unfinished(result, row)), record))
            yield list(map(str, paths)), report_of(subject, result)

    with gr.Row(visible=False):
        image = gr.Image(type="filepath", format="png", label="image")
        crop = [gr.Number(getattr(photos.CropShare(), name), label=f"crop {name}, %") for name in ("x", "y", "size")]
        samples = gr.Number(1, label="samples")
        files, report = gr.File(file_count="multiple", label="pictures"), gr.JSON(label="report")
        handler = controls.named(upscale, *controls.offered(decoder.upscaler.default, FACES))
        gr.Button("upscale").click(handler, [image, *crop, samples, *settings], [files, report],
                                   api_name="upscale", **controls.QUEUED)


def report_of(subject: photos.Subject, result: Upscaled) -> dict[str, Any]:
    """Return the report of a frame for programs, with one entry per sample."""
    samples = [{"sample": row, "key": image_key(subject.source, row), **drawing.counts_of(result.stage_traces(row - 1)),
                "stages": [drawing.counts_of([trace]) for trace in result.stage_traces(row - 1)],
                **(scores(image, subject.truth) if result.is_complete else {})}
               for row, image in enumerate(result.images, 1)]
    return {"complete": result.is_complete, "seconds": result.seconds, "samples": samples}


def frames_html(frames: Mapping[str, Upscaled]) -> str:
    """Return the partly decoded pictures of all variants with statistics: one large, a race of two, or a sheet."""
    count = sum(len(result.images) for result in frames.values())
    size = "large" if count == 1 else "" if len(frames) > 1 else "small"
    parts = []
    for name, result in frames.items():
        for row in range(len(result.images)):
            counts = drawing.counts_of(result.stage_traces(row))
            number = f" {row + 1}" if len(result.traces) > 1 else ""
            caption = f"{name or 'Decoding'}{number}: {math.floor(100 * result.share[row])} %"
            below = "" if number else drawing.statistics([
                ("iterations", f"{counts['iterations']:,}"), ("model calls", f"{counts['model_calls']:,}"),
                ("tokens per step", f"{counts['mean_accepted_block_size']:.2f}"), ("seconds", f"{result.seconds:.2f}")])
            parts.append(drawing.figure(drawing.unfinished(result, row), caption, caption,
                                        drawing.block_overlay(result, row), below, size))
    note = f'<p class="sr-hint">{drawing.race_note(frames)}</p>' if len(frames) > 1 else ""
    return note + drawing.figures(parts, "Live decoding")


def results_html(
    upscaler: Upscaler, subject: photos.Subject, options: DecodeConfig, frames: Mapping[str, Upscaled],
) -> str:
    """Return the results of the last variant, whose settings are `options`: the picture, and its details folded."""
    result = list(frames.values())[-1]
    count, traces = len(result.traces), [trace for stage in result.stages for trace in stage.traces]
    tokens, iterations = (sum(getattr(trace, name) for trace in traces) for name in ("tokens", "iterations"))
    names = ["superres"] if count == 1 else [f"Sample {row}" for row in range(1, count + 1)]
    faces, each = ("One face", "") if count == 1 else (f"{count} faces", " for each")
    summary = (f"{faces} in {result.seconds:.2f} seconds: {iterations / count:,.0f} iterations{each} instead of "
               f"{tokens // count:,}, {mean_accepted_block_size(traces):.2f} tokens per step.")
    plain = [(name, upscaler.face_task.enlarge(subject.source[None], method)[0])
             for name, method in ((f"Input, {upscaler.face_task.source_size}", "nearest"), ("Bicubic", "bicubic"))]
    if count == 1:
        plain += [(f"Stage of {len(stage.images[0])} pixels", upscaler.face_task.enlarge(stage.images, "nearest")[0])
                  for stage in result.stages[:-1]]
    truth = [] if subject.truth is None else [("Truth", subject.truth)]
    pictures = drawing.figures([
        drawing.figure(image, caption_of(name, image, None if name == "Truth" else subject.truth), name)
        for name, image in [*plain, *zip(names, result.images, strict=True), *truth]], "Side by side")
    return (f"{frames_html(frames) if len(frames) > 1 else ''}"
            f"{viewer_html(upscaler, subject, options, result, names, [*plain, *truth])}"
            f'<p class="sr-hint" role="status">{summary}</p>'
            f"{drawing.fold('Step through it', ''.join(map(faces_stepper, result.stages)))}"
            f"{drawing.fold('Side by side, with scores', pictures)}"
            f"{drawing.fold('Where blocks were accepted', ''.join(map(blocks_html, result.stages)))}"
            f"{drawing.fold('The same on the command line', command_html(upscaler, subject, options, result))}")


def viewer_html(
    upscaler: Upscaler, subject: photos.Subject, options: DecodeConfig, result: Upscaled, names: Sequence[str],
    others: Sequence[tuple[str, Pixels]],
) -> str:
    """Return the element that shows a picture large, beside `others`; of several samples, also their sheet.

    With the sheet are the mean of the samples, and a map of how much they differ.
    """
    faces, sheet = [], ""
    for row, (name, image) in enumerate(zip(names, result.images, strict=True), 1):
        kept = f"sample {row} of seed {options.seed}" if options.is_sampling else f"seed {options.seed}"
        faces.append({"name": name, "note": caption_of("", image, subject.truth), "kept": kept,
                      "file": f"face-{row}.png",
                      "uri": drawing.data_uri(image, drawing.record_of(upscaler, options, row))})
    before = [{"name": name, "uri": drawing.data_uri(image)} for name, image in others]
    if len(faces) > 1:
        mean, spread, highest = drawing.mean_and_difference(result.images)
        before.append({"name": f"Mean of {len(faces)}", "uri": drawing.data_uri(mean)})
        sheet = drawing.figures([
            drawing.figure(mean, caption_of(f"Mean of {len(faces)}", mean, subject.truth), "Mean of the samples"),
            drawing.figure(spread, "How much they differ (standard deviation)", "Map of the differences",
                           below=drawing.legend("0", f"{highest:.0f} grey levels"))], "Mean and differences")
    data = json.dumps({"before": before, "faces": faces}, separators=(",", ":"))
    return f'<superres-viewer data-view="{escape(data)}"></superres-viewer>{sheet}'


def faces_stepper(result: Upscaled) -> str:
    """Return the element that steps through finished pictures."""
    return drawing.stepper("face", [
        {"name": f"Sample {number}", "seconds": result.seconds,
         "parts": [{"accepted": trace.accepted, "proposed": drawing.proposals(trace)}]}
        for number, trace in enumerate(result.traces, 1)], side=result.images.shape[2])


def scores(image: Pixels, truth: Pixels | None) -> dict[str, float | None]:
    """Return PSNR in dB (None for an identical picture) and SSIM; nothing without a ground truth."""
    if truth is None:
        return {}
    decibels = float(psnr(image[None], truth[None])[0])
    return {"psnr": decibels if math.isfinite(decibels) else None, "ssim": float(ssim(image[None], truth[None])[0])}


def caption_of(name: str, image: Pixels, truth: Pixels | None) -> str:
    """Return a picture's name, if any, with its scores if there is a ground truth."""
    parts = [name] if name else []
    if found := scores(image, truth):
        decibels = "identical" if found["psnr"] is None else f"{found['psnr']:.1f} dB"
        parts.append(f"{decibels}, SSIM {found['ssim']:.3f}")
    return ": ".join(parts)


def blocks_html(result: Upscaled) -> str:
    """Return the heat map of the first picture, and the histogram over all pictures, of one stage."""
    block_size = max(trace.proposed.shape[1] for trace in result.traces)
    if block_size == 1:
        return f'<p class="sr-hint">{result.images.shape[1]} pixels: every step accepted one token.</p>'
    heat = drawing.figure(
        drawing.heat_map(result.images[0], result.traces[0], block_size), "Accepted block size of each pixel",
        "Heat map of the accepted block sizes over the face",
        below=drawing.legend("1", str(block_size)))
    return drawing.figures([heat, drawing.histogram(result.traces, block_size)], "Accepted block sizes")


def command_html(upscaler: Upscaler, subject: photos.Subject, options: DecodeConfig, result: Upscaled) -> str:
    """Return the command that gives the same pictures."""
    default, unused = upscaler.default, list(unused_settings(options, upscaler.block_size(options)))
    if options.block_size == upscaler.block_size(default):
        unused.append("block_size")
    parts = ["superres upscale face.png --output faces"]
    if upscaler.name != DEFAULT_CHECKPOINT:
        parts.append(f"--checkpoint {upscaler.name}")
    if subject.crop is not None:
        parts.append(f"--crop {photos.setting_of(subject.crop)}")
    if len(result.images) > 1:
        parts.append(f"--samples {len(result.images)}")
    for name in controls.offered(default, FACES):
        value = getattr(options, name)
        if value != getattr(default, name) and name not in unused:
            parts.append(as_option(name, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)))
    return f'<pre class="sr-trace" tabindex="0">{escape(" ".join(parts))}</pre>'
