"""Detection of scores that are not finite, which would make the choice of tokens arbitrary."""

from __future__ import annotations

import torch
from torch import Tensor

from superres.errors import ScoresError


class NanCheck:
    """Records on the device, without synchronisation, whether the scores of a decode are finite.

    Only the highest score of each column is checked. So single tokens may have a score of -inf, but not all tokens.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        """Prepare for steps of at most `columns` columns in `rows` rows."""
        self._sums = torch.zeros(rows, columns, device=device)
        self.is_noted = False

    def note(self, scores: Tensor) -> None:
        """Record the scores of a step [B, W, V]."""
        # 0 times a number that is not finite is NaN, and NaN stays NaN in a sum.
        self._sums[:, : scores.shape[1]].add_(scores.amax(-1), alpha=0)
        self.is_noted = True

    def check(self) -> None:
        """Check the scores recorded since the last check; this synchronises with the device if there are any.

        Raises:
            ScoresError: scores were not finite.
        """
        if self.is_noted and bool(self._sums.isnan().any()):
            raise ScoresError
        self.is_noted = False

    def clear(self, rows: Tensor) -> None:
        """Clear the record of `rows` [R]."""
        self._sums.index_fill_(0, rows, 0.0)

    def shrink(self, kept: Tensor) -> None:
        """Keep rows `kept` [R] only."""
        self._sums = self._sums[kept]


def require_finite(scores: Tensor) -> None:
    """Check `scores` [B, W, V]; this synchronises with the device.

    Raises:
        ScoresError: scores are not finite.
    """
    watch = NanCheck(scores.shape[0], scores.shape[1], scores.device)
    watch.note(scores)
    watch.check()
