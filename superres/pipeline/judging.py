"""Judging finished pictures by p1, and choosing the likeliest one of several samples of each
input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from superres.config import ModelConfig, Reliability, require_whole
from superres.decoding.batching import Feed, Result
from superres.errors import InvalidInputError
from superres.interfaces import Engine, Float32, Float64, Int64
from superres.pictures.read import Pixels
from superres.pipeline.cascade import Drawing, PictureStream
from superres.pipeline.gathering import GatheringStream
from superres.tasks.faces import FaceTask, encode, image_key


class Stages(Protocol):
    """The networks that draw pictures, one after another: a
    `superres.pipeline.upscaler.Upscaler`."""

    scoring: Engine
    model_config: ModelConfig
    reliability: Reliability | None

    @property
    def first(self) -> Stages | None:
        """The stages before this one."""

    @property
    def face_task(self) -> FaceTask:
        """The sizes of the first stage's input and of the last stage's output."""

    @property
    def network_task(self) -> FaceTask:
        """The sizes of the last network's input and output."""


class Judged(NamedTuple):
    """What p1 says of N pictures.

    Attributes:
        bits_per_dim: bits per token of the last stage, summed over all stages, float64 [N].
        uncertainty: standard deviation of the intensities around each pixel, in grey levels,
            float32 [N, H, W].
    """

    bits_per_dim: np.ndarray
    uncertainty: np.ndarray


def judge(upscaler: Stages, pictures: Sequence[Pixels]) -> Judged:
    """Return what p1 says of pictures, given those of all stages: the input, and what each stage
    drew.

    The network judges in float32, whatever engine drew them.

    `pictures` are uint8 [N, side, side, 3]. The bits are those of -log2 p(first | input) - log2
    p(second | first) and so on, each by p1 itself: at temperature 1, without filters and without
    limits. Given that pictures reduce to their input (`DecodeConfig.consistent`), their
    probabilities have the same ratios as under p1. The limits, which divide the probability of
    every token by that of all allowed tokens, would change the order.

    The uncertainty of a pixel is the root of the variance of p1's distribution of an intensity,
    summed over the stages, and averaged over the colours of the 3x3 pixels around it. It takes one
    model call per picture and stage.
    """
    bits, tokens = np.zeros(len(pictures[0])), upscaler.model_config.target_length
    variance = np.zeros(pictures[-1].shape[:3], np.float32)
    for engine, (source, target) in coded_stages(upscaler, pictures):
        own, spread = engine.likelihood(source, target)
        bits += own * (target.shape[1] / tokens)
        # [N, h, w]
        pixels = spread.reshape(len(spread), *engine.network.config.target_shape).mean(-1)
        factor = len(pictures[-1][0]) // pixels.shape[-1]
        variance += pixels.repeat(factor, 1).repeat(factor, 2)
    return Judged(bits, np.sqrt(_around(variance) / _around(np.ones_like(variance[:1]))))


def _around(values: Float32) -> Float32:
    """Return the sums of the 3x3 values around each of [N, H, W], of fewer at the edges."""
    height, width = values.shape[1:]
    padded, around = np.pad(values, ((0, 0), (1, 1), (1, 1))), np.zeros_like(values)
    for y, x in itertools.product(range(3), repeat=2):
        around += padded[:, y : y + height, x : x + width]
    return around


