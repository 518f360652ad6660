"""Decode a stream of sequences: a row whose sequence is complete takes the next one, so the batch stays full.

Rows advance by different amounts, so a batch that waits for its slowest row leaves the other rows idle. A sequence's
tokens depend neither on the other rows nor on the iteration in which the sequence entered.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.decode import (
    DONE_CHECK_INTERVAL,
    BlockSizeChooser,
    check_interval,
    check_options,
    driven,
    opened_loop,
)
from superres.decoding.loop import BlockwiseLoop, decoding_type
from superres.decoding.noise import noise_keys
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer, with_proposer_state
from superres.decoding.trace import RowTrace
from superres.interfaces import ScoringModel, Session, Sources

GROUP = {"cpu": 1, "cuda": 16}
"""Number of sources encoded together, by kind of device. A smaller group is filled up to that number, because the
rounding of sums may depend on the number of rows."""

LONG = 384
"""On a CPU, rows are checked once per `LONG` tokens of a target's length: compiled iterations of one row in succession
keep that row's cache near the processor, and a complete row waits for hardly more than 1/100 of its decoding time."""


class Item(Protocol):
    """A sequence to decode."""

    @property
    def key(self) -> int:
        """Key of its sampling noise, in [0, 2**63)."""


Source: TypeAlias = tuple[Tensor, Tensor | None]
"""Source tokens [B, S], int64, and their padding: bool [B, S], True at padding, or None without padding."""

ItemT = TypeVar("ItemT", bound=Item)
ItemT_co = TypeVar("ItemT_co", bound=Item, covariant=True)


class Feed(Protocol[ItemT_co]):
    """Provides the sequences to decode."""

    def take(self, most: int, wait: bool) -> Sequence[ItemT_co] | None:
        """Return up to `most` sequences, or None if no sequence will follow.

        Args:
            most: at least 1.
            wait: return at least one sequence and block until there is one; otherwise the result may be empty.
        """
        ...


@dataclass(eq=False)
class ListFeed(Generic[ItemT]):
    """A feed of given sequences."""

    items: Sequence[ItemT]

    def take(self, most: int, wait: bool) -> Sequence[ItemT] | None:
        """See `Feed.take`."""
        taken, self.items = self.items[:most], self.items[most:]
        return taken or None


@dataclass(frozen=True, eq=False)
class Result(Generic[ItemT]):
    """A complete sequence.

    Attributes:
        item: the item from the feed.
        tokens: int64 [T], on the CPU; 0 past the sequence's end.
        trace: its acceptance trace.
        seconds: its share of the decoding time; the time of an iteration is divided among the sequences being decoded.
    """

    item: ItemT
    tokens: Tensor
    trace: RowTrace
    seconds: float


@dataclass(frozen=True, eq=False)
class _Encoded(Generic[ItemT]):
    """A sequence that waits for a row: its source is row `number` of `session`, which has `batch` rows."""

    item: ItemT
    session: Session
    number: int
    batch: int


@dataclass(eq=False)
class _Row(Generic[ItemT]):
    """A sequence being decoded; `since` is the iteration with which it began."""

    item: ItemT
    since: int
    seconds: float = 0.0


