"""Views of the tab Upscale: the running decoding and its results; and the report for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from html import escape
from typing import Any

from superres.config import FACES, DecodeConfig
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.evaluation.pictures import psnr, ssim
from superres.pipeline.options import as_option, unused_settings
from superres.pipeline.translator import Translated
from superres.pipeline.upscaler import Upscaled, Upscaler
from superres.tasks.faces import FaceTask, image_key
from superres.tasks.pictures import Pixels
from superres.web import drawing
from superres.web.controls import offered
from superres.web.decoding import is_complete
from superres.web.photos import Subject
from superres.web.stepping import faces_stepper


def frames_html(frames: Mapping[str, Upscaled]) -> str:
    """Return the partly decoded pictures of all variants with statistics: one large, a race of two, or a sheet."""
    count = sum(len(result.images) for result in frames.values())
    size = "large" if count == 1 else "" if len(frames) > 1 else "small"
    parts = []
    for name, result in frames.items():
        for row, trace in enumerate(result.traces):
            overlay = "" if result.is_complete else drawing.block_overlay(trace, result.images.shape[2])
            number = f" {row + 1}" if len(result.traces) > 1 else ""
            caption = f"{name or 'Decoding'}{number}: {math.floor(100 * result.filled[row].mean())} %"
            below = "" if number else drawing.statistics(statistics_of(trace, result.seconds))
            parts.append(drawing.figure(drawing.unfinished(result, row), caption, caption, overlay, below, size))
    note = f'<p class="sr-hint">{race_note(frames)}</p>' if len(frames) > 1 else ""
    return note + drawing.figures(parts, "Live decoding")


def race_note(frames: Mapping[str, Upscaled] | Mapping[str, Translated]) -> str:
    """Return an explanation of a race between two variants, and its result once both are complete."""
    note = "The two take turns on the same processor; each clock runs only while its own side decodes."
    if not is_complete(frames):
        return note
    fast, slow = sorted(frames, key=lambda name: frames[name].seconds)
    ratio = frames[slow].seconds / max(frames[fast].seconds, 1e-9)
    return f"{note} <b>{f'{fast} was {ratio:.1f} times as fast' if ratio >= 1.05 else 'Both took the same time'}.</b>"


def statistics_of(trace: RowTrace, seconds: float) -> list[tuple[str, str]]:
    """Return the statistics of a decoding as names and values."""
    return [("iterations", f"{trace.iterations:,}"), ("model calls", f"{trace.model_calls:,}"),
            ("tokens per step", f"{trace.mean_accepted_block_size:.2f}"), ("seconds", f"{seconds:.2f}")]


def record_of(upscaler: Upscaler, options: DecodeConfig, sample: int) -> dict[str, Any]:
    """Return a picture's metadata on how it was made, as `superres upscale` writes it."""
    return {"checkpoint": f"{upscaler.name}@{upscaler.revision}", "config": options.to_dict(), "sample": sample,
            "note": "invented detail, not a likeness; never use it to identify anyone"}


def scores(image: Pixels, truth: Pixels | None) -> dict[str, float | None]:
    """Return PSNR in dB (None for an identical picture) and SSIM; nothing without a ground truth."""
    if truth is None:
        return {}
    decibels = float(psnr(image[None], truth[None])[0])
    return {"psnr": decibels if math.isfinite(decibels) else None, "ssim": float(ssim(image[None], truth[None])[0])}


def score_text(image: Pixels, truth: Pixels | None) -> str:
    """Return a picture's scores as text; "" without a ground truth."""
    found = scores(image, truth)
    if not found:
        return ""
    decibels = "identical" if found["psnr"] is None else f"{found['psnr']:.1f} dB"
    return f"{decibels}, SSIM {found['ssim']:.3f}"


def caption_of(name: str, image: Pixels, truth: Pixels | None) -> str:
    """Return a picture's name, with its scores if there is a ground truth."""
    return ": ".join(filter(None, (name, score_text(image, truth))))


def results_html(upscaler: Upscaler, subject: Subject, options: DecodeConfig, frames: Mapping[str, Upscaled]) -> str:
    """Return the results of the last variant, whose settings are `options`: the picture, and its details folded."""
    result = list(frames.values())[-1]
    race = frames_html(frames) if len(frames) > 1 else ""
    return (f"{race}{viewer_html(upscaler, subject, options, result)}"
            f'<p class="sr-hint" role="status">{summary_of(result)}</p>'
            f"{drawing.fold('Step through it', faces_stepper(result))}"
            f"{drawing.fold('Side by side, with scores', pictures_html(upscaler.face_task, subject, result))}"
            f"{drawing.fold('Where blocks were accepted', blocks_html(upscaler, options, result))}"
            f"{drawing.fold('The same on the command line', command_html(upscaler, subject, options, result))}")


def summary_of(result: Upscaled) -> str:
    """Return what a decoding took, as a sentence."""
    count, iterations = len(result.traces), sum(trace.iterations for trace in result.traces)
    mean = mean_accepted_block_size(result.traces)
    faces, each = ("One face", "") if count == 1 else (f"{count} faces", " for each")
    return (f"{faces} in {result.seconds:.2f} seconds: {iterations / count:,.0f} iterations{each} instead of "
            f"{result.traces[0].tokens:,}, {mean:.2f} tokens per step.")


