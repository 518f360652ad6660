"""The chips of the paint box, run by node: they edit a face's pixels, add up, and become faces when
the bundled model draws them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import superres
from superres.pictures.read import read_image
from superres.tasks.face_finder import shows_face
from superres.tasks.faces import FaceTask
from superres.web.content import DRAWN, box_view, examples_of
from superres.web.paint import pixels_of
from superres.web.site import STATIC
from tests.web.helpers import FACES, LABELS, ROOT

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")

TASK = FaceTask(8, 64, (32,))
EDITS = ["Sunglasses", "Beard", "Red cap", "Green skin", "Older", "Mix two people"]
SURPRISE = "Surprise me"
SMILEY = ("llyyyyll", "lyyyyyyl", "yykyykyy", "yykyykyy", "yyyyyyyy", "ykyyyyky", "lykkkkyl",
          "llyyyyll")
LETTERS = {"k": (27, 21, 18), "y": (243, 207, 63), "l": (159, 198, 232)}
PAINTED = np.array([[LETTERS[letter] for letter in row] for row in SMILEY], np.uint8)


@pytest.fixture(scope="module")
def people():
    """The inputs of the drawn examples, uint8 [N, 8, 8, 3]."""
    return np.stack([read_image(path) for path in FACES])


def edited(people, questions):
    """Return the pixels of (edit, pixels, seed of a surprise), and the names of the edits."""
    given = {"side": people.shape[1], "people": [one.flatten().tolist() for one in people],
             "questions": [(name, pixels.flatten().tolist(), seed)
                           for name, pixels, seed in questions]}
    words = "node", Path(__file__).with_name("edits.mjs"), STATIC
    found = json.loads(subprocess.run(words, input=json.dumps(given), check=True, text=True,
                                      capture_output=True).stdout)
    return np.array(found["edited"], np.uint8).reshape(-1, *people.shape[1:]), found["names"]


def test_edits_add_up_and_change_what_they_name(people):
    first, again = (edited(people, [(name, people[0], 0) for name in EDITS]) for _ in range(2))
    assert first[1] == EDITS
    np.testing.assert_array_equal(first[0], again[0])
    rows = {name: np.flatnonzero((one != people[0]).any((1, 2))).tolist()
            for name, one in zip(EDITS, first[0], strict=True)}
    assert rows["Sunglasses"] == [3, 4]
    assert rows["Red cap"] == [0, 1, 2]
    assert min(rows["Beard"]) > 3
    pairs = [(name, base) for name in EDITS[:3] for base in range(3)]
    both, _ = edited(people, [(name, first[0][base], 0) for name, base in pairs])
    for (name, base), pixels in zip(pairs, both, strict=True):
        apart = [row for row in rows[EDITS[base]] if row not in rows[name]]
        np.testing.assert_array_equal(pixels[apart], first[0][base][apart])
        np.testing.assert_array_equal((pixels != first[0][base]).any((1, 2)).nonzero()[0],
                                      rows[name])


def test_what_is_no_picture_gives_way_to_a_person(people):
    grey = np.full_like(PAINTED, 128)
    glasses, _ = edited(people, [("Sunglasses", one, 0) for one in (PAINTED, grey)])
    for one in glasses:
        assert any((one[[0, 1, 2, 6, 7]] == person[[0, 1, 2, 6, 7]]).all() for person in people)


def test_two_people_are_mixed_and_surprises_differ(people):
    mixes, _ = edited(people, [("Mix two people", one, 0) for one in people])
    means = [np.floor((one.astype(int) + other) / 2 + 0.5) for number, one in enumerate(people)
             for other in people[:number]]
    for mix in mixes:
        assert any(np.abs(mix - mean).max() <= 1 for mean in means)
    assert len(np.unique(mixes, axis=0)) > len(people) / 2
    surprises, _ = edited(people, [(SURPRISE, people[0], seed) for seed in range(12)])
    assert len(np.unique(surprises, axis=0)) == 12


def test_edits_know_other_sizes():
    people = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    large, _ = edited(people, [(name, people[0], 0) for name in EDITS])
    rows = (large[0] != people[0]).any((1, 2)).nonzero()[0]
    assert rows.min() >= 6
    assert rows.max() <= 9


def test_the_box_has_the_pixels_of_the_drawn_examples(people):
    view = box_view(TASK, 2, examples_of(ROOT, TASK), [])["examples"]
    assert len(DRAWN) == 12
    assert [one["name"] for one in view] == [*LABELS, "Astronaut", "Grace Hopper"]
    for one, pixels in zip(view, people, strict=False):
        np.testing.assert_array_equal(pixels_of(one["cells"], TASK), pixels)
    assert [one for one in view[len(people):] if "cells" in one] == []


@pytest.mark.slow
def test_people_and_chips_become_faces_and_a_painting_does_not(people):
    """Measured: 12 of 12 people, and of the chips 12, 12, 12, 11, 12, 12, and 12 surprises."""
    upscaler = superres.load("celeba-8to64", device="cpu", engine="native-int8")
    chips, _ = edited(people, [(name, one, seed) for name in (*EDITS, SURPRISE)
                               for seed, one in enumerate(people)])
    sources = np.concatenate([people, chips, PAINTED[None]])
    drawn = np.concatenate([upscaler(part).images for part in np.array_split(sources, 8)])
    *found, of_painting = map(shows_face, drawn)
    counts = np.reshape(found, (-1, len(people))).sum(1)
    assert counts[0] == len(people)
    assert counts.min() >= 11
    assert not of_painting
