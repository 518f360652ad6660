"""Training without an end: a killed run resumes to the bit, training pauses for timings, and rounds are reported."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import NATIVE, TINY
from training_runs import forked, hurry, train_a_round, train_on, train_on_alone

from superres.checkpoint import load_checkpoint, read_tensors, read_training, save_checkpoint
from superres.cli.main import run
from superres.config import DEFAULT_CHECKPOINT
from superres.errors import ConfigError
from superres.nn.model import EncoderDecoder
from superres.system import training_lock
from superres.tasks.face_data import FacePairs, read_faces, write_npz
from superres.tasks.faces import FaceTask, area_reduce
from superres.training import continuous
from superres.training.continuous import SCORES, Rounds

ROOT = Path(__file__).parents[1]
LAST = 12
"""Step up to which runs train."""


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
def cache(tmp_path, monkeypatch):
    """Locks of this test alone, and trainers that save and report often."""
    monkeypatch.setattr(training_lock, "cache_folder", lambda: tmp_path / "cache")
    hurry(monkeypatch.setattr)


def state(output):
    return json.loads((output / "state" / "state.json").read_text())


BUNDLED = dict(zip(SCORES, (3.5, 22.0, 0.7, 3.0, 8.0), strict=True))


def started(output, pairs):
    """Start the report of a run with scores of the reference."""
    output.mkdir(exist_ok=True)
    rounds = Rounds(output, pairs)
    rounds.write({"round": 0, "dev": rounds.data, "seconds": 0.0, **BUNDLED})
    return rounds


def step(output):
    """Return the step of the saved state, 0 without one. The two renames of a replacement leave none for an instant."""
    try:
        return state(output)["step"]
    except FileNotFoundError:
        return 0


@pytest.mark.usefixtures("cache")
def test_a_run_killed_several_times_equals_an_uninterrupted_one_to_the_bit(folder, tmp_path):
    killed, resumed = tmp_path / "killed", []
    for output in (killed, tmp_path / "whole"):
        started(output, read_faces(folder / "dev.npz", FaceTask(8, 32)))
    train_on(folder, tmp_path / "whole", LAST)
    for _ in range(2):
        before = step(killed)
        process = forked(train_on_alone, folder, killed, LAST)
        while process.is_alive() and step(killed) == before:
            time.sleep(0.01)
        process.kill()
        process.join()
        resumed.append(step(killed))
    assert resumed[0] < LAST  # killed just after the first state was saved
    process = forked(train_on_alone, folder, killed, LAST)
    process.join(1800)
    assert process.exitcode == 0
    one, other = ({record["step"]: record["total"] for record in state(output)["history"] if "total" in record}
                  for output in (killed, tmp_path / "whole"))
    assert one == other
    for name in ("model", "averaged", "optimizer"):
        one, other = (read_tensors(path / "state" / f"{name}.safetensors") for path in (killed, tmp_path / "whole"))
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one), name
    assert not list(killed.glob(".*-*"))


@pytest.mark.usefixtures("cache")
def test_rounds_are_scored_beside_the_bundled_checkpoint(folder, tmp_path, capsys):
    train_a_round(folder, tmp_path)
    first, *rounds = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert (first["round"], first["checkpoint"]) == (0, DEFAULT_CHECKPOINT)
    assert [row["round"] for row in rounds] == list(range(1, len(rounds) + 1))
    assert 0 < rounds[-1]["step"] <= state(tmp_path)["step"]
    assert SCORES.keys() <= rounds[0].keys()
    assert "round 1, step" in capsys.readouterr().err
    last = read_training(tmp_path / "checkpoint")[-1]
    assert last["settings"]["endless"]
    assert load_checkpoint(tmp_path / "checkpoint").config.prediction_heads == TINY.prediction_heads
    # On noise the bundled checkpoint is no better than one that has seen it.
    assert (tmp_path / "best").is_dir() == any(row["beats_bundled"] for row in rounds)


@pytest.fixture
def rounds(tmp_path):
    images = np.zeros((1, 32, 32, 3), np.uint8)
    return started(tmp_path, FacePairs(images, images[:, :8, :8], np.zeros(1, np.int32)))


@pytest.mark.parametrize(("name", "change", "worse"), [
    ("bits_per_dim", -0.1, []), ("bits_per_dim", 0.0, ["bits_per_dim"]),
    ("greedy_psnr", -0.1, ["bits_per_dim", "greedy_psnr"]), ("exact_tokens_per_step", -0.1, ["bits_per_dim",
                                                                                           "exact_tokens_per_step"])])
def test_a_round_beats_the_bundled_checkpoint_in_every_score_or_not_at_all(rounds, name, change, worse):
    scores = {**BUNDLED, name: BUNDLED[name] + change}
    assert rounds.worse(scores) == worse
    assert rounds.is_best(scores) == (not worse)


def test_the_best_round_has_the_fewest_bits(rounds, capsys):
    good, better = ({**BUNDLED, "bits_per_dim": bits} for bits in (3.4, 3.3))
    for number, scores in enumerate((better, good), 1):
        assert rounds.is_best(scores) == (scores is better)
        rounds.add(scores, {"step": number, "seconds": number, **scores})
    lines = capsys.readouterr().err.splitlines()
    assert "BETTER than celeba-8to32; kept as" in lines[0]
    assert "has fewer bits/dim" in lines[1]


def test_a_report_on_other_pictures_is_refused(rounds, tmp_path):
    images = np.ones((1, 32, 32, 3), np.uint8)
    with pytest.raises(ConfigError, match="scores on other pictures"):
        Rounds(tmp_path, FacePairs(images, images[:, :8, :8], np.zeros(1, np.int32)))
    (tmp_path / "report.jsonl").write_text("{")
    with pytest.raises(ConfigError, match=r"report\.jsonl is damaged"):
        Rounds(tmp_path, rounds.pairs)


@pytest.mark.usefixtures("cache")
def test_training_pauses_while_times_are_measured(folder, tmp_path, monkeypatch):
    output, paused = tmp_path / "run", threading.Event()
    monkeypatch.setattr(training_lock, "say", lambda line: paused.set() if line.startswith("paused") else None)
    worker = threading.Thread(target=train_on, args=(folder, output, 8))
    with training_lock.training_paused():
        worker.start()
        assert paused.wait(300)
        assert not (output / "state").exists()
    while not (output / "state").exists():
        time.sleep(0.02)
    with training_lock.training_paused():
        assert not training_lock.is_locked(training_lock.TRAINING)
        before = state(output)["step"]
        time.sleep(0.3)
        assert state(output)["step"] == before
    worker.join(1800)
    assert state(output)["step"] >= 8


@pytest.mark.usefixtures("cache")
def test_a_killed_measurement_does_not_pause_training(tmp_path):
    code = ("import sys, time; from pathlib import Path; from superres.system import training_lock\n"
            "training_lock.cache_folder = lambda: Path(sys.argv[1])\n"
            "with training_lock.training_paused(): print(flush=True); time.sleep(60)")
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "cache")], stdout=subprocess.PIPE, cwd=ROOT)
    process.stdout.readline()
    assert training_lock.times_are_measured()
    process.kill()
    process.communicate()
    assert not training_lock.times_are_measured()


@pytest.mark.usefixtures("cache")
def test_measurements_do_not_exclude_one_another_and_wait_for_a_limited_time(capsys, monkeypatch):
    with training_lock.training_paused(), training_lock.training_paused():
        assert training_lock.times_are_measured()
    held = iter([True, False])  # another measurement looks at the lock
    with monkeypatch.context() as patch:
        patch.setattr(training_lock, "is_locked", lambda name: next(held))
        with training_lock.training_paused():
            pass
    assert capsys.readouterr().err == ""
    with training_lock._locked(training_lock.TRAINING, shared=True):
        started = time.monotonic()
        with training_lock.training_paused(patience=0.5):
            pass
        assert 0.4 < time.monotonic() - started < 100
    assert capsys.readouterr().err.count("waiting until 'superres train continue' pauses") == 1


@pytest.fixture
def command(folder, tmp_path, monkeypatch):
    """Run `superres train continue` at this process's priority, and without its handling of signals."""
    monkeypatch.setattr(training_lock, "lowest_priority", lambda: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    words = ["train", "continue", "--data", folder / "faces.npz", "--dev", folder / "dev.npz", "--output",
             tmp_path / "run", "--start", folder / "start"]
    return lambda *more: run([str(word) for word in (*words, *more)])


@pytest.mark.usefixtures("cache")
def test_two_processes_do_not_train_in_one_folder(command, tmp_path, capsys):
    (tmp_path / "run").mkdir()
    with open(tmp_path / "run" / "run.lock", "ab") as file:
        training_lock.lock_file(file)
        assert command() == 2
    assert "another process trains in" in capsys.readouterr().err


@pytest.mark.parametrize(("own", "stage"), [(False, "heads"), (True, "distil")])
def test_on_own_pictures_p1_keeps_the_distributions_of_the_start(own, stage, folder, command, monkeypatch):
    runs = []
    monkeypatch.setattr(continuous, "train_continuously", lambda run, *_: runs.append(run))
    assert command(*(["--own", folder / "faces.npz"] if own else [])) == 0
    assert (runs[0].settings.stage, runs[0].teacher) == (stage, folder / "start" if own else None)
