"""What bounds every test: no wait is endless, and no child inherits signals that this process
ignores."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
import pytest

TEST_SECONDS = 900.0
"""Longest time of a test, or of its fixtures, on a busy machine."""
PASSED_ON = ("SIGHUP", "SIGINT", "SIGTERM")
"""Signals that a process inherits as ignored: `nohup` ignores the first, and a shell the second for
background jobs."""


def hear_signals() -> None:
    """Replace the ignoring of signals by handlers that do nothing, which processes that start do
    not inherit."""
    for number in (getattr(signal, name) for name in PASSED_ON if hasattr(signal, name)):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@contextmanager
def limited() -> Iterator[None]:
    """Fail the test in the block after TEST_SECONDS, whatever it waits for, and kill what this
    process has started."""
    if (not hasattr(signal, "setitimer") or threading.current_thread()
        is not threading.main_thread()):
        yield
        return

    def end(*_: object) -> None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                child.kill()
        pytest.fail(f"the test took over {TEST_SECONDS:g} seconds")

    handler, timer = signal.signal(signal.SIGALRM, end), signal.setitimer(signal.ITIMER_REAL,
                                                                          TEST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)
