"""The bundled checkpoint, end to end: what a user gets from a fresh clone."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage import data

import superres
from superres.cli.main import run
from superres.evaluation.pictures import consistency, psnr
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask, area_reduce, enlarge
from superres.tasks.pictures import read_image

SCRIPTS = Path(__file__).parents[1] / "scripts"
FACES = SCRIPTS / "faces"
NAME = "celeba-8to32"


@pytest.fixture(scope="module")
def upscaler():
    return superres.load(NAME, device="cpu")


@pytest.fixture(scope="module")
def sources():
    return np.stack([read_image(path) for path in sorted(FACES.glob("*.png"))[:3]])


@pytest.fixture(scope="module", params=[0.0, 0.9], ids=["greedy", "sampling"])
def sequential(request, upscaler, sources):
    """One token a step, at the width of the largest block."""
    width = upscaler.model_config.prediction_heads
    options = superres.DecodeConfig(block_size=1, temperature=request.param)
    return request.param, upscaler(sources, options, width=width)


def test_exact_blocks_equal_one_token_at_a_time_for_every_block_size(upscaler, sources, sequential):
    temperature, reference = sequential
    width = upscaler.model_config.prediction_heads
    for k in (2, 4, 6, 8, 10):
        options = superres.DecodeConfig(block_size=k, temperature=temperature)
        result = upscaler(sources, options, width=width)
        assert np.array_equal(result.images, reference.images), f"k={k}"
        assert all(trace.tokens == 3072 for trace in result.traces)
        assert all(trace.iterations < 3072 for trace in result.traces), "no proposal was ever accepted"


HARD = np.stack([
    np.zeros((8, 8, 3)), np.full((8, 8, 3), 255), np.indices((8, 8, 3)).sum(0) % 2 * 255,
    np.random.default_rng(0).integers(0, 256, (8, 8, 3)),
]).astype(np.uint8)
"""Inputs that no face looks like: black, white, a chequerboard of extremes, noise."""

CONSISTENT = {
    "exact": {}, "adaptive": {"adaptive": True}, "epsilon 2": {"accept": "distance", "epsilon": 2},
    "top-k": {"accept": "top-k", "top_k": 3}, "sampled": {"temperature": 0.9},
    "speculative": {"temperature": 0.9, "sampling": "speculative"},
    "draft": {"proposer": "draft", "temperature": 0.9, "sampling": "speculative"},
    "colours": {"temperature": (1.5, 0.9, 0.5), "accept": "distance"},
}


@pytest.mark.parametrize("way", CONSISTENT)
def test_consistent_pictures_reduce_to_exactly_their_input(upscaler, sources, way):
    inputs = np.concatenate([sources, HARD])
    result = upscaler(inputs, superres.DecodeConfig(**CONSISTENT[way], consistent=True))
    assert np.array_equal(area_reduce(result.images, 8, 8, is_reduced=True), inputs)


@pytest.mark.parametrize("engine", ["plain", "native-bf16", "native-int8"])
def test_consistent_pictures_of_every_engine_reduce_to_their_input(sources, engine):
    inputs = np.concatenate([sources[:1], HARD[2:]])
    loaded = superres.load(NAME, device="cpu", engine=engine)
    result = loaded(inputs, superres.DecodeConfig(accept="distance", epsilon=2, consistent=True))
    assert np.array_equal(area_reduce(result.images, 8, 8, is_reduced=True), inputs)


def test_consistent_blocks_equal_one_token_at_a_time(upscaler, sources):
    for temperature in (0.0, 0.9):
        options = superres.DecodeConfig(temperature=temperature, consistent=True)
        reference = upscaler(sources[:1], dataclasses.replace(options, block_size=1)).images
        for change in ({"block_size": 4}, {"adaptive": True}, {"proposer": "lookup", "block_size": 3}):
            assert np.array_equal(upscaler(sources[:1], dataclasses.replace(options, **change)).images, reference)


def test_epsilon_needs_fewer_calls_and_stays_close_to_greedy(upscaler, sources):
    exact = upscaler(sources, superres.DecodeConfig())
    loose = upscaler(sources, superres.DecodeConfig(accept="distance", epsilon=2))
    for few, many in zip(loose.traces, exact.traces, strict=True):
        assert few.model_calls < many.model_calls
    assert psnr(loose.images, exact.images).min() > 25


def test_pictures_match_their_inputs_better_than_another_input(upscaler, sources):
    images = upscaler(sources, superres.DecodeConfig(accept="distance")).images
    own, other = consistency(images, sources), consistency(images, np.roll(sources, 1, axis=0))
    assert (own < 12).all()
    assert (own * 2 < other).all()
    assert images.reshape(len(images), -1).std(axis=1).min() > 10, "a blank picture"


def test_bits_per_dim_needs_the_right_input(upscaler):
    crops = [data.astronaut()[20 + dy : 190 + dy, 140:310] for dy in (-8, 0, 8)]
    targets = np.stack([area_reduce(crop, 32, 32) for crop in crops])
    right = np.stack([area_reduce(crop, 8, 8) for crop in crops])
    wrong = right[:, :, ::-1].copy()
    assert upscaler.bits_per_dim(right, targets).mean() < upscaler.bits_per_dim(wrong, targets).mean() - 0.5


def test_a_folder_with_bad_files_is_done_but_for_them(tmp_path, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    Image.fromarray(data.astronaut()[20:190, 140:310]).save(folder / "astronaut.jpg")
    (folder / "face-1.png").write_bytes((FACES / "face-1.png").read_bytes())
    (folder / "text.png").write_text("not a picture")
    (folder / "cut.jpg").write_bytes((folder / "astronaut.jpg").read_bytes()[:900])
    Image.new("RGB", (1, 1)).save(folder / "dot.png")
    out, manifest = tmp_path / "out", tmp_path / "manifest.jsonl"
    words = ["upscale", folder, "--output", out, "--accept", "distance", "--manifest", manifest, "--device", "cpu"]
    assert run([str(word) for word in words]) == 1
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert [Path(row["input"]).name for row in rows if row["status"] == "ok"] == ["astronaut.jpg", "face-1.png"]
    assert len([row for row in rows if row["status"] == "failed"]) == 3
    assert sorted(path.name for path in out.iterdir()) == ["astronaut.png", "face-1.png"]
    assert read_image(out / "face-1.png").shape == (32, 32, 3)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("superres: ")]
    assert len(lines) == 5  # one a bad file, one on the photo, and the summary


@pytest.mark.parametrize(("option", "message"), [
    (["--block-size", "11"], "10 prediction heads"), (["--epsilon", "-1"], "epsilon must be at least 0"),
    (["--checkpoint", "nowhere"], "no checkpoint 'nowhere'"),
])
def test_bad_usage_is_one_line_and_exit_code_2(tmp_path, capsys, option, message):
    words = ["upscale", str(FACES), "--output", str(tmp_path / "out"), "--device", "cpu", *option]
    assert run(words) == 2
    captured = capsys.readouterr().err.strip()
    assert message in captured
    assert len(captured.splitlines()) == 1
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_the_greedy_picture_is_closer_to_a_photograph_than_bicubic(upscaler):
    crop = data.astronaut()[20:190, 140:310]
    source, truth = area_reduce(crop, 8, 8)[None], area_reduce(crop, 32, 32)[None]
    ours = upscaler(source, superres.DecodeConfig(accept="distance")).images
    assert psnr(ours, truth) > psnr(enlarge(source, "bicubic", 32), truth)


def test_more_heads_give_the_same_tokens_in_fewer_steps(upscaler, sources):
    wide = superres.load(f"{NAME}-24-heads", device="cpu")
    base, same = (network.model.state_dict() for network in (upscaler, wide))
    assert all(same[name].equal(weight) for name, weight in base.items() if not name.startswith("heads."))
    ten, all_heads = (superres.DecodeConfig(accept="distance", epsilon=2, block_size=k) for k in (10, None))
    few, some, many = wide(sources, all_heads), wide(sources, ten), upscaler(sources, ten)
    assert np.array_equal(some.images, many.images)  # the bundled heads are the first ten of these
    assert all(less.model_calls < 0.75 * more.model_calls for less, more in zip(few.traces, many.traces, strict=True))


def test_the_drawn_faces_serve_the_documented_commands(tmp_path, capsys):
    drawn = tmp_path / "dev.npz"
    subprocess.run([sys.executable, SCRIPTS / "draw_dev.py", drawn, "--device", "cpu"], check=True)
    pairs = read_faces(drawn, FaceTask(8, 32))
    assert len(pairs) == 64
    assert np.array_equal(pairs.lr[5], area_reduce(pairs.hr[5], 8, 8))
    assert run(["evaluate", "images", "--data", str(drawn), "--limit", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 1
