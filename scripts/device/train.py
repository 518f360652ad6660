"""Train a checkpoint further on a GPU for a number of seconds, with the pictures on the device; or time training steps.

    python scripts/device/train.py --prepared build/device --output run --seconds 430 --compiled
    python scripts/device/train.py --prepared build/device --probe probe.json

The run's folder is that of `superres train`: `checkpoint/`, `history.json`, `curves.png`, `state/`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
import typer
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from mosaics import unpack
from superres import SuperresError
from superres.checkpoint import find_checkpoint, load_checkpoint, read_training, weights_digest
from superres.errors import ConfigError
from superres.nn import attention
from superres.nn.model import EncoderDecoder
from superres.pipeline.auto import face_task
from superres.system.output import prepare_folder, write_result
from superres.tasks.face_data import FacePairs, read_faces
from superres.training.construction import build_model, build_optimizers
from superres.training.corpora import face_score, network_of
from superres.training.data import DistilBatches, FaceBatches, TokenBatch
from superres.training.losses import TeacherForcingLoss
from superres.training.stage import Stage
from superres.training.trainer import Trainer

DEV_IMAGES = 200
"""Number of development pictures that are scored before and after training."""
SHOW_SECONDS = 5.0
"""Seconds between two lines of progress."""
SLOWEST = 16
"""Number of kernels that a probe names."""
PLAIN_ATTEND = attention.attend


class DeviceBatches:
    """Random batches of faces that lie on the device as uint8, with the members of `superres.training.data`.

    Seed and step determine a batch on every device. Each epoch is a new permutation; the rest of an epoch is left out.
    """

    unit = "images"

    def __init__(self, pairs: FacePairs, batch_size: int, seed: int, device: torch.device, flip: bool = True) -> None:
        """Copy the pictures to `device`; with `flip`, half of those of a batch are mirrored."""
        self.flip = flip
        self.low, self.high = (torch.from_numpy(part).to(device) for part in (pairs.lr, pairs.hr))
        self.batch_size, self.seed, self.device = batch_size, seed, device
        self.content = hashlib.sha256(pairs.lr.tobytes() + pairs.hr.tobytes()).hexdigest()[:12]
        self.epoch, self.order = -1, np.empty(0, np.int64)

    def digest(self) -> str:
        """Return the digest of the pictures."""
        return self.content

    def batch(self, step: int, part: int = 0, parts: int = 1) -> TokenBatch:
        """Return a share of batch `step`."""
        per_epoch = max(len(self.low) // self.batch_size, 1)
        epoch, place = divmod(step, per_epoch)
        if epoch != self.epoch:
            self.epoch, self.order = epoch, np.random.default_rng((self.seed, epoch)).permutation(len(self.low))
        rows = self.order[place * self.batch_size : (place + 1) * self.batch_size][part::parts]
        draws = np.random.default_rng((self.seed, step, part)).random(len(rows))
        mirrored = torch.from_numpy(draws < (0.5 if self.flip else 0))
        index, flip = torch.from_numpy(rows).to(self.device), mirrored.to(self.device).view(-1, 1, 1, 1)
        low, high = (torch.where(flip, images.flip(2), images)
                     for images in (self.low[index], self.high[index]))  # [B, h, w, 3] and [B, H, W, 3]
        return TokenBatch(low.flatten(1).long(), high.flatten(1).long(), len(rows))


def fused_attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `superres.nn.attention.attend` of blocked queries [B, H, N, L, size] without storing the scores."""
    if query.dim() != 5 or mask is None:
        return PLAIN_ATTEND(query, key, value, mask)
    query, key, value = (one.flatten(1, 2) for one in (query, key, value))  # [B, H * N, L, size]
    heads = query.shape[1] // mask.shape[0]
    blocks = mask.to(query.dtype).repeat(heads, 1, 1).unsqueeze(0)  # [1, H * N, L, 2 * L]: every head has all blocks
    return F.scaled_dot_product_attention(query, key, value, blocks).unflatten(1, (heads, -1))


def speed_up(model: EncoderDecoder, fused: bool, compiled: bool) -> None:
    """Let `model` use the fused attention, and compile its layers, whose shapes never change."""
    attention.attend = fused_attend if fused else PLAIN_ATTEND  # `local_attention` reads it
    if compiled:
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # otherwise layers silently stay as slow as before
        for part in (*model.encoder, *model.decoder, model.neighbourhood):
            if part is not None:
                part.compile(dynamic=False)


def batches_of(pairs: FacePairs, own: FacePairs | None, settings: Stage, device: torch.device) -> FaceBatches:
    """Return batches of true pictures, or those of the stage "distil"."""
    if own is None:
        return DeviceBatches(pairs, settings.batch_size, settings.seed, device)
    half = settings.batch_size // 2
    return DistilBatches(DeviceBatches(pairs, half, settings.seed, device),
                         DeviceBatches(own, half, settings.seed, device, flip=False))


def train(
    model: EncoderDecoder, batches: FaceBatches, dev: FacePairs, settings: Stage, start: Path, output: Path,
) -> None:
    """Train until the schedule ends or SIGTERM arrives, and write the checkpoint either way."""
    score = face_score(dev)
    teacher = load_checkpoint(start) if settings.teacher else None
    trainer = Trainer(model, settings, batches, output, score, earlier=read_training(start),
                      start=weights_digest(start), teacher=teacher)
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))  # `timeout` sends it first
    with torch.inference_mode():
        before = score(trainer.averaged.eval())
    print(f"before: {before['bits_per_dim']:.4f} bits/dim on {len(dev)} faces", flush=True)
    shown = time.monotonic()

    def report(record: dict[str, float]) -> None:
        nonlocal shown
        if time.monotonic() - shown > SHOW_SECONDS or "bits_per_dim" in record:
            shown = time.monotonic()
            print(json.dumps({name: round(value, 4) for name, value in record.items()}), flush=True)

    trainer.run(lambda: bool(stopped), report)
    trainer.write_checkpoint(output / "checkpoint")
    images = trainer.step * settings.batch_size
    print(f"{trainer.step:,} steps, {images:,} images, {images / max(trainer.seconds, 1e-9):,.0f} images per second; "
          f"{before['bits_per_dim']:.4f} bits/dim before, "
          f"{trainer.history[-1].get('bits_per_dim', float('nan')):.4f} after", flush=True)


