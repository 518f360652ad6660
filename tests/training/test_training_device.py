"""Training on a device: what a GPU gets runs on a CPU, and on the meta device, which has no values
to wait for."""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import SMALL, TINY, VARIANTS, changed, random_model, random_tokens
from textual import CONFIG as TEXT
from torch import nn
from typer.testing import CliRunner

from superres.cli import train as commands
from superres.errors import ConfigError
from superres.nn.attention import fused_attend
from superres.pipeline import choose
from superres.training import construction, recipes
from superres.training.construction import build_model, compile_layers, learning_rate_factor
from superres.training.corpora import Corpus
from superres.training.recipes import read_recipe, stage_of
from superres.training.stage import GPU_DEFAULTS, Stage
from superres.training.trainer import Trainer
from tests.training.helpers import history, image_batches, training_steps

META = torch.device("meta")


@pytest.mark.parametrize("change", [
    {}, {"stage": "heads", "optimizer": "adam"}, {"stage": "heads", "head_loss": "random-head"},
    {"stage": "distil", "teacher": "x"},
], ids=["base", "heads", "one head", "distil"])
def test_a_step_reads_no_value_from_the_device(change):
    """A GPU computes while the CPU prepares the next step; the meta device has no values, so
    reading one fails."""
    settings = Stage(steps=9, batch_size=8, head_positions=20, **{"optimizer": "muon", **change})
    config = replace(TINY, prediction_heads=4 if settings.trains_heads else 1)
    model, teacher = (build_model(config, settings).to(META) for _ in range(2))
    model.fuse_attention()
    take = training_steps(model, settings, teacher.eval() if settings.teacher else None)
    totals = [take(step) for step in range(2)]
    with pytest.raises(RuntimeError, match="meta"):
        totals[1].item()


@pytest.mark.parametrize("network", [*VARIANTS.values(), TEXT], ids=[*VARIANTS, "text"])
def test_fused_attention_gives_the_same_scores_and_gradients(network):
    network, found = replace(network, dropout=0.0), []
    for fused in (False, True):
        model = random_model(network).requires_grad_(True)
        if fused:
            model.fuse_attention()
            assert all(layer.masked is fused_attend for layer in (*model.encoder, *model.decoder))
        source, target = random_tokens(network, 3)
        padding = None
        if len(network.source_shape) == 1:
            padding = torch.zeros(source.shape, dtype=torch.bool)
            padding[1, -2:] = True
        scores = model.scores(model(source, target, padding))
        scores.log_softmax(-1).mean().backward()
        found.append([scores, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) > 10
    torch.testing.assert_close(*found)


@pytest.fixture
def traced(monkeypatch):
    """Compiled layers are traced as always, but run without generated code, which takes a minute to
    build."""
    compile_module = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile",
                        lambda self, **options: compile_module(self, backend="eager", **options))
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("generated", [False, pytest.param(True, marks=pytest.mark.extended)])
def test_a_run_with_compiled_layers_learns_what_one_without_does(generated, tmp_path, request):
    """Layers are traced, and in the other case run as generated code."""
    if not generated:
        request.getfixturevalue("traced")
    settings = Stage(steps=2, batch_size=2, precision="no", optimizer="muon", stage="heads",
                     clip=None)
    config, losses = replace(TINY, dropout=0.0, prediction_heads=3), []
    for compiled in (False, True):
        model = build_model(config, settings)
        if compiled:
            model.fuse_attention()  # as on a GPU
        corpus = Corpus(config, image_batches(torch.device("cpu"), settings), None)
        output = tmp_path / str(compiled)
        run = Trainer(model, replace(settings, compiled=compiled, output=output), corpus,
                      report_steps=1)
        assert run.run()
        for network, expected in ((run.model, compiled), (run.averaged, False)):
            assert all((layer._compiled_call_impl is not None) == expected
                       for layer in network.decoder)
        losses.append([record["total"] for record in history(output)])
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.usefixtures("traced")
def test_compiled_layers_that_get_too_many_shapes_raise_an_error_instead_of_becoming_slow():
    model = build_model(replace(TINY, dropout=0.0), Stage(steps=1))
    compile_layers(model)

    def score(counts):
        for count in counts:
            model(*random_tokens(TINY, count))

    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        score(range(1, 20))


