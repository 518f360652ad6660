"""What decodes where a user leaves it open: the faster device, the engine, and the fastest exact
settings, alike in the command, the Python API, the web demo and a batch."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import NATIVE, TINY, VARIANTS, changed, random_model
from PIL import Image

from superres.batch.inputs import Input
from superres.batch.record import RunSettings
from superres.batch.run_options import BatchOptions
from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import PRESETS, DecodeConfig, ModelConfig
from superres.errors import ConfigError
from superres.interfaces import Network
from superres.native.build import NativeUnavailable
from superres.nn.weights import network_of
from superres.pictures.read import read_image
from superres.pipeline import choose, pipeline
from superres.pipeline.choose import (
    engine_of,
    fastest_device,
    fastest_exact,
    gpu_pays,
    pick_device,
    seconds_per_token,
)
from superres.pipeline.resolved_options import combined, resolve_options
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import FaceTask
from tests.pipeline.helpers import FACE

FASTEST = DecodeConfig(adaptive=True)

# The device and the engine


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """What a measurement gives, the number of measurements, and the machine's GPU; with a cache of
    its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine = SimpleNamespace(gpu="Small", count=0, is_steady=True,
                              seconds=[1e-3, 1e-4, 9e-3, 1e-4])

    def measure(network, end_token):
        machine.count += 1
        return machine.seconds, machine.is_steady

    monkeypatch.setattr(choose, "machine", lambda device: {"cpu": "this", "gpu": machine.gpu})
    monkeypatch.setattr(choose, "seconds_per_token", measure)
    return machine


def chosen(revision="0123"):
    return fastest_device(Network(None, {}, revision), None)


@pytest.mark.parametrize(("seconds", "expected"), [
    ([1, 1, 0.5, 0.1], True),  # faster in both
    ([1, 1, 2, 2], False),
    ([1, 1, 3, 0.1], True),  # three times slower alone, ten times faster together
    ([1, 1, 10, 0.5], False),
])
def test_the_gpu_decodes_if_it_gains_more_in_a_full_batch_than_it_loses_alone(seconds, expected):
    assert gpu_pays(seconds) is expected


def test_the_measurement_is_made_once_per_network_and_gpu(measured, caplog):
    assert [chosen(), chosen()] == ["cpu", "cpu"]
    assert measured.count == 1
    assert caplog.text.count("decoding on the CPU, which is faster here: 1 ms a token alone and "
                             "0.1 ms in a full batch, on the GPU 9 and 0.1 ms; --device cuda "
                             "decodes on the GPU") == 2
    assert chosen("4567") == "cpu"
    measured.gpu, measured.seconds = "Large", [1e-3, 1e-4, 1e-3, 1e-6]
    assert [chosen(), chosen()] == ["cuda", "cuda"]
    assert measured.count == 3


def test_what_other_work_has_disturbed_is_measured_again(measured):
    measured.is_steady = False
    assert [chosen(), chosen()] == ["cpu", "cpu"]
    assert measured.count == 2


def test_a_gpu_that_fails_leaves_the_decoding_to_the_cpu(measured, monkeypatch, caplog):
    def fail(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.\nTried")

    monkeypatch.setattr(choose, "seconds_per_token", fail)
    assert chosen() == "cpu"
    assert "decoding on the CPU, since the GPU does not work: CUDA out of memory." in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "end_token"), [("sequential heads", None), ("text", 3)])
def test_both_cases_are_measured_on_both_devices(variant, end_token, monkeypatch):
    """With a second CPU in place of the GPU."""
    made, asked = choose.automatic, list[str]()

    def automatic(network, end_token, device, warn):
        asked.append(device)
        return made(network, end_token, "cpu", warn)

    monkeypatch.setattr(choose, "automatic", automatic)
    monkeypatch.setattr(choose, "FULL", {"cpu": 3, "cuda": 3})
    network = network_of(random_model(replace(VARIANTS[variant], **NATIVE), dtype=torch.float32))
    seconds, _ = seconds_per_token(network, end_token)
    assert asked == ["cpu", "cuda"]
    assert len(seconds) == 4
    assert all(0 < value < 1 for value in seconds)


