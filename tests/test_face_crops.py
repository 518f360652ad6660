"""The measurement of `--crop face`: crops that the finder itself has cut are found where they were pasted."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from skimage import data

import face_crops
from superres.errors import InvalidInputError
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.face_finder import CROP_RISE, CROP_SIZE, find_faces


def test_the_finders_own_crops_have_the_built_in_relation(tmp_path, monkeypatch, capsys):
    photo = data.astronaut()
    x, y, side, _ = find_faces(photo)[0]
    crop = Image.fromarray(photo).resize((64, 64), Image.Resampling.BICUBIC,
                                         (x - side / 2, y - side / 2, x + side / 2, y + side / 2))
    crops, ids = np.stack([np.asarray(crop)] * 2), np.arange(2, dtype=np.int32)
    write_npz(FacePairs(crops, np.zeros((2, 8, 8, 3), np.uint8), ids), tmp_path / "crops.npz")
    monkeypatch.setattr(face_crops, "BACKGROUNDS", ("coffee",))
    for tilt in (0, 5):
        face_crops.main(tmp_path / "crops.npz", tmp_path, None, 0, tilt)
    assert capsys.readouterr().err.count("already measured") == 1  # the photos without a face
    rows = json.loads((tmp_path / "face-crops.json").read_text())["rows"]
    assert [*rows] == ["no face", "tilt 0", "tilt 5"]
    found = rows["tilt 0"]["values"]
    assert (found["fit_found"], found["found"], found["false_alarms"]) == (1, 1, 0)
    assert found["fit_size"] == pytest.approx(CROP_SIZE, rel=0.1)
    assert found["fit_rise"] == pytest.approx(CROP_RISE, abs=0.05)
    assert max(found["centre_share"]) < 0.05
    assert max(found["size_share"]) < 0.1


def test_pictures_that_are_too_small_are_refused_in_one_line(tmp_path):
    write_npz(FacePairs(*(np.zeros((1, side, side, 3), np.uint8) for side in (32, 8)), np.zeros(1, np.int32)),
              tmp_path / "small.npz")
    with pytest.raises(InvalidInputError, match="pictures of 32x32, smaller than targets of 64x64"):
        face_crops.main(tmp_path / "small.npz", tmp_path, None, 0, 0)