@pytest.fixture
def gpu(monkeypatch):
    """A machine that says it has a GPU."""
    monkeypatch.setattr(choose, "gpu_present", lambda: True)
    monkeypatch.setitem(sys.modules, "torch",
                        changed(torch, cuda=changed(torch.cuda, is_available=lambda: True)))


def test_a_gpu_has_defaults_of_its_own_where_none_is_given(gpu, tmp_path):
    assert {name: getattr(stage_of({"steps": 1}), name) for name in GPU_DEFAULTS} == GPU_DEFAULTS
    assert stage_of({"steps": 1, "device": "cpu"}) == Stage(steps=1, device="cpu")
    (tmp_path / "recipe.json").write_text(json.dumps({"learning_rate": 1e-3,
                                                      "stages": [{"name": "a", "steps": 1}]}))
    stage, = read_recipe(tmp_path / "recipe.json", device="cuda")
    assert (stage.batch_size, stage.learning_rate, stage.device) == (128, 1e-3, "cuda")


def test_without_a_gpu_the_device_cuda_is_refused_before_anything_is_read(tmp_path):
    with pytest.raises(ConfigError, match="device cuda is not available: torch finds no GPU; "
                       "choose cpu or auto"):
        stage_of({"steps": 1, "device": "cuda"})
    with pytest.raises(ConfigError, match="device must be one of auto, cpu, cuda, not 'tpu'"):
        stage_of({"steps": 1, "device": "tpu"})


def test_options_that_are_left_out_leave_a_recipes_settings_alone(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(commands, "_train_recipe", lambda stages, *_: seen.extend(stages))
    (tmp_path / "recipe.json").write_text(json.dumps(
        {"device": "cpu", "compiled": True, "stages": [{"name": "a", "steps": 1}]}))
    needed = ["ladder", str(tmp_path / "recipe.json"), "--data", str(tmp_path), "--output",
              str(tmp_path / "run")]
    for options in ([], ["--no-compiled", "--device", "auto"]):
        result = CliRunner().invoke(commands.train_app, [*needed, *options])
        assert result.exit_code == 0, result.output
    assert [(stage.device, stage.compiled, stage.batch_size) for stage in seen] == [
        ("cpu", True, 4), ("auto", False, 4)]


def test_a_network_that_a_gpu_has_no_room_for_is_refused(monkeypatch):
    monkeypatch.setattr(construction, "free_bytes", lambda device: 10**12 if device.type == "cpu"
                        else 10**5)
    with pytest.raises(ConfigError, match=r"takes 0\.\d GB of the GPU's memory, and 0\.0 GB are "
                       r"free"):
        construction._require_memory(replace(SMALL, width=512), torch.device("cuda"))
    construction._require_memory(SMALL, torch.device("cpu"))


def test_more_threads_than_cores_are_refused(monkeypatch):
    monkeypatch.setattr(recipes, "usable_cores", lambda: 3)
    assert stage_of({"steps": 1, "device": "cpu", "threads": 3}).threads == 3
    with pytest.raises(ConfigError, match="threads must be at most 3, the usable cores, not 4"):
        stage_of({"steps": 1, "device": "cpu", "threads": 4})


def test_learning_rate_warms_up_and_falls_to_zero():
    settings = Stage(steps=100, warmup_steps=10)
    factors = [learning_rate_factor(settings, step, 0.0) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert all(a < b for a, b in itertools.pairwise(factors[:10]))
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert factors[100] == pytest.approx(0.0)
    assert learning_rate_factor(Stage(minutes=2.0, warmup_steps=1), 9, 60.0) == pytest.approx(0.5)