def test_a_checkpoint_is_loaded_on_the_faster_device_unless_one_is_asked_for(monkeypatch, tmp_path):
    asked = list[str]()
    monkeypatch.setattr(pipeline, "pick_device", lambda name: "cpu" if name == "cpu" else "cuda")

    def decided(network, end_token):
        asked.append(network.revision)
        return "cpu"

    monkeypatch.setattr(pipeline, "fastest_device", decided)
    save_checkpoint(random_model(TINY, dtype=torch.float32), tmp_path / "network")
    loaded = Upscaler.load(tmp_path / "network")
    assert asked == [loaded.revision]
    assert loaded.device == "cpu"
    Upscaler.load(tmp_path / "network", "cpu")
    if not torch.cuda.is_available():
        for device, engine in (("cuda", "auto"), ("auto", "plain")):
            with pytest.raises((RuntimeError, AssertionError), match=r"NVIDIA|CUDA"):
                Upscaler.load(tmp_path / "network", device, engine)
    assert len(asked) == 1


def test_text_on_a_gpu_says_that_the_kernel_does_not_decode_it(monkeypatch, caplog):
    monkeypatch.setattr(choose, "module_on", lambda network, *_: network.module)
    network = network_of(random_model(VARIANTS["text"], dtype=torch.float32))
    assert engine_of(network, 3, "cuda").name == "plain"
    assert ("decoding with the engine plain on the GPU, since triton does not decode with this "
            "network: " in caplog.text)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_absent_device_is_refused():
    for name in ("cuda", "tpu"):
        with pytest.raises(ConfigError, match=name):
            pick_device(name)
    assert pick_device("auto") == "cpu"


def test_a_gpu_that_nothing_decodes_on_is_named_once(monkeypatch, caplog):
    monkeypatch.setattr(choose, "gpu_present", lambda: True)
    monkeypatch.setitem(sys.modules, "torch", None)
    choose._say_that_no_gpu_decodes.cache_clear()
    assert [pick_device("auto"), pick_device("auto")] == ["cpu", "cpu"]
    assert caplog.text.count("decoding on the CPU, although there is a GPU: --device cuda needs "
                             "torch: pip install 'superres[torch]'") == 1
    with pytest.raises(ConfigError, match=r"^--device cuda needs torch: pip install "):
        pick_device("cuda")
    monkeypatch.setattr(choose, "gpu_present", lambda: False)
    assert pick_device("auto") == "cpu"


def test_without_compiled_code_and_torch_both_ways_to_decode_are_named(monkeypatch):
    def refuse(*_, **options):
        raise NativeUnavailable("no C++ compiler is installed; install one")

    network = network_of(random_model(TINY, dtype=torch.float32))
    monkeypatch.setattr(choose, "NativeEngine", refuse)
    assert engine_of(network).name == "plain"
    monkeypatch.delitem(sys.modules, "superres.nn.weights")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ConfigError, match=r"^decoding without compiled code \(no C\+\+ compiler is "
                       r"installed; install one\) needs torch: pip install 'superres\[torch\]'$"):
        engine_of(network)


# The settings


@pytest.fixture(scope="module")
def upscaler():
    found = Upscaler.load(device="cpu")
    if found.engine != "native-int8":
        pytest.skip("this machine cannot compile the native engine")
    return found


def test_the_default_is_adaptive_in_compiled_code_and_all_heads_elsewhere():
    ten = ModelConfig(prediction_heads=10)
    assert fastest_exact(False, ten) == fastest_exact(True, ModelConfig()) == DecodeConfig()
    assert fastest_exact(True, ten) == FASTEST
    own = {"consistent": True, "nucleus": 0.9}
    assert fastest_exact(True, replace(ten, **own)) == replace(FASTEST, **own)


