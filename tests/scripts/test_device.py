"""The scripts for minutes on a GPU run whole on a CPU, with a small network: prepare, check, train
and receive."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import TINY, random_model

import mosaics
from superres.checkpoint import load_checkpoint, read_training, save_checkpoint
from superres.config import PRESETS
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import FaceTask

ROOT = Path(__file__).parents[2]
CONFIG = replace(TINY, source_shape=(4, 4, 3), target_shape=(12, 12, 3), prediction_heads=2,
                 head_layer="sequential")
# what is decoded one token at a time
SMALL = replace(CONFIG, target_shape=(4, 4, 3), free_scores=False)
TASK = FaceTask.of(CONFIG)


def faces(count, seed=0):
    random = np.random.default_rng(seed)
    high = random.integers(0, 256, (count, TASK.target, TASK.target, 3)).astype(np.uint8)
    low = np.stack([TASK.source_of(one) for one in high])
    return FacePairs(high, low, np.arange(count, dtype=np.int32))


def run(*command, **environment):
    done = subprocess.run([str(word) for word in command], cwd=ROOT, env=os.environ | environment,
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def script(name, *arguments):
    """Run a script as its command line does, in this process: to import torch takes longer than
    most of them."""
    path, printed = name if "/" in name else f"scripts/device/{name}.py", io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [path, *map(str, arguments)])
        patch.syspath_prepend(str((ROOT / path).parent))
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(path, run_name="__main__")
    code = caught.value.code or 0
    return (code, printed.getvalue()) if isinstance(code, int) else (1,
                                                                     f"{printed.getvalue()}{code}")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A checkpoint, pictures, and the folder that travels."""
    folder = tmp_path_factory.mktemp("device")
    for name, config in (("start", CONFIG), ("small", SMALL)):
        save_checkpoint(random_model(config, dtype=torch.float32), folder / name)
    write_npz(faces(40), folder / "train.npz")
    write_npz(faces(6, seed=1), folder / "dev.npz")
    code, output = script("prepare", "--data", folder / "train.npz", "--dev", folder / "dev.npz",
                          "--output", folder / "prepared", "--checkpoint", folder / "start",
                          "--limit-mib", 1000, "--wheels", "")
    assert code == 0, output
    assert "40 of 40 faces" in output
    return folder


def on_device(prepared, what, *options, python=sys.executable):
    """Run a command of run.sh with a CPU as the device; return its exit code, its output and the
    folder of results."""
    out = prepared / f"out-{what}"
    code, output = run("bash", "scripts/device/run.sh", what, 3600, *options, DEVICE="cpu",
                       WORKERS="0", OUT=str(out), PYTHON=python,
                       PREPARED=str(prepared / "prepared"), WORK=str(prepared / "work"))
    return code, output, out


def parts_of(prepared, what):
    return dict(line.split(" ", 1)
                for line in (prepared / "work" / f"{what}-parts.txt").read_text().splitlines())


def test_mosaics_keep_every_face(tmp_path, monkeypatch):
    monkeypatch.setattr(mosaics, "GRID", 8)
    monkeypatch.setattr(mosaics, "FACES", 64)
    pairs = faces(mosaics.FACES + 3)
    for number in (0, 1):
        for name, content in mosaics.pack(pairs, number).items():
            (tmp_path / name).write_bytes(content)
    found = mosaics.unpack(tmp_path)
    for name in ("hr", "lr", "ids"):
        assert np.array_equal(getattr(found, name), getattr(pairs, name))


def test_a_folder_that_would_not_travel_is_refused(prepared, tmp_path):
    code, output = script("prepare", "--data", prepared / "train.npz", "--dev",
                          prepared / "dev.npz", "--output", tmp_path, "--checkpoint",
                          prepared / "start", "--limit-mib", 1, "--wheels", "")
    assert code == 1
    assert "no mosaic of 1,024 faces fits below 1 MiB" in output


