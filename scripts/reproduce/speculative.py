"""Speculative decoding: acceptance rates, tokens per step, time and operations, predicted and
measured.

The figures follow Leviathan et al. (2023), "Fast Inference from Transformers via Speculative
Decoding", Figures 2 to 4 and Tables 2 and 3. A draft is any proposer of one continuation. alpha is
E[min(p, q)] (section 3.2) and gamma the number of proposals per step, so the block size is gamma +
1.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

sys.path += [str(Path(__file__).resolve().parents[1]),
             str(Path(__file__).resolve().parents[1] / "benchmark")]

from cost_model import (
    acceptance_rate,
    expected_tokens,
    improvement_factor,
    operations_factor,
    overlaps,
    whole_factor,
)
from decodes import decode
from measurements import (
    Columns,
    Document,
    Line,
    Panel,
    Row,
    Values,
    columns_table,
    draw,
    interval,
    ratio,
    values,
)
from proposers import Batch, Variant, alternate, batch_of, proposal_weights
from superres.cli.benchmark import image_work, text_work
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR, DecodeConfig, require
from superres.decoding.acceptance import CRITERIA
from superres.decoding.algorithm import Algorithm
from superres.decoding.cost import run_from
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.draft import READ, DraftProposer
from superres.decoding.proposers.ngrams import NgramProposer
from superres.decoding.proposers.proposer import Proposer
from superres.decoding.trace import mean_accepted_block_size
from superres.evaluation.benchmark import run_record
from superres.evaluation.workload import Workload, step_weights
from superres.system.machine import Timer
from superres.system.output import markdown_table

if TYPE_CHECKING:
    from superres.interfaces import ScoringModel
    from superres.pipeline.pipeline import Pipeline

PAPER_ALPHA: dict[str, dict[float, float]] = {
    "unigram": {0.0: 0.08, 1.0: 0.07}, "bigram": {0.0: 0.20, 1.0: 0.19},
    "T5-small (77M)": {0.0: 0.75, 1.0: 0.62}, "T5-base (250M)": {0.0: 0.80, 1.0: 0.68},
    "T5-large (800M)": {0.0: 0.82, 1.0: 0.71},
}
"""The paper's Table 3: alpha by draft and temperature, for T5-XXL (11B) translating English to
German."""
TEMPERATURES = (0.0, 0.3, 0.6, 0.9, 1.0)
TIMED = (0.0, 1.0)
"""Temperatures at which decoding is timed, those of the paper's Table 2."""
GAMMAS = (1, 2, 3, 5, 7)
QUICK_TEMPERATURES, QUICK_GAMMAS = (0.0, 1.0), (1, 3)
STEPS = 16
"""Number of steps of a draft model that are timed together, and how often."""
NEAR = 0.15
"""Largest relative error of a prediction that counts as near."""


@dataclass(frozen=True)
class Draft:
    """A source of proposals, with the options that choose it, and its weights per step as a share
    of the verifier's."""

    name: str
    options: DecodeConfig
    proposer: Proposer
    share: float

    @property
    def network(self) -> ScoringModel | None:
        """The draft model, if it is one."""
        return self.proposer.draft if isinstance(self.proposer, DraftProposer) else None


