"""A short trial of training steps, which finds the fastest precision and number of threads of a CPU."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from contextlib import suppress

import torch

from superres.errors import BudgetError
from superres.system.progress import say

TRIAL_SECONDS = 2.0
"""Seconds for the timed steps of one setting; at least one step is timed."""
HOPELESS = 2.0
"""A setting whose first step, which is not timed otherwise, takes this many times the best one's is given up."""


def fastest_setting(step: Callable[[str], object], most: float = math.inf) -> str:
    """Return the precision with the fastest steps, "bf16" or "no", and set torch's number of threads to its best.

    `step` computes a step in the given precision and changes nothing. All threads that torch uses now are tried, and
    one: processors without bf16 arithmetic emulate it, and small networks are faster on one thread. After `most`
    seconds, no further setting is tried. If the time of a surrounding `budget` ends a step, its setting is left out.
    """
    before, found, started = torch.get_num_threads(), dict[tuple[str, int], float](), time.monotonic()
    with suppress(BudgetError):
        for threads, precision in itertools.product(sorted({before, 1}, reverse=True), ("no", "bf16")):
            if found and time.monotonic() - started > most:
                break
            torch.set_num_threads(threads)
            best, first = min(found.values(), default=math.inf), _seconds(step, precision)
            found[precision, threads], end = first, time.monotonic() + TRIAL_SECONDS
            if first > most or (first > HOPELESS * best and first > TRIAL_SECONDS):
                continue
            timed = False
            while not timed or time.monotonic() < end:
                found[precision, threads] = min(found[precision, threads], _seconds(step, precision))
                timed = True
    if not found:
        torch.set_num_threads(before)
        say("no time to try precision and threads: float32 and all threads are used")
        return "no"
    chosen = min(found, key=found.__getitem__)
    torch.set_num_threads(chosen[1])
    others = [f"{_name(*setting)} {seconds:.2g} s" for setting, seconds in found.items() if setting != chosen]
    say(f"the fastest of {len(found)} settings: {_name(*chosen)}, {found[chosen]:.2g} s per step; others: "
        f"{', '.join(others) or 'none, for lack of time'}")
    return chosen[0]


def _seconds(step: Callable[[str], object], precision: str) -> float:
    start = time.monotonic()
    step(precision)
    return time.monotonic() - start


def _name(precision: str, threads: int) -> str:
    return f"{'bf16' if precision == 'bf16' else 'float32'} on {threads} thread{'s' if threads > 1 else ''}"