class RefilledDecoder(Generic[ItemT]):
    """Decodes the sequences of a feed, at most `rows` at a time.

    Attributes:
        model_calls: number of decoding iterations so far, the first of which reads the start of the sequences.
    """

    def __init__(
        self, model: ScoringModel, feed: Feed[ItemT], sources: Callable[[Sequence[ItemT]], Source],
        options: DecodeConfig, rows: int, *, proposer: Proposer | None = None, group: int | None = None,
        width: int | None = None, adaptive: Callable[[Tensor, Tensor | None], BlockSizeChooser | None] | None = None,
    ) -> None:
        """Prepare; nothing is taken from the feed yet.

        Args:
            model: the model.
            feed: provides the sequences.
            sources: returns the sources of N items; S must be the same for all items of the feed.
            options: block size, proposer, acceptance, sampling.
            rows: sequences decoded together, at most.
            proposer: source of proposals; by `options.proposer` if None.
            group: sources encoded together, at most; None for the constant `GROUP` of the device.
            width: step width, at least the block size; see `superres.decoding.decode.decode`.
            adaptive: returns the adaptive block size for sources and padding, or None for a fixed block size.

        Raises:
            ConfigError: options do not fit the model.
        """
        self.options, self.rows, self.group, self.width = options, rows, group, width
        self.block_size = check_options(options, model.prediction_heads, model.length)
        self.proposer = proposer or PROPOSERS[options.proposer]()
        self.model = with_proposer_state(model, self.proposer)
        self.model_calls = 0
        self._loop: BlockwiseLoop | None = None
        self._feed, self._sources, self._adaptive, self._device = feed, sources, adaptive, torch.device("cpu")
        self._kind = decoding_type(self.proposer, self.block_size)
        self._rows: list[_Row[ItemT] | None] = []
        self._waiting: deque[_Encoded[ItemT]] = deque()
        self._more, self._seconds = True, 0.0  # seconds that belong to no sequence yet
        self._memory: Sources = None  # the latest encoded sources; empty sessions are made from the first of them

    @property
    def under_way(self) -> list[ItemT]:
        """The sequences taken from the feed that are not complete; they are lost if decoding fails."""
        return [row.item for row in self._rows if row is not None] + [one.item for one in self._waiting]

    @property
    def tokens_under_way(self) -> int:
        """Number of tokens decoded of the sequences that are not complete (reads from the device)."""
        position = [] if self._loop is None else self._loop.state.position.tolist()
        return sum(max(tokens, 0) for row, tokens in zip(self._rows, position, strict=False) if row is not None)

    @torch.inference_mode()
    def run(self) -> Iterator[list[Result[ItemT]]]:
        """Decode until the feed ends, and yield the sequences completed since the last time, possibly none.

        Raises:
            InvalidInputError: a key is out of range.
            ScoresError: the model's scores are not finite.
        """
        while self._more and len(self._waiting) < self.rows:
            self._take(self.rows - len(self._waiting), wait=True)
        if not self._waiting:
            return
        session, keys = self._first_rows()
        adaptive = None if self._adaptive is None else self._adaptive(*self._sources(self.under_way[: len(keys)]))
        with opened_loop(self.model, session, self.options, keys, self.block_size, self.proposer, adaptive) as loop:
            self._loop, started = loop, time.perf_counter()
            for _ in driven(loop, adaptive, lambda: self._interval(loop)):
                self._seconds += time.perf_counter() - started
                self._share()
                finished = self._harvest(loop)
                if finished or (self._more and not all(self._rows)):
                    self._refill(loop)
                self.model_calls = len(loop.recorder)
                yield finished
                started = time.perf_counter()

    def _interval(self, loop: BlockwiseLoop) -> int:
        """Return the number of iterations until the next check for complete rows."""
        interval = check_interval(self.model.end_token, self._device.type)
        if self._device.type != "cpu":
            return interval
        if loop.is_native and (len(self._rows) == 1 or not (self._more or self._waiting)):
            return DONE_CHECK_INTERVAL  # native iterations end with the last row, before which no sequence gets a row
        return min(interval, max(1, self.model.length // LONG))

    def _take(self, most: int, wait: bool) -> None:
        """Take up to `most` sequences from the feed, or up to a whole group, and encode their sources in groups."""
        items = self._feed.take(max(most, self.group or 0), wait)
        self._more = items is not None
        if not items:
            return
        started = time.perf_counter()
        source, padding = self._sources(items)
        self._device = source.device
        size = self.group or GROUP.get(source.device.type, 1)
        for start in range(0, len(items), size):
            part = slice(start, start + size)
            self._encode(items[part], source[part], None if padding is None else padding[part], size)
        self._seconds += time.perf_counter() - started

    def _encode(self, items: Sequence[ItemT], source: Tensor, padding: Tensor | None, size: int) -> None:
        """Encode the sources [N, S] of N items, N at most `size`, and make an empty session with them."""
        if self.group is None and len(items) < size:
            index = torch.arange(size, device=source.device) % len(items)
            source, padding = source[index], None if padding is None else padding[index]
        memory = self.model.encode(source, padding)
        self._memory, session, batch = memory, self._session(memory), len(source)
        self._waiting.extend(_Encoded(item, session, number, batch) for number, item in enumerate(items))

    def _session(self, sources: Sources) -> Session:
        return self._kind.open_session(self.model, sources, self.options, self.block_size, self.width)

    def _empty(self, rows: Tensor) -> Session:
        """Return a session of as many rows as `rows`, which other sessions' rows are to be copied into."""
        return self._session(self._memory[torch.zeros_like(rows)])

    def _first_rows(self) -> tuple[Session, Tensor]:
        """Return a session of the first sequences, and the keys of their noise [B]."""
        placed = [self._waiting.popleft() for _ in range(min(self.rows, len(self._waiting)))]
        self._rows = [_Row(one.item, 0) for one in placed]
        session, rows = placed[0].session, torch.arange(len(placed), device=self._device)
        if placed[0].batch != len(placed) or placed[-1].session is not session:
            session = self._empty(rows)
            for part in _by_session(placed):
                session.copy_rows(rows[: len(part)], part[0].session, self._numbers(part), cache=False)
                rows = rows[len(part) :]
        return session, self._keys(placed)

    def _numbers(self, placed: Sequence[_Encoded[ItemT]]) -> Tensor:
        return torch.tensor([one.number for one in placed], dtype=torch.int64, device=self._device)

    def _keys(self, placed: Sequence[_Encoded[ItemT]]) -> Tensor:
        return noise_keys([one.item.key for one in placed], len(placed), self._device)

    def _share(self) -> None:
        """Divide the seconds spent since the last time among the sequences being decoded."""
        busy = [row for row in self._rows if row is not None]
        for row in busy:
            row.seconds += self._seconds / len(busy)
        self._seconds = 0.0

    def _harvest(self, loop: BlockwiseLoop) -> list[Result[ItemT]]:
        """Remove the complete sequences from their rows."""
        complete = (loop.state.position >= loop.state.limit).tolist()
        done = [(number, row) for number, row in enumerate(self._rows) if row is not None and complete[number]]
        if not done:
            return []
        position = loop.state.position.tolist()
        traces = loop.recorder.rows([number for number, _ in done], [row.since for _, row in done])
        finished = []
        for (number, row), trace in zip(done, traces, strict=True):
            tokens = loop.state.tokens[number].cpu().clone()[: self.model.length]
            tokens[position[number] :] = 0
            finished.append(Result(row.item, tokens, trace, row.seconds))
            self._rows[number] = None
        return finished

    def _refill(self, loop: BlockwiseLoop) -> None:
        """Give empty rows to waiting sequences; once no sequence waits, continue with fewer rows."""
        empty = [number for number, row in enumerate(self._rows) if row is None]
        if self._more and len(self._waiting) < len(empty):
            self._take(len(empty) - len(self._waiting), wait=not self.under_way)
        placed = [self._waiting.popleft() for _ in range(min(len(empty), len(self._waiting)))]
        for part in _by_session(placed):
            numbers, empty = empty[: len(part)], empty[len(part) :]
            for number, one in zip(numbers, part, strict=True):
                self._rows[number] = _Row(one.item, len(loop.recorder))
            rows = torch.tensor(numbers, dtype=torch.int64, device=self._device)
            loop.restart(rows, part[0].session, self._numbers(part), self._keys(part))
        busy = [number for number, row in enumerate(self._rows) if row is not None]
        waits = self._more or bool(self._waiting)
        # Captured iterations have a fixed number of rows. Text ends after fewer iterations than a new session costs.
        can_shrink = loop.captured is None and self.model.end_token is None
        if can_shrink and not waits and 0 < len(busy) <= len(self._rows) // 2:
            kept = torch.tensor(busy, dtype=torch.int64, device=self._device)
            loop.shrink(self._empty(kept), kept)
            self._rows = [self._rows[number] for number in busy]
        loop.recorder.forget(min((row.since for row in self._rows if row is not None), default=len(loop.recorder)))


def _by_session(placed: Sequence[_Encoded[ItemT]]) -> Iterator[list[_Encoded[ItemT]]]:
    """Yield successive sequences whose sources are in the same session."""
    for _, part in groupby(placed, key=lambda one: id(one.session)):
        yield list(part)
