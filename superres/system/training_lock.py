"""Share a machine between long training and measurements: lowest priority, and locks that pause training.

Both locks are files in `cache_folder()`. The system releases the locks of a process that is killed, so no stale marker
can stop a run for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from superres.system.output import cache_folder, lock_file
from superres.system.progress import say

TIMING = "timing.lock"
"""File that every process that measures times locks (shared)."""
TRAINING = "training.lock"
"""File that every run that can pause locks (shared) while it computes."""
POLL_SECONDS = 0.2


def lowest_priority() -> None:
    """Let this thread, and threads that it starts later, compute only while the processor is otherwise idle.

    The nice value becomes 19, and on Linux the scheduling policy SCHED_IDLE. Call it before torch starts its threads.
    """
    with suppress(OSError, AttributeError):  # some systems have no priorities
        os.nice(19)
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


@contextmanager
def training_paused(patience: float = 120.0) -> Iterator[None]:
    """Pause every `superres train continue` of this user, for example while times are measured.

    Wait until the runs have paused, but at most `patience` seconds; then the block starts all the same. A function can
    also be decorated with this context manager.
    """
    with _locked(TIMING, shared=True):
        waited = 0.0
        while is_locked(TRAINING) and waited < patience:
            if waited == POLL_SECONDS:  # before, `is_locked` of another measurement may hold the lock for an instant
                say("waiting until 'superres train continue' pauses")
            time.sleep(POLL_SECONDS)
            waited += POLL_SECONDS
        yield


def times_are_measured() -> bool:
    """Return whether a process of this user is inside `training_paused`."""
    return is_locked(TIMING)


@contextmanager
def training_turn(stop: Callable[[], bool]) -> Iterator[None]:
    """Wait until no times are measured or `stop()` is true, then mark training as active inside the block."""
    paused = False
    while not stop():
        with _locked(TRAINING, shared=True):
            # A measurement that starts after this check waits for the lock that is held now.
            if not times_are_measured():
                yield
                return
        if not paused:
            say("paused while times are measured")
            paused = True
        time.sleep(POLL_SECONDS)
    yield


def is_locked(name: str) -> bool:
    """Return whether a process holds a lock on a file in the cache folder."""
    try:
        with _opened(name) as file:
            lock_file(file)
    except BlockingIOError:
        return True
    except OSError:  # no such folder, or a file system without locks
        return False
    return False


@contextmanager
def _locked(name: str, shared: bool) -> Iterator[None]:
    """Hold a lock on a file in the cache folder; without effect where files cannot be locked."""
    try:
        file = _opened(name)
    except OSError:
        yield
        return
    with file:
        with suppress(OSError):
            while True:
                try:
                    lock_file(file, shared)
                    break
                except BlockingIOError:  # `is_locked` of another process holds the lock for an instant
                    time.sleep(0.01)
        yield


def _opened(name: str) -> BinaryIO:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return open(folder / name, "ab")
