"""With a GPU and nothing asked for, the faster device decodes, by a measurement made once, and a
line says so."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from fakes import NATIVE, TINY, VARIANTS, random_model

from superres.checkpoint import save_checkpoint
from superres.pipeline import engines, pipeline
from superres.pipeline import fastest_device as module
from superres.pipeline.fastest_device import fastest_device, gpu_pays, seconds_per_token
from superres.pipeline.upscaler import Upscaler

GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def cards(monkeypatch, tmp_path):
    """Names of the GPUs that the machine reports, the last one; and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    names = ["Small"]
    monkeypatch.setattr(module, "machine", lambda device: {"cpu": "this", "gpu": names[-1]})
    return names


class Measured:
    """Seconds per token, measured `count` times."""

    def __init__(self, *seconds, steady=True):
        self.seconds, self.steady, self.count = list(seconds), steady, 0

    def __call__(self, model, end_token, gpu):
        self.count += 1
        return self.seconds, self.steady


@pytest.mark.parametrize(("seconds", "expected"), [
    ([1, 1, 0.5, 0.1], True),  # faster in both
    ([1, 1, 2, 2], False),
    ([1, 1, 3, 0.1], True),  # three times slower alone, ten times faster together
    ([1, 1, 10, 0.5], False),
])
def test_the_gpu_decodes_if_it_gains_more_in_a_full_batch_than_it_loses_alone(seconds, expected):
    assert gpu_pays(seconds) is expected


def test_the_measurement_is_made_once_per_network_and_gpu(cards, caplog):
    slow = Measured(1e-3, 1e-4, 9e-3, 1e-4)

    def choose(revision="0123"):
        return fastest_device(None, None, revision, GPU, slow).type

    assert [choose(), choose()] == ["cpu", "cpu"]
    assert slow.count == 1
    assert caplog.text.count("decoding on the CPU, which is faster here: 1 ms a token alone and "
                             "0.1 ms in a full batch, on the GPU 9 and 0.1 ms; --device cuda "
                             "decodes on the GPU") == 2
    choose("4567")
    cards.append("Large")
    assert slow.count == 2
    assert fastest_device(None, None, "0123", GPU, Measured(1e-3, 1e-4, 1e-3, 1e-6)) == GPU
    assert slow.count == 2


def test_what_other_work_has_disturbed_is_measured_again():
    disturbed = Measured(1, 1, 2, 2, steady=False)
    for _ in range(2):
        fastest_device(None, None, "0123", GPU, disturbed)
    assert disturbed.count == 2


def test_a_gpu_that_fails_leaves_the_decoding_to_the_cpu(caplog):
    def fail(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried")

    assert fastest_device(None, None, "0123", GPU, fail).type == "cpu"
    assert "decoding on the CPU, since the GPU does not work: CUDA out of memory." in caplog.text


@pytest.mark.parametrize(("variant", "end_token"), [("sequential heads", None), ("text", 3)])
def test_both_cases_are_measured_on_both_devices(variant, end_token, monkeypatch):
    """With a second CPU in place of the GPU."""
    monkeypatch.setattr(module, "FULL", {"cpu": 3})
    network = random_model(replace(VARIANTS[variant], **NATIVE), dtype=torch.float32)
    seconds, _ = seconds_per_token(network, end_token, torch.device("cpu"))
    assert len(seconds) == 4
    assert all(0 < value < 1 for value in seconds)


def test_a_checkpoint_is_loaded_on_the_faster_device_unless_one_is_asked_for(monkeypatch, tmp_path,
                                                                             caplog):
    asked = list[str]()
    monkeypatch.setattr(pipeline, "pick_device",
                        lambda name: torch.device("cpu" if name == "cpu" else "cuda"))

    def chosen(model, end_token, revision, gpu):
        asked.append(revision)
        return torch.device("cpu")

    monkeypatch.setattr(pipeline, "fastest_device", chosen)
    save_checkpoint(random_model(TINY, dtype=torch.float32), tmp_path / "network")
    loaded = Upscaler.load(tmp_path / "network")
    assert asked == [loaded.revision]
    assert loaded.device.type == "cpu"
    Upscaler.load(tmp_path / "network", "cpu")
    assert len(asked) == 1
    if not torch.cuda.is_available():
        for device, engine in (("cuda", "auto"), ("auto", "plain")):
            with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA|CUDA"):
                Upscaler.load(tmp_path / "network", device, engine)
    assert len(asked) == 1


def test_text_on_a_gpu_says_that_the_kernel_does_not_decode_it(caplog):
    network = random_model(VARIANTS["text"], dtype=torch.float32)
    del network.signal
    network.signal = SimpleNamespace(device=GPU)
    assert engines.step_model(network, 3).engine == "plain"
    assert ("decoding with the engine plain on the GPU, since triton does not decode with this "
            "network: " in caplog.text)
