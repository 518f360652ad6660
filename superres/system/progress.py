"""Progress bars, and messages above them."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from tqdm import tqdm

from superres.system.terminal import one_line


class ProgressBar(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
    """A progress bar whose lock belongs to one process.

    Forked processes share tqdm's own lock: a process that is killed while it holds that lock blocks all others.
    """

    @classmethod
    def renew_lock(cls) -> None:
        """Replace the lock by a new, unlocked one."""
        cls.set_lock(threading.RLock())


ProgressBar.renew_lock()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=ProgressBar.renew_lock)


def say(message: str) -> None:
    """Print `message` as one line on standard error, above any progress bar."""
    with suppress(OSError):  # the program continues without standard error
        ProgressBar.write(f"superres: {one_line(message)}", file=sys.stderr)
