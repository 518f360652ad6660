"""The calls that users make: pictures of any kind in, records out that a notebook shows, public
names, types, and the notebook."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import pytest
import torch
from fakes import BAD_KEYS, TINY, random_model
from PIL import Image
from textual import write_checkpoint
from typing_extensions import get_overloads

import superres
from superres.checkpoint import save_checkpoint, weights_digest
from superres.config import BeamConfig, DecodeConfig, DecodeOptions
from superres.decoding.acceptance import CRITERIA
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import COLUMNS, Stream
from superres.decoding.plain.engine import PlainRows
from superres.decoding.proposers import PROPOSERS
from superres.errors import (
    CheckpointError,
    ConfigError,
    InvalidInputError,
    SuperresError,
)
from superres.pipeline import upscaler as module
from superres.pipeline.auto import load
from superres.pipeline.pipeline import at_intervals
from superres.pipeline.registration import register_criterion, register_engine, register_proposer
from superres.pipeline.resolved_options import SETTINGS
from superres.pipeline.translated import Translation
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import free_bytes
from superres.tasks.photos import choose_crops
from tests.pipeline.helpers import WIDE_STEPS
from tests.tasks.test_photos import astronaut, group_photo

NOTEBOOK = Path(__file__).parents[2] / "docs" / "first-hour.ipynb"
SAMPLED = replace(WIDE_STEPS, temperature=0.9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "random"
    save_checkpoint(random_model(TINY, dtype=torch.float32), path)
    return path


@pytest.fixture(scope="module")
def upscaler(folder):
    return load(folder, device="cpu")


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return Translator.load(write_checkpoint(tmp_path_factory.mktemp("text") / "toy"), "cpu",
                           "plain")


@pytest.fixture
def sources(rng):
    return rng.integers(0, 256, (3, 8, 8, 3), np.uint8)


# Records


def test_a_result_is_a_sequence_of_records(upscaler, sources):
    result = upscaler(sources, WIDE_STEPS)
    assert result.images.shape == (3, 32, 32, 3)
    assert result.images.dtype == np.uint8
    assert len(result) == len(list(result)) == len(result.traces) == 3
    assert result.seconds > 0
    for one, image in zip(result, result.images, strict=True):
        (trace,) = one.traces
        assert (trace.tokens, trace.model_calls) == (3072, 3072 // 8 + 1)
        assert (one.steps, one.tokens_per_step) == (3072 // 8, 8.0)
        np.testing.assert_array_equal(one.image, image)
        np.testing.assert_array_equal(np.asarray(one.picture), image)
        assert one._repr_png_().startswith(b"\x89PNG")
    np.testing.assert_array_equal(result[-1].image, result.images[2])
    assert result[1:].inputs == [1, 2]
    np.testing.assert_array_equal(result[::-1].images, result.images[::-1])
    with pytest.raises(IndexError):
        result[3]


def test_a_translation_is_its_text_and_the_record_of_it(translator):
    result = translator(["a dog", "", "a man"], block_size=2)
    assert result.texts == [str(one) for one in result] == [one.text for one in result[:]]
    assert (len(result), result[1], result[-1].segments) == (3, Translation("", segments=0), 1)
    assert result[0].tokens == sum(trace.tokens for trace in result[0].traces)
    assert result[0].tokens / 2 <= result[0].steps <= result[0].tokens
    *_, last = translator.stream(["a dog", "", "a man"], block_size=2)
    assert last.texts == result.texts
    with pytest.raises(ConfigError, match="give either options or single settings such as top_k"):
        translator(["a"], BeamConfig(), top_k=3, accept="top-k")


def test_keys_make_sampling_independent_of_batch_and_order(upscaler, sources):
    forward = upscaler.decode(sources, SAMPLED, keys=[10, 20, 2**63 - 1]).images
    other = upscaler.decode(sources[[0, 2, 1, 0]], SAMPLED, keys=[11, 2**63 - 1, 20, 10]).images
    np.testing.assert_array_equal(forward, other[[3, 2, 1]])
    assert (other[0] != forward[0]).any()


@pytest.mark.parametrize(("keys", "message"), BAD_KEYS, ids=repr)
def test_keys_that_do_not_fit_the_faces_are_refused_in_one_line(upscaler, sources, keys, message):
    for call in (lambda: upscaler.decode(sources[:2], SAMPLED, keys=keys),
                 lambda: next(upscaler.decode_stream(sources[:2], SAMPLED, keys=keys))):
        with pytest.raises(InvalidInputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_stream_shows_the_tokens_of_a_call_in_order_and_nothing_beyond_them(upscaler, sources):
    called = upscaler.decode(sources, SAMPLED, keys=[3, 1, 2])
    shown = list(upscaler.decode_stream(sources, SAMPLED, keys=[3, 1, 2], interval=0))
    np.testing.assert_array_equal(shown[-1].images, called.images)
    assert [trace.accepted for trace in shown[-1].traces] == [trace.accepted
                                                              for trace in called.traces]
    iterations = COLUMNS // (3 * 8)  # between two results
    assert [result.is_complete for result in shown] == [False] * (3072 // (iterations * 8)) + [True]
    for number, result in enumerate(shown, 1):
        done = min(number * iterations * 8, 3072)
        assert [trace.tokens for trace in result.traces] == [done] * 3
        assert (result.filled.reshape(3, -1) == (np.arange(3072) < done)).all()
        np.testing.assert_array_equal(result.images, np.where(result.filled, shown[-1].images, 0))


def test_time_between_two_requests_does_not_count():
    """A loop whose step takes a second is watched by somebody who takes 100 seconds for each
    look."""
    now = [0.0]

    def steps():
        for _ in range(4):
            yield False, lambda: None
            now[0] += 1

    shown = []
    for _, seconds, _ in at_intervals(steps(), interval=0, clock=lambda: now[0]):
        shown.append(seconds)
        now[0] += 100
    assert shown == [1, 2, 3]


# Pictures


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["path", "text", "pillow", "array", "list", "arrays"])
def test_a_picture_of_any_kind_gives_the_same_result(upscaler, tmp_path, kind):
    photo = astronaut()
    path = tmp_path / "photo.png"
    photo.save(path)
    pixels = np.asarray(photo)
    given = {"path": path, "text": str(path), "pillow": photo, "array": pixels, "list": [path],
             "arrays": pixels[None]}
    result = upscaler(given[kind], WIDE_STEPS)
    (crop,) = result.crops
    assert crop == choose_crops(pixels, upscaler.face_task)[0]
    np.testing.assert_array_equal(result.sources,
                                  upscaler.face_task.source_of(crop.take(pixels))[None])
    np.testing.assert_array_equal(result.images, upscaler(result.sources, WIDE_STEPS).images)
    assert result.inputs == [0]
    name = str(path) if kind in ("path", "text", "list") else "picture 1"
    assert result.notes == [f"{name} (512x512): crop face, one face found; {crop.size}x{crop.size} "
                            f"pixels at ({crop.left}, {crop.top}) turned by {crop.turn:g} degrees "
                            "are used, and the model sees only 8x8"]


def test_pictures_of_the_model_s_input_size_stay_as_they_are(upscaler, rng):
    sources = rng.integers(0, 256, (3, 8, 8, 3), np.uint8)
    batch = upscaler(sources, WIDE_STEPS)
    np.testing.assert_array_equal(batch.sources, sources)
    assert (batch.crops, batch.notes, batch.inputs) == ([], [], [0, 1, 2])
    mixed = upscaler([sources[0], Image.fromarray(sources[1]), sources[2]], WIDE_STEPS)
    np.testing.assert_array_equal(mixed.images, batch.images)
    np.testing.assert_array_equal(upscaler(sources[0], WIDE_STEPS).images, batch.images[:1])
    assert mixed.notes == []
    assert upscaler(sources[0], WIDE_STEPS, crop="0,0,8").notes == [
        "picture 1 (8x8): crop as given; 8x8 pixels at (0, 0) are used, and the model sees only "
        "8x8"]


def test_a_photo_with_three_faces_gives_three_images_and_the_crop_can_be_chosen(upscaler):
    photo, _ = group_photo()
    result = upscaler([astronaut(8), photo], WIDE_STEPS)
    assert result.images.shape == (4, 32, 32, 3)
    assert result.inputs == [0, 1, 1, 1]
    assert [crop.face for crop in result.crops] == [0, 1, 2, 3]
    for crop, size in (("centre", 400), ("10,20,30", 30)):
        one = upscaler(photo, WIDE_STEPS, crop=crop)
        assert [square.size for square in one.crops] == [size]
        *_, last = upscaler.stream(photo, WIDE_STEPS, crop=crop)
        np.testing.assert_array_equal(last.images, one.images)
        assert last.notes == one.notes
    assert upscaler([], WIDE_STEPS).images.shape == (0, 32, 32, 3)


@pytest.mark.parametrize("wrong", [
    np.zeros((2, 8, 8), np.uint8), np.zeros((1, 1, 8, 8, 3), np.uint8),
    np.zeros((1, 8, 8, 4), np.uint8), np.zeros((1, 32, 32, 3), np.int64), np.zeros((1, 8, 8, 3)),
    np.zeros((0,), np.uint8),
], ids=lambda a: f"{a.dtype}{a.shape}")
def test_sources_of_another_shape_or_type_are_refused(wrong, upscaler):
    with pytest.raises(InvalidInputError) as caught:
        upscaler(wrong)
    assert "\n" not in str(caught.value)
    # of several pictures, the first is named
    shapes = [str(list(shape)) for shape in (wrong.shape, wrong.shape[1:])]
    assert any(shape in str(caught.value) for shape in shapes)


def test_floats_from_0_to_1_are_pictures_and_a_note_says_so(upscaler, rng):
    source = rng.integers(0, 256, (8, 8, 3), np.uint8)
    result = upscaler((source / 255).astype(np.float32), WIDE_STEPS)
    np.testing.assert_array_equal(result.sources[0], source)
    assert result.notes == ["picture 1: floats from 0 to 1 are taken as 0 to 255"]
    with pytest.raises(InvalidInputError, match=r"or floats from 0 to 1, not float64 \[8, 8, 3\]; "
                       r"convert it"):
        upscaler(source * 1.0, WIDE_STEPS)


# Loading


def test_folder_is_loaded_with_name_and_revision(folder):
    loaded = superres.load(str(folder), device="cpu")
    assert isinstance(loaded, superres.Upscaler)
    assert (loaded.name, loaded.revision) == ("random", weights_digest(folder))
    assert loaded.model_config == TINY


def test_type_checkers_know_what_load_returns():
    found = [get_type_hints(one) for one in get_overloads(load)]
    assert [(one["name_or_dir"], one["return"]) for one in found] == [
        (Literal["celeba-8to32", "celeba-32to64", "celeba-8to64"], Upscaler),
        (Literal["multi30k-en-de"], Translator), (str | Path, Any)]


@pytest.mark.parametrize("name", ["celeba-8to64", "multi30k-en-de"])
def test_a_loaded_pipeline_is_pickled_as_its_checkpoint_device_engine_and_default(name, tmp_path,
                                                                                  rng):
    pipeline = load(name, "cpu", "plain")
    pipeline.default = pipeline.options(block_size=2)
    data = pickle.dumps(pipeline)
    assert len(data) < 2000
    again = pickle.loads(data)  # noqa: S301 -- our own
    assert (type(again), again.name, again.revision, again.engine, again.device, again.default) == (
        type(pipeline), pipeline.name, pipeline.revision, "plain", pipeline.device,
        pipeline.default)
    if isinstance(again, Upscaler):
        assert again.face_task == pipeline.face_task
        smaller = pickle.loads(pickle.dumps(again.at_size(32)))  # noqa: S301 -- our own
        assert smaller.face_task == again.at_size(32).face_task
    else:
        assert again(["a dog"]).texts == pipeline(["a dog"]).texts


def test_a_pipeline_is_unpickled_with_its_own_weights_only(tmp_path):
    upscaler = Upscaler(random_model(TINY, dtype=torch.float32), "random", device="cpu")
    with pytest.raises(ConfigError, match="random cannot be pickled, since it was not loaded from "
                       "a checkpoint"):
        pickle.dumps(upscaler)
    save_checkpoint(upscaler.model, tmp_path / "mine")
    data = pickle.dumps(Upscaler.load(tmp_path / "mine", "cpu", "plain"))
    save_checkpoint(random_model(TINY, seed=5, dtype=torch.float32), tmp_path / "mine")
    with pytest.raises(CheckpointError, match="mine has other weights"):
        pickle.loads(data)  # noqa: S301 -- our own


@pytest.mark.slow
def test_importing_the_package_does_not_import_torch():
    code = "import sys, superres, superres.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_notebook_runs_and_its_outputs_are_committed_and_small(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(NOTEBOOK, 4)
    assert NOTEBOOK.stat().st_size < 200_000
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, 1):
        assert cell.execution_count == number
        assert all(output.output_type != "error" and output.get("name") != "stderr"
                   for output in cell.outputs)
    nbclient.NotebookClient(notebook, timeout=600,
                            resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.data for cell in cells for output in cell.outputs if "data" in output]
    assert sum("image/png" in data and "<img" in data.get("text/html", "") for data in shown) == 5
    printed = "".join(output.text for cell in cells for output in cell.outputs if output.get("name")
                      == "stdout")
    assert "the same picture: True" in printed
    assert "the same small picture: True" in printed


def test_a_call_without_progress_reads_no_unfinished_result(upscaler, monkeypatch):
    """Reading the tokens and traces of a step takes longer than the step."""
    read = []
    monkeypatch.setattr(Stream, "so_far", lambda self: read.append(self))
    upscaler(np.zeros((1, *upscaler.face_task.source_shape), np.uint8))
    assert read == []


@pytest.mark.parametrize("options", [
    DecodeConfig(), DecodeConfig(1), DecodeConfig(4, proposer="lookahead"),
    DecodeConfig(4, proposer="jacobi"), DecodeConfig(4, consistent=True),
], ids=str)
def test_a_row_has_at_least_the_bytes_of_the_tensors_of_its_session(options, upscaler):
    source = upscaler.source_tokens(np.zeros((1, 8, 8, 3), np.uint8))
    algorithm = Algorithm(upscaler.scoring, options, limits=upscaler.limits)
    rows = algorithm.start(source, upscaler.block_size(options))
    parts = (rows.plain.session.row_state() if isinstance(rows, PlainRows)
             else [*rows.session.rows.values(), *rows.rows.values()])
    held = sum(part.nbytes for part in parts)
    beside = upscaler.scoring.row_bytes(rows.width, options.proposer == "heads")
    assert held + beside <= upscaler.row_bytes(options) <= 2 * held + beside


def test_a_batch_has_the_rows_whose_bytes_fit_twice_into_the_free_memory(upscaler, monkeypatch):
    size, free = upscaler.row_bytes(DecodeConfig()), [0]
    monkeypatch.setattr(module, "free_bytes", lambda device: free[0])
    for free[0], rows in ((0, 1), (2 * size, 1), (10 * size, 5), (11 * size, 5),
                          (1 << 50, module.USEFUL_ROWS["cpu"])):
        assert upscaler.fitting_rows(DecodeConfig()) == rows


def test_memory_that_torch_keeps_of_a_gpu_is_free(monkeypatch):
    for name, value in {"mem_get_info": (1000, 9000), "memory_reserved": 500,
                        "memory_allocated": 200}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_bytes("cuda") == 1300


# Settings


def test_options_have_the_types_of_the_settings_and_the_built_in_names_of_choices():
    types = get_type_hints(DecodeOptions)
    assert types.keys() == SETTINGS.keys()
    for name, kind in get_type_hints(DecodeConfig).items():
        if name in types and not SETTINGS[name].choices:
            assert types[name] == kind
    built_in = {"accept": CRITERIA, "proposer": PROPOSERS, "sampling": SETTINGS["sampling"].choices}
    for name, names in built_in.items():
        assert set(get_args(types[name])) == set(getattr(names, "built_in", names))
    assert {name for name, about in SETTINGS.items() if about.choices} == built_in.keys()


@pytest.mark.parametrize(("call", "message"), [
    (lambda upscaler, sources: next(upscaler.stream(sources[:0])), "at least one"),
    (lambda upscaler, sources: upscaler(sources, DecodeConfig(block_size=9)),
     "block size 9 is more than the 8 prediction heads"),
    (lambda *_: Upscaler(random_model(replace(TINY, task="text")), "mine", device="cpu"),
     "is for the task 'text'"),
])
def test_what_does_not_fit_is_refused_in_one_line(upscaler, sources, call, message):
    with pytest.raises(SuperresError, match=message) as caught:
        call(upscaler, sources)
    assert "\n" not in str(caught.value)


WRONG = [None, 3, -1, 2.5, math.nan, True, "x", "", b"x", [], [None], [1, 2], ("a",), {}, {"a": 1},
         object(), np.zeros(3), np.zeros((2, 8, 8, 3))]
"""Values, most of which are wrong wherever they are given."""
PICTURE = np.zeros((8, 8, 3), np.uint8)


def calls(up, tr, one):
    """Return the calls of which a test gives one argument."""
    return [
        load, lambda v: load("celeba-8to32", v), lambda v: load("celeba-8to32", "cpu", v),
        lambda v: Upscaler.load(v, "cpu", "plain"), up.at_size, up.from_size,
        lambda v: up(v, one), lambda v: up(PICTURE, one if v is None else v),
        lambda v: up(PICTURE, one, crop=v), lambda v: up(PICTURE, one, progress=v),
        lambda v: up(PICTURE, epsilon=v), lambda v: up(PICTURE, one, samples=v),
        lambda v: up.decode(PICTURE, one, keys=v), lambda v: up.decode(PICTURE, one, width=v),
        lambda v: [*up.stream(v, one)], lambda v: [*up.stream(PICTURE, one, crop=v)],
        lambda v: [*up.stream(PICTURE, one, interval=v)],
        lambda v: [*up.stream(PICTURE, one if v is None else v)],
        lambda v: up.bits_per_dim(v, v), lambda v: up.bits_per_dim(PICTURE[None], v),
        up(PICTURE[:0].reshape(0, 8, 8, 3), one).save,
        lambda v: tr(v, one), lambda v: tr(["a"], one if v is None else v),
        lambda v: tr(["a"], one, batch_size=v), lambda v: tr(["a"], one, progress=v),
        lambda v: tr.decode(["a"], one, keys=v), lambda v: tr.decode(["a"], one, width=v),
        lambda v: [*tr.stream(v, one)], lambda v: [*tr.stream(["a"], one, interval=v)],
        lambda v: [*tr.stream(["a"], one if v is None else v)],
        register_proposer, register_criterion, register_engine, register_proposer("some"),
        register_criterion("some"), register_engine("some"),
        *(lambda v, name=name: up.options(**{name: v}) for name in SETTINGS),
        *(lambda v, name=name: DecodeConfig(**{name: v}) for name in SETTINGS),
        lambda v: BeamConfig(size=v), lambda v: BeamConfig(length_penalty=v),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_wrong_arguments_raise_an_error_of_superres(value, upscaler, translator, tmp_path,
                                                    monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in calls(upscaler, translator, WIDE_STEPS):
        with suppress(SuperresError):  # some values are right
            call(value)
