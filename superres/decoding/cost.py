"""Measure the cost of blockwise decoding on this machine: the time of an iteration at each block
size."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.loop import Loop
from superres.decoding.proposers.proposer import Proposer
from superres.interfaces import Bool, Engine, Int64

TIMED = (1, 2, 3, 4, 6, 8, 10, 12, 16, 24, 32)
"""Block sizes whose cost is measured; the costs of sizes between them are interpolated."""

BURST = 16  # Iterations that are timed together
ROUNDS = 4  # Rounds of measurements of all block sizes, with at least one measurement of each
# Smallest total time of the measurements of one block size, over all rounds, in seconds
TIMED_SECONDS = 0.05

LONG_SECONDS = 0.1
"""Largest time of a burst of several iterations, in seconds. An iteration that takes longer is
timed once per round."""


def measured_costs(
    engine: Engine, source: Int64, options: DecodeConfig, largest: int,
    padding: Bool | None = None, proposer: Proposer | None = None, timed: Sequence[int] = TIMED,
) -> list[float]:
    """Return the seconds of an iteration at block sizes 1..`largest`.

    The number of sources [B, S] is the batch size to measure; `padding` is bool [B, S]. An
    iteration includes the proposals of `proposer`; by `options.proposer` if None. `timed` are the
    block sizes to measure besides the largest.
    """
    algorithm = Algorithm(engine, options, proposer)
    sizes = sorted({*(size for size in timed if size < largest), largest})
    least = np.full(len(sizes), np.inf)
    loop = Loop(algorithm.start(source, largest, padding))
    # In rounds over all sizes, so that other work on the machine slows no single size.
    for _ in range(ROUNDS):
        for index, size in enumerate(sizes):
            loop.decoder.resize(size)
            least[index] = min(least[index], _least_seconds(loop, engine))
    # A larger block never costs less; if it seems to, other work on the machine slowed down the
    # smaller one.
    least = np.minimum.accumulate(least[::-1])[::-1]
    return [float(np.interp(size, sizes, least)) for size in range(1, largest + 1)]


def _least_seconds(loop: Loop, engine: Engine) -> float:
    """Return the smallest measured seconds per iteration; other work on the machine can only
    increase them.

    On a CPU, they are seconds of this thread, which does its share of the work, without those in
    which it waited for a core.
    """
    clock = time.thread_time if engine.device == "cpu" else time.perf_counter
    least, spent, count, burst = math.inf, 0.0, 0, 1
    while count < 2 or (spent < TIMED_SECONDS / ROUNDS and least < LONG_SECONDS):
        started = clock()
        # All measurements start at the middle of a target, independently of the number of accepted
        # tokens.
        iterations = run_from(loop, engine.length // 2, burst)
        seconds = clock() - started
        count += 1
        burst = BURST if BURST * seconds < LONG_SECONDS * iterations else 1
        if count > 1:  # the first measurement completes a block of the previous size
            least = min(least, seconds / iterations)
            spent += seconds
    return least


def run_from(loop: Loop, position: int, count: int | None = None) -> int:
    """Do `count` iterations from `position` on in all rows, to time them, and return their number.

    Without `count`, a decoder on torch does one iteration, and a compiled one a burst. There may be
    fewer iterations if all rows are complete. Tokens of the rows are overwritten.
    """
    before = len(loop.recorder)
    loop.decoder.seek(position)
    loop.run((BURST if loop.decoder.compiled else 1) if count is None else count)
    return len(loop.recorder) - before
