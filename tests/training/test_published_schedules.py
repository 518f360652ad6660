"""The recipes of the paper: their schedules, and that each stage starts, resumes and ends, at the
published width."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from textual import sentences, write_pairs

from superres.checkpoint import read_training
from superres.config import PRESETS
from superres.training import trainer
from superres.training.construction import learning_rate_factor
from superres.training.recipes import read_recipe, train_recipe
from superres.training.stage import Stage
from superres.training.trainer import Trainer

RECIPES = Path(__file__).parents[2] / "scripts" / "train" / "recipes"
NAMES = ["paper-images", "paper-text"]
LONGEST = {"paper-images": 250_000, "paper-text": 1_000_000}  # steps of training heads
NOAM = {"paper-images": (2.0, 12_000), "paper-text": (1.0, 4_000)}  # factor c and steps of warm-up
# One layer of each kind in place of 4 to 8; pictures of 8x8, and a vocabulary that little text
# suffices for.
SMALL_LAYERS = {"encoder_layers": 1, "decoder_layers": 1, "head_filter_size": 64}
SMALLER = {"paper-images": {**SMALL_LAYERS, "source_shape": [4, 4, 3], "target_shape": [8, 8, 3]},
           "paper-text": {**SMALL_LAYERS, "vocabulary": 330}}
OF_TWO_OTHERS = ("distillation", "fine-tuning")
"""Stages whose base and text each are those of another stage."""


def published(factor, warmup, step):
    """Return the learning rate of the update `step`, from 1 on, as published."""
    return factor * 512**-0.5 * min(step * warmup**-1.5, step**-0.5)


@pytest.mark.parametrize("name", NAMES)
def test_the_recipes_have_the_published_settings(name):
    recipe = read_recipe(RECIPES / f"{name}.json")
    factor, warmup = NOAM[name]
    for settings in recipe:
        assert settings.steps == (LONGEST[name] if settings.trains_heads else 1_000_000)
        assert (settings.optimizer, settings.clip, settings.ema_decay) == ("adam", None, 0)
        assert settings.label_smoothing == (0.1 if name == "paper-text" else 0)
        if settings.trains_heads:
            assert (settings.head_loss, settings.head_target) == ("random-head", "tokens")
        for step in (1, 2, warmup - 1, warmup, warmup + 1, 250_000):
            rate = settings.learning_rate * learning_rate_factor(settings, step - 1, 0.0)
            assert rate == pytest.approx(published(factor, warmup, step), rel=1e-3)
    assert PRESETS[recipe[0].preset].width == 512


def test_the_inverse_square_root_has_no_end():
    settings = Stage(steps=100, warmup_steps=4, schedule="noam")
    assert learning_rate_factor(settings, 99, 0.0) == pytest.approx(math.sqrt(4 / 100))
    assert learning_rate_factor(settings, 399, 0.0) == pytest.approx(0.1)


def training_data(name, folder):
    """Write eight pictures of 8x8 or 30 sentence pairs."""
    if name == "paper-text":
        return write_pairs(sentences(30), folder / "text")
    pictures = np.random.default_rng(0).integers(0, 256, (8, 8, 8, 3)).astype(np.uint8)
    np.savez(folder / "faces.npz", hr=pictures, lr=pictures[:, ::2, ::2],
             ids=np.arange(8, dtype=np.int32))
    return folder / "faces.npz"


@pytest.mark.parametrize("name", NAMES)
def test_each_stage_is_stopped_and_ends(
    name, tmp_path, monkeypatch):
    document = json.loads((RECIPES / f"{name}.json").read_text())
    document |= {"network": SMALLER[name], "prediction_heads": 2}
    steps = {"steps": 3, "batch_size": 1 if name == "paper-images" else 8}
    document["stages"] = [{**stage, **steps} for stage in document["stages"] if stage["name"]
                          not in OF_TWO_OTHERS]
    (tmp_path / "recipe.json").write_text(json.dumps(document))
    taken, stopped, real = [], set(), Trainer._step

    def watched(run):
        losses = real(run)
        (optimizer,) = run.optimizers
        (group,) = optimizer.param_groups
        assert isinstance(optimizer, torch.optim.Adam)
        assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.9, 0.98), 1e-9, 0)
        assert group["lr"] == pytest.approx(published(*NOAM[name], run.step), rel=1e-3)
        taken.append((run.folder.name, run.step))
        return losses

    def stop():
        if not taken or taken[-1][1] != 2 or taken[-1] in stopped:
            return False
        stopped.add(taken[-1])
        return True

    monkeypatch.setattr(Trainer, "_step", watched)
    monkeypatch.setattr(trainer, "plot_history", lambda *_: None)
    monkeypatch.setattr("accelerate.Accelerator.clip_grad_norm_",
                        lambda *_: pytest.fail("a gradient is clipped"))
    output, names = tmp_path / "run", [one["name"] for one in document["stages"]]
    recipe = read_recipe(tmp_path / "recipe.json", data=training_data(name, tmp_path),
                         output=output)
    for stage in names:
        assert not train_recipe(recipe, stop, lambda *_: None)
        assert json.loads((output / stage / "state" / "state.json").read_text())["step"] == 2
    assert train_recipe(recipe, stop, lambda *_: None)
    assert taken == [(stage, step) for stage in names for step in (1, 2, 3)]
    weights = {stage: load_file(output / stage / "state" / "model.safetensors") for stage in names}
    for stage in document["stages"]:
        (*_, last) = read_training(output / stage["name"] / "checkpoint")
        assert last["steps"] == 3
        # the base moves unless it is frozen; a checkpoint has bfloat16 weights
        if "start" in stage:
            base, now = weights[stage["start"]], weights[stage["name"]]
            same = all(torch.equal(weight.bfloat16().float(), now[key]) for key,
                       weight in base.items())
            assert same == stage.get("freeze_base", False)
            assert "heads.expand.weight" in now.keys() - base.keys()
