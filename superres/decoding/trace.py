"""The record of a decode, and the statistics of the glossary."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class RowTrace:
    """What happened to one sequence.

    Attributes:
        positions: tokens committed before each iteration.
        accepted: tokens accepted in each iteration, the truncated last block counted.
        proposed: tokens proposed in each iteration, int64 [iterations, k].
    """

    positions: list[int]
    accepted: list[int]
    proposed: np.ndarray

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(self.accepted)

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


class TraceRecorder:
    """Collects what each iteration did, on the device; reads it back once at the end."""

    def __init__(self) -> None:
        """Start empty."""
        self._steps: list[tuple[Tensor, Tensor, Tensor]] = []

    def record(self, position: Tensor, proposed: Tensor, accepted: Tensor) -> None:
        """Keep one iteration: `position` [B], `proposed` [B, k], `accepted` [B] (0 for rows already done)."""
        self._steps.append((position, proposed, accepted))

    def rows(self) -> list[RowTrace]:
        """Return one trace a sequence."""
        if not self._steps:
            return []
        stacked = [np.stack([t.cpu().numpy() for t in column]) for column in zip(*self._steps, strict=True)]
        positions, proposed, accepted = stacked
        rows = []
        for row in range(positions.shape[1]):
            active = accepted[:, row] > 0
            rows.append(RowTrace(positions[active, row].tolist(), accepted[active, row].tolist(), proposed[active, row]))
        return rows
