"""Check the engine `triton` on a GPU and time variants of its kernel, as JSON that is written after
every row.

    python scripts/device/one_launch.py --data build/device/dev.npz --output one_launch.json
    TRITON_INTERPRET=1 python scripts/device/one_launch.py --device cpu --checkpoint SMALL --batches
    1,2 --limit 3

Correct: blocks equal one token per step at every size, alone and in a batch, and tokens are the
    network's choices in
float32 after the tokens before them. Then times of whole decodes, by variant, settings and batch.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import triton
import typer
from torch import Tensor

from superres.checkpoint import load_checkpoint
from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.sum_limits import LimitedModel, Limits
from superres.gpu import weights
from superres.gpu.launch import KERNELS
from superres.gpu.model import TritonModel
from superres.gpu.weights import Tuning
from superres.interfaces import ScoringModel
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.torch_model import StepModel
from superres.system.folders import bundled_folder
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask

Report = dict[str, Any]
NEAR = DecodeConfig(10, accept="distance", epsilon=2)
WAYS = {"greedy": DecodeConfig(1), "exact": DecodeConfig(10), "epsilon 2": NEAR,
        "epsilon 2, consistent": replace(NEAR, consistent=True),
        "sampled": DecodeConfig(10, temperature=0.9, nucleus=0.9),
        "speculative": DecodeConfig(10, temperature=0.9, sampling="speculative")}


@dataclass(frozen=True)
class Variant:
    """The type of matrices, keys and values, and a way to compile the kernel."""

    half: bool = True
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def name(self) -> str:
        """The type, and what differs from the default."""
        parts = [f"{one.name}={value}" for one in fields(Tuning)
                 if (value := getattr(self.tuning, one.name)) != one.default]
        return " ".join(["bf16" if self.half else "f32", *parts])


DEFAULT, FLOAT = Variant(tuning=weights.HALF), Variant(False, weights.FLOAT)
VARIANTS = [DEFAULT, FLOAT, *(Variant(tuning=tuning) for tuning in (
    Tuning(), replace(weights.HALF, short_stages=3), Tuning(rows=2),
    Tuning(rows=2, warps=4, part=64), Tuning(rows=2, warps=4, part=64, short_stages=2),
    Tuning(rows=4, warps=4, part=64))),
            Variant(False, Tuning(chunk=32, part=64, warps=16))]


class Bench:
    """What every part needs."""

    def __init__(self, report: Report, output: Path | None, model: EncoderDecoder, lr: np.ndarray,
                 limit: int, deadline: float, most: int) -> None:
        self.report, self.output, self.model, self.lr, self.device = (report, output, model, lr,
                                                                      model.signal.device)
        self.limit, self.deadline, self.most = limit or model.config.target_length, deadline, most
        self.models: dict[Variant | None, StepModel] = {None: StepModel(model)}
        self.memory: Memory = model.encode(self.sources(len(lr)))
        task = FaceTask.of(model.config)
        self.limits = Limits.of(task.limits(model.config.vocabulary, None), self.device)

    def sources(self, count: int) -> Tensor:
        """Return the tokens [count, S] of the first sources."""
        return torch.from_numpy(self.lr[:count].reshape(count, -1)).long().to(self.device)

    def write(self, name: str, value: object) -> None:
        """Add a row to the report, print it, and write the report."""
        self.report.setdefault(name, []).append(value)
        print(f"{self.deadline - time.monotonic():5.0f} s left", name, str(value)[-600:],
              flush=True)
        if self.output is not None:
            self.output.write_text(json.dumps(self.report, indent=1))

    def loop(self, variant: Variant | None, batch: int, options: DecodeConfig) -> BlockwiseLoop:
        """Return a loop over the first sources, repeated as needed; of the plain engine without a
        variant."""
        if variant not in self.models and variant is not None:
            self.models[variant] = TritonModel(self.model, half=variant.half, tuning=variant.tuning)
        model: ScoringModel = self.models[variant]
        rows = torch.arange(batch, device=self.device) % len(self.lr)
        source: Any = self.memory[rows]
        if options.consistent:
            bounds = self.limits.bounds(self.sources(len(self.lr))[rows])
            model, source = LimitedModel(model, self.limits), (source, bounds)
        size = min(options.block_size or 1, self.model.config.prediction_heads)
        loop = BlockwiseLoop(Algorithm(model, options), model.session(source, size), rows, size)
        loop.plain.state.limit.clamp_(max=self.limit)
        return loop

    def decode(self, variant: Variant | None, batch: int,
               options: DecodeConfig) -> tuple[Tensor, BlockwiseLoop]:
        """Decode; return the tokens and the loop."""
        loop = self.loop(variant, batch, options)
        loop.run(self.limit + 1)
        return loop.plain.state.tokens[:, : self.limit], loop

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the duration of a call, with its work on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def each(self, name: str, items: list[Any], work: Callable[[Any], object]) -> None:
        """Write work(item) of every item, or its error, until the time is over."""
        for item in items:
            if time.monotonic() > self.deadline:
                self.write(name, f"no time for {item}")
                return
            try:
                self.write(name, work(item))
            except Exception:  # the other rows are still worth their time
                self.write(name, {"item": str(item), "error": traceback.format_exc()[-900:]})
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()


def same(one: Tensor, other: Tensor) -> float:
    """Return the share of equal tokens."""
    return float((one == other).float().mean())


def correct(bench: Bench, variant: Variant) -> Report:
    """Compare the tokens of block sizes, batches, the plain engine and teacher forcing."""
    batch = min(16, len(bench.lr), bench.most)
    greedy = bench.decode(variant, batch, DecodeConfig(1))[0]
    found: Report = {"variant": variant.name}
    for size in (4, 10):
        blocks = bench.decode(variant, batch, DecodeConfig(size))[0]
        found[f"greedy = exact, k={size} (must be 1)"] = same(greedy, blocks)
    for size in (1, 10):
        alone = bench.decode(variant, 1, DecodeConfig(size))[0]
        found[f"alone = in a batch, k={size} (must be 1)"] = same(alone, greedy[:1])
    target = torch.zeros(batch, bench.model.config.target_length, dtype=torch.int64,
                         device=bench.device)
    target[:, : bench.limit] = greedy
    wanted = torch.cat([bench.model.scores(bench.model(bench.sources(batch)[row : row + 1],
                                                       target[row : row + 1]))
                        .argmax(-1) for row in range(batch)])[:, : bench.limit]
    found["tokens that the network chooses by teacher forcing"] = same(wanted, greedy)
    found["largest difference of the others"] = int((wanted - greedy).abs().max())
    if variant == DEFAULT and bench.device.type == "cuda":  # two rows a program
        many = bench.decode(variant, 264, DecodeConfig(1))[0]
        found["alone = in two rows a program (must be 1)"] = same(greedy, many[:batch])
    if variant == FLOAT:
        for name in ("greedy", "epsilon 2, consistent", "sampled", "speculative"):
            tokens = [bench.decode(one, batch, WAYS[name])[0] for one in (variant, None)]
            found[f"tokens of the engine plain, {name}"] = same(*tokens)
    if variant not in (DEFAULT, FLOAT):
        other = bench.decode(DEFAULT if variant.half else FLOAT, batch, DecodeConfig(1))[0]
        found["tokens of the default"] = same(other, greedy)
    return found


def timed(bench: Bench, variant: Variant, batch: int, way: str) -> Report:
    """Time whole decodes, without the encoder."""
    times = list[float]()
    while len(times) < 2 or (len(times) < 4 and times[0] < 0.5):
        loop = bench.loop(variant, batch, WAYS[way])
        times.append(bench.seconds(lambda loop=loop: loop.run(bench.limit + 1)))
    seconds, made = statistics.median(times[1:] or times), len(loop.recorder)
    traces = loop.recorder.rows([0])
    return {"variant": variant.name, "batch": batch, "way": way, "ms": 1e3 * seconds,
            "first_ms": 1e3 * times[0], "images_per_second": batch / seconds,
            "most_iterations": made, "us_per_iteration": 1e6 * seconds / made,
            "mean_accepted_block_size": traces[0].mean_accepted_block_size}


JOBS: list[tuple[Variant, tuple[str, ...]]] = [
    *((variant, ("exact", "epsilon 2, consistent")) for variant in VARIANTS),
    *((variant, (way,)) for variant in (DEFAULT, FLOAT) for way in ("sampled", "speculative"))]
"""What is compiled at the same time: a variant for ways of decoding; first, what all variants
need."""


def compile_all(arguments: list[str], seconds: float) -> Iterator[Report]:
    """Do JOBS in processes of their own, at the same time; their results are in Triton's cache."""
    started = time.monotonic()
    processes = [subprocess.Popen([sys.executable, __file__, "--compile", str(number), *arguments],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                 for number in range(len(JOBS))]
    for (variant, ways), process in zip(JOBS, processes, strict=True):
        try:
            printed = process.communicate(timeout=max(1, seconds - (time.monotonic() - started)))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            printed = "it took too long"
        yield {"variant": variant.name, "ways": ways, "code": process.returncode,
               "seconds": time.monotonic() - started, "printed": printed[-800:]}


@torch.inference_mode()
def main(
    output: Annotated[Path, typer.Option(help="JSON file to write.")] = Path("one_launch.json"),
    device: Annotated[str, typer.Option(help="cuda, or cpu for Triton's interpreter.")] = "cuda",
    data: Annotated[Path, typer.Option(help="Faces.")] = Path("build/device/dev.npz"),
    checkpoint: Annotated[str,
                          typer.Option(help="Bundled checkpoint, or folder.")] = "celeba-8to32",
    batches: Annotated[str,
                       typer.Option(help="Batch sizes, separated by "
                                    "commas.")] = "1,16,132,264,1024,2048",
    limit: Annotated[int, typer.Option(help="Tokens to decode; 0 for all.")] = 0,
    seconds: Annotated[float, typer.Option(help="Time for everything.")] = 120,
    compile_one: Annotated[int, typer.Option("--compile", help="Only compile the job of this "
                                             "number.")] = -1,
) -> None:
    """Check the kernel, then time it, until the time is over."""
    deadline, where = time.monotonic() + seconds, torch.device(device)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    report: Report = {"torch": torch.__version__, "triton": triton.__version__,
                      "device": torch.cuda.get_device_name() if where.type == "cuda" else "cpu"}
    variants, compiled = VARIANTS, list[Report]()
    if where.type == "cpu":
        variants = [FLOAT, Variant(False, Tuning(rows=2, chunk=16, part=32))]
    elif compile_one < 0:
        compiled = list(compile_all(["--checkpoint", checkpoint, "--data", str(data)], seconds / 2))
    folder = Path(checkpoint) if Path(checkpoint).is_dir() else bundled_folder() / checkpoint
    model = load_checkpoint(folder).to(where).float().eval()
    sizes = [int(batch) for batch in batches.split(",")]
    sources = read_faces(data, FaceTask.of(model.config), "valid").lr[:256]
    bench = Bench(report, output if compile_one < 0 else None, model, sources, limit, deadline,
                  max(sizes))
    if compile_one >= 0:
        bench.limit, started = 2, time.monotonic()
        variant, ways = JOBS[compile_one]
        for way in ways:
            bench.decode(variant, 1, WAYS[way])
        print("compiled in", time.monotonic() - started, "s; shared memory, bytes:",
              [kernel.code.shared for kernel in KERNELS.values()])
        return
    bench.each("compiled", compiled, lambda row: row)
    failed = {row["variant"] for row in compiled[: len(VARIANTS)] if row["code"] != 0}
    measure(bench, [one for one in variants if one.name not in failed], sizes)
    bench.write("done", seconds - (deadline - time.monotonic()))


def measure(bench: Bench, variants: list[Variant], sizes: list[int]) -> None:
    """Check the default variants, time all, and then every batch and settings by the fastest."""
    base, large = ([one for one in variants if one in (DEFAULT, FLOAT)],
                   sizes[-2] if len(sizes) > 1 else sizes[0])
    bench.each("correct", base, lambda one: correct(bench, one))
    bench.each("variants",
               [(one, batch, "epsilon 2") for batch in (sizes[0], large) for one in variants],
               lambda row: timed(bench, *row))

    def best(batch: int) -> Variant:
        """Return the variant that was fastest at a batch."""
        ms = {row["variant"]: row["ms"] for row in bench.report["variants"]
              if isinstance(row, dict) and "ms" in row and row["batch"] == batch}
        return min(variants, key=lambda one: ms.get(one.name, 1e9))

    fast = {batch: best(large if batch > 64 else sizes[0]) for batch in sizes}
    bench.each("times", [(fast[batch], batch, way) for batch in sizes for way in WAYS],
               lambda row: timed(bench, *row))
    bench.each("times",
               [(FLOAT, batch, way) for batch in (sizes[0], large) for way in reversed(WAYS)],
               lambda row: timed(bench, *row))
    bench.each("correct", [one for one in variants if one not in base],
               lambda one: correct(bench, one))


if __name__ == "__main__":
    typer.run(main)
