"""Progress bars, and messages above them."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

from tqdm import tqdm

from superres.system.terminal import one_line


class ProgressBar(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
    """A progress bar with a lock of this process alone.

    tqdm's own lock is shared with forked processes: one that is killed while it holds the lock stops all the others.
    """

    @classmethod
    def renew_lock(cls) -> None:
        """Begin with a lock that nobody holds."""
        cls.set_lock(threading.RLock())


ProgressBar.renew_lock()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=ProgressBar.renew_lock)


def say(message: str) -> None:
    """Print `message` as one line on standard error, above a progress bar if there is one."""
    with suppress(OSError):  # a closed standard error is no reason to stop
        ProgressBar.write(f"superres: {one_line(message)}", file=sys.stderr)
