"""Measure the speed of decoding on this machine, and its distance from the machine's limits, in one process.

Variants of decoding take turns, batch by batch, so that a busy machine slows all alike. Every time is the median of
several rounds after a warm-up. Speed-ups are relative to greedy decoding by the same engine in the same run.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from superres.config import BeamConfig, DecodeConfig, ModelConfig, require
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.trace import RowTrace
from superres.errors import InvalidInputError
from superres.system.machine import PeakMemory, Timer, bandwidth, machine, matrix_rate
from superres.system.output import figure_png, markdown_table, number_text, prepare_folder, write_result
from superres.tasks import faces, translation

if TYPE_CHECKING:
    from superres.pipeline.base import Pipeline
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

Variant = DecodeConfig | BeamConfig
Report = dict[str, Any]

BLOCK_SIZES = (1, 2, 4, 6, 8, 10)
"""Block sizes measured, as far as there are prediction heads."""

BATCHES = (1, 8, 64)

FLOAT_BYTES = 4


@dataclass(frozen=True)
class Run:
    """One decoding of a batch: wall clock, generated tokens, the batch's model calls, and traces (none of a beam)."""

    seconds: float
    tokens: int
    model_calls: int
    traces: list[RowTrace]


@dataclass(frozen=True)
class Workload:
    """What a benchmark decodes.

    Attributes:
        pipeline: the checkpoint.
        unit: what one row of a batch is, "image" or "sentence".
        variants: decoding settings by name, "greedy" among them.
        decode: decodes a batch of the given size with one variant.
        source: source tokens [B, S] of a batch of the given size, for timing single steps.
        position: decoder position at which steps are timed: the middle of a target.
    """

    pipeline: Pipeline
    unit: str
    variants: dict[str, Variant]
    decode: Callable[[Variant, int], Run]
    source: Callable[[int], Tensor]
    position: int


def block_sizes(heads: int) -> tuple[int, ...]:
    """Return the block sizes that a network of `heads` prediction heads is measured at."""
    return tuple(k for k in BLOCK_SIZES if k <= heads)


def _by_size(name: str, options: DecodeConfig, sizes: Sequence[int]) -> dict[str, DecodeConfig]:
    """Return variants of decoding at each block size, and at adaptive block sizes."""
    fixed = {f"{name}, k = {k}": dataclasses.replace(options, block_size=k) for k in sizes}
    return {**fixed, f"{name}, adaptive": dataclasses.replace(options, adaptive=True)} if sizes else {}


