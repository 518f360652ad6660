"""HTML that the tabs share: pictures, plots, statistics, notes, and the element that steps through
a decode.

Pictures are uint8 RGB and become PNGs in data URIs, so the server stores no file for them. The
browser enlarges them by whole factors, without smoothing. Photographs, on which the page only
places a crop, become JPEGs.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.config import DecodeConfig
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.evaluation.picture_scores import psnr, ssim
from superres.pictures.read import Picture, Pixels
from superres.pictures.write import encode_png, encode_webp
from superres.pipeline.resolved_options import FINISHES
from superres.pipeline.translated import Translated
from superres.pipeline.upscaled import Upscaled
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import CHANNELS
from superres.tasks.sheets import veiled

_EMPTY = np.array([[150, 170], [170, 150]], np.uint8)
# Five colours of Matplotlib's viridis: brightness grows evenly, and colour-blind people can
# distinguish the colours.
_VIRIDIS = np.array([(68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37)],
                    np.float64)
JPEG_QUALITY = 85  # of a photograph beside its crop
DRAWN = dict[str, Any]()
"""Record of pictures that a model drew, without settings; None is that of inputs, enlargements and
true pictures."""
CLEAR = 1.25
"""Smallest ratio of the times of two decodes that tells them apart: of one decode, other work may
take that much."""


def record_of(
    upscaler: Upscaler, options: DecodeConfig, sample: int, finish: str = FINISHES[0],
) -> dict[str, Any]:
    """Return a picture's metadata on how it was made, as `superres upscale` writes it."""
    return {**upscaler.record(options, finish), "sample": sample,
            "note": "invented detail, not a likeness; never use it to identify anyone"}


def data_uri(image: Pixels, record: dict[str, Any] | None = DRAWN) -> str:
    """Return a picture as a PNG in a data URI; see `encode_png` for `record`."""
    return "data:image/png;base64," + base64.b64encode(encode_png(Picture(image),
                                                                  record)).decode("ascii")


def webp_uri(image: Pixels, record: dict[str, Any]) -> str:
    """Return a picture as a WebP without loss in a data URI, which is a third smaller than a
    PNG."""
    return "data:image/webp;base64," + base64.b64encode(encode_webp(Picture(image),
                                                                    record)).decode("ascii")


def jpeg_uri(photo: Image.Image, most: int) -> str:
    """Return an RGB photograph as a JPEG in a data URI, reduced to at most `most` pixels a side."""
    small, buffer = photo.copy(), io.BytesIO()
    small.thumbnail((most, most))
    small.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def figure(
    image: Pixels, caption: str, alt: str, record: dict[str, Any] | None = DRAWN, overlay: str = "",
    below: str = "", size: str = "",
) -> str:
    """Return a picture, uint8 [H, W, 3], with its caption; see `encode_png` for `record`.

    `overlay` has SVG shapes in units of its pixels, `below` has HTML, and `size` is "large",
    "small" or "".
    """
    height, width = image.shape[:2]
    shapes = overlay and f'<svg viewBox="0 0 {width} {height}" aria-hidden="true">{overlay}</svg>'
    return (f'<figure class="sr-figure sr-pixels{f" sr-{size}" if size else ""}"><div '
            f'class="sr-frame"><img src="{data_uri(image, record)}" '
            f'alt="{escape(alt)}">{shapes}</div>'
            f"<figcaption>{escape(caption)}{below}</figcaption></figure>")


def figures(parts: Sequence[str], label: str, size: str = "") -> str:
    """Return figures side by side, wrapped to the width of the page; `size` is "compared" for two
    large ones a row."""
    return (f'<div class="sr-figures{f" sr-{size}" if size else ""}" role="group" '
            f'aria-label="{escape(label)}">{"".join(parts)}</div>')


def message(text: str) -> str:
    """Return an error message."""
    return f'<p class="sr-message" role="alert">{escape(text)}</p>'


def fold(summary: str, html: str) -> str:
    """Return details that are folded until their summary is chosen; "" without details."""
    return (html and '<details '
            f'class="sr-fold"><summary>{escape(summary)}</summary><div>{html}</div></details>')


def statistics(values: Sequence[tuple[str, str]]) -> str:
    """Return names and values as a list."""
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name,
                   value in values)
    return f'<dl class="sr-statistics">{rows}</dl>'


def is_complete(frames: Mapping[str, Upscaled] | Mapping[str, Translated]) -> bool:
    """Return whether the frames of all variants are complete."""
    return all(frame.is_complete for frame in frames.values())


