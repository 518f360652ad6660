"""The scripts for minutes on a GPU run whole on a CPU, with a small network: pack, check, train."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import TINY, random_model

import faces as packing
from superres.checkpoint import read_training, save_checkpoint
from superres.errors import ConfigError
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


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Checkpoints, pictures, and the folder that travels."""
    folder = tmp_path_factory.mktemp("device")
    for name, config in (("start", CONFIG), ("small", SMALL)):
        save_checkpoint(random_model(config, dtype=torch.float32), folder / name)
    write_npz(faces(40), folder / "train.npz")
    write_npz(faces(6, seed=1), folder / "dev.npz")
    packing.pack(folder / "train.npz", folder / "dev.npz", folder / "prepared",
                 str(folder / "start"), limit_mib=1000, wheels="")
    return folder


def on_device(prepared, what, *options, python=sys.executable):
    """Run a command of run.sh with a CPU as the device; return its output and the folder of
    results."""
    out = prepared / f"out-{what}-{len(options)}"
    code, output = run("bash", "scripts/device/run.sh", what, 3600, *options, DEVICE="cpu",
                       OUT=str(out), PYTHON=python, PREPARED=str(prepared / "prepared"),
                       WORK=str(prepared / "work" / out.name))
    assert code == 0, output
    assert len(list(out.iterdir())) <= 8  # what comes back from the machine is limited
    return output, out


def test_mosaics_keep_every_face(prepared, tmp_path, monkeypatch):
    packing.unpack(prepared / "prepared" / "faces", tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as found:
        assert all(np.array_equal(found[name], getattr(faces(40), name)) for name in ("hr", "lr"))
    with pytest.raises(ConfigError, match="no mosaic of 1,024 faces fits below 1 MiB"):
        packing.pack(prepared / "train.npz", prepared / "dev.npz", tmp_path / "out",
                     str(prepared / "start"), limit_mib=1, wheels="")


def test_every_part_of_a_check_runs_and_reports(prepared):
    """The check's Python only prints the command lines; all but the tests' are run here."""
    output, out = on_device(prepared, "check", "--checkpoint", prepared / "small", python="echo")
    lines = [*output.splitlines(), *(out / "benchmark.json").read_text().splitlines()]
    tests, benchmark, kernel = (next(line.split() for line in lines if line.startswith(start))
                                for start in ("-m pytest", "-m superres", "scripts/device/kernel"))
    assert [word for word in tests if (ROOT / word).is_dir()] == ["tests/gpu"]
    code, printed = run(sys.executable, *benchmark)
    assert code == 0, printed
    assert '"speed_up": 1.0' in printed
    if importlib.util.find_spec("triton"):  # the kernel's compiler comes with torch on Linux only
        code, printed = run(sys.executable, *kernel, TRITON_INTERPRET="1")
        assert code == 0, printed
        report = json.loads((out / "kernel.json").read_text())
        assert "error" not in json.dumps(report)
        (correct,) = report["correct"]
        assert {value for name, value in correct.items() if "must be 1" in name} == {1.0}
        assert {row["way"] for row in report["times"]} >= {"greedy", "speculative"}


def test_a_checkpoint_is_trained_further_and_comes_back(prepared, tmp_path):
    output, out = on_device(prepared, "train", "--steps", 3, "--batch-size", 4)
    assert "finished" in output
    (tmp_path / "run.tar.gz").write_bytes(b"".join(part.read_bytes()
                                                   for part in sorted(out.glob("run.tar.gz.*"))))
    with tarfile.open(tmp_path / "run.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    (summary,) = read_training(tmp_path / "checkpoint")
    assert (summary["stage"], summary["steps"], summary["images_seen"]) == ("heads", 3, 12)


def test_a_ladder_is_trained_from_random_weights(prepared, tmp_path):
    common = {"network": {name: getattr(CONFIG, name) for name in (
        "source_shape", "target_shape", "width", "filter_size", "attention_heads")},
        "preset": "tiny", "prediction_heads": 2, "steps": 1, "batch_size": 2, "precision": "no"}
    stages = [{"name": "base", "stage": "base"},
              {"name": "heads", "stage": "heads", "start": "base"}]
    (tmp_path / "recipe.json").write_text(json.dumps({**common, "stages": stages}))
    _, out = on_device(prepared, "train", "ladder", tmp_path / "recipe.json")
    with tarfile.open(next(out.glob("run.tar.gz.0"))) as archive:
        assert {f"./{name}/checkpoint/model.safetensors" for name in ("base", "heads")} <= set(
            archive.getnames())
