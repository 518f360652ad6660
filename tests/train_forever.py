"""What tests/test_continuous.py trains in a process that it kills: an endless run up to a step."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from superres.system import idle
from superres.training import recipes, trainer
from superres.training.continuous import train_continuously
from superres.training.corpora import Stage
from superres.training.settings import TrainConfig

SETTINGS = TrainConfig(stage="heads", endless=True, batch_size=2, warmup_steps=5, precision="no", ema_decay=0.9)


def train(folder: Path, output: Path, last: int, round_seconds: float = 1e9) -> None:
    """Train on `folder / "faces.npz"` until the first record at or after step `last`."""
    trainer.SAVE_SECONDS = 0.2
    recipes.Trainer = functools.partial(trainer.Trainer, report_steps=2)
    path = output / "state" / "state.json"
    steps = [json.loads(path.read_text())["step"] if path.exists() else 0]
    stage = Stage(SETTINGS, folder / "faces.npz", output, folder / "dev.npz", folder / "start")
    train_continuously(stage, round_seconds, lambda: steps[-1] >= last, lambda record: steps.append(record["step"]))


if __name__ == "__main__":
    idle.cache_folder = lambda: Path(sys.argv[2]).parent / "cache"  # measurements of others must not pause a test
    train(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
