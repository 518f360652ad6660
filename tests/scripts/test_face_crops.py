"""The measurement of `--crop face`: crops that the finder itself has cut are found where they were
pasted."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from skimage import data

import face_crops
from superres.errors import InvalidInputError
from superres.tasks.crops import Crop
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.face_finder import CROP_RISE, CROP_SIZE
from superres.tasks.faces import FaceTask, area_reduce
from superres.tasks.photos import choose_crops


def test_the_finders_own_crops_have_the_built_in_relation(tmp_path, monkeypatch, capsys):
    photo = data.astronaut()
    (crop,) = choose_crops(photo, FaceTask(8, 64))
    crops, ids = np.stack([area_reduce(crop.take(photo), 64, 64)] * 2), np.arange(2, dtype=np.int32)
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
    assert max(found["turn"]) < 3
    assert rows["tilt 5"]["values"]["certain"] == 1


def test_a_picture_is_shown_in_the_frame_of_the_truth():
    photo = data.astronaut()
    crop, right = Crop(150, 40, 120, turn=9.0), np.array([222.0, 95.0, 140.0, -4.0])
    drawn = area_reduce(crop.take(photo), 64, 64)
    truth = area_reduce(Crop(152, 25, 140, turn=-4.0).take(photo), 64, 64)
    inside = np.s_[20:44, 20:44]
    away = face_crops.in_frame(drawn, crop, right)[inside].astype(float) - truth[inside]
    assert np.abs(away).mean() < 4
    assert face_crops.psnr(truth, truth // 2 * 2) > 40


def test_faces_of_photos_are_drawn_and_compared(monkeypatch):
    class Drawing:
        face_task = FaceTask(8, 64)

        def __call__(self, sources):
            return SimpleNamespace(images=self.face_task.enlarge(sources, "lanczos"))

    monkeypatch.setattr(face_crops.superres, "load", lambda name: Drawing())
    photo = data.astronaut()
    (crop,) = choose_crops(photo, FaceTask(8, 64))
    scene = Image.fromarray(data.coffee()).resize((face_crops.WIDTH, face_crops.HEIGHT))
    found = face_crops.drawn(area_reduce(crop.take(photo), 64, 64)[None], [scene], 0, 5)
    assert found["psnr"] == pytest.approx(found["directly"], abs=1.5)


def test_pictures_that_are_too_small_are_refused_in_one_line(tmp_path):
    write_npz(FacePairs(*(np.zeros((1, side, side, 3), np.uint8) for side in (32, 8)),
                        np.zeros(1, np.int32)),
              tmp_path / "small.npz")
    with pytest.raises(InvalidInputError, match="pictures of 32x32, smaller than targets of 64x64"):
        face_crops.main(tmp_path / "small.npz", tmp_path, None, 0, 0)
