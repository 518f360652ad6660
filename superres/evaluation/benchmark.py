"""Measure the speed of decoding on this machine, in one process.

The ways to decode take turns, so that other load slows all of them alike.
Every time is the median of several rounds after a warm-up, in seconds. Speed-ups are relative to
greedy decoding by the same engine in the same run.
"""

from __future__ import annotations

import functools
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from superres.config import DecodeConfig, require
from superres.decoding.algorithm import Algorithm
from superres.decoding.cost import run_from
from superres.decoding.loop import Loop
from superres.decoding.plain.sampling import GREEDY
from superres.evaluation.timing import Timer, peak_bytes
from superres.evaluation.workload import Report, Run, Workload, block_sizes
from superres.system.machine import machine
from superres.system.output import figure_png, markdown_table, number_text, write_results
from superres.system.progress import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@torch.inference_mode()
def step_costs(
    work: Workload, batches: Sequence[int], widths: Sequence[int], timer: Timer,
    end: float = math.inf,
) -> list[Report]:
    """Measure T(B, W), the duration of a step, of its parts and of an iteration, in the middle of a
    target.

    After the time `end` of `time.monotonic`, no further step is measured.
    """
    rows = list[Report]()
    for batch in batches:
        say(f"timing steps, batch {batch}")
        for width in widths:
            if not rows or time.monotonic() < end:
                rows.append({"batch": batch, "width": width,
                             **_step_cost(work, timer, batch, width)})
    return rows


def _step_cost(work: Workload, timer: Timer, batch: int, width: int) -> dict[str, float]:
    """Return the seconds of a step, of its parts, of the heads' proposals and of an iteration.

    A kernel that does whole iterations has no parts that could be timed by themselves.
    """
    source, algorithm = work.source(batch), Algorithm(work.pipeline.scoring, DecodeConfig())
    loop = Loop(algorithm.start(source, width))
    iteration = timer.median(lambda: run_from(loop, work.position)) / run_from(loop, work.position)
    if work.pipeline.engine.startswith("triton"):
        return {"iteration": iteration}

    # a step and its parts, and the heads' proposals after it
    model = work.pipeline.scoring.on_torch()
    session: Any = model.session(torch.from_numpy(source).to(model.device), width)
    tokens = torch.full((batch, width), 128, device=model.device)
    position = torch.full((batch,), work.position, device=model.device)
    step = timer.median(lambda: session.step(tokens, position))
    parts = session.part_seconds(tokens, position, timer.repeats)
    heads = 0.0
    if width > 1:
        output, index = session.step(tokens, position), torch.zeros_like(position)
        offsets = torch.arange(1, width, device=model.device)
        heads = timer.median(lambda: session.propose(output, index, tokens[:, 0], offsets, GREEDY))
    return {"step": step, **{f"part_{name}": value for name, value in parts.items()},
            "heads": heads, "iteration": iteration,
            "acceptance": max(iteration - step - heads, 0.0)}


def decode_costs(work: Workload, batch: int, repeats: int, end: float = math.inf) -> list[Report]:
    """Decode a batch in all ways in turn, `repeats` times after a warm-up; return one row per way.

    After the time `end` of `time.monotonic`, no further decode begins. Greedy decoding and the
    largest block size of each criterion come first, and greedy decoding in any case; a way that was
    not decoded in has no row.
    """
    runs: dict[str, list[Run]] = {way: [] for way in work.ways}
    # Of the ways with a block size, the last of each criterion has the largest one.
    largest = {name.split(",")[0]: name for name in work.ways if ", k = " in name}
    first = {"greedy", *largest.values()}
    for number in range(repeats + 1):
        if number and time.monotonic() > end:
            break
        say(f"decoding, batch {batch}: {f'round {number} of {repeats}' if number else 'warm-up'}")
        for way in sorted(work.ways, key=lambda name: name not in first):
            if time.monotonic() < end or not runs["greedy"]:
                runs[way].append(work.decode(work.ways[way], batch))

    # a row per way, relative to greedy decoding
    runs = {way: own for way, own in runs.items() if own}
    medians = {way: statistics.median(seconds for seconds, *_ in own[1:] or own)
               for way, own in runs.items()}
    rows = []
    for way, own in runs.items():
        _, tokens, calls, traces = own[-1]
        iterations = sum(trace.iterations for trace in traces)
        rows.append({
            "way": way, "batch": batch, f"seconds_per_{work.unit}": medians[way] / batch,
            f"{work.unit}s_per_second": batch / medians[way],
            "tokens_per_second": tokens / medians[way],
            "speed_up": medians["greedy"] / medians[way],
            "mean_accepted_block_size": tokens / iterations if iterations else None,
            "model_calls": calls,
        })
    return rows


