"""Adaptive block size: as many proposals a step as pay, by what steps cost here and how far blocks have lately got.

A block of k tokens costs T(k) seconds and yields S_1 + ... + S_k tokens, S_i being the share of blocks of which at
least i tokens are accepted (the survival curve). The block size with the most tokens a second is taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

MEMORY = 512
"""Blocks that got to a token after which an earlier one counts for 1/e."""

EXPLORE = 32
"""One look in so many tries a block one token larger than pays, or one smaller, in turn: without it a survival curve
that has risen, or a cost that was measured too high, would never be seen."""

UNSURE = 256
"""Below so many observations of that token, one look in EXPLORE_EARLY does: a bad start must not decide."""

SURE_OF_COST = 3
"""Nor must a cost that was measured wrongly: so many looks at a neighbouring size come early, too."""

EXPLORE_EARLY = 4

PATIENCE = 50
"""Decoding takes so many times as long as a look, at least: to see what blocks did and choose anew is not for free."""

LOOKS = 20
"""So many of the latest looks at a block size tell its cost: by their lower quartile, since what else a machine does
makes a step slower for a moment, never faster."""

PRIOR = 2
"""So many more tell that it is as far off as the others are."""


class AdaptiveBlockSize:
    """Chooses the block size while decoding. It remembers: one serves many decodes with the same settings.

    Attributes:
        costs: seconds of an iteration at block sizes 1..K, corrected by those that are seen.
    """

    def __init__(self, costs: Sequence[float], minimum: int = 1) -> None:
        """Choose among block sizes `minimum`..K by their `costs`; the largest comes first."""
        self.costs = self.measured = np.array(costs, np.float64)
        self.minimum, self.looks, self.upward = minimum, 0, True
        # Seconds of decoding, in earlier decodes, that nothing was learned from, and what the last look took.
        self.waited, self.took = 0.0, 0.0
        # Logarithms of what looks at each size saw over what was measured, and their lower quartiles.
        self.seen = [deque[float](maxlen=LOOKS) for _ in costs]
        self.slower = np.zeros(len(self.costs))
        # Of the blocks that got as far as token i (from 1), how many got further. Hopeful before anything was seen.
        self.reached, self.passed = np.ones(len(self.costs)), np.ones(len(self.costs))

    @property
    def survival(self) -> np.ndarray:
        """S_1..S_K as far as known, float64 [K]."""
        share = self.passed[1:] / self.reached[1:]
        return np.concatenate([[1.0], np.cumprod(share)])

    def is_due(self, seconds: float) -> bool:
        """Tell whether to learn now, `seconds` of this decode after the last time."""
        return self.waited + seconds >= PATIENCE * self.took

    def looked(self, seconds: float) -> None:
        """Say how long it took to learn and to choose."""
        # Something else may have kept the machine busy for a moment.
        self.waited, self.took = 0.0, min(seconds, 2 * self.took) if self.took else seconds

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

        A size that was hardly seen yet is taken to be off by as much as the others.

        Args:
            block_size: of each iteration, int64 [n], n at least 1.
            seconds: that they took together.
        """
        size = int(np.bincount(block_size).argmax()) - 1  # that of most of them
        self.seen[size].append(float(np.log(seconds / self.measured[block_size - 1].sum())))
        self.slower[size] = sorted(self.seen[size])[len(self.seen[size]) // 4]
        looks = np.array([len(seen) for seen in self.seen])
        everywhere = (looks * self.slower).sum() / looks.sum()
        self.costs = self.measured * np.exp((looks * self.slower + PRIOR * everywhere) / (looks + PRIOR))

    def choose(self) -> int:
        """Return the block size for the next iterations."""
        self.looks += 1
        gain = np.cumsum(self.survival) / self.costs
        best = self.minimum + int(gain[self.minimum - 1 :].argmax())
        other = min(max(best + (1 if self.upward else -1), self.minimum), len(self.costs))
        unsure = len(self.seen[other - 1]) < SURE_OF_COST or (other > best and self.reached[best] < UNSURE)
        if self.looks % (EXPLORE_EARLY if unsure else EXPLORE):
            return best
        self.upward = not self.upward
        return other
