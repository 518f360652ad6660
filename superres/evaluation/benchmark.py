"""Measure the speed of decoding on this machine, and compare it with the limits of the machine, in one process.

The variants of decoding alternate, batch by batch, so that other load slows all variants alike. Every time is the
median of several rounds after a warm-up. Speed-ups are relative to greedy decoding by the same engine in the same run.
"""

from __future__ import annotations

import dataclasses
import functools
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
from superres.system.machine import Timer, bandwidth, machine, matrix_rate, peak_bytes
from superres.system.output import figure_png, markdown_table, number_text, write_results
from superres.tasks import translation

if TYPE_CHECKING:
    from superres.pipeline.base import Pipeline
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

Variant = DecodeConfig | BeamConfig
Report = dict[str, Any]

BLOCK_SIZES = (1, 2, 4, 6, 8, 10, 16, 24)
"""Block sizes to measure, up to the number of prediction heads."""

BATCHES = (1, 8, 64)

FLOAT_BYTES = 4
SIZES = {"-bf16": 2, "-int8": 1}
"""Bytes of a weight by the ending of the engine's name."""


@dataclass(frozen=True)
class Run:
    """Result of decoding a batch: wall-clock seconds, generated tokens, model calls and, except for beams, traces."""

    seconds: float
    tokens: int
    model_calls: int
    traces: list[RowTrace]


@dataclass(frozen=True)
class Workload:
    """Inputs and variants of decoding for a benchmark.

    Attributes:
        pipeline: the loaded checkpoint.
        unit: name of one row of a batch, "image" or "sentence".
        variants: decoding settings by name, including "greedy".
        decode: function that decodes a batch of a given size with one variant.
        source: function that returns the source tokens [B, S] of a batch of a given size.
        position: decoder position at which steps are timed, in the middle of a target.
    """

    pipeline: Pipeline
    unit: str
    variants: dict[str, Variant]
    decode: Callable[[Variant, int], Run]
    source: Callable[[int], Tensor]
    position: int


def block_sizes(heads: int) -> tuple[int, ...]:
    """Return the block sizes to measure for a network with `heads` prediction heads."""
    return tuple(k for k in BLOCK_SIZES if k <= heads)


def _by_size(name: str, options: DecodeConfig, sizes: Sequence[int]) -> dict[str, DecodeConfig]:
    """Return the variants of `options` at each block size, and at adaptive block sizes."""
    fixed = {f"{name}, k = {k}": dataclasses.replace(options, block_size=k) for k in sizes}
    return {**fixed, f"{name}, adaptive": dataclasses.replace(options, adaptive=True)} if sizes else {}


