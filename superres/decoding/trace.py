"""The record of a decode, and the statistics of the glossary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RowTrace:
    """What happened to one sequence.

    Attributes:
        positions: tokens committed before each iteration.
        accepted: tokens accepted in each iteration, the truncated last block counted.
        proposed: tokens proposed in each iteration, int64 [iterations, k]; -1 behind a block smaller than k.
    """

    positions: list[int]
    accepted: list[int]
    proposed: np.ndarray

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(self.accepted)

    @property
    def sequence(self) -> np.ndarray:
        """The generated tokens themselves, int64 [tokens]."""
        kept = [row[:count] for row, count in zip(self.proposed, self.accepted, strict=True)]
        return np.concatenate([np.empty(0, np.int64), *kept])

    @property
    def iterations(self) -> int:
        """Decoding iterations, the call that makes the first proposals not counted."""
        return len(self.accepted)

    @property
    def model_calls(self) -> int:
        """Model calls: iterations + 1."""
        return self.iterations + 1

    @property
    def mean_accepted_block_size(self) -> float:
        """Generated tokens / iterations; greedy is 1.0."""
        return mean_accepted_block_size([self])


def mean_accepted_block_size(traces: list[RowTrace]) -> float:
    """Return generated tokens / decoding iterations over all sequences (0.0 for none)."""
    return sum(t.tokens for t in traces) / max(sum(t.iterations for t in traces), 1)


def survival_curve(traces: list[RowTrace], block_size: int) -> list[float]:
    """Return S_1..S_k, S_i the share of iterations that accepted at least i tokens (all 0.0 without an iteration).

    The last block of each sequence is left out, since the end may have cut it short. But for that, the sum is the
    mean accepted block size.

    Args:
        traces: one a sequence.
        block_size: k.
    """
    accepted = [t.accepted[:-1] for t in traces]
    counts = np.array([count for row in accepted for count in row])
    return [float((counts >= i).mean()) if len(counts) else 0.0 for i in range(1, block_size + 1)]


def entry(position: Tensor, proposed: Tensor, accepted: Tensor) -> Tensor:
    """Return the record of an iteration, [B, 2 + W]: position, accepted tokens, proposals [B, W]."""
    return torch.cat([position.unsqueeze(1), accepted.unsqueeze(1), proposed], dim=1)


class TraceRecorder:
    """Collects what each iteration did, on the device, and reads it back when asked."""

    def __init__(self) -> None:
        """Start empty."""
        # Of iterations in a row their entries [n, B, 2 + W], of one block size, and that.
        self._parts: list[tuple[Tensor, int]] = []
        self._count = self.forgotten = 0

    def __len__(self) -> int:
        """Return how many iterations have been recorded, those that are forgotten counted."""
        return self._count

    def record(self, position: Tensor, proposed: Tensor, accepted: Tensor) -> None:
        """Keep one iteration: `position` [B] (negative before the first token), `proposed` [B, k], `accepted` [B]."""
        self.extend(entry(position, proposed, accepted).unsqueeze(0), proposed.shape[1])

    def extend(self, steps: Tensor, block_size: int) -> None:
        """Keep entries [n, B, 2 + W], of whose proposals only `block_size` count."""
        self._parts.append((steps, block_size))
        self._count += len(steps)

    def _from(self, first: int) -> list[tuple[Tensor, int]]:
        """Return what is kept of the iterations from number `first` on."""
        parts, number = list[tuple[Tensor, int]](), self._count
        for steps, size in reversed(self._parts):  # mostly it is the last few that are asked for
            number -= len(steps)
            if number + len(steps) <= first:
                break
            parts.append((steps[first - number :] if number < first else steps, size))
        return parts[::-1]

    def since(self, first: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what the iterations from number `first` on did, at least one, none of them forgotten.

        Returns:
            Positions and accepted tokens, int64 [n, B] each, and block sizes, int64 [n].
        """
        steps, sizes = zip(*self._from(first), strict=True)
        read = torch.cat([part[..., :2] for part in steps]).cpu().numpy()
        return read[..., 0], read[..., 1], np.repeat(sizes, [len(part) for part in steps])

    def forget(self, until: int) -> None:
        """Drop the iterations before number `until`, which no row will be asked for any more."""
        self._parts = self._from(until)
        self.forgotten = max(until, self.forgotten)

    def shrink(self, kept: Tensor) -> None:
        """Keep rows `kept` [R] alone."""
        self._parts = [(steps[:, kept], size) for steps, size in self._parts]

    def rows(self, chosen: Sequence[int] | None = None, since: Sequence[int] | None = None) -> list[RowTrace]:
        """Return one trace a sequence.

        Args:
            chosen: numbers of the rows; all if None.
            since: for each of them, the iteration with which its sequence began; the first if None.
        """
        parts = self._from(min(since) if since else 0)
        if not parts:
            return []
        sizes = np.repeat([size for _, size in parts], [len(steps) for steps, _ in parts])
        first, widest = len(self) - len(sizes), sizes.max()
        read = _joined([steps[..., : 2 + widest] for steps, _ in parts]).cpu().numpy()
        positions, accepted, proposed = read[..., 0], read[..., 1], read[..., 2:]
        proposed = np.where(np.arange(widest) < sizes[:, None, None], proposed, -1)
        chosen = range(positions.shape[1]) if chosen is None else chosen
        rows = []
        for row, began in zip(chosen, since or [0] * len(chosen), strict=True):
            # Where a row starts in the midst of others, its first iteration reads the start of the sequence.
            active = (accepted[:, row] > 0) & (positions[:, row] >= 0) & (np.arange(first, len(self)) >= began)
            start, count = positions[active, row].tolist(), accepted[active, row].tolist()
            rows.append(RowTrace(start, count, proposed[active, row]))
        return rows


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """Join tensors [n, B, N] of different N, the narrower filled up."""
    widest = max(part.shape[2] for part in parts)
    return torch.cat([F.pad(part, (0, widest - part.shape[2])) if part.shape[2] < widest else part for part in parts])
