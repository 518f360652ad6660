"""What tests/test_training_processes.py trains, by itself and as one of several processes."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from fakes import SMALL

from superres.training.data import ImageBatches
from superres.training.settings import TrainConfig
from superres.training.trainer import Trainer, build_model

TINY = replace(SMALL, vocabulary=16, prediction_heads=4)
SETTINGS = TrainConfig(stage="heads", steps=40, batch_size=4, warmup_steps=2, precision="no", learning_rate=3e-3,
                       ema_decay=0.9)
ONE_HEAD = replace(SETTINGS, head_loss="random-head")


def train(folder: Path, stop_at: int | None = None, settings: TrainConfig = SETTINGS) -> Trainer:
    """Train in `folder`, or go on there, up to a step."""
    low = np.random.default_rng(0).integers(0, 16, (10, 2, 2, 3), np.uint8)
    batches = ImageBatches(low, low.repeat(2, 1).repeat(2, 2), settings.batch_size, settings.seed)
    trainer = Trainer(build_model(TINY, settings), settings, batches, folder, report_steps=5)
    trainer.run(stop=lambda: stop_at is not None and trainer.progress.step >= stop_at)
    return trainer


def main(folder: Path) -> None:
    """Train one run from beginning to end, begin another, and end one that was begun."""
    trainer = train(folder / "together")
    begun = train(folder / "begun together", stop_at=15)
    train(folder / "begun alone")
    train(folder / "one head together", settings=ONE_HEAD)
    if trainer.accelerator.is_main_process:
        facts = {"processes": trainer.accelerator.num_processes, "step": begun.progress.step}
        (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
