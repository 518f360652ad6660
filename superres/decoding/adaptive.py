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
"""One look in so many tries a block one token larger than pays: without it a survival curve that has risen would never
be seen."""

UNSURE = 256
"""Below so many observations of that token, one look in EXPLORE_EARLY does: a bad start must not decide."""

EXPLORE_EARLY = 4


class AdaptiveBlockSize:
    """Chooses the block size while decoding. It remembers: one serves many decodes with the same settings.

    Attributes:
        costs: seconds of an iteration at block sizes 1..K.
    """

    def __init__(self, costs: Sequence[float], minimum: int = 1) -> None:
        """Choose among block sizes `minimum`..K by their `costs`; the largest comes first."""
        self.costs = np.asarray(costs, np.float64)
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
        for token in range(1, len(self.costs)):
            arrived = (accepted >= token) & (block_size > token)
            count = int(arrived.sum())
            keep = np.exp(-count / MEMORY)
            self.reached[token] = keep * self.reached[token] + count
            self.passed[token] = keep * self.passed[token] + int((accepted[arrived] > token).sum())

    def choose(self) -> int:
        """Return the block size for the next iterations."""
        self.looks += 1
        gain = np.cumsum(self.survival) / self.costs
        best = self.minimum + int(gain[self.minimum - 1 :].argmax())
        if best == len(self.costs):
            return best
        explores = self.looks % (EXPLORE if self.reached[best] >= UNSURE else EXPLORE_EARLY) == 0
        return best + 1 if explores else best
