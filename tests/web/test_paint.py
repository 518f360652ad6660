"""The answers of the paint box: pixels in links, decodes that are no longer wanted, and too many
visitors."""

from __future__ import annotations

import json
import re
import threading
from base64 import urlsafe_b64encode
from dataclasses import replace
from functools import partial
from html import unescape

import numpy as np
import pytest
from web_demo import toy

from superres.config import general_costs
from superres.errors import InvalidInputError
from superres.tasks.faces import image_key
from superres.web import paint
from superres.web.decoding import Decoder
from superres.web.paint import MOST_INSIDE, Latest, answer_of, drawn, pixels_of
from superres.web.turns import VISITOR, StoppedError, Visitor


@pytest.fixture
def decoder():
    made = Decoder(toy())
    yield made
    made.close()


@pytest.fixture
def source(rng, decoder):
    return rng.integers(0, 256, decoder.upscaler.face_task.source_shape, np.uint8)


def question(source, **more):
    return json.dumps({"x": urlsafe_b64encode(source.tobytes()).decode().rstrip("="), "t": 0.7,
                       "s": 0, "n": 0, **more})


def view(decoder, kind, asked):
    answer = answer_of(partial(drawn, decoder, kind), kind, asked)
    return json.loads(unescape(re.search('data-view="([^"]*)"', answer)[1]))


def test_a_text_is_that_of_its_pixels_and_others_are_refused(source, decoder):
    task = decoder.upscaler.face_task
    text = json.loads(question(source))["x"]
    np.testing.assert_array_equal(pixels_of(text, task), source)
    for wrong in (text[:-4], f"{text}AAAA", "!" + text[1:], None, 5, {}, f"{text[:-1]}ä"):
        with pytest.raises(InvalidInputError, match="copy the whole link"):
            pixels_of(wrong, task)


@pytest.mark.parametrize("asked", ["", "no JSON", "[]", "{}", '{"x": "AAAA", "s": 0, "n": 0}'])
def test_a_bad_question_has_an_answer(decoder, asked):
    assert view(decoder, "large", asked)["error"]


@pytest.mark.parametrize("change", [{"s": -1}, {"s": 0.5}, {"s": "1"}, {"n": 5}, {"n": None},
                                    {"t": -1}, {"t": 1e39}, {"t": "warm"}])
def test_bad_numbers_are_named(decoder, source, change):
    (name,) = change
    assert view(decoder, "others", question(source, **change))["error"].startswith(
        {"t": "temperature"}.get(name, name)
    )


def test_the_page_draws_by_the_default_of_the_api(decoder, source, monkeypatch):
    monkeypatch.setattr(decoder.upscaler, "default",
                        replace(decoder.upscaler.default, adaptive=True))
    monkeypatch.setattr(decoder.upscaler.scoring, "costs", general_costs(0.1), raising=False)
    others = view(decoder, "others", question(source))["faces"]
    for number in (0, 1, 3):
        (alone,) = view(decoder, "large", question(source, n=number))["faces"]
        drawn = replace(decoder.upscaler.default, temperature=0.7 if number else 0.0)
        keys = [image_key(source, max(number, 1))]
        result = decoder.upscaler.decode(source[None], drawn, keys=keys)
        assert alone["steps"] == result.traces[0].iterations < alone["tokens"]
        assert alone["digest"] == paint.short_digest(result.images[0].tobytes())
        if number:
            assert others[number - 1]["digest"] == alone["digest"]


def test_a_decode_ends_when_its_visitor_has_painted_on_and_others_are_left_alone(decoder, source,
                                                                                 monkeypatch):
    latest, entered, go_on = Latest(), threading.Event(), threading.Event()
    monkeypatch.setattr(paint, "LATEST", latest)
    upscale, found = type(decoder.upscaler).decode, {}

    def waiting(self, *arguments, **settings):
        entered.set()
        go_on.wait(60)
        return upscale(self, *arguments, **settings)

    def ask(name, pixels):
        VISITOR.set(Visitor("here", name))
        found[name, pixels.tobytes()] = view(decoder, "large", question(pixels))

    monkeypatch.setattr(type(decoder.upscaler), "decode", waiting)
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
    expected = upscale(decoder.upscaler, source[None]).images[0]
    assert found["two", source.tobytes()]["faces"][0]["digest"] == paint.short_digest(
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
