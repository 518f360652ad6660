"""The call that users make: arrays in, arrays out."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import BAD_KEYS, NATIVE, TINY, random_model

import superres
from superres.checkpoint import save_checkpoint, weights_digest
from superres.config import DecodeConfig
from superres.decoding.batching import COLUMNS, Stream
from superres.errors import ConfigError, InvalidInputError, SuperresError
from superres.pipeline import upscaler as module
from superres.pipeline.auto import load
from superres.pipeline.pipeline import at_intervals, pick_device
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import free_bytes

FAST = replace(TINY, **NATIVE)
WIDE_STEPS = DecodeConfig(accept="distance", epsilon=255)  # accepts everything: few calls
SAMPLED = replace(WIDE_STEPS, temperature=0.9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "random"
    save_checkpoint(random_model(FAST, dtype=torch.float32), path)
    return path


@pytest.fixture(scope="module")
def upscaler(folder):
    return load(folder, device="cpu")


@pytest.fixture
def sources(rng):
    return rng.integers(0, 256, (3, 8, 8, 3), np.uint8)


def test_batch_of_sources_gives_images_and_traces(upscaler, sources):
    result = upscaler(sources, WIDE_STEPS)
    assert result.images.shape == (3, 32, 32, 3)
    assert result.images.dtype == np.uint8
    assert len(result.traces) == 3
    for trace in result.traces:
        assert trace.tokens == 3072
        assert trace.mean_accepted_block_size == 8.0
        assert trace.model_calls == 3072 // 8 + 1
    assert result.seconds > 0


def test_keys_make_sampling_independent_of_batch_and_order(upscaler, sources):
    forward = upscaler(sources, SAMPLED, keys=[10, 20, 2**63 - 1]).images
    other = upscaler(sources[[0, 2, 1, 0]], SAMPLED, keys=[11, 2**63 - 1, 20, 10]).images
    np.testing.assert_array_equal(forward, other[[3, 2, 1]])
    assert (other[0] != forward[0]).any()


@pytest.mark.parametrize(("keys", "message"), BAD_KEYS, ids=repr)
def test_keys_that_do_not_fit_the_faces_are_refused_in_one_line(upscaler, sources, keys, message):
    for call in (lambda: upscaler(sources[:2], SAMPLED, keys=keys),
                 lambda: next(upscaler.stream(sources[:2], SAMPLED, keys=keys))):
        with pytest.raises(InvalidInputError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_stream_shows_the_tokens_of_a_call_in_order_and_nothing_beyond_them(upscaler, sources):
    called = upscaler(sources, SAMPLED, keys=[3, 1, 2])
    shown = list(upscaler.stream(sources, SAMPLED, keys=[3, 1, 2], interval=0))
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


@pytest.mark.parametrize(("call", "message"), [
    (lambda upscaler, sources: next(upscaler.stream(sources[:0])), "at least one"),
    (lambda upscaler, sources: upscaler(sources, DecodeConfig(block_size=9)),
     "block size 9 is more than the 8 prediction heads"),
    (lambda *_: Upscaler(random_model(replace(TINY, task="text")), "mine", device="cpu"),
     "is for the task 'text'"),
    (lambda *_: pick_device("tpu"), "'tpu'"),
])
def test_what_does_not_fit_is_refused_in_one_line(upscaler, sources, call, message):
    with pytest.raises(SuperresError, match=message) as caught:
        call(upscaler, sources)
    assert "\n" not in str(caught.value)


def test_folder_is_loaded_with_name_and_revision(folder):
    loaded = superres.load(str(folder), device="cpu")
    assert isinstance(loaded, superres.Upscaler)
    assert (loaded.name, loaded.revision) == ("random", weights_digest(folder))
    assert loaded.model_config == FAST


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_absent_device_is_refused():
    with pytest.raises(ConfigError, match="cuda"):
        pick_device("cuda")
    assert pick_device("auto") == torch.device("cpu")


@pytest.mark.slow
def test_importing_the_package_does_not_import_torch():
    code = "import sys, superres, superres.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_call_without_progress_reads_no_unfinished_result(upscaler, monkeypatch):
    """Reading the tokens and traces of a step takes longer than the step."""
    read = []
    monkeypatch.setattr(Stream, "so_far", lambda self: read.append(self))
    upscaler(np.zeros((1, *upscaler.face_task.source_shape), np.uint8))
    assert read == []


def test_a_batch_has_the_rows_whose_bytes_fit_twice_into_the_free_memory(upscaler, monkeypatch):
    options, width = DecodeConfig(), upscaler.model_config.prediction_heads
    with torch.inference_mode():
        session = upscaler.scoring.session(upscaler.source_tokens(np.zeros((1, 8, 8, 3), np.uint8)),
                                           width)
    size = sum(tensor.nbytes for tensor in session.row_state()) + upscaler.scoring.row_bytes(width,
                                                                                             True)
    free = [0]
    monkeypatch.setattr(module, "free_bytes", lambda device: free[0])
    for free[0], rows in ((0, 1), (2 * size, 1), (10 * size, 5), (11 * size, 5),
                          (1 << 50, module.USEFUL_ROWS["cpu"])):
        assert upscaler.fitting_rows(options) == rows


def test_memory_that_torch_keeps_of_a_gpu_is_free(monkeypatch):
    for name, value in {"mem_get_info": (1000, 9000), "memory_reserved": 500,
                        "memory_allocated": 200}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    assert free_bytes(torch.device("cuda")) == 1300
