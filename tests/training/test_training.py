"""Training: resumable to the bit, refused where it would silently mix runs, and it learns; on two
processes as on one."""

from __future__ import annotations

import itertools
import json
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import SMALL, random_model, random_tokens
from ports import own_port

from superres.checkpoint import load_checkpoint, read_training, save_checkpoint
from superres.errors import CheckpointError, ConfigError, OutputError
from superres.system.tensor_files import read_arrays
from superres.training import construction, saved_state
from superres.training import trainer as training
from superres.training.construction import build_model, learning_rate_factor
from superres.training.corpora import Corpus, network_of
from superres.training.data import Changes, ImageBatches
from superres.training.stage import Stage
from superres.training.trainer import Origin, Trainer
from tests.training.helpers import (
    forked,
    history,
    train,
    train_alone,
    train_and_die,
    train_together,
)

TINY = replace(SMALL, vocabulary=16, prediction_heads=1, dropout=0.1)
SETTINGS = Stage(steps=4, batch_size=2, warmup_steps=2, precision="no", threads=1,
                 learning_rate=1e-2, ema_decay=0.9)
HEADS = replace(SETTINGS, stage="heads", freeze_base=True)


@pytest.fixture(autouse=True)
def no_curves(monkeypatch, request):
    """Drawing them takes longer than training these networks."""
    if "curves" not in request.node.name:
        monkeypatch.setattr(training, "plot_history", lambda *_: None)


def pairs(count=5, settings=SETTINGS):
    rng = np.random.default_rng(0)
    low = rng.integers(0, 16, (count, 2, 2, 3), np.uint8)
    return ImageBatches(low, low.repeat(2, 1).repeat(2, 2), settings.batch_size, settings.seed,
                        Changes(settings.flip))


def trainer(folder, settings=SETTINGS, config=TINY, base=None, count=5, evaluate=None, **options):
    return Trainer(build_model(config, settings, base), replace(settings, output=folder),
                   Corpus(config, pairs(count, settings), evaluate), **options)


def begun(folder, steps, settings=SETTINGS, config=TINY):
    """Train up to a step."""
    run = trainer(folder, settings, config)
    assert not run.run(stop=lambda: run.step >= steps)
    assert run.step == steps
    return run


def weights(run):
    return {**run.model.state_dict(),
            **{f"averaged.{name}": one for name, one in run.averaged.state_dict().items()}}


def assert_same(a, b):
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


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
        begun(tmp_path / "parts", steps, settings, config)
    last = trainer(tmp_path / "parts", settings, config)
    assert last.step == 3
    assert last.run()
    assert_same(weights(last), weights(whole))
    assert_same(*(load_checkpoint(tmp_path / name / "checkpoint").state_dict()
                  for name in ("whole", "parts")))


def test_moments_are_read_in_the_layout_of_their_weights(tmp_path):
    """Fused steps on a GPU need that; weights of convolutions have their channels last."""
    begun(tmp_path, 2)
    moments = [(weight, value) for optimizer in trainer(tmp_path).optimizers
               for weight, state in optimizer.state.items() for value in state.values()
               if value.dim()]
    assert not all(weight.is_contiguous() for weight, _ in moments)
    assert all(value.stride() == weight.stride() for weight, value in moments)


@pytest.mark.parametrize(("change", "message"), [
    ({"settings": replace(SETTINGS, learning_rate=0.5)}, "0.5"),
    ({"settings": replace(SETTINGS, seed=3)}, "seed"),
    ({"origin": Origin("0123")}, r"started with other --start \(SHA-256 None there, 0123 now\)"),
    ({"count": 4}, "started with other --data, --own, --crops or --drawn"),
])
def test_a_run_is_not_resumed_with_other_settings_or_another_start_or_other_data(change, message,
                                                                                 tmp_path):
    begun(tmp_path, 1)
    with pytest.raises(CheckpointError, match=message) as caught:
        trainer(tmp_path, **change)
    assert "\n" not in str(caught.value)


