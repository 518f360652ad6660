"""Check the one-launch kernel with a bundled network and time its variants, as JSON that is written
after every row.

    python scripts/device/kernel.py --data build/device/dev.npz --output kernel.json

Correct: blocks have the tokens of single steps, alone and in a batch. Then times of whole decodes
without the encoder, by variant, settings and batch. On a CPU, Triton's interpreter runs the kernel.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import Checkpoint, Faces, Values, run
from superres.checkpoint import find_checkpoint, load_checkpoint
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.limits import Limits
from superres.decoding.loop import Loop
from superres.decoding.plain.engine import PlainEngine
from superres.evaluation.timing import Timer
from superres.gpu import weights
from superres.gpu.model import TritonModel
from superres.gpu.weights import Tuning
from superres.interfaces import Int64
from superres.system.machine import machine
from superres.system.output import write_result
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask

NEAR = DecodeConfig(10, accept="distance", epsilon=2)
WAYS = {"greedy": DecodeConfig(1), "exact": DecodeConfig(10), "epsilon 2": NEAR,
        "epsilon 2, consistent": replace(NEAR, consistent=True),
        "sampled": DecodeConfig(10, temperature=0.9, nucleus=0.9),
        "speculative": DecodeConfig(10, temperature=0.9, sampling="speculative")}
VARIANTS: dict[str, tuple[bool, Tuning]] = {
    "bf16": (True, weights.HALF), "f32": (False, weights.FLOAT),
    "bf16, rows 2": (True, Tuning(rows=2, warps=4, part=64)),
    "bf16, stages 3": (True, replace(weights.HALF, short_stages=3)),
    "f32, warps 16": (False, Tuning(chunk=32, part=64, warps=16))}
"""Whether matrices, keys and values are bfloat16, and how the kernel is compiled; first, those that
users get."""
MAIN = ("bf16", "f32")


class Bench:
    """The network, the encoded faces and their limits on a device."""

    def __init__(self, checkpoint: str, data: Path, device: str, limit: int) -> None:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        self.device = device
        self.model = load_checkpoint(find_checkpoint(checkpoint)).to(device).float().eval()
        task, config = FaceTask.of(self.model.config), self.model.config
        low = read_faces(data, task, "valid", 256).lr
        self.source = low.reshape(len(low), -1).astype(np.int64)  # [N, S]
        self.limits = Limits.of(task.limits(config.vocabulary, None))
        self.limit, self.engines = limit or config.target_length, dict[str, PlainEngine]()

    def loop(self, variant: str, batch: int, options: DecodeConfig) -> Loop:
        """Return a loop over the first faces, repeated as needed."""
        if variant not in self.engines:
            half, tuning = VARIANTS[variant]
            self.engines[variant] = PlainEngine(TritonModel(self.model, half=half, tuning=tuning))
        size = min(options.block_size or 1, self.model.config.prediction_heads)
        algorithm = Algorithm(self.engines[variant], replace(options, block_size=size),
                              limits=self.limits if options.consistent else None)
        rows = np.arange(batch) % len(self.source)
        encoded = algorithm.engine.encode(self.source, None, algorithm)[rows]
        decoder: Any = algorithm.engine.start(encoded, rows, algorithm, size)
        decoder.plain.state.limit.clamp_(max=self.limit)
        return Loop(decoder)

    def tokens(self, variant: str, batch: int, size: int) -> Int64:
        """Decode greedily in blocks of `size`; return the tokens [batch, limit]."""
        loop = self.loop(variant, batch, DecodeConfig(size))
        loop.run(self.limit + 1)
        return loop.decoder.results(np.arange(batch))[0][:, : self.limit]


@torch.inference_mode()
def compiled(variant: str, way: str, *where: Any) -> float:  # noqa: ANN401 -- arguments of Bench
    """Decode two tokens in a process of its own, so that the kernel is in Triton's cache; return
    the seconds."""
    started, bench = time.monotonic(), Bench(*where, 2)
    bench.loop(variant, 1, WAYS[way]).run(3)
    return time.monotonic() - started


def compile_all(jobs: list[tuple[str, str]], where: tuple[Any, ...],
                seconds: float) -> dict[tuple[str, str], Future[float]]:
    """Compile variants for ways side by side, and wait for them for a time."""
    pool = ProcessPoolExecutor(len(jobs), multiprocessing.get_context("spawn"))
    made = {job: pool.submit(compiled, *job, *where) for job in jobs}
    wait(made.values(), seconds)
    pool.shutdown(wait=False, cancel_futures=True)
    return made


def correct(bench: Bench, variant: str, batch: int) -> Values:
    """Return the shares of equal tokens: blocks and single steps, alone and in a batch."""
    greedy, found = bench.tokens(variant, batch, 1), {"variant": variant}
    pairs = {f"blocks of {size} = single steps": (greedy, bench.tokens(variant, batch, size))
             for size in (4, 10)}
    pairs |= {f"blocks of {size}, alone = in a batch": (greedy[:1], bench.tokens(variant, 1, size))
              for size in (1, 10)}
    return {**found, **{f"{name} (must be 1)": float((one == other).mean())
                        for name, (one, other) in pairs.items()}}


def timed(bench: Bench, variant: str, batch: int, way: str) -> Values:
    """Time whole decodes; the first one may compile."""
    timer, times = Timer(bench.device), list[float]()
    while len(times) < 2 or (len(times) < 4 and times[0] < 0.5):
        loop = bench.loop(variant, batch, WAYS[way])
        times.append(timer.once(lambda loop=loop: loop.run(bench.limit + 1)))
    seconds, steps = statistics.median(times[1:]), len(loop.recorder)
    return {"variant": variant, "batch": batch, "way": way, "ms": 1e3 * seconds,
            "first_ms": 1e3 * times[0], "images_per_second": batch / seconds,
            "most_iterations": steps, "us_per_iteration": 1e6 * seconds / steps}


@torch.inference_mode()
def main(
    data: Faces,
    output: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("kernel.json"),
    device: Annotated[str, typer.Option(help="cuda, or cpu for Triton's interpreter.")] = "cuda",
    checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    batches: Annotated[str, typer.Option(help="Batch sizes, separated by "
                                         "commas.")] = "1,16,132,264,1024,2048",
    limit: Annotated[int, typer.Option(help="Tokens to decode; 0 for all.")] = 0,
    seconds: Annotated[float, typer.Option(help="Time for everything.")] = 120,
) -> None:
    """Check the kernel, then time it, until the time is over."""
    deadline, report = time.monotonic() + seconds, {"machine": machine(device)}
    sizes, variants = [int(batch) for batch in batches.split(",")], [*VARIANTS]
    where = checkpoint, data, device

    def each(name: str, work: Callable[..., object], items: Iterable[tuple[Any, ...]]) -> None:
        """Write work(*item) of every item, or its error, until the time is over."""
        rows = report.setdefault(name, [])
        for item in items:
            try:
                rows.append(work(*item) if time.monotonic() < deadline else f"no time: {item}")
            except Exception:  # the other rows are still worth their time
                rows.append({"item": str(item), "error": traceback.format_exc()[-900:]})
            print(f"{deadline - time.monotonic():5.0f} s left", name, str(rows[-1])[-600:],
                  flush=True)
            write_result(output, json.dumps(report, indent=1).encode())

    if device == "cpu":
        variants = ["f32"]
    else:
        made = compile_all([(name, way) for name in VARIANTS for way in WAYS
                            if name in MAIN or way == "epsilon 2"], where, seconds / 2)
        each("compiled", lambda *job: {"job": job, "seconds": made[job].result(0)}, made)

    bench, main_ones = Bench(*where, limit), [name for name in variants if name in MAIN]
    each("correct", correct, [(bench, name, min(16, max(sizes))) for name in main_ones])
    each("times", timed, [(bench, name, batch, way) for batch in sizes for way in WAYS
                          for name in main_ones])
    each("variants", timed, [(bench, name, batch, "epsilon 2") for batch in (sizes[0], sizes[-1])
                             for name in variants if name not in MAIN])


if __name__ == "__main__":
    run(main)
