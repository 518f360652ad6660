"""The table of all scores of a checkpoint's pictures, from drawing to Markdown."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, random_model
from PIL import Image

import face_scores
from superres.checkpoint import save_checkpoint
from superres.pipeline.upscaler import Upscaler
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import area_reduce


@pytest.fixture
def data(tmp_path, rng, monkeypatch):
    """A folder with a checkpoint of random weights, from 4 to 12 pixels, and four pictures for
    it."""
    network = replace(TINY, source_shape=(4, 4, 3), target_shape=(12, 12, 3))
    save_checkpoint(random_model(network, dtype=torch.float32), tmp_path / "toy")
    hr = rng.integers(0, 256, (4, 12, 12, 3), np.uint8)
    write_npz(FacePairs(hr, area_reduce(hr, 4, 4), np.arange(4, dtype=np.int32)),
              tmp_path / "dev.npz")
    monkeypatch.setattr(sys, "argv", ["scripts/benchmark/face_scores.py"])
    return tmp_path


@pytest.mark.extended
def test_every_way_is_scored_and_an_interrupted_run_draws_nothing_again(data, capsys, monkeypatch):
    def table():
        face_scores.main(data / "dev.npz", data / "out", checkpoint=str(data / "toy"), device="cpu",
                         engine="plain", batch_size=3, same_person=False)
        return capsys.readouterr().out

    first = table()
    for line in ("| exact, the tokens of greedy | ", "| sampled at temperature 0.9 | ", "| true "
                 "pictures | - | - | ", "|  | 0 to 2, dB | 2 to 4, dB | over 4, dB |"):
        assert line in first
    assert "the same person" not in first
    (document,) = (data / "out").glob("*.json")
    document.unlink()
    monkeypatch.setattr(face_scores, "draw_samples", None)
    assert table() == first


@pytest.mark.extended
def test_blind_sheets_have_every_face_in_every_way_and_their_order_stands_apart(data):
    face_scores.main(data / "dev.npz", data / "out", checkpoint=str(data / "toy"), device="cpu",
                     engine="plain", batch_size=3, same_person=False, way=["finished, mean"],
                     blind=True, name="finish")
    (document,) = (data / "out").glob("finish-*.json")
    assert set(json.loads(document.read_text())["rows"]["scores"]["values"]["methods"]) == {
        "greedy", "finished, mean", "lanczos", "truth"}
    (sheet,), key = ((data / "out" / "blind").iterdir(),
                     json.loads((data / "out" / "key-of-blind.json").read_text()))
    shown = np.asarray(Image.open(sheet)).reshape(4, 64, 2, 64, 3)[:, 8:-8:4, :, 8:-8:4].swapaxes(1,
                                                                                                  2)
    upscaler = Upscaler.load(data / "toy", "cpu", "plain")
    lr = np.load(data / "dev.npz")["lr"]
    expected = {"greedy": upscaler(lr).images, "finished, mean": upscaler(lr, finish="mean").images}
    for face, names in enumerate(key.values()):
        assert sorted(names) == sorted(expected)
        assert all((shown[face, place] == expected[name][face]).all() for place,
                   name in enumerate(names))
