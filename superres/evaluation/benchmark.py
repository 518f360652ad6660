"""Measure the speed of decoding on this machine, and compare it with the limits of the machine, in one process.

The variants of decoding alternate, batch by batch, so that other load slows all variants alike. Every time is the
median of several rounds after a warm-up, in seconds. Speed-ups are relative to greedy decoding by the same engine in
the same run.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from superres.config import BeamConfig, DecodeConfig, ModelConfig, require
from superres.decoding.cost import run_from
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.trace import RowTrace
from superres.errors import InvalidInputError
from superres.system.machine import Timer, machine, peak_bytes
from superres.system.output import figure_png, markdown_table, number_text, write_results
from superres.system.progress import say
from superres.tasks import translation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from superres.nn.model import EncoderDecoder
    from superres.pipeline.pipeline import Pipeline
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

Variant = DecodeConfig | BeamConfig
Report = dict[str, Any]
Run = tuple[float, int, int, list[RowTrace]]
"""Result of decoding a batch: wall-clock seconds, generated tokens, model calls and, except for beams, traces."""

BLOCK_SIZES = (1, 2, 4, 6, 8, 10, 16, 24)
"""Block sizes to measure, up to the number of prediction heads."""
FLOAT_BYTES = 4
SIZES = {"native": (2, 4), "native-int8": (1, 1), "triton-bf16": (2, 2)}
"""Bytes of a weight, and of a key's, a value's or an input's number, by engine; FLOAT_BYTES otherwise."""


@dataclass(frozen=True)
class Workload:
    """Inputs and variants of decoding (by name, including "greedy") for a benchmark.

    `unit` is the name of one row of a batch, "image" or "sentence". `decode` decodes a batch of a given size with one
    variant, and `source` returns the source tokens [B, S] of such a batch. Steps are timed at the decoder position
    `position`, in the middle of a target.
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


def _variants(heads: int, criteria: dict[str, DecodeConfig]) -> dict[str, Variant]:
    """Return greedy decoding, and each criterion at every block size above 1 and at adaptive block sizes."""
    found: dict[str, Variant] = {"greedy": DecodeConfig(1)}
    sizes = block_sizes(heads)[1:]
    for name, options in criteria.items() if sizes else ():
        found |= {f"{name}, k = {k}": dataclasses.replace(options, block_size=k) for k in sizes}
        found[f"{name}, adaptive"] = dataclasses.replace(options, adaptive=True)
    return found


def image_workload(upscaler: Upscaler, sources: np.ndarray) -> Workload:
    """Return the workload of upscaling: greedy, exact blocks, and blocks within epsilon 2.

    `sources`, uint8 [N, source, source, 3], are repeated for batches of more than N images.
    """
    variants = _variants(upscaler.model_config.prediction_heads, {
        "exact": DecodeConfig(), "epsilon 2": DecodeConfig(accept="distance", epsilon=2)})

    def chosen(batch: int) -> np.ndarray:
        return sources[np.arange(batch) % len(sources)]

    def decode(variant: Variant, batch: int) -> Run:
        if isinstance(variant, BeamConfig):
            raise TypeError("beam search does not support images")
        made = upscaler(chosen(batch), variant)
        tokens, calls = sum(trace.tokens for trace in made.traces), max(trace.model_calls for trace in made.traces)
        return made.seconds, tokens, calls, made.traces

    return Workload(upscaler, "image", variants, decode, lambda batch: upscaler.source_tokens(chosen(batch)),
                    upscaler.model_config.target_length // 2)


def text_workload(translator: Translator, lines: Sequence[str]) -> Workload:
    """Return the workload of translation: greedy, exact blocks, top-2 blocks and beam search.

    A batch takes the sentences of medium length from `lines`, and repeats sentences if there are too few.

    Raises:
        InvalidInputError: every line is empty or too long for the network.
    """
    variants = _variants(translator.model_config.prediction_heads, {
        "exact": DecodeConfig(), "top-2": DecodeConfig(accept="top-k", top_k=2)}) | {"beam 4": BeamConfig()}
    longest = translator.model_config.source_length
    fitting = zip(lines, translator.codec.split(lines), strict=True)
    ordered = sorted((line for line, row in fitting if line.strip() and len(row) <= longest), key=len)
    if not ordered:
        raise InvalidInputError(f"there is no line of 1 to {longest} tokens to translate; give other text")

    def chosen(batch: int) -> list[str]:
        first = max(0, (len(ordered) - batch) // 2)
        return [ordered[(first + number) % len(ordered)] for number in range(batch)]

    def decode(variant: Variant, batch: int) -> Run:
        made = translator(chosen(batch), variant, batch_size=batch)
        return made.seconds, sum(made.tokens), made.model_calls, [trace for traces in made.traces for trace in traces]

    def source(batch: int) -> Tensor:
        return torch.from_numpy(translation.pad(translator.codec.split(chosen(batch)))).to(translator.device)

    return Workload(translator, "sentence", variants, decode, source, decode(DecodeConfig(1), 1)[1] // 2)


def step_weights(model: EncoderDecoder) -> int:
    """Return the number of weights that a step reads, without prediction heads and embeddings."""
    parts = model.decoder if model.neighbourhood is None else nn.ModuleList([model.decoder, model.neighbourhood])
    return sum(weight.numel() for weight in parts.parameters()) + model.project.weight.numel()


class StepWork(NamedTuple):
    """The minimum work of a step, without prediction heads and embeddings."""

    weights: int  # that a step reads
    cache: int  # numbers of keys and values that it reads per row
    weight_bytes: int
    number_bytes: int  # of a key's, a value's or an input's number


def step_work(pipeline: Pipeline, position: int) -> StepWork:
    """Return the minimum work of a step at a decoder position."""
    config, count = pipeline.model_config, step_weights(pipeline.model)
    return StepWork(count, config.decoder_layers * 2 * config.width * window(config, position),
                    *SIZES.get(pipeline.engine, (FLOAT_BYTES, FLOAT_BYTES)))


def window(config: ModelConfig, position: int) -> int:
    """Return the number of visible keys: all up to `position`, or from the previous attention block (section 6.2)."""
    if config.attention == "causal":
        return position + 1
    return min(position + 1, config.attention_block_length + position % config.attention_block_length + 1)


@torch.inference_mode()
def step_costs(work: Workload, batches: Sequence[int], widths: Sequence[int], timer: Timer) -> list[Report]:
    """Measure T(B, W), the duration of a step, of its parts and of an iteration, in the middle of a target."""
    rows = []
    for batch in batches:
        say(f"timing steps, batch {batch}")
        for width in widths:
            rows.append({"batch": batch, "width": width, **_step_cost(work, timer, batch, width)})
    return rows


def _step_cost(work: Workload, timer: Timer, batch: int, width: int) -> dict[str, float]:
    """Return the seconds of a step, of its parts, of the heads' proposals and of an iteration."""
    scoring, device = work.pipeline.scoring, work.pipeline.device
    tokens = torch.full((batch, width), 128, device=device)
    position = torch.full((batch,), work.position, device=device)
    session = scoring.session(work.source(batch), width)
    loop = BlockwiseLoop(scoring, session, DecodeConfig(), torch.arange(batch, device=device), width)
    iteration = timer.median(lambda: run_from(loop, work.position)) / run_from(loop, work.position)
    step = timer.median(lambda: session.step(tokens, position))
    parts = session.part_seconds(tokens, position, timer.repeats)
    heads = 0.0
    if width > 1:
        output, offsets = session.step(tokens, position), torch.arange(1, width, device=device)
        index = torch.zeros_like(position)
        heads = timer.median(lambda: session.propose(output, index, tokens[:, 0], offsets, loop.plain.sampler))
    return {"step": step, **{f"part_{name}": value for name, value in parts.items()}, "heads": heads,
            "iteration": iteration, "acceptance": max(iteration - step - heads, 0.0)}


