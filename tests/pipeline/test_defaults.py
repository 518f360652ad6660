"""The default settings: the fastest exact decoding, alike in the command, the Python API, the web
demo and a batch."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import NATIVE, TINY, changed, random_model
from PIL import Image

from superres import DecodeConfig, Upscaler
from superres.batch.inputs import Input
from superres.batch.record import RunSettings
from superres.batch.run_options import BatchOptions
from superres.checkpoint import save_checkpoint
from superres.cli.main import run
from superres.config import PRESETS, ModelConfig
from superres.errors import ConfigError
from superres.pictures.read import read_image
from superres.pipeline.pipeline import fastest_exact
from superres.pipeline.resolved_options import combined, resolve_options
from superres.tasks.faces import FaceTask

FACE = Path(__file__).parents[2] / "scripts" / "faces" / "face-1.png"
FASTEST = DecodeConfig(adaptive=True)


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


def test_command_api_web_and_batch_decode_alike(upscaler, tmp_path):
    pytest.importorskip("gradio")
    import gradio as gr

    from superres.web.controls import decoding_controls, options_of
    from superres.web.decoding import Decoder

    source = np.asarray(Image.open(FACE))
    api = upscaler(source[None])
    fastest = replace(FASTEST, consistent=True, nucleus=0.9)
    assert upscaler.default == fastest
    assert len({*api.traces[0].accepted}) > 1

    for words in ([], ["--batch-size", "1"]):
        assert run(["upscale", str(FACE), "--checkpoint", upscaler.name, "--output", str(tmp_path),
                    "--on-existing", "overwrite", *words]) == 0
        row = json.loads((tmp_path / "manifest.jsonl").read_text())
        assert DecodeConfig.from_dict(row["config"]) == resolve_options(fastest, upscaler)
        assert row["iterations"] == api.traces[0].iterations
        assert np.array_equal(np.asarray(Image.open(tmp_path / FACE.name)), api.images[0])

    with gr.Blocks():
        values = [control.value for control in decoding_controls(upscaler.default, 10)]
    options = options_of(upscaler.default, values)
    assert options == fastest
    *_, frames = Decoder(upscaler).upscale("test", source[None], {"": options})
    assert frames[""].traces[0].accepted == api.traces[0].accepted
    assert np.array_equal(frames[""].images, api.images)

    sequential = upscaler(source[None], fastest.sequential())
    assert sequential.traces[0].mean_accepted_block_size == 1
    assert np.array_equal(sequential.images, api.images)


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
    ({"proposer": "lookahead"}, DecodeConfig(proposer="lookahead")),
    ({"accept": "distance", "epsilon": 3}, DecodeConfig(accept="distance", epsilon=3)),
    ({"accept": "top-k", "adaptive": True}, replace(FASTEST, accept="top-k")),
    ({"temperature": 0.9, "sampling": "speculative"},
     DecodeConfig(temperature=0.9, sampling="speculative")),
], ids=str)
def test_given_options_win_over_the_adaptive_default(given, expected):
    assert combined(FASTEST, given, 10) == expected


def test_python_calls_change_the_default_as_the_options_of_a_command_do(upscaler):
    assert upscaler.options() == upscaler.default
    near = upscaler.options(accept="distance", epsilon=2)
    assert near == DecodeConfig(accept="distance", epsilon=2, consistent=True, nucleus=0.9)
    assert upscaler.options(block_size=1) == upscaler.default.sequential()
    with pytest.raises(ConfigError, match=r"^epsilon=4 has no effect with accept=exact; "):
        upscaler.options(epsilon=4)
    with pytest.raises(ConfigError, match=r"^unknown setting accpet; the settings are block_size, "
                       r"accept, "):
        upscaler.options(accpet="exact")


def test_the_clock_does_not_decide_the_steps_of_a_face(monkeypatch):
    network = random_model(replace(TINY, **NATIVE, free_scores=False))
    steps, source = set(), np.arange(192, dtype=np.uint8).reshape(1, 8, 8, 3)
    for seconds in (1.0, 1e3):  # a machine that is a thousand times slower
        ticks = itertools.count(0.0, seconds)
        slow = changed(time, **dict.fromkeys(("perf_counter", "thread_time"),
                                             lambda ticks=ticks: next(ticks)))
        for module in ("decoding.batching", "decoding.cost", "pipeline.upscaler"):
            monkeypatch.setattr(f"superres.{module}.time", slow)
        upscaler = Upscaler(network, "tiny", device="cpu")
        assert upscaler.default == FASTEST
        steps.add(upscaler(source).traces[0].iterations)
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
    demo.decode(variants, np.asarray(Image.open(FACE))[None], 1)
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
