"""Whose turn it is where visitors share the demo."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest
from web_demo import wait

from superres.web.turns import (
    GONE,
    MOST_WAITING,
    VISITOR,
    StoppedError,
    Turns,
    Visitor,
    next_place,
    requests_before,
)

A1, A2, A3, B1, B2 = (Visitor(*name) for name in ("A1", "A2", "A3", "B1", "B2"))


@pytest.mark.parametrize(("waiting", "inside", "place"), [
    ([], [], None), ([A1, B1], [], 0), ([A1, B1], [A1], 1),  # nobody is inside twice
    ([A2, B1], [A1], 1), ([A2, B1], [A1, B2], 0),  # the address with fewer visitors inside is first
    ([A3], [A1, A2], None), ([A3, B1], [A1, A2], 1),  # an address has two places
    ([B1], [A1, A2, B2], None), ([A1, A1], [A1], None),
])
def test_the_next_visitor_is_the_first_one_of_the_address_with_fewest_inside(waiting, inside,
                                                                             place):
    assert next_place(waiting, inside, 3, 2) == place


def as_visitor(pool, visitor, work):
    def run():
        VISITOR.set(visitor)
        return work()

    return pool.submit(copy_context().run, run)


def test_turns_pass_among_visitors_and_end_when_the_server_stops():
    turns, log, go = Turns(2), [], {visitor: threading.Event() for visitor in (A1, A2, B1)}

    def work():
        visitor = VISITOR.get()
        with turns.turn():
            log.append(visitor)
            assert go[visitor].wait(300)

    with ThreadPoolExecutor(8) as pool:
        first = as_visitor(pool, A1, work)
        wait(lambda: turns._inside)
        started = [as_visitor(pool, visitor, work) for visitor in (A1, A1)]
        wait(lambda: len(turns._waiting) == 2)
        other = as_visitor(pool, B1, work)
        go[B1].set()
        other.result(300)
        assert log == [A1, B1]
        late = as_visitor(pool, A2, work)
        go[A2].set()
        late.result(300)
        turns.close()
        for one in started:
            with pytest.raises(StoppedError, match="server is stopping"):
                one.result(300)
        go[A1].set()
        first.result(300)
    assert log == [A1, B1, A2]
    assert not turns._inside + turns._waiting


def test_an_address_waits_for_few_turns():
    turns = Turns(1)
    with ThreadPoolExecutor(MOST_WAITING) as pool, turns.turn():
        waiting = [as_visitor(pool, A1, turns.turn().__enter__) for _ in range(MOST_WAITING)]
        wait(lambda: len(turns._waiting) == MOST_WAITING)
        context = copy_context()
        context.run(VISITOR.set, A2)
        with pytest.raises(StoppedError, match="too many of your requests"):
            context.run(turns.turn().__enter__)
        turns.close()
        for one in waiting:
            with pytest.raises(StoppedError, match="server is stopping"):
                one.result(300)


@pytest.mark.parametrize(("place", "waiting", "inside", "before"), [
    (0, [A1], [], 0), (0, [A1], [B1], 1), (1, [B1, A1], [], 1),
    (1, [A1, A1], [B1], 1), (0, [A1], [A1], 0),  # requests of one's own do not count
    # the address with fewer visitors inside is first
    (1, [A2, B1], [A1], 1), (0, [A2, B1], [A1], 2),
    (2, [B1, B1, A1], [], 1), (2, [B1, B2, A1], [A2, A3], 4),
])
def test_the_requests_before_one_are_those_of_others_that_are_taken_earlier(place, waiting, inside,
                                                                            before):
    assert requests_before(place, waiting, inside, 3, 2) == before


def test_a_visitor_hears_how_many_are_before_and_a_stopped_request_waits_no_longer():
    turns, gone = Turns(1), threading.Event()

    def wait_until_gone():
        GONE.set(gone)
        with turns.turn():
            raise AssertionError

    with ThreadPoolExecutor(3) as pool, turns.turn():
        other = as_visitor(pool, B1, turns.turn().__enter__)
        wait(lambda: len(turns._waiting) == 1)
        stopped = as_visitor(pool, A1, wait_until_gone)
        wait(lambda: len(turns._waiting) == 2)
        assert [turns.before(visitor) for visitor in (B1, A1, A2)] == [1, 2, None]
        gone.set()
        with pytest.raises(StoppedError, match="the request was stopped"):
            stopped.result(300)
        assert [visitor for visitor, _ in turns._waiting] == [B1]
        turns.close()
        with pytest.raises(StoppedError, match="server is stopping"):
            other.result(300)
