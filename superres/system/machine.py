"""What a machine is and can do: name, usable cores, whether it is busy, speeds of reading and multiplying, memory."""

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

import torch

from superres.errors import ConfigError

BUSY = 1.25
"""Largest ratio of the slowest to the fastest time of fixed work on a machine that counts as idle."""

REPEATS = 30
WARM_UP = 5


def machine(device: torch.device) -> dict[str, Any]:
    """Return the properties of the machine that measurements depend on: processor, cores, threads, GPU, versions."""
    return {
        "cpu": cpu_name(), "cores": os.cpu_count(), "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "torch": torch.__version__, "python": platform.python_version(), "system": platform.system(),
    }


def cache_folder() -> Path:
    """Return the folder in the user's cache for compiled code and measured costs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "superres"


def cpu_name() -> str:
    """Return the processor's name, as detailed as the system reports it."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def usable_cores(quota: float | None = None) -> int:
    """Return how many cores this process may use: by its affinity mask, and by `quota`, or `core_quota()` if None."""
    # Not every system has affinity masks.
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, int(min(cores, core_quota() if quota is None else quota)))


@functools.cache
def core_quota(groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float:
    """Return the cores' worth of time that the control groups of this process allow at most; infinite without a limit.

    Args:
        groups: where control groups are mounted, of version 1 or 2.
        own: the file that names those of this process.
    """
    least = math.inf
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                least = min(least, _quota(groups, path, lambda folder: (folder / "cpu.max").read_text().split()))
            elif "cpu" in controllers.split(","):
                least = min(least, _quota(groups / controllers, path, lambda folder: [
                    (folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]))
    return least


def _quota(root: Path, path: str, read: Callable[[Path], list[str]]) -> float:
    """Return the cores that a control group and those around it allow at most; `read` gives a group's quota and period.

    In a container, the mounted folder often is the process's own group, whatever path it goes by outside.
    """
    least = math.inf
    inner = root / path.lstrip("/")
    for folder in {root, inner, *(parent for parent in inner.parents if root in parent.parents)}:
        with suppress(OSError, ValueError):  # "max" is no number: no limit
            quota, period = (int(number) for number in read(folder))
            if quota > 0:  # version 1 has -1 for no limit
                least = min(least, quota / period)
    return least


class TorchThreads:
    """Let torch use fewer threads for a while: a context manager.

    Torch's threads wait for one another after every operation, so that beside a busy process, whichever of them is
    not running holds up all. Work of many small operations is faster with one thread, even on an idle machine.
    """

    _lock = threading.Lock()
    _depth = 0
    _before = 1
    _forked = False

    def __init__(self, most: int | None = None) -> None:
        """Allow `most` threads, or else as many as there are usable cores; never more than torch has already."""
        self.most = most or usable_cores()

    def __enter__(self) -> None:
        """Lower the number."""
        kind = TorchThreads
        with kind._lock:
            if not kind._depth:  # a thread started meanwhile would find the lowered number
                kind._before = torch.get_num_threads()
            kind._depth += 1
            torch.set_num_threads(1 if kind._forked else min(kind._before, self.most))

    def __exit__(self, *_: object) -> None:
        """Restore the previous number."""
        kind = TorchThreads
        with kind._lock:
            kind._depth -= 1
            torch.set_num_threads(kind._before)

    @classmethod
    def limit(cls) -> int:
        """Return the number of threads that torch may use outside any such context."""
        with cls._lock:
            return cls._before if cls._depth else torch.get_num_threads()

    @classmethod
    def _in_child(cls) -> None:
        # Torch's threads do not survive a fork, and operations that ask for them would wait forever.
        cls._lock, cls._depth, cls._forked = threading.Lock(), 0, True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TorchThreads._in_child)


def busyness(rounds: int = 20, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the worst over the best time of a fixed piece of work on all threads, 1 in 10 left out: 1 if quiet."""
    work = torch.ones(384, 384)
    seconds = []
    for _ in range(rounds + 1):
        started = clock()
        for _ in range(20):
            work @ work
        seconds.append(clock() - started)
    ordered = sorted(seconds[1:])
    return ordered[int(0.9 * rounds)] / ordered[0]


def require_quiet() -> None:
    """Refuse to measure times on a busy machine.

    Raises:
        ConfigError: something else is using the processor.
    """
    ratio = busyness()
    if ratio > BUSY:
        raise ConfigError(f"this machine is busy (a fixed piece of work took up to {ratio:.2f} times its best time), "
                          "so times would tell nothing; stop what runs beside this, or give --busy to measure anyway")


class Timer:
    """Times functions, including the work they queue on the device."""

    def __init__(self, device: torch.device, repeats: int = REPEATS, warm_up: int = WARM_UP) -> None:
        """Time work on `device`: `repeats` calls, after `warm_up` calls that are not timed."""
        self.device, self.repeats, self.warm_up = device, repeats, warm_up

    def once(self, work: Callable[[], object]) -> float:
        """Return the seconds of one call."""
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started

    def median(self, work: Callable[[], object]) -> float:
        """Return the median seconds of a call."""
        for _ in range(self.warm_up):
            work()
        return statistics.median(self.once(work) for _ in range(self.repeats))

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def bandwidth(size: int, timer: Timer) -> float:
    """Return the bytes per second at which matrix-vector products read the same `size` bytes of float32 repeatedly."""
    rows = max(1, size // 4 // 1024)
    matrix, vector = torch.ones(rows, 1024, device=timer.device), torch.ones(1024, device=timer.device)
    best = min(timer.once(lambda: torch.mv(matrix, vector)) for _ in range(50))
    return rows * 1024 * 4 / best


def matrix_rate(timer: Timer, size: int = 1024) -> float:
    """Return float operations per second (multiply-add counts as two) of a large float32 product."""
    matrix = torch.ones(size, size, device=timer.device)
    best = min(timer.once(lambda: matrix @ matrix) for _ in range(8))
    return 2 * size**3 / best


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device in bytes; a control group may limit a CPU's."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = [2**33]  # where the system does not tell
    with suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = [1024 * int(lines["MemAvailable"].split()[0])]
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # "max" is no number: no limit
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        free.append(most - used)
    return max(min(free), 0)


class PeakMemory:
    """How many bytes more than before a piece of work holds at its peak: a context manager, then `bytes`.

    On a GPU these are the tensors'. On a CPU it is the growth of the process's largest resident size so far, so that
    smaller pieces of work must come first; what the process has held and freed before is not counted again.
    """

    def __init__(self, device: torch.device) -> None:
        """Watch work on `device`."""
        self.device, self.bytes = device, 0.0

    def __enter__(self) -> PeakMemory:
        """Note what is held now."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        self._held = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        """Compare with the peak."""
        self.bytes = max(self._peak() - self._held, 0.0)

    def _now(self) -> float:
        if self.device.type == "cuda":
            return float(torch.cuda.memory_allocated(self.device))
        with open("/proc/self/statm") as pages:
            return float(pages.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _peak(self) -> float:
        if self.device.type == "cuda":
            return float(torch.cuda.max_memory_allocated(self.device))
        import resource  # not on every system

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