def test_damaged_state_is_named(tmp_path):
    begun(tmp_path, 1)
    for file in ("optimizer.safetensors", "model.safetensors", "state.json"):
        (tmp_path / "state" / file).write_bytes(b"{")
        with pytest.raises(CheckpointError, match=file) as caught:
            trainer(tmp_path)
        assert "\n" not in str(caught.value)


def test_failing_save_leaves_the_last_good_state(tmp_path, monkeypatch):
    run = begun(tmp_path, 2)
    good = {name: weight.clone() for name, weight in weights(run).items()}
    real, calls = saved_state.save_file, itertools.count()

    def full(*args, **options):
        if next(calls):
            raise OSError(28, "No space left on device")
        real(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(saved_state, "save_file", full)
        with pytest.raises(OutputError, match="No space left"):
            run.run(stop=lambda: run.step >= 4)
    again = trainer(tmp_path)
    assert again.step == 2
    assert_same(weights(again), good)
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_loss_falls_and_a_run_leaves_history_curves_and_checkpoint(tmp_path):
    settings = replace(SETTINGS, steps=30, batch_size=5, flip=False)
    run = trainer(tmp_path, settings, replace(TINY, dropout=0.0), report_steps=15,
                  evaluate=lambda model: {"bits_per_dim": 3.5})
    reports = []
    assert run.run(report=reports.append)
    kept = history(tmp_path)
    # the others are of the latest step
    assert [record for record in reports if record in kept] == kept
    names = {"images", "seconds", "step"}
    assert ([set(record) - names for record in kept] == [{"estimate", "p1", "total"}] * 2
            + [{"bits_per_dim"}])
    assert [record["step"] for record in kept] == [15, 30, 30]
    assert kept[1]["p1"] < min(kept[0]["p1"], np.log(16) * 0.8)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (stage,) = read_training(tmp_path / "checkpoint")
    assert (stage["steps"], stage["images_seen"], stage["stage"],
            stage["dev_bits_per_dim"]) == (30, 150, "base", 3.5)
    assert Stage.from_dict(stage["settings"]) == settings
    saved = load_checkpoint(tmp_path / "checkpoint").state_dict()
    assert_same(saved, {name: weight.bfloat16().float()
                        for name, weight in run.averaged.state_dict().items()})


@pytest.fixture
def base(tmp_path):
    save_checkpoint(build_model(TINY, SETTINGS), tmp_path / "base")
    return tmp_path / "base"


def test_heads_take_their_layer_from_the_stage_or_else_from_a_start_that_fits(base):
    stage = replace(HEADS, start=str(base), prediction_heads=3)
    assert network_of(stage) == replace(TINY, prediction_heads=3)
    assert network_of(replace(stage, head_layer="sequential")).head_layer == "sequential"
    with pytest.raises(ConfigError, match=r"per-head, dense, sequential, recurrent, .* not 'wide'"):
        replace(stage, head_layer="wide")
    with pytest.raises(CheckpointError, match="base"):
        build_model(replace(TINY, decoder_layers=3, prediction_heads=4), HEADS, base)


def test_frozen_heads_stage_leaves_p1_identical_to_the_bit(base, tmp_path):
    run = trainer(tmp_path / "run", HEADS, replace(TINY, prediction_heads=4), base)
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
    before = load_checkpoint(tmp_path / "base")
    assert before.heads.count == 1
    settings = replace(HEADS, head_target="tokens")
    model = build_model(replace(network, prediction_heads=4), settings, tmp_path / "base").eval()
    source, target = random_tokens(TINY, 3)
    expected = before.scores(before(source, target))
    torch.testing.assert_close(model.scores(model(source, target)), expected, rtol=1e-3, atol=1e-3)
    other = {"dense": "per-head"}.get(kind, "dense")
    with pytest.raises(ConfigError, match=f"head layer {kind} .* leave --head-layer out") as caught:
        build_model(replace(network, prediction_heads=4, head_layer=other), settings,
                    tmp_path / "base")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("before", "after"), [(3, 5), (5, 3)])