@pytest.mark.slow
def test_a_checkpoint_with_a_nucleus_samples_from_it_unless_asked_otherwise(tmp_path, capsys):
    network = random_model(PRESETS["tiny"])
    save_checkpoint(network, tmp_path / "all")
    network.config = replace(network.config, nucleus=1e-6)
    save_checkpoint(network, tmp_path / "nucleus")
    written = {}
    for name, *words in (("all",), ("nucleus",), ("nucleus", "--nucleus", "1"),
                         ("all", "--nucleus", "1e-6")):
        output = tmp_path / "-".join(["out", name, *words])
        assert run(["upscale", str(FACE), "--checkpoint", str(tmp_path / name), "--device", "cpu",
                    "--temperature", "1", "--output", str(output), *words]) == 0
        written[name, len(words)] = read_image(output / FACE.name)
    assert (written["nucleus", 0] == written["all", 2]).all()  # the likeliest token alone
    assert (written["nucleus", 2] == written["all", 0]).all()
    assert (written["nucleus", 0] != written["all", 0]).any()
    capsys.readouterr()


@pytest.mark.slow
def test_command_api_web_and_batch_decode_alike(upscaler, tmp_path):
    pytest.importorskip("gradio")
    import gradio as gr

    from superres.web.controls import decoding_controls, options_of
    from superres.web.decoding import VisitorDecoding

    source = read_image(FACE)
    api = upscaler(source[None])
    fastest = replace(FASTEST, consistent=True, nucleus=0.9)
    assert upscaler.default == fastest
    assert len({*api.traces[0].accepted}) > 1

    for words in ([], ["--batch-size", "1"]):
        assert run(["upscale", str(FACE), "--checkpoint", upscaler.name, "--output", str(tmp_path),
                    "--on-existing", "overwrite", *words]) == 0
        row = json.loads((tmp_path / "manifest.jsonl").read_text())
        assert DecodeConfig.from_dict(row["config"]) == resolve_options(fastest, upscaler)
        assert row["iterations"] == api[0].steps
        assert np.array_equal(np.asarray(Image.open(tmp_path / FACE.name)), api.images[0])

    with gr.Blocks():
        values = [control.value for control in decoding_controls(upscaler.default, 10)]
    options = options_of(upscaler.default, values)
    assert options == fastest
    *_, frames = VisitorDecoding(upscaler).upscale("test", source[None], {"": options})
    assert frames[""].traces[0].accepted == api.traces[0].accepted
    assert np.array_equal(frames[""].images, api.images)


@pytest.mark.parametrize(("given", "expected"), [
    ({}, FASTEST),
    ({"temperature": 0.9, "nucleus": 0.8}, replace(FASTEST, temperature=0.9, nucleus=0.8)),
    ({"accept": "exact", "proposer": "heads", "seed": 3}, replace(FASTEST, seed=3)),
    ({"block_size": 4}, DecodeConfig(block_size=4)),
    ({"block_size": 4, "adaptive": True}, replace(FASTEST, block_size=4)),
    ({"adaptive": False}, DecodeConfig()),
    ({"min_block": 2}, DecodeConfig(min_block=2)),
    ({"proposer": "draft"}, DecodeConfig(proposer="draft")),
    ({"proposer": "draft", "adaptive": True}, replace(FASTEST, proposer="draft")),
    ({"accept": "distance", "epsilon": 3}, DecodeConfig(accept="distance", epsilon=3)),
    ({"accept": "top-k", "adaptive": True}, replace(FASTEST, accept="top-k")),
    ({"temperature": 0.9, "sampling": "speculative"},
     DecodeConfig(temperature=0.9, sampling="speculative")),
], ids=str)
def test_given_options_win_over_the_adaptive_default(given, expected):
    assert combined(FASTEST, given, 10) == expected


