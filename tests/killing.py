"""Kills of a process at a chosen call that touches files, so that every moment of a run can be tried in turn."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

FILE_CALLS = {"open", "write", "writelines", "flush", "close", "fsync", "flock", "ftruncate", "truncate", "replace",
              "rename", "unlink", "mkdir", "rmdir", "scandir"}
"""Names of the built-in functions that touch files."""
CALLERS = ("/superres/", "/pathlib", "/shutil.py")
"""Parts of the paths of the modules whose calls count."""


def die_at(moment: int) -> None:
    """Let this process kill itself (SIGKILL) at a moment: just before or just after a call that touches a file.

    Args:
        moment: 1 is before the first call, 2 after it, 3 before the second, and so on, over all threads that start.
    """
    count = 0

    def hook(frame: FrameType, event: str, function: Any) -> None:
        nonlocal count
        if event in ("c_call", "c_return") and function.__name__ in FILE_CALLS \
                and any(part in frame.f_code.co_filename for part in CALLERS):
            count += 1
            if count == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(hook)
    sys.setprofile(hook)
