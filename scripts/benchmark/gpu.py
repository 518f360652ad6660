"""Measure decoding on a GPU and compare it with targets: CUDA graphs, blocks, large batches, reads by the host.

Further measurements are of adaptive block sizes, sampling in captured iterations, and blocks of up to 24 tokens.

    python scripts/benchmark/gpu.py --data dev.npz --output benchmark-gpu
    python scripts/benchmark/gpu.py --data dev.npz --output benchmark-gpu --compiled

Writes gpu.json and gpu.md. Each engine decodes the same images; speed-ups are relative to greedy decoding by the same
engine. With --device cpu the script runs the CPU engines, as a test of the script itself.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch.profiler import ProfilerActivity, profile

from superres.config import DecodeConfig
from superres.decoding.batching import feed_of
from superres.decoding.cost import measured_costs
from superres.decoding.decode import iterations
from superres.decoding.trace import mean_accepted_block_size
from superres.errors import SuperresError
from superres.nn.engines import step_model
from superres.nn.engines.cuda_graph import GraphModel
from superres.nn.model import EncoderDecoder
from superres.pipeline.auto import face_task
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer, machine, peak_bytes, require_idle
from superres.system.output import markdown_table, number_text, prepare_folder, write_results
from superres.system.training_lock import training_paused
from superres.tasks.face_data import read_faces

READS = ("Memcpy DtoH", "aten::item", "aten::_local_scalar_dense", "aten::nonzero", "cudaStreamSynchronize")
BLOCK_SIZES = (2, 4, 6, 8, 10)
WIDE_HEADS = 24
"""Prediction heads of a network with random weights, whose iterations are timed at every width."""
WIDE_WIDTHS = (1, 2, 4, 8, 10, 16, 24)
ITERATIONS = 64
"""Number of iterations under the profiler, and of iterations before it."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Image:
    """An item of a feed."""

    source: np.ndarray
    key: int


def variants_of(heads: int) -> dict[str, DecodeConfig]:
    """Return the variants of decoding by name, greedy first."""
    sizes = [k for k in BLOCK_SIZES if k <= heads]
    return {"greedy": DecodeConfig(1), **{f"exact, k = {k}": DecodeConfig(k) for k in sizes},
            "exact, adaptive": DecodeConfig(adaptive=True),
            "epsilon 2, adaptive": DecodeConfig(accept="distance", epsilon=2, adaptive=True),
            **{f"epsilon 2, k = {k}": DecodeConfig(k, accept="distance", epsilon=2) for k in sizes}}


def engines(checkpoint: str, device: str, compiled: bool) -> dict[str, Upscaler]:
    """Return the engines to compare, by name."""
    if device == "cpu":
        return {name: Upscaler.load(checkpoint, device, name) for name in ("plain", "native")}
    loaded = {name: Upscaler.load(checkpoint, device, name) for name in ("plain", "graph", "graph-bf16")}
    variants: dict[str, dict[str, bool]] = {"graph, three operations of attention": {"fused_attention": False}}
    if compiled:
        variants["graph, compiled"] = {"compiled": True}
        variants["graph-bf16, compiled"] = {"compiled": True, "half": True}
    for name, options in variants.items():
        loaded[name] = Upscaler.load(checkpoint, device, "plain")
        loaded[name].scoring = GraphModel(loaded[name].model, **options)
    return loaded


def single(upscaler: Upscaler, sources: np.ndarray, greedy: np.ndarray | None, repeats: int) -> list[Row]:
    """Decode images one by one with every variant."""
    rows: list[Row] = []
    timer = Timer(upscaler.device, repeats, 1)
    for name, options in variants_of(upscaler.model_config.prediction_heads).items():
        seconds = timer.median(lambda options=options: [upscaler(one[None], options) for one in sources])
        made = [upscaler(one[None], options) for one in sources]
        images = np.concatenate([one.images for one in made])
        accepted = mean_accepted_block_size([trace for one in made for trace in one.traces])
        first = rows[0] if rows else None
        row = {"way": name, "seconds": seconds / len(sources), "accepted": accepted,
               "speed_up": first["seconds"] * len(sources) / seconds if first else 1.0}
        row["of_accepted"] = row["speed_up"] / accepted
        row["equal_to_plain_greedy"] = None if greedy is None else float((images == greedy).mean())
        rows.append(row)
    return rows


