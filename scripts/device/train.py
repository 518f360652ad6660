"""Train on a GPU for a number of seconds, by `superres train`'s own code; or time training steps.

A checkpoint is trained further, base and heads at once, and gets heads if it has none; with
--preset, the base of a network is trained from random weights.

    python scripts/device/train.py --prepared build/device --output run --seconds 430 --compiled
    python scripts/device/train.py --prepared build/device --output run --seconds 430 --compiled
    --preset face-16 python scripts/device/train.py --prepared build/device --probe probe.json

The run's folder is that of `superres train`: `checkpoint/`, `history.json`, `curves.png`, `state/`.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from torch.profiler import ProfilerActivity, profile

from mosaics import unpack
from superres import SuperresError
from superres.checkpoint import find_checkpoint
from superres.config import require
from superres.pipeline.choose import pick_device
from superres.system import signals
from superres.system.output import prepare_folder, write_result
from superres.tasks.face_data import write_npz
from superres.training.recipes import build_trainer
from superres.training.stage import GPU_DEFAULTS, Stage
from superres.training.trainer import Trainer

SHOW_SECONDS = 5.0
"""Seconds between two lines of progress."""
SLOWEST = 16
"""Number of kernels that a probe names."""


def train(stage: Stage) -> None:
    """Train until the schedule ends or SIGTERM arrives, and write the checkpoint either way."""
    shown = time.monotonic()

    def report(record: dict[str, float]) -> None:
        nonlocal shown
        if time.monotonic() - shown > SHOW_SECONDS or "bits_per_dim" in record:
            shown = time.monotonic()
            print(json.dumps({name: round(value, 4) for name, value in record.items()}), flush=True)

    with signals.handled(), signals.deferred():  # `timeout` sends SIGTERM first
        trainer = build_trainer(stage)
        trainer.run(signals.stopping, report)
        trainer.write_checkpoint(stage.output / "checkpoint")
    images = trainer.step * stage.batch_size
    print(f"{trainer.step:,} steps, {images:,} images, {images / max(trainer.seconds, 1e-9):,.0f} "
          "images per second",
          flush=True)


def probe(stage: Stage, batches: list[int], steps: int, output: Path) -> None:
    """Time training steps by batch size, without and with compiled layers; write what `timed_steps`
    returns."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for compiled in (False, True) if stage.compiled else (False,):
            row: dict[str, Any] = {"batch": batch, "compiled": compiled}
            torch.compiler.reset()
            try:
                with TemporaryDirectory() as folder:
                    settings = dataclasses.replace(stage, batch_size=batch, compiled=compiled,
                                                   output=Path(folder))
                    row |= timed_steps(build_trainer(settings), steps)
            except Exception as error:  # running out of memory is a result
                row["error"] = (str(error).splitlines() or [type(error).__name__])[0]
            rows.append(row)
            print(row, flush=True)
            write_result(output, json.dumps(rows, indent=1).encode())
            if torch.cuda.is_available():
                gc.collect()
                torch.cuda.empty_cache()


def timed_steps(trainer: Trainer, steps: int) -> dict[str, Any]:
    """Return the loss, images per second, GiB, and the kernels that take most of a step, of an
    endless run.

    After `steps` steps, as many are timed; on a GPU, as many are profiled then.
    """
    on_gpu, marks = trainer.accelerator.device.type == "cuda", [time.perf_counter()]
    profiler = profile(activities=[ProfilerActivity.CUDA])
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()

    def stop() -> bool:
        if trainer.step % steps == 0:
            if on_gpu:
                torch.cuda.synchronize()
            marks.append(time.perf_counter())
        if on_gpu and trainer.step == 2 * steps:
            profiler.start()
        return trainer.step == (3 if on_gpu else 2) * steps

    trainer.report_steps = steps
    trainer.run(stop)
    row = {"total": trainer.history[-1]["total"], "first_seconds": marks[1] - marks[0],
           "images_per_second": trainer.settings.batch_size * steps / (marks[2] - marks[1])}
    if on_gpu:
        profiler.stop()
        found = sorted((event for event in profiler.key_averages()
                        if not event.key.startswith("Mem")),
                       key=lambda event: -event.self_device_time_total)
        row |= {"GiB": torch.cuda.max_memory_allocated() / 2**30,
                "kernels": sum(event.count for event in found) / steps,
                "kernel_ms": sum(event.self_device_time_total for event in found) / steps / 1e3,
                "slowest": [[event.key[:90], event.count / steps,
                             event.self_device_time_total / steps / 1e3]
                            for event in found[:SLOWEST]]}
    return row


