"""Decode source tokens with a network, by the decoder of the pipelines, and look into it while it
runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import Stream, feed_of
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.noise import noise_keys
from superres.decoding.trace import RowTrace
from superres.interfaces import ScoringModel


@dataclass(frozen=True)
class Numbered:
    """A row of source tokens, and the key of its sampling noise."""

    row: int
    key: int


@dataclass
class Decoded:
    """Result of a decode: tokens int64 [B, T], 0 past a row's end, and the acceptance trace of each
    row."""

    tokens: Tensor
    traces: list[RowTrace]

    @property
    def lengths(self) -> Tensor:
        """Number of tokens of each row, int64 [B]."""
        return torch.tensor([trace.tokens for trace in self.traces])

    @property
    def model_calls(self) -> int:
        """Model calls of the batch: those of its slowest row."""
        return max(trace.model_calls for trace in self.traces)


def iterations(
    model: ScoringModel, source: Tensor, options: DecodeConfig, *, padding: Tensor | None = None,
    keys: Iterable[int] | Tensor | None = None, adaptive: Any = None, **more: Any,  # noqa: ANN401 -- as the algorithm's
) -> Iterator[BlockwiseLoop]:
    """Decode sources [B, S] as one batch, and yield the loop between its iterations, last when it
    is complete.

    `padding` is bool [B, S], `keys` are those of the sampling noise, and `adaptive` chooses the
    block size; further arguments are those of `Algorithm`.
    """
    def sources(items: Sequence[Numbered]) -> tuple[Tensor, Tensor | None]:
        rows = [item.row for item in items]
        return source[rows], None if padding is None else padding[rows]

    items = map(Numbered, range(len(source)), noise_keys(keys, len(source), source.device).tolist())
    algorithm = Algorithm(model, options, adaptive=lambda *_: adaptive, **more)
    stream = Stream(algorithm, feed_of(items), sources, len(source), batch=True)
    for _ in stream.run():
        if stream.loop is not None:
            yield stream.loop


def result_of(loop: BlockwiseLoop) -> Decoded:
    """Return the tokens and traces of a loop so far."""
    rows = torch.arange(len(loop.plain.keys), device=loop.plain.keys.device)
    return Decoded(loop.plain.results(rows)[0], loop.recorder.rows())


@torch.inference_mode()
def decode(model: ScoringModel, source: Tensor, options: DecodeConfig, **more: Any) -> Decoded:  # noqa: ANN401
    """Decode sources [B, S] as one batch; further arguments are those of `iterations`."""
    *_, loop = iterations(model, source, options, **more)
    return result_of(loop)
