"""Limits on target tokens: the sums of groups of them must be in ranges that the source determines.

What a group is, and which sums it may have, is a task's knowledge: for pictures see
`superres.tasks.consistency`. Engines set the scores of all tokens outside the limits to -inf, so
criteria, sampling and reference decoders need no knowledge of them.

Limits are whole numbers below 2**24, so float32 holds them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from superres.interfaces import Int64

# Bound of the tokens past the target's end; they are undefined, and have no limits
UNLIMITED = 2**22


@dataclass(frozen=True, eq=False)
class Limits:
    """Limits of a task, with an entry for positions past the end; see
    `superres.tasks.consistency.CellLimits`."""

    group: Int64  # [T + 1]; the last entry stands for positions past the end
    # earlier positions of the group of each position, [T + 1, E], in order; -1 where there are
    # fewer
    earlier: Int64
    low: Int64  # [V]
    high: Int64  # [V]
    coarse: Int64 | None = None  # [S]; see `CellLimits`

    @classmethod
    def of(cls, task: Any) -> Limits:  # noqa: ANN401 -- arrays under the same names
        """Add the entry past the end to a task's limits."""
        return cls(np.pad(task.group, (0, 1), constant_values=-1),
                   np.pad(task.earlier, ((0, 1), (0, 0)), constant_values=-1),
                   task.low, task.high, task.coarse)

    @property
    def vocabulary(self) -> int:
        """V."""
        return len(self.low)

    def bounds(self, source: Int64) -> Int64:
        """Return bounds for source tokens [B, S], int64 [B, 2, T + 1].

        The token at position t must be in [bounds[:, 0, t] - S, bounds[:, 1, t] - S], where S is
        the sum of the earlier tokens of its group. Positions past the end, for which the last entry
        stands, have no limits.
        """
        following = self.earlier.shape[1] - (self.earlier >= 0).sum(1)  # [T + 1]
        low, high = self._sums(source)
        bounds = np.stack([low[:, self.group] - (self.vocabulary - 1) * following,
                           high[:, self.group]], axis=1)
        bounds[:, 0, -1], bounds[:, 1, -1] = -UNLIMITED, UNLIMITED
        return bounds

    def _sums(self, source: Int64) -> tuple[Int64, Int64]:
        """Return the smallest and the largest sum of the group of each source token, [B, S]
        each."""
        low, high = self.low[source], self.high[source]
        if self.coarse is None:
            return low, high
        size, cells = self.earlier.shape[1] + 1, source.shape[1] // (int(self.coarse.max()) + 1)
        totals = np.zeros((len(source), source.shape[1] // cells), np.int64)
        np.add.at(totals.T, self.coarse, source.T)
        # What is left of a coarse cell's smallest and largest sum if the sum of every cell in it is
        # size * v.
        least = (totals + cells // 2) // cells * cells * size - cells * size // 2 - size * totals
        most = least + cells * size - 1
        even = size * source
        return (np.maximum(low, even - (-least // cells)[:, self.coarse]),
                np.minimum(high, even + (most // cells)[:, self.coarse]))
