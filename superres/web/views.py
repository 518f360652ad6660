"""Views of the tab Upscale: the running decoding and its results; and the report for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from superres.config import DecodeConfig
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.evaluation.pictures import psnr, ssim
from superres.pipeline.translator import Translated
from superres.pipeline.upscaler import Upscaled, Upscaler
from superres.tasks.faces import enlarge, image_key
from superres.tasks.pictures import Pixels
from superres.web import drawing
from superres.web.decoding import is_complete
from superres.web.photos import Subject
from superres.web.stepping import faces_stepper


def live_html(frames: dict[str, Upscaled]) -> str:
    """Return the partly decoded pictures of all variants."""
    parts = []
    for name, result in frames.items():
        for row, trace in enumerate(result.traces):
            overlay = "" if result.is_complete else drawing.block_overlay(trace)
            number = f" {row + 1}" if len(result.traces) > 1 else ""
            caption = f"{name or 'Decoding'}{number}: {math.floor(100 * result.filled[row].mean())} %"
            below = drawing.statistics(statistics_of(trace, result.seconds))
            parts.append(drawing.figure(drawing.unfinished(result, row), caption, caption, overlay, below))
    note = f'<p class="sr-hint">{race_note(frames)}</p>' if len(frames) > 1 else ""
    return drawing.figures(parts, "Live decoding") + note


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


def caption_of(name: str, image: Pixels, truth: Pixels | None) -> str:
    """Return a picture's name, with its scores if there is a ground truth."""
    found = scores(image, truth)
    if not found:
        return name
    decibels = "identical" if found["psnr"] is None else f"{found['psnr']:.1f} dB"
    return f"{name}: {decibels}, SSIM {found['ssim']:.3f}"


def results_html(upscaler: Upscaler, subject: Subject, options: DecodeConfig, result: Upscaled) -> str:
    """Return the results: the steps, pictures side by side, before/after slider, heat map and histogram."""
    plain = [(name, enlarge(subject.source[None], method)[0])
             for name, method in (("Input, 8x8", "nearest"), ("Bicubic", "bicubic"))]
    truth = [] if subject.truth is None else [("Truth", subject.truth)]
    parts = [drawing.figure(image, caption_of(name, image, subject.truth), name) for name, image in plain]
    for row, image in enumerate(result.images, 1):
        name = "superres" if len(result.images) == 1 else f"superres, sample {row}"
        link = drawing.download(image, f"face-{row}.png", record_of(upscaler, options, row))
        parts.append(drawing.figure(image, caption_of(name, image, subject.truth), name, below=link))
    parts += [drawing.figure(image, name, name) for name, image in truth]
    return (f'<p class="sr-hint" role="status">Decoded in {result.seconds:.2f} seconds.</p>{faces_stepper(result)}'
            f'<h3>Side by side</h3>{drawing.figures(parts, "Results")}'
            f'<h3>Before and after</h3>{drawing.comparison([*plain, *truth], result.images[0])}'
            f'<h3>Where blocks were accepted</h3>{blocks_html(upscaler, options, result)}')


def blocks_html(upscaler: Upscaler, options: DecodeConfig, result: Upscaled) -> str:
    """Return the heat map of the first picture, and the histogram over all pictures."""
    block_size = options.block_size or upscaler.model_config.prediction_heads
    heat = drawing.figure(
        drawing.heat_map(result.images[0], result.traces[0], block_size), "Accepted block size of each pixel",
        "Heat map of the accepted block sizes over the face", below=drawing.legend(block_size))
    sizes = [size for trace in result.traces for size in trace.accepted]
    mean = mean_accepted_block_size(result.traces)
    return drawing.figures([heat, drawing.histogram(sizes, block_size, mean)], "Accepted block sizes")


def report_of(subject: Subject, result: Upscaled) -> dict[str, Any]:
    """Return the report of a frame for programs, with one entry per sample."""
    samples = [{"sample": row, "key": image_key(subject.source, row), "tokens": trace.tokens,
                "iterations": trace.iterations, "model_calls": trace.model_calls,
                "mean_accepted_block_size": trace.mean_accepted_block_size,
                **(scores(image, subject.truth) if result.is_complete else {})}
               for row, (image, trace) in enumerate(zip(result.images, result.traces, strict=True), 1)]
    return {"complete": result.is_complete, "seconds": result.seconds, "samples": samples}
