"""How many threads a native step uses: the number with the shortest measured time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

FIRST_ROUNDS, ROUNDS, IN_A_ROW = 4, 16, 4
"""Timed steps per number of threads, of which the fastest counts. The first session does FIRST_ROUNDS rounds over all
numbers of threads, so that a load peak slows all numbers alike. Each later session does one round, up to ROUNDS rounds,
since the machine may have been busy throughout the first session. A round times IN_A_ROW steps in succession, since
threads that were asleep are slow at first."""


class ThreadTrials:
    """Timings of a step with each number of threads.

    Attributes:
        rounds: rounds of timings done so far.
        least: shortest seconds of a step for each number of threads.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Compare the powers of two below `most`, and `most` itself; `clock` returns seconds."""
        self.rounds, self.clock = 0, clock
        self.least = {2**power: math.inf for power in range((most - 1).bit_length())} | {most: math.inf}

    def fastest(self, step: Callable[[int], None]) -> int:
        """Return the number of threads with the fastest step, after timing `step`, which takes this number."""
        more = FIRST_ROUNDS if not self.rounds else int(self.rounds < ROUNDS)
        self.rounds += more
        for threads in (*self.least,) * more:
            for _ in range(IN_A_ROW):
                started = self.clock()
                step(threads)
                self.least[threads] = min(self.least[threads], self.clock() - started)
        best = 1
        for threads, seconds in self.least.items():
            if seconds < 0.95 * self.least[best]:  # more threads must save at least 5 %
                best = threads
        return best