def find_drafts(pipeline: Pipeline, names: Sequence[str], gamma: int) -> list[Draft]:
    """Return the drafts of a checkpoint: unigrams and bigrams, lookup, heads, and the draft models
    `names`.

    Without names, the draft model is the one beside the checkpoint. N-grams and a draft that the
    checkpoint lacks are left out, and heads that are fewer than `gamma` + 1. Raises CheckpointError
    or ConfigError for an unusable name.
    """
    found: list[tuple[str, DecodeConfig, Proposer]] = []
    counted, lookup, heads = (DecodeConfig(proposer=name) for name in ("ngram", "lookup", "heads"))
    if pipeline.proposers.has(counted) and isinstance(ngrams := pipeline.proposers.get(counted),
                                                      NgramProposer):
        found += [(name, counted, NgramProposer(ngrams.table.truncated(order)))
                  for order, name in enumerate(("unigram", "bigram"), 1)]
    found.append(("lookup", lookup, PROPOSERS["lookup"]()))
    if pipeline.model_config.prediction_heads > gamma:
        found.append(("heads", heads, PROPOSERS["heads"]()))
    drafted = [DecodeConfig(proposer="draft", draft=name) for name in names or [None]]
    found += [("", options, proposer) for options in drafted if pipeline.proposers.has(options)
              and (proposer := pipeline.proposers.get(options)) is not None]
    drafts = []
    for name, options, proposer in found:
        share = proposal_weights(pipeline.model, proposer) / step_weights(pipeline.model)
        drafts.append(Draft(name or f"draft of {100 * share:.1f} %", options, proposer, share))
    unique = {draft.name: draft for draft in drafts}
    require(len(unique) == len(drafts), "two drafts have as many weights: "
            f"{', '.join(one.name for one in drafts)}; leave one --draft out")
    return drafts


def sampled(options: DecodeConfig, temperature: float, block_size: int) -> DecodeConfig:
    """Return `options` in blocks of `block_size`: greedy at temperature 0, else with speculative
    sampling."""
    return dataclasses.replace(options, temperature=temperature, block_size=block_size,
                               sampling="speculative" if temperature else "coupled")


# Acceptance rates


