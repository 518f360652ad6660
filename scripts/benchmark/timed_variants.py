"""Variants of decoding that are timed in turns: whole decodes, iterations, and the proposals'
share of them."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from decodes import Decoded, algorithm_of, engine_of, iterations, result_of
from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.loop import Loop
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import Proposer
from superres.decoding.trace import TraceRecorder
from superres.evaluation.timing import Timer
from superres.interfaces import Bool, Engine, Int64
from superres.native.decoder import NativeDecoder
from superres.pipeline.pipeline import Pipeline
from superres.sessions import ScoringModel
from superres.system.progress import Progress
from superres.tasks import translation

Batch = tuple[Int64, Bool | None]
"""Inputs that are decoded together: source tokens [B, S], and their padding mask, bool [B, S], or
None."""


def batch_of(pipeline: Pipeline, source: Int64) -> Batch:
    """Return a batch of padded source tokens, without the columns that are padding in all rows."""
    if pipeline.task != translation.name:
        return source, None
    padding = source == translation.PADDING
    longest = int((~padding).sum(1).max())
    source, padding = source[:, :longest], padding[:, :longest]
    return source, padding if padding.any() else None


ROUNDS = 3
"""Number of rounds over all batches, whose median times count."""
SPLIT = 256
"""Number of iterations whose proposals are timed, per variant."""
CHANGED = ("position", "limit", "proposals", "q_total")
"""Arrays of compiled rows that an iteration changes, beside their tokens."""


@dataclass
class Variant:
    """A variant of decoding, a proposer (None: one token per step) in a mode such as
    "greedy", and its measurements.

    `width` is the number of tokens that a step reads, the block size if None. `times` has for each
    batch the seconds of all its decodes: of the whole, and of its iterations alone, without
    encoding, the model call that makes the first proposals, and collecting the result. `decoded`
    has the results, one per batch. `parts` has the seconds of single iterations: of the
    verification alone, and of the whole iteration with its proposals.
    """

    mode: str
    options: DecodeConfig
    proposer: Proposer | None
    width: int | None = None
    times: list[list[tuple[float, float]]] = dataclasses.field(default_factory=list)
    decoded: list[Decoded] = dataclasses.field(default_factory=list)
    parts: list[tuple[float, float]] = dataclasses.field(default_factory=list)

    def measure(self, model: ScoringModel | Engine, batches: Sequence[Batch],
                number: int) -> None:
        """Decode batch `number` by `model` and record time and result; each new batch warms up
        first."""
        batch, timer = batches[number], Timer(engine_of(model).device)
        is_new = number == len(self.decoded)
        if is_new:
            list(islice(self._loops(model, batch, number), 2))  # warms up
            self.times.append([])
        begun, started = 0.0, timer.now()
        for loop in self._loops(model, batch, number):
            begun = begun or timer.now()
            if loop.complete:
                iterating, decoded = timer.now() - begun, result_of(loop)
        self.times[number].append((timer.now() - started, iterating))
        if is_new:
            self.decoded.append(decoded)
        if self.proposes and len(self.parts) < SPLIT:
            self.parts += iteration_parts(model, batch, self.options, self.proposer, timer)

    def _loops(self, model: ScoringModel | Engine, batch: Batch, number: int) -> Iterator[Loop]:
        source, padding = batch
        # no two rows share their noise
        keys = np.arange(len(source)) + number * len(source)
        return iterations(model, source, self.options, padding=padding, keys=keys, width=self.width,
                          proposer=self.proposer)

    @property
    def proposes(self) -> bool:
        """Whether an iteration makes proposals after its verification; a tree's are part of the
        verification."""
        return (self.proposer is not None and self.options.block_size != 1
                and not self.proposer.proposes_tree)

    @property
    def tokens(self) -> int:
        """Number of generated tokens."""
        return sum(int(decoded.lengths.sum()) for decoded in self.decoded)

    @property
    def iterations(self) -> int:
        """Iterations of the loop, which are the iterations of the slowest row of each batch."""
        return sum(max(trace.iterations for trace in decoded.traces) for decoded in self.decoded)

    def _sum_of_medians(self, part: int) -> float:
        return sum(statistics.median(seconds[part] for seconds in rounds) for rounds in self.times)

    @property
    def seconds(self) -> float:
        """Seconds of all batches: the sum of their medians over the rounds."""
        return self._sum_of_medians(0)

    @property
    def iteration(self) -> float:
        """Seconds of an iteration."""
        return self._sum_of_medians(1) / max(self.iterations, 1)

    @property
    def proposing(self) -> float:
        """Seconds of the proposals of an iteration: their share of the single iterations of
        `parts`.

        A share is independent of other work on the machine, and of what the timing of single
        iterations adds.
        """
        if not self.parts:
            return 0.0
        verified, whole = (statistics.median(seconds) for seconds in zip(*self.parts, strict=True))
        return self.iteration * max(1 - verified / whole, 0.0)


def loop_of(
    model: ScoringModel | Engine, batch: Batch, options: DecodeConfig, proposer: Proposer,
    is_single: bool = False,
) -> Loop:
    """Return the loop that decodes a batch; with `is_single`, in single iterations of torch.

    A criterion of the caller's keeps the loop on such iterations.
    """
    (source, padding), k = batch, options.block_size or 1
    criterion = CRITERIA[options.accept](options) if is_single else None
    algorithm = algorithm_of(model, options, proposer, criterion)
    return Loop(algorithm.start(source, k, padding))


def iteration_parts(
    model: ScoringModel | Engine, batch: Batch, options: DecodeConfig, proposer: Proposer | None,
    timer: Timer,
) -> list[tuple[float, float]]:
    """Decode a batch, and return the seconds of up to SPLIT iterations: the verification alone, and
    the whole.

    From each state, the iteration is done without its proposals, twice, and then as a whole. The
    first run is not timed: the others find its data in the processor's caches. The iterations are
    native or of torch, as in a decode.
    """
    loop, parts = (loop_of(model, batch, options, proposer or PROPOSERS[options.proposer]()),
                   list[tuple[float, float]]())
    loop.run(1)
    while len(parts) < SPLIT and not loop.done():
        verification(loop)
        verified = verification(loop, timer.now)
        parts.append((verified, timer.once(lambda: loop.run(1))))
    return parts


@torch.inference_mode()
def verification(loop: Loop, clock: Callable[[], float] = time.perf_counter) -> float:
    """Do the next iteration without its proposals, undo it, and return its seconds by `clock`.

    A whole iteration then takes these seconds and those of its proposals, in whatever runs the
    iterations. The loop must not be complete, and all blocks of one size; proposals of trees have
    no such part.
    """
    decoder: Any = loop.decoder
    size, recorder, loop.recorder = decoder.block_size, loop.recorder, TraceRecorder()
    # What an iteration changes; the next one commits the same tokens again. q is written with
    # proposals only, and counts for nothing without its total.
    if isinstance(decoder, NativeDecoder):
        state: Any = decoder
        changed = [torch.from_numpy(decoder.rows[name]) for name in CHANGED if name in decoder.rows]
    else:
        state = decoder.plain.state
        changed = [state.position, state.limit, state.proposals,
                   getattr(decoder.decoder, "q_totals", torch.empty(0))]
    sampler = None if decoder.compiled else decoder.plain.sampler
    kept = [tensor.clone() for tensor in changed]
    decoder.resize(1)
    decoder.resizable = False  # steps stay as wide
    started = clock()
    loop.run(1)
    seconds = clock() - started
    for tensor, before in zip(changed, kept, strict=True):
        tensor.copy_(before)
    decoder.resize(size)
    state.block_size, decoder.resizable, loop.recorder = size, False, recorder
    if sampler is not None:
        decoder.plain.sampler = sampler
    return seconds


def alternate(batches: Sequence[Batch],
              variants: Mapping[Any, tuple[ScoringModel | Engine, Variant]]) -> None:
    """Measure all variants, by any names, with their models alternately, batch by batch, in ROUNDS
    rounds."""
    with Progress("measuring", ROUNDS * len(batches) * len(variants), "decodes") as progress:
        for number in [*range(len(batches))] * ROUNDS:
            for model, variant in variants.values():
                variant.measure(model, batches, number)
                progress.update()
