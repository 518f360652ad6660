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

import torch
from torch import Tensor

from superres.decoding.algorithm import Algorithm
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.loop import BlockwiseLoop, decoding_type
from superres.decoding.noise import noise_keys
from superres.decoding.proposers.proposer import sources_at
from superres.decoding.trace import RowTrace
from superres.interfaces import Session, Sources
from superres.system.torch_threads import TorchThreads

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


Source: TypeAlias = tuple[Tensor, Tensor | None]
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
    tokens: Tensor  # int64 [T], on the CPU; 0 past the sequence's end
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
        self.model, self.block_size = algorithm.model, algorithm.block_size
        self.model_calls = 0
        self.loop: BlockwiseLoop | None = None
        # Where the steps have threads of their own, torch's would compete with them for the cores.
        self.torch_threads = TorchThreads(1 if self.model.own_threads else None)
        self._feed, self._sources, self._device = feed, sources, torch.device("cpu")
        self._kind = decoding_type(algorithm, self.block_size)
        self._rows: list[_Row[ItemT] | None] = []
        # Sequences that wait for a row: item, session with its source, the source's row there, and
        # the session's rows.
        self._waiting: deque[tuple[ItemT, Session, int, int]] = deque()
        self._fresh: list[ItemT] = []  # sequences that the block size is being chosen for
        self._more, self._seconds = True, 0.0  # seconds that belong to no sequence yet
        # the latest encoded sources; empty sessions are made from the first of them
        self._memory: Sources = None

    @property
    def under_way(self) -> list[ItemT]:
        """The sequences taken from the feed that are not complete; they are lost if decoding
        fails."""
        return ([row.item for row in self._rows if row is not None]
                + [item for item, *_ in self._waiting] + self._fresh)

    @property
    def tokens_under_way(self) -> int:
        """Number of tokens decoded of the sequences that are not complete (reads from the
        device)."""
        position = [] if self.loop is None else self.loop.plain.state.position.tolist()
        return sum(max(tokens, 0) for row, tokens in zip(self._rows, position, strict=False)
                   if row is not None)

    @torch.inference_mode()
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
        with self.torch_threads:
            session, keys = self._first_rows()
            self.loop = loop = BlockwiseLoop(
                self.algorithm, session, keys, self.block_size,
                chosen if isinstance(chosen, ConfidentBlockSize) else None)
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

    def _interval(self, loop: BlockwiseLoop) -> int:
        """Return the number of iterations until the next check for complete rows.

        Iterations past an end token are wasted, and on a CPU a check takes little time. The first
        iteration only reads the start of the sequences. A text that is decoded as a batch is shown
        after each of its few iterations.
        """
        is_cpu, ends = self._device.type == "cpu", self.model.end_token is not None
        is_compiled = is_cpu and loop.runs_whole
        is_single = is_compiled and not self.batch and len(self._rows) == 1
        if not len(loop.recorder) and not is_single:
            return 1
        if is_single or (is_compiled and self.batch and not ends):
            columns = len(self._rows) * loop.plain.session.width
            return max(DONE_CHECK_INTERVAL, min(LAUNCH_INTERVAL, COLUMNS // columns))
        if not is_cpu and self.batch and loop.runs_whole:
            return LAUNCH_INTERVAL
        interval = (1 if is_cpu else END_CHECK_INTERVAL) if ends else DONE_CHECK_INTERVAL
        if not is_cpu or self.batch:
            return interval
        if loop.runs_whole and not (self._more or self._waiting):
            return END_CHECK_INTERVAL if ends else DONE_CHECK_INTERVAL
        return min(interval, max(1, self.model.length // LONG))

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
        self._device = source.device
        size = self.group or GROUP.get(source.device.type, 1)
        with self.torch_threads:
            for start in range(0, len(items), size):
                part = slice(start, start + size)
                self._encode(items[part], source[part], None if padding is None else padding[part],
                             size)
        self._seconds += time.perf_counter() - started

    def _encode(self, items: Sequence[ItemT], source: Tensor, padding: Tensor | None,
                size: int) -> None:
        """Encode the sources [N, S] of N items, N at most `size`, and make an empty session with
        them."""
        if self.group is None and len(items) < size:
            index = torch.arange(size, device=source.device) % len(items)
            source, padding = source[index], None if padding is None else padding[index]
        memory = self.model.encode(source, padding)
        self._memory, session, batch = memory, self._session(memory), len(source)
        self._waiting.extend((item, session, number, batch) for number, item in enumerate(items))

    def _session(self, sources: Sources) -> Session:
        return self._kind.open_session(self.algorithm, sources, self.block_size)

    def _empty(self, rows: Tensor) -> Session:
        """Return a session of as many rows as `rows`, which other sessions' rows are to be copied
        into."""
        return self._session(sources_at(self._memory, torch.zeros_like(rows)))

    def _first_rows(self) -> tuple[Session, Tensor]:
        """Return a session of the first sequences, and the keys of their noise [B]."""
        count, batch = min(self.rows, len(self._waiting)), self._waiting[0][-1]
        self._rows = [None] * count
        parts = list(self._placed(range(count), 0))
        _, session, _, keys = parts[0]
        if batch != count or len(parts) > 1:
            session = self._empty(torch.arange(count, device=self._device))
            for rows, other, chosen, _ in parts:
                session.copy_rows(rows, other, chosen, cache=False)
            keys = torch.cat([part[-1] for part in parts])
        return session, keys

    def _placed(
        self, numbers: Sequence[int], since: int,
    ) -> Iterator[tuple[Tensor, Session, Tensor, Tensor]]:
        """Give the rows `numbers` to waiting sequences, which begin with iteration `since`.

        Yields, for successive sequences whose sources are in the same session: their rows, that
        session, the rows of their sources in it, and their keys.
        """
        placed = [(row, *self._waiting.popleft()) for row in numbers[: len(self._waiting)]]
        for row, item, *_ in placed:
            self._rows[row] = _Row(item, since)
        for _, group in groupby(placed, key=lambda one: id(one[2])):
            part = list(group)
            yield (self._index([row for row, *_ in part]), part[0][2],
                   self._index([number for *_, number, _ in part]),
                   noise_keys([item.key for _, item, *_ in part], len(part), self._device))

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _share(self) -> None:
        """Divide the seconds spent since the last time among the sequences being decoded."""
        busy = [row for row in self._rows if row is not None]
        for row in busy:
            row.seconds += self._seconds / len(busy)
        self._seconds = 0.0

    def _harvest(self, loop: BlockwiseLoop) -> list[Result[ItemT]]:
        """Remove the complete sequences from their rows; those of a batch together."""
        if self.batch and not loop.complete:
            return []
        done = [number for number, row in enumerate(self._rows) if row is not None
                and loop.ended[number]]
        finished = self._results(loop, done)
        for number in done:
            self._rows[number] = None
        return finished

    @torch.inference_mode()
    def so_far(self) -> list[Result[ItemT]]:
        """Return the sequences that are not complete as far as they are decoded (reads from the
        device)."""
        busy = [number for number, row in enumerate(self._rows) if row is not None]
        return [] if self.loop is None else self._results(self.loop, busy)

    def _results(self, loop: BlockwiseLoop, numbers: list[int]) -> list[Result[ItemT]]:
        """Return the tokens and traces in the rows `numbers`, none of which is empty."""
        rows = [row for number in numbers if (row := self._rows[number]) is not None]
        if not rows:
            return []
        with self.torch_threads:
            tokens = loop.plain.results(self._index(numbers))[0].cpu()
            traces = loop.recorder.rows(numbers, [row.since for row in rows])
        return [Result(row.item, one, trace, row.seconds) for row, one,
                trace in zip(rows, tokens, traces, strict=True)]

    def _refill(self, loop: BlockwiseLoop) -> None:
        """Give empty rows to waiting sequences; once no sequence waits, continue with fewer
        rows."""
        empty = [number for number, row in enumerate(self._rows) if row is None]
        if self._more and len(self._waiting) < len(empty):
            self._prepare(self._next(len(empty) - len(self._waiting), wait=not self.under_way))
        with self.torch_threads:
            for rows, session, chosen, keys in self._placed(empty, len(loop.recorder)):
                loop.replace(rows, session, chosen, keys)
        busy = [number for number, row in enumerate(self._rows) if row is not None]
        waits = self._more or bool(self._waiting)
        can_shrink = (self.model.end_token is None
                      or (loop.runs_whole and len(self._rows) >= SHRUNK_TEXT))
        if can_shrink and not waits and 0 < len(busy) <= len(self._rows) // 2:
            kept = self._index(busy)
            with self.torch_threads:
                loop.shrink(kept, self._empty(kept))
            self._rows = [self._rows[number] for number in busy]
        loop.recorder.forget(min((row.since for row in self._rows if row is not None),
                                 default=len(loop.recorder)))