@pytest.mark.slow
def test_python_calls_change_the_default_as_the_options_of_a_command_do(upscaler):
    assert upscaler.options() == upscaler.default
    near = upscaler.options(accept="distance", epsilon=2)
    assert near == DecodeConfig(accept="distance", epsilon=2, consistent=True, nucleus=0.9)
    assert upscaler.options(block_size=1) == upscaler.default.sequential()
    source = read_image(FACE)
    called = upscaler(source, accept="distance", epsilon=2)
    assert called[0].steps == upscaler(source, near)[0].steps < upscaler(source)[0].steps
    *_, last = upscaler.stream(source, accept="distance", epsilon=2)
    assert np.array_equal(last.images, called.images)
    for refused in (upscaler.options, lambda **given: upscaler(source, **given),
                    lambda **given: upscaler.stream(source, **given)):
        with pytest.raises(ConfigError, match=r"^epsilon=4 has no effect with accept=exact; "):
            refused(epsilon=4)
        with pytest.raises(ConfigError, match=r"^unknown setting accpet; the settings are "
                           r"block_size, accept, "):
            refused(accpet="exact")
    with pytest.raises(ConfigError, match="give either options or single settings such as accept"):
        upscaler(source, near, accept="distance")


@pytest.mark.slow
def test_the_clock_does_not_decide_the_steps_of_a_face(monkeypatch):
    network = random_model(replace(TINY, free_scores=False))
    steps, source = set(), np.arange(192, dtype=np.uint8).reshape(1, 8, 8, 3)
    for seconds in (1.0, 1e3):  # a machine that is a thousand times slower
        ticks = itertools.count(0.0, seconds)
        slow = changed(time, **dict.fromkeys(("perf_counter", "thread_time"),
                                             lambda ticks=ticks: next(ticks)))
        for module in ("decoding.batching", "decoding.cost", "pipeline.upscaler"):
            monkeypatch.setattr(f"superres.{module}.time", slow)
        upscaler = Upscaler(network, "tiny", device="cpu")
        assert upscaler.default == FASTEST
        steps.add(upscaler(source)[0].steps)
    assert len(steps) == 1


@pytest.mark.parametrize(("now", "differs"), [
    (FASTEST, []), (replace(FASTEST, temperature=0.9), ["temperature 0.0 there, 0.9 now"]),
    (DecodeConfig(block_size=10, accept="distance", adaptive=True), [
        "accept 'exact' there, 'distance' now", "adaptive False there, True now"]),
], ids=str)
def test_a_run_of_an_older_default_resumes(now, differs, tmp_path):
    """The tokens are the same, so only settings that change them count as other settings."""
    options = BatchOptions(tmp_path)
    older = RunSettings("c@1", DecodeConfig(block_size=10), options, FaceTask(8, 32))
    row = replace(older.failed(Input("a.png", "a"), "a.png", "").row, status="ok")
    assert RunSettings("c@1", replace(now, block_size=10), options,
                       FaceTask(8, 32)).differences(row) == differs


@pytest.mark.slow
def test_the_demo_compares_every_variant_with_one_token_per_step_of_its_kind(upscaler, capsys):
    spec = importlib.util.spec_from_file_location("demo", FACE.parents[1] / "demo.py")
    demo = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "demo", demo)  # dataclasses look their module up
        spec.loader.exec_module(demo)
    variants = demo.load_variants(upscaler.name, "cpu")
    assert list(variants) == ["greedy", "exact", "blocks", "epsilon 2", "sequential", "sample",
                              "native"]
    assert variants["exact"].options == upscaler.default
    demo.decode(variants, read_image(FACE)[None], 1)
    for variant in variants.values():
        reference = variants[variant.reference]
        assert reference.options.temperature == variant.options.temperature
        assert {*reference.traces[0].accepted} == {1}
        if variant.options.accept == "exact" and variant.upscaler is reference.upscaler:
            assert np.array_equal(variant.images, reference.images)
    lines = list(demo.table_lines(variants))
    assert [line.split("  ")[0] for line in lines[1:8]] == [line.split("  ")[0]
                                                            for line in lines[9:]] == list(variants)
    assert "Decoding 1 faces" in capsys.readouterr().out