def decode_costs(work: Workload, batch: int, repeats: int) -> list[Report]:
    """Decode a batch with alternating variants, `repeats` times after a warm-up; return one row per variant."""
    runs: dict[str, list[Run]] = {variant: [] for variant in work.variants}
    for number in range(repeats + 1):
        say(f"decoding, batch {batch}: {f'round {number} of {repeats}' if number else 'warm-up'}")
        for variant, options in work.variants.items():
            runs[variant].append(work.decode(options, batch))
    medians = {variant: statistics.median(seconds for seconds, *_ in own[1:]) for variant, own in runs.items()}
    rows = []
    for variant, own in runs.items():
        _, tokens, calls, traces = own[-1]
        iterations = sum(trace.iterations for trace in traces)
        rows.append({
            "way": variant, "batch": batch, f"seconds_per_{work.unit}": medians[variant] / batch,
            f"{work.unit}s_per_second": batch / medians[variant], "tokens_per_second": tokens / medians[variant],
            "speed_up": medians["greedy"] / medians[variant],
            "mean_accepted_block_size": tokens / iterations if iterations else None, "model_calls": calls,
        })
    return rows


def run_benchmark(
    work: Workload, batches: Sequence[int], repeats: int, timer: Timer | None = None,
) -> Report:
    """Return a report, serialisable as JSON, with medians over `repeats` rounds; `timer` times single steps.

    A line is printed between two rounds, and nothing during a round: progress would disturb the times.

    `memory` is the peak memory of decoding in bytes, beyond the loaded model, by batch size.

    Raises:
        ConfigError: a number is not positive.
    """
    require(bool(batches) and all(batch >= 1 for batch in batches), f"batches must be positive, not {batches}")
    require(repeats >= 1, f"--repeats must be at least 1, not {repeats}")
    timer = timer or Timer(work.pipeline.device)
    say("measuring the peak memory")
    # First, and in rising order: a larger peak would hide the peaks of decoding.
    memory = {str(batch): peak_bytes(work.pipeline.device, functools.partial(work.decode, DecodeConfig(), batch))
              for batch in sorted(batches)}
    widths = block_sizes(work.pipeline.model_config.prediction_heads)
    return {**run_record(work), "repeats": repeats, "memory": memory,
            "steps": step_costs(work, batches, widths, timer),
            "ways": [row for batch in batches for row in decode_costs(work, batch, repeats)]}


