"""What a benchmark shows beside an engine: the engine `plain`, transformers' GPT-2, and the limits
of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from superres.config import DecodeConfig, ModelConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.cost import run_from
from superres.decoding.loop import BlockwiseLoop
from superres.errors import ConfigError
from superres.evaluation.workload import Report, StepWork, Workload
from superres.nn.torch_model import StepModel
from superres.system.machine import Timer, free_bytes
from superres.system.output import markdown_table, number_text
from superres.system.progress import say

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel

PLAIN_SECONDS = {"cpu": 1.0, "cuda": 0.5}
"""Time of the iterations of `plain` that are timed together; there is at least one."""
GENERATED = {"cpu": 24, "cuda": 96}
"""Tokens that transformers generates, the first ones of a target, where its cache is short and
fast."""
LAUNCHES = 100
COPIED = {"cpu": 1 << 26, "cuda": 1 << 30}
"""Bytes that are copied to time the memory: more than its caches hold."""


def main_ways(names: Sequence[str]) -> dict[str, str]:
    """Return the variants of a benchmark at their largest block size, by the name of the criterion:
    "greedy" first."""
    return {"greedy": "greedy"} | {name.split(",")[0]: name for name in names if ", k = " in name}


def gpt2(config: ModelConfig, layers: int | None = None) -> GPT2LMHeadModel:
    """Return transformers' GPT-2 with random weights and the layers, widths and vocabulary of our
    decoder."""
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError as error:
        raise ConfigError("peers need transformers; install it with: pip install "
                          "'superres[peers]'") from error
    torch.manual_seed(0)
    same = GPT2Config(
        vocab_size=config.vocabulary, n_positions=config.target_length, n_embd=config.width,
        n_layer=layers or config.decoder_layers, n_head=config.attention_heads,
        n_inner=config.filter_size, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    return GPT2LMHeadModel(same).eval()


@torch.inference_mode()
def beside(work: Workload, ways: list[Report], batches: Sequence[int]) -> list[Report]:
    """Return the rows decoded per second by batch and engine: `ways`, then `plain` and transformers
    on the same device.

    Of `plain`, iterations in the middle of a target are timed; the accepted tokens are those of
    `ways`. Of transformers, the first tokens of a target, in the engine's type, are timed; only
    images have a GPT-2 of their size.
    """
    pipeline, unit, rows = work.pipeline, work.unit, list[Report]()
    names = main_ways(list(work.variants))
    for batch in batches:
        own = {row["way"]: row for row in ways if row["batch"] == batch}
        measured = {short: own[name] for short, name in names.items() if name in own}
        rows.append({"batch": batch, "engine": pipeline.engine,
                     **{short: row[f"{unit}s_per_second"] for short, row in measured.items()}})
        if pipeline.engine != "plain":
            say(f"timing plain, batch {batch}")
            try:
                rows.append({"batch": batch, "engine": "plain", **{
                    short: batch * (row["mean_accepted_block_size"] or 1)
                    / plain_iteration(work, names[short], batch)
                    * row[f"{unit}s_per_second"] / row["tokens_per_second"] for short,
                    row in measured.items()}})
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                say(f"no times of plain, batch {batch}: the memory is too small")
        if unit == "image":
            say(f"timing transformers, batch {batch}")
            try:
                rows.append({"batch": batch, "engine": "transformers, GPT-2 of this size",
                             "greedy": batch / generated_token(work, batch)
                             / pipeline.model_config.target_length})
            # an error of another package, or of the memory, costs its own row only
            except Exception as error:
                say(f"no times of transformers, batch {batch}: {error}")
    return rows


def plain_iteration(work: Workload, way: str, batch: int) -> float:
    """Return the seconds of an iteration of the engine `plain` in the middle of a target."""
    pipeline, options = work.pipeline, work.variants[way]
    if not isinstance(options, DecodeConfig):
        raise TypeError(f"{way} has no iterations")
    model, timer = StepModel(pipeline.model, pipeline.end_token), Timer(pipeline.device)
    size = options.block_size or model.prediction_heads
    keys = torch.arange(batch, device=pipeline.device)
    loop = BlockwiseLoop(Algorithm(model, options), model.session(work.source(batch), size),
                         keys, size)
    loop.plain.end_token = None  # a row that ended would cost nothing from then on
    run_from(loop, work.position)
    first = timer.once(lambda: run_from(loop, work.position))
    count = max(1, min(64, int(PLAIN_SECONDS[pipeline.device.type] / first)))
    made = list[int]()
    seconds = timer.once(lambda: made.append(run_from(loop, work.position, count)))
    return seconds / made[0]


def generated_token(work: Workload, batch: int) -> float:
    """Return the seconds in which transformers generates a token of every row, greedily and with
    its cache."""
    pipeline, device = work.pipeline, work.pipeline.device
    model = gpt2(pipeline.model_config).to(device, torch.bfloat16 if pipeline.scoring.half
                                           else torch.float32)
    start, count = torch.zeros(batch, 1, dtype=torch.int64, device=device), GENERATED[device.type]

    def generate(new: int) -> object:
        return model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=new,
                              do_sample=False, use_cache=True)

    generate(4)
    return Timer(device).once(lambda: generate(count)) / count


@torch.inference_mode()
def limits(work: Workload, step: StepWork, ways: list[Report], memory: dict[str, float]) -> Report:
    """Return what limits decoding on a device, in seconds, bytes per second and rows.

    `launch` is the time of a kernel that does nearly nothing among others, `bandwidth` that of
    copying, and `fitting` the rows that would fit into the free memory. `rows` has, by batch and
    variant, the measured time of an iteration and the time in which that memory would give the
    weights, once, and the keys and values that the rows see.
    """
    device = work.pipeline.device
    timer, one = Timer(device, 5, 2), torch.zeros(1, device=device)
    launch = timer.median(lambda: [one.add_(1) for _ in range(LAUNCHES)]) / LAUNCHES
    size = min(COPIED[device.type], free_bytes(device) // 8)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    bandwidth = 2 * size / timer.median(lambda: copy.copy_(source))
    largest = max(map(int, memory))
    rows = [{"batch": row["batch"], "way": row["way"],
             "iteration": row[f"seconds_per_{work.unit}"] * row["batch"] / row["model_calls"],
             "weights": step.weights * step.weight_bytes / bandwidth,
             "cache": row["batch"] * step.cache * step.number_bytes / bandwidth}
            for row in ways if row["way"] in main_ways(list(work.variants)).values()]
    return {"launch": launch, "bandwidth": bandwidth, "rows": rows,
            "fitting": int(free_bytes(device) * largest / max(memory[str(largest)], 1.0))}


def beside_markdown(unit: str, rows: list[Report]) -> str:
    """Return the table of `beside`."""
    ways = list(dict.fromkeys(name for row in rows for name in row if name not in ("batch",
                                                                                   "engine")))
    return markdown_table(["batch", "engine", *(f"{name}, {unit}s/s" for name in ways)], [
        [str(row["batch"]), row["engine"], *(number_text(row.get(name), 2) for name in ways)]
        for row in rows])


def limits_markdown(found: Report) -> str:
    """Return the limits of a device as text and a table."""
    columns = ("iteration", "weights", "cache")
    table = markdown_table(["batch", "variant", *columns], [
        [str(row["batch"]), row["way"], *(number_text(1e6 * row[name], 1) for name in columns)]
        for row in found["rows"]])
    launch, bandwidth = 1e6 * found["launch"], found["bandwidth"] / 1e9
    return (f"A launch takes {launch:.1f} microseconds, the memory moves {bandwidth:,.0f} GB/s, "
            f"and about {found['fitting']:,} rows would fit into the free memory. Microseconds of "
            "an iteration, and those in which the memory would give the weights, once, and the "
            f"keys and values of all rows:\n\n{table}")
