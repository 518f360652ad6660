"""Finished pictures: means of several, sharpened, that reduce to exactly their input; the same
through every door."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from fakes import save_cascades
from PIL import Image

from superres.batch.run_options import BatchOptions
from superres.cli.main import run
from superres.config import DecodeConfig
from superres.decoding.batching import feed_of
from superres.errors import ConfigError
from superres.pictures.write import read_origin
from superres.pipeline.cascade import stage_traces
from superres.pipeline.finish import sharpened
from superres.pipeline.upscaler import Face, Upscaler
from superres.tasks.consistency import projected
from superres.tasks.faces import area_reduce
from tests.pipeline.helpers import by_item, images_of

GREEDY = DecodeConfig(3, consistent=True)
FINISHED = ("mean", "sharp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_cascades(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def upscalers(folder):
    return {name: Upscaler.load(folder / name, "cpu") for name in ("from-2", "two", "three")}


@pytest.fixture
def sources(rng):
    """Inputs of 2x2 pixels, among them extreme ones."""
    extreme = rng.choice([0, 255], (2, 2, 2, 3)), np.zeros((1, 2, 2, 3)), np.full((1, 2, 2, 3), 255)
    return np.concatenate([rng.integers(0, 256, (2, 2, 2, 3)), *extreme]).astype(np.uint8)


def sums(images, side):
    """Return the sums of the cells of images [N, H, H, 3], as many as pixels of inputs with the
    side."""
    cell = images.shape[1] // side
    return images.reshape(-1, side, cell, side, cell, 3).sum((2, 4), dtype=np.int64)


@pytest.mark.parametrize("kind", ["any", "black and white", "beyond"])
@pytest.mark.parametrize("unit", [2, 3, 1 << 24])
def test_a_projection_is_the_nearest_picture_with_exactly_the_sums_of_its_source(kind, unit, rng):
    source = rng.choice([0, 1, 254, 255],
                        (3, 2, 4, 3)) if kind != "any" else rng.integers(0, 256, (3, 2, 4, 3))
    ranges = {"any": (0, 256), "black and white": (0, 2), "beyond": (-300, 600)}
    values = (rng.integers(*ranges[kind], (3, 6, 12, 3)) * (255 if kind == "black and white" else 1)
              * unit)
    values += rng.integers(0, unit, values.shape) * (kind != "black and white")
    picture = projected(values, unit, source.astype(np.uint8))
    cells, made = (array.reshape(3, 2, 3, 4, 3, 3).transpose(0, 1, 3, 5, 2, 4).reshape(3, 2, 4, 3,
                                                                                       9)
                   for array in (values / unit, picture.astype(float)))
    assert (made.sum(-1) == 9 * source).all()
    low, high = np.full(source.shape, -1e3), np.full(source.shape, 1e3)
    for _ in range(60):  # the shift of the Euclidean projection
        middle = (low + high) / 2
        fits = (cells + middle[..., None]).clip(0, 255).sum(-1) <= 9 * source
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    if kind == "any":
        assert np.abs(made - (cells + low[..., None]).clip(0, 255)).max() < 1 + 1e-3


def test_the_unsharp_mask_adds_what_a_gaussian_blur_takes_and_has_the_same_bits_everywhere():
    picture = np.random.default_rng(3).integers(100, 156, (16, 16, 3)).astype(np.uint8)
    source = area_reduce(picture, 2, 2)
    sharp = sharpened(picture, source)
    assert (sums(sharp[None], 2) == 64 * source.astype(int)).all()
    weights = np.exp(-np.arange(-4, 5) ** 2 / 2)
    blurred = np.pad(picture.astype(float), ((4, 4), (4, 4), (0, 0)), "symmetric")
    for axis in (0, 1):
        blurred = np.apply_along_axis(np.convolve, axis, blurred, weights / weights.sum(), "valid")
    wanted = 2.0 * picture - blurred
    shift = np.kron((source - wanted.reshape(2, 8, 2, 8, 3).mean((1, 3))), np.ones((8, 8, 1)))
    assert np.abs(sharp - (wanted + shift)).max() < 1.1
    assert hashlib.sha256(sharp.tobytes()).hexdigest().startswith("a044c4d23cd059b6")
    flat = np.full((16, 16, 3), 77, np.uint8)
    assert (sharpened(flat, flat[:2, :2]) == flat).all()


@pytest.mark.parametrize("name", ["from-2", "two", "three"])
@pytest.mark.parametrize("finish", FINISHED)
def test_a_finished_picture_is_the_sharpened_mean_and_reduces_to_exactly_its_input(
    name, finish, upscalers, sources
):
    upscaler = upscalers[name]
    result = upscaler(sources, GREEDY, finish=finish)
    side = upscaler.face_task.target
    assert (sums(result.images, 2) == (side // 2) ** 2 * sources.astype(int)).all()
    assert (area_reduce(result.images, 2, 2) == sources).all()
    assert (area_reduce(result.images, 2, 2, is_reduced=True) == sources).all()
    drawer = upscaler.first or upscaler
    parts = [drawer(sources, GREEDY).images, drawer(sources[:, :, ::-1], GREEDY).images[:, :, ::-1]]
    if finish == "sharp":
        samples = drawer(sources, replace(GREEDY, temperature=0.7), samples=3).images
        parts = [samples[number::3] for number in range(3)]
    mean = projected(sum(one.astype(np.int64) for one in parts), len(parts), sources)
    if upscaler.first is not None:
        assert (result.drawn == upscaler(mean, GREEDY).images).all()
    whole = mean if upscaler.first is None else result.drawn
    assert (result.images == [sharpened(*pair) for pair in zip(whole, sources, strict=True)]).all()
    kept = result.averaged[0]
    assert (kept.images == parts[0]).all()
    assert result.earlier is (None if upscaler.first is None else kept)
    assert len(result.averaged) == len(parts)
    tokens = sum(trace.tokens for trace in result.all_traces(0))
    assert tokens == len(parts) * drawer.tokens_per_image + (0 if upscaler.first is None else 3
                                                             * side**2)
    assert result.is_complete
    assert (result.after(0, 10**9) == result.as_drawn[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("finish", FINISHED)
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_a_stream_of_several_sizes_gives_the_pictures_of_calls(finish, rows, upscalers, rng):
    three = upscalers["three"]
    faces = [Face(rng.integers(0, 256, (side, side, 3), np.uint8), 0) for side in (2, 8, 2, 4, 8,
                                                                                   2)]
    stream = three.refilled(feed_of(faces), GREEDY, rows, finish=finish)
    made = by_item(stream)
    assert stream.under_way == []
    for face in faces:
        result, alone = made[id(face)], three(face.source[None], GREEDY, finish=finish)
        assert (images_of(three, [result]) == alone.images).all()
        assert [trace.accepted for trace in stage_traces(result)] == [
            trace.accepted for trace in alone.all_traces(0)]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"finish": "crisp"}, "--finish must be one of none, mean, sharp, not 'crisp'"),
    ({"samples": 4, "keep": "likeliest"}, "--finish mean makes one picture of several, and --keep "
     "likeliest chooses"),
    ({"samples": 2}, "makes one picture per input; leave out --samples 2"),
    ({"options": replace(GREEDY, temperature=0.9)}, "draws at temperatures of its own; leave out "
     "--temperature"),
])
def test_options_that_finishing_cannot_have_are_refused(arguments, message, upscalers, sources):
    with pytest.raises(ConfigError, match=message):
        upscalers["two"](sources, **{"options": GREEDY, "finish": "mean", **arguments})


def test_a_finished_result_is_saved_and_pickled_and_not_judged(upscalers, sources, tmp_path):
    steps = []
    result = upscalers["two"](sources[:2], GREEDY, finish="mean",
                              progress=lambda *at: steps.append(at))
    assert steps[-1] == (240, 240) == max(steps)
    part = pickle.loads(pickle.dumps(result)).of_rows([1])  # noqa: S301 -- our own
    assert (part.images == result.images[1:]).all()
    assert [len(one.images) for one in (part.averaged[1], part.earlier)] == [1, 1]
    (file,) = part.save(tmp_path / "a.png")
    assert read_origin(io.BytesIO(file.read_bytes()), "a")["settings"]["finish"] == "mean"
    assert result.reliable is None
    assert "finished from 2 pictures each" in repr(result)
    with pytest.raises(ConfigError, match="without finish"):
        result.bits_per_dim  # noqa: B018 -- raises


@pytest.mark.slow
@pytest.mark.parametrize("finish", FINISHED)
@pytest.mark.parametrize("place",
                         [["--output", "out"], [], ["--output", "out", "--format", "webdataset"]])
def test_every_run_writes_what_a_call_returns_and_says_so(
    place, finish, folder, upscalers, sources, tmp_path, capsys, monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    names = [f"{number}.png" for number in range(3)]
    for name, source in zip(names, sources, strict=False):
        Image.fromarray(source).save(name)
    words = ["upscale", *names, "--checkpoint", str(folder / "two"), "--device", "cpu",
             "--no-consistent"]
    finished = upscalers["two"](sources[:3], upscalers["two"].options(consistent=False),
                                finish=finish)
    assert run([*words, *place, "--finish", finish]) == 0
    if "webdataset" not in place:
        for name, image in zip(names, finished.images, strict=True):
            opened = Image.open(tmp_path / "out" / name if place else tmp_path
                                / name.replace(".", "-superres."))
            assert (np.asarray(opened) == image).all()
            assert json.loads(opened.info["superres"])["finish"] == finish
    if not place:
        return
    (manifest,) = (tmp_path / "out").glob("*.jsonl")
    assert run(["manifest", "summary", str(manifest)]) == 0
    assert f"--finish {finish}" in capsys.readouterr().out
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    assert {row["options"]["finish"] for row in rows} == {finish}
    assert [row["tokens"] for row in rows] == [
        sum(trace.tokens for trace in finished.all_traces(number)) for number in range(3)]
    assert run([*words, *place, "--finish", finish]) == 0
    assert "0 done, 3 skipped" in capsys.readouterr().err
    assert run([*words, *place]) == 2
    assert f"finish '{finish}' there, None now" in capsys.readouterr().err
    assert run([*words, *place, "--finish", finish, "--keep", "likeliest", "--samples", "4"]) == 2
    assert "give only one of both" in capsys.readouterr().err


def test_rows_that_do_not_name_a_finish_are_those_of_pictures_as_they_were_drawn():
    assert BatchOptions("out").content_options()["finish"] is None
    with pytest.raises(ConfigError, match="--finish must be one of none, mean, sharp"):
        BatchOptions("out", finish="Mean")
