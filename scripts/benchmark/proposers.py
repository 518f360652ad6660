"""Measure all proposers on the same inputs, and compare the measurements with the predictions of
the cost model.

    python scripts/benchmark/proposers.py images --output speed/images
    python scripts/benchmark/proposers.py text --output speed/text --page docs/proposers.md
    python scripts/benchmark/proposers.py text --output speed/text --proposers heads,draft --draft
    DIR --temperature 0.7

A proposer is measured at its default block size, and then at the fastest block size by the cost
model. The variants of decoding alternate, batch by batch, so that other load slows all variants
alike; times are medians of three rounds.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1]))

import cost_model
from decodes import Decoded, iterations, result_of
from measurements import (
    Busy,
    Columns,
    Device,
    Document,
    Output,
    Page,
    Row,
    Table,
    Values,
    columns_table,
    run,
    values,
)
from superres.cli.benchmark import image_work, text_work
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR, DecodeConfig, require
from superres.decoding.acceptance import CRITERIA
from superres.decoding.algorithm import Algorithm
from superres.decoding.block_size import DEFAULT_BLOCK_SIZE
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import Proposer, with_proposer_state
from superres.decoding.trace import TraceRecorder, mean_accepted_block_size
from superres.errors import CheckpointError, ConfigError
from superres.evaluation.benchmark import run_record
from superres.evaluation.workload import step_weights
from superres.interfaces import ScoringModel
from superres.nn.model import EncoderDecoder
from superres.pipeline.pipeline import Pipeline
from superres.system.machine import Timer, require_idle
from superres.system.output import short_digest
from superres.system.progress import Progress
from superres.tasks import translation

MODES = ("greedy", "coupled", "speculative")
"""Modes of choosing tokens: exact greedy decoding, and two methods of sampling."""
MAX_BLOCK_SIZE = 16
"""Largest block size that the cost model may choose for a proposer without heads."""


def parse_proposers(text: str) -> list[str]:
    """Return the names in a list such as "heads,draft", or all for "all"; raise ConfigError for an
    unknown name."""
    if text == "all":
        return list(PROPOSERS)
    names = [name.strip() for name in text.split(",")]
    for name in names:
        require(name in PROPOSERS, f"--proposers takes all, or names from {', '.join(PROPOSERS)}, "
                f"not {name!r}")
    return names


Batch = tuple[Tensor, Tensor | None]
"""Inputs that are decoded together: source tokens [B, S], and their padding mask, bool [B, S], or
None."""


def batch_of(pipeline: Pipeline, source: Tensor) -> Batch:
    """Return a batch of padded source tokens, without the columns that are padding in all rows."""
    if pipeline.task != translation.name:
        return source, None
    padding = source == translation.PADDING
    longest = int((~padding).sum(1).max())
    source, padding = source[:, :longest], padding[:, :longest]
    return source, padding if bool(padding.any()) else None


ROUNDS = 3
"""Number of rounds over all batches, whose median times count."""
SPLIT = 256
"""Number of iterations whose proposals are timed, per variant."""


@dataclass
class Variant:
    """A variant of decoding, a proposer (None: one token per step) in a mode of MODES, and its
    measurements.

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

    def measure(self, model: ScoringModel, batches: Sequence[Batch], number: int) -> None:
        """Decode batch `number` by `model` and record time and result; each new batch warms up
        first."""
        batch, timer = batches[number], Timer(batches[number][0].device)
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

    def _loops(self, model: ScoringModel, batch: Batch, number: int) -> Iterator[BlockwiseLoop]:
        source, padding = batch
        # no two rows share their noise
        keys = torch.arange(len(source), device=source.device) + number * len(source)
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
    def fixed(self) -> float:
        """Seconds of a decode outside of its iterations."""
        return (self.seconds - self._sum_of_medians(1)) / len(self.decoded)

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
    model: ScoringModel, batch: Batch, options: DecodeConfig, proposer: Proposer,
    is_single: bool = False,
) -> BlockwiseLoop:
    """Return the loop that decodes a batch; with `is_single`, in single iterations of torch.

    A criterion of the caller's keeps the loop on such iterations.
    """
    (source, padding), k = batch, options.block_size or 1
    criterion = CRITERIA[options.accept](options) if is_single else None
    algorithm = Algorithm(model, options, proposer, criterion)
    keys = torch.arange(len(source), device=source.device)
    return BlockwiseLoop(algorithm, algorithm.model.session(source, k, padding), keys, k)


