"""Drawn faces as the scripts of the pages take them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from superres.config import DecodeConfig
from superres.pictures.read import Pixels
from superres.pipeline.resolved_options import FINISHES
from superres.pipeline.upscaled import Upscaled
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest
from superres.web import drawing
from superres.web.content import OTHERS, TEMPERATURE, text_of

PEOPLE = range(1, OTHERS + 1)
"""The numbers of the samples that the page shows."""


def first_view(upscaler: Upscaler, options: DecodeConfig, likeliest: Upscaled,
               others: Upscaled) -> dict[str, Any]:
    """Return the pixels and faces with which the page begins: the likeliest face of an input and
    the samples `PEOPLE`, drawn with greedy `options` and with those of `sampled`."""
    drawn = (options, likeliest, [1]), (sampled(options), others, PEOPLE)
    return {"x": text_of(cast(Pixels, likeliest.sources)[0]),
            "faces": [face for settings, result, numbers in drawn for face in
                      faces_of(upscaler, settings, result, numbers,
                               uri=drawing.webp_uri)["faces"]]}


def faces_of(
    upscaler: Upscaler, options: DecodeConfig, result: Upscaled, numbers: Sequence[int],
    finish: str = FINISHES[0], uri: Callable[..., str] = drawing.data_uri,
) -> dict[str, Any]:
    """Return pictures, the samples `numbers`, for the page's script, with their digests, steps and
    tokens; `uri` encodes them."""
    upscaler, faces = upscaler.from_size(cast(Pixels, result.sources).shape[1]), []
    for row, (number, image) in enumerate(zip(numbers, result.images, strict=True)):
        counts = drawing.counts_of(result.all_traces(row))
        record = drawing.record_of(upscaler, options, number, finish)
        faces.append({"uri": uri(image, record), "digest": short_digest(image.tobytes()),
                      "steps": counts["iterations"], "tokens": counts["tokens"]})
    return {"faces": faces}


def sampled(options: DecodeConfig) -> DecodeConfig:
    """Return settings that sample: these, or if they are greedy, at `TEMPERATURE`."""
    return options if options.is_sampling else options.changed({"temperature": TEMPERATURE})