def image_workload(upscaler: Upscaler, sources: np.ndarray) -> Workload:
    """Return the workload of upscaling: greedy, exact blocks, and blocks within epsilon 2.

    Args:
        upscaler: the checkpoint.
        sources: uint8 [N, 8, 8, 3], taken again from the start where a batch needs more.
    """
    sizes = block_sizes(upscaler.model_config.prediction_heads)[1:]
    variants: dict[str, Variant] = {
        "greedy": DecodeConfig(1), **_by_size("exact", DecodeConfig(), sizes),
        **_by_size("epsilon 2", DecodeConfig(accept="distance", epsilon=2), sizes)}

    def chosen(batch: int) -> np.ndarray:
        return sources[np.arange(batch) % len(sources)]

    def decode(variant: Variant, batch: int) -> Run:
        if isinstance(variant, BeamConfig):
            raise TypeError("images are not searched by beams")
        made = upscaler(chosen(batch), variant)
        tokens, calls = sum(trace.tokens for trace in made.traces), max(trace.model_calls for trace in made.traces)
        return Run(made.seconds, tokens, calls, made.traces)

    return Workload(upscaler, "image", variants, decode,
                    lambda batch: torch.from_numpy(faces.encode(chosen(batch))).to(upscaler.device),
                    upscaler.model_config.target_length // 2)


def text_workload(translator: Translator, lines: Sequence[str]) -> Workload:
    """Return the workload of translation: greedy, exact blocks, top-2 blocks and beam search.

    Args:
        translator: the checkpoint.
        lines: sentences; a batch takes those of middle length, and lines again where it needs more.

    Raises:
        InvalidInputError: no line is fit to be translated.
    """
    sizes = block_sizes(translator.model_config.prediction_heads)[1:]
    variants: dict[str, Variant] = {
        "greedy": DecodeConfig(1), **_by_size("exact", DecodeConfig(), sizes),
        **_by_size("top-2", DecodeConfig(accept="top-k", top_k=2), sizes), "beam 4": BeamConfig()}
    most = translator.model_config.source_length
    fitting = zip(lines, translator.codec.split(lines), strict=True)
    ordered = sorted((line for line, row in fitting if line.strip() and len(row) <= most), key=len)
    if not ordered:
        raise InvalidInputError(f"there is no line of 1 to {most} tokens to translate; give other text")

    def chosen(batch: int) -> list[str]:
        first = max(0, (len(ordered) - batch) // 2)
        return [ordered[(first + number) % len(ordered)] for number in range(batch)]

    def decode(variant: Variant, batch: int) -> Run:
        made = translator(chosen(batch), variant, batch_size=batch)
        traces = [trace for traces in made.traces for trace in traces]
        return Run(made.seconds, sum(made.tokens), made.model_calls, traces)

    def source(batch: int) -> Tensor:
        return torch.from_numpy(translation.pad(translator.codec.split(chosen(batch)))).to(translator.device)

    middle = decode(DecodeConfig(1), 1).tokens // 2
    return Workload(translator, "sentence", variants, decode, source, middle)


@dataclass(frozen=True)
class StepWork:
    """What a step has to do at the least.

    Attributes:
        weights: weights read, those of the prediction heads and the embeddings left out.
        cache: numbers among the keys and values that a row of the batch reads.
    """

    weights: int
    cache: int

    @classmethod
    def of(cls, pipeline: Pipeline, position: int) -> StepWork:
        """Count for the network of `pipeline` at a decoder position."""
        model, config = pipeline.model, pipeline.model_config
        count = sum(weight.numel() for weight in model.decoder.parameters()) + model.project.weight.numel()
        if model.neighbourhood is not None:
            count += sum(weight.numel() for weight in model.neighbourhood.parameters())
        return cls(count, config.decoder_layers * 2 * config.width * window(config, position))

    def floor(self, batch: int, width: int, read: float, rate: float) -> float:
        """Return the least seconds of a step without the heads: reading or computing, whichever takes longer.

        Args:
            batch: rows B.
            width: tokens W.
            read: bytes a second.
            rate: operations a second.
        """
        reading = FLOAT_BYTES * (self.weights + batch * self.cache) / read
        computing = 2 * batch * width * (self.weights + self.cache) / rate
        return max(reading, computing)


def window(config: ModelConfig, position: int) -> int:
    """Return how many keys a query at `position` sees: all before it, or its block and the one before (section 6.2)."""
    if config.attention == "causal":
        return position + 1
    return min(position + 1, config.attention_block_length + position % config.attention_block_length + 1)


def step_costs(work: Workload, batches: Sequence[int], widths: Sequence[int], timer: Timer) -> list[Report]:
    """Measure T(B, W), the time of a step, of its parts and of the rest of an iteration, in the middle of a target.

    Returns:
        a row for each B and W, ready for JSON; seconds throughout.
    """
    least = StepWork.of(work.pipeline, work.position)
    read, rate = bandwidth(FLOAT_BYTES * least.weights, timer), matrix_rate(timer)
    rows = []
    with torch.inference_mode():
        for batch in batches:
            for width in widths:
                costs = _step_cost(work, timer, batch, width)
                floor = least.floor(batch, width, read, rate)
                rows.append({"batch": batch, "width": width, **costs, "floor": floor,
                             "step_over_floor": costs["step"] / floor})
    return rows


def _step_cost(work: Workload, timer: Timer, batch: int, width: int) -> dict[str, float]:
    """Return the seconds of a step, its parts, the heads' proposals and a whole iteration."""
    scoring, device = work.pipeline.scoring, work.pipeline.device
    source = work.source(batch)
    tokens = torch.full((batch, width), 128, device=device)
    position = torch.full((batch,), work.position, device=device)
    session = scoring.session(source, width)
    loop = BlockwiseLoop(scoring, session, DecodeConfig(), torch.arange(batch, device=device), width)
    iteration = timer.median(lambda: loop.burst(work.position)) / loop.burst(work.position)
    step = timer.median(lambda: session.step(tokens, position))
    parts = session.part_seconds(tokens, position, timer.repeats)
    heads = 0.0
    if width > 1:
        output, offsets = session.step(tokens, position), torch.arange(1, width, device=device)
        index = torch.zeros_like(position)
        heads = timer.median(lambda: session.propose(output, index, tokens[:, 0], offsets, loop.decoding.choice))
    return {"step": step, **{f"part_{name}": value for name, value in parts.items()}, "heads": heads,
            "iteration": iteration, "acceptance": max(iteration - step - heads, 0.0)}


def position_costs(work: Workload, timer: Timer) -> list[dict[str, float]]:
    """Measure a step of one row at the beginning, in the middle and at the end of a target."""
    device, config = work.pipeline.device, work.pipeline.model_config
    width = config.prediction_heads
    rows = []
    with torch.inference_mode():
        session = work.pipeline.scoring.session(work.source(1), width)
        tokens = torch.full((1, width), 128, device=device)
        for share in (0.1, 0.5, 0.9):
            position = torch.full((1,), int(share * config.target_length), device=device)
            seconds = timer.median(lambda position=position: session.step(tokens, position))  # type: ignore[misc]
            rows.append({"position": int(position), "step": seconds})
    return rows


def decode_costs(work: Workload, batch: int, repeats: int) -> list[Report]:
    """Decode a batch with all variants in turn, `repeats` times after a warm-up; return one row per variant."""
    seconds: dict[str, list[float]] = {variant: [] for variant in work.variants}
    last: dict[str, Run] = {}
    for number in range(repeats + 1):
        for variant, options in work.variants.items():
            last[variant] = work.decode(options, batch)
            if number:
                seconds[variant].append(last[variant].seconds)
    medians = {variant: statistics.median(values) for variant, values in seconds.items()}
    rows = []
    for variant, run in last.items():
        iterations = sum(trace.iterations for trace in run.traces)
        rows.append({
            "way": variant, "batch": batch, f"seconds_per_{work.unit}": medians[variant] / batch,
            f"{work.unit}s_per_second": batch / medians[variant], "tokens_per_second": run.tokens / medians[variant],
            "speed_up": medians["greedy"] / medians[variant],
            "mean_accepted_block_size": run.tokens / iterations if iterations else None,
            "model_calls": run.model_calls,
        })
    return rows


def memory_costs(work: Workload, batches: Sequence[int]) -> dict[str, float]:
    """Return how many bytes more are held at the peak of decoding a batch, by the batch's size, in rising order."""
    found = {}
    for batch in sorted(batches):
        with PeakMemory(work.pipeline.device) as peak:
            work.decode(DecodeConfig(), batch)
        found[str(batch)] = peak.bytes
    return found


def run_benchmark(
    work: Workload, batches: Sequence[int] = BATCHES, repeats: int = 3, timer: Timer | None = None,
) -> Report:
    """Measure decoding on this machine.

    Args:
        work: what is decoded.
        batches: rows decoded together.
        repeats: rounds, of which medians are taken.
        timer: times single steps; one of the usual number of repeats if None.

    Returns:
        a report, ready for JSON: `machine`, `memory` as from `memory_costs`, `steps` as from `step_costs`, `positions`
        as from `position_costs`, `ways` as from `decode_costs`.

    Raises:
        ConfigError: a number is not positive.
    """
    require(bool(batches) and all(batch >= 1 for batch in batches), f"batches must be positive, not {batches}")
    require(repeats >= 1, f"--repeats must be at least 1, not {repeats}")
    pipeline = work.pipeline
    timer = timer or Timer(pipeline.device)
    memory = memory_costs(work, batches)
    widths = block_sizes(pipeline.model_config.prediction_heads)
    return {
        "task": pipeline.task, "unit": work.unit, "machine": machine(pipeline.device),
        "checkpoint": f"{pipeline.name}@{pipeline.revision}", "engine": pipeline.engine,
        "device": str(pipeline.device), "repeats": repeats, "memory": memory,
        "steps": step_costs(work, batches, widths, timer), "positions": position_costs(work, timer),
        "ways": [row for batch in batches for row in decode_costs(work, batch, repeats)],
    }


STEP_COLUMNS = {
    "step": "step", "heads": "heads", "acceptance": "acceptance and loop", "part_input": "of the step: input",
    "part_attention": "attention", "part_feed-forward": "feed-forward", "part_scores": "scores", "floor": "floor",
}
"""Entries of a row of step costs, shown in milliseconds."""


def benchmark_markdown(report: Report) -> str:
    """Return the report of `run_benchmark` as Markdown."""
    unit = report["unit"]
    columns = {f"seconds_per_{unit}": (f"s/{unit}", 4), f"{unit}s_per_second": (f"{unit}s/s", 2),
               "tokens_per_second": ("tokens/s", 0), "speed_up": ("speed-up", 2),
               "mean_accepted_block_size": ("mean accepted block size", 2), "model_calls": ("model calls", 0)}
    told = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if value is not None)
    decoded = [[str(row["batch"]), row["way"], *(number_text(row[name], digits) for name, (_, digits) in
                columns.items())] for row in report["ways"]]
    steps = [[str(row["batch"]), str(row["width"]), *(number_text(1e3 * row[name], 3) for name in STEP_COLUMNS),
              number_text(row["step_over_floor"], 2)] for row in report["steps"]]
    memory = ", ".join(f"{batch}: {size / 2**20:.0f} MiB" for batch, size in report["memory"].items())
    growth = ", ".join(f"{1e3 * row['step']:.3f} ms at {row['position']}" for row in report["positions"])
    return "\n\n".join([
        f"# Benchmark: {report['task']}",
        f"{report['checkpoint']}, engine {report['engine']} on {report['device']}; {told}. Medians of "
        f"{report['repeats']} rounds.",
        "## Decoding",
        markdown_table(["batch", "way", *(name for name, _ in columns.values())], decoded),
        "## A step, in milliseconds",
        markdown_table(["batch", "W", *STEP_COLUMNS.values(), "step / floor"], steps),
        "The floor is the time to read a step's weights and cache at the rate at which this machine was seen to read "
        "as many bytes, or to do its operations at the rate of a large product, whichever is longer.",
        f"A step of one row and all prediction heads by position: {growth}.",
        f"Memory beyond the loaded model by batch: {memory}.",
    ]) + "\n"


def speed_plot(report: Report) -> bytes:
    """Return a PNG: speed-up over greedy by mean accepted block size, as the paper's Figure 4, a line a criterion."""
    from matplotlib.figure import Figure

    batches = sorted({row["batch"] for row in report["ways"]})
    figure = Figure(figsize=(4.2 * len(batches), 4), layout="constrained")
    for axes, batch in zip(figure.subplots(1, len(batches), squeeze=False)[0], batches, strict=True):
        rows = [row for row in report["ways"] if row["batch"] == batch and row["mean_accepted_block_size"]]
        for criterion in dict.fromkeys(row["way"].split(",")[0] for row in rows if "," in row["way"]):
            own = [row for row in rows if row["way"].startswith(f"{criterion},")]
            sizes, speeds = ([row[key] for row in own] for key in ("mean_accepted_block_size", "speed_up"))
            axes.plot(sizes, speeds, marker="o", linestyle="", label=criterion)
            for row, *place in zip(own, sizes, speeds, strict=True):
                label = row["way"].split(", ")[1].removeprefix("k = ")
                axes.annotate(label, place, (3, 3), textcoords="offset points", fontsize=8)
        most = max(row["mean_accepted_block_size"] for row in rows)
        axes.plot([1, most], [1, most], color="grey", linestyle=":", label="all of it")
        axes.set(title=f"batch {batch}", xlabel="mean accepted block size", ylabel="speed-up over greedy")
        axes.legend(fontsize=8)
    return figure_png(figure)


def step_plot(report: Report) -> bytes:
    """Return a PNG: time of a step, T(B, W), and of a whole iteration by width, with the floor, a panel a batch."""
    from matplotlib.figure import Figure

    batches = sorted({row["batch"] for row in report["steps"]})
    figure = Figure(figsize=(4.2 * len(batches), 4), layout="constrained")
    for axes, batch in zip(figure.subplots(1, len(batches), squeeze=False)[0], batches, strict=True):
        rows = [row for row in report["steps"] if row["batch"] == batch]
        for name, style in (("iteration", "-"), ("step", "-"), ("floor", ":")):
            axes.plot([row["width"] for row in rows], [1e3 * row[name] for row in rows], style, marker="o", label=name)
        axes.set(title=f"batch {batch}", xlabel="width W", ylabel="ms", ylim=(0, None))
        axes.legend(fontsize=8)
    return figure_png(figure)


def write_benchmark(report: Report, folder: Path) -> list[Path]:
    """Write benchmark.json, benchmark.md, speed.png and step.png to `folder`, and return their paths.

    Raises:
        OutputError: a file cannot be written.
    """
    files = {"benchmark.json": (json.dumps(report, indent=1) + "\n").encode(),
             "benchmark.md": benchmark_markdown(report).encode(), "speed.png": speed_plot(report),
             "step.png": step_plot(report)}
    prepare_folder(folder)
    for name, data in files.items():
        write_result(folder / name, data)
    return [folder / name for name in files]