def image_workload(upscaler: Upscaler, sources: np.ndarray) -> Workload:
    """Return the workload of upscaling: greedy, exact blocks, and blocks within epsilon 2.

    Args:
        upscaler: the loaded checkpoint.
        sources: uint8 [N, source, source, 3], repeated for batches of more than N images.
    """
    sizes = block_sizes(upscaler.model_config.prediction_heads)[1:]
    variants: dict[str, Variant] = {
        "greedy": DecodeConfig(1), **_by_size("exact", DecodeConfig(), sizes),
        **_by_size("epsilon 2", DecodeConfig(accept="distance", epsilon=2), sizes)}

    def chosen(batch: int) -> np.ndarray:
        return sources[np.arange(batch) % len(sources)]

    def decode(variant: Variant, batch: int) -> Run:
        if isinstance(variant, BeamConfig):
            raise TypeError("beam search does not support images")
        made = upscaler(chosen(batch), variant)
        tokens, calls = sum(trace.tokens for trace in made.traces), max(trace.model_calls for trace in made.traces)
        return Run(made.seconds, tokens, calls, made.traces)

    return Workload(upscaler, "image", variants, decode,
                    lambda batch: upscaler.source_tokens(chosen(batch)),
                    upscaler.model_config.target_length // 2)


def text_workload(translator: Translator, lines: Sequence[str]) -> Workload:
    """Return the workload of translation: greedy, exact blocks, top-2 blocks and beam search.

    Args:
        translator: the loaded checkpoint.
        lines: sentences. A batch takes the sentences of medium length, and repeats sentences if there are too few.

    Raises:
        InvalidInputError: every line is empty or too long for the network.
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
    """Minimum work of a step.

    Attributes:
        weights: number of weights that a step reads, without prediction heads and embeddings.
        cache: number of elements of keys and values that a step reads per row.
        size: bytes of a weight or element. Numbers of half the size are read and multiplied in half the time.
    """

    weights: int
    cache: int
    size: int = FLOAT_BYTES

    @classmethod
    def of(cls, pipeline: Pipeline, position: int) -> StepWork:
        """Count the work of the network of `pipeline` at a decoder position."""
        model, config = pipeline.model, pipeline.model_config
        count = sum(weight.numel() for weight in model.decoder.parameters()) + model.project.weight.numel()
        if model.neighbourhood is not None:
            count += sum(weight.numel() for weight in model.neighbourhood.parameters())
        size = next((size for name, size in SIZES.items() if pipeline.engine.endswith(name)), FLOAT_BYTES)
        return cls(count, config.decoder_layers * 2 * config.width * window(config, position), size)

    def floor(self, batch: int, width: int, read: float, rate: float) -> float:
        """Return the minimum duration of a step without heads in seconds: the maximum of reading and computing.

        Args:
            batch: number of rows B.
            width: tokens per row W.
            read: memory bandwidth in bytes per second.
            rate: arithmetic speed in operations per second, in float32.
        """
        reading = self.size * (self.weights + batch * self.cache) / read
        computing = 2 * batch * width * (self.weights + self.cache) / (rate * FLOAT_BYTES / self.size)
        return max(reading, computing)


def window(config: ModelConfig, position: int) -> int:
    """Return the number of visible keys: all up to `position`, or from the previous attention block (section 6.2)."""
    if config.attention == "causal":
        return position + 1
    return min(position + 1, config.attention_block_length + position % config.attention_block_length + 1)


def step_costs(work: Workload, batches: Sequence[int], widths: Sequence[int], timer: Timer) -> list[Report]:
    """Measure T(B, W), the duration of a step, of its parts and of an iteration, in the middle of a target.

    Returns:
        One row per B and W, serialisable as JSON; durations are in seconds.
    """
    minimum = StepWork.of(work.pipeline, work.position)
    read, rate = bandwidth(minimum.size * minimum.weights, timer), matrix_rate(timer)
    rows = []
    with torch.inference_mode():
        for batch in batches:
            for width in widths:
                costs = _step_cost(work, timer, batch, width)
                floor = minimum.floor(batch, width, read, rate)
                rows.append({"batch": batch, "width": width, **costs, "floor": floor,
                             "step_over_floor": costs["step"] / floor})
    return rows


def _step_cost(work: Workload, timer: Timer, batch: int, width: int) -> dict[str, float]:
    """Return the seconds of a step, of its parts, of the heads' proposals and of an iteration."""
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
        heads = timer.median(lambda: session.propose(output, index, tokens[:, 0], offsets, loop.decoding.sampler))
    return {"step": step, **{f"part_{name}": value for name, value in parts.items()}, "heads": heads,
            "iteration": iteration, "acceptance": max(iteration - step - heads, 0.0)}


def position_costs(work: Workload, timer: Timer) -> list[dict[str, float]]:
    """Measure a step of one row near the start, in the middle and near the end of a target."""
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
    """Decode a batch with alternating variants, `repeats` times after a warm-up; return one row per variant."""
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
    """Return the peak memory of decoding a batch in bytes, beyond the loaded model, by batch size in rising order."""
    return {str(batch): peak_bytes(work.pipeline.device, functools.partial(work.decode, DecodeConfig(), batch))
            for batch in sorted(batches)}


def run_benchmark(
    work: Workload, batches: Sequence[int] = BATCHES, repeats: int = 3, timer: Timer | None = None,
) -> Report:
    """Measure decoding on this machine.

    Args:
        work: inputs and variants of decoding.
        batches: batch sizes.
        repeats: number of rounds; the report has medians over rounds.
        timer: times single steps; None uses the default number of repeats.

    Returns:
        A report, serialisable as JSON: `run_record`, `memory` of `memory_costs`, `steps` of `step_costs`, `positions`
        of `position_costs`, and `ways` of `decode_costs`.

    Raises:
        ConfigError: a number is not positive.
    """
    require(bool(batches) and all(batch >= 1 for batch in batches), f"batches must be positive, not {batches}")
    require(repeats >= 1, f"--repeats must be at least 1, not {repeats}")
    timer = timer or Timer(work.pipeline.device)
    memory = memory_costs(work, batches)  # first: a larger peak would hide the peaks of decoding
    widths = block_sizes(work.pipeline.model_config.prediction_heads)
    return {
        **run_record(work), "repeats": repeats, "memory": memory,
        "steps": step_costs(work, batches, widths, timer), "positions": position_costs(work, timer),
        "ways": [row for batch in batches for row in decode_costs(work, batch, repeats)],
    }


def run_record(work: Workload) -> Report:
    """Return the entries of a report that identify checkpoint, engine and machine."""
    pipeline = work.pipeline
    return {"task": pipeline.task, "unit": work.unit, "machine": machine(pipeline.device),
            "checkpoint": f"{pipeline.name}@{pipeline.revision}", "engine": pipeline.engine,
            "device": str(pipeline.device)}


def run_text(report: Report) -> str:
    """Return the entries of `run_record` in a report as one line."""
    properties = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if value is not None)
    return f"{report['checkpoint']}, engine {report['engine']} on {report['device']}; {properties}."


