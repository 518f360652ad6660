"""Judging finished pictures by p1, and choosing the likeliest one of several samples of each
input."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from superres.config import ModelConfig, Reliability
from superres.decoding.batching import Feed, Result
from superres.nn.likelihood import bits_and_variance
from superres.nn.model import EncoderDecoder
from superres.pictures.read import Pixels
from superres.pipeline.cascade import Drawing, PictureStream
from superres.pipeline.gathering import GatheringStream
from superres.tasks.faces import FaceTask, encode, image_key


class Stages(Protocol):
    """The networks that draw pictures, one after another: a
    `superres.pipeline.upscaler.Upscaler`."""

    model: EncoderDecoder
    model_config: ModelConfig
    reliability: Reliability | None

    @property
    def first(self) -> Stages | None:
        """The stages before this one."""

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
    bits, variance, tokens = (np.zeros(len(pictures[0])), torch.zeros(()),
                              upscaler.model_config.target_length)
    for model, pair in coded_stages(upscaler, pictures):
        own, spread = bits_and_variance(model, *pair)
        bits += own.numpy() * (pair[1].shape[1] / tokens)
        # [N, 1, h, w]
        pixels = spread.view(len(spread), *model.config.target_shape).mean(-1).unsqueeze(1)
        variance = variance + F.interpolate(pixels, scale_factor=len(pictures[-1][0])
                                            // pixels.shape[-1])
    around = F.avg_pool2d(variance, 3, 1, 1, count_include_pad=False)
    return Judged(bits, around.squeeze(1).sqrt().numpy())


def coded_stages(
    upscaler: Stages, pictures: Sequence[Pixels],
) -> Iterator[tuple[EncoderDecoder, tuple[Tensor, Tensor]]]:
    """Yield the network of each stage, the last one first, with the tokens of its input and of its
    output.

    `pictures` are those of all stages, as for `judge`.
    """
    tokens, stage = [torch.from_numpy(encode(images)) for images in pictures], upscaler
    for pair in list(itertools.pairwise(tokens))[::-1]:
        yield stage.model, pair
        stage = stage.first or stage


def pictures_of(upscaler: Stages, results: Sequence[Result[Any]]) -> list[Pixels]:
    """Return the pictures of all stages, as for `judge`, of results that the same stages drew."""
    pictures, stage, sources = list[Pixels](), upscaler, [one.item.source for one in results]
    while True:
        pictures.insert(
            0, stage.network_task.decode(torch.stack([one.tokens for one in results]).numpy())
        )
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