def run_benchmark(
    work: Workload, batches: Sequence[int], repeats: int, timer: Timer | None = None,
    seconds: float = math.inf,
) -> Report:
    """Return a report, serialisable as JSON, with medians over `repeats` rounds; `timer` times
    single steps.

    A line is printed between two rounds, and nothing during a round: progress would disturb the
    times. Within about `seconds`, as much is measured as fits: the batches have equal shares of two
    thirds of the time.

    `memory` is the peak memory of decoding in bytes, beyond the loaded model, by batch size. `make
    native-bench` measures the limits of a CPU.

    Raises:
        ConfigError: a number is not positive.
    """
    require(bool(batches) and all(batch >= 1 for batch in batches), "batches must be positive, not "
            f"{batches}")
    require(repeats >= 1, f"--repeats must be at least 1, not {repeats}")
    end, device = time.monotonic() + seconds, work.pipeline.device
    timer = timer or (Timer(device) if device == "cpu" else Timer(device, 5, 1))
    say("measuring the peak memory")
    # First, and in rising order: a larger peak would hide the peaks of decoding.
    memory = {str(batch): peak_bytes(device, functools.partial(work.decode, DecodeConfig(), batch))
              for batch in sorted(batches)}
    report: Report = {**run_record(work), "repeats": repeats, "memory": memory}
    ways, last = list[Report](), end - seconds / 3 if seconds < math.inf else end
    for number, batch in enumerate(batches):
        now = time.monotonic()
        ways += decode_costs(work, batch, repeats, now + (last - now) / (len(batches) - number))
    widths = block_sizes(work.pipeline.model_config.prediction_heads)
    return {**report, "steps": step_costs(work, batches, widths, timer, end), "ways": ways}


def run_record(work: Workload) -> Report:
    """Return the entries of a report that identify checkpoint, its number of weights, engine and
    machine.

    `code` is the engine with the variant of its compiled code, as in `Engine.code`.
    """
    pipeline = work.pipeline
    return {"task": pipeline.task, "unit": work.unit, "machine": machine(pipeline.device),
            "checkpoint": f"{pipeline.name}@{pipeline.revision}",
            "weights": sum(array.size for array in pipeline.network.arrays.values()),
            "engine": pipeline.engine, "code": pipeline.scoring.code,
            "device": pipeline.device}


def run_text(report: Report) -> str:
    """Return the entries of `run_record` in a report as one line."""
    properties = ", ".join(f"{name} {value}" for name, value in report["machine"].items()
                           if value is not None)
    return f"{report['checkpoint']}, engine {report['engine']} on {report['device']}; {properties}."


STEP_COLUMNS = {
    "iteration": "iteration", "step": "step", "heads": "heads", "acceptance": "acceptance and loop",
    "part_input": "step: input", "part_attention": "attention", "part_feed-forward": "feed-forward",
    "part_scores": "scores",
}
"""Entries of a row of step costs, shown in milliseconds."""


