"""Measure all proposers, your own too, on the same inputs.

    python scripts/benchmark/proposers.py images --output speed
    python scripts/benchmark/proposers.py text --output speed --proposers heads,draft --draft DIR

A proposer is measured at its default block size, and then at the fastest block size by the cost
model. The variants of decoding alternate, batch by batch, so that other load slows all variants
alike; times are medians of three rounds.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

import cost_model
from measurements import (
    Busy,
    Columns,
    Device,
    Document,
    Engine,
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
from superres.decoding.block_size import DEFAULT_BLOCK_SIZE
from superres.decoding.proposers import PROPOSERS
from superres.decoding.trace import mean_accepted_block_size
from superres.errors import CheckpointError, ConfigError
from superres.evaluation.benchmark import run_record
from superres.evaluation.timing import require_idle
from superres.pipeline.pipeline import Pipeline
from superres.system.output import short_digest
from timed_variants import Batch, Variant, alternate, batch_of, loop_of

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
        # If greedy decoding is faster than every block size, block size 2 shows the difference.
        best = [max(row["best_block_size"], 2) for row in rows]
        again = [Variant(one.mode, dataclasses.replace(one.options, block_size=size), one.proposer)
                 for one, row, size in zip(variants, rows, best, strict=True)
                 if size != row["block_size"]]
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
                proposer.check(self.pipeline.scoring)
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
            self.pipeline.scoring, one) for one in everything})
        # Both modes of sampling have a baseline of one token per step; the faster one is the
        # baseline of both modes.
        sampling = min((baselines["coupled"], baselines["speculative"]),
                       key=lambda one: one.seconds / one.tokens)
        return [self.row(one, baselines["greedy"] if one.mode == "greedy" else sampling)
                for one in variants]

    def row(self, variant: Variant, baseline: Variant) -> Values:
        """Return the measurements of a variant, and the best block size by the cost model.

        Times are compared with those of `baseline`, which makes one token per step.
        """
        k, call = variant.options.block_size or 1, baseline.iteration
        traces = [trace for decoded in variant.decoded for trace in decoded.traces]
        kind, gamma = PROPOSERS[variant.options.proposer], max(k - 1, 1)
        candidates = (variant.options.candidates if variant.options.proposer == "lookahead" else 1)
        # alpha, and the costs of a proposal and of a verification in steps of one token
        alpha = (self.overlap(variant)
                 if variant.mode == "speculative" and not kind.proposes_tree
                 else cost_model.acceptance_rate(traces, k, candidates))
        c = variant.proposing / gamma / call
        verify = max(variant.iteration - variant.proposing, 0.0) / call
        best = cost_model.best_gamma(alpha, c, self.largest(variant.options.proposer) - 1,
                                     max(verify - 1, 0.0) / gamma, candidates)
        return {
            "proposer": variant.options.proposer, "mode": variant.mode, "block_size": k,
            "mean_accepted_block_size": mean_accepted_block_size(traces),
            "model_calls": sum(trace.model_calls for trace in traces) / len(traces),
            "seconds": variant.seconds / len(traces),
            "speed_up": (baseline.seconds / baseline.tokens) / (variant.seconds / variant.tokens),
            "alpha": alpha, "c": c, "verify": verify, "best_block_size": 1 + best,
            "extra_bytes": self.extra_bytes(variant), "training": kind.training}

    def overlap(self, variant: Variant) -> float:
        """Return E[min(p, q)], measured in a separate decoding of the first batch."""
        if variant.proposer is None:
            return 0.0
        return cost_model.mean_overlap(loop_of(self.pipeline.scoring, self.batches[0],
                                               variant.options, variant.proposer, is_single=True))

    def extra_bytes(self, variant: Variant) -> int:
        """Return the memory of the proposer in bytes: its weights, tables, and state of a batch."""
        if variant.proposer is None:
            return 0
        held = variant.proposer.weight_bytes
        if variant.proposer.uses_heads and self.pipeline.model.heads is not None:
            held += sum(weight.numel() * weight.element_size()
                        for weight in self.pipeline.model.heads.parameters())
        source, padding = (None if part is None else torch.from_numpy(part).to(self.pipeline.device)
                           for part in self.batches[0])
        with torch.inference_mode():
            state = variant.proposer.new_state(source, variant.options.block_size or 1, padding, 1)
        return held + sum(part.numel() * part.element_size()
                          for part in (state.row_state() if state else []))


ALL: Columns = {
    "proposer": ("proposer", 0), "mode": ("mode", 0), "k": ("block_size", 0),
    "mean accepted block size": ("mean_accepted_block_size", 2), "speed-up": ("speed_up", 2),
    "alpha": ("alpha", 3), "c": ("c", 3), "call": ("verify", 2), "model calls": ("model_calls", 1),
    "best k": ("best_block_size", 0)}
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
    fastest = [max((row for row in found["rows"]
                    if row["proposer"] == name and row["mode"] in modes),
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
    proposers: Annotated[str, typer.Option(metavar="all|NAME,NAME...",
                                           help="Proposers to compare.")] = "all",
    batch: Annotated[int, typer.Option(min=1, help="Rows per batch.")] = 1,
    count: Annotated[int | None, typer.Option(min=1, help="Batches; 3 of images or 24 of text if "
                                              "left out.")] = None,
    temperature: Annotated[float, typer.Option(help="Temperature of sampling, above 0.")] = 0.9,
    block_size: Annotated[int | None, typer.Option(min=2, help="First block size; the proposer's "
                                                   "own if left out.")] = None,
    draft: Annotated[str | None, typer.Option(help="Checkpoint of the draft proposer.")] = None,
    ngrams: Annotated[str | None, typer.Option(help="Table of the ngram proposer.")] = None,
    device: Device = "auto", engine: Engine = "auto", busy: Busy = False, page: Page = None,
) -> None:
    """Measure proposers at their default and at their best block size by the cost model."""
    names = parse_proposers(proposers)
    if not busy:
        require_idle()
    count = count or (3 if task is Task.images else 24)
    if task is Task.images:
        work = image_work(checkpoint or DEFAULT_CHECKPOINT, device, engine, data, batch * count)
    else:
        work = text_work(checkpoint or DEFAULT_TRANSLATOR, device, engine, data)
    source = work.source(batch * count)
    base = DecodeConfig(block_size=block_size, draft=draft, ngrams=ngrams)
    record = {name: value for name, value in run_record(work).items() if name != "machine"}
    table = Table("proposers", output, {
        **record, "data": short_digest(source.tobytes()), "batch": batch,
        "batches": count, "temperature": temperature}, work.pipeline.device,
                  f"proposers-{task.value}")
    batches = [batch_of(work.pipeline, source[start : start + batch])
               for start in range(0, len(source), batch)]
    comparison = Comparison(work.pipeline, batches, temperature, base)
    table.measure([Row("comparison", lambda: comparison.measure(names),
                       {"proposers": names, "base": base.to_dict()})])
    table.finish(page)


if __name__ == "__main__":
    run(main)
