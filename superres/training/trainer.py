"""Train a stage: the base by teacher forcing, or heads from a warm start. Training runs on a CPU or
several GPUs."""

from __future__ import annotations

import copy
import json
import math
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast
from torch import Tensor

from superres.checkpoint import recover_folder, save_checkpoint
from superres.errors import CheckpointError
from superres.nn.model import EncoderDecoder
from superres.system.progress import Progress, say
from superres.system.signals import deferred
from superres.system.threads import usable_cores
from superres.training.construction import (
    build_optimizers,
    compile_layers,
    learning_rate_factor,
    resolved,
    schedule_share,
    training_device,
)
from superres.training.corpora import Corpus
from superres.training.losses import TeacherForcingLoss
from superres.training.outcome import SCORES, mean_losses, outcome, plot_history
from superres.training.saved_state import SavedState, load_tensors, write_state
from superres.training.stage import Report, Stage, Stop

SAVE_SECONDS = 45.0
"""Seconds between two resumable states, so that a killed run loses less than a minute."""
EVALUATE_SECONDS = 600.0
SHOW_SECONDS = 1.0
"""Seconds between two reports of the latest step, which the history does not keep."""
REPORT_STEPS = 50
"""Number of steps between two records of the losses."""
HISTORY = 4000
"""Number of records at which the history is thinned out."""
GIVEN = {"start_digest": "--start", "data_digest": "--data, --own, --crops or --drawn"}
"""Options by which a run gets what has a digest in its state."""


@dataclass(frozen=True)
class Origin:
    """What the weights of a run come from.

    `digest` is that of the weights that the run was warm-started from, if any, and `earlier` has
    the summaries of the stages that led to them. `card` is the model card of what derives from
    them, as a file by name.
    """

    digest: str | None = None
    earlier: Sequence[dict[str, Any]] = ()
    card: Mapping[str, bytes] = field(default_factory=dict)


