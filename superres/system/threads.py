"""The number of threads that computing may use: usable cores, physical cores, and the user's
bound."""

from __future__ import annotations

import functools
import math
import os
from contextlib import suppress
from pathlib import Path

from superres.errors import ConfigError, shown


class _Bound:
    """The user's own bound, which is one of the process."""

    threads: int | None = None


def set_threads(count: int) -> None:
    """Let decodes that begin from now on use at most `count` threads; ConfigError unless it is a
    whole number of at least 1.

    It takes the place of the environment variable OMP_NUM_THREADS, and is one number for all
    threads of this process.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError("the number of threads must be a whole number of at least 1, not "
                          f"{shown(count)}")
    _Bound.threads = count


def given_threads() -> int | None:
    """Return the user's bound: that of `set_threads`, else OMP_NUM_THREADS, or the first number of
    its list; None without one."""
    first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return _Bound.threads or (int(first) if first.isdecimal() else 0) or None


def most_threads() -> int:
    """Return the largest number of threads that a decode may use: the user's bound, within the
    usable cores.

    Logical cores of one physical core share its arithmetic units, so they count as one.
    """
    most = min(usable_cores(), physical_cores(_allowed()))
    return min(most, given_threads() or most)


def usable_cores() -> int:
    """Return the number of cores that the affinity mask and the CPU quota allow, at least 1."""
    return max(1, int(min(len(_allowed()), core_quota())))


def _allowed() -> frozenset[int]:
    """Return the numbers of the logical cores that the affinity mask allows."""
    affinity = getattr(os, "sched_getaffinity", None)  # missing on some systems
    return frozenset(affinity(0) if affinity else range(os.cpu_count() or 1))


@functools.cache
def physical_cores(cores: frozenset[int], folder: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return how many physical cores the logical `cores` belong to, by Linux's `folder`; those that
    it does not describe count one each."""
    found = set[str]()
    for core in cores:
        siblings = str(core)
        with suppress(OSError):  # a container may hide it
            siblings = (folder / f"cpu{core}/topology/thread_siblings_list").read_text().strip()
        found.add(siblings)
    return len(found)


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