def main(
    prepared: Annotated[Path,
                        typer.Option(help="Folder that prepare.py filled.")] = Path("build/device"),
    faces: Annotated[Path | None, typer.Option(help="Folder of mosaics. [default: that in "
                                               "--prepared]")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/device"),
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    start: Annotated[str, typer.Option(help="Checkpoint to train. [default: the one it was "
                                       "prepared for]")] = "",
    preset: Annotated[str | None, typer.Option(help="Network to train, from random "
                                               "weights.")] = None,
    prediction_heads: Annotated[int | None, typer.Option(help="[default: as in --start, or "
                                                         "10]")] = None,
    own: Annotated[Path | None, typer.Option(help="Pictures that --start decoded, from 'superres "
                                             "train decode': half of each batch, with --start as "
                                             "p1's teacher there.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds of training.")] = 430,
    steps: Annotated[int | None, typer.Option(help="Number of steps, instead of "
                                              "--seconds.")] = None,
    batch_size: Annotated[int,
                          typer.Option(min=1, help="Images per step.")] = int(
                              GPU_DEFAULTS["batch_size"]),
    learning_rate: Annotated[float,
                             typer.Option(help="Peak learning rate.")] = GPU_DEFAULTS[
                                 "learning_rate"],
    warmup: Annotated[int, typer.Option(help="Steps of linear warm-up.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0,
    compiled: Annotated[bool, typer.Option(help="Compile the layers; takes a minute or two "
                                           "first.")] = False,
    probe_file: Annotated[Path | None, typer.Option("--probe", help="Time steps instead, and write "
                                                    "them here.")] = None,
    probe_steps: Annotated[int, typer.Option(min=1, help="Steps per timing.")] = 8,
    probe_batches: Annotated[str, typer.Option(help="Batch sizes to time, separated by "
                                               "commas.")] = "32,64,128",
) -> None:
    """Train, or time training steps."""
    pick_device(device)  # refused before anything is read
    require(not (preset and (start or own)), "--preset trains from random weights; leave --start "
            "and --own out")
    known = None if preset else start or (prepared / "checkpoint.txt").read_text().strip()
    network: dict[str, Any] = {"preset": preset} if preset else {}
    stage = Stage(
        **network, prediction_heads=prediction_heads, stage="base" if preset else "heads"
        if own is None else "distil", endless=probe_file is not None,
        minutes=seconds / 60 if steps is None and probe_file is None else None, steps=steps,
        batch_size=batch_size, learning_rate=learning_rate, optimizer="muon", precision="bf16",
        warmup_steps=warmup, head_positions=192, ema_decay=0.998, seed=seed,
        start=None if known is None else str(find_checkpoint(known)), keep_heads=known is not None,
        teacher=None if own is None else known, own=own, data=prepared / "dev.npz",
        dev=prepared / "dev.npz", device=device, compiled=compiled, output=output)
    if probe_file is not None:
        prepare_folder(probe_file.parent)
        probe(dataclasses.replace(stage, dev=None),
              [int(size) for size in probe_batches.split(",")], probe_steps, probe_file)
        return
    prepare_folder(output)
    write_npz(unpack(faces or prepared / "faces"), output / "faces.npz")
    train(dataclasses.replace(stage, data=output / "faces.npz"))


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"train: {error}")
