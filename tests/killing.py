"""Kills of a process at a chosen call that touches files, so that every moment of a run can be
tried in turn."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from superres.batch import archives, containers
from superres.pictures import untrusted

FILE_CALLS = {"open", "write", "writelines", "flush", "close", "fsync", "flock", "ftruncate",
              "truncate", "replace", "rename", "unlink", "mkdir", "rmdir", "scandir"}
"""Names of the built-in functions that touch files."""
CALLERS = ("/superres/", "/pathlib", "/shutil.py")
"""Parts of the paths of the modules whose calls count."""
FORK = multiprocessing.get_context("fork") if sys.platform != "win32" else multiprocessing


def die(*_: object) -> None:
    """Kill this process (SIGKILL)."""
    os.kill(os.getpid(), signal.SIGKILL)


CHANGES = {"writelines", "write", "fsync", "truncate", "replace", "rename", "unlink", "mkdir",
           "rmdir"}
"""Those that change what is on the disk."""


def die_at(moment: int, calls: Collection[str] = FILE_CALLS) -> None:
    """Let this process kill itself just before one of `calls`: moment 1 is the first, over all
    threads that start.

    What a call has done is on the disk before the next one.
    """
    count = 0

    def hook(frame: FrameType, event: str, function: Any) -> None:
        nonlocal count
        if event == "c_call" and function.__name__ in calls and any(
                part in frame.f_code.co_filename for part in CALLERS):
            count += 1
            if count == moment:
                die()

    threading.setprofile(hook)
    sys.setprofile(hook)


def killed(call: Callable[[], object], moment: int | None = None,
           calls: Collection[str] = FILE_CALLS) -> bool:
    """Do a call in a forked process, which dies at `moment` if given, and return whether it was
    killed."""
    def child() -> None:
        # Files are read here: to start a process that reads them would take most of the time.
        untrusted.READER = lambda seconds, **values: untrusted.decode(**values)
        archives.READER = lambda seconds, **values: containers.read(**values)
        for limited in (untrusted, containers):
            limited.limit_memory = lambda *_: None
        containers.limit_time = lambda *_: None
        if moment is not None:
            die_at(moment, calls)
        call()

    process = FORK.Process(target=child)
    process.start()
    process.join(1800)
    if process.is_alive():
        process.terminate()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0
