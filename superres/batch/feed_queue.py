"""A bounded queue between a thread that provides sequences and the thread that decodes them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FeedQueue(Generic[T]):
    """A queue of at most `most` items; its `take` is a `superres.decoding.batching.Feed`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.items: deque[T] = deque()
        self._changed = threading.Condition()
        self._ended = self._closed = False
        self._error: BaseException | None = None

    def fill(self, items: Iterator[T]) -> None:
        """Add all `items`, or the error that reading them raises; runs in a thread of its own."""
        error: BaseException | None = None
        try:
            for item in items:
                if not self.put(item):
                    break
        except BaseException as caught:
            error = caught
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def put(self, item: T) -> bool:
        """Add an item as soon as there is space; return False, without adding it, if the queue is
        closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self.items) < self.most or self._closed)
            if not self._closed:
                self.items.append(item)
                self._changed.notify_all()
            return not self._closed

    def take(self, most: int, wait: bool) -> list[T] | None:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self.items or self._ended)
            if self._error is not None:
                raise self._error
            if not self.items and self._ended:
                return None
            taken = [self.items.popleft() for _ in range(min(most, len(self.items)))]
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        """Make the filling thread end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
