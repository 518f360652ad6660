"""The engine of a model on torch: numbers become tensors at its door, and tensors numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import Distance
from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.plain.blockwise import PlainDecoder
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.plain.lookahead.iteration import LookaheadDecoder
from superres.decoding.proposers.proposer import sources_at, with_proposer_state
from superres.errors import ConfigError
from superres.interfaces import NO_DRAFTS, Bool, Float32, Float64, Int64, Network
from superres.sessions import EngineModel, ScoringModel, Sources, TensorDecoder
from superres.system.precision import float32_products
from superres.system.torch_threads import TorchThreads

FEW_COLUMNS = 16
"""Columns of a step (rows times tokens) up to which torch's operations are too small to be divided
among threads."""

OwnerT = TypeVar("OwnerT", bound="PlainEngine | PlainRows")
P = ParamSpec("P")
T = TypeVar("T")


def door(method: Callable[Concatenate[OwnerT, P], T]) -> Callable[Concatenate[OwnerT, P], T]:
    """Let a method compute without gradients, on the threads of its object."""

    @functools.wraps(method)
    def entered(self: OwnerT, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.threads, torch.inference_mode():
            return method(self, *args, **kwargs)

    return entered  # type: ignore[return-value]


def decoding_type(algorithm: Algorithm, block_size: int) -> type[PlainDecoder]:
    """Return the plain decoder of blocks of `block_size`; it also opens their sessions."""
    tree = block_size > 1 and getattr(algorithm.proposer, "proposes_tree", False)
    return LookaheadDecoder if tree else PlainDecoder


class TensorSources:
    """Sources that a model on torch has encoded: `superres.interfaces.Encoded`."""

    def __init__(self, sources: Sources, rows: int, device: torch.device) -> None:
        self.sources, self.rows, self.device = sources, rows, device

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: Int64) -> TensorSources:
        index = torch.from_numpy(rows).to(self.device)
        return TensorSources(sources_at(self.sources, index), len(rows), self.device)


class PlainEngine:
    """A `superres.interfaces.Engine` that decodes with a model on torch."""

    def __init__(self, model: EngineModel) -> None:
        self.model, self.costs = model, model.costs
        self.name, self.adaptive, self.confident = model.engine, model.adaptive, True
        self.vocabulary, self.length = model.vocabulary, model.length
        self.prediction_heads, self.end_token = model.prediction_heads, model.end_token
        self.threads = TorchThreads(1 if model.own_threads else None)
        self._decoding: tuple[Algorithm, ScoringModel] | None = None  # the latest of `_model`

    @property
    def network(self) -> Network:
        return self.model.network

    @property
    def device(self) -> str:
        return self.model.device.type

    @property
    def code(self) -> str:
        return self.model.code

    @property
    def variant(self) -> str:
        return self.model.variant

    @property
    def peers(self) -> Any:  # noqa: ANN401 -- as in the interface
        return self.model.peers

    @peers.setter
    def peers(self, peers: Any) -> None:  # noqa: ANN401
        model: Any = self.model
        model.peers = peers

    @property
    def weight_bytes(self) -> int:
        return self.model.weight_bytes

    def supporting(self, algorithm: Algorithm) -> PlainEngine:
        return self

    def on_torch(self) -> EngineModel:
        return self.model

    def side_by_side(self, decodes: int) -> list[PlainEngine]:
        return [self]

    def row_bytes(self, width: int, by_heads: bool) -> int:
        return self.model.row_bytes(width, by_heads)

    @door
    def encode(self, tokens: Int64, padding: Bool | None, algorithm: Algorithm) -> TensorSources:
        encoded = self._model(algorithm).encode(
            self._tensor(tokens), None if padding is None else self._tensor(padding))
        return TensorSources(encoded, len(tokens), self.model.device)

    @door
    def joined(self, parts: Sequence[TensorSources]) -> TensorSources:
        if len(parts) == 1:
            return parts[0]
        return TensorSources(_joined([part.sources for part in parts]), sum(map(len, parts)),
                             self.model.device)

    @door
    def start(
        self, encoded: TensorSources, keys: Int64, algorithm: Algorithm,
        block_size: int, confident: ConfidentBlockSize | None = None,
    ) -> PlainRows:
        model = self._model(algorithm)
        kind = decoding_type(algorithm, block_size)
        opened = functools.partial(kind.open_session, model, algorithm, block_size=block_size)
        plain = kind(model, algorithm, opened(encoded.sources), self._tensor(keys), block_size,
                     confident)
        return PlainRows(plain, None if algorithm.is_own else model.decoder(plain), opened,
                         sources_at(encoded.sources, self._tensor(np.zeros(1, np.int64))),
                         model.own_threads)

    @door
    def likelihood(self, sources: Int64, targets: Int64) -> tuple[Float64, Float32]:
        bits, variance = self.model.likelihood(self._tensor(sources), self._tensor(targets))
        return bits.numpy(), variance.numpy()

    def _model(self, algorithm: Algorithm) -> ScoringModel:
        """Return the model with the limits and the proposer of an algorithm."""
        latest = self._decoding
        if latest is None or latest[0] is not algorithm:
            limits = algorithm.limits
            model: ScoringModel = self.model
            if limits is not None:
                model = LimitedModel(model, limits)
            latest = self._decoding = algorithm, with_proposer_state(model, algorithm.proposer)
        return latest[1]

    def _tensor(self, numbers: Int64 | Bool) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.model.device)


class PlainRows:
    """The rows of a model on torch, by its fastest decoder that supports their settings: a
    `superres.interfaces.Decoder`.

    `plain` is the algorithm on torch, and `decoder` the same or a decoder that has taken over its
    rows.
    """

    def __init__(
        self, plain: PlainDecoder, faster: TensorDecoder | None, opened: Callable[[Sources], Any],
        first: Sources, own_threads: bool,
    ) -> None:
        """Continue the rows of `plain`.

        `opened` opens an empty session of sources, as that of the rows was opened; `first` are
        sources of one row.
        """
        self.plain, self.decoder = plain, faster or plain
        self.compiled, self._opened, self._first = faster is not None, opened, first
        self.resizable = plain.confident is not None
        alone = own_threads or len(plain.keys) * self.block_size <= FEW_COLUMNS
        self.threads = TorchThreads(1 if alone else None)

    @property
    def block_size(self) -> int:
        return self.plain.state.block_size

    @property
    def width(self) -> int:
        return self.plain.session.width

    @door
    def advance(self, count: int) -> Int64:
        """See `superres.interfaces.Decoder.advance`; on torch, all `count` iterations are done if
        the block size does not change."""
        plain, size, parts, made = self.plain, self.block_size, list[Tensor](), 0
        # A kernel computes no products with torch.
        with nullcontext() if self.compiled else float32_products():
            while made < count and self.block_size == size:
                parts.append(self.decoder.advance(count - made))
                if not parts[-1].shape[0]:
                    break
                made += parts[-1].shape[0]
                if self.compiled:
                    break
        if self.resizable and plain.session.width != self.block_size:
            plain.session.resize(self.block_size)
            plain.state.fit(self.block_size)
        return np.asarray(torch.cat(parts).cpu().numpy())

    def resize(self, block_size: int) -> None:
        self.resizable, self.plain.block_size = True, block_size

    def pending(self) -> Int64:
        return np.asarray(self.plain.state.proposals[:, : self.block_size].cpu().numpy())

    @door
    def offer(self, tokens: Int64) -> None:
        plain = self.plain
        takes = type(plain) is PlainDecoder and not plain.samplers.speculative
        if self.compiled or plain.confident is not None or not takes:
            raise ConfigError(NO_DRAFTS)
        plain.state.block_size = tokens.shape[1]
        plain.state.proposals[:, : tokens.shape[1]] = self._tensor(tokens)

    def accept(self, epsilon: int) -> None:
        self.plain.criterion = Distance(DecodeConfig(accept="distance", epsilon=epsilon))

    @door
    def replace(self, rows: Int64, encoded: TensorSources, keys: Int64) -> None:
        index = self._tensor(rows)
        self.plain.replace(index, self._opened(encoded.sources),
                           torch.arange(len(rows), device=index.device), self._tensor(keys))

    @door
    def keep(self, rows: Int64) -> None:
        index = self._tensor(rows)
        self.decoder.shrink(index, self._opened(sources_at(self._first, torch.zeros_like(index))))

    @door
    def complete(self) -> Bool:
        return np.asarray(self.plain.complete().cpu().numpy())

    def positions(self) -> Int64:
        return np.asarray(self.plain.state.position.cpu().numpy())

    @door
    def results(self, rows: Int64) -> tuple[Int64, Int64]:
        tokens, length = self.plain.results(self._tensor(rows))
        return tokens.cpu().numpy(), length.cpu().numpy()

    @door
    def seek(self, position: int) -> None:
        state, self.plain.end_token = self.plain.state, None
        state.position.fill_(position)
        state.limit.fill_(state.length)

    def _tensor(self, numbers: Int64) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(numbers)).to(self.plain.keys.device)


def _joined(parts: Sequence[Sources]) -> Sources:
    """Return the sources of all parts; those of each place for tuples."""
    first = parts[0]
    if isinstance(first, tuple):
        return tuple(map(_joined, zip(*parts, strict=True)))
    return torch.cat([*parts]) if isinstance(first, Tensor) else type(first).joined(parts)
