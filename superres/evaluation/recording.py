"""Measure the costs of decoding on this machine's class of processors, for a checkpoint's
`costs.json`."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

from superres.config import MOST_THREADS, CostRecord, DecodeConfig, StepCosts
from superres.decoding.algorithm import Algorithm
from superres.decoding.cost import TIMED, measured_costs
from superres.evaluation.timing import Timer
from superres.interfaces import Engine, Int64
from superres.native.engine import NativeEngine
from superres.pipeline.pipeline import Pipeline
from superres.pipeline.upscaler import Upscaler
from superres.system.machine import machine
from superres.system.output import markdown_table, number_text
from superres.system.progress import Progress
from superres.system.threads import most_threads, usable_cores

BATCHES = {"faces": (1, 4, 16, 64), "translation": (1, 4, 64)}
"""Numbers of rows whose costs are recorded, by task."""
LONG = 50_000.0
"""Microseconds of an iteration with all heads from which no larger batch is measured: its cost per
row is about the same."""
TOGETHER = (2, 8, 32)
"""Numbers of rows that a thread may decode together. The rows of a group share each read of the
weights, but the caches of a large group do not fit the processor's."""
LEAST_COLUMNS = (2, 4, 8)
"""Columns per thread from which threads may share the columns of a step. What a wait costs differs
between machines."""
FEW = 4
"""Block size with which numbers of threads, of columns and of rows together are compared, besides
that of all heads."""
CLEAR = 0.95
"""Largest ratio of the time with more threads, columns or rows together by which they count as
faster."""
SENTENCE = 16
"""Source tokens of the sentences to measure with."""
SENTENCE_COST = 100.0
"""Microseconds that blocks cost per sentence besides the session: its shortlist, and the memory of
its proposals when it takes a row and leaves it. By so much 192 captions took longer than their
iterations."""
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
    """Measure a network's costs with its engine; takes some seconds per number of rows, and needs
    an idle machine."""
    with Progress(f"measuring the costs of {pipeline.name}"):
        found = dict[str, StepCosts]()
        for rows in BATCHES[pipeline.task]:
            found[str(rows)] = costs = _costs_of(pipeline, rows)
            if costs.blocks[-1] > LONG:
                break
    here = machine(pipeline.device)
    return record_of(pipeline, found, here["gpu"] or here["cpu"], usable_cores())


def record_of(pipeline: Pipeline, batches: dict[str, StepCosts], processor: str,
              cores: int) -> CostRecord:
    """Return the record of a network's costs that were measured today."""
    return CostRecord(batches, processor, cores, time.strftime("%Y-%m-%d", time.gmtime()),
                      pipeline.revision)


def _costs_of(pipeline: Pipeline, rows: int) -> StepCosts:
    """Measure one number of rows, with the numbers of threads, of columns and of rows per thread
    that are the fastest.

    Batches of text are decoded side by side, on one thread each, and have the costs of one thread.
    """
    source, engine = _sources(pipeline, rows), copy.copy(pipeline.scoring)
    plan = StepCosts((1.0,), 1.0, threads=1, alone_threads=1, together=TOGETHER[0])
    if isinstance(engine, NativeEngine):
        plan = _fastest_plan(engine, source, plan, rows > 1 and pipeline.end_token is not None)
    found = _measured(engine, source, plan)
    if pipeline.end_token is None:
        return found.rounded()
    start = _opening(engine, source, engine.prediction_heads) - _opening(engine, source, 1)
    return dataclasses.replace(found, start=rows * SENTENCE_COST + max(1e6 * start, 0.0)).rounded()


def _fastest_plan(engine: NativeEngine, source: Int64, plan: StepCosts,
                  on_one_thread: bool) -> StepCosts:
    """Return `plan` with the numbers of threads, of columns per thread and of rows together that
    are the fastest."""
    rows, most = len(source), most_threads()
    numbers = [] if on_one_thread else sorted(
        {2**power for power in range(1, (most - 1).bit_length())} | {most} - {1}
    )
    change = partial(dataclasses.replace, plan)
    plan = _fastest(engine, source, [plan, *(change(alone_threads=number) for number in numbers)],
                    1)
    shared = [columns for columns in LEAST_COLUMNS if rows == 1 and 2 * columns
              <= engine.prediction_heads]
    change = partial(dataclasses.replace, plan)
    plan = _fastest(engine, source, [plan, *(change(threads=number, least_columns=columns)
                                            for number in numbers for columns in shared
                                            or [LEAST_COLUMNS[1]])])
    change, share = partial(dataclasses.replace, plan), -(-rows // plan.threads)
    return _fastest(engine, source,
                    [plan,
                     *(change(together=number) for number in TOGETHER[1:] if number <= share)])


def _fastest(engine: NativeEngine, source: Int64, plans: Sequence[StepCosts],
             largest: int | None = None) -> StepCosts:
    """Return the plan with the shortest times at few and at all heads; a later plan must be clearly
    faster.

    `largest` is 1 if steps of one token alone are compared.
    """
    best, least = plans[0], math.inf
    for plan in plans if len(plans) > 1 else ():
        found = _measured(engine, source, plan, (FEW,), largest)
        time_of = math.sqrt(found.blocks[:FEW][-1] * found.blocks[-1])
        if time_of < CLEAR * least:
            best, least = plan, time_of
    return best


def _measured(
    engine: Engine, source: Int64, plan: StepCosts, timed: Sequence[int] = TIMED,
    largest: int | None = None,
) -> StepCosts:
    """Return `plan` with the times of iterations of up to `largest` tokens, by default of all
    heads.

    `timed` are the block sizes to measure besides the largest.
    """
    # With the most cores, no batch gets more threads than the plan has.
    engine.costs = CostRecord({str(len(source)): plan}, cores=MOST_THREADS)
    options = DecodeConfig()
    (alone,) = measured_costs(engine, source, options, 1)
    blocks = [alone] if largest == 1 else measured_costs(engine, source, options,
                                                         engine.prediction_heads, timed=timed)
    return dataclasses.replace(plan, blocks=tuple(1e6 * seconds for seconds in blocks),
                               alone=1e6 * alone)


def _opening(engine: Engine, source: Int64, width: int) -> float:
    """Return the smallest seconds in which rows of steps of `width` begin."""
    timer, algorithm = Timer(engine.device), Algorithm(engine, DecodeConfig())
    encoded, keys = engine.encode(source, None, algorithm), np.arange(len(source))
    return min(timer.once(partial(engine.start, encoded, keys, algorithm, width))
               for _ in range(OPENED))


def _sources(pipeline: Pipeline, rows: int) -> Int64:
    """Return sources [rows, S] to measure with; their tokens have no influence on the times."""
    config = pipeline.model_config
    length = config.source_length
    if pipeline.end_token is not None:
        length = min(SENTENCE, length)
    tokens = 7 * np.arange(rows * length) % (config.vocabulary - 4) + 4
    return tokens.reshape(rows, length)


def costs_table(records: dict[str, CostRecord]) -> str:
    """Return the records of checkpoints by name as a Markdown table."""
    lines = [[name, rows, number_text(costs.alone, 1), f"{number_text(costs.blocks[-1], 1)} "
              f"({len(costs.blocks)})", number_text(costs.start, 1), str(costs.threads),
              str(costs.together)]
             for name, record in records.items() for rows, costs in record.batches.items()]
    return markdown_table(["checkpoint", "batch", "us per step of one token", "us per step of all "
                           "heads", "us per batch", "threads", "rows together"], lines)
