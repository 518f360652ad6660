"""The end of a command by SIGINT (Ctrl-C), SIGTERM or SIGHUP, which Slurm, systemd and Kubernetes
send.

The first signal raises KeyboardInterrupt in the main thread, so that every `with` block cleans up;
work that must not be torn apart is `deferred`, and asks `stopping()`. The second signal ends the
process at once.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from superres.system.progress import say

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal,
                                                                                             name))
START_SECONDS = 5.0
"""Longest wait of an interrupted command for a thread that it was starting."""
SAME_SECONDS = 1.0
"""A signal that follows the first this soon is the same request: `timeout` and a closing terminal
send two."""
NOTHING_KEPT = "no result was written"


class _Received:
    """The state of this process: the first signal's number, what is kept, and the number of
    `deferred` blocks."""

    number = 0
    kept = NOTHING_KEPT
    deferring = 0


def stopping() -> bool:
    """Return whether a signal has asked the command to end."""
    return _Received.number != 0


def will_keep(text: str) -> None:
    """Set what an interrupted command says about its results: what is kept, and how to continue."""
    _Received.kept = text


def exit_code() -> int:
    """Return the exit code of an interrupted command, as shells use it: 128 and the number of the
    signal."""
    return 128 + (_Received.number or signal.SIGINT)


def ending() -> str:
    """Return the last line of a command that a signal, or its own limit, has ended."""
    number = _Received.number
    name = "" if number in (0, signal.SIGINT) else f" by {signal.Signals(number).name}"
    return f"{'interrupted' if number else 'stopped'}{name}; {_Received.kept}"


@contextmanager
def deferred() -> Iterator[None]:
    """Let a signal in the block only set `stopping()`, which the block asks."""
    _Received.deferring += 1
    try:
        yield
    finally:
        _Received.deferring -= 1


@contextmanager
def handled() -> Iterator[None]:
    """Handle signals in the block, which the main thread runs; ignored signals (`nohup`) stay
    ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _Received.number, _Received.kept, _Received.deferring = 0, NOTHING_KEPT, 0
    before = {number: signal.getsignal(number) for number in SIGNALS if signal.getsignal(number)
              != signal.SIG_IGN}
    heard, ringing = socket.socketpair()
    with heard, ringing:
        ringing.setblocking(False)
        for number in before:
            signal.signal(number, _interrupt)
        woken = signal.set_wakeup_fd(ringing.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(heard,), name="superres-signals", daemon=True).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            ringing.shutdown(socket.SHUT_RDWR)  # ends the thread
            if _Received.number:
                _wait_for_starting_threads()


def _wait_for_starting_threads() -> None:
    """Wait until all threads have started, so that the interpreter waits for their end before its
    own.

    A signal may interrupt `Thread.start` before the new thread has run at all. Nobody joins such a
    thread; in torch's code while the interpreter ends, it would abort the process.
    """
    end = time.monotonic() + START_SECONDS
    while not all(thread.is_alive() for thread in threading.enumerate()) and time.monotonic() < end:
        time.sleep(0.001)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Note the first signal, and interrupt the main thread unless that is deferred."""
    if not _Received.number:
        _Received.number = number
        if not _Received.deferring:
            raise KeyboardInterrupt


def _watch(heard: socket.socket) -> None:
    """End the process at the second signal, even if the main thread is busy in compiled code."""
    first = 0.0
    with suppress(OSError):
        while True:
            try:
                if not (received := heard.recv(1)):
                    return
            except TimeoutError:
                heard.settimeout(None)
                say("stopping; a second signal ends at once")
                continue
            if signal.getsignal(received[0]) is not _interrupt:  # a server has taken over
                continue
            if not first:
                first = time.monotonic()
                heard.settimeout(SAME_SECONDS)
            elif time.monotonic() - first > SAME_SECONDS:
                os._exit(128 + received[0])


def _in_child() -> None:
    """Give a forked process the usual handlers; its parent's thread and socket are not its own."""
    for number in SIGNALS:
        if signal.getsignal(number) is _interrupt:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT
                          else signal.SIG_DFL)
            with suppress(ValueError):
                signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)
