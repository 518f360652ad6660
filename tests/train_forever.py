"""What tests/test_continuous.py trains in a process that it kills: an endless run up to a step."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from superres.system import training_lock
from superres.training import recipes, trainer
from superres.training.continuous import train_continuously
from superres.training.corpora import Stage
from superres.training.settings import TrainConfig

SETTINGS = TrainConfig(stage="heads", endless=True, batch_size=2, warmup_steps=5, precision="no", ema_decay=0.9)


def hurry(replace: Callable[[object, str, object], None] = setattr) -> None:
    """Let trainers save and report often; `replace` sets an attribute."""
    replace(trainer, "SAVE_SECONDS", 0.2)
    replace(recipes, "Trainer", functools.partial(trainer.Trainer, report_steps=2))


def train_a_round(folder: Path, output: Path) -> None:
    """Train on `folder / "faces.npz"` until the first round is scored."""
    path = output / "report.jsonl"
    stage = Stage(SETTINGS, folder / "faces.npz", output, folder / "dev.npz", folder / "start")
    train_continuously(stage, 0.01, lambda: path.exists() and path.read_text().count("\n") == 2, lambda _: None)


def train(folder: Path, output: Path, last: int) -> None:
    """Train on `folder / "faces.npz"` until the first record at or after step `last`."""
    path = output / "state" / "state.json"
    steps = [json.loads(path.read_text())["step"] if path.exists() else 0]
    stage = Stage(SETTINGS, folder / "faces.npz", output, folder / "dev.npz", folder / "start")
    train_continuously(stage, 1e9, lambda: steps[-1] >= last, lambda record: steps.append(record["step"]))


if __name__ == "__main__":
    training_lock.cache_folder = lambda: Path(sys.argv[2]).parent / "cache"  # no one else pauses a test
    hurry()
    train(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
