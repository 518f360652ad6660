"""The number of torch's threads, which the host program may have chosen for its own work."""

from __future__ import annotations

import os
import threading

import torch

from superres.system.threads import most_threads


class TorchThreads:
    """Context manager that limits torch's threads to `most` (`most_threads()`), but never raises
    their number.

    Torch's threads synchronise after every operation, so one thread that another process delays
    holds up all of them. Many small operations are faster with one thread, even on an idle machine.
    """

    _lock, _depth, _before = threading.Lock(), 0, 1
    # numbers of torch's threads at the start of each open context of this thread
    _entered = threading.local()

    def __init__(self, most: int | None = None) -> None:
        self.most = most or most_threads()

    def __enter__(self) -> None:
        shared = TorchThreads
        with shared._lock:
            found = torch.get_num_threads()
            # in a nested context, torch reports the limit instead of the original number
            if not shared._depth:
                shared._before = found
            shared._depth += 1
            vars(shared._entered).setdefault("numbers", []).append(found)
            torch.set_num_threads(min(found, self.most))

    def __exit__(self, *_: object) -> None:
        shared = TorchThreads
        with shared._lock:
            shared._depth -= 1
            found = shared._entered.numbers.pop()
            # Where torch has one number for all threads, another context may have changed it.
            torch.set_num_threads(min(found, shared._before) if shared._depth else shared._before)

    @classmethod
    def _in_child(cls) -> None:
        # Torch's threads do not survive a fork: an operation on several threads would wait forever.
        cls._lock, cls._before = threading.Lock(), 1
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=TorchThreads._in_child)
