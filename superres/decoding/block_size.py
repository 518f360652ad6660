"""Adaptive block size: choose k while decoding, by the cost of an iteration and by the tokens that blocks yield.

An iteration with k proposals costs T(k) seconds and yields S_1 + ... + S_k tokens. S_i is the share of blocks of which
at least i tokens are accepted (the survival curve). The best block size yields the most tokens per second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

MEMORY = 512  # Blocks that reached a token after which an earlier observation of that token counts for 1/e

EXPLORE = 32
"""Every `EXPLORE`-th update tries a block size one larger or smaller than the best one. Otherwise a survival curve that
has risen, or a cost that was measured too high, would never be noticed."""

EXPLORE_EARLY = 4
"""Every `EXPLORE_EARLY`-th update explores while a block size has few observations, which may be misleading."""

FEW_BLOCKS = 256  # Explore early until this many blocks have reached the larger size's last token
FEW_TIMINGS = 3  # Explore early until the size has this many timings
PATIENCE = 50  # Upper bound on bookkeeping: an update takes at most 1/`PATIENCE` of the decoding time

TIMINGS = 20
"""Number of latest timings used per block size. Their lower quartile counts, since other work on the machine can only
make an iteration slower."""

PRIOR = 2  # Weight of the correction common to all block sizes, as a number of timings


class AdaptiveBlockSize:
    """Chooses the block size while decoding. One object serves many decodes with the same settings, and keeps learning.

    `costs` are the seconds of an iteration at block sizes 1..K, corrected by timings.
    """

    interval = 16  # largest number of iterations between two updates

    def __init__(self, costs: Sequence[float], minimum: int = 1) -> None:
        """Choose among block sizes `minimum`..K by their `costs`, seconds per iteration at sizes 1..K."""
        self.costs = self.measured = np.array(costs, np.float64)
        self.minimum, self.updates, self.upward = minimum, 0, True
        # Seconds of earlier decodes since the last update, and the seconds that this update took.
        self.waited, self.overhead = 0.0, 0.0
        # Logarithms of timings of each size over its measured cost, and their lower quartiles.
        self.timings = [deque[float](maxlen=TIMINGS) for _ in costs]
        self.slower = np.zeros(len(self.costs))
        # Blocks that reached token i (from 1), and blocks of which token i + 1 passed. Optimistic at the start.
        self.reached, self.passed = np.ones(len(self.costs)), np.ones(len(self.costs))

    @property
    def survival(self) -> np.ndarray:
        """S_1..S_K as observed so far, float64 [K]."""
        share = self.passed[1:] / self.reached[1:]
        return np.concatenate([[1.0], np.cumprod(share)])

    def is_due(self, seconds: float) -> bool:
        """Tell whether an update is due, `seconds` of this decode after the last one."""
        return self.waited + seconds >= PATIENCE * self.overhead

    def updated(self, seconds: float) -> None:
        """Record that an update took `seconds`."""
        # Other work on the machine may have slowed this update, so it at most doubles the overhead.
        self.waited, self.overhead = 0.0, min(seconds, 2 * self.overhead) if self.overhead else seconds

    def observe(self, accepted: np.ndarray, block_size: np.ndarray) -> None:
        """Update the survival curve with blocks that the target's end did not truncate.

        `accepted` and `block_size` hold the accepted tokens and the size of each block, int64 [n].
        """
        token = np.arange(1, len(self.costs))
        accepted, block_size = accepted[:, None], block_size[:, None]
        arrived = (accepted >= token) & (block_size > token)
        count = arrived.sum(0)
        keep = np.exp(-count / MEMORY)
        self.reached[1:] = keep * self.reached[1:] + count
        self.passed[1:] = keep * self.passed[1:] + (arrived & (accepted > token)).sum(0)

    def time(self, block_size: np.ndarray, seconds: float) -> None:
        """Correct the costs by the total `seconds` of iterations of sizes `block_size`, int64 [n], n at least 1.

        A size with few timings is corrected by the common correction of all sizes.
        """
        size = int(np.bincount(block_size).argmax()) - 1  # the most frequent size
        self.timings[size].append(float(np.log(seconds / self.measured[block_size - 1].sum())))
        self.slower[size] = sorted(self.timings[size])[len(self.timings[size]) // 4]
        counts = np.array([len(timings) for timings in self.timings])  # [K]
        shared = (counts * self.slower).sum() / counts.sum()
        self.costs = self.measured * np.exp((counts * self.slower + PRIOR * shared) / (counts + PRIOR))

    def choose(self) -> int:
        """Return the block size for the next iterations."""
        self.updates += 1
        gain = np.cumsum(self.survival) / self.costs
        best = self.minimum + int(gain[self.minimum - 1 :].argmax())
        other = min(max(best + (1 if self.upward else -1), self.minimum), len(self.costs))
        unsure = len(self.timings[other - 1]) < FEW_TIMINGS or (other > best and self.reached[best] < FEW_BLOCKS)
        if self.updates % (EXPLORE_EARLY if unsure else EXPLORE):
            return best
        self.upward = not self.upward
        return other