def bits_of_targets(upscaler: Stages, sources: Pixels, targets: Pixels,
                    batch_size: int) -> Float64:
    """Return the bits per token of the target, its code length under p1, for each target image,
    float64 [N].

    Sources are uint8 [N, source, source, 3], targets [N, target, target, 3]; `batch_size` of them
    are scored together. The code is that of p1 without limits. With limits
    (`DecodeConfig.consistent`), a target that does not reduce to exactly its source has probability
    0, and true pictures seldom do.

    A cascade codes the reduced target first, by its first stages, and then the target given the
    reduced one, by its last stage: -log2 p(reduced | source) - log2 p(target | reduced), over the
    tokens of the target. This code can be decoded, so its length is an upper bound of -log2
    p(target | source). That probability sums over all pictures between the stages: without limits,
    the last stage may draw the target from others than the reduced one, too.
    """
    shapes = upscaler.face_task.source_shape, upscaler.face_task.target_shape
    for images, shape in zip((sources, targets), shapes, strict=True):
        encode(images)  # refuses other types
        if images.shape != (len(sources), *shape):
            raise InvalidInputError(f"images of the shape {list(images.shape)} are not "
                                    f"{[len(sources), *shape]}; give as many inputs as targets, at "
                                    "the checkpoint's sizes")
    require_whole("batch-size", batch_size)
    # the target in the sizes of all stages
    pictures, stage = [targets], upscaler
    while stage.first is not None:
        pictures.insert(0, stage.network_task.both_sizes(pictures[0])[1])
        stage = stage.first
    bits, tokens = np.zeros(len(sources)), upscaler.model_config.target_length
    for engine, pair in coded_stages(upscaler, [sources, *pictures]):
        for first in range(0, len(sources), batch_size):
            rows = slice(first, first + batch_size)
            own, _ = engine.likelihood(*(part[rows] for part in pair))
            bits[rows] += own * (pair[1].shape[1] / tokens)
    return bits


def coded_stages(
    upscaler: Stages, pictures: Sequence[Pixels],
) -> Iterator[tuple[Engine, tuple[Int64, Int64]]]:
    """Yield the engine of each stage, the last one first, with the tokens of its input and of its
    output.

    `pictures` are those of all stages, as for `judge`.
    """
    tokens, stage = list(map(encode, pictures)), upscaler
    for pair in list(itertools.pairwise(tokens))[::-1]:
        yield stage.scoring, pair
        stage = stage.first or stage


def pictures_of(upscaler: Stages, results: Sequence[Result[Any]]) -> list[Pixels]:
    """Return the pictures of all stages, as for `judge`, of results that the same stages drew."""
    pictures, stage, sources = list[Pixels](), upscaler, [one.item.source for one in results]
    while True:
        pictures.insert(0, stage.network_task.decode(np.stack([one.tokens for one in results])))
        results = [one.earlier for one in results if one.earlier is not None]
        if not results or stage.first is None:
            return [np.stack(sources), *pictures]
        stage = stage.first


@dataclass(frozen=True, eq=False)
class JudgedResult(Result[Any]):
    """The picture of an item, of several samples the likeliest one, whose number is `sample`; None
    for a single one.

    `bits_per_dim` is that of `Judged`, and `reliable` the mask of reliable pixels, bool [H, W], if
    it is calibrated. `seconds` are those of all samples of the item, without judging; the trace is
    that of the picture.
    """

    sample: int | None = None
    bits_per_dim: float | None = None
    reliable: np.ndarray | None = None


class JudgingStream(GatheringStream):
    """A `PictureStream` that judges pictures, and yields the likeliest of several samples of each
    item of a feed."""

    def __init__(
        self, upscaler: Stages, feed: Feed[Any], stream: Callable[[Feed[Drawing]], PictureStream],
        count: int,
    ) -> None:
        """Prepare; see `GatheringStream`.

        `upscaler` judges the pictures, `count` per item. A single one has the noise of the item's
        key, several have that of `superres.tasks.faces.image_key`.
        """
        self.upscaler, self.count = upscaler, count
        super().__init__(feed, stream)

    def drawings_of(self, item: Any) -> list[Drawing]:  # noqa: ANN401 -- of the feed
        if self.count == 1:
            return [Drawing(item, item.source, item.key)]
        return [Drawing(item, item.source, image_key(item.source, number), number)
                for number in range(1, self.count + 1)]

    def combined(self, results: Sequence[Result[Drawing]]) -> JudgedResult:
        """Return the likeliest of an item's results, the first sample among equals."""
        judged = judge(self.upscaler, pictures_of(self.upscaler, results))
        place = int(judged.bits_per_dim.argmin())
        best = results[place]
        found, uncertainty = self.upscaler.reliability, judged.uncertainty[place]
        return JudgedResult(
            best.item.item, best.tokens, best.trace, sum(one.seconds for one in results),
            best.earlier, best.item.number if self.count > 1 else None,
            float(judged.bits_per_dim[place]),
            None if found is None else uncertainty <= found.threshold)
