"""Decode a data set in batches: in one way, or in several that take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from superres.config import BeamConfig, DecodeConfig
from superres.pictures.read import Pixels
from superres.system.progress import track
from superres.tasks.faces import image_key

if TYPE_CHECKING:
    from superres.pipeline.upscaled import Upscaled
    from superres.pipeline.upscaler import Upscaler

Way = DecodeConfig | BeamConfig
"""A way to decode. A variant is compiled code, and a method is whatever makes pictures."""
B = TypeVar("B")
W = TypeVar("W")
R = TypeVar("R")


def in_turns(batches: Sequence[B], ways: Mapping[str, W], decode: Callable[[B, W], R],
             title: str) -> dict[str, list[R]]:
    """Decode every batch in each way in turn, so that other load slows all ways alike.

    Before, each way decodes the first batch, whose result is dropped: it warms up (compilation,
    caches).
    """
    for batch in batches[:1]:
        for way in ways.values():
            decode(batch, way)
    results: dict[str, list[R]] = {name: [] for name in ways}
    for batch in track(batches, title, "batches"):
        for name, way in ways.items():
            results[name].append(decode(batch, way))
    return results


def draw_samples(
    sources: Pixels, upscaler: Upscaler, decode: DecodeConfig, numbers: Sequence[int],
    batch_size: int, title: str = "drawing samples",
) -> list[Upscaled]:
    """Draw samples of each input, uint8 [N,h,w,3], in batches; the samples of an input are
    neighbours.

    `numbers` are the numbers of the samples, from 1, which key their noise.
    """
    keys = [image_key(source, number) for source in sources for number in numbers]
    repeated = sources.repeat(len(numbers), axis=0)
    starts = track(range(0, len(keys), batch_size), title, "batches")
    return [upscaler.decode(repeated[i:i + batch_size], decode, keys=keys[i:i + batch_size])
            for i in starts]
