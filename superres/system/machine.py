"""Properties of the machine: name, usable cores, load, memory bandwidth, arithmetic speed and free memory."""

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
"""Largest ratio of the slowest to the fastest timing of a fixed workload on a machine that counts as idle."""

REPEATS = 30
WARM_UP = 5


def machine(device: torch.device) -> dict[str, Any]:
    """Return the properties on which measurements depend: processor, cores, threads, GPU and versions."""
    return {
        "cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__, "python": platform.python_version(), "system": platform.system(),
    }


def cpu_name() -> str:
    """Return the name of the processor, as far as the system reports it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def usable_cores(quota: float | None = None) -> int:
    """Return the number of cores that the affinity mask and `quota` (by default `core_quota()`) allow, at least 1."""
    affinity = getattr(os, "sched_getaffinity", None)  # missing on some systems
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, int(min(cores, core_quota() if quota is None else quota)))


@functools.cache
def core_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the CPU quota of this process's control groups, in cores; infinite without a quota.

    Args:
        groups: mount point of the control groups, version 1 or 2.
        own: file that lists the control groups of this process.
    """
    quota = math.inf
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                quota = min(quota, _quota(groups, path, lambda folder: (folder / "cpu.max").read_text().split()))
            elif "cpu" in controllers.split(","):
                quota = min(quota, _quota(groups / controllers, path, lambda folder: [
                    (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]))
    return quota


def _quota(root: Path, path: str, read: Callable[[Path], list[str]]) -> float:
    """Return the smallest quota of a control group and its ancestors, in cores; `read` returns a quota and its period.

    The root is included: in a container, the mounted folder often is the process's own group, whatever `path` is.
    """
    smallest = math.inf
    inner = root / path.lstrip("/")
    for folder in {root, inner, *(parent for parent in inner.parents if root in parent.parents)}:
        with suppress(OSError, ValueError):  # "max", which is not a number, means no limit
            quota, period = (int(number) for number in read(folder))
            if quota > 0:  # version 1 uses -1 for no limit
                smallest = min(smallest, quota / period)
    return smallest


class TorchThreads:
    """Context manager that limits the number of torch's threads.

    Torch's threads synchronise after every operation, so one thread that another process delays holds up all of them.
    Many small operations are faster with one thread, even on an idle machine.
    """

    _lock = threading.Lock()
    _depth = 0
    _before = 1
    _forked = False

    def __init__(self, most: int | None = None) -> None:
        """Allow `most` threads, by default the number of usable cores, but not more than torch uses already."""
        self.most = most or usable_cores()

    def __enter__(self) -> None:
        """Set the limit."""
        shared = TorchThreads
        with shared._lock:
            if not shared._depth:  # in a nested context, torch reports the limit instead of the original number
                shared._before = torch.get_num_threads()
            shared._depth += 1
            torch.set_num_threads(1 if shared._forked else min(shared._before, self.most))

    def __exit__(self, *_: object) -> None:
        """Restore the original number of threads."""
        shared = TorchThreads
        with shared._lock:
            shared._depth -= 1
            torch.set_num_threads(shared._before)

    @classmethod
    def limit(cls) -> int:
        """Return the number of threads that torch uses outside this context."""
        with cls._lock:
            return cls._before if cls._depth else torch.get_num_threads()

    @classmethod
    def _in_child(cls) -> None:
        # Torch's threads do not survive a fork: an operation on several threads would wait forever.
        cls._lock, cls._depth, cls._forked = threading.Lock(), 0, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TorchThreads._in_child)


def busyness(rounds: int = 20, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the ratio of the 90th percentile to the minimum of a fixed workload's timings: 1 on an idle machine."""
    timer, matrix = Timer(torch.device("cpu"), clock=clock), torch.ones(384, 384)

    def work() -> None:
        for _ in range(20):
            matrix @ matrix

    work()
    ordered = sorted(timer.once(work) for _ in range(rounds))
    return ordered[int(0.9 * rounds)] / ordered[0]


def require_idle() -> None:
    """Refuse to measure times on a busy machine.

    Raises:
        ConfigError: another process is using the processor.
    """
    ratio = busyness()
    if ratio > BUSY:
        raise ConfigError(f"this machine is busy (a fixed workload took up to {ratio:.2f} times its best time), so "
                          "timings are unreliable; stop other processes, or give --busy to measure anyway")


class Timer:
    """Times functions, including the work that they queue on the device."""

    def __init__(
        self, device: torch.device, repeats: int = REPEATS, warm_up: int = WARM_UP,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Time `repeats` calls on `device` after `warm_up` untimed calls; `clock` returns seconds."""
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


def bandwidth(size: int, timer: Timer) -> float:
    """Return the rate in bytes per second at which matrix-vector products read a float32 matrix of `size` bytes."""
    rows = max(1, size // 4 // 1024)
    matrix, vector = torch.ones(rows, 1024, device=timer.device), torch.ones(1024, device=timer.device)
    best = min(timer.once(lambda: torch.mv(matrix, vector)) for _ in range(50))
    return rows * 1024 * 4 / best


def matrix_rate(timer: Timer, size: int = 1024) -> float:
    """Return the operations per second (a multiply-add counts as two) of a large float32 matrix product."""
    matrix = torch.ones(size, size, device=timer.device)
    best = min(timer.once(lambda: matrix @ matrix) for _ in range(8))
    return 2 * size**3 / best


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes; for a CPU, within the limit of its control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [psutil.virtual_memory().available]
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max", which is not a number, means no limit
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(most - used)
    return max(min(free), 0)


def peak_bytes(device: torch.device, work: Callable[[], object]) -> float:
    """Run `work` and return its peak memory in bytes, beyond the memory in use before.

    On a GPU, this is the memory of tensors. On a CPU, it is the resident size. Its peak is over the life of the
    process, so work that needs less memory must run first. Memory that the process used and freed before is not
    counted.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return max(torch.cuda.max_memory_allocated(device) - before, 0.0)
    import resource  # missing on some systems

    before = psutil.Process().memory_info().rss
    work()
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0 - before, 0.0)
