"""A short trial of training steps, which finds the fastest precision and number of threads of a CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from superres.system.progress import say

TRIAL_SECONDS = 2.0
"""Seconds for the timed steps of one setting; at least one step is timed."""
HOPELESS = 2.0
"""A setting whose first step, which is not timed otherwise, takes this many times the best one's is given up."""


def fastest_setting(step: Callable[[str], object], most: float = math.inf) -> str:
    """Return the precision with the fastest steps, "bf16" or "no", and set torch's number of threads to its best.

    `step` computes a step in the given precision and changes nothing. All threads that torch uses now are tried, and
    one: processors without bf16 arithmetic emulate it, and small networks are faster on one thread. After `most`
    seconds, no further setting is tried.
    """
    before, found, started = torch.get_num_threads(), dict[tuple[str, int], float](), time.monotonic()
    for threads in sorted({before, 1}, reverse=True):
        torch.set_num_threads(threads)
        for precision in ("no", "bf16"):
            if found and time.monotonic() - started > most:
                break
            first = _seconds(step, precision)
            hopeless = found and first > HOPELESS * min(found.values()) and first > TRIAL_SECONDS
            if hopeless or first > most:
                found[precision, threads] = first
                continue
            times, end = list[float](), time.monotonic() + TRIAL_SECONDS
            while not times or time.monotonic() < end:
                times.append(_seconds(step, precision))
            found[precision, threads] = min(times)
    best = min(found, key=found.__getitem__)
    torch.set_num_threads(best[1])
    others = [f"{_name(*setting)} {seconds:.2g} s" for setting, seconds in found.items() if setting != best]
    say(f"the fastest of {len(found)} settings: {_name(*best)}, {found[best]:.2g} s per step; others: "
        f"{', '.join(others) or 'none, for lack of time'}")
    return best[0]


def _seconds(step: Callable[[str], object], precision: str) -> float:
    start = time.monotonic()
    step(precision)
    return time.monotonic() - start


def _name(precision: str, threads: int) -> str:
    return f"{'bf16' if precision == 'bf16' else 'float32'} on {threads} thread{'s' if threads > 1 else ''}"