class Trainer:
    """One stage of training in its run folder, `settings.output`.

    The folder holds `state/` (weights, averaged weights and optimiser, replaced every
    SAVE_SECONDS), `history.json`, `curves.png`, and at the end `checkpoint/`.

    `step` counts optimiser steps, and `seconds` is the training time so far by `clock`, summed over
    resumes. `history` has one record per report: step, seconds, images (or pairs), and losses or
    scores.
    """

    def __init__(
        self, model: EncoderDecoder, settings: Stage, corpus: Corpus, origin: Origin | None = None,
        teacher: EncoderDecoder | None = None, report_steps: int = REPORT_STEPS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the run and resume it if its folder holds a state.

        `corpus` has the batches, what scores the averaged weights for the history, and the task's
        files in the checkpoint. `clock` returns the training time in seconds.

        Raises:
            CheckpointError: the state in the folder belongs to another network, start, or data, or
                to other settings.
        """
        origin = origin or Origin()
        self.folder, self.batches, self.evaluate = settings.output, corpus.batches, corpus.evaluate
        self.files, self.earlier = {**corpus.files, **origin.card}, origin.earlier
        self.digests = {"start_digest": origin.digest, "data_digest": self.batches.digest()}
        self.report_steps, self.clock = report_steps, clock
        self.accelerator = _accelerator(settings)

        # what a resumed run goes on with
        self.step, self.seconds, self.history = 0, 0.0, list[dict[str, float]]()
        # of the start and of the result, on the same batches, by name
        self.losses: dict[str, list[float]] = {}
        self.model = model.to(self.accelerator.device)
        self.averaged = copy.deepcopy(self.model)
        self.optimizers = build_optimizers(self.model, settings)
        recover_folder(self.folder / "state")
        saved = SavedState.read(self.folder / "state") if (self.folder / "state").is_dir() else None
        self.settings = resolved(settings, None if saved is None else saved.settings)
        if saved is not None:
            self._resume(saved)

        # the losses, of the network and of its averaged weights
        if teacher is not None:
            teacher = teacher.to(self.accelerator.device).eval().requires_grad_(False)
        for network in (self.model, self.averaged, teacher):
            if network is not None and network.signal.is_cuda:
                network.fuse_attention()
        loss = TeacherForcingLoss(self.model, settings, teacher)
        self.gauge = TeacherForcingLoss(self.averaged, settings, teacher)
        self.loss, *self.prepared = self.accelerator.prepare(loss, *self.optimizers)

    def run(self, stop: Stop = lambda: False, report: Report = lambda _: None) -> bool:
        """Train until the schedule ends or `stop()` is true; the state is saved either way.

        `stop` is called after every step. `report` is called with each new record of the history
        and, about once per second, with a record of the latest step, its losses and its learning
        "rate". `settings.minutes` end the steps; the result is scored after them. A signal ends a
        run between two steps.

        Returns:
            Whether the schedule was completed; then `checkpoint/` is written, and lines compare it
            with the start.
        """
        if self._finished() and (self.folder / "checkpoint").is_dir():
            return True
        if not self._finished():
            self._begin(report)
            with deferred():
                self._loop(stop, report)
        if self._finished():
            self._end(report)
        return self._finished()

    def _begin(self, report: Report) -> None:
        """Prepare the steps; a new run measures its start."""
        torch.set_num_threads(self.settings.threads or 1)
        if self.accelerator.device.type == "cpu" and self.accelerator.is_main_process:
            precision = {"no": "float32"}.get(self.settings.precision, self.settings.precision)
            say(f"{self.folder}: training in {precision} on {self.settings.threads} of "
                f"{usable_cores()} cores; --precision and --threads choose")
        if self.settings.compiled:
            compile_layers(self.model)
        if not self.step and not self.settings.endless:
            self._measure_losses()
            if self.digests["start_digest"]:
                self._score(report)
        self.loss.train()

    def _loop(self, stop: Stop, report: Report) -> None:
        """Train until the schedule ends, or `stop()` is true, and save."""
        started, before = self.clock(), self.seconds
        saved = evaluated = time.monotonic()
        shown, stopped = -math.inf, False
        while not self._finished() and not stopped:
            losses = self._step()

            # all processes go by the clock of the first one, which `stop` may read
            now, self.seconds = time.monotonic(), before + self.clock() - started
            self.seconds, stopped = self._agree(self.seconds, stop())

            # what is said and kept of the step
            if self.step % self.report_steps == 0:
                report(self.record(self._means(losses)))
            elif now - shown > SHOW_SECONDS:
                own = {name: float(value) for name, value in losses.items()}
                report({**self._position(), "rate": self._rate(), **own})
                shown = now
            if self.evaluate is not None and now - evaluated > EVALUATE_SECONDS:
                self._score(report)
                self._plot()
                evaluated = time.monotonic()
            if self._is_snapshot() and self.accelerator.is_main_process:
                self.write_checkpoint(self.folder / "snapshots" / str(self.step))
            if now - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        self.save()
        if not self._finished():
            self._plot()

    def _plot(self) -> None:
        """Draw the curves of the history."""
        if self.accelerator.is_main_process:
            plot_history(self.history, self.folder / "curves.png", self.batches.unit)

    def _end(self, report: Report) -> None:
        """Score and write the result, and compare it with the start."""
        if self.losses:
            self._measure_losses()
        self._score(report)
        with deferred():
            self.save()
            self._plot()
            if self.accelerator.is_main_process:
                self.write_checkpoint(self.folder / "checkpoint")
                for line in outcome(self.settings, self.step, self.history, self.losses):
                    say(f"{self.folder}: {line}")

    def _finished(self) -> bool:
        """Return whether the schedule is complete."""
        return schedule_share(self.settings, self.step, self.seconds) >= 1

    def _is_snapshot(self) -> bool:
        """Return whether the weights after this step are kept (`Stage.snapshots`)."""
        count, steps = self.settings.snapshots, self.settings.steps or 0
        return count > 0 and self.step * count // steps > (self.step - 1) * count // steps

    def write_checkpoint(self, folder: Path) -> None:
        """Write the averaged weights, and the stages that led to them; raise OutputError if that is
        not possible."""
        save_checkpoint(self.averaged, folder, training=[*self.earlier, self.summary()],
                        files=self.files)

    def summary(self) -> dict[str, Any]:
        """Return a summary of the run: settings, length, latest scores, hardware and versions."""
        scores = {name: value for record in self.history for name, value in record.items()}
        device = self.accelerator.device
        cores = (f"{os.cpu_count()} {platform.machine()} cores "
                 f"({torch.backends.cpu.get_cpu_capability()})")
        return {
            "stage": self.settings.stage, "steps": self.step, "seconds": round(self.seconds),
            f"{self.batches.unit}_seen": self.step * self.settings.batch_size,
            **{f"dev_{name.removeprefix('dev_')}": scores[name] for name in SCORES
               if name in scores},
            "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else cores,
            **self.digests, "processes": self.accelerator.num_processes, "torch": torch.__version__,
            "settings": self.settings.to_dict(),
        }

    def save(self) -> None:
        """Replace the resumable state atomically; if that raises OutputError, the previous state is
        intact."""
        if not self.accelerator.is_main_process:
            return
        position = {"model": self.model.config.to_dict(), "settings": self.settings.to_dict(),
                    **self.digests, "step": self.step, "seconds": self.seconds,
                    "history": self.history, "losses": self.losses}
        write_state(self.folder / "state", position, self.model, self.averaged, self.optimizers)
        (self.folder / "history.json").write_text(json.dumps(self.history, indent=1))

    def _step(self) -> dict[str, Tensor]:
        """Train one step; return this process's losses."""
        for optimizer in self.prepared:
            for group in optimizer.param_groups:
                group["lr"] = self._rate()
        losses = self._gradients()
        if self.settings.clip is not None:
            self.accelerator.clip_grad_norm_(self.loss.parameters(), self.settings.clip)
        for optimizer in self.prepared:
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        # early weights are forgotten
        decay = min(self.settings.ema_decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averaged.parameters()), list(self.model.parameters()),
                                 1 - decay)
        return losses

    def _gradients(self) -> dict[str, Tensor]:
        """Compute the losses and gradients of the next step; return this process's losses."""
        part, parts = self.accelerator.process_index, self.accelerator.num_processes
        batch = self.batches.batch(self.step, part, parts).to(self.accelerator.device)
        draw = self.settings.seed * 1_000_003 + self.step
        # a resumed run with as many processes repeats its dropout
        torch.manual_seed(draw * parts + part)
        with torch.autocast(self.accelerator.device.type, torch.bfloat16,
                            enabled=self.settings.precision == "bf16"):
            losses = self.loss(batch.source, batch.target, draw, batch.true_count, batch.padding,
                               batch.lengths)
        self.accelerator.backward(losses["total"])
        return {name: value.detach() for name, value in losses.items()}

    def _measure_losses(self) -> None:
        """Add the losses of the averaged weights to `losses`; the batches are the same at every
        call."""
        found = mean_losses(self.gauge, self.batches, self.accelerator.device)
        self.losses = {name: [*self.losses.get(name, [])[:1], value]
                       for name, value in found.items()}

    def _rate(self) -> float:
        """Return the learning rate of the next step."""
        factor = learning_rate_factor(self.settings, self.step, self.seconds)
        return self.settings.learning_rate * factor

    def _means(self, losses: dict[str, Tensor]) -> dict[str, float]:
        """Return the means of losses over all processes, which have equal shares of a batch."""
        means = self.accelerator.reduce(torch.stack([value.double() for value in losses.values()]),
                                        "mean")
        return dict(zip(losses, means.tolist(), strict=True))

    def _agree(self, seconds: float, stopped: bool) -> tuple[float, bool]:
        """Return the first process's seconds and stop flag, so that all processes end at the same
        step."""
        if self.accelerator.num_processes == 1:
            return seconds, stopped
        first = broadcast(torch.tensor([seconds, float(stopped)], dtype=torch.float64,
                                       device=self.accelerator.device))
        return float(first[0]), bool(first[1])

    def record(self, values: dict[str, float]) -> dict[str, float]:
        """Add losses or scores to the history, and return the record.

        A long history keeps every second record of losses, so that saving it stays fast in an
        endless run.
        """
        if len(self.history) >= HISTORY:
            self.history = [record for number, record in enumerate(self.history)
                            if number % 2 or "total" not in record]
        record = {**self._position(), **values}
        self.history.append(record)
        return record

    def _position(self) -> dict[str, float]:
        return {"step": self.step, "seconds": round(self.seconds, 1),
                self.batches.unit: self.step * self.settings.batch_size}

    def _score(self, report: Report) -> None:
        """Report the scores of the averaged weights on development data, if there is any."""
        if self.evaluate is not None:
            with torch.inference_mode(), Progress("scoring"):
                report(self.record(self.evaluate(self.averaged.eval())))

    def _resume(self, saved: SavedState) -> None:
        """Continue the run whose state is in the folder; its number of threads may change."""
        for before, now in ((saved.model.to_dict(), self.model.config.to_dict()),
                            (saved.settings.to_dict(), self.settings.to_dict())):
            different = [f"{name} {before[name]!r} there, {value!r} now"
                         for name, value in now.items()
                         if before[name] != value and name != "threads"]
            if different:
                raise CheckpointError(f"{self.folder} was started with other settings "
                                      f"({'; '.join(different)}); repeat those or choose a new run "
                                      "folder")
        for name, digest in self.digests.items():
            if (before := getattr(saved, name)) != digest:
                raise CheckpointError(f"{self.folder} was started with other {GIVEN[name]} "
                                      f"(SHA-256 {before} there, {digest} now); repeat the first "
                                      "or choose a new run folder")
        load_tensors(self.folder / "state", self.model, self.averaged, self.optimizers)
        self.step, self.seconds, self.history = saved.step, saved.seconds, saved.history
        self.losses = saved.losses


def _accelerator(settings: Stage) -> Accelerator:
    """Return what spreads a run over this machine's processes.

    Accelerate's mixed precision is a setting of the process, which may train several stages;
    `Trainer` sets it at each step.
    """
    parallel = DistributedDataParallelKwargs(
        find_unused_parameters=settings.head_loss == "random-head")
    return Accelerator(mixed_precision="no", cpu=training_device(settings).type == "cpu",
                       kwargs_handlers=[parallel])
