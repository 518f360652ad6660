"""The rows being decoded: committed tokens, how far each row is, proposals to verify, and whether
scores are finite."""

from __future__ import annotations

import torch
from torch import Tensor

from superres.errors import ScoresError


class DecodeState:
    """Tensors of the rows being decoded, and nothing else. They stay on the device and are changed
    in place.

    Shape letters: B rows, T target tokens, W proposals at most. A step reads `pending`, the first
    proposals; `block_size` of them are a block, and the rest is filler. `starting` is true if rows
    may have yet to start.
    """

    def __init__(self, batch: int, length: int, width: int, block_size: int, filler: int,
                 device: torch.device) -> None:
        """Make a state of `batch` rows that have yet to start.

        The token `filler` fills the proposals of a row that starts; it is never committed, and must
        not be the end token.
        """
        self.length, self.block_size, self.filler, self.starting = length, block_size, filler, True
        # [B, 1 + T + W]: column 0 stands for the start of the sequence, then come the committed
        # tokens.
        self.store = torch.zeros(batch, 1 + length + width, dtype=torch.int64, device=device)
        # [B]: number of committed tokens; -1 where the start of the sequence has yet to be read.
        self.position = torch.full((batch,), -1, dtype=torch.int64, device=device)
        # [B]: where the row ends
        self.limit = torch.full((batch,), length, dtype=torch.int64, device=device)
        # [B, W]: tokens to verify; the first of them is p1's own choice.
        self.proposals = torch.full((batch, width), filler, dtype=torch.int64, device=device)
        self._view()

    def _view(self) -> None:
        self.tokens = self.store[:, 1:]  # [B, T + W]
        self.columns = torch.arange(self.proposals.shape[1], device=self.store.device)  # [W]
        self.place = self.position.unsqueeze(1)  # [B, 1], the same memory
        self.fit(self.proposals.shape[1])

    def fit(self, width: int) -> None:
        """Let a step read the first `width` proposals, `pending`; all of them are read
        otherwise."""
        self.pending, self.next_columns = self.proposals[:, :width], self.columns[:width] + 1

    def targets(self, width: int) -> Tensor:
        """Return the target positions of the next `width` tokens, [B, width]."""
        return self.place + self.columns[:width]

    def missing(self) -> Tensor:
        """Return the largest number of tokens that each row may accept, [B]; 1, the start, for a
        row that starts."""
        missing = self.limit - self.position
        return missing.masked_fill_(self.position < 0, 1) if self.starting else missing

    def commit(self, block: Tensor, place: Tensor, accepted: Tensor) -> None:
        """Commit the first `accepted` [B] tokens of `block` [B, N]; `place` [B, W] are the targets
        that follow each.

        All N are written: those that were not accepted are overwritten before anything reads them.
        """
        self.store.scatter_(1, place[:, : block.shape[1]], block)
        self.position.add_(accepted)

    def start(self, rows: Tensor, longest: Tensor | None = None) -> None:
        """Begin new sequences in `rows` [R], of at most `longest` [B] tokens, T if None."""
        self.position.index_fill_(0, rows, -1)
        self.limit.index_fill_(0, rows, self.length)
        if longest is not None:
            self.limit.index_copy_(0, rows, longest[rows])
        self.proposals.index_fill_(0, rows, self.filler)
        self.starting = True

    def shrink(self, rows: Tensor) -> None:
        """Continue with `rows` [R] only."""
        self.store, self.position, self.limit = (self.store[rows], self.position[rows],
                                                 self.limit[rows])
        width, self.proposals = self.pending.shape[1], self.proposals[rows]
        self._view()
        self.fit(width)


class NanCheck:
    """Records on the device, without synchronisation, whether the scores of a decode are finite.

    Only the highest score of each column is checked. So single tokens may have a score of -inf, but
    not all tokens.
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
        """Raise ScoresError if scores recorded since the last check were not finite (reads from the
        device)."""
        if self.is_noted and bool(self._sums.isnan().any()):
            raise ScoresError
        self.is_noted = False

    def clear(self, rows: Tensor) -> None:
        """Clear the record of `rows` [R]."""
        self._sums.index_fill_(0, rows, 0.0)

    def shrink(self, kept: Tensor) -> None:
        """Keep rows `kept` [R] only."""
        self._sums = self._sums[kept]
