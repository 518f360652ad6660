"""Times and memory of work, measured on an idle machine."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch

from superres.errors import ConfigError

BUSY = 1.25
"""Largest ratio of the slowest to the fastest timing of a fixed workload on a machine that counts
as idle."""


def busyness(rounds: int = 20, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the ratio of the 90th percentile to the minimum of a fixed workload's timings: 1 on an
    idle machine."""
    timer, matrix = Timer("cpu", clock=clock), torch.ones(384, 384)

    def work() -> None:
        for _ in range(20):
            matrix @ matrix

    work()
    ordered = sorted(timer.once(work) for _ in range(rounds))
    return ordered[int(0.9 * rounds)] / ordered[0]


def require_idle() -> None:
    """Raise ConfigError if another process is using the processor, so that no time is measured
    meanwhile."""
    ratio = busyness()
    if ratio > BUSY:
        raise ConfigError(f"this machine is busy (a fixed workload took up to {ratio:.2f} times "
                          "its best time), so timings are unreliable; stop other processes, or "
                          "give --busy to measure anyway")


class Timer:
    """Times functions, including the work that they queue on the device: `repeats` calls after
    `warm_up` others.

    `clock` returns seconds.
    """

    def __init__(
        self, device: str, repeats: int = 30, warm_up: int = 5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.repeats, self.warm_up, self.clock = device, repeats, warm_up, clock

    def now(self) -> float:
        """Wait for the device and return the time in seconds."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        return self.clock()

    def once(self, work: Callable[[], object]) -> float:
        """Return the duration of one call in seconds."""
        started = self.now()
        work()
        return self.now() - started

    def median(self, work: Callable[[], object]) -> float:
        """Return the median duration of a call in seconds."""
        for _ in range(self.warm_up):
            work()
        return statistics.median(self.once(work) for _ in range(self.repeats))


def peak_bytes(device: str, work: Callable[[], object]) -> float:
    """Run `work` and return its peak memory in bytes, beyond the memory in use before.

    On a GPU, this is the memory of tensors. On a CPU, it is the resident size; where the system
    cannot forget its earlier peak (other systems than Linux), work that needs less memory must run
    first.
    """
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return max(torch.cuda.max_memory_allocated() - before, 0.0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present size
    before = _peak_resident_bytes()
    work()
    return _peak_resident_bytes() - before


def _peak_resident_bytes() -> int:
    """Return the largest resident size of this process so far."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines()
                           if line.startswith("VmHWM:"))
    import resource  # missing on Windows

    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else 1024 * found
