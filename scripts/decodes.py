"""Decode source tokens with a network, by the decoder of the pipelines, and look into it while it
runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import Source, Stream, feed_of
from superres.decoding.loop import Loop
from superres.decoding.noise import noise_keys
from superres.decoding.plain.engine import PlainEngine
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.trace import RowTrace
from superres.interfaces import Bool, Engine, Int64
from superres.native.on_torch import ModelOnTorch
from superres.sessions import ScoringModel


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


def engine_of(model: ScoringModel | Engine) -> Engine:
    """Return the engine of a model on torch; an engine itself."""
    if isinstance(model, ModelOnTorch):
        return model.native
    return model if hasattr(model, "supporting") else PlainEngine(model)  # type: ignore[return-value, arg-type]


def algorithm_of(model: ScoringModel | Engine, options: DecodeConfig,
                 *arguments: Any, **more: Any) -> Algorithm:  # noqa: ANN401 -- as the algorithm's
    """Return the algorithm of a model or of its engine; a limited model has its limits."""
    if isinstance(model, LimitedModel):
        return algorithm_of(model.model, options, *arguments, limits=model.limits.limits, **more)
    return Algorithm(engine_of(model), options, *arguments, **more)


def numbers(tensor: Any) -> Any:  # noqa: ANN401 -- a tensor, an array or None
    """Return a tensor as an array."""
    return tensor.numpy() if isinstance(tensor, Tensor) else tensor


def iterations(
    model: ScoringModel | Engine, source: Tensor | Int64, options: DecodeConfig, *,
    padding: Tensor | Bool | None = None, keys: Iterable[int] | Tensor | None = None,
    adaptive: Any = None, **more: Any,  # noqa: ANN401 -- as the algorithm's
) -> Iterator[Loop]:
    """Decode sources [B, S] as one batch, and yield the loop between its iterations, last when it
    is complete.

    `padding` is bool [B, S], `keys` are those of the sampling noise, and `adaptive` chooses the
    block size; further arguments are those of `Algorithm`.
    """
    tokens, hidden = numbers(source), numbers(padding)

    def sources(items: Sequence[Numbered]) -> Source:
        rows = np.array([item.row for item in items])
        return tokens[rows], None if hidden is None else hidden[rows]

    items = map(Numbered, range(len(tokens)), noise_keys(keys, len(tokens)).tolist())
    algorithm = algorithm_of(model, options, adaptive=lambda *_: adaptive, **more)
    stream = Stream(algorithm, feed_of(items), sources, len(tokens), batch=True)
    for _ in stream.run():
        if stream.loop is not None:
            yield stream.loop


def result_of(loop: Loop) -> Decoded:
    """Return the tokens and traces of a loop so far."""
    rows = np.arange(len(loop.decoder.positions()))
    return Decoded(torch.from_numpy(loop.decoder.results(rows)[0]), loop.recorder.rows())


def decode(model: ScoringModel | Engine, source: Tensor | Int64, options: DecodeConfig,
           **more: Any) -> Decoded:  # noqa: ANN401 -- as those of `iterations`
    """Decode sources [B, S] as one batch; further arguments are those of `iterations`."""
    *_, loop = iterations(model, source, options, **more)
    return result_of(loop)
