"""The progress of long work: a bar on a terminal, a line a minute elsewhere, and messages above the
bar.

A command's work consists of phases (`Progress`), which may be nested; the innermost one is shown. A
thread shows it once per second, so a phase that cannot report, such as a compilation, is shown too.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from tqdm import tqdm

from superres.system.terminal import one_line, printable

T = TypeVar("T")

LINE_SECONDS = 60.0
"""Seconds between two lines of progress, where standard error is not a terminal."""
TICK_SECONDS = 1.0


class ProgressBar(tqdm):  # type: ignore[type-arg]  # generic for type checkers only
    """A progress bar whose lock belongs to one process.

    Forked processes share tqdm's own lock: a process that is killed while it holds that lock blocks
    all others.
    """

    monitor_interval = 0  # the thread of `Progress` refreshes bars

    @classmethod
    def renew_lock(cls) -> None:
        """Replace the lock by a new, unlocked one."""
        cls.set_lock(threading.RLock())


class Progress:
    """A phase of work, as a context manager: `done` of `total` units, or work of unknown length if
    `total` is None.

    `name` says what is done ("reading faces"), and `unit` what is counted ("pictures"). `update`
    and `to` raise BudgetError when the time of a surrounding `budget` is over.
    """

    spoken = 0.0  # when the latest line was printed, by any phase
    lock = threading.Lock()  # of `thread` and of the list of open phases
    thread: threading.Thread | None = None  # shows the innermost phase

    def __init__(
        self, name: str, total: float | None = None, unit: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the phase; nothing is shown before the block."""
        self.name, self.total, self.unit, self.clock = printable(name), total, unit, clock
        self.done, self.first, self.note = 0.0, 0.0, ""
        self.bar: ProgressBar | None = None

    def __enter__(self) -> Progress:
        """Begin the phase."""
        self.started = self.clock()
        if sys.stderr is not None and sys.stderr.isatty():
            known = "{l_bar}{bar}| {n:.4g}/{total:.4g} {unit} [{elapsed}{postfix}]"
            self.bar = ProgressBar(desc=self.name, total=self.total, unit=self.unit,
                                   leave=not _open, bar_format=(
                                       known if self.total else "{desc}: {n:.4g} {unit} "
                                       "[{elapsed}{postfix}]" if self.unit else
                                       "{desc} [{elapsed}{postfix}]"))
        if not _open and self.started - Progress.spoken > LINE_SECONDS:
            Progress.spoken = self.started
        with Progress.lock:
            _open.append(self)
            if Progress.thread is None:
                Progress.thread = threading.Thread(target=_show, name="superres-progress",
                                                   daemon=True)
                Progress.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the phase."""
        with Progress.lock, suppress(ValueError):  # forgotten by a forked process
            _open.remove(self)
        if self.bar is not None:
            self._draw(self.bar)
            self.bar.close()

    def update(self, count: float = 1) -> None:
        """Count further units."""
        self.to(self.done + count)

    def to(self, done: float, note: str = "") -> None:
        """Set the number of units that are done, and a note to show beside it."""
        self.done, self.note = done, note
        if self.bar is not None and self.bar.n == 0:
            self._draw(self.bar)

    def resume(self, done: float) -> None:
        """Set the number of units that an earlier run has done, which tell nothing about the time
        left."""
        self.done = self.first = done

    def tick(self) -> None:
        """Draw the bar again, or print a line if it is time."""
        if self.bar is not None:
            self._draw(self.bar)
        elif self.clock() - Progress.spoken >= LINE_SECONDS:
            Progress.spoken = self.clock()
            say(self.line)

    @property
    def line(self) -> str:
        """The state of the phase as text."""
        return f"{self.name}: {', '.join(filter(None, [self.counted, self.note, self.left]))}"

    @property
    def counted(self) -> str:
        """What is done as text, or the time that it has taken."""
        if not self.unit:
            return f"{tqdm.format_interval(self.clock() - self.started)} so far"
        return f"{self.done:,.0f}{f' of {self.total:,.0f}' if self.total else ''} {self.unit}"

    @property
    def left(self) -> str:
        """The time left as text; empty if unknown."""
        made, left = self.done - self.first, None
        if self.total and self.unit == "s":
            left = self.total - self.done
        elif self.total and made > 0:
            left = (self.total - self.done) * (self.clock() - self.started) / made
        return "" if left is None else f"{tqdm.format_interval(max(left, 0))} left"

    def _draw(self, bar: ProgressBar) -> None:
        bar.total = self.total
        bar.n = min(self.done, self.total or self.done)
        bar.set_postfix_str(", ".join(filter(None, [self.note, self.left])), refresh=False)
        bar.refresh()


_open: list[Progress] = []

ProgressBar.renew_lock()


def _in_child() -> None:
    """Forget the phases of the parent process, whose threads and locks do not survive a fork."""
    ProgressBar.renew_lock()
    Progress.lock, Progress.thread = threading.Lock(), None
    _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_in_child)


def _show() -> None:
    """Show the innermost phase until none is open."""
    while True:
        time.sleep(TICK_SECONDS)
        with Progress.lock:
            if not _open:
                Progress.thread = None
                return
            phase = _open[-1]
        with suppress(ValueError):  # standard error is closed
            phase.tick()


def track(items: Iterable[T], name: str, unit: str, total: int | None = None) -> Iterator[T]:
    """Yield `items`, and show how many of them are done."""
    with Progress(name, len(items) if total is None and isinstance(items, Sized) else total,
                  unit) as progress:
        for item in items:
            yield item
            progress.update()


def say(message: str) -> None:
    """Print `message` as one line on standard error, above any progress bar."""
    with suppress(OSError):  # the program continues without standard error
        ProgressBar.write(f"superres: {one_line(message)}", file=sys.stderr)
