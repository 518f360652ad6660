"""Train a stage: the base by teacher forcing, or heads from a warm start. Training runs on a CPU or several GPUs."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, broadcast
from safetensors.torch import save_file
from torch import Tensor, nn

from superres.checkpoint import (
    load_checkpoint,
    load_weights,
    read_tensors,
    recover_folder,
    replaced_folder,
    save_checkpoint,
)
from superres.config import ModelConfig, require
from superres.errors import CheckpointError, ConfigError
from superres.nn.heads import PredictionHeads
from superres.nn.model import EncoderDecoder
from superres.training.data import Batches
from superres.training.losses import TeacherForcingLoss
from superres.training.settings import TrainConfig

SAVE_SECONDS = 45.0
"""Seconds between two resumable states, so that a killed run loses less than a minute."""

REPORT_STEPS = 50
"""Number of steps between two records of the losses."""

HISTORY = 4000
"""Number of records at which the history is thinned out."""

DEV_SCORES = ("bits_per_dim", "dev_images", "bits_per_token", "bleu", "dev_pairs")
"""Names of the scores on development data in the history."""

DECODING_SCORES = ("greedy_psnr", "greedy_ssim", "exact_tokens_per_step", "epsilon_2_tokens_per_step")
"""Names of the scores of decoded development images in the history, which only `superres train continue` measures."""


@dataclass
class Progress:
    """Progress of a run, saved with its weights.

    Attributes:
        step: optimiser steps done.
        seconds: training time so far by the trainer's clock, summed over resumes.
        history: one record per report: step, seconds, images (or pairs), and losses or scores.
    """

    step: int
    seconds: float
    history: list[dict[str, float]]


def build_model(config: ModelConfig, settings: TrainConfig, start: str | Path | None = None) -> EncoderDecoder:
    """Build the network to train, warm-started from a checkpoint folder if one is given.

    Args:
        config: the network. The warm start may lack only the weights of the head layer, or of its last heads, which
            start as copies of the last head that it has. It may have more heads; then the first ones are taken, or none
            if the network has no head layer.
        settings: settings of the stage, and the seed.
        start: checkpoint folder.

    Raises:
        CheckpointError: the warm start belongs to another network.
        ConfigError: the stage trains heads that the network lacks, or a frozen p1 has no target to learn.
    """
    if settings.trains_heads and config.prediction_heads < 2:
        raise ConfigError(f"stage {settings.stage} needs at least 2 prediction heads, not {config.prediction_heads}")
    learns_p1 = settings.trains_base or settings.head_target == "tokens"
    if settings.trains_heads and not config.identity_p1 and not learns_p1:
        raise ConfigError("on a frozen base, a p1 with a layer of its own has only tokens to learn from; "
                          "set head_target tokens")
    torch.manual_seed(settings.seed)
    model = EncoderDecoder(config)
    model.gradient_checkpointing = settings.gradient_checkpointing
    if start is not None:
        _warm_start(model, load_checkpoint(start), str(start))
    if not settings.trains_base:
        model.requires_grad_(False)
    if model.heads is not None and (config.identity_p1 or settings.trains_heads):
        model.heads.requires_grad_(settings.trains_heads)
    return model


def _warm_start(model: EncoderDecoder, base: EncoderDecoder, origin: str) -> None:
    """Copy the weights of `base`, read from `origin`, into `model`, whose head layer may be new."""
    weights, given, layer = base.state_dict(), base.heads, model.heads
    if layer is None and base.config.identity_p1:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("heads.")}
    if isinstance(given, PredictionHeads) and isinstance(layer, PredictionHeads) and given.count != layer.count:
        kinds = [(network.config.head_layer, network.config.head_filter_size) for network in (base, model)]
        require(kinds[0] == kinds[1], f"{origin} has a head layer {kinds[0][0]} with {kinds[0][1]} hidden units per "
                                      f"head, which the heads have to share, not {kinds[1][0]} with {kinds[1][1]}; "
                                      "leave --head-layer out")
        layer.take_heads(given)
        weights = {name: weight for name, weight in weights.items() if not name.startswith("heads.")}
    load_weights(model, weights, origin, optional="heads.")


def learning_rate_factor(settings: TrainConfig, progress: Progress) -> float:
    """Return the factor on the peak learning rate, in [0, 1]: linear warm-up times a cosine decay to 0.

    Endless training has the warm-up only.
    """
    warm = min(1.0, (progress.step + 1) / max(settings.warmup_steps, 1))
    if settings.endless:
        return warm
    done = progress.step / settings.steps if settings.steps else progress.seconds / (60 * (settings.minutes or 1))
    return warm * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def finished(settings: TrainConfig, progress: Progress) -> bool:
    """Return whether the run has reached the end of its schedule; endless training never does."""
    if settings.endless:
        return False
    if settings.steps is not None:
        return progress.step >= settings.steps
    return progress.seconds >= 60 * (settings.minutes or 0)


def build_optimizers(model: nn.Module, settings: TrainConfig) -> list[torch.optim.Optimizer]:
    """Return the optimisers of the trained weights, which share none; weight decay excludes vectors (biases, norms)."""
    trained, rate = [p for p in model.parameters() if p.requires_grad], settings.learning_rate
    if settings.optimizer == "adam":
        return [torch.optim.Adam(trained, rate, betas=(0.9, 0.98), eps=1e-9)]
    matrices = _layer_matrices(model) if settings.optimizer == "muon" else []
    others = [p for p in trained if not any(p is matrix for matrix in matrices)]
    groups = [
        {"params": [p for p in others if p.dim() > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in others if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(groups, rate, betas=(0.9, 0.98))]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, rate, settings.weight_decay, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def _layer_matrices(model: nn.Module) -> list[Tensor]:
    """Return the trained matrices of all linear layers but the output layer.

    The rows of the output layer belong to different quantities, such as tokens, as those of an embedding do.
    """
    return [module.weight for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and name != "project" and module.weight.requires_grad]


class Trainer:
    """One stage of training in a run folder.

    The folder holds `state/` (weights, averaged weights and optimiser, replaced every SAVE_SECONDS), `history.json`,
    `curves.png`, and at the end `checkpoint/`.
    """

    def __init__(
        self, model: EncoderDecoder, settings: TrainConfig, batches: Batches, folder: str | Path,
        evaluate: Callable[[EncoderDecoder], dict[str, float]] | None = None, evaluate_seconds: float = 600.0,
        earlier: Sequence[dict[str, Any]] = (), files: Mapping[str, bytes] | None = None,
        teacher: EncoderDecoder | None = None, report_steps: int = REPORT_STEPS, start: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the run and resume it if `folder` holds a state.

        Args:
            model: the network, warm-started.
            settings: the stage.
            batches: training pairs.
            folder: folder of the run.
            evaluate: scores the averaged model for the history, for example by bits per dimension.
            evaluate_seconds: seconds between two evaluations.
            earlier: summaries of the stages that led to the weights of `model`.
            files: contents of the task's files in the checkpoint, by name.
            teacher: the network that `settings.teacher` names, or None.
            report_steps: steps between two records of the history.
            start: digest of the weights that `model` was warm-started from, or None.
            clock: returns the seconds by which training time is measured.

        Raises:
            CheckpointError: the state in `folder` belongs to another network, start, or data, or to other settings.
        """
        self.origin = {"start_digest": start, "data_digest": batches.digest()}
        self.settings, self.batches, self.folder = settings, batches, Path(folder)
        self.evaluate, self.evaluate_seconds, self.report_steps = evaluate, evaluate_seconds, report_steps
        self.earlier, self.files, self.clock = earlier, files or {}, clock
        # Accelerate's mixed precision is a setting of the process, which may train several stages; `_step` sets it.
        parallel = DistributedDataParallelKwargs(find_unused_parameters=settings.head_loss == "random-head")
        self.accelerator = Accelerator(mixed_precision="no", cpu=not torch.cuda.is_available(),
                                       kwargs_handlers=[parallel])
        self.progress = Progress(0, 0.0, [])
        self.model = model.to(self.accelerator.device)
        self.averaged = copy.deepcopy(self.model)
        self.optimizers = build_optimizers(self.model, settings)
        recover_folder(self.folder / "state")
        if (self.folder / "state").is_dir():
            self._resume()
        if teacher is not None:
            teacher = teacher.to(self.accelerator.device).eval().requires_grad_(False)
        loss = TeacherForcingLoss(self.model, settings, teacher)
        self.loss, *self.prepared = self.accelerator.prepare(loss, *self.optimizers)

    def run(
        self, stop: Callable[[], bool] = lambda: False, report: Callable[[dict[str, float]], None] = lambda _: None,
    ) -> bool:
        """Train until the schedule ends or `stop()` is true; the state is saved either way.

        Args:
            stop: called after every step; if it returns true, training ends.
            report: called with each new record of the history.

        Returns:
            Whether the schedule was completed; then `checkpoint/` is written.
        """
        if finished(self.settings, self.progress) and (self.folder / "checkpoint").is_dir():
            return True
        saved = evaluated = time.monotonic()
        started, before = self.clock(), self.progress.seconds
        self.loss.train()
        stopped = False
        while not finished(self.settings, self.progress) and not stopped:
            losses = self._step()
            now = time.monotonic()
            self.progress.seconds = before + self.clock() - started  # which `stop` may read
            self.progress.seconds, stopped = self._agree(self.progress.seconds, stop())
            if self.progress.step % self.report_steps == 0:
                report(self.record(losses))
            if self.evaluate is not None and now - evaluated > self.evaluate_seconds:
                report(self.record(self._evaluation()))
                evaluated = time.monotonic()
            if now - saved > SAVE_SECONDS:
                self.save()
                saved = time.monotonic()
        done = finished(self.settings, self.progress)
        if done and self.evaluate is not None:
            report(self.record(self._evaluation()))
        self.save()
        if done and self.accelerator.is_main_process:
            self.write_checkpoint(self.folder / "checkpoint")
        return done

    def write_checkpoint(self, folder: Path) -> None:
        """Write the averaged weights, and the stages that led to them, to a checkpoint folder.

        Raises:
            OutputError: the folder cannot be written.
        """
        save_checkpoint(self.averaged, folder, training=[*self.earlier, self.summary()], files=self.files)

    def summary(self) -> dict[str, Any]:
        """Return a summary of the run: settings, length, latest scores, hardware and versions."""
        scores = {name: value for record in self.progress.history for name, value in record.items()}
        device = self.accelerator.device
        cores = f"{os.cpu_count()} {platform.machine()} cores ({torch.backends.cpu.get_cpu_capability()})"
        return {
            "stage": self.settings.stage, "steps": self.progress.step, "seconds": round(self.progress.seconds),
            f"{self.batches.unit}_seen": self.progress.step * self.settings.batch_size,
            **{f"dev_{name.removeprefix('dev_')}": scores[name]
               for name in (*DEV_SCORES, *DECODING_SCORES) if name in scores},
            "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else cores,
            **self.origin, "processes": self.accelerator.num_processes, "torch": torch.__version__,
            "settings": self.settings.to_dict(),
        }

    def save(self) -> None:
        """Replace the resumable state atomically.

        Raises:
            OutputError: no space is left or the folder is not writable; the previous state is intact.
        """
        if not self.accelerator.is_main_process:
            return
        with replaced_folder(self.folder / "state") as fresh:
            save_file(_detached(self.model.state_dict()), fresh / "model.safetensors")
            save_file(_detached(self.averaged.state_dict()), fresh / "averaged.safetensors")
            moments = {f"{numbers[index]}.{name}": value for numbers, optimizer in self._numbered_optimizers()
                       for index, values in optimizer.state_dict()["state"].items() for name, value in values.items()}
            save_file(_detached(moments), fresh / "optimizer.safetensors")
            document = {"model": self.model.config.to_dict(), "settings": self.settings.to_dict(), **self.origin,
                        **dataclasses.asdict(self.progress)}
            (fresh / "state.json").write_text(json.dumps(document))
        (self.folder / "history.json").write_text(json.dumps(self.progress.history, indent=1))
        plot_history(self.progress.history, self.folder / "curves.png", self.batches.unit)

    @torch.no_grad()
    def _average(self) -> None:
        """Update the averaged weights; the decay grows from near 0, so that early weights are forgotten."""
        decay = min(self.settings.ema_decay, (1 + self.progress.step) / (10 + self.progress.step))
        torch._foreach_lerp_(list(self.averaged.parameters()), list(self.model.parameters()), 1 - decay)

    def _step(self) -> dict[str, float]:
        part, parts = self.accelerator.process_index, self.accelerator.num_processes
        batch = self.batches.batch(self.progress.step, part, parts).to(self.accelerator.device)
        factor = learning_rate_factor(self.settings, self.progress)
        for optimizer in self.prepared:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * factor
        draw = self.settings.seed * 1_000_003 + self.progress.step
        torch.manual_seed(draw * parts + part)  # a resumed run with as many processes repeats its dropout
        mixed = self.settings.precision == "bf16"
        with torch.autocast(self.accelerator.device.type, torch.bfloat16, enabled=mixed):
            losses = self.loss(batch.source, batch.target, draw, batch.true_count, batch.padding, batch.lengths)
        self.accelerator.backward(losses["total"])
        self.accelerator.clip_grad_norm_(self.loss.parameters(), self.settings.clip)
        for optimizer in self.prepared:
            optimizer.step()
            optimizer.zero_grad()
        self.progress.step += 1
        self._average()
        return self._mean(losses) if self.progress.step % self.report_steps == 0 else {}

    def _mean(self, losses: dict[str, Tensor]) -> dict[str, float]:
        """Return the means over all processes, which have equal shares of a batch."""
        values = self.accelerator.reduce(torch.stack([value.detach().double() for value in losses.values()]), "mean")
        return dict(zip(losses, values.tolist(), strict=True))

    def _agree(self, seconds: float, stopped: bool) -> tuple[float, bool]:
        """Return the first process's seconds and stop flag, so that all processes end at the same step."""
        if self.accelerator.num_processes == 1:
            return seconds, stopped
        first = broadcast(torch.tensor([seconds, float(stopped)], dtype=torch.float64, device=self.accelerator.device))
        return float(first[0]), bool(first[1])

    def record(self, values: dict[str, float]) -> dict[str, float]:
        """Add losses or scores to the history, and return the record.

        A long history keeps every second record of losses, so that saving it stays fast in an endless run.
        """
        if len(self.progress.history) >= HISTORY:
            self.progress.history = [record for number, record in enumerate(self.progress.history)
                                     if number % 2 or "total" not in record]
        record = {"step": self.progress.step, "seconds": round(self.progress.seconds, 1),
                  self.batches.unit: self.progress.step * self.settings.batch_size, **values}
        self.progress.history.append(record)
        return record

    def _evaluation(self) -> dict[str, float]:
        model = self.averaged.eval()
        with torch.inference_mode():
            return self.evaluate(model) if self.evaluate is not None else {}

    def _resume(self) -> None:
        folder = self.folder / "state"
        try:
            document = json.loads((folder / "state.json").read_text())
            # from_dict gives their default to settings that are newer than the run.
            there = ModelConfig.from_dict(document["model"]), TrainConfig.from_dict(document["settings"])
            position = document["step"], document["seconds"], document["history"]
        except (OSError, ValueError, KeyError, ConfigError) as error:
            raise CheckpointError(f"{folder}/state.json is damaged ({error!r}); choose a new run folder") from error
        for saved, current in zip(there, (self.model.config, self.settings), strict=True):
            before = saved.to_dict()
            different = [f"{k} {before[k]!r} there, {v!r} now" for k, v in current.to_dict().items() if before[k] != v]
            if different:
                raise CheckpointError(f"{self.folder} was started with other settings ({'; '.join(different)}); "
                                      "repeat those or choose a new run folder")
        for name, now in self.origin.items():
            before = document.get(name, now)  # older states do not know
            if before != now:
                options = {"start_digest": "--start", "data_digest": "--data, --own or --crops"}[name]
                raise CheckpointError(f"{self.folder} was started with other {options} (SHA-256 {before} there, {now} "
                                      "now); repeat the first or choose a new run folder")
        for model, name in ((self.model, "model.safetensors"), (self.averaged, "averaged.safetensors")):
            load_weights(model, read_tensors(folder / name), str(folder / name))
        self._load_moments(read_tensors(folder / "optimizer.safetensors"))
        self.progress = Progress(*position)

    def _numbered_optimizers(self) -> Iterator[tuple[range, torch.optim.Optimizer]]:
        """Yield each optimiser with the numbers of its weights, which name their moments in a saved state."""
        first = 0
        for optimizer in self.optimizers:
            numbers = range(first, first + sum(len(group["params"]) for group in optimizer.param_groups))
            yield numbers, optimizer
            first = numbers.stop

    def _load_moments(self, tensors: dict[str, Tensor]) -> None:
        moments: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, name = key.split(".", 1)
            moments.setdefault(int(number), {})[name] = value
        for numbers, optimizer in self._numbered_optimizers():
            state = {index: moments[number] for index, number in enumerate(numbers) if number in moments}
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _detached(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def plot_history(history: list[dict[str, float]], path: str | Path, unit: str = "images") -> None:
    """Plot the losses (nats per token) and development scores of a run against examples seen, as a PNG.

    Args:
        history: records of the run.
        path: the PNG file.
        unit: name of the examples in the records, in the plural.
    """
    from matplotlib.figure import Figure  # a slow import that only training needs

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for name in ("p1", "own", "heads", *DEV_SCORES):
        points = [(record[unit], record[name]) for record in history if name in record]
        if not points or name.startswith("dev_"):
            continue
        panel = axes
        if name == "bleu":  # it has an axis of its own
            panel = axes.twinx()
            panel.set_ylabel("BLEU on dev (black)")
        panel.plot(*zip(*points, strict=True), label=name, linewidth=1, marker="o" if name in DEV_SCORES else None,
                   color="black" if name == "bleu" else None)
    axes.set_xlabel(f"{unit} seen")
    axes.set_ylabel("nats per token; bits on dev")
    if axes.lines:
        axes.legend()
    figure.savefig(path, dpi=100)
