"""Training: resumable to the bit, refused where it would silently mix runs, and it learns."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import SMALL, random_model, random_tokens

from superres.checkpoint import load_checkpoint, read_training, save_checkpoint
from superres.errors import CheckpointError, ConfigError, OutputError
from superres.training import trainer as training
from superres.training.data import ImageBatches
from superres.training.recipes import Stage
from superres.training.settings import TrainConfig
from superres.training.trainer import Progress, Trainer, build_model, learning_rate_factor

TINY = replace(SMALL, vocabulary=16, prediction_heads=1, dropout=0.1)
SETTINGS = TrainConfig(steps=6, batch_size=2, warmup_steps=2, precision="no", learning_rate=1e-2, ema_decay=0.9)


def pairs(count=5, settings=SETTINGS):
    rng = np.random.default_rng(0)
    low = rng.integers(0, 16, (count, 2, 2, 3), np.uint8)
    return ImageBatches(low, low.repeat(2, 1).repeat(2, 2), settings.batch_size, settings.seed, settings.flip)


def trainer(folder, settings=SETTINGS, config=TINY, start=None, **options):
    return Trainer(build_model(config, settings, start), settings, pairs(settings=settings), folder, **options)


def stop_after(run, steps):
    return lambda: run.progress.step >= steps


def weights(run):
    return {**run.model.state_dict(), **{f"averaged.{n}": w for n, w in run.averaged.state_dict().items()}}


def assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("settings", [
    SETTINGS, replace(SETTINGS, optimizer="adam"), replace(SETTINGS, optimizer="muon"),
    replace(SETTINGS, stage="heads", head_loss="random-head"),
], ids=["adamw", "adam", "muon", "heads"])
def test_resumed_run_equals_an_uninterrupted_one_to_the_bit(settings, tmp_path):
    # Dropout draws from torch's global generator, whose state is not part of a run.
    config = replace(TINY, dropout=0.0, prediction_heads=4 if settings.stage == "heads" else 1)
    whole = trainer(tmp_path / "whole", settings, config)
    assert whole.run()
    for steps in (2, 3):
        part = trainer(tmp_path / "parts", settings, config)
        assert not part.run(stop=stop_after(part, steps))
        assert part.progress.step == steps
    last = trainer(tmp_path / "parts", settings, config)
    assert last.progress.step == 3
    assert last.run()
    assert_same(weights(last), weights(whole))
    a, b = (load_checkpoint(tmp_path / name / "checkpoint").state_dict() for name in ("whole", "parts"))
    assert_same(a, b)


@pytest.mark.parametrize(("change", "named"), [({"learning_rate": 0.5}, "0.5"), ({"seed": 3}, "seed")])
def test_resuming_with_other_settings_is_refused_in_one_line(change, named, tmp_path):
    run = trainer(tmp_path)
    run.run(stop=stop_after(run, 1))
    with pytest.raises(CheckpointError, match=named) as caught:
        trainer(tmp_path, replace(SETTINGS, **change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["state.json", "model.safetensors", "optimizer.safetensors"])
def test_damaged_state_is_named(file, tmp_path):
    run = trainer(tmp_path)
    run.run(stop=stop_after(run, 1))
    (tmp_path / "state" / file).write_bytes(b"{")
    with pytest.raises(CheckpointError, match=file) as caught:
        trainer(tmp_path)
    assert "\n" not in str(caught.value)


def test_failing_save_leaves_the_last_good_state(tmp_path, monkeypatch):
    run = trainer(tmp_path)
    run.run(stop=stop_after(run, 2))
    good = {name: weight.clone() for name, weight in weights(run).items()}
    real, calls = training.save_file, []

    def full(*args, **options):
        calls.append(args)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr("superres.training.trainer.save_file", full)
        with pytest.raises(OutputError, match="No space left"):
            run.run(stop=stop_after(run, 4))
    again = trainer(tmp_path)
    assert again.progress.step == 2
    assert_same(weights(again), good)
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_loss_falls_on_a_few_pairs(tmp_path):
    settings = replace(SETTINGS, steps=100, batch_size=5, flip=False)
    run = trainer(tmp_path, settings, replace(TINY, dropout=0.0))
    reports = []
    assert run.run(report=reports.append)
    assert [record["step"] for record in reports] == [50, 100]
    assert reports[1]["p1"] < reports[0]["p1"] < np.log(16) * 0.8
    assert reports[1]["images"] == 500


def test_run_leaves_history_curves_and_checkpoint(tmp_path):
    scores = iter([{"bits_per_dim": 3.5}])
    run = trainer(tmp_path, replace(SETTINGS, steps=50), evaluate=lambda model: next(scores))
    assert run.run()
    history = json.loads((tmp_path / "history.json").read_text())
    assert [sorted(record) for record in history] == [
        ["estimate", "images", "p1", "seconds", "step", "total"], ["bits_per_dim", "images", "seconds", "step"]]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (stage,) = read_training(tmp_path / "checkpoint")
    assert (stage["steps"], stage["images_seen"], stage["stage"], stage["dev_bits_per_dim"]) == (50, 100, "base", 3.5)
    assert TrainConfig.from_dict(stage["settings"]) == run.settings
    saved = load_checkpoint(tmp_path / "checkpoint").state_dict()
    for name, weight in run.averaged.state_dict().items():
        assert torch.equal(saved[name], weight.bfloat16().float())


@pytest.fixture
def base(tmp_path):
    save_checkpoint(build_model(TINY, SETTINGS), tmp_path / "base")
    return tmp_path / "base"


def test_heads_stage_takes_its_head_layer_from_the_stage_or_else_from_the_start(base):
    stage = Stage(replace(SETTINGS, stage="heads"), base, base, start=base, prediction_heads=3)
    assert stage.network() == replace(TINY, prediction_heads=3)
    assert replace(stage, head_layer="sequential").network().head_layer == "sequential"
    with pytest.raises(ConfigError, match="per-head, dense, sequential, recurrent, not 'wide'"):
        replace(stage, head_layer="wide").network()


def test_run_from_before_a_setting_existed_resumes(tmp_path):
    run = trainer(tmp_path)
    run.run(stop=stop_after(run, 2))
    path = tmp_path / "state" / "state.json"
    state = json.loads(path.read_text())
    del state["settings"]["distance_weight"], state["model"]["head_layer"]
    state["settings"]["head_decay"] = 1.0  # a former setting
    path.write_text(json.dumps(state))
    assert trainer(tmp_path).progress.step == 2


def test_warm_start_that_does_not_fit_is_refused(base):
    with pytest.raises(CheckpointError, match="base"):
        build_model(replace(TINY, decoder_layers=3, prediction_heads=4), replace(SETTINGS, stage="heads"), base)


def test_frozen_heads_stage_leaves_p1_identical_to_the_bit(base, tmp_path):
    settings = replace(SETTINGS, stage="heads", freeze_base=True)
    config = replace(TINY, prediction_heads=4)
    run = trainer(tmp_path / "run", settings, config, base)
    heads = run.model.heads.expand.weight.clone()
    assert run.run()
    assert not torch.equal(run.model.heads.expand.weight, heads)
    before, after = load_checkpoint(base), load_checkpoint(tmp_path / "run" / "checkpoint")
    source, target = random_tokens(TINY, 3)
    assert torch.equal(after.scores(after(source, target)), before.scores(before(source, target)))


@pytest.mark.parametrize("kind", ["per-head", "dense", "sequential"])
def test_a_layer_that_p1_has_already_becomes_its_part_of_the_new_one(kind, tmp_path):
    network = replace(TINY, identity_p1=False, head_layer=kind)
    save_checkpoint(random_model(network), tmp_path / "base")
    # A checkpoint from before there was the setting.
    path = tmp_path / "base" / "config.json"
    document = json.loads(path.read_text())
    document["model"].pop("one_head_layer", None)
    path.write_text(json.dumps(document))
    before = load_checkpoint(tmp_path / "base")
    assert before.heads.count == 1
    settings = replace(SETTINGS, stage="heads", head_target="tokens", freeze_base=True)
    model = build_model(replace(network, prediction_heads=4), settings, tmp_path / "base").eval()
    source, target = random_tokens(TINY, 3)
    expected = before.scores(before(source, target))
    torch.testing.assert_close(model.scores(model(source, target)), expected, rtol=1e-3, atol=1e-3)
    other = {"dense": "per-head"}.get(kind, "dense")
    with pytest.raises(ConfigError, match=f"head layer {kind} .* leave --head-layer out") as caught:
        build_model(replace(network, prediction_heads=4, head_layer=other), settings, tmp_path / "base")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("before", "after"), [(3, 5), (5, 3)])
@pytest.mark.parametrize("kind", ["per-head", "dense", "sequential"])
def test_heads_of_a_checkpoint_with_fewer_or_more_of_them_are_kept(kind, before, after, tmp_path):
    save_checkpoint(random_model(replace(TINY, head_layer=kind, prediction_heads=before)), tmp_path / "start")
    start = load_checkpoint(tmp_path / "start")
    settings = replace(SETTINGS, stage="heads", freeze_base=True)
    model = build_model(replace(start.config, prediction_heads=after), settings, tmp_path / "start").eval()
    source, target = random_tokens(TINY, 3)
    given, taken = (network(source, target) for network in (start, model))
    position = torch.arange(2).expand(3, -1)
    for head in range(1 if kind == "dense" and after < before else min(before, after)):
        expected = start.head_scores(given, position, head)
        torch.testing.assert_close(model.head_scores(taken, position, head), expected, rtol=1e-4, atol=1e-4)
    if kind != "dense" and after > before:
        last, new = (model.heads(taken.hidden[:, 0], head, 1) for head in (before - 1, after - 1))
        torch.testing.assert_close(last, new)


def test_learning_rate_warms_up_and_falls_to_zero():
    settings = TrainConfig(steps=100, warmup_steps=10)
    factors = [learning_rate_factor(settings, Progress(step, 0.0, [])) for step in range(101)]
    assert factors[0] == pytest.approx(0.1)
    assert all(a < b for a, b in itertools.pairwise(factors[:10]))
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert factors[100] == pytest.approx(0.0)
    timed = TrainConfig(minutes=2.0, warmup_steps=1)
    assert learning_rate_factor(timed, Progress(9, 60.0, [])) == pytest.approx(0.5)


def test_the_base_of_a_checkpoint_is_trained_alone_and_its_heads_stay(tmp_path):
    before = random_model(replace(TINY, dropout=0.0, prediction_heads=4), dtype=torch.float32)
    save_checkpoint(before, tmp_path / "start")
    assert trainer(tmp_path / "run", config=before.config, start=tmp_path / "start").run()
    after, kept = load_checkpoint(tmp_path / "run" / "checkpoint").state_dict(), before.state_dict()
    start = load_checkpoint(tmp_path / "start").state_dict()  # rounded for storage
    moved = {name for name in kept if not torch.equal(after[name], start[name])}
    assert {name for name in kept if name.startswith("decoder.0")} <= moved
    assert not any(name.startswith("heads.") for name in moved)


def test_a_run_is_not_resumed_with_another_start_or_other_data(tmp_path):
    part = trainer(tmp_path, start=None)
    assert not part.run(stop=stop_after(part, 2))
    fresh = build_model(TINY, SETTINGS)
    with pytest.raises(CheckpointError, match=r"started with other --start \(SHA-256 None there, 0123 now\)"):
        Trainer(fresh, SETTINGS, pairs(), tmp_path, start="0123")
    with pytest.raises(CheckpointError, match="started with other --data, --own or --crops"):
        Trainer(fresh, SETTINGS, pairs(count=4), tmp_path)
    document = json.loads((tmp_path / "state" / "state.json").read_text())
    del document["start_digest"], document["data_digest"]  # as an older version wrote it
    (tmp_path / "state" / "state.json").write_text(json.dumps(document))
    assert Trainer(fresh, SETTINGS, pairs(count=4), tmp_path, start="0123").progress.step == 2
