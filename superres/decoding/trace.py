"""The acceptance trace of a decode, and statistics of traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superres.interfaces import Int64


@dataclass(frozen=True)
class RowTrace:
    """The acceptance trace of one sequence.

    Attributes:
        positions: number of tokens committed before each iteration.
        accepted: number of tokens accepted in each iteration; the target's end may truncate the
            last block.
        proposed: tokens proposed in each iteration, int64 [iterations, k]; -1 past the end of a
            smaller block.
    """

    positions: list[int]
    accepted: list[int]
    proposed: np.ndarray

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return sum(self.accepted)

    @property
    def sequence(self) -> np.ndarray:
        """The generated tokens, int64 [tokens]."""
        kept = [row[:count] for row, count in zip(self.proposed, self.accepted, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *kept])

    @property
    def iterations(self) -> int:
        """Number of decoding iterations, without the call that makes the first proposals."""
        return len(self.accepted)

    @property
    def model_calls(self) -> int:
        """Number of model calls: iterations + 1."""
        return self.iterations + 1

    @property
    def mean_accepted_block_size(self) -> float:
        """Generated tokens / iterations; greedy is 1.0."""
        return mean_accepted_block_size([self])


def mean_accepted_block_size(traces: list[RowTrace]) -> float:
    """Return generated tokens / decoding iterations over all sequences (0.0 for none)."""
    return sum(t.tokens for t in traces) / max(sum(t.iterations for t in traces), 1)


def survival_curve(traces: list[RowTrace], block_size: int) -> list[float]:
    """Return S_1..S_k: S_i is the share of iterations that accepted at least i tokens (0.0 without
    iterations).

    The last block of each sequence is left out, since the sequence's end may truncate it. Apart
    from that, the sum of S_1..S_k is the mean accepted block size; k is `block_size`.
    """
    accepted = [t.accepted[:-1] for t in traces]
    counts = np.array([count for row in accepted for count in row])
    return [float((counts >= i).mean()) if len(counts) else 0.0 for i in range(1, block_size + 1)]


LONGEST = 256
"""Iterations from which on a part of the record is not joined with the next one."""


class TraceRecorder:
    """Collects the records of iterations."""

    def __init__(self) -> None:
        # Consecutive iterations of one block size: their entries [n, B, 2 + W], and the block size.
        self._parts: list[tuple[Int64, int]] = []
        self._count = 0

    def __len__(self) -> int:
        """Return the number of recorded iterations, including forgotten ones."""
        return self._count

    def extend(self, steps: Int64, block_size: int) -> None:
        """Record entries [n, B, 2 + W]; only the first `block_size` of the W proposals are
        valid."""
        self._count += len(steps)
        while self._parts:  # few long parts are read faster than many short ones
            before, size = self._parts[-1]
            if size != block_size or before.shape[1:] != steps.shape[1:] or not (
                    len(before) <= len(steps) < LONGEST):
                break
            self._parts.pop()
            steps = np.concatenate([before, steps])
        self._parts.append((steps, block_size))

    def _from(self, first: int) -> list[tuple[Int64, int]]:
        """Return the entries and block sizes of the iterations from number `first` on."""
        parts, number = list[tuple[Int64, int]](), self._count
        for steps, size in reversed(self._parts):  # most calls need the last few iterations only
            number -= len(steps)
            if number + len(steps) <= first:
                break
            parts.append((steps[first - number :] if number < first else steps, size))
        return parts[::-1]

    def since(self, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions and numbers of accepted tokens, int64 [n, B] each, and block sizes,
        int64 [n].

        They are those of the iterations from number `first` on, which must be recorded and not
        forgotten.
        """
        steps, sizes = zip(*self._from(first), strict=True)
        read = np.concatenate([part[..., :2] for part in steps])
        return read[..., 0], read[..., 1], np.repeat(sizes, [len(part) for part in steps])

    def forget(self, until: int) -> None:
        """Drop the iterations before number `until`."""
        self._parts = self._from(until)

    def keep(self, kept: Int64) -> None:
        """Keep rows `kept` [R] only."""
        self._parts = [(steps[:, kept], size) for steps, size in self._parts]

    def rows(self, chosen: Sequence[int] | None = None,
             since: Sequence[int] | None = None) -> list[RowTrace]:
        """Return one trace for each of the rows `chosen`; for all rows if None.

        `since` holds the number of the iteration with which each chosen row's sequence began; 0 if
        None.
        """
        parts = self._from(min(since) if since else 0)
        if not parts:
            return []
        sizes = np.repeat([size for _, size in parts], [len(steps) for steps, _ in parts])
        first, widest = len(self) - len(sizes), int(sizes.max())
        # Only the chosen rows are copied; columns past the widest block are cut off.
        rows = slice(None) if chosen is None else np.array(chosen, np.int64)
        same = [steps[:, rows, : 2 + widest] for steps, _ in parts]
        same = [np.pad(steps, ((0, 0), (0, 0), (0, 2 + widest - steps.shape[2])))
                if steps.shape[2] < 2 + widest else steps for steps in same]
        read = np.ascontiguousarray(np.concatenate(same).transpose(1, 0, 2))  # [B, n, 2 + W]
        began = np.array(since or [0] * len(read))
        # At position -1, the first model call of a sequence reads its start; that is no decoding
        # iteration. [B, n]
        active = ((read[..., 1] > 0) & (read[..., 0] >= 0)
                  & (np.arange(first, len(self)) >= began[:, None]))
        found = read[active]  # of all rows, one row after another
        positions, accepted = found[:, 0].tolist(), found[:, 1].tolist()
        proposed = found[:, 2:]
        proposed[np.arange(widest) >= np.broadcast_to(sizes, active.shape)[active][:, None]] = -1
        ends = np.cumsum(active.sum(1)).tolist()
        return [RowTrace(positions[start:end], accepted[start:end], proposed[start:end])
                for start, end in zip([0, *ends], ends, strict=False)]