def acceptance(pipeline: Pipeline, draft: Draft, batch: Batch,
               temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the sums of min(p, q) over the proposals of each row, and the numbers of proposals,
    float64 [B] each.

    One proposal is verified per step (gamma = 1). At temperature 0, p and q are 1 at one token
    each.
    """
    source, padding = batch
    options = sampled(draft.options, temperature, 2)
    if not temperature:
        traces = decode(pipeline.scoring, source, options, padding=padding,
                        proposer=draft.proposer).traces
        passed = np.array([trace.tokens - trace.iterations for trace in traces], float)
        return passed, passed + [sum(count == 1 for count in trace.accepted[:-1])
                                 for trace in traces]
    # A criterion of its own keeps the loop on single iterations, which `overlaps` observes.
    algorithm = Algorithm(pipeline.scoring, options, draft.proposer,
                          CRITERIA[options.accept](options))
    keys = torch.arange(len(source), device=source.device)
    with torch.inference_mode():
        session = algorithm.model.session(source, 2, padding)
        return overlaps(BlockwiseLoop(algorithm, session, keys, 2))


def alpha_values(pipeline: Pipeline, draft: Draft, batch: Batch,
                 temperatures: Sequence[float]) -> Values:
    """Return alpha by temperature with intervals over rows, and the difference of both ends on the
    same inputs.

    `sharper` is alpha at the lowest temperature minus that at the highest.
    """
    found = [ratio(*acceptance(pipeline, draft, batch, temperature))
             for temperature in temperatures]
    return {
        "share": draft.share, "named": draft.options.draft, "temperatures": [*temperatures],
        "alpha": [mean for mean, _ in found],
        "intervals": [interval(samples) for _, samples in found],
        "sharper": found[0][0] - found[-1][0],
        "sharper_interval": interval(found[0][1] - found[-1][1])}


# Times


def timed_cells(
    pipeline: Pipeline, drafts: Sequence[Draft], batches: Sequence[Batch], temperature: float,
    gammas: Sequence[int], alphas: dict[str, float],
) -> list[Values]:
    """Time all drafts at a temperature and at every gamma; return a row for each.

    `alphas` is alpha by draft. Predictions use it, the time of a draft's own steps, and the time of
    the verifier's steps of gamma + 1 tokens. All are measured apart from the decodes that they
    predict.
    """
    verifier, plain = pipeline.scoring, DecodeConfig()
    mode = "speculative" if temperature else "greedy"

    def alone(width: int | None = None) -> Variant:
        return Variant(mode, sampled(plain, temperature, 1), None, width=width)

    variants: dict[tuple[str, int], tuple[ScoringModel, Variant]] = {("verifier", 0): (verifier,
                                                                                       alone())}
    variants |= {("verifier", gamma): (verifier, alone(gamma + 1)) for gamma in gammas}
    for draft in drafts:
        for gamma in gammas:
            options = sampled(draft.options, temperature, gamma + 1)
            variants[draft.name, gamma] = verifier, Variant(mode, options, draft.proposer)
    alternate(batches, variants)

    measured = {name: variant for name, (_, variant) in variants.items()}
    greedy, cells = measured["verifier", 0], []
    middle = greedy.tokens // len(batches) // 2
    for draft in drafts:
        own = None
        if draft.network is not None:
            own = own_steps(draft.network, verifier, batches[0], sampled(plain, temperature, 1),
                            middle)
        for gamma in gammas:
            cell = cell_of(measured[draft.name, gamma], greedy)
            verify = measured["verifier", gamma].iteration / greedy.iteration
            cell |= predictions(draft, cell, gamma, alphas[draft.name], own, verify)
            cells.append({"draft": draft.name, "temperature": temperature, "gamma": gamma, **cell})
    return cells


@torch.inference_mode()
def own_steps(
    draft: ScoringModel, verifier: ScoringModel, batch: Batch, options: DecodeConfig, position: int,
) -> tuple[float, float]:
    """Return the costs of the draft's first step of an iteration and of a further one, in steps of
    the verifier.

    All are steps of the engine itself, without the loop's work between its calls, since a draft
    model does its steps within one iteration. The first reads the token before the block as well
    (READ). Its cost includes what it and the verifier lose in turns, where both find the other's
    data in the processor's caches, if that is more than twice its standard error. Steps are of one
    token per row, from `position` on, with `options`.
    """
    source, padding = batch
    keys, timer = torch.arange(len(source), device=source.device), Timer(source.device)

    def loop_of(model: ScoringModel, width: int) -> BlockwiseLoop:
        loop = BlockwiseLoop(Algorithm(model, options), model.session(source, width, padding), keys,
                             1)
        loop.plain.end_token = None  # further steps would cost nothing
        run_from(loop, position, STEPS)
        return loop

    first, further, verifying = loop_of(draft, READ), loop_of(draft, 1), loop_of(verifier, 1)

    def seconds(*loops: BlockwiseLoop, rounds: int = 1, count: int = 1) -> float:
        """Return the seconds per round, which makes `count` steps of each loop, one loop after the
        other."""
        def steps() -> None:
            for _ in range(rounds):
                for loop in loops:
                    run_from(loop, position, count)

        return timer.once(steps) / rounds

    def per_step(loop: BlockwiseLoop) -> float:
        return statistics.median(seconds(loop, count=STEPS) for _ in range(STEPS)) / STEPS

    step, warm, rest = (per_step(loop) for loop in (verifying, first, further))
    # All three make calls of single steps, so that their difference is what the other's data
    # displaces.
    turns = [seconds(verifying, first, rounds=STEPS) - seconds(verifying,
                                                               rounds=STEPS) - seconds(first,
                                                                                       rounds=STEPS)
             for _ in range(4 * STEPS)]
    displaced, error = statistics.median(turns), statistics.stdev(turns) / len(turns) ** 0.5
    return (warm + (displaced if displaced > 2 * error else 0.0)) / step, rest / step


def cell_of(variant: Variant, greedy: Variant) -> Values:
    """Return what was measured of a variant; times are in steps of `greedy`, which makes one token
    per step."""
    step, k = greedy.iteration, variant.options.block_size or 1
    traces = [trace for decoded in variant.decoded for trace in decoded.traces]
    c = variant.proposing / max(k - 1, 1) / step
    return {
        "tokens": mean_accepted_block_size(traces), "speed_up": greedy.seconds / greedy.tokens
        * variant.tokens
        / variant.seconds, "alpha_seen": acceptance_rate(traces, k), "c": c,
        "verify": variant.iteration / step - (k - 1) * c, "fixed": variant.fixed / step,
        "greedy_fixed": greedy.fixed / step, "length": greedy.tokens / len(greedy.decoded),
    }


def predictions(
    draft: Draft, cell: Values, gamma: int, alpha: float, own: Sequence[float] | None,
    verify: float,
) -> Values:
    """Return the predictions for a cell of `cell_of`.

    `own` are the costs of the draft's own steps, those of `own_steps`, and `verify` is that of a
    verifier's step of gamma + 1 tokens, in steps of one token. Without a draft network, c is 0 for
    n-grams and lookup as in the paper, and the measured one for heads, whose steps cannot be timed
    apart.
    """
    c = None if own is None else (own[0] + (gamma - 1) * own[1]) / gamma
    known = c if c is not None else cell["c"] if draft.proposer.uses_heads else 0.0
    here = improvement_factor(alpha, gamma, known, verify)
    return {
        "alpha": alpha, "predicted_c": c, "predicted_verify": verify,
        "predicted_tokens": expected_tokens(alpha, gamma),
        "paper_speed_up": improvement_factor(alpha, gamma, known),
        "predicted_speed_up": whole_factor(here, cell["length"], cell["fixed"],
                                           cell["greedy_fixed"]),
        "predicted_operations": operations_factor(alpha, gamma, draft.share),
        "operations": (gamma * draft.share + gamma + 1) / cell["tokens"],
    }


def best_gammas(cells: Sequence[Values]) -> list[Values]:
    """Return for each draft and temperature the best gamma: by the paper's formula, by ours, and
    measured.

    All choose among the measured values of gamma, and 0, which decodes greedily.
    """
    rows = []
    for draft, temperature in dict.fromkeys((cell["draft"], cell["temperature"]) for cell in cells):
        own = [cell for cell in cells if (cell["draft"], cell["temperature"]) == (draft,
                                                                                  temperature)]
        row = {"draft": draft, "temperature": temperature}
        for name in ("paper_speed_up", "predicted_speed_up", "speed_up"):
            best = max(own, key=lambda cell, name=name: cell[name])
            row[name], row[f"{name}_gamma"] = (best[name],
                                               best["gamma"]) if best[name] > 1 else (1.0, 0)
        chosen = row["predicted_speed_up_gamma"]
        row["chosen_speed_up"] = next((cell["speed_up"] for cell in own if cell["gamma"] == chosen),
                                      1.0)
        rows.append(row)
    return rows


PREDICTED = {
    "alpha": ("alpha", "alpha_seen"), "c (draft models)": ("predicted_c", "c"),
    "a call for gamma + 1 tokens": ("predicted_verify", "verify"),
    "tokens per step": ("predicted_tokens", "tokens"), "speed-up by the paper's "
    "formula": ("paper_speed_up", "speed_up"), "speed-up with the measured "
    "call": ("predicted_speed_up", "speed_up"),
    "operations": ("predicted_operations", "operations"),
}
"""What is predicted, with the entries of a cell that have the prediction and the measurement."""


def errors(cells: Sequence[Values]) -> list[Values]:
    """Return a row per prediction and kind of draft: how many are within NEAR of the measurement,
    and their errors."""
    rows = []
    kinds = {"draft models": lambda name: name.startswith("draft"),
             "heads": lambda name: name == "heads",
             "n-grams and lookup": lambda name: name in ("unigram", "bigram", "lookup")}
    for what, (predicted, measured) in PREDICTED.items():
        for kind, belongs in kinds.items():
            own = [cell[predicted] / cell[measured] - 1 for cell in cells
                   if belongs(cell["draft"]) and cell[predicted] is not None and cell[measured] > 0]
            if own:
                rows.append({"what": what, "kind": kind, "count": len(own),
                             "near": sum(abs(e) <= NEAR for e in own),
                             "median": float(np.median(own)), "least": min(own), "most": max(own)})
    return rows


# The table


def workload(task: str, checkpoint: str | None, device: str, engine: str, data: Path | None,
             count: int) -> Workload:
    """Return a checkpoint, the bundled one if None, and its inputs: `count` images, or
    sentences."""
    if task == "images":
        return image_work(checkpoint or DEFAULT_CHECKPOINT, device, engine, data, count)
    return text_work(checkpoint or DEFAULT_TRANSLATOR, device, engine, data)


def conditions(work: Workload, count: int, timed: int) -> Values:
    """Return what all rows have in common."""
    return {**{name: value for name, value in run_record(work).items() if name != "machine"},
            "rows": count, "timed": timed}


def rows(work: Workload, names: Sequence[str], count: int, timed: int,
         is_quick: bool) -> Iterator[Row]:
    """Return a row of alpha per draft, on `count` inputs together, and the times of `timed` of
    them, one by one.

    Raises:
        ConfigError: a number is out of range, or drafts do not fit.
        CheckpointError: a draft is missing.
    """
    require(1 <= timed <= count, f"rows and the timed ones of them must be positive, not {count} "
            f"and {timed}")
    temperatures, gammas = (QUICK_TEMPERATURES, QUICK_GAMMAS) if is_quick else (TEMPERATURES,
                                                                                GAMMAS)
    pipeline, source = work.pipeline, work.source(count)
    drafts, alphas = find_drafts(pipeline, names, max(gammas)), dict[str, Values]()
    spread = [batch_of(pipeline, row)
              for row in source[np.linspace(0, count - 1, timed).astype(int)].split(1)]
    settings = {"drafts": [draft.name for draft in drafts], "temperatures": temperatures,
                "gammas": gammas}

    def alpha_of(draft: Draft) -> Values:
        if draft.name not in alphas:
            alphas[draft.name] = alpha_values(pipeline, draft, batch_of(pipeline, source),
                                              temperatures)
        return alphas[draft.name]

    def times(temperature: float) -> Values:
        at = temperatures.index(temperature)
        return {"cells": timed_cells(pipeline, drafts, spread, temperature, gammas,
                                     {draft.name: alpha_of(draft)["alpha"][at]
                                      for draft in drafts})}

    for draft in drafts:
        yield Row(f"alpha of {draft.name}", lambda draft=draft: alpha_of(draft), settings)
    for temperature in TIMED:
        yield Row(f"times at temperature {temperature:g}", lambda at=temperature: times(at),
                  settings)


def cells_of(document: Document) -> list[Values]:
    """Return the timed cells of all temperatures."""
    return [cell for found in values(document, "times ").values() for cell in found["cells"]]


# Views


def alpha_table(document: Document) -> str:
    """Return alpha by draft and temperature, with the paper's figures for translation."""
    found = values(document, "alpha of ")
    temperatures = next(iter(found.values()))["temperatures"]
    table = [[name, f"{100 * row['share']:.1f}",
              *(f"{mean:.3f} ±{(high - low) / 2:.3f}" for mean, (low, high) in
                zip(row["alpha"], row["intervals"], strict=True)),
              f"{row['sharper']:+.3f} ({row['sharper_interval'][0]:+.3f} to "
              f"{row['sharper_interval'][1]:+.3f})",
              is_positive(row["sharper_interval"])] for name, row in found.items()]
    if document["conditions"]["task"] == "translation":
        table += [[f"paper: {name}", "-",
                   *(f"{known[one]:.2f}" if one in known else "-" for one in temperatures),
                   f"{known[0.0] - known[1.0]:+.2f}", "yes"] for name, known in PAPER_ALPHA.items()]
    return markdown_table(
        ["draft", "weights, %", *(f"T = {one:g}" for one in temperatures),
         f"T = {temperatures[0]:g} minus T = {temperatures[-1]:g}", "sharper is larger"], table)


def is_positive(bounds: Sequence[float]) -> str:
    """Return whether a difference with this interval is positive: "yes", "no" or "undecided"."""
    return "yes" if bounds[0] > 0 else "no" if bounds[1] < 0 else "undecided"


def errors_table(cells: Sequence[Values]) -> str:
    """Return how many predictions are within NEAR of the measurement, and their median error, by
    kind of draft."""
    found = {(row["what"], row["kind"]): f"{row['near']} of {row['count']} "
             f"({100 * row['median']:+.0f} %)"
             for row in errors(cells)}
    whats, kinds = ([*dict.fromkeys(part)] for part in zip(*found, strict=True))
    return markdown_table([f"within {100 * NEAR:.0f} % (median error)", *kinds],
                          [[what, *(found.get((what, kind), "-") for kind in kinds)]
                           for what in whats])


def chosen(name: str) -> Any:  # noqa: ANN401 -- a function of a row
    """Return the function that gives the best gamma by a speed-up of `best_gammas`, with this
    speed-up."""
    return lambda row: f"{row[f'{name}_gamma']} ({row[name]:.2f})"


BEST: Columns = {
    "draft": ("draft", 0), "T": ("temperature", 0),
    "theorem 3.8: gamma (speed-up)": (chosen("paper_speed_up"), 0),
    "with the measured call": (chosen("predicted_speed_up"), 0),
    "measured": (chosen("speed_up"), 0),
}
CELLS: Columns = {
    "draft": ("draft", 0), "T": ("temperature", 0), "gamma": ("gamma", 0), "alpha": ("alpha", 3),
    "alpha seen": ("alpha_seen", 3), "c": ("predicted_c", 3), "c, measured": ("c", 3),
    "call": ("predicted_verify", 2), "call, measured": ("verify", 2),
    "tokens per step": ("predicted_tokens", 2), "tokens, measured": ("tokens", 2),
    "speed-up, paper": ("paper_speed_up", 2), "ours": ("predicted_speed_up", 2),
    "measured": ("speed_up", 2), "operations": ("operations", 2),
}
"""Predictions, each before its measurement."""


def views(document: Document) -> dict[str, str]:
    """Return alpha, the best gamma of each draft, the errors of the predictions, and all cells."""
    cells = cells_of(document)
    return {"alpha": alpha_table(document), "best": columns_table(best_gammas(cells), BEST),
            "errors": errors_table(cells), "cells": columns_table(cells, CELLS)}


def plots(document: Document) -> dict[str, bytes]:
    """Return a plot: tokens per step over alpha, speed-up over gamma, and operations over gamma;
    curves are predicted.

    Points are measured, at the highest timed temperature. The curves of the speed-up are those of
    theorem 3.8 (dotted) and with the measured call (solid).
    """
    cells = [cell for cell in cells_of(document) if cell["temperature"] == TIMED[-1]]
    names, gammas = ([*dict.fromkeys(cell[key] for cell in cells)] for key in ("draft", "gamma"))
    alphas = np.linspace(0, 1, 101)
    tokens = [Line([(alpha, expected_tokens(alpha, gamma)) for alpha in alphas], None, "grey", "-")
              for gamma in gammas]
    speed, operations = list[Line](), list[Line]()
    for number, name in enumerate(names):
        own, colour = [cell for cell in cells if cell["draft"] == name], f"C{number}"
        tokens.append(Line([(cell["alpha"], cell["tokens"]) for cell in own], name, colour, "o"))
        for lines, entry, style in ((speed, "speed_up", "o"), (speed, "predicted_speed_up", "-"),
                                    (speed, "paper_speed_up", ":"), (operations, "operations", "o"),
                                    (operations, "predicted_operations", "-")):
            lines.append(Line([(cell["gamma"], cell[entry]) for cell in own], None, colour, style))
    panels = [Panel(tokens, {"title": "tokens per step", "xlabel": "alpha",
                             "ylabel": "tokens per step"}),
              Panel(speed, {"title": "speed-up (dotted: theorem 3.8; solid: measured call)",
                            "xlabel": "gamma", "ylabel": "speed-up over greedy decoding"}),
              Panel(operations, {"title": "operations (theorem 3.11)", "xlabel": "gamma",
                                 "ylabel": "operations per token over greedy decoding"})]
    task = {"faces": "images", "translation": "text"}[document["conditions"]["task"]]
    return {f"speculative-{task}.png": draw(panels, 3, (12, 4.5))}
