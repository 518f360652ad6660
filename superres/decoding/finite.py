"""The watch over a network's scores: a score that is not finite makes any token as good as another."""

from __future__ import annotations

import torch
from torch import Tensor

from superres.errors import ScoresError


class FiniteScores:
    """Notes on the device, without waiting for it, whether the scores of a decode are finite.

    The highest score of each column decides. So a token may be left out by a score of -inf, but not all tokens.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        """Prepare for steps of at most `columns` columns in `rows` rows."""
        self._sums = torch.zeros(rows, columns, device=device)
        self.is_noted = False

    def note(self, scores: Tensor) -> None:
        """Take note of a step's scores [B, W, V]."""
        # 0 times a number that is not finite is NaN, and stays it.
        self._sums[:, : scores.shape[1]].add_(scores.amax(-1), alpha=0)
        self.is_noted = True

    def check(self) -> None:
        """Wait for the device where anything was noted since the last check.

        Raises:
            ScoresError: scores were not finite.
        """
        if self.is_noted and bool(self._sums.isnan().any()):
            raise ScoresError
        self.is_noted = False

    def clear(self, rows: Tensor) -> None:
        """Forget what was noted of `rows` [R]."""
        self._sums.index_fill_(0, rows, 0.0)

    def shrink(self, kept: Tensor) -> None:
        """Keep rows `kept` [R] alone."""
        self._sums = self._sums[kept]


def require_finite(scores: Tensor) -> None:
    """Wait for `scores` [B, W, V].

    Raises:
        ScoresError: they are not finite.
    """
    watch = FiniteScores(scores.shape[0], scores.shape[1], scores.device)
    watch.note(scores)
    watch.check()
