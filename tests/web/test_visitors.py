"""Visitors who share the server: whose turn it is, which decodes are no longer wanted, and the
answers of the paint box."""

from __future__ import annotations

import json
import re
import threading
from base64 import b64decode, urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from html import unescape
from io import BytesIO

import numpy as np
import pytest

from superres.config import general_costs
from superres.errors import InvalidInputError
from superres.pictures.write import read_origin
from superres.system.output import short_digest
from superres.tasks.faces import image_key
from superres.web import paint
from superres.web.decoding import VisitorDecoding
from superres.web.paint import MOST_INSIDE, Latest, answer_of, drawn, pixels_of
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
from tests.web.helpers import toy, wait

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


# The paint box

@pytest.fixture
def decoding():
    made = VisitorDecoding(toy())
    yield made
    made.close()


@pytest.fixture
def source(rng, decoding):
    return rng.integers(0, 256, decoding.upscaler.face_task.source_shape, np.uint8)


def question(source, **more):
    return json.dumps({"x": urlsafe_b64encode(source.tobytes()).decode().rstrip("="), "t": 0.7,
                       "s": 0, "n": 0, **more})


def view(decoding, kind, asked):
    answer = answer_of(partial(drawn, decoding, kind), kind, asked)
    return json.loads(unescape(re.search('data-view="([^"]*)"', answer)[1]))


def test_a_text_is_that_of_its_pixels_and_others_are_refused(source, decoding):
    task = decoding.upscaler.face_task
    text = json.loads(question(source))["x"]
    np.testing.assert_array_equal(pixels_of(text, task), source)
    for wrong in (text[:-4], f"{text}AAAA", "!" + text[1:], None, 5, {}, f"{text[:-1]}ä"):
        with pytest.raises(InvalidInputError, match="copy the whole link"):
            pixels_of(wrong, task)


@pytest.mark.parametrize("asked", ["", "no JSON", "[]", "{}", '{"x": "AAAA", "s": 0, "n": 0}'])
def test_a_bad_question_has_an_answer(decoding, asked):
    assert view(decoding, "large", asked)["error"]


@pytest.mark.parametrize("change", [{"s": -1}, {"s": 0.5}, {"s": "1"}, {"n": 5}, {"n": None},
                                    {"t": -1}, {"t": 1e39}, {"t": "warm"}])
def test_bad_numbers_are_named(decoding, source, change):
    (name,) = change
    assert view(decoding, "others", question(source, **change))["error"].startswith(
        {"t": "temperature"}.get(name, name)
    )


def test_the_page_draws_by_the_default_of_the_api(decoding, source, monkeypatch):
    monkeypatch.setattr(decoding.upscaler, "default",
                        replace(decoding.upscaler.default, adaptive=True))
    monkeypatch.setattr(decoding.upscaler.scoring, "costs", general_costs(0.1), raising=False)
    others = view(decoding, "others", question(source))["faces"]
    for number in (0, 1, 3):
        (alone,) = view(decoding, "large", question(source, n=number))["faces"]
        drawn = replace(decoding.upscaler.default, temperature=0.7 if number else 0.0)
        keys = [image_key(source, max(number, 1))]
        result = decoding.upscaler.decode(source[None], drawn, keys=keys)
        assert alone["steps"] == result.traces[0].iterations < alone["tokens"]
        assert alone["digest"] == short_digest(result.images[0].tobytes())
        if number:
            assert others[number - 1]["digest"] == alone["digest"]


def test_the_finished_face_is_that_of_the_command_and_samples_have_none(decoding, source):
    (face,) = view(decoding, "finished", question(source))["faces"]
    result = decoding.upscaler(source[None], decoding.upscaler.default, finish="mean")
    assert face["digest"] == short_digest(result.images[0].tobytes())
    assert (face["steps"], face["tokens"]) == (result[0].steps, 2 * result.images[0].size)
    content = BytesIO(b64decode(face["uri"].partition(",")[2]))
    assert read_origin(content, "face")["settings"]["finish"] == "mean"
    refused = view(decoding, "finished", question(source, n=2))
    assert "only the likeliest face is finished" in refused["error"]


def test_a_decode_ends_when_its_visitor_has_painted_on_and_others_are_left_alone(decoding, source,
                                                                                 monkeypatch):
    latest, entered, go_on = Latest(), threading.Event(), threading.Event()
    monkeypatch.setattr(paint, "LATEST", latest)
    decode, found = type(decoding.upscaler).decode, {}

    def waiting(self, *arguments, **settings):
        entered.set()
        go_on.wait(60)
        return decode(self, *arguments, **settings)

    def ask(name, pixels):
        VISITOR.set(Visitor("here", name))
        found[name, pixels.tobytes()] = view(decoding, "large", question(pixels))

    monkeypatch.setattr(type(decoding.upscaler), "decode", waiting)
    first = threading.Thread(target=ask, args=("one", source))
    first.start()
    assert entered.wait(60)
    others = [threading.Thread(target=ask, args=given) for given in (("one", source + 1),
                                                                     ("two", source))]
    for thread in others:
        thread.start()
    while (len(latest._pixels) < 2 or latest._pixels[Visitor("here", "one")]
           == json.loads(question(source))["x"]):
        pass
    go_on.set()
    for thread in (first, *others):
        thread.join()
    assert found["one", source.tobytes()]["error"] == "another face has been asked for since"
    expected = decode(decoding.upscaler, source[None]).images[0]
    assert found["two", source.tobytes()]["faces"][0]["digest"] == short_digest(
        expected.tobytes())
    assert "faces" in found["one", (source + 1).tobytes()]


def test_more_visitors_than_the_server_has_room_for_are_told_so():
    latest, blocks = Latest(), []
    for number in range(MOST_INSIDE):
        VISITOR.set(Visitor("here", str(number)))
        blocks.append(latest.question("AAAA"))
        blocks[-1].__enter__()
    VISITOR.set(Visitor("here", "one more"))
    with pytest.raises(StoppedError, match="too many visitors"), latest.question("AAAA"):
        pass
    blocks.pop().__exit__(None, None, None)
    with latest.question("AAAA") as check:
        check()
    VISITOR.set(None)
