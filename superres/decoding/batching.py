"""Decoding of a stream of sequences: as soon as one is complete, another takes its row, so that the decoder stays full.

Rows of a batch advance by different amounts, and a batch that waits for its slowest row leaves the others idle. What a
sequence becomes depends neither on its neighbours nor on when it entered: its source is encoded in a group of one
constant size, once, and the row it enters is replaced whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.block_size import AdaptiveBlockSize
from superres.decoding.blockwise import BlockwiseDecoding
from superres.decoding.decode import DONE_CHECK_INTERVAL, check_interval, check_options
from superres.decoding.loop import BlockwiseLoop, decoding_type
from superres.decoding.noise import noise_keys
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer, accompany
from superres.decoding.trace import RowTrace
from superres.interfaces import ScoringModel, Session, Sources

GROUP = {"cpu": 1, "cuda": 16}
"""Sources encoded together by kind of device; a group that is not full is padded, since sums may depend on its size."""

LONG = 384
"""On a CPU, iterations in a row for so many tokens of a target: compiled ones keep a row's cache at hand meanwhile, and
a complete row waits for hardly more than a hundredth of its time."""


@dataclass(frozen=True, eq=False)
class Waiting:
    """A sequence that waits to be decoded.

    Attributes:
        source: source tokens [S].
        key: of its sampling noise, in [0, 2**63).
        tag: whatever the caller knows it by.
    """

    source: Tensor
    key: int
    tag: Any = None


class Feed(Protocol):
    """Hands out the sequences to decode."""

    def take(self, most: int, wait: bool) -> list[Waiting] | None:
        """Return up to `most` sequences, or None if there will never be another.

        Args:
            most: at least 1.
            wait: return at least one, if need be after waiting for it; otherwise return what there is, perhaps nothing.
        """
        ...


@dataclass(frozen=True, eq=False)
class Finished:
    """A sequence that is complete.

    Attributes:
        tag: of the `Waiting`.
        tokens: int64 [T], on the CPU; 0 past the sequence's end.
        trace: what was accepted when.
        seconds: its share of the decoding time: that of each iteration is divided among the sequences under way.
    """

    tag: Any
    tokens: Tensor
    trace: RowTrace
    seconds: float


@dataclass(eq=False)
class _Row:
    """A sequence under way; `since` is the iteration with which it began."""

    waiting: Waiting
    since: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class RefilledDecoder:
    """Decodes what a feed hands out, `rows` sequences at a time.

    Attributes:
        model: the model.
        feed: hands out the sequences.
        options: block size, proposer, acceptance, sampling.
        rows: sequences decoded together, at most.
        adaptive: gives what chooses block sizes for a batch of sources [B, S], or None for a fixed one.
        proposer: source of proposals; by `options.proposer` if None.
        under_way: those being decoded now.
        tokens_under_way: tokens that these have so far.
    """

    model: ScoringModel
    feed: Feed
    options: DecodeConfig
    rows: int
    adaptive: Callable[[Tensor], AdaptiveBlockSize | None] = lambda sources: None
    proposer: Proposer | None = None
    tokens_under_way: int = 0
    _block_size: int = 0
    _rows: list[_Row | None] = field(default_factory=list)
    _more: bool = True
    _kind: type[BlockwiseDecoding] = BlockwiseDecoding
    _any_source: Sources = None  # one that is encoded, whichever: of what sessions are made that adopt all their rows

    @property
    def under_way(self) -> list[Waiting]:
        """The sequences being decoded, which are lost if decoding fails."""
        return [row.waiting for row in self._rows if row is not None]

    @torch.inference_mode()
    def run(self) -> Iterator[list[Finished]]:
        """Yield what is complete, now and then and perhaps nothing, until the feed is exhausted.

        Raises:
            ConfigError: options do not fit the model.
            InvalidInputError: a key is out of range.
            ScoresError: the model's scores are not finite.
        """
        self._block_size = check_options(self.options, self.model.prediction_heads, self.model.length)
        self.proposer = self.proposer or PROPOSERS[self.options.proposer]()
        self.model = accompany(self.model, self.proposer)
        first: list[Waiting] = []
        while len(first) < self.rows and (more := self.feed.take(self.rows - len(first), True)) is not None:
            first += more
        if not first:
            return
        self._rows = [_Row(waiting) for waiting in first]
        device = first[0].source.device
        interval = self._interval(device)
        started = time.perf_counter()
        sizes = self.adaptive(torch.stack([waiting.source for waiting in first]))
        loop = self._begin(first, self.proposer, sizes)
        while True:
            loop.run(interval)
            if sizes is not None and len(loop.recorder) % sizes.interval == 0:
                loop.adapt(sizes)
            self._share(time.perf_counter() - started)
            started = time.perf_counter()
            finished = self._harvest(loop)
            if finished or not all(self._rows):
                self._refill(loop)
            yield finished
            if not self.under_way:
                return

    def _interval(self, device: torch.device) -> int:
        """Return the iterations between two looks at which rows are complete."""
        if device.type != "cpu":
            return DONE_CHECK_INTERVAL
        return min(check_interval(self.model.end_token, device.type), max(1, self.model.length // LONG))

    def _begin(self, first: list[Waiting], proposer: Proposer, sizes: AdaptiveBlockSize | None) -> BlockwiseLoop:
        """Return a loop over the first sequences."""
        everyone = torch.arange(len(first), device=first[0].source.device)
        keys = noise_keys([waiting.key for waiting in first], len(first), everyone.device)
        self._kind = decoding_type(proposer, self._block_size)
        groups = self._encoded(first, everyone)
        head = next(groups)
        session = self._empty(everyone)
        for rows, fresh, chosen in chain([head], groups):
            session.adopt(rows, fresh, chosen)
        block_size = self._block_size if sizes is None else sizes.choose()
        return BlockwiseLoop(self.model, session, self.options, keys, block_size, proposer, fitted=sizes is not None)

    def _session(self, sources: Sources) -> Session:
        return self._kind.open_session(self.model, sources, self.options, self._block_size)

    def _empty(self, rows: Tensor) -> Session:
        """Return a session of as many rows as `rows`, for each to adopt another. Nothing is encoded for it."""
        return self._session(self._any_source[torch.zeros_like(rows)])

    def _encoded(self, waiting: list[Waiting], rows: Tensor) -> Iterator[tuple[Tensor, Session, Tensor]]:
        """Yield rows to fill, an empty session of a constant number of sources, and its rows that belong there."""
        size = GROUP.get(rows.device.type, 1)
        for start in range(0, len(waiting), size):
            group = [one.source for one in waiting[start : start + size]]
            sources = self.model.encode(torch.stack(group + [group[0]] * (size - len(group))))
            chosen = torch.arange(len(group), device=rows.device)
            if self._any_source is None:
                self._any_source = sources[chosen[:1]]
            yield rows[start : start + size], self._session(sources), chosen

    def _share(self, seconds: float) -> None:
        busy = [row for row in self._rows if row is not None]
        for row in busy:
            row.seconds += seconds / len(busy)

    def _harvest(self, loop: BlockwiseLoop) -> list[Finished]:
        """Take out the rows that are complete, and count the tokens of the others."""
        loop.check_scores()
        position = loop.state.position.tolist()
        complete = (loop.state.position >= loop.state.limit).tolist()
        self.tokens_under_way = sum(
            max(tokens, 0) for row, tokens, done in zip(self._rows, position, complete, strict=True)
            if row is not None and not done
        )
        numbers = [number for number, row in enumerate(self._rows) if row is not None and complete[number]]
        rows = [self._rows[number] for number in numbers]
        traces = loop.recorder.rows(numbers, [row.since for row in rows if row is not None]) if numbers else []
        finished = []
        for number, row, trace in zip(numbers, rows, traces, strict=True):
            if row is not None:
                tokens = loop.state.tokens[number].cpu().clone()[: self.model.length]
                tokens[position[number] :] = 0
                finished.append(Finished(row.waiting.tag, tokens, trace, row.seconds))
            self._rows[number] = None
        return finished

    def _refill(self, loop: BlockwiseLoop) -> None:
        """Give empty rows to sequences that wait; when none will come, go on with fewer rows."""
        empty = [number for number, row in enumerate(self._rows) if row is None]
        if self._more:
            waiting = self.feed.take(len(empty), wait=not self.under_way)
            self._more = waiting is not None
            numbers = empty[: len(waiting or [])]
            rows = torch.tensor(numbers, dtype=torch.int64, device=loop.state.position.device)
            for number, one in zip(numbers, waiting or [], strict=True):
                self._rows[number] = _Row(one, len(loop.recorder))
            self._restart(loop, rows, waiting or [])
        # What is captured has a fixed number of rows.
        if not self._more and loop.replays is None and 0 < len(self.under_way) <= len(self._rows) // 2:
            self._shrink(loop)
        loop.recorder.forget(min((row.since for row in self._rows if row is not None), default=len(loop.recorder)))

    def _restart(self, loop: BlockwiseLoop, rows: Tensor, waiting: list[Waiting]) -> None:
        keys = noise_keys([one.key for one in waiting], len(waiting), rows.device)
        start = 0
        for places, fresh, chosen in self._encoded(waiting, rows):
            loop.restart(places, fresh, chosen, keys[start : start + len(places)])
            start += len(places)

    def _shrink(self, loop: BlockwiseLoop) -> None:
        numbers = [number for number, row in enumerate(self._rows) if row is not None]
        kept = torch.tensor(numbers, dtype=torch.int64, device=loop.state.position.device)
        loop.shrink(self._empty(kept), kept)
        self._rows = [self._rows[number] for number in numbers]
