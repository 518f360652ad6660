"""What an iteration of decoding costs on this machine, by block size."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.blockwise import BlockwiseLoop
from superres.scoring import ScoringModel

TIMED = (1, 2, 3, 4, 6, 8, 10, 12, 16)
"""Block sizes whose cost is measured; those between are interpolated."""

TIMED_SECONDS = 0.05
"""Time given to one block size, at least three iterations."""


def measured_costs(
    model: ScoringModel, source: Tensor, options: DecodeConfig, largest: int, padding: Tensor | None = None,
) -> list[float]:
    """Time iterations of decoding and return their seconds at block sizes 1..`largest`.

    Args:
        model: the model.
        source: source tokens [B, S] of as many rows as will be decoded.
        options: acceptance and sampling.
        largest: largest block size.
        padding: bool [B, S], as for `superres.decoding.blockwise.decode`.
    """
    sizes = sorted({*(size for size in TIMED if size < largest), largest})
    seconds = []
    with torch.inference_mode():
        keys = torch.arange(len(source), device=source.device)
        session = model.session(source, largest, padding)
        loop = BlockwiseLoop(model, session, options, keys, largest, fitted=True)
        for size in sizes:
            loop.resize(size)
            seconds.append(_least_seconds(loop, source.device))
    # A larger block never costs less: where it seems to, something else slowed the smaller one.
    least = np.minimum.accumulate(seconds[::-1])[::-1]
    return [float(np.interp(size, sizes, least)) for size in range(1, largest + 1)]


def _least_seconds(loop: BlockwiseLoop, device: torch.device) -> float:
    """Return the least seconds of an iteration: whatever else the machine does only ever adds to them."""
    least, spent, count = float("inf"), 0.0, 0
    while count < 4 or spent < TIMED_SECONDS:
        started = time.perf_counter()
        # Always at one place in the middle of a target, however much is accepted.
        turns = loop.burst(loop.length // 2)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = (time.perf_counter() - started) / turns
        spent += took
        count += 1
        if count > 1:  # the first still finishes a block of the size before
            least = min(least, took)
    return least
