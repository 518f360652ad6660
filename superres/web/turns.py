"""Turns of visitors, so that one who uploads much holds up nobody else.

A visitor is a session of the page at an address. Of the requests that wait, few are under way at a
time, at most one per visitor (`FairQueue`). They take turns (`Turns`) at reading pictures and at
decoding.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

import gradio as gr
from gradio.queueing import Event, Queue

from superres.errors import SuperresError

UNDER_WAY = 8  # requests that are read or decoded, half of them at most from one address
MOST_WAITING = 8  # turns for which one address may wait at a time


class StoppedError(SuperresError):
    """A request was stopped: it exceeded the time limit, there are too many, or the server is
    stopping."""


class Visitor(NamedTuple):
    """The address of a machine, and a session of the page."""

    address: str = ""
    session: str = ""

    @classmethod
    def of(cls, request: gr.Request | Event | None) -> Visitor:
        """Return the visitor who sent a request."""
        inner = getattr(request, "request", None)
        client = getattr(inner, "client", None)
        return cls(client.host if client else "", getattr(request, "session_hash", None) or "")


VISITOR: ContextVar[Visitor | None] = ContextVar("visitor", default=None)
"""The visitor whose request is being handled; None for the server itself."""
GONE: ContextVar[threading.Event | None] = ContextVar("gone", default=None)
"""Set once the request that is being handled is stopped, so that it waits no longer."""
CHECK_SECONDS = 0.2  # between two looks at `GONE`


def next_place(waiting: Sequence[Visitor], inside: Sequence[Visitor], most: int,
               most_of_address: int) -> int | None:
    """Return which of the waiting visitors is next, if one may join those `inside`.

    It is the first one of the address that has fewest visitors inside; nobody is inside twice.
    """
    addresses = Counter(visitor.address for visitor in inside)
    free = [place for place, visitor in enumerate(waiting)
            if visitor not in inside and addresses[visitor.address] < most_of_address]
    return (min(free, key=lambda place: addresses[waiting[place].address]) if free and len(inside)
            < most else None)


def requests_before(
    place: int, waiting: Sequence[Visitor], inside: Sequence[Visitor], most: int,
    most_of_address: int,
) -> int:
    """Return how many requests of others are before the waiting one at `place`: those inside, and
    earlier ones."""
    visitor, left, now = waiting[place], list(range(len(waiting))), list(inside)
    count = sum(one != visitor for one in inside)
    while True:
        chosen = next_place([waiting[number] for number in left], now, most, most_of_address)
        if chosen is None:
            del now[0]  # who is inside leaves in the order of joining
            continue
        number = left.pop(chosen)
        if number == place:
            return count
        count += waiting[number] != visitor
        now.append(waiting[number])


class Turns:
    """Lets at most `most` visitors go on at a time, in the order of `next_place`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._changed, self._inside = threading.Condition(), list[Visitor]()
        self._waiting = list[tuple[Visitor, object]]()

    @contextmanager
    def turn(self) -> Iterator[float]:
        """Wait for the turn of `VISITOR`, which lasts until the context ends; the value is the
        seconds waited.

        Raises StoppedError if too many of the visitor's address wait already, if `GONE` is set, or
        on `close`.
        """
        visitor, gone, started = (VISITOR.get() or Visitor(), GONE.get() or threading.Event(),
                                  time.monotonic())
        ticket = visitor, object()
        with self._changed:
            if sum(one.address == visitor.address for one, _ in self._waiting) >= MOST_WAITING:
                raise StoppedError("too many of your requests wait for the server; try again in a "
                                   "minute")
            self._waiting.append(ticket)
            while ticket in self._waiting and not self._is_next(ticket) and not gone.is_set():
                self._changed.wait(CHECK_SECONDS)
            if ticket not in self._waiting:
                raise StoppedError("the server is stopping; try again in a minute")
            self._waiting.remove(ticket)
            if gone.is_set():
                self._changed.notify_all()
                raise StoppedError("the request was stopped")
            self._inside.append(visitor)
            self._changed.notify_all()  # a further place may be free
        try:
            yield time.monotonic() - started
        finally:
            with self._changed:
                self._inside.remove(visitor)
                self._changed.notify_all()

    def _is_next(self, ticket: tuple[Visitor, object]) -> bool:
        place = next_place([visitor for visitor, _ in self._waiting], self._inside, self.most,
                           self.most)
        return place is not None and self._waiting[place] is ticket

    def before(self, visitor: Visitor) -> int | None:
        """Return how many requests of others are before the first one of a visitor; None if none of
        theirs waits."""
        with self._changed:
            waiting = [one for one, _ in self._waiting]
            if visitor not in waiting:
                return None
            return requests_before(waiting.index(visitor), waiting, self._inside, self.most,
                                   self.most)

    def close(self) -> None:
        """Stop those who wait now."""
        with self._changed:
            self._waiting.clear()
            self._changed.notify_all()


class FairQueue(Queue):
    """Gradio's queue with the order of `next_place`: `UNDER_WAY` events at a time; only the first
    does not wait."""

    def __len__(self) -> int:
        """Return the number of requests that wait, those under way included, since they take
        turns."""
        queued = sum(len(waiting.queue) for waiting in self.event_queue_per_concurrency_id.values())
        return queued + max(len(self._under_way()) - 1, 0)

    def _under_way(self) -> list[Event]:
        return [event for job in self.active_jobs for event in job or ()]

    def before(self, visitor: Visitor, view: str) -> int | None:
        """Return how many requests of others are before that of a visitor for a view; None if none
        waits here.

        `view` is the element id of one of the request's outputs.
        """
        inside = list(map(Visitor.of, self._under_way()))
        for events in self.event_queue_per_concurrency_id.values():
            waiting = list(map(Visitor.of, events.queue))
            for place, event in enumerate(events.queue):
                outputs = [getattr(output, "elem_id", None) for output in event.fn.outputs]
                if waiting[place] == visitor and view in outputs:
                    return requests_before(place, waiting, inside, UNDER_WAY, UNDER_WAY // 2)
        return None

    def get_events(self) -> tuple[list[Event], bool, str] | None:
        """Take the next event, if one may begin, from its queue: there is one queue."""
        for name, events in self.event_queue_per_concurrency_id.items():
            place = next_place(list(map(Visitor.of, events.queue)),
                               list(map(Visitor.of, self._under_way())), UNDER_WAY, UNDER_WAY // 2)
            if place is not None:
                return [events.queue.pop(place)], False, name
        return None
