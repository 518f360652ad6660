"""Adaptive block size: as many proposals a step as pay, by what steps cost here and how far blocks have lately got.

A block of k tokens costs T(k) seconds and yields S_1 + ... + S_k tokens, S_i being the share of blocks of which at
least i tokens are accepted (the survival curve). The block size with the most tokens a second is taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MEMORY = 512
"""Blocks that got to a token after which an earlier one counts for 1/e."""

EXPLORE = 32
"""One look in so many tries a block one token larger than pays, or one smaller, in turn: without it a survival curve
that has risen, or a cost that was measured too high, would never be seen."""

UNSURE = 256
"""Below so many observations of that token, one look in EXPLORE_EARLY does: a bad start must not decide."""

EXPLORE_EARLY = 4

PATIENCE = 0.01
"""Seconds of decoding between two looks, at least: a look costs up to a fifth of a millisecond."""

CORRECTION = 0.05
"""How far, as a power of the ratio, a look moves the costs towards what iterations have really taken."""

FARTHEST = 4.0
"""A ratio beyond this, or below one over it, counts as this: something else kept the machine busy for a moment."""


class AdaptiveBlockSize:
    """Chooses the block size while decoding. It remembers: one serves many decodes with the same settings.

    Attributes:
        costs: seconds of an iteration at block sizes 1..K, corrected by those that are seen.
    """

    def __init__(self, costs: Sequence[float], minimum: int = 1) -> None:
        """Choose among block sizes `minimum`..K by their `costs`; the largest comes first."""
        self.costs = np.array(costs, np.float64)
        self.minimum, self.looks = minimum, 0
        # Of the blocks that got as far as token i (from 1), how many got further. Hopeful before anything was seen.
        self.reached, self.passed = np.ones(len(self.costs)), np.ones(len(self.costs))

    @property
    def survival(self) -> np.ndarray:
        """S_1..S_K as far as known, float64 [K]."""
        share = self.passed[1:] / self.reached[1:]
        return np.concatenate([[1.0], np.cumprod(share)])

    def observe(self, accepted: np.ndarray, block_size: np.ndarray) -> None:
        """Learn from blocks that were not cut short by a target's end.

        Args:
            accepted: tokens accepted of each, int64 [n].
            block_size: their sizes, int64 [n].
        """
        token = np.arange(1, len(self.costs))
        accepted, block_size = accepted[:, None], block_size[:, None]
        arrived = (accepted >= token) & (block_size > token)
        count = arrived.sum(0)
        keep = np.exp(-count / MEMORY)
        self.reached[1:] = keep * self.reached[1:] + count
        self.passed[1:] = keep * self.passed[1:] + (arrived & (accepted > token)).sum(0)

    def time(self, block_size: np.ndarray, seconds: float) -> None:
        """Learn what iterations cost where they are really done.

        A machine that is slower than when they were measured is so at every block size; the rest is owed to those seen.

        Args:
            block_size: of each iteration, int64 [n], n at least 1.
            seconds: that they took together.
        """
        ratio = np.clip(seconds / self.costs[block_size - 1].sum(), 1 / FARTHEST, FARTHEST)
        share = np.bincount(block_size - 1, minlength=len(self.costs)) / len(block_size)
        self.costs *= ratio ** (CORRECTION * (1 + share))

    def choose(self) -> int:
        """Return the block size for the next iterations."""
        self.looks += 1
        gain = np.cumsum(self.survival) / self.costs
        best = self.minimum + int(gain[self.minimum - 1 :].argmax())
        unsure = best < len(self.costs) and self.reached[best] < UNSURE
        every = EXPLORE_EARLY if unsure else EXPLORE
        if self.looks % every:
            return best
        other = best + 1 if unsure or self.looks // every % 2 else best - 1
        return min(max(other, self.minimum), len(self.costs))