@torch.inference_mode()
def iteration_parts(
    model: ScoringModel, batch: Batch, options: DecodeConfig, proposer: Proposer | None,
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


def verification(loop: BlockwiseLoop, clock: Callable[[], float] = time.perf_counter) -> float:
    """Do the next iteration without its proposals, undo it, and return its seconds by `clock`.

    A whole iteration then takes these seconds and those of its proposals, in whatever runs the
    iterations. The loop must not be complete, and all blocks of one size; proposals of trees have
    no such part.
    """
    plain, state, size = loop.plain, loop.plain.state, loop.plain.state.block_size
    sampler = None if loop.runs_whole else plain.sampler
    # q is written with proposals only, and counts for nothing without its total.
    changed = [state.position, state.limit, state.proposals,
               getattr(loop.decoder, "q_total", torch.empty(0))]
    kept = [tensor.clone() for tensor in changed]
    recorder, loop.recorder, plain.block_size = loop.recorder, TraceRecorder(), 1
    started = clock()
    loop.run(1)
    seconds = clock() - started
    # The committed tokens need no copy: the next iteration commits the same tokens.
    for tensor, before in zip(changed, kept, strict=True):
        tensor.copy_(before)
    loop.recorder, state.block_size, plain.block_size = recorder, size, size
    if sampler is not None:
        plain.sampler = sampler
    return seconds


def alternate(batches: Sequence[Batch],
              variants: Mapping[Any, tuple[ScoringModel, Variant]]) -> None:
    """Measure all variants, by any names, with their models alternately, batch by batch, in ROUNDS
    rounds."""
    with Progress("measuring", ROUNDS * len(batches) * len(variants), "decodes") as progress:
        for number in [*range(len(batches))] * ROUNDS:
            for model, variant in variants.values():
                variant.measure(model, batches, number)
                progress.update()


@dataclass
class Comparison:
    """Measurements of the proposers of one checkpoint on the same inputs.

    `base` has the common decoding settings, such as `draft`, `ngrams` and the first block size.
    """

    pipeline: Pipeline
    batches: Sequence[Batch]
    temperature: float
    base: DecodeConfig

    def measure(self, names: Sequence[str]) -> Values:
        """Measure the proposers `names` at their first block size, and then at the best one by the
        cost model.

        Returns:
            `rows` with a row per proposer, mode and block size, and `missing` with the reason for
            each proposer that could not be measured, by name.

        Raises:
            ConfigError: no proposer can be measured.
        """
        variants, missing = self.variants(names)
        require(bool(variants), "none of the proposers can be measured: "
                f"{'; '.join(missing.values())}")
        rows = self.rows(variants)
        again = [Variant(variant.mode, dataclasses.replace(variant.options, block_size=best), variant.proposer)
                 for variant, row in zip(variants, rows, strict=True)
                 # If greedy decoding is faster than every block size, block size 2 shows the
                 # difference.
                 if (best := max(row["best_block_size"], 2)) != row["block_size"]]
        rows += self.rows(again) if again else []
        rows.sort(key=lambda row: (names.index(row["proposer"]), MODES.index(row["mode"]),
                                   row["block_size"]))
        return {"rows": rows, "missing": missing}

    def options(self, name: str, mode: str, block_size: int) -> DecodeConfig:
        """Return the decoding settings for a proposer, mode and block size."""
        temperature = 0.0 if mode == "greedy" else self.temperature
        sampling = "speculative" if mode == "speculative" else "coupled"
        return dataclasses.replace(self.base, proposer=name, block_size=block_size,
                                   temperature=temperature, sampling=sampling)

    def variants(self, names: Sequence[str]) -> tuple[list[Variant], dict[str, str]]:
        """Return the variants of the proposers `names`, and the reason for each proposer that is
        not available."""
        variants, missing = [], dict[str, str]()
        for name in names:
            default = PROPOSERS[name].block_size or max(self.pipeline.model_config.prediction_heads,
                                                        DEFAULT_BLOCK_SIZE)
            options = self.options(name, "greedy",
                                   min(self.base.block_size or default, self.largest(name)))
            try:
                proposer = self.pipeline.proposers.get(options) or PROPOSERS[name]()
                with_proposer_state(self.pipeline.scoring, proposer)
                require(options.block_size != 1, "the checkpoint has no prediction heads")
            except (ConfigError, CheckpointError) as error:
                missing[name] = str(error)
                continue
            variants += [Variant(mode, self.options(name, mode, options.block_size or 1), proposer)
                         for mode in MODES]
        return variants, missing

    def largest(self, name: str) -> int:
        """Return the largest block size of a proposer."""
        config = self.pipeline.model_config
        if PROPOSERS[name].proposes_tree:
            return min(MAX_BLOCK_SIZE, config.target_length + 2 - self.base.window)
        return config.prediction_heads if PROPOSERS[name].uses_heads else min(MAX_BLOCK_SIZE,
                                                                              config.target_length)

    def rows(self, variants: Sequence[Variant]) -> list[Values]:
        """Measure all variants and the baselines of one token per step alternately; return one row
        per variant."""
        baselines = {mode: Variant(mode, self.options("heads", mode, 1), None) for mode in MODES}
        everything = [*baselines.values(), *variants]
        alternate(self.batches, {(one.options.proposer, one.mode, one.options.block_size): (
            self.pipeline.scoring_for(one.options), one) for one in everything})
        # Both modes of sampling have a baseline of one token per step; the faster one is the
        # baseline of both modes.
        sampling = min((baselines["coupled"], baselines["speculative"]),
                       key=lambda one: one.seconds / one.tokens)
        return [self.row(one, baselines["greedy"] if one.mode == "greedy" else sampling)
                for one in variants]

    def row(self, variant: Variant, baseline: Variant) -> Values:
        """Return the measurements of a variant, and the predictions of the cost model from these
        measurements.

        Times are compared with those of `baseline`, which makes one token per step.
        """
        k = variant.options.block_size or 1
        model, gamma, call = self.pipeline.model, k - 1, baseline.iteration
        traces = [trace for decoded in variant.decoded for trace in decoded.traces]
        kind = PROPOSERS[variant.options.proposer]
        candidates, columns = cost_model.branches(variant.options, k)
        observed = cost_model.acceptance_rate(traces, k, candidates)
        overlap = (self.overlap(variant) if variant.mode == "speculative" and not kind.proposes_tree
                   else None)
        alpha = observed if overlap is None else overlap
        c = variant.proposing / max(gamma, 1) / call
        verify = max(variant.iteration - variant.proposing, 0.0) / call
        extra = max(verify - 1, 0.0) / max(gamma, 1)
        here = cost_model.whole_factor(
            cost_model.improvement_factor(alpha, gamma, c, verify, candidates),
            baseline.iterations / len(self.batches), variant.fixed / call, baseline.fixed / call)
        return {
            "proposer": variant.options.proposer, "mode": variant.mode, "block_size": k,
            "mean_accepted_block_size": mean_accepted_block_size(traces),
            "model_calls": sum(trace.model_calls for trace in traces) / len(traces),
            "seconds": variant.seconds / len(traces), "baseline_seconds": baseline.seconds
            / len(traces), "speed_up": baseline.seconds / baseline.tokens
            / (variant.seconds / variant.tokens), "alpha": alpha, "alpha_seen": observed, "c": c,
            "verify": verify, "fixed": variant.fixed / call,
            "predicted_tokens": cost_model.expected_tokens(alpha, gamma, candidates),
            "predicted_speed_up": cost_model.improvement_factor(alpha, gamma, c,
                                                                candidates=candidates),
            "predicted_speed_up_here": here,
            "operations": cost_model.operations_factor(
                alpha, gamma, proposal_weights(model, variant.proposer) / step_weights(model),
                columns, candidates),
            "best_block_size": 1 + cost_model.best_gamma(
                alpha, c, self.largest(variant.options.proposer) - 1, extra, candidates),
            "extra_bytes": self.extra_bytes(variant),
            "training": kind.training,
        }

    def overlap(self, variant: Variant) -> float:
        """Return E[min(p, q)], measured in a separate decoding of the first batch."""
        if variant.proposer is None:
            return 0.0
        model = self.pipeline.scoring_for(variant.options)
        with torch.inference_mode():
            return cost_model.mean_overlap(
                loop_of(model, self.batches[0], variant.options, variant.proposer, is_single=True))

    def extra_bytes(self, variant: Variant) -> int:
        """Return the memory of the proposer in bytes: its weights, tables, and state of a batch."""
        if variant.proposer is None:
            return 0
        held = variant.proposer.weight_bytes
        if variant.proposer.uses_heads and self.pipeline.model.heads is not None:
            held += sum(weight.numel() * weight.element_size()
                        for weight in self.pipeline.model.heads.parameters())
        source, padding = self.batches[0]
        with torch.inference_mode():
            state = variant.proposer.new_state(source, variant.options.block_size or 1, padding, 1)
        return held + sum(part.numel() * part.element_size()
                          for part in (state.row_state() if state else []))


def proposal_weights(model: EncoderDecoder, proposer: Proposer | None) -> float:
    """Return the number of weights that a proposal is computed with, for the verifier `model`."""
    draft = getattr(proposer, "draft", None)
    if draft is not None:
        return step_weights(draft.model)
    if proposer is None or not proposer.uses_heads or model.heads is None:
        return 0.0
    scores = 0 if model.config.ordinal_output else model.project.weight.numel()  # of the vocabulary
    return model.heads.weights_per_head + scores


ALL: Columns = {
    "proposer": ("proposer", 0), "mode": ("mode", 0), "k": ("block_size", 0),
    "mean accepted block size": ("mean_accepted_block_size", 2),
    "predicted": ("predicted_tokens", 2), "speed-up": ("speed_up", 2),
    "speed-up, predicted": ("predicted_speed_up", 2),
    "with the measured call": ("predicted_speed_up_here", 2), "alpha": ("alpha", 3), "c": ("c", 3),
    "call": ("verify", 2), "fixed": ("fixed", 1), "operations": ("operations", 2),
    "model calls": ("model_calls", 1), "best k": ("best_block_size", 0),
}
FASTEST: Columns = {
    "proposer": ("proposer", 0),
    "choosing": (lambda row: "exact greedy" if row["mode"] == "greedy"
                 else f"{row['mode']} sampling", 0),
    "k": ("block_size", 0), "mean accepted block size": ("mean_accepted_block_size", 2),
    "model calls": ("model_calls", 1), "speed-up": ("speed_up", 2),
    "memory, MiB": (lambda row: row["extra_bytes"] / 2**20, 2), "training": ("training", 0),
}


def views(document: Document) -> dict[str, str]:
    """Return the fastest block size of each proposer, greedily and sampled, all measurements, and
    what is missing."""
    found = values(document)["comparison"]
    fastest = [max((row for row in found["rows"] if row["proposer"] == name and row["mode"]
                    in modes),
                   key=lambda row: float(row["speed_up"]))
               for name in dict.fromkeys(row["proposer"] for row in found["rows"])
               for modes in (("greedy",), ("coupled", "speculative"))]
    missing = [f"- {name}: not measured: {reason}" for name, reason in found["missing"].items()]
    return {"fastest": columns_table(fastest, FASTEST), "all": columns_table(found["rows"], ALL),
            "missing": "\n".join(missing)}


class Task(str, Enum):
    """What to decode."""

    images = "images"
    text = "text"


def main(
    task: Annotated[Task, typer.Argument(help="What to decode.")], output: Output,
    data: Annotated[Path | None, typer.Option(help="Images, or parallel text PATH.en and PATH.de; "
                                              "examples if left out.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint name, folder or hub "
                                                   "id.")] = None,
    proposers: Annotated[str,
                         typer.Option(metavar="all|NAME,NAME...",
                                      help="Proposers to compare.")] = "all",
    batch: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 1,
    count: Annotated[int | None, typer.Option(min=1, help="Batches; 3 of images or 24 of text if "
                                              "left out.")] = None,
    temperature: Annotated[float, typer.Option(help="Temperature of sampling, above 0.")] = 0.9,
    block_size: Annotated[int | None, typer.Option(min=2, help="First block size; the proposer's "
                                                   "own if left out.")] = None,
    draft: Annotated[str | None, typer.Option(help="Checkpoint of the draft proposer.")] = None,
    ngrams: Annotated[str | None, typer.Option(help="Table of the ngram proposer.")] = None,
    device: Device = "auto",
    engine: Annotated[str, typer.Option(help="Engine of decoding.")] = "auto", busy: Busy = False,
    page: Page = None,
) -> None:
    """Measure proposers, and compare them with the predictions of the cost model.

    The predicted tokens per step are (1 - alpha^k) / (1 - alpha), with the acceptance rate alpha;
    the speed-up is this over (k - 1) c + 1, with the cost c of a proposal, in model calls for one
    token. "With the measured call" takes the measured iteration without proposals, and the fixed
    cost of a decode, instead of 1.
    """
    names = parse_proposers(proposers)
    if not busy:
        require_idle()
    count = count or (3 if task is Task.images else 24)
    if task is Task.images:
        work = image_work(checkpoint or DEFAULT_CHECKPOINT, device, engine, data, batch * count)
    else:
        work = text_work(checkpoint or DEFAULT_TRANSLATOR, device, engine, data)
    source, base = work.source(batch * count), DecodeConfig(block_size=block_size, draft=draft,
                                                            ngrams=ngrams)
    record = {name: value for name, value in run_record(work).items() if name != "machine"}
    table = Table("proposers", output, {
        **record, "data": short_digest(source.cpu().numpy().tobytes()), "batch": batch,
        "batches": count, "temperature": temperature}, work.pipeline.device,
                  f"proposers-{task.value}")
    batches = [batch_of(work.pipeline, rows) for rows in source.split(batch)]
    comparison = Comparison(work.pipeline, batches, temperature, base)
    table.measure([Row("comparison", lambda: comparison.measure(names),
                       {"proposers": names, "base": base.to_dict()})])
    table.finish(page)


if __name__ == "__main__":
    run(main)
