"""Decode a stream of sequences: a row whose sequence is complete takes the next one, so the batch
stays full.

Rows advance by different amounts, so a batch that waits for its slowest row leaves the other rows
idle. A sequence's tokens depend neither on the other rows nor on the iteration in which the
sequence entered.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.loop import Loop
from superres.decoding.noise import noise_keys
from superres.decoding.trace import RowTrace
from superres.interfaces import Bool, Encoded, Int64

GROUP = {"cpu": 1, "cuda": 16}
"""Number of sources encoded in one call, by kind of device. A smaller group is filled up to that
number, since the rounding of sums may depend on the number of rows."""

DONE_CHECK_INTERVAL = 16
"""Number of iterations between two checks for complete rows; between them nothing is read from the
device."""

LAUNCH_INTERVAL = 128
"""The same for compiled iterations that end with the last row, if no row is looked at before: a
call of the code costs as much as several iterations."""

COLUMNS = 1024
"""Columns (rows times tokens per step) after which compiled iterations on a CPU return at the
latest, unless there are fewer than DONE_CHECK_INTERVAL: a decode is stopped, and shows how far it
is, only between two calls."""

END_CHECK_INTERVAL = 4
"""The same on an accelerator if an end token may end a row: a sentence takes only a few
iterations."""

SHRUNK_TEXT = 8
"""From so many rows on, compiled code continues with half of the rows of a text whose other rows
are complete; with fewer rows, or on other engines, the rest of a sentence takes less time than the
new session."""

LONG = 384
"""On a CPU, rows are checked once per `LONG` tokens of a target's length: compiled iterations of
one row in succession keep that row's cache near the processor, and a complete row waits for hardly
more than 1/100 of its decoding time."""


class Item(Protocol):
    """A sequence to decode."""

    @property
    def key(self) -> int:
        """Key of its sampling noise, in [0, 2**63)."""


Source: TypeAlias = tuple[Int64, Bool | None]
"""Source tokens [B, S], int64, and their padding: bool [B, S], True at padding, or None without
padding."""

ItemT = TypeVar("ItemT", bound=Item)

Feed: TypeAlias = Callable[[int, bool], Sequence[ItemT] | None]
"""Provides the sequences to decode. `feed(limit, wait)` returns up to `limit` sequences, at least
1, or None if no sequence will follow. If `wait`, it blocks until it can return a sequence;
otherwise the result may be empty."""


def feed_of(items: Iterable[ItemT]) -> Feed[ItemT]:
    """Return a feed of given sequences."""
    remaining = iter(items)
    return lambda limit, wait: [*islice(remaining, limit)] or None


@dataclass(frozen=True, eq=False)
class Result(Generic[ItemT]):
    """A complete sequence."""

    item: ItemT  # the item from the feed
    tokens: Int64  # [T]; 0 past the sequence's end
    trace: RowTrace  # its acceptance trace
    # its share of the decoding time, and that of `earlier`; the time of an iteration is divided
    # among the sequences being decoded
    seconds: float
    earlier: Result[Any] | None = None  # what its source was decoded as, in a cascade


@dataclass(eq=False)
class _Row(Generic[ItemT]):
    """A sequence being decoded; `since` is the iteration with which it began."""

    item: ItemT
    since: int
    seconds: float = 0.0


class Stream(Generic[ItemT]):
    """Decodes the sequences of a feed, at most `rows` at a time: the one way to blockwise decoding.

    Exact acceptance gives the tokens of greedy decoding (or, at a temperature, of sequential
    sampling with the same seed). With torch's float kernels, this holds bit for bit against a run
    of the same `width` only, since kernels differ between shapes.

    `model_calls` is the number of decoding iterations so far, the first of which reads the start of
    the sequences. `loop` runs them, once there are sequences to decode.
    """

    def __init__(
        self, algorithm: Algorithm, feed: Feed[ItemT],
        sources: Callable[[Sequence[ItemT]], Source], rows: int, *, group: int | None = None,
        batch: bool = False,
    ) -> None:
        """Prepare; nothing is taken from the feed yet.

        Args:
            algorithm: how the sequences are decoded.
            feed: provides the sequences.
            sources: returns the sources of N items; S must be the same for all items of the feed.
            rows: largest number of sequences decoded at the same time.
            group: largest number of sources encoded in one call; None for the constant `GROUP` of
                the device.
            batch: the feed has `rows` sequences, which are encoded, and to their end decoded, as
                one batch.
        """
        self.algorithm, self.rows, self.batch = algorithm, rows, batch
        self.group = rows if batch else group
        self.engine, self.block_size = algorithm.engine, algorithm.block_size
        self.model_calls = 0
        self.loop: Loop | None = None
        self._feed, self._sources = feed, sources
        self._rows: list[_Row[ItemT] | None] = []
        # sequences that wait for a row: item, the sources that were encoded together, and the
        # number of its own among them
        self._waiting: deque[tuple[ItemT, Encoded, int]] = deque()
        self._fresh: list[ItemT] = []  # sequences that the block size is being chosen for
        self._more, self._seconds = True, 0.0  # seconds that belong to no sequence yet

    @property
    def under_way(self) -> list[ItemT]:
        """The sequences taken from the feed that are not complete; they are lost if decoding
        fails."""
        return ([row.item for row in self._rows if row is not None]
                + [item for item, *_ in self._waiting] + self._fresh)

    @property
    def tokens_under_way(self) -> int:
        """Number of tokens decoded of the sequences that are not complete."""
        position = [] if self.loop is None else self.loop.decoder.positions().tolist()
        return sum(max(tokens, 0) for row, tokens in zip(self._rows, position, strict=False)
                   if row is not None)

    def run(self) -> Iterator[list[Result[ItemT]]]:
        """Decode until the feed ends, and yield the sequences completed since the last time,
        possibly none.

        Raises InvalidInputError if a key is out of range, and ScoresError if the model's scores are
        not finite.
        """
        while self._more and len(self._fresh) < self.rows:
            self._fresh += self._next(self.rows - len(self._fresh), wait=True)
        if not self._fresh:
            return
        adaptive = self.algorithm.adaptive
        chosen = None if adaptive is None else adaptive(*self._sources(self._fresh[: self.rows]))
        if isinstance(chosen, int):
            self.block_size = chosen
        self._prepare(self._fresh)
        self._fresh = []
        count = min(self.rows, len(self._waiting))
        self._rows = [None] * count
        _, encoded, keys = self._placed(range(count), 0)
        self.loop = loop = Loop(self.engine.start(
            encoded, keys, self.algorithm, self.block_size,
            chosen if isinstance(chosen, ConfidentBlockSize) else None))
        while True:
            started = time.perf_counter()
            loop.run(self._interval(loop))
            if not loop.complete:
                loop.done()
            self._seconds += time.perf_counter() - started
            self._share()
            finished = self._harvest(loop)
            if not self.batch and (finished or (self._more and not all(self._rows))):
                self._refill(loop)
            self.model_calls = len(loop.recorder)
            yield finished
            if loop.complete:
                return

    def _interval(self, loop: Loop) -> int:
        """Return the number of iterations until the next check for complete rows.

        Iterations past an end token are wasted, and on a CPU a check takes little time. The first
        iteration only reads the start of the sequences. A text that is decoded as a batch is shown
        after each of its few iterations.
        """
        decoder, ends = loop.decoder, self.engine.end_token is not None
        is_cpu = self.engine.device == "cpu"
        is_compiled = is_cpu and decoder.compiled
        is_single = is_compiled and not self.batch and len(self._rows) == 1
        if not len(loop.recorder) and not is_single:
            return 1
        if is_single or (is_compiled and self.batch and not ends):
            columns = len(self._rows) * decoder.width
            return max(DONE_CHECK_INTERVAL, min(LAUNCH_INTERVAL, COLUMNS // columns))
        if not is_cpu and self.batch and decoder.compiled:
            return LAUNCH_INTERVAL
        interval = (1 if is_cpu else END_CHECK_INTERVAL) if ends else DONE_CHECK_INTERVAL
        if not is_cpu or self.batch:
            return interval
        if decoder.compiled and not (self._more or self._waiting):
            return END_CHECK_INTERVAL if ends else DONE_CHECK_INTERVAL
        return min(interval, max(1, self.engine.length // LONG))

    def _next(self, limit: int, wait: bool) -> Sequence[ItemT]:
        """Return up to `limit` sequences of the feed, or up to a whole group."""
        items = self._feed(max(limit, self.group or 0), wait)
        self._more = items is not None
        return items or []

    def _prepare(self, items: Sequence[ItemT]) -> None:
        """Encode the sources of sequences in groups; from then on they wait for a row."""
        if not items:
            return
        started = time.perf_counter()
        source, padding = self._sources(items)
        size = self.group or GROUP[self.engine.device]
        for start in range(0, len(items), size):
            part = items[start : start + size]
            # a smaller group is filled up with its own sources
            rows = start + np.arange(len(part) if self.group else size) % len(part)
            encoded = self.engine.encode(source[rows], None if padding is None else padding[rows],
                                         self.algorithm)
            self._waiting.extend((item, encoded, number) for number, item in enumerate(part))
        self._seconds += time.perf_counter() - started

    def _placed(self, numbers: Sequence[int], since: int) -> tuple[Int64, Encoded, Int64]:
        """Give the rows `numbers` to waiting sequences, at least one, which begin with iteration
        `since`; return their rows, their sources and the keys of their noise."""
        placed = [(row, *self._waiting.popleft()) for row in numbers[: len(self._waiting)]]
        parts = list[Encoded]()
        for _, group in groupby(placed, key=lambda one: id(one[2])):
            part = list(group)
            encoded, chosen = part[0][2], [number for *_, number in part]
            whole = chosen == [*range(len(encoded))]
            parts.append(encoded if whole else encoded[np.array(chosen)])
        for row, item, *_ in placed:
            self._rows[row] = _Row(item, since)
        keys = noise_keys([item.key for _, item, *_ in placed], len(placed))
        return np.array([row for row, *_ in placed]), self.engine.joined(parts), keys

    def _share(self) -> None:
        """Divide the seconds spent since the last time among the sequences being decoded."""
        busy = [row for row in self._rows if row is not None]
        for row in busy:
            row.seconds += self._seconds / len(busy)
        self._seconds = 0.0

    def _harvest(self, loop: Loop) -> list[Result[ItemT]]:
        """Remove the complete sequences from their rows; those of a batch together."""
        if self.batch and not loop.complete:
            return []
        done = [number for number, row in enumerate(self._rows) if row is not None
                and loop.ended[number]]
        finished = self._results(loop, done)
        for number in done:
            self._rows[number] = None
        return finished

    def so_far(self) -> list[Result[ItemT]]:
        """Return the sequences that are not complete as far as they are decoded."""
        busy = [number for number, row in enumerate(self._rows) if row is not None]
        return [] if self.loop is None else self._results(self.loop, busy)

    def _results(self, loop: Loop, numbers: list[int]) -> list[Result[ItemT]]:
        """Return the tokens and traces in the rows `numbers`, none of which is empty."""
        rows = [row for number in numbers if (row := self._rows[number]) is not None]
        if not rows:
            return []
        tokens, _ = loop.decoder.results(np.array(numbers))
        traces = loop.recorder.rows(numbers, [row.since for row in rows])
        return [Result(row.item, one, trace, row.seconds) for row, one,
                trace in zip(rows, tokens, traces, strict=True)]

    def _refill(self, loop: Loop) -> None:
        """Give empty rows to waiting sequences; once no sequence waits, continue with fewer
        rows."""
        empty = [number for number, row in enumerate(self._rows) if row is None]
        if self._more and len(self._waiting) < len(empty):
            self._prepare(self._next(len(empty) - len(self._waiting), wait=not self.under_way))
        if empty and self._waiting:
            loop.replace(*self._placed(empty, len(loop.recorder)))
        busy = [number for number, row in enumerate(self._rows) if row is not None]
        waits = self._more or bool(self._waiting)
        can_shrink = (self.engine.end_token is None
                      or (loop.decoder.compiled and len(self._rows) >= SHRUNK_TEXT))
        if can_shrink and not waits and 0 < len(busy) <= len(self._rows) // 2:
            loop.keep(np.array(busy))
            self._rows = [self._rows[number] for number in busy]
        loop.recorder.forget(min((row.since for row in self._rows if row is not None),
                                 default=len(loop.recorder)))