def probe(stage: Stage, pairs: FacePairs, batches: list[int], steps: int, device: torch.device, output: Path,
          fused: bool, compiled: bool) -> None:
    """Time training steps by batch size, without and with compiled layers; write what `timed_steps` returns."""
    rows: list[dict[str, Any]] = []
    for batch in batches:
        for compile_layers in (False, True) if compiled else (False,):
            row: dict[str, Any] = {"batch": batch, "fused": fused, "compiled": compile_layers}
            torch.manual_seed(0)
            torch.compiler.reset()
            try:
                row |= timed_steps(stage, pairs, batch, steps, device, fused, compile_layers)
            except Exception as error:  # running out of memory is a result
                row["error"] = (str(error).splitlines() or [type(error).__name__])[0]
            rows.append(row)
            print(row, flush=True)
            write_result(output, json.dumps(rows, indent=1).encode())
            if device.type == "cuda":
                torch.cuda.empty_cache()


def timed_steps(stage: Stage, pairs: FacePairs, batch: int, steps: int, device: torch.device, fused: bool,
                compiled: bool) -> dict[str, Any]:
    """Return the loss, images per second, GiB, and the kernels that take most of a step, of training a network."""
    settings = dataclasses.replace(stage, batch_size=batch)
    model = EncoderDecoder(network_of(stage)).to(device)
    speed_up(model, fused, compiled)
    loss, optimizers = TeacherForcingLoss(model, settings).train(), build_optimizers(model, settings)
    source = DeviceBatches(pairs, batch, 0, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()

    def run(first: int) -> tuple[float, float]:
        started = time.perf_counter()
        for number in range(first, first + steps):
            one = source.batch(number)
            with torch.autocast(device.type, torch.bfloat16):
                total = loss(one.source, one.target, number, one.true_count)["total"]
            total.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return float(total.detach()), time.perf_counter() - started

    _, first_seconds = run(0)
    total, seconds = run(steps)
    row = {"total": total, "first_seconds": first_seconds, "images_per_second": batch * steps / seconds}
    if device.type == "cuda":
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run(2 * steps)
        found = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
        row |= {"GiB": torch.cuda.max_memory_allocated() / 2**30,
                "kernels": sum(event.count for event in found) / steps,
                "kernel_ms": sum(event.self_device_time_total for event in found) / steps / 1e3,
                "slowest": [[event.key[:90], event.count / steps, event.self_device_time_total / steps / 1e3]
                            for event in found[:SLOWEST]]}
    return row


def main(
    prepared: Annotated[Path, typer.Option(help="Folder that prepare.py filled.")] = Path("build/device"),
    faces: Annotated[Path | None, typer.Option(help="Folder of mosaics. [default: that in --prepared]")] = None,
    output: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/device"),
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    start: Annotated[str, typer.Option(help="Checkpoint to train. [default: the one it was prepared for]")] = "",
    own: Annotated[Path | None, typer.Option(help="Pictures that --start decoded, from 'superres train decode': "
                                                  "half of each batch, with --start as p1's teacher there.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds of training.")] = 430,
    steps: Annotated[int | None, typer.Option(help="Number of steps, instead of --seconds.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images per step.")] = 128,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 2e-3,
    warmup: Annotated[int, typer.Option(help="Steps of linear warm-up.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0,
    fused: Annotated[bool, typer.Option(help="Compute attention by torch's fused kernel.")] = True,
    compiled: Annotated[bool, typer.Option(help="Compile the layers; takes a minute or two first.")] = False,
    probe_file: Annotated[Path | None, typer.Option("--probe", help="Time steps instead, and write them here.")] = None,
    probe_steps: Annotated[int, typer.Option(min=1, help="Steps per timing.")] = 8,
    probe_batches: Annotated[str, typer.Option(help="Batch sizes to time, separated by commas.")] = "32,64,128",
) -> None:
    """Train, or time training steps."""
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no GPU on this machine; give --device cpu")
    start = start or (prepared / "checkpoint.txt").read_text().strip()
    folder = find_checkpoint(start)
    run = Stage(
        stage="heads" if own is None else "distil", minutes=seconds / 60 if steps is None else None, steps=steps,
        batch_size=batch_size, learning_rate=learning_rate, optimizer="muon", precision="bf16", warmup_steps=warmup,
        head_positions=192, ema_decay=0.998, seed=seed, start=str(folder), keep_heads=True,
        teacher=None if own is None else start)
    dev = read_faces(prepared / "dev.npz", face_task(folder), "valid", DEV_IMAGES)
    if probe_file is not None:
        prepare_folder(probe_file.parent)
        probe(run, dev, [int(size) for size in probe_batches.split(",")], probe_steps, where, probe_file, fused,
              compiled)
        return
    prepare_folder(output)
    model = build_model(network_of(run), run, folder)
    speed_up(model, fused, compiled)
    drawn = None if own is None else read_faces(own, face_task(folder), "train")
    train(model, batches_of(unpack(faces or prepared / "faces"), drawn, run, where), dev, run, folder, output)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"train: {error}")
