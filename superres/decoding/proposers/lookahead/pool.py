"""N-grams seen while decoding, by their first token; all of it stays on the device."""

from __future__ import annotations

import torch
from torch import Tensor

UNUSED = -1
CAPACITY = 1024
"""N-grams per row that a pool holds."""


class NgramPool:
    """The latest distinct n-grams of each row of a batch. Rows share nothing.

    Attributes:
        grams: int64 [B, C, N]; an entry whose first token is UNUSED holds nothing.
        oldest: the entry that is overwritten next, the same for all rows.
    """

    def __init__(self, batch: int, ngram_size: int, device: torch.device, capacity: int = CAPACITY) -> None:
        """Make room for `capacity` n-grams of `ngram_size` tokens per row."""
        self.grams = torch.full((batch, capacity, ngram_size), UNUSED, device=device)
        self.entries = torch.arange(capacity, device=device)
        self.oldest = 0

    def add(self, grams: Tensor) -> None:
        """Add n-grams [B, W, N], W at most the capacity, the last one as the latest; one that is known becomes new."""
        count, capacity = grams.shape[1], len(self.entries)
        later = self.entries[:count].unsqueeze(1) < self.entries[:count]
        again = ((grams.unsqueeze(2) == grams.unsqueeze(1)).all(-1) & later).any(2)
        known = (self.grams.unsqueeze(2) == grams.unsqueeze(1)).all(-1).any(2)
        self.grams = self.grams.masked_fill(known.unsqueeze(-1), UNUSED)
        place = (self.entries[:count] + self.oldest) % capacity
        self.grams[:, place] = grams.masked_fill(again.unsqueeze(-1), UNUSED)
        self.oldest = (self.oldest + count) % capacity

    def find(self, first: Tensor, most: int) -> tuple[Tensor, Tensor]:
        """Look up what followed the token `first` [B].

        Returns:
            The latest continuations, int64 [B, most, N - 1], the latest first; and which of them there are, bool
            [B, most]. The others are 0.
        """
        age = (self.entries - self.oldest) % len(self.entries)
        matches = torch.where(self.grams[..., 0] == first.unsqueeze(1), age, UNUSED)
        found = matches.topk(min(most, len(self.entries)), dim=1)
        known = found.values >= 0
        size = self.grams.shape[2]
        grams = self.grams.gather(1, found.indices.unsqueeze(-1).expand(-1, -1, size))[..., 1:]
        return grams.masked_fill(~known.unsqueeze(-1), 0), known

    def clear(self, rows: Tensor) -> None:
        """Forget all n-grams of `rows` [R]."""
        self.grams = self.grams.index_fill(0, rows, UNUSED)

    def shrink(self, kept: Tensor) -> None:
        """Keep rows `kept` [R] alone."""
        self.grams = self.grams[kept]