def viewer_html(upscaler: Upscaler, subject: Subject, options: DecodeConfig, result: Upscaled) -> str:
    """Return the element that shows a picture large, beside others, and the sheet of several samples."""
    faces, count = [], len(result.images)
    for row, image in enumerate(result.images, 1):
        kept = f"sample {row} of seed {options.seed}" if options.is_sampling else f"seed {options.seed}"
        faces.append({"name": name_of(row, count), "note": score_text(image, subject.truth), "kept": kept,
                      "file": f"face-{row}.png", "uri": drawing.data_uri(image, record_of(upscaler, options, row))})
    before = [{"name": name, "uri": drawing.data_uri(image)} for name, image in others(upscaler.face_task, subject)]
    mean = drawing.mean_picture(result.images)
    if count > 1:
        before.append({"name": f"Mean of {count}", "uri": drawing.data_uri(mean)})
    data = json.dumps({"before": before, "faces": faces}, separators=(",", ":"))
    viewer = f'<superres-viewer data-view="{escape(data)}"></superres-viewer>'
    return viewer if count == 1 else viewer + sheet_html(subject, result.images, mean)


def sheet_html(subject: Subject, images: Pixels, mean: Pixels) -> str:
    """Return the mean of several samples, and a map of how much they differ."""
    spread, highest = drawing.difference_map(images)
    legend = drawing.legend("0", f"{highest:.0f} grey levels")
    return drawing.figures([
        drawing.figure(mean, caption_of(f"Mean of {len(images)}", mean, subject.truth), "Mean of the samples"),
        drawing.figure(spread, "How much they differ (standard deviation)", "Map of the differences", below=legend),
    ], "Mean and differences")


def name_of(row: int, count: int) -> str:
    """Return the name of picture `row` (from 1) of `count`."""
    return "superres" if count == 1 else f"Sample {row}"


def others(task: FaceTask, subject: Subject) -> list[tuple[str, Pixels]]:
    """Return the pictures to compare a result with, by name."""
    plain = [(name, task.enlarge(subject.source[None], method)[0])
             for name, method in ((f"Input, {task.source_size}", "nearest"), ("Bicubic", "bicubic"))]
    return plain if subject.truth is None else [*plain, ("Truth", subject.truth)]


def pictures_html(task: FaceTask, subject: Subject, result: Upscaled) -> str:
    """Return all pictures side by side, with their scores if there is a ground truth."""
    pictures = others(task, subject)
    faces = [(name_of(row, len(result.images)), image) for row, image in enumerate(result.images, 1)]
    parts = [drawing.figure(image, caption_of(name, image, None if name == "Truth" else subject.truth), name)
             for name, image in [*pictures[:2], *faces, *pictures[2:]]]
    return drawing.figures(parts, "Side by side")


def blocks_html(upscaler: Upscaler, options: DecodeConfig, result: Upscaled) -> str:
    """Return the heat map of the first picture, and the histogram over all pictures."""
    block_size = options.block_size or upscaler.model_config.prediction_heads
    heat = drawing.figure(
        drawing.heat_map(result.images[0], result.traces[0], block_size), "Accepted block size of each pixel",
        "Heat map of the accepted block sizes over the face",
        below=drawing.legend("1", str(block_size)) if block_size > 1 else "")
    sizes = [size for trace in result.traces for size in trace.accepted]
    mean = mean_accepted_block_size(result.traces)
    return drawing.figures([heat, drawing.histogram(sizes, block_size, mean)], "Accepted block sizes")


def command_html(upscaler: Upscaler, subject: Subject, options: DecodeConfig, result: Upscaled) -> str:
    """Return the command that gives the same pictures."""
    default, unused = upscaler.default, list(unused_settings(options, upscaler.block_size(options)))
    if options.block_size == upscaler.block_size(default):
        unused.append("block_size")
    parts = ["superres upscale face.png --output faces"]
    if subject.crop is not None:
        parts.append(f"--crop {subject.crop.left},{subject.crop.top},{subject.crop.size}")
    if len(result.images) > 1:
        parts.append(f"--samples {len(result.images)}")
    for name in offered(default, FACES):
        value = getattr(options, name)
        if value != getattr(default, name) and name not in unused:
            parts.append(as_option(name, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)))
    return f'<pre class="sr-trace" tabindex="0">{escape(" ".join(parts))}</pre>'


def report_of(subject: Subject, result: Upscaled) -> dict[str, Any]:
    """Return the report of a frame for programs, with one entry per sample."""
    samples = [{"sample": row, "key": image_key(subject.source, row), "tokens": trace.tokens,
                "iterations": trace.iterations, "model_calls": trace.model_calls,
                "mean_accepted_block_size": trace.mean_accepted_block_size,
                **(scores(image, subject.truth) if result.is_complete else {})}
               for row, (image, trace) in enumerate(zip(result.images, result.traces, strict=True), 1)]
    return {"complete": result.is_complete, "seconds": result.seconds, "samples": samples}
