"""Properties of the machine: name, usable cores, load, memory bandwidth, arithmetic speed and free
memory."""

from __future__ import annotations

import functools
import math
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from superres.errors import ConfigError

BUSY = 1.25
"""Largest ratio of the slowest to the fastest timing of a fixed workload on a machine that counts
as idle."""


def machine(device: torch.device) -> dict[str, Any]:
    """Return the properties on which measurements depend: processor, cores, threads, GPU and
    versions."""
    return {
        "cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__, "python": platform.python_version(),
        "system": platform.system(),
    }


def cpu_name() -> str:
    """Return the name of the processor, as far as the system reports it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines
                        if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return the number of cores that the affinity mask and the CPU quota allow, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # missing on some systems
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, int(min(cores, core_quota())))


@functools.cache
def core_quota(groups: Path = Path("/sys/fs/cgroup"),
               own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the smallest CPU quota of this process's control groups and their ancestors in cores;
    inf without one.

    `groups` is the mount point of the control groups, version 1 or 2; the file `own` lists those of
    this process.
    """
    smallest = math.inf
    with suppress(OSError):
        for _, controllers, path in (line.split(":", 2) for line in own.read_text().splitlines()):
            if controllers and "cpu" not in controllers.split(","):
                continue
            # of version 1 or 2
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if controllers else ("cpu.max",)
            # The root is included: in a container it often is the process's own group, whatever
            # `path` is.
            root = groups / controllers
            inner = root / path.lstrip("/")
            for folder in {root, inner,
                           *(parent for parent in inner.parents if root in parent.parents)}:
                with suppress(OSError, ValueError):  # "max", which is not a number, means no limit
                    quota, period = map(
                        int, " ".join((folder / name).read_text() for name in names).split()
                    )
                    if quota > 0:  # version 1 uses -1 for no limit
                        smallest = min(smallest, quota / period)
    return smallest


class TorchThreads:
    """Context manager that limits torch's threads to `most` (the usable cores), but never raises
    their number.

    Torch's threads synchronise after every operation, so one thread that another process delays
    holds up all of them. Many small operations are faster with one thread, even on an idle machine.
    """

    _lock = threading.Lock()
    _depth = 0
    _before = 1
    # numbers of torch's threads at the start of each open context of this thread
    _entered = threading.local()
    _forked = False

    def __init__(self, most: int | None = None) -> None:
        self.most = most or usable_cores()

    def __enter__(self) -> None:
        shared = TorchThreads
        with shared._lock:
            # in a nested context, torch reports the limit instead of the original number
            if not shared._depth:
                shared._before = torch.get_num_threads()
            shared._depth += 1
            found = vars(shared._entered).setdefault("numbers", [])
            found.append(torch.get_num_threads())
            torch.set_num_threads(1 if shared._forked else min(found[-1], self.most))

    def __exit__(self, *_: object) -> None:
        shared = TorchThreads
        with shared._lock:
            shared._depth -= 1
            found = shared._entered.numbers.pop()
            # Where torch has one number for all threads, another context may have changed it.
            torch.set_num_threads(found if shared._depth else shared._before)

    @classmethod
    def limit(cls) -> int:
        """Return the number of threads that torch uses outside this context."""
        with cls._lock:
            return cls._before if cls._depth else torch.get_num_threads()

    @classmethod
    def _in_child(cls) -> None:
        # Torch's threads do not survive a fork: an operation on several threads would wait forever.
        cls._lock, cls._depth, cls._entered, cls._forked = (threading.Lock(), 0, threading.local(),
                                                            True)
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TorchThreads._in_child)


def busyness(rounds: int = 20, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the ratio of the 90th percentile to the minimum of a fixed workload's timings: 1 on an
    idle machine."""
    timer, matrix = Timer(torch.device("cpu"), clock=clock), torch.ones(384, 384)

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
        self, device: torch.device, repeats: int = 30, warm_up: int = 5,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.device, self.repeats, self.warm_up, self.clock = device, repeats, warm_up, clock

    def now(self) -> float:
        """Wait for the device and return the time in seconds."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
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


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes; for a CPU, within the limit of its control
    group.

    What torch keeps of a GPU's memory for later tensors counts as free.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + kept
    free, group = psutil.virtual_memory().available, Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max", which is not a number, means no limit
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free = min(free, most - used)
    return max(int(free), 0)


def peak_bytes(device: torch.device, work: Callable[[], object]) -> float:
    """Run `work` and return its peak memory in bytes, beyond the memory in use before.

    On a GPU, this is the memory of tensors. On a CPU, it is the resident size; where the system
    cannot forget its earlier peak (other systems than Linux), work that needs less memory must run
    first.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return max(torch.cuda.max_memory_allocated(device) - before, 0.0)
    import resource  # missing on some systems

    before = psutil.Process().memory_info().rss
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        work()
        return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0 - before, 0.0)
    work()
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return max(peak * 1024.0 - before, 0.0)