def loop_profile(upscaler: Upscaler, source: np.ndarray, options: DecodeConfig) -> Row:
    """Return the kernels and the device time of an iteration, and the number of reads by the host."""
    timer, tokens = Timer(upscaler.device), upscaler.source_tokens(source[None])
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if upscaler.device.type == "cuda" else [])]
    with torch.inference_mode():
        loop = next(iterations(upscaler.scoring, tokens, options))
        loop.run(ITERATIONS)
        with profile(activities=activities) as profiler:
            timer.once(lambda: loop.run(ITERATIONS))
        seconds = timer.once(lambda: loop.run(ITERATIONS))
    events = profiler.key_averages()
    kernels = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    return {
        "iteration": seconds / ITERATIONS, "kernels": sum(event.count for event in kernels) / ITERATIONS,
        "kernel_seconds": sum(event.self_device_time_total for event in kernels) * 1e-6 / ITERATIONS,
        "reads": sum(event.count for event in events if event.key.startswith(READS)),
        "largest": [[event.key[:60], event.count / ITERATIONS, event.self_device_time_total / ITERATIONS]
                    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:12]],
    }


def wide_costs(upscaler: Upscaler, source: np.ndarray) -> dict[str, list[float]]:
    """Return the seconds per iteration at W = 1, 2 and so on with `WIDE_HEADS` heads, without and with sampling."""
    torch.manual_seed(0)
    config = dataclasses.replace(upscaler.model_config, prediction_heads=WIDE_HEADS)
    scoring = step_model(EncoderDecoder(config).to(upscaler.device).eval(), None, upscaler.engine)
    tokens = upscaler.source_tokens(source[None])
    return {name: measured_costs(scoring, tokens, options, WIDE_HEADS)[0]
            for name, options in (("greedy", DecodeConfig()), ("sampled", DecodeConfig(temperature=0.9)))}