def benchmark_markdown(report: Report) -> str:
    """Return the report of `run_benchmark` as Markdown."""
    unit = report["unit"]
    columns = {f"seconds_per_{unit}": (f"s/{unit}", 4), f"{unit}s_per_second": (f"{unit}s/s", 2),
               "tokens_per_second": ("tokens/s", 0), "speed_up": ("speed-up", 2),
               "mean_accepted_block_size": ("mean accepted block size", 2),
               "model_calls": ("model calls", 0)}
    decoded = [[str(row["batch"]), row["way"],
                *(number_text(row[name], digits) for name, (_, digits) in columns.items())]
               for row in report["ways"]]
    names = [name for name in STEP_COLUMNS if name in report["steps"][0]]
    steps = [[str(row["batch"]), str(row["width"]),
              *(number_text(1e3 * row[name], 3) for name in names)]
             for row in report["steps"]]
    memory = ", ".join(f"{batch}: {size / 2**20:.0f} MiB"
                       for batch, size in report["memory"].items())
    return "\n\n".join([
        f"# Benchmark: {report['task']}",
        f"{run_text(report)} Medians of {report['repeats']} rounds.",
        "## Decoding",
        markdown_table(["batch", "way", *(name for name, _ in columns.values())], decoded),
        "## Duration of a step, in milliseconds",
        markdown_table(["batch", "W", *(STEP_COLUMNS[name] for name in names)], steps),
        f"Peak memory beyond the loaded model by batch: {memory}.",
    ]) + "\n"


def _panels(report: Report, rows: str) -> tuple[Figure, list[tuple[Axes, int, list[Report]]]]:
    """Return a figure with a panel per batch size; each panel with its batch size and these rows of
    the report."""
    from matplotlib.figure import Figure

    batches = sorted({row["batch"] for row in report[rows]})
    figure = Figure(figsize=(4.2 * len(batches), 4), layout="constrained")
    panels = figure.subplots(1, len(batches), squeeze=False)[0]
    return figure, [(axes, batch, [row for row in report[rows] if row["batch"] == batch])
                    for axes, batch in zip(panels, batches, strict=True)]


def speed_plot(report: Report) -> bytes:
    """Return a PNG of speed-up over greedy by mean accepted block size, per criterion, as in the
    paper's Figure 4."""
    figure, panels = _panels(report, "ways")
    for axes, batch, everything in panels:
        rows = [row for row in everything if row["mean_accepted_block_size"]]
        for criterion in dict.fromkeys(row["way"].split(",")[0] for row in rows
                                       if "," in row["way"]):
            own = [row for row in rows if row["way"].startswith(f"{criterion},")]
            sizes = [row["mean_accepted_block_size"] for row in own]
            speeds = [row["speed_up"] for row in own]
            axes.plot(sizes, speeds, marker="o", linestyle="", label=criterion)
            for row, x, y in zip(own, sizes, speeds, strict=True):
                label = row["way"].split(", ")[1].removeprefix("k = ")
                axes.annotate(label, (x, y), (3, 3), textcoords="offset points", fontsize=8)
        largest = max(row["mean_accepted_block_size"] for row in rows)
        axes.plot([1, largest], [1, largest], color="grey", linestyle=":",
                  label="speed-up = block size")
        axes.set(title=f"batch {batch}", xlabel="mean accepted block size",
                 ylabel="speed-up over greedy")
        axes.legend(fontsize=8)
    return figure_png(figure)


def step_plot(report: Report) -> bytes:
    """Return a PNG of the step time T(B, W) and the iteration time by width, with a panel per batch
    size."""
    figure, panels = _panels(report, "steps")
    for axes, batch, rows in panels:
        for name in ("iteration", "step") if "step" in rows[0] else ("iteration",):
            axes.plot([row["width"] for row in rows], [1e3 * row[name] for row in rows], marker="o",
                      label=name)
        axes.set(title=f"batch {batch}", xlabel="width W", ylabel="ms", ylim=(0, None))
        axes.legend(fontsize=8)
    return figure_png(figure)


def write_benchmark(report: Report, folder: Path) -> list[Path]:
    """Write benchmark.json, benchmark.md, speed.png and step.png to `folder`, and return their
    paths."""
    return write_results(folder,
                         {"benchmark.json": report, "benchmark.md": benchmark_markdown(report),
                          "speed.png": speed_plot(report), "step.png": step_plot(report)})
