"""The rows being decoded: committed tokens, how far each row is, and proposals that wait to be verified."""

from __future__ import annotations

import torch
from torch import Tensor


class DecodeState:
    """Tensors of the rows being decoded, and nothing else. They stay on the device and are changed in place.

    Shape letters: B rows, T target tokens, W proposals at most.

    Attributes:
        store: int64 [B, 1 + T + W]; column 0 stands for the start of the sequence, then come the committed tokens.
        position: tokens committed so far, int64 [B]; -1 where the start of the sequence has yet to be read.
        limit: where the row ends, int64 [B].
        proposals: tokens to verify, int64 [B, W]; the first of them is p1's own choice.
        pending: those of them that a step reads.
        block_size: k, how many of the proposals are a block; the rest is filler.
        starting: whether some rows may have yet to start.
        length: T.
    """

    def __init__(self, batch: int, length: int, width: int, block_size: int, filler: int, device: torch.device) -> None:
        """Make a state of `batch` rows that have yet to start.

        Args:
            batch: B.
            length: T.
            width: W.
            block_size: k.
            filler: what a row that starts has as proposals; it is never committed, and must not be the end token.
            device: where the tensors are.
        """
        self.length, self.block_size, self.filler, self.starting = length, block_size, filler, True
        self.store = torch.zeros(batch, 1 + length + width, dtype=torch.int64, device=device)  # [B, 1 + T + W]
        self.position = torch.full((batch,), -1, dtype=torch.int64, device=device)  # [B]
        self.limit = torch.full((batch,), length, dtype=torch.int64, device=device)  # [B]
        self.proposals = torch.full((batch, width), filler, dtype=torch.int64, device=device)  # [B, W]
        self._view()

    def _view(self) -> None:
        self.tokens = self.store[:, 1:]  # [B, T + W]
        self.columns = torch.arange(self.proposals.shape[1], device=self.store.device)  # [W]
        self.place = self.position.unsqueeze(1)  # [B, 1], the same memory
        self.fit(self.proposals.shape[1])

    def fit(self, width: int) -> None:
        """Let a step read the first `width` proposals, `pending`; all of them are read otherwise."""
        self.pending, self.next_columns = self.proposals[:, :width], self.columns[:width] + 1

    def targets(self, width: int) -> Tensor:
        """Return the target positions of the next `width` tokens, [B, width]."""
        return self.place + self.columns[:width]

    def room(self) -> Tensor:
        """Return how many tokens a row may accept at most, [B]; a row that starts accepts the start alone."""
        room = self.limit - self.position
        return room.masked_fill_(self.position < 0, 1) if self.starting else room

    def commit(self, block: Tensor, place: Tensor, accepted: Tensor) -> None:
        """Commit the first `accepted` [B] tokens of `block` [B, N].

        All N are written: those that were not accepted are overwritten before anything reads them.

        Args:
            block: the pending tokens.
            place: target positions that follow each of the pending tokens, [B, W].
            accepted: how many are committed.
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

    def keep(self, rows: Tensor) -> None:
        """Go on with `rows` [R] alone."""
        self.store, self.position, self.limit = self.store[rows], self.position[rows], self.limit[rows]
        width, self.proposals = self.pending.shape[1], self.proposals[rows]
        self._view()
        self.fit(width)