def race_note(frames: Mapping[str, Upscaled] | Mapping[str, Translated]) -> str:
    """Return an explanation of a race between two variants, and its result once both are
    complete."""
    note = ("The two take turns on the same processor; each clock runs only while its own side "
            "decodes.")
    if not is_complete(frames):
        return note
    steps = {name: steps_of(result) for name, result in frames.items()}
    few, many = sorted(steps, key=lambda name: steps[name])
    fast, slow = sorted(frames, key=lambda name: frames[name].seconds)
    ratio = frames[slow].seconds / max(frames[fast].seconds, 1e-9)
    if steps[few] == steps[many]:
        return (f"{note} <b>Both took {steps[few]:,} steps, so their times differ by other work on "
                "the machine.</b>")
    timed = f"{fast} was {ratio:.1f} times as fast" if ratio >= CLEAR else \
        "both took about as long, since each of the fewer steps takes longer"
    return f"{note} <b>{few} took {steps[few]:,} steps, {many} {steps[many]:,}; {timed}.</b>"


def steps_of(result: Upscaled | Translated) -> int:
    """Return the steps of a decode: the iterations of all stages or sentences; of beam search, the
    model calls."""
    if isinstance(result, Translated):
        return sum(line.steps for line in result) or result.model_calls
    return sum(trace.iterations for stage in result.stages for trace in stage.traces)


def counts_of(traces: list[RowTrace]) -> dict[str, Any]:
    """Return the numbers of tokens, iterations and model calls of a picture's stages, and tokens
    per iteration."""
    return {"tokens": sum(trace.tokens for trace in traces),
            "iterations": sum(trace.iterations for trace in traces),
            "model_calls": sum(trace.model_calls for trace in traces),
            "mean_accepted_block_size": mean_accepted_block_size(traces)}


def proposals(trace: RowTrace) -> list[list[int]]:
    """Return the tokens that each iteration proposed, without the filling of smaller blocks."""
    return [row[row >= 0].tolist() for row in trace.proposed]


def stepper(kind: str, decodes: Sequence[dict[str, Any]], language: str = "", side: int = 0) -> str:
    """Return the element of `static/stepper.js` for name, seconds and parts of each decode; a part
    is one sequence."""
    data = json.dumps({"kind": kind, "decodes": decodes, "language": language, "side": side},
                      separators=(",", ":"), ensure_ascii=False)
    return ('<superres-stepper role="group" aria-label="Step through the decode" '
            f'data-view="{escape(data)}"></superres-stepper>')


def unfinished(result: Upscaled, row: int) -> Pixels:
    """Return a partly decoded picture, uint8 [H, W, 3].

    Pixels without all their colours are those of the stage before in a cascade, and otherwise have
    a grey pattern.
    """
    done = result.filled[row].all(axis=2, keepdims=True)
    if result.earlier is None:
        below = _EMPTY[tuple(np.indices(done.shape[:2]) % len(_EMPTY))][:, :, None]
    else:
        small = unfinished(result.earlier, row)
        below = small.repeat(len(done) // len(small), axis=0).repeat(len(done) // len(small),
                                                                     axis=1)
    shown: Pixels = np.where(done, result.images[row], below).astype(np.uint8)
    return shown


def block_overlay(result: Upscaled, row: int) -> str:
    """Return the pixels of the last accepted block as an SVG shape in units of the picture's
    pixels."""
    current = next((stage for stage in result.stages if not stage.is_complete), result)
    trace, width = current.traces[row], current.images.shape[2]
    if not trace.accepted or result.is_complete:
        return ""
    first = trace.positions[-1] // CHANNELS
    last = (trace.positions[-1] + trace.accepted[-1] - 1) // CHANNELS
    squares = (f"M{pixel % width} {pixel // width}h1v1h-1z" for pixel in range(first, last + 1))
    return (f'<path class="sr-block" transform="scale({result.images.shape[2] // width})" '
            f'd="{"".join(squares)}"/>')


def colours(values: npt.NDArray[np.float64], lowest: float,
            highest: float) -> npt.NDArray[np.float64]:
    """Return colours [..., 3], from dark violet to yellow, for values [...] from `lowest` to
    `highest`."""
    place = (values - lowest) / max(highest - lowest, 1e-9) * (len(_VIRIDIS) - 1)
    return np.stack([np.interp(place, np.arange(len(_VIRIDIS)), channel) for channel in _VIRIDIS.T],
                    axis=-1)


def legend(lowest: str, highest: str) -> str:
    """Return the colour scale of a map, with the values at its ends."""
    steps = ", ".join(f"rgb({red:.0f} {green:.0f} {blue:.0f})" for red, green, blue in _VIRIDIS)
    ramp = f'<span class="sr-ramp" style="background: linear-gradient(to right, {steps})"></span>'
    return f"<br>{escape(lowest)} {ramp} {escape(highest)}"


