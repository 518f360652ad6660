"""Measure the speed of upscaling by every engine of this machine, and by other implementations, in one process.

    python scripts/benchmark/engines.py --data dev.npz --output benchmark
    python scripts/benchmark/engines.py --data dev.npz --output benchmark --no-peers --device cuda --engines triton

The output has tables of all engines (pictures per second by batch; speed-ups by block size, as in the paper's Figure
4), the report and plots of `superres benchmark images` for each of them, and a table of peers: Hugging Face
transformers' GPT-2 of the same size (greedy with its cache, and assisted), and our network without a cache, like the
implementation of the paper. Peers need the `peers` extra. Size M is a network with random weights, whose blocks always
accept at least five of six tokens.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Busy,
    Checkpoint,
    Columns,
    Device,
    Document,
    Faces,
    Output,
    Page,
    Row,
    Table,
    Values,
    columns_table,
    run,
    values,
)
from superres.cli.benchmark import parse_batches
from superres.config import DecodeConfig, ModelConfig
from superres.evaluation.benchmark import benchmark_markdown, run_benchmark, speed_plot, step_plot
from superres.evaluation.beside import gpt2
from superres.evaluation.workload import image_workload
from superres.nn.model import EncoderDecoder
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer, require_idle
from superres.tasks.face_data import read_faces

M = {"width": 256, "decoder_layers": 6, "filter_size": 1024, "attention_heads": 8}
"""Settings of size M that differ from the measured checkpoint, which is size S."""
HEADS, FORCED = 6, 5
"""Heads of a network with random weights, and its minimum block: about what a trained network with 6 heads accepts."""
NEW_TOKENS = 512
UNCACHED_CALLS = 5


def random_upscaler(config: ModelConfig, engine: str) -> Upscaler:
    """Return an upscaler of size M with random weights and `HEADS` heads, otherwise like `config`."""
    torch.manual_seed(0)
    model = EncoderDecoder(dataclasses.replace(config, prediction_heads=HEADS, **M))
    return Upscaler(model, "random M", engine=engine, device="cpu")


@torch.inference_mode()
def generation_cost(config: ModelConfig, timer: Timer, assisted: bool) -> Values:
    """Time transformers' greedy generation with a cache: a whole target, or `NEW_TOKENS` tokens if assisted.

    The assistant is a GPT-2 with one layer. Both networks have random weights, so the time shows the overhead of
    assisted generation, but not the acceptance rate of a trained assistant.
    """
    model = gpt2(config).to(timer.device)
    extra = {"assistant_model": gpt2(config, 1).to(timer.device)} if assisted else {}
    count = NEW_TOKENS if assisted else config.target_length - 1
    start = torch.zeros(1, 1, dtype=torch.int64, device=timer.device)

    def generate(new: int) -> object:
        return model.generate(
            start, attention_mask=torch.ones_like(start), max_new_tokens=new, do_sample=False, use_cache=True, **extra)

    generate(32)
    name = "transformers generate, assisted by one layer" if assisted else "transformers generate, greedy with cache"
    return {"way": name, "tokens": count, "seconds": timer.once(lambda: generate(count))}


def uncached_cost(upscaler: Upscaler, source: np.ndarray, iterations: int) -> Values:
    """Time decoding that computes the whole prefix in each of `iterations` calls, like the implementation of the paper.

    `source` is uint8 [1, source, source, 3]; `UNCACHED_CALLS` of the calls are timed.
    """
    scoring, timer = upscaler.scoring, Timer(upscaler.device, UNCACHED_CALLS, 1)
    tokens = upscaler.source_tokens(source)
    target = torch.zeros(1, scoring.length, dtype=torch.int64, device=upscaler.device)
    middle = torch.tensor([scoring.length // 2], device=upscaler.device)
    seconds = timer.median(lambda: scoring.uncached_scores(tokens, target, middle))
    return {"way": f"no cache, {iterations} model calls ({UNCACHED_CALLS} timed)", "tokens": scoring.length,
            "seconds": seconds * iterations}


def compare_with_peers(
    upscalers: dict[str, Upscaler], source: np.ndarray, blockwise: DecodeConfig, repeats: int = 3,
) -> list[Values]:
    """Time our engines, greedy and blockwise (`repeats` times), and the peers (once), on one image.

    `upscalers` has the same network by engine; `source` is uint8 [1, source, source, 3].

    Returns:
        One row per variant with `tokens_per_second` and `over_generate`, the ratio to transformers' greedy generation.
    """
    first = next(iter(upscalers.values()))
    rows = [generation_cost(first.model_config, Timer(first.device), assisted) for assisted in (False, True)]
    for engine, upscaler in upscalers.items():
        for name, options in (("greedy", DecodeConfig(1)), ("blockwise", blockwise)):
            runs = [upscaler(source, options) for _ in range(repeats + 1)][1:]
            trace = runs[0].traces[0]
            rows.append({"way": f"{engine}: {name}", "tokens": trace.tokens, "iterations": trace.iterations,
                         "seconds": statistics.median(run.seconds for run in runs)})
    rows.append(uncached_cost(first, source, rows[-1]["iterations"] + 1))
    for row in rows:
        row["tokens_per_second"] = row["tokens"] / row["seconds"]
        row["over_generate"] = row["tokens_per_second"] / rows[0]["tokens_per_second"]
    return rows


def views(document: Document) -> dict[str, str]:
    """Return the pictures per second and the speed-ups of all engines, and a table of peers per size of the network."""
    reports = values(document, "engine ")
    beside, speed_ups = list[Values](), list[Values]()
    for engine, report in reports.items():
        # An engine of its own is measured by whole decodes, and not by what is beside another.
        beside += [row for row in report["beside"] if row["engine"] == engine or row["engine"] not in {
            *reports, *(one["engine"] for one in beside if one["batch"] == row["batch"])}]
        speed_ups += [{"engine": engine, **row} for row in report["ways"]]
    rates: Columns = {f"{way}, pictures per second": (way, 2) for way in (beside[0] if beside else {})
                      if way not in ("batch", "engine")}
    peers: Columns = {"variant": ("way", 0), "tokens per second": ("tokens_per_second", 0), "s": ("seconds", 3),
                      "tokens": ("tokens", 0), "times transformers' greedy": ("over_generate", 2)}
    return {
        "pictures-per-second": columns_table(sorted(beside, key=lambda row: int(row["batch"])), {
            "batch": ("batch", 0), "engine": ("engine", 0), **rates}),
        "speed-ups": columns_table(speed_ups, {
            "engine": ("engine", 0), "batch": ("batch", 0), "variant": ("way", 0),
            "accepted tokens per iteration": ("mean_accepted_block_size", 2), "speed-up in time": ("speed_up", 2)}),
        **{engine: benchmark_markdown(report) for engine, report in reports.items()},
        **{size: columns_table(found["rows"], peers) for size, found in values(document, "size ").items()}}


def plots(document: Document) -> dict[str, bytes]:
    """Return the plots of every engine, by file name."""
    return {f"{name}-{engine}.png": plot(report) for engine, report in values(document, "engine ").items()
            for name, plot in (("speed", speed_plot), ("step", step_plot))}


def main(
    data: Faces, output: Output, checkpoint: Checkpoint = "celeba-8to32",
    batches: Annotated[str, typer.Option(metavar="B,B,...", help="Batch sizes.")] = "1,8,64",
    repeats: Annotated[int, typer.Option(min=1, help="Rounds; the report has medians over rounds.")] = 3,
    engines: Annotated[str, typer.Option(help="Engines, separated by commas; auto is the fastest.")] = "plain,auto",
    images: Annotated[int, typer.Option(min=1, help="Images to decode; larger batches repeat them.")] = 256,
    seconds: Annotated[float, typer.Option(min=0, help="Time for an engine; leave out what does not fit.")] = math.inf,
    device: Device = "auto",
    peers: Annotated[bool, typer.Option(help="Measure other implementations, too.")] = True, busy: Busy = False,
    page: Page = None,
) -> None:
    """Write the reports of all engines and the table of peers."""
    sizes = parse_batches(batches)
    if not busy:
        require_idle()
    loaded = [Upscaler.load(checkpoint, device, engine) for engine in engines.split(",")]
    first, upscalers = loaded[0], {upscaler.engine: upscaler for upscaler in loaded}
    table = Table("engines", output, {"checkpoint": f"{first.name}@{first.revision}", "repeats": repeats}, first.device)
    sources = read_faces(data, first.face_task, "valid", images).lr
    table.measure(Row(f"engine {engine}", lambda upscaler=upscaler: run_benchmark(
        image_workload(upscaler, sources), sizes, repeats, seconds=seconds), {"batches": batches, "images": images})
        for engine, upscaler in upscalers.items())
    if peers:
        random = {engine: random_upscaler(first.model_config, engine) for engine in upscalers}
        table.measure(Row(f"size {size}", lambda given=given: {"rows": compare_with_peers(*given, repeats)})
                      for size, given in {
                          "S": (upscalers, sources[:1], DecodeConfig(accept="distance", epsilon=2)),
                          "M": (random, sources[:1], DecodeConfig(HEADS, min_block=FORCED))}.items())
    table.finish(page)


if __name__ == "__main__":
    run(main)