def test_every_part_of_a_check_runs_and_reports(prepared):
    """The check's command lines are those of run.sh, whose Python only prints them; they run in
    this process."""
    code, output, out = on_device(prepared, "check", "--checkpoint", prepared / "small",
                                  "--engines", "plain", "--batches", "1", "--images", 2,
                                  python="echo")
    assert code == 0, output
    # Three run side by side, and end in any order.
    parts = list(parts_of(prepared, "check"))
    assert parts[0] == "smoke"
    assert sorted(parts[1:4]) == ["exact", "tests", "threads"]
    assert parts[4:] == ["probe", "benchmark", "stream", "kernel"]
    for line in output.splitlines():
        words = line.split()
        if line.startswith("scripts/device/one_launch.py"):
            # the kernel's compiler comes with torch on Linux only
            if importlib.util.find_spec("triton"):
                code, printed = run(sys.executable, *words, "--checkpoint", prepared / "small",
                                    TRITON_INTERPRET="1")
                assert code == 0, printed
                kernel = json.loads((out / "kernel.json").read_text())
                assert "error" not in json.dumps(kernel)
                equal = {value for row in kernel["correct"] for name,
                         value in row.items() if "must be 1" in name}
                assert equal == {1.0}
        elif line.startswith("scripts/"):
            code, printed = script(words[0], *words[1:])
            assert code == 0, printed
        elif line.startswith("-m pytest "):
            assert all((ROOT / word).is_file() for word in words if word.startswith("tests/"))
    reports = {name: json.loads((out / f"{name}.json").read_text())
               for name in ("smoke", "exact", "benchmark", "stream", "threads")}
    assert not any("error" in report for report in reports.values())
    exact = reports["exact"]["plain"]
    assert {value for name, value in exact.items() if "must be 1" in name} == {1.0}
    (first, *_) = reports["benchmark"]["plain"]["beside"]
    assert set(first) == {"batch", "engine", "greedy", "exact", "epsilon 2"}
    assert len(reports["stream"]["streams"]) == 2
    assert reports["threads"]["threads"] == {"errors": [], "equal (must be true)": [True] * 4}
    rows = json.loads((out / "probe.json").read_text())
    assert len(rows) == 1
    assert not any("error" in row for row in rows)
    # What comes back from the machine is limited.
    assert len(list(out.iterdir())) <= 8


def test_a_trained_run_comes_back_and_is_scored_beside_its_start(prepared):
    code, output, out = on_device(prepared, "train", "--steps", 3, "--batch-size", 4)
    assert code == 0, output
    assert '"step": 0' in output  # the start's score
    assert "3 steps, 12 images" in output
    code, output = script("receive", *out.glob("run.tar.gz.*"), "--dev", prepared / "dev.npz",
                          "--output", prepared / "received", "--reference", prepared / "start")
    assert code in (0, 1), output  # three steps may make it better or worse
    assert "round 1, step 3: bits/dim" in output
    (summary,) = read_training(prepared / "received" / "checkpoint")
    assert (summary["steps"], summary["images_seen"]) == (3, 12)


def test_a_preset_is_trained_from_random_weights_and_then_gets_heads(prepared, tmp_path,
                                                                     monkeypatch):
    monkeypatch.setitem(PRESETS, "tiny", replace(CONFIG, prediction_heads=1))
    base, heads = tmp_path / "base", tmp_path / "heads"
    words = ["train", "--prepared", prepared / "prepared", "--device", "cpu", "--steps", 1,
             "--batch-size", 2]
    for options in (["--output", base, "--preset", "tiny"],
                    ["--output", heads, "--start", base / "checkpoint", "--prediction-heads", 3]):
        code, output = script(*words, *options)
        assert code == 0, output
    assert [row["stage"] for row in read_training(heads / "checkpoint")] == ["base", "heads"]
    assert load_checkpoint(heads / "checkpoint").config.prediction_heads == 3
    code, output = script(*words, "--output", tmp_path, "--preset", "tiny", "--start",
                          prepared / "start")
    assert code == 1
    assert "--preset trains from random weights; leave --start and --own out" in output


def test_half_of_a_batch_can_be_pictures_that_the_start_drew(prepared, tmp_path):
    code, output = script("train", "--prepared", prepared / "prepared", "--output",
                          tmp_path / "run", "--device", "cpu", "--steps", 1, "--batch-size", 4,
                          "--own", prepared / "dev.npz")
    assert code == 0, output
    (summary,) = read_training(tmp_path / "run" / "checkpoint")
    assert summary["stage"] == "distil"
    assert summary["settings"]["teacher"] == str(prepared / "start")


def test_a_run_that_is_stopped_leaves_its_checkpoint(prepared, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "scripts/device/train.py", "--prepared", prepared / "prepared", "--output",
         tmp_path / "run", "--device", "cpu", "--seconds", "100000", "--batch-size", "2"], cwd=ROOT,
        stdout=subprocess.PIPE, text=True)
    assert next(line for line in process.stdout if '"step": 0' in line)
    process.terminate()
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0
    assert "images per second" in output
    assert read_training(tmp_path / "run" / "checkpoint")[0]["steps"] >= 1


def test_without_a_gpu_a_line_says_so(prepared, tmp_path):
    for arguments in (["measure", "smoke", "--data", prepared / "dev.npz", "--output",
                       tmp_path / "smoke.json"],
                      ["train", "--prepared", prepared / "prepared"]):
        code, output = script(*arguments)
        assert (code, output.strip().splitlines()[-1].split(": ", 1)[1]) == (
            1, "device cuda is not available: torch finds no GPU; choose cpu or auto")
