"""The end of a command by SIGINT (Ctrl-C), SIGTERM or SIGHUP, which Slurm, systemd and Kubernetes
send.

The first signal raises KeyboardInterrupt in the main thread, so that every `with` block cleans up;
work that must not be torn apart is `deferred`, and asks `stopping()`. A later signal ends the
process at once.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")
           if hasattr(signal, name)]
START_SECONDS = 5.0  # longest wait of an interrupted command for a thread that it was starting
# a signal that follows the first this soon is the same request: `timeout` and a closing terminal
# send two
SAME_SECONDS = 1.0


class _State:
    """Of this command: the first signal, its time and process, what is kept, and the number of
    `deferred` blocks."""

    number, at, process, kept, deferring = 0, 0.0, 0, "", 0


def stopping() -> bool:
    """Return whether a signal has asked the command to end."""
    return _State.number != 0


def will_keep(text: str) -> None:
    """Set what an interrupted command says about its results: what is kept, and how to continue."""
    _State.kept = text


def exit_code() -> int:
    """Return the exit code of an interrupted command, as shells use it: 128 and the number of the
    signal."""
    return 128 + (_State.number or signal.SIGINT)


def ending() -> str:
    """Return the last line of a command that a signal, or its own limit, has ended."""
    number = _State.number
    name = "" if number in (0, signal.SIGINT) else f" by {signal.Signals(number).name}"
    return f"{'interrupted' if number else 'stopped'}{name}; {_State.kept}"


@contextmanager
def deferred() -> Iterator[None]:
    """Let a signal in the block only set `stopping()`, which the block asks."""
    _State.deferring += 1
    try:
        yield
    finally:
        _State.deferring -= 1


@contextmanager
def handled() -> Iterator[None]:
    """Handle signals in the block, which the main thread runs; ignored signals (`nohup`) stay
    ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.number, _State.deferring, _State.process = 0, 0, os.getpid()
    _State.kept = "no result was written"
    before = {number: handler for number in SIGNALS
              if (handler := signal.getsignal(number)) not in (None, signal.SIG_IGN)}
    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # Nobody joins a thread whose start was interrupted before it ran at all; in torch's code
        # while the interpreter ends, it would abort the process.
        end = time.monotonic() + START_SECONDS
        while _State.number and time.monotonic() < end and not all(
                thread.is_alive() for thread in threading.enumerate()):
            time.sleep(0.001)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Note the first signal, and interrupt the main thread unless that is deferred."""
    if os.getpid() != _State.process:  # a forked process ends as usual
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    elif not _State.number:
        _State.number, _State.at = number, time.monotonic()
        if not _State.deferring:
            raise KeyboardInterrupt
    elif time.monotonic() - _State.at > SAME_SECONDS:
        os._exit(128 + number)
