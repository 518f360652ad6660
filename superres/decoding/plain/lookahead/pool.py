"""A pool of the n-grams seen while decoding, looked up by their first token; all data stays on the
device."""

from __future__ import annotations

import torch
from torch import Tensor

UNUSED = -1  # First token of an empty entry
CAPACITY = 1024  # Number of n-grams per row in a pool


class NgramPool:
    """The latest distinct n-grams of each row of a batch. Rows do not share n-grams."""

    def __init__(self, batch: int, ngram_size: int, device: torch.device,
                 capacity: int = CAPACITY) -> None:
        """Make an empty pool of `capacity` n-grams of `ngram_size` tokens per row."""
        self.grams = torch.full((batch, capacity, ngram_size), UNUSED, device=device)  # [B, C, N]
        self.entries = torch.arange(capacity, device=device)
        # the entry overwritten next, in all rows
        self.oldest = torch.zeros(1, dtype=torch.int64, device=device)

    def add(self, grams: Tensor) -> None:
        """Add n-grams [B, W, N], the latest one last, W at most the capacity; a known n-gram
        becomes the latest."""
        count, capacity = grams.shape[1], len(self.entries)
        later = self.entries[:count].unsqueeze(1) < self.entries[:count]  # [W, W]
        repeated = ((grams.unsqueeze(2) == grams.unsqueeze(1)).all(-1) & later).any(2)  # [B, W]
        known = (self.grams.unsqueeze(2) == grams.unsqueeze(1)).all(-1).any(2)  # [B, C]
        self.grams.masked_fill_(known.unsqueeze(-1), UNUSED)
        place = (self.entries[:count] + self.oldest) % capacity
        self.grams.index_copy_(1, place, grams.masked_fill(repeated.unsqueeze(-1), UNUSED))
        self.oldest.add_(count).remainder_(capacity)

    def find(self, first: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        """Return continuations of the token `first` [B], and whether there are such, bool [B, G], G
        at most `limit`.

        Continuations are int64 [B, G, N - 1], the latest first, 0 where there is none.
        """
        age = (self.entries - self.oldest) % len(self.entries)  # [C]
        matches = torch.where(self.grams[..., 0] == first.unsqueeze(1), age, UNUSED)  # [B, C]
        found = matches.topk(min(limit, len(self.entries)), dim=1)
        known = found.values >= 0
        size = self.grams.shape[2]
        # [B, G, N - 1]
        grams = self.grams.gather(1, found.indices.unsqueeze(-1).expand(-1, -1, size))[..., 1:]
        return grams.masked_fill(~known.unsqueeze(-1), 0), known

    def clear(self, rows: Tensor) -> None:
        """Delete all n-grams of `rows` [R]."""
        self.grams.index_fill_(0, rows, UNUSED)

    def shrink(self, kept: Tensor) -> None:
        """Keep rows `kept` [R] only."""
        self.grams = self.grams[kept]
