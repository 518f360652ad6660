"""The bundled checkpoint, end to end: what a user gets from a fresh clone."""

from __future__ import annotations

import importlib
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

import superres
from superres.cli.main import run
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask, area_reduce, enlarge
from superres.tasks.pictures import read_image

SCRIPTS = Path(__file__).parents[2] / "scripts"
FACES = SCRIPTS / "faces"
NAME = "celeba-8to32"


@pytest.fixture(scope="module")
def upscaler():
    return superres.load(NAME, device="cpu")


@pytest.fixture(scope="module")
def sources():
    return read_image(FACES / "face-1.png")[None]


@pytest.fixture(scope="module", params=[0.0, 0.9], ids=["greedy", "sampling"])
def sequential(request, upscaler, sources):
    """One token a step, at the width of the largest block."""
    width = upscaler.model_config.prediction_heads
    options = superres.DecodeConfig(block_size=1, temperature=request.param)
    return request.param, upscaler.decode(sources, options, width=width)


def test_exact_blocks_equal_one_token_at_a_time_for_every_block_size(upscaler, sources, sequential):
    temperature, reference = sequential
    width = upscaler.model_config.prediction_heads
    for k in (3, 10):
        options = superres.DecodeConfig(block_size=k, temperature=temperature)
        result = upscaler.decode(sources, options, width=width)
        assert np.array_equal(result.images, reference.images), f"k={k}"
        assert all(trace.tokens == 3072 for trace in result.traces)
        assert all(trace.iterations < 3072
                   for trace in result.traces), "no proposal was ever accepted"


def beside_a_hard_one(faces):
    """Return faces and what no face looks like: quarters of black, white, a chequerboard of
    extremes, and noise."""
    quarters = [np.zeros((4, 4, 3)), np.full((4, 4, 3), 255),
                np.indices((4, 4, 3)).sum(0) % 2 * 255,
                np.random.default_rng(0).integers(0, 256, (4, 4, 3))]
    hard = np.stack(quarters).reshape(2, 2, 4, 4, 3).swapaxes(1, 2).reshape(1, 8, 8, 3)
    return np.concatenate([faces, hard.astype(np.uint8)])


@pytest.mark.parametrize("way", [
    {}, {"adaptive": True}, {"accept": "distance", "epsilon": 2}, {"accept": "top-k", "top_k": 3},
    {"temperature": 0.9}, {"proposer": "draft", "temperature": 0.9, "sampling": "speculative"},
    {"temperature": (1.5, 0.9, 0.5), "accept": "distance"},
], ids=str)
def test_consistent_pictures_reduce_to_exactly_their_input(upscaler, sources, way):
    inputs = beside_a_hard_one(sources)
    result = upscaler(inputs, superres.DecodeConfig(**way, consistent=True))
    assert np.array_equal(area_reduce(result.images, 8, 8, is_reduced=True), inputs)


def test_consistent_pictures_of_the_int8_engine_reduce_to_their_input(sources):
    inputs = beside_a_hard_one(sources)
    loaded = superres.load(NAME, device="cpu", engine="native-int8")
    result = loaded(inputs, superres.DecodeConfig(accept="distance", epsilon=2, consistent=True))
    assert np.array_equal(area_reduce(result.images, 8, 8, is_reduced=True), inputs)


def test_more_heads_take_fewer_steps(sources):
    wide = superres.load("celeba-32to64", device="cpu")
    ten, all_heads = (superres.DecodeConfig(accept="distance", epsilon=2, block_size=k)
                      for k in (10, None))
    larger = enlarge(sources, "lanczos", 32)
    few, many = wide(larger, all_heads), wide(larger, ten)
    assert all(less.model_calls < 0.75 * more.model_calls for less,
               more in zip(few.traces, many.traces, strict=True))


def test_the_drawn_faces_serve_the_documented_commands(tmp_path, capsys, monkeypatch):
    drawn = tmp_path / "dev.npz"
    monkeypatch.syspath_prepend(SCRIPTS)
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


@pytest.mark.parametrize("way", [{"block_size": 1}, {"temperature": 0.9}], ids=str)
@pytest.mark.parametrize("name", ["celeba-8to64", "celeba-8to64-doubling"])
def test_every_picture_of_a_cascade_reduces_to_exactly_its_input(name, way, sources):
    cascade = superres.load(name, device="cpu")
    given = beside_a_hard_one(sources)
    result = cascade(given, cascade.options(**way))
    assert result.images.shape == (len(given), 64, 64, 3)
    for small, large in itertools.pairwise(stage.images for stage in result.stages):
        side = small.shape[1]
        assert np.array_equal(area_reduce(large, side, side, is_reduced=True), small)
        assert np.array_equal(area_reduce(large, 8, 8, is_reduced=True), given)


def test_the_mask_of_the_bundled_cascade_belongs_to_its_weights_and_veils_eyes_rather_than_the_forehead():
    upscaler = superres.load("celeba-8to64", "cpu")
    assert upscaler.reliability is not None, "new weights need `superres calibrate`"
    result = upscaler(np.stack([read_image(FACES / f"face-{number}.png") for number in (1, 2, 3,
                                                                                        4)]))
    assert all(0.3 < share < 0.95 for share in result.reliable.mean((1, 2)))
    eyes, forehead = result.uncertainty[:, 30:36, 18:46], result.uncertainty[:, 18:25, 22:42]
    assert eyes.mean() > 1.5 * forehead.mean()
    assert result.reliable[:, 18:25, 22:42].mean() > result.reliable[:, 30:36, 18:46].mean() + 0.3