def heat_map(image: Pixels, trace: RowTrace, block_size: int) -> Pixels:
    """Return a face, uint8 [H, W, 3], tinted by the accepted block size of each pixel, the mean
    over its colours."""
    sizes = np.repeat(trace.accepted, trace.accepted).reshape(image.shape).mean(axis=2)
    mixed: Pixels = (0.3 * image.mean(axis=2, keepdims=True) + 0.7
                     * colours(sizes, 1, block_size)).astype(np.uint8)
    return mixed


def histogram(traces: Sequence[RowTrace], block_size: int) -> str:
    """Return a bar chart of the pixel values accepted per step, 1 to `block_size`, with their
    mean."""
    accepted = np.concatenate([trace.accepted for trace in traces])
    shares, bars = 100 * np.bincount(accepted, minlength=block_size + 1)[1:] / len(accepted), []
    for index, share in enumerate(shares):
        colour = "rgb({:.0f} {:.0f} {:.0f})".format(*colours(np.float64(index + 1), 1, block_size))
        left, height = 24 * index, 100 * share / max(shares.max(), 1e-9)
        bars.append(f'<rect x="{left + 2}" y="{112 - height:.1f}" width="20" height="{height:.1f}" '
                    f'fill="{colour}"/><text x="{left + 12}" '
                    f'y="{108 - height:.1f}">{share:.0f}</text><text x="{left + 12}" '
                    f'y="126">{index + 1}</text>')
    words = ", ".join(f"{size}: {share:.0f} %" for size, share in enumerate(shares, 1))
    width = 24 * block_size
    return (f'<figure class="sr-figure"><svg class="sr-histogram" width="{width}" viewBox="0 -6 '
            f'{width} 140" role="img" aria-label="Pixel values accepted per step, share of steps. '
            f'{words}">{"".join(bars)}</svg>' "<figcaption>Pixel values accepted per step, and "
            f"their share of the steps, %; mean {accepted.mean():.1f}</figcaption></figure>")


def mean_and_difference(images: Pixels) -> tuple[Pixels, Pixels, float]:
    """Return the mean of pictures, uint8 [N, H, W, 3], a map of how much they differ, and its
    largest value.

    The difference at a pixel is the standard deviation over the pictures in grey levels, as the
    mean over the colours.
    """
    spread = images.std(axis=0).mean(axis=2)
    mean: Pixels = np.floor(images.mean(axis=0) + 0.5).astype(np.uint8)
    return mean, colours(spread, 0, spread.max()).astype(np.uint8), float(spread.max())


def veiled_picture(result: Upscaled, row: int) -> list[tuple[str, Pixels]]:
    """Return a picture with its unreliable pixels veiled, by name; nothing without a
    calibration."""
    return [] if result.reliable is None else [("Unreliable veiled",
                                                veiled(result.images[row], result.reliable[row]))]


def reliability(result: Upscaled, name: str) -> str:
    """Return the first picture, called `name`, with its veil, and its uncertainty; "" without a
    calibration."""
    found = result.reliability
    if found is None:
        return ""
    ((_, face),), uncertainty = veiled_picture(result, 0), result.uncertainty[0].astype(np.float64)
    shown = colours(uncertainty, 0, uncertainty.max()).astype(np.uint8)
    note = (f"Of the pixels without a veil, {100 * found.coverage:.0f} % are within "
            f"{found.tolerance:g} grey levels of the truth, as a mean over faces like those of "
            "CelebA, drawn with the default settings; of one face, fewer may be.")
    return figures([
        figure(face, f"{name}, unreliable pixels veiled", "The face with a veil over its "
               "unreliable pixels"),
        figure(shown, "Uncertainty (standard deviation)", "Map of the uncertainty",
               below=legend("0", f"{uncertainty.max():.0f} grey levels"))],
                   "Reliability") + f'<p class="sr-hint">{note}</p>'


def numbers_of(result: Upscaled) -> Sequence[int]:
    """Return the number of each picture of a result among the samples of its input, from 1."""
    return result.samples or range(1, len(result.images) + 1)


def scores(image: Pixels, truth: Pixels | None) -> dict[str, float | None]:
    """Return PSNR in dB (None for an identical picture) and SSIM; nothing without a ground
    truth."""
    if truth is None:
        return {}
    decibels = float(psnr(image[None], truth[None])[0])
    return {"psnr": decibels if math.isfinite(decibels) else None,
            "ssim": float(ssim(image[None], truth[None])[0])}


def caption_of(name: str, image: Pixels, truth: Pixels | None) -> str:
    """Return a picture's name, if any, with its scores if there is a ground truth."""
    parts = [name] if name else []
    if found := scores(image, truth):
        decibels = "identical" if found["psnr"] is None else f"{found['psnr']:.1f} dB"
        parts.append(f"{decibels}, SSIM {found['ssim']:.3f}{'' if name else ' against the truth'}")
    return ": ".join(parts)
