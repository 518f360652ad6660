"""The bundled checkpoints, end to end: what a user gets from a fresh clone."""

from __future__ import annotations

import functools
import importlib
import itertools
import json

import numpy as np
import pytest

import superres
from superres.cli.main import run
from superres.config import DecodeConfig
from superres.evaluation.examples import SENTENCES
from superres.system.folders import bundled_folder
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask, area_reduce, enlarge
from tests.pipeline.helpers import FACES, face

load = functools.cache(functools.partial(superres.load, device="cpu"))
CAPTIONS = ["A dog runs through the snow.", "Two men are talking on the street."]


@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampling"])
@pytest.mark.parametrize(("name", "given", "sizes"), [
    ("celeba-8to32", face()[None], (3, 10)), ("multi30k-en-de", SENTENCES, (2, 10)),
], ids=["faces", "text"])
def test_exact_blocks_equal_one_token_at_a_time(name, given, sizes, temperature):
    pipeline = load(name)

    def decoded(size):
        options = DecodeConfig(size, temperature=temperature)
        result = pipeline.decode(given, options, width=pipeline.model_config.prediction_heads)
        steps = sum(one.steps for one in result)
        return [trace.sequence.tolist() for trace in result.traces], steps

    expected, steps = decoded(1)
    assert steps == sum(map(len, expected))
    for size in sizes:
        found, fewer = decoded(size)
        assert found == expected, f"k={size}"
        assert fewer < steps, "no proposal was ever accepted"


def beside_a_hard_one(faces):
    """Return faces and what no face looks like: quarters of black, white, a chequerboard of
    extremes, and noise."""
    quarters = [np.zeros((4, 4, 3)), np.full((4, 4, 3), 255),
                np.indices((4, 4, 3)).sum(0) % 2 * 255,
                np.random.default_rng(0).integers(0, 256, (4, 4, 3))]
    hard = np.stack(quarters).reshape(2, 2, 4, 4, 3).swapaxes(1, 2).reshape(1, 8, 8, 3)
    return np.concatenate([faces, hard.astype(np.uint8)])


@pytest.mark.parametrize(("name", "way"), [
    *(("celeba-8to32", way) for way in (
        {"adaptive": True}, {"accept": "distance", "epsilon": 2},
        {"proposer": "draft", "temperature": 0.9, "sampling": "speculative"},
        {"temperature": (1.5, 0.9, 0.5), "accept": "distance"})),
    *itertools.product(["celeba-8to64", "celeba-8to64-doubling"],
                       [{"block_size": 1}, {"temperature": 0.9}]),
], ids=str)
def test_consistent_pictures_of_all_stages_reduce_to_exactly_their_input(name, way):
    upscaler, given = load(name), beside_a_hard_one(face()[None])
    result = upscaler(given, DecodeConfig(**way, consistent=True))
    pictures = [given, *(stage.images for stage in result.stages)]
    for small, large in itertools.pairwise(pictures):
        side = small.shape[1]
        assert np.array_equal(area_reduce(large, side, side, is_reduced=True), small)
        assert np.array_equal(area_reduce(large, 8, 8, is_reduced=True), given)


def test_more_heads_take_fewer_steps():
    wide = load("celeba-32to64")
    larger = enlarge(face()[None], "lanczos", 32)
    few, many = (wide(larger, DecodeConfig(accept="distance", epsilon=2, block_size=k))
                 for k in (None, 10))
    assert few[0].steps < 0.75 * many[0].steps


def test_captions_become_german_in_few_steps():
    result = load("multi30k-en-de")(CAPTIONS, DecodeConfig())
    first, second = result.texts
    assert "Hund" in first
    assert "Schnee" in first
    assert "Zwei Männer" in second
    assert 2 * sum(line.steps for line in result) < sum(line.tokens for line in result)


def test_the_drawn_faces_serve_the_documented_commands(tmp_path, capsys, monkeypatch):
    drawn = tmp_path / "dev.npz"
    monkeypatch.syspath_prepend(FACES.parent)
    draw_dev = importlib.import_module("draw_dev")
    inputs = list(draw_dev.read_inputs(FaceTask(8, 32)).items())[:2]
    monkeypatch.setattr(draw_dev, "SAMPLES", 1)
    monkeypatch.setattr(draw_dev, "read_inputs", lambda task: dict(inputs))
    draw_dev.main(drawn, device="cpu")
    pairs = read_faces(drawn, FaceTask(8, 32))
    assert np.array_equal(pairs.lr, area_reduce(pairs.hr, 8, 8))
    capsys.readouterr()
    assert run(["evaluate", "images", "--data", str(drawn), "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 1


def test_the_mask_belongs_to_the_weights_and_veils_eyes_rather_than_the_forehead():
    upscaler = load("celeba-8to64")
    assert upscaler.reliability is not None, "new weights need `superres calibrate`"
    result = upscaler(np.stack([face(number) for number in (1, 2, 3, 4)]))
    assert all(0.3 < share < 0.95 for share in result.reliable.mean((1, 2)))
    eyes, forehead = result.uncertainty[:, 30:36, 18:46], result.uncertainty[:, 18:25, 22:42]
    assert eyes.mean() > 1.5 * forehead.mean()
    assert result.reliable[:, 18:25, 22:42].mean() > result.reliable[:, 30:36, 18:46].mean() + 0.3


def test_what_is_bundled_is_small():
    for name in ("multi30k-en-de", "celeba-8to32"):
        draft = bundled_folder() / f"{name}-draft" / "model.safetensors"
        assert draft.stat().st_size <= 5 * 2**20
        assert (bundled_folder() / name / "ngrams.safetensors").stat().st_size <= 5 * 2**20
