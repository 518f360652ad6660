"""Measure the costs of decoding on this machine's class of processors, for a checkpoint's `costs.json`."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from superres.config import CostRecord, DecodeConfig, StepCosts
from superres.decoding.cost import TIMED, measured_costs
from superres.native.model import NativeModel
from superres.nn.torch_model import StepModel
from superres.pipeline.pipeline import Pipeline
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import Timer, TorchThreads, cpu_name, usable_cores
from superres.system.output import markdown_table, number_text
from superres.system.progress import Progress

BATCHES = (1, 4, 16, 64)
"""Numbers of rows whose costs are recorded."""
TOGETHER = (2, 8, 32)
"""Numbers of rows that a thread may decode together. The rows of a group share each read of the weights, but the caches
of a large group do not fit the processor's."""
FEW = 4
"""Block size with which numbers of threads, and of rows together, are compared."""
CLEAR = 0.95
"""Largest ratio of the time with more threads, or more rows together, by which they count as faster."""
SENTENCE = 16
"""Source tokens of the sentences to measure with."""
OPENED = 8
"""Sessions that are opened to measure what opening one costs."""


def stages_of(pipeline: Pipeline) -> list[Pipeline]:
    """Return the pipelines of a cascade's stages in their order, or the pipeline itself."""
    found, stage = list[Pipeline](), pipeline
    while isinstance(stage, Upscaler) and stage.first is not None:
        found.insert(0, stage.last or stage)
        stage = stage.first
    return [stage, *found]


def record_costs(pipeline: Pipeline) -> CostRecord:
    """Measure a network's costs with its engine; takes some seconds per number of rows, and needs an idle machine."""
    with Progress(f"measuring the costs of {pipeline.name}"):
        found = {str(rows): _costs_of(pipeline, rows) for rows in BATCHES}
    device = pipeline.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return record_of(pipeline, found, name, usable_cores())


def record_of(pipeline: Pipeline, batches: dict[str, StepCosts], processor: str, cores: int) -> CostRecord:
    """Return the record of a network's costs that were measured today."""
    return CostRecord(batches, processor, cores, time.strftime("%Y-%m-%d", time.gmtime()), pipeline.revision)


def _costs_of(pipeline: Pipeline, rows: int) -> StepCosts:
    """Measure one number of rows, with the numbers of threads and of rows per thread that are the fastest.

    Batches of text are decoded side by side, on one thread each, and have the costs of one thread.
    """
    source, model = _sources(pipeline, rows), copy.copy(pipeline.scoring)
    threads, own, together = 1, 1, TOGETHER[0]
    if isinstance(model, NativeModel):
        most = min(usable_cores(), TorchThreads.limit())
        powers = {2**power for power in range((most - 1).bit_length())} | {most}
        threads = _fastest(sorted(powers), lambda number: _measured(model, source, number, together, FEW))
        own = 1 if rows > 1 and pipeline.end_token is not None else threads
        share = [number for number in TOGETHER if number <= max(TOGETHER[0], -(-rows // own))]
        together = _fastest(share, lambda number: _measured(model, source, own, number, FEW))
    found = dataclasses.replace(_measured(model, source, own, together), threads=threads)
    if pipeline.end_token is None:
        return found.rounded()
    start = _opening(model, source, model.prediction_heads) - _opening(model, source, 1)
    return dataclasses.replace(found, start=max(1e6 * start, 0.0)).rounded()


def _fastest(numbers: Sequence[int], measure: Callable[[int], StepCosts]) -> int:
    """Return the number with the shortest times of one token and of FEW; a larger one must be clearly faster."""
    if len(numbers) == 1:
        return numbers[0]
    times = {number: (costs := measure(number)).alone * costs.blocks[-1] for number in numbers}
    best = numbers[0]
    for number, time_of in times.items():
        if time_of < CLEAR**2 * times[best]:
            best = number
    return best


def _measured(
    model: StepModel, source: Tensor, threads: int, together: int, largest: int | None = None,
) -> StepCosts:
    """Return the costs of iterations of up to `largest` tokens on so many threads, with so many rows per thread."""
    if isinstance(model, NativeModel):
        model.threads = threads
    model.costs = CostRecord({"1": StepCosts((1.0,), 1.0, together=together)})
    options, timed = DecodeConfig(), TIMED if largest is None else ()
    most = min(largest or model.prediction_heads, model.prediction_heads)
    blocks = measured_costs(model, source, options, most, timed=timed)
    (alone,) = measured_costs(model, source, options, 1)
    return StepCosts(tuple(1e6 * seconds for seconds in blocks), 1e6 * alone, threads=threads, together=together)


def _opening(model: StepModel, source: Tensor, width: int) -> float:
    """Return the smallest seconds in which a session of `width` is opened."""
    timer = Timer(source.device)
    with torch.inference_mode():
        memory = model.encode(source)
        return min(timer.once(partial(model.session, memory, width)) for _ in range(OPENED))


def _sources(pipeline: Pipeline, rows: int) -> Tensor:
    """Return sources [rows, S] to measure with; their tokens have no influence on the times."""
    config = pipeline.model_config
    length = config.source_length if pipeline.end_token is None else min(SENTENCE, config.source_length)
    tokens = 7 * torch.arange(rows * length, device=pipeline.device) % (config.vocabulary - 4) + 4
    return tokens.view(rows, length)


def costs_table(records: dict[str, CostRecord]) -> str:
    """Return the records of checkpoints by name as a Markdown table."""
    lines = [[name, rows, number_text(costs.alone, 1), f"{number_text(costs.blocks[-1], 1)} ({len(costs.blocks)})",
              number_text(costs.start, 1), str(costs.threads), str(costs.together)]
             for name, record in records.items() for rows, costs in record.batches.items()]
    return markdown_table(["checkpoint", "batch", "us per step of one token", "us per step of all heads",
                           "us per batch", "threads", "rows together"], lines)