def throughput(upscaler: Upscaler, sources: np.ndarray, options: DecodeConfig, rows: int) -> Row:
    """Decode a stream of images, `rows` at a time, after a short stream that warms up."""
    def stream(images: np.ndarray) -> float:
        started, feed = time.perf_counter(), feed_of(map(Image, images, range(len(images))))
        done = sum(len(finished) for finished in upscaler.refilled(feed, options, rows).run())
        if done != len(images):
            raise RuntimeError(f"{done} of {len(images)} images were decoded")
        return time.perf_counter() - started

    stream(sources[: 2 * rows])
    timings: list[float] = []
    peak = peak_bytes(upscaler.device, lambda: timings.append(stream(sources)))
    tenth = stream(sources[: max(len(sources) // 10, 1)])
    return {"rows": rows, "images": len(sources), "images_per_second": len(sources) / timings[0], "bytes": peak,
            "seconds": timings[0], "seconds_of_a_tenth": tenth}


def measure(upscaler: Upscaler, sources: np.ndarray, few: int, rows: list[int], many: int, repeats: int,
            greedy: np.ndarray | None) -> Row:
    """Return all measurements of one engine."""
    heads = upscaler.model_config.prediction_heads
    blocks = DecodeConfig(heads, accept="distance", epsilon=2)
    stream = sources[np.arange(many) % len(sources)]
    return {
        "single": single(upscaler, sources[:few], greedy, repeats),
        "loop": {name: loop_profile(upscaler, sources[0], options)
                 for name, options in (("greedy", DecodeConfig(1)), (f"epsilon 2, k = {heads}", blocks),
                                       (f"sampled, k = {heads}", DecodeConfig(heads, temperature=0.9)))},
        "throughput": [throughput(upscaler, stream, blocks, count) for count in rows],
    }


def targets(report: Row) -> list[Row]:
    """Return the measurement of the best engine for each target."""
    def best(figure: Callable[[Row], float], largest: bool) -> tuple[float, str]:
        found = [(figure(figures), name) for name, figures in report["engines"].items() if name != "plain"]
        return (max if largest else min)(found)

    last = list(variants_of(report["heads"]))[-1]
    rows = [
        ("batch 1: speed-up over own greedy / mean accepted block size, best variant", ">= 0.9",
         best(lambda f: max(row["of_accepted"] for row in f["single"][1:]), True), lambda v: v >= 0.9),
        (f"batch 1: seconds per image, {last}", "<= 0.060",
         best(lambda f: f["single"][-1]["seconds"], False), lambda v: v <= 0.06),
        ("reads by the host in the loop", "0", best(lambda f: sum(p["reads"] for p in f["loop"].values()), False),
         lambda v: v == 0),
        ("images/s of a stream, largest batch", ">= 1,000",
         best(lambda f: f["throughput"][-1]["images_per_second"], True), lambda v: v >= 1000),
        ("ratio of times for ten times as many images", "<= 10 (+ the start)",
         best(lambda f: f["throughput"][-1]["seconds"] / f["throughput"][-1]["seconds_of_a_tenth"], False),
         lambda v: v <= 10.5),
    ]
    return [{"target": name, "wanted": wanted, "measured": value, "engine": engine, "reached": bool(check(value))}
            for name, wanted, (value, engine), check in rows]


def markdown(report: Row) -> str:
    """Return the report as Markdown."""
    parts = ["# Decoding on a GPU", ", ".join(f"{k} {v}" for k, v in report["machine"].items() if v is not None)]
    cells = [[row["target"], row["wanted"], number_text(row["measured"], 3), row["engine"],
              "yes" if row["reached"] else "no"] for row in report["targets"]]
    parts += ["## Targets", markdown_table(["", "wanted", "measured", "by", "reached"], cells)]
    for name, figures in report["engines"].items():
        rows = [[row["way"], number_text(1e3 * row["seconds"], 2), number_text(row["accepted"], 2),
                 number_text(row["speed_up"], 2), number_text(row["of_accepted"], 2),
                 number_text(row["equal_to_plain_greedy"], 4)] for row in figures["single"]]
        loops = [[way, number_text(1e6 * part["iteration"], 1), number_text(1e6 * part["kernel_seconds"], 1),
                  number_text(part["kernels"], 0), str(part["reads"])] for way, part in figures["loop"].items()]
        streams = [[str(row["rows"]), str(row["images"]), number_text(row["images_per_second"], 1),
                    number_text(row["bytes"] / 2**20, 0)] for row in figures["throughput"]]
        parts += [f"## {name}", markdown_table(
            ["one image at a time", "ms", "mean accepted block size", "speed-up", "speed-up / accepted",
             "tokens equal to the plain engine's greedy"], rows)]
        parts += [markdown_table(["per iteration", "us", "us of kernels", "kernels", "reads by the host"], loops)]
        parts += [markdown_table(["rows", "images", "images/s", "MiB"], streams)]
    wide = [[engine, choice, *(number_text(1e6 * costs[width - 1], 1) for width in WIDE_WIDTHS),
             number_text(costs[-1] / costs[0], 2)]
            for engine, choices in report["wide"].items() for choice, costs in choices.items()]
    parts += [f"## Microseconds per iteration with {WIDE_HEADS} heads, by width W", markdown_table(
        ["", "", *map(str, WIDE_WIDTHS), f"{WIDE_HEADS} over 1"], wide)]
    return "\n\n".join(parts) + "\n"


@training_paused()
def main(
    data: Annotated[Path, typer.Option(help="Prepared .npz, folder of images or CelebA root.")],
    output: Annotated[Path, typer.Option(help="Folder for gpu.json and gpu.md.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name, folder or hub id.")] = "celeba-8to32",
    few: Annotated[int, typer.Option(min=1, help="Images decoded one by one.")] = 8,
    many: Annotated[int, typer.Option(min=1, help="Images of a stream; the data is repeated.")] = 2048,
    rows: Annotated[str, typer.Option(metavar="B,B,...", help="Batch sizes of a stream.")] = "64,256,512",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the report has medians over rounds.")] = 5,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    compiled: Annotated[bool, typer.Option("--compiled", help="Also measure torch.compile; takes minutes.")] = False,
    busy: Annotated[bool, typer.Option("--busy", help="Measure even if other processes use the processor.")] = False,
) -> None:
    """Write the report."""
    if not busy:
        require_idle()
    prepare_folder(output)
    sources = read_faces(data, face_task(checkpoint), "valid", 512).lr
    report: Row = {"engines": {}, "wide": {}}
    greedy: np.ndarray | None = None
    for name, upscaler in engines(checkpoint, device, compiled).items():
        print(name, file=sys.stderr)
        if greedy is None:
            greedy = np.concatenate([upscaler(one[None], DecodeConfig(1)).images for one in sources[:few]])
        report["machine"], report["heads"] = machine(upscaler.device), upscaler.model_config.prediction_heads
        counts = [int(part) for part in rows.split(",")]
        report["engines"][name] = measure(upscaler, sources, few, counts, many, repeats, greedy)
        if name == upscaler.engine:  # the engine by its default options
            report["wide"][name] = wide_costs(upscaler, sources[0])
    report["targets"] = targets(report)
    write_results(output, {"gpu.json": report, "gpu.md": markdown(report)})
    print(markdown(report))


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"gpu: {error}")
