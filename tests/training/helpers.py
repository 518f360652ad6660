"""Runs of training that tests make in this process and in others, which may be killed or train
together; and what stages of recipes need."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fakes import SMALL

from superres.nn.model import EncoderDecoder
from superres.training import trainer
from superres.training.construction import build_model, build_optimizers
from superres.training.corpora import Corpus
from superres.training.data import (
    AS_THEY_ARE,
    Changes,
    DistilBatches,
    FaceBatches,
    ImageBatches,
)
from superres.training.losses import TeacherForcingLoss
from superres.training.stage import Stage
from superres.training.trainer import Trainer


def never(*_: object) -> bool:
    return False


def ignore(*_: object) -> None:
    pass


def history(folder: Path) -> list[dict[str, float]]:
    """Return the history of a run."""
    return json.loads((folder / "history.json").read_text())


def stage_rows(folder: Path) -> list[dict[str, Any]]:
    """Return what a recipe recorded of its finished stages."""
    return [json.loads(line) for line in (folder / "training.jsonl").read_text().splitlines()]


TINY = replace(SMALL, vocabulary=16, prediction_heads=4)
TOGETHER = Stage(stage="heads", steps=8, batch_size=4, warmup_steps=2, precision="no",
                 learning_rate=3e-3, ema_decay=0.9)
ONE_HEAD = replace(TOGETHER, head_loss="random-head")


def image_batches(device: torch.device, settings: Stage) -> FaceBatches:
    """Return batches of noise, 8x8 to 32x32, with every change of pictures; for the distil stage,
    own ones too."""
    random, own = np.random.default_rng(0), settings.stage == "distil"
    large = random.integers(0, 256, (9, 64, 64, 3), np.uint8)
    high, low = large[:, ::2, ::2].copy(), large[:, ::8, ::8].copy()
    size = settings.batch_size // (2 if own else 1)
    true = ImageBatches(low, high, size, 0, Changes(True, large, 0.5, None, 0.5, [low[:5]], 6.0),
                        device=device)
    drawn = ImageBatches(low, high, size, 1, AS_THEY_ARE, device=device)
    return DistilBatches(true, drawn) if own else true


def training_steps(
    model: EncoderDecoder, settings: Stage, teacher: EncoderDecoder | None = None,
) -> Callable[[int], torch.Tensor]:
    """Return a function that takes a training step with everything that a GPU computes in it, and
    returns the loss."""
    device = model.signal.device
    loss = TeacherForcingLoss(model, settings, teacher).train()
    batches, optimizers = image_batches(device, settings), build_optimizers(model, settings)
    averaged = [p.detach().clone() for p in model.parameters()]

    def take(step: int) -> torch.Tensor:
        batch = batches.batch(step).to(device)
        total = loss(batch.source, batch.target, step, batch.true_count)["total"]
        total.backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        torch._foreach_lerp_(averaged, [p.detach() for p in model.parameters()], 0.1)
        return total.detach()

    return take


def forked(function: Callable[..., None], *arguments: object) -> BaseProcess:
    """Call a function of this module in a process that is forked from one that has imported torch
    already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([trainer.__name__])
    process = context.Process(target=function, args=arguments)
    process.start()
    return process


def train(folder: Path, stop_at: int | None = None, settings: Stage = TOGETHER) -> Trainer:
    """Train in `folder`, or go on there, up to a step.

    The optimiser scales gradients to one size: in float32, those that are nothing but rounding
    errors would become steps. They depend on the number of threads, which is one number for the
    process: a thread that an earlier test has left behind may change it. Runs that are compared to
    the bit therefore have processes of their own.
    """
    torch.set_num_threads(1)
    low = np.random.default_rng(0).integers(0, 16, (10, 2, 2, 3), np.uint8)
    batches = ImageBatches(low, low.repeat(2, 1).repeat(2, 2), settings.batch_size, settings.seed)
    run = Trainer(build_model(TINY, settings).double(), replace(settings, output=folder),
                  Corpus(TINY, batches, None), report_steps=2)
    run.run(stop=lambda: stop_at is not None and run.step >= stop_at)
    return run


def train_alone(folder: Path) -> None:
    """Train one run from beginning to end, begin another, and train one with another loss."""
    train(folder / "alone")
    train(folder / "begun alone", stop_at=4)
    train(folder / "one head alone", settings=ONE_HEAD)


def train_together(folder: Path, environment: dict[str, str]) -> None:
    """Train one run from beginning to end, begin another, and end one that was begun, as one of
    several processes."""
    os.environ.update(environment)
    trainer.plot_history = lambda *_: None
    run = train(folder / "together")
    begun = train(folder / "begun together", stop_at=4)
    train(folder / "begun alone")
    train(folder / "one head together", settings=ONE_HEAD)
    if run.accelerator.is_main_process:
        facts = {"processes": run.accelerator.num_processes, "step": begun.step}
        (folder / "facts.json").write_text(json.dumps(facts))


def train_and_die(folder: Path, module: str, name: str, call: int) -> None:
    """Train in `folder`, save after every step, and kill this process at a call of the module's
    function `name`."""
    owner = sys.modules[module]
    work, calls = getattr(owner, name), itertools.count(1)

    def killing(*arguments: object, **options: object) -> object:
        if next(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(*arguments, **options)

    setattr(owner, name, killing)
    trainer.plot_history = lambda *_: None
    trainer.SAVE_SECONDS = -1.0
    train(folder)