STEP_COLUMNS = {
    "step": "step", "heads": "heads", "acceptance": "acceptance and loop", "part_input": "step: input",
    "part_attention": "attention", "part_feed-forward": "feed-forward", "part_scores": "scores", "floor": "floor",
}
"""Entries of a row of step costs, shown in milliseconds."""


def benchmark_markdown(report: Report) -> str:
    """Return the report of `run_benchmark` as Markdown."""
    unit = report["unit"]
    columns = {f"seconds_per_{unit}": (f"s/{unit}", 4), f"{unit}s_per_second": (f"{unit}s/s", 2),
               "tokens_per_second": ("tokens/s", 0), "speed_up": ("speed-up", 2),
               "mean_accepted_block_size": ("mean accepted block size", 2), "model_calls": ("model calls", 0)}
    decoded = [[str(row["batch"]), row["way"], *(number_text(row[name], digits) for name, (_, digits) in
                columns.items())] for row in report["ways"]]
    steps = [[str(row["batch"]), str(row["width"]), *(number_text(1e3 * row[name], 3) for name in STEP_COLUMNS),
              number_text(row["step_over_floor"], 2)] for row in report["steps"]]
    memory = ", ".join(f"{batch}: {size / 2**20:.0f} MiB" for batch, size in report["memory"].items())
    growth = ", ".join(f"{1e3 * row['step']:.3f} ms at {row['position']}" for row in report["positions"])
    return "\n\n".join([
        f"# Benchmark: {report['task']}",
        f"{run_text(report)} Medians of {report['repeats']} rounds.",
        "## Decoding",
        markdown_table(["batch", "variant", *(name for name, _ in columns.values())], decoded),
        "## Duration of a step, in milliseconds",
        markdown_table(["batch", "W", *STEP_COLUMNS.values(), "step / floor"], steps),
        "The floor is the larger of two times: to read a step's weights and cache at the measured memory bandwidth, "
        "and to compute a step at the measured speed of a large float32 matrix product, twice that for bfloat16 and "
        "four times that for int8.",
        f"A step of one row with all prediction heads by position: {growth}.",
        f"Peak memory beyond the loaded model by batch: {memory}.",
    ]) + "\n"


def speed_plot(report: Report) -> bytes:
    """Return a PNG of speed-up over greedy by mean accepted block size, per criterion, as in the paper's Figure 4."""
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
        axes.plot([1, most], [1, most], color="grey", linestyle=":", label="speed-up = block size")
        axes.set(title=f"batch {batch}", xlabel="mean accepted block size", ylabel="speed-up over greedy")
        axes.legend(fontsize=8)
    return figure_png(figure)


def step_plot(report: Report) -> bytes:
    """Return a PNG of the step time T(B, W), the iteration time and the floor by width, with a panel per batch size."""
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
    return write_results(folder, {"benchmark.json": report, "benchmark.md": benchmark_markdown(report),
                                  "speed.png": speed_plot(report), "step.png": step_plot(report)})