def run_record(work: Workload) -> Report:
    """Return the entries of a report that identify checkpoint, its number of weights, engine and machine.

    `code` is the engine with the variant of its compiled code, as in `StepModel.code`.
    """
    pipeline = work.pipeline
    return {"task": pipeline.task, "unit": work.unit, "machine": machine(pipeline.device),
            "checkpoint": f"{pipeline.name}@{pipeline.revision}",
            "weights": sum(weight.numel() for weight in pipeline.model.parameters()), "engine": pipeline.engine,
            "code": pipeline.scoring.code, "device": str(pipeline.device)}


def run_text(report: Report) -> str:
    """Return the entries of `run_record` in a report as one line."""
    properties = ", ".join(f"{name} {value}" for name, value in report["machine"].items() if value is not None)
    return f"{report['checkpoint']}, engine {report['engine']} on {report['device']}; {properties}."


STEP_COLUMNS = {
    "step": "step", "heads": "heads", "acceptance": "acceptance and loop", "part_input": "step: input",
    "part_attention": "attention", "part_feed-forward": "feed-forward", "part_scores": "scores",
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
    steps = [[str(row["batch"]), str(row["width"]), *(number_text(1e3 * row[name], 3) for name in STEP_COLUMNS)]
             for row in report["steps"]]
    memory = ", ".join(f"{batch}: {size / 2**20:.0f} MiB" for batch, size in report["memory"].items())
    return "\n\n".join([
        f"# Benchmark: {report['task']}",
        f"{run_text(report)} Medians of {report['repeats']} rounds.",
        "## Decoding",
        markdown_table(["batch", "variant", *(name for name, _ in columns.values())], decoded),
        "## Duration of a step, in milliseconds",
        markdown_table(["batch", "W", *STEP_COLUMNS.values()], steps),
        f"Peak memory beyond the loaded model by batch: {memory}.",
    ]) + "\n"


def _panels(report: Report, rows: str) -> tuple[Figure, list[tuple[Axes, int, list[Report]]]]:
    """Return a figure with a panel per batch size; each panel with its batch size and these rows of the report."""
    from matplotlib.figure import Figure

    batches = sorted({row["batch"] for row in report[rows]})
    figure = Figure(figsize=(4.2 * len(batches), 4), layout="constrained")
    panels = figure.subplots(1, len(batches), squeeze=False)[0]
    return figure, [(axes, batch, [row for row in report[rows] if row["batch"] == batch])
                    for axes, batch in zip(panels, batches, strict=True)]


def speed_plot(report: Report) -> bytes:
    """Return a PNG of speed-up over greedy by mean accepted block size, per criterion, as in the paper's Figure 4."""
    figure, panels = _panels(report, "ways")
    for axes, batch, everything in panels:
        rows = [row for row in everything if row["mean_accepted_block_size"]]
        for criterion in dict.fromkeys(row["way"].split(",")[0] for row in rows if "," in row["way"]):
            own = [row for row in rows if row["way"].startswith(f"{criterion},")]
            sizes, speeds = ([row[key] for row in own] for key in ("mean_accepted_block_size", "speed_up"))
            axes.plot(sizes, speeds, marker="o", linestyle="", label=criterion)
            for row, x, y in zip(own, sizes, speeds, strict=True):
                label = row["way"].split(", ")[1].removeprefix("k = ")
                axes.annotate(label, (x, y), (3, 3), textcoords="offset points", fontsize=8)
        largest = max(row["mean_accepted_block_size"] for row in rows)
        axes.plot([1, largest], [1, largest], color="grey", linestyle=":", label="speed-up = block size")
        axes.set(title=f"batch {batch}", xlabel="mean accepted block size", ylabel="speed-up over greedy")
        axes.legend(fontsize=8)
    return figure_png(figure)


def step_plot(report: Report) -> bytes:
    """Return a PNG of the step time T(B, W) and the iteration time by width, with a panel per batch size."""
    figure, panels = _panels(report, "steps")
    for axes, batch, rows in panels:
        for name in ("iteration", "step"):
            axes.plot([row["width"] for row in rows], [1e3 * row[name] for row in rows], marker="o", label=name)
        axes.set(title=f"batch {batch}", xlabel="width W", ylabel="ms", ylim=(0, None))
        axes.legend(fontsize=8)
    return figure_png(figure)


def write_benchmark(report: Report, folder: Path) -> list[Path]:
    """Write benchmark.json, benchmark.md, speed.png and step.png to `folder`, and return their paths."""
    return write_results(folder, {"benchmark.json": report, "benchmark.md": benchmark_markdown(report),
                                  "speed.png": speed_plot(report), "step.png": step_plot(report)})
