"""Training without an end: a run continues, its rounds are scored beside a reference, and the best
one is kept."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import NATIVE, TINY

import continuous
from continuous import SCORES, Rounds
from superres.checkpoint import load_checkpoint, read_training, save_checkpoint
from superres.errors import ConfigError
from superres.nn.model import EncoderDecoder
from superres.system.output import lock_file
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import area_reduce


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with faces.npz, dev.npz and an untrained checkpoint."""
    folder = tmp_path_factory.mktemp("forever")
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    pairs = FacePairs(images, area_reduce(images, 8, 8), np.arange(8, dtype=np.int32))
    write_npz(pairs, folder / "faces.npz")
    write_npz(FacePairs(pairs.hr[:1], pairs.lr[:1], pairs.ids[:1]), folder / "dev.npz")
    torch.manual_seed(0)
    save_checkpoint(EncoderDecoder(replace(TINY, **NATIVE)), folder / "start")
    return folder


@pytest.fixture
def train(folder, tmp_path, monkeypatch):
    """Train in `tmp_path` at this process's priority."""
    monkeypatch.setattr(continuous, "lowest_priority", lambda: None)
    options = {"data": folder / "faces.npz", "dev": folder / "dev.npz", "output": tmp_path,
               "batch_size": 2, "start": str(folder / "start"), "precision": "no"}
    return lambda **more: continuous.train(0.01, **{**options, **more})


def rows(folder):
    path = folder / "report.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_run_continues_and_its_rounds_are_scored_beside_the_bundled_checkpoint(
    train, tmp_path, monkeypatch, capsys
):
    for count in (2, 3):
        monkeypatch.setattr(continuous.signals, "stopping",
                            lambda count=count: len(rows(tmp_path)) == count)
        train()
    first, *rounds = rows(tmp_path)
    assert (first["round"], first["checkpoint"]) == (0, "celeba-8to32")
    assert [row["round"] for row in rounds] == [1, 2]
    assert (0 < rounds[0]["step"] < rounds[1]["step"]
            == json.loads((tmp_path / "state/state.json").read_text())["step"])
    assert all(row.keys() >= SCORES.keys() for row in rounds)
    assert "round 2, step" in capsys.readouterr().err
    assert read_training(tmp_path / "checkpoint")[-1]["steps"] == rounds[1]["step"]
    assert load_checkpoint(tmp_path / "checkpoint").config.prediction_heads == TINY.prediction_heads
    # On noise the bundled checkpoint is no better than one that has seen it.
    assert (tmp_path / "best").is_dir() == any(not row["worse"] for row in rounds)


def test_a_round_that_is_ended_while_it_is_scored_is_scored_by_the_next_run(train, tmp_path,
                                                                            monkeypatch):
    monkeypatch.setattr(continuous.Rounds, "score", lambda *_: BUNDLED)
    with monkeypatch.context() as patch:
        patch.setattr(continuous.Trainer, "write_checkpoint",
                      lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train()
    step = json.loads((tmp_path / "state/state.json").read_text())["step"]
    monkeypatch.setattr(continuous.signals, "stopping", lambda: len(rows(tmp_path)) == 2)
    train()
    assert rows(tmp_path)[1]["step"] == step


BUNDLED = dict(zip(SCORES, (3.5, 22.0, 0.7, 3.0, 8.0), strict=True))


@pytest.fixture
def rounds(tmp_path, monkeypatch):
    """The report of a run whose reference has the scores BUNDLED."""
    monkeypatch.setattr(Rounds, "score", lambda *_: BUNDLED)
    images = np.zeros((1, 32, 32, 3), np.uint8)
    return Rounds(tmp_path, FacePairs(images, images[:, :8, :8], np.zeros(1, np.int32)))


@pytest.mark.parametrize(("name", "change", "worse"), [
    ("bits_per_dim", -0.1, []), ("bits_per_dim", 0.0, ["bits_per_dim"]),
    ("greedy_psnr", -0.1, ["bits_per_dim", "greedy_psnr"]),
    ("exact_tokens_per_step", -0.1, ["bits_per_dim", "exact_tokens_per_step"])])
def test_a_round_is_better_in_every_score_or_not_at_all(rounds, name, change, worse):
    scores = {**BUNDLED, name: BUNDLED[name] + change}
    assert rounds.worse(scores) == worse
    assert rounds.add(scores, {"step": 1, "seconds": 1}) == (not worse)


def test_the_best_round_has_the_fewest_bits(rounds, capsys):
    numbers = itertools.count(1)
    assert [rounds.add({**BUNDLED, "bits_per_dim": bits}, {"step": next(numbers), "seconds": 1})
            for bits in (3.4, 3.45, 3.3)] == [True, False, True]
    lines = capsys.readouterr().err.splitlines()[-3:]
    assert ["has fewer bits/dim" in line for line in lines] == [False, True, False]


def test_a_report_on_other_pictures_and_a_damaged_one_are_refused(rounds, tmp_path):
    images = np.ones((1, 32, 32, 3), np.uint8)
    with pytest.raises(ConfigError, match="scores on other pictures"):
        Rounds(tmp_path, FacePairs(images, images[:, :8, :8], np.zeros(1, np.int32)))
    (tmp_path / "report.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"report\.jsonl is damaged"):
        Rounds(tmp_path, rounds.pairs)


def test_two_processes_do_not_train_in_one_folder(train, tmp_path):
    with open(tmp_path / "run.lock", "ab") as file:
        lock_file(file)
        with pytest.raises(ConfigError, match="another process trains in"):
            train()


@pytest.mark.parametrize(("own", "stage"), [(False, "heads"), (True, "distil")])
def test_on_own_pictures_p1_keeps_the_distributions_of_the_start(own, stage, folder, train,
                                                                 monkeypatch):
    runs = []
    monkeypatch.setattr(continuous, "build_trainer", runs.append)
    monkeypatch.setattr(continuous, "train_rounds", lambda *_: None)
    monkeypatch.setattr(Rounds, "score", lambda *_: BUNDLED)
    train(own=folder / "faces.npz" if own else None)
    assert (runs[0].stage, runs[0].teacher) == (stage, str(folder / "start") if own else None)
