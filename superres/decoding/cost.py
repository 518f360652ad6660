"""Measure the cost of blockwise decoding on this machine: the time of an iteration at each block
size."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.proposers.proposer import Proposer
from superres.interfaces import ScoringModel

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
    model: ScoringModel, source: Tensor, options: DecodeConfig, largest: int,
    padding: Tensor | None = None, proposer: Proposer | None = None, timed: Sequence[int] = TIMED,
) -> list[float]:
    """Return the seconds of an iteration at block sizes 1..`largest`.

    The number of sources [B, S] is the batch size to measure; `padding` is bool [B, S]. An
    iteration includes the proposals of `proposer`; by `options.proposer` if None. `timed` are the
    block sizes to measure besides the largest.
    """
    algorithm = Algorithm(model, options, proposer)
    sizes = sorted({*(size for size in timed if size < largest), largest})
    least = np.full(len(sizes), np.inf)
    with torch.inference_mode():
        keys = torch.arange(len(source), device=source.device)
        session = algorithm.model.session(source, largest, padding)
        loop = BlockwiseLoop(algorithm, session, keys, largest)
        # a row that ended during the measurement would cost nothing from then on
        loop.plain.end_token = None
        # In rounds over all sizes, so that other work on the machine slows no single size.
        for _ in range(ROUNDS):
            for index, size in enumerate(sizes):
                loop.resize(size)
                least[index] = min(least[index], _least_seconds(loop, source.device))
    # A larger block never costs less; if it seems to, other work on the machine slowed down the
    # smaller one.
    least = np.minimum.accumulate(least[::-1])[::-1]
    return [float(np.interp(size, sizes, least)) for size in range(1, largest + 1)]


def _least_seconds(loop: BlockwiseLoop, device: torch.device) -> float:
    """Return the smallest measured seconds per iteration; other work on the machine can only
    increase them.

    On a CPU, they are seconds of this thread, which does its share of the work, without those in
    which it waited for a core.
    """
    clock = time.thread_time if device.type == "cpu" else time.perf_counter
    least, spent, count, burst = math.inf, 0.0, 0, 1
    while count < 2 or (spent < TIMED_SECONDS / ROUNDS and least < LONG_SECONDS):
        started = clock()
        # All measurements start at the middle of a target, independently of the number of accepted
        # tokens.
        iterations = run_from(loop, loop.plain.state.length // 2, burst)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = clock() - started
        count += 1
        burst = BURST if BURST * seconds < LONG_SECONDS * iterations else 1
        if count > 1:  # the first measurement completes a block of the previous size
            least = min(least, seconds / iterations)
            spent += seconds
    return least


def run_from(loop: BlockwiseLoop, position: int, count: int | None = None) -> int:
    """Do `count` iterations from `position` on in all rows, to time them, and return their number.

    Without `count`, the plain decoder does one iteration, and others a burst. There may be fewer
    iterations if all rows are complete. Tokens of the rows are overwritten.
    """
    state, before = loop.plain.state, len(loop.recorder)
    state.position.fill_(position)
    state.limit.fill_(state.length)
    loop.run((1 if loop.decoder is loop.plain else BURST) if count is None else count)
    return len(loop.recorder) - before
