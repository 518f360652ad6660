"""The drafter's questions: what the server answers, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import record_sentences
from superres.decoding.drafting import drafted
from superres.errors import SuperresError
from superres.pipeline.translator import Translator
from superres.tasks.faces import area_reduce
from superres.web.decoding import VisitorDecoding
from superres.web.draft import ROOM, left_of, played, tokens_of
from superres.web.draft_view import SENTENCES, draft_view, text_of
from superres.web.turns import StoppedError
from tests.web.helpers import FACES, toy

CELLS = area_reduce(np.asarray(Image.open(FACES[1]).convert("RGB"))[None], 8, 8)[0]
QUESTION = {"x": text_of(CELLS), "c": "", "by": "heads", "k": 8, "e": 12, "calls": 10_000}


@pytest.fixture(scope="module")
def decoding():
    made = VisitorDecoding(toy())
    yield made
    made.close()


def ask(decoding, **changes):
    calls = changes.get("calls", decoding.upscaler.tokens_per_image)
    return played(decoding, {**QUESTION, **changes, "calls": calls})


def test_a_visitor_and_the_pixel_on_the_left_draft_as_the_decoder_does(decoding):
    upscaler = decoding.upscaler
    assert CELLS.shape == upscaler.face_task.source_shape
    left = left_of(CELLS, upscaler.face_task.target, 8)
    expected = drafted(upscaler.scoring, upscaler.limits, upscaler.source_tokens(CELLS[None])[0],
                       [], block_size=8, epsilon=12, calls=20, propose=left)
    found = ask(decoding, by="left", calls=20)
    assert found["accepted"] == expected.accepted
    assert tokens_of(found["tokens"], 768) == expected.tokens
    known, next_token = list[int](), ask(decoding, calls=0)["pending"][0]
    for count in expected.accepted:  # a visitor who guesses the same
        one = ask(decoding, by="you", c=text_of(np.array(known, np.uint8)), calls=1,
                  g=left([*known, next_token]))
        assert one["accepted"] == [count]
        known += tokens_of(one["tokens"], 768)
        next_token = one["pending"][0]
    assert known == expected.tokens


@pytest.mark.parametrize("changes", [
    {"k": 0}, {"k": 9}, {"k": "8"}, {"e": 65}, {"e": -1}, {"calls": -1}, {"calls": 10**6},
    {"by": "me"}, {"by": ["you"]}, {"by": "you", "g": [256]}, {"by": "you", "g": [1.5]},
    {"by": "you", "g": [0] * 8}, {"by": "you", "g": "0"}, {"c": "A" * 1024}, {"c": "A"},
    {"c": "\u00e9"}, {"c": [1]}, {"c": None}, {"x": "A"}, {"x": None}, {"c": "____" * 200},
], ids=str)
def test_a_question_of_another_kind_is_refused_in_words(decoding, changes):
    with pytest.raises(SuperresError, match=r"must be|at least|at most|from|begin|load the page"):
        ask(decoding, **changes)


def test_a_full_server_says_so(decoding):
    taken = 0
    try:
        while ROOM.acquire(blocking=False):
            taken += 1
        with pytest.raises(StoppedError, match="too many visitors draft faces"):
            ask(decoding)
    finally:
        for _ in range(taken):
            ROOM.release()


def test_the_recorded_translations_are_those_of_the_translator():
    text = json.loads(SENTENCES.read_text(encoding="utf-8"))
    recorded = record_sentences.recorded(Translator.load("multi30k-en-de", "cpu"))
    assert recorded == text
    for sentence in text["sentences"]:  # the heads' blocks make up the pieces and the end
        assert {sum(counts) for counts in sentence["accepted"].values()} == {
            len(sentence["pieces"]) + 1}


def test_the_game_offers_drawn_faces_and_inputs_and_no_photograph():
    task = toy().face_task
    photo = np.zeros((40, 40, 3), np.uint8)
    view = draft_view(task, 8, {"a-drawn": photo, "photo": photo, "input": CELLS})
    assert [(face["name"], face["x"]) for face in view["faces"]] == [
        ("A (drawn)", text_of(photo[:8, :8])), ("Input", text_of(CELLS))]
    assert (view["source"], view["side"], view["heads"]) == (8, 16, 8)