@pytest.mark.parametrize("kind", ["per-head", "dense", "sequential"])
def test_heads_of_a_checkpoint_with_fewer_or_more_of_them_are_kept(kind, before, after, tmp_path):
    save_checkpoint(random_model(replace(TINY, head_layer=kind, prediction_heads=before)),
                    tmp_path / "start")
    start = load_checkpoint(tmp_path / "start")
    model = build_model(replace(start.config, prediction_heads=after), HEADS,
                        tmp_path / "start").eval()
    given, taken = (network(*random_tokens(TINY, 3)) for network in (start, model))
    position = torch.arange(2).expand(3, -1)
    for head in range(1 if kind == "dense" and after < before else min(before, after)):
        expected = start.head_scores(given, position, head)
        torch.testing.assert_close(model.head_scores(taken, position, head), expected, rtol=1e-4,
                                   atol=1e-4)
    if kind != "dense" and after > before:
        last, new = (model.heads(taken.hidden[:, 0], head, 1) for head in (before - 1, after - 1))
        torch.testing.assert_close(last, new)


@pytest.mark.parametrize(("known", "environment", "expected"), [
    ({}, {}, ("no", 1)),
    ({"avx512_bf16": True}, {}, ("bf16", 1)),
    ({"bf16": True, "avx512_bf16": False}, {"OMP_NUM_THREADS": "2"}, ("bf16", 2)),
    ({"avx512_bf16": False}, {"OMP_NUM_THREADS": "2,1"}, ("no", 2)),
])
def test_a_run_has_one_thread_and_the_precision_of_the_processor_and_keeps_both(
    known, environment, expected, tmp_path, monkeypatch, capsys,
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known)
    monkeypatch.setattr(construction, "usable_cores", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    used = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    automatic = replace(SETTINGS, precision="auto", threads=None)
    run = begun(tmp_path, 2, automatic)
    assert (run.settings.precision, run.settings.threads) == expected
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)  # another machine resumes it
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert begun(tmp_path, 3, automatic).settings == run.settings
    again = trainer(tmp_path, replace(automatic, threads=3))
    assert again.run()
    assert used == [expected[1], expected[1], 3]
    recorded = read_training(tmp_path / "checkpoint")[0]["settings"]
    assert (recorded["precision"], recorded["threads"]) == (expected[0], 3)
    name = {"no": "float32"}.get(expected[0], expected[0])
    assert f"training in {name} on {expected[1]} of " in capsys.readouterr().err


def test_minutes_end_the_steps_and_the_result_is_scored(tmp_path, monkeypatch):
    now, real = [0.0], Trainer._step

    def spend(seconds, result):
        now[0] += seconds
        return result

    def opened():
        return trainer(tmp_path, replace(SETTINGS, steps=None, minutes=2.0, warmup_steps=5),
                       evaluate=lambda _: spend(20, {"bits_per_dim": 4.0}),
                       clock=lambda: now[0], origin=Origin("0123"))

    monkeypatch.setattr(Trainer, "_step", lambda run: spend(5, real(run)))
    run = opened()
    assert run.run(stop=lambda: run.step >= 10) is False
    assert (run.step, run.seconds, now[0]) == (10, 50, 70)
    run = opened()
    assert run.run()
    assert (run.step, run.seconds, now[0]) == (24, 120, 160)
    assert learning_rate_factor(run.settings, run.step, run.seconds) == pytest.approx(0, abs=1e-9)
    assert opened().run()  # it is finished
    assert now[0] == 160
    summary = read_training(tmp_path / "checkpoint")[0]
    assert (summary["seconds"], summary["dev_bits_per_dim"]) == (120, 4.0)


def test_a_finished_run_says_what_it_gained(tmp_path, capsys):
    settings = replace(SETTINGS, steps=6, warmup_steps=200, learning_rate=1e-9)
    for stop in (3, 7):
        run = trainer(tmp_path, settings, replace(TINY, dropout=0.0), origin=Origin("0123"),
                      evaluate=lambda model: {"bits_per_dim": 3.5})
        assert run.run(stop=lambda run=run, stop=stop: run.step >= stop) == (stop == 7)
    *begun_and_resumed, compared, short, worse = capsys.readouterr().err.splitlines()
    assert len(begun_and_resumed) == 2
    assert f"{tmp_path}: start and result: bits/dim 3.5 and 3.5, loss of p1 " in compared
    assert "warning: 6 steps are fewer than the 200 of the warm-up" in short
    assert "warning: the result is no better than its start" in worse


def test_the_latest_step_is_reported_with_its_rate_beside_the_history(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "SHOW_SECONDS", -1.0)
    run, reports = trainer(tmp_path), []
    assert run.run(report=reports.append)
    assert [record["step"] for record in reports] == [1, 2, 3, 4]
    assert all({"rate", "p1", "total", "seconds", "images"} <= set(record) for record in reports)
    assert reports[2]["rate"] == pytest.approx(SETTINGS.learning_rate
                                               * learning_rate_factor(SETTINGS, 3, 0.0))
    assert history(tmp_path) == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of one process, of two, begun by one and ended by two, and begun by two and ended by
    one."""
    folder = tmp_path_factory.mktemp("runs")
    ended(forked(train_alone, folder))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(own_port()), "WORLD_SIZE": "2",
              "LOCAL_WORLD_SIZE": "2"}
    members = [forked(train_together, folder, {**shared, "RANK": rank, "LOCAL_RANK": rank})
               for rank in "01"]
    ended(*members)
    assert json.loads((folder / "facts.json").read_text()) == {"processes": 2, "step": 4}
    ended(forked(train, folder / "begun together"))
    return folder


def ended(*processes, exitcode=0):
    for process in processes:
        process.join(1800)
    assert [process.exitcode for process in processes] == [exitcode] * len(processes)


def curve(folder):
    return [(record["step"], record.get("p1", 0.0), record.get("heads", 0.0), record["total"])
            for record in history(folder)]


def written_weights(folder):
    return torch.cat([weight.flatten()
                      for weight in load_checkpoint(folder / "checkpoint").state_dict().values()])


@pytest.mark.parametrize(("name", "alone"), [
    ("together", "alone"), ("begun alone", "alone"), ("begun together", "alone"),
    ("one head together", "one head alone"),
])
def test_the_losses_are_those_of_one_process_from_beginning_to_end(runs, name, alone):
    assert [step for step, *_ in curve(runs / name)] == list(range(2, 9, 2))
    np.testing.assert_allclose(curve(runs / name), curve(runs / alone), rtol=1e-9)
    torch.testing.assert_close(written_weights(runs / name), written_weights(runs / alone))


def test_a_run_killed_while_it_saves_equals_an_uninterrupted_one_to_the_bit(runs, tmp_path):
    # At the second save: while a file is written, and between the two renames.
    for owner, name, call in ((saved_state.__name__, "save_file", 5), ("os", "replace", 4)):
        ended(forked(train_and_die, tmp_path, owner, name, call), exitcode=-signal.SIGKILL)
    assert not (tmp_path / "state").exists()
    assert json.loads((next(tmp_path.glob("*state*/state.json"))).read_text())["step"] > 0
    ended(forked(train, tmp_path))
    for name in ("model", "averaged", "optimizer"):
        one, other = (read_arrays(folder / "state" / f"{name}.safetensors")
                      for folder in (tmp_path, runs / "alone"))
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[key], other[key]) for key in one), name


def test_a_batch_that_cannot_be_shared_equally_is_refused():
    low = np.zeros((5, 2, 2, 3), np.uint8)
    with pytest.raises(ConfigError, match="4 images a batch cannot be shared equally among 3 "
                       "processes"):
        ImageBatches(low, low, 4, 0).batch(0, 1, 3)
