"""Measure every rule of `scripts/rules`: how many tokens a step gives, and how far its samples are
from those of the network.

    python scripts/benchmark/rules.py --data dev.npz --output rules
    python scripts/benchmark/rules.py --data dev64.npz --checkpoint celeba-32to64 --rules "SJD++"

All rules draw the same faces with the same seeds, at temperature 0.9 from the nucleus of 0.9,
without limits, so that p1 is the network alone. A rule "is" not lossless if one of these tests has
p below 0.001: three of chi-square, of the first tokens of a face, whose distribution is enumerated;
and those of pictures beside the same faces drawn token by token, by bits/dim and by ST-LPIPS. What
is drawn is kept in --output.

With --sheets, raters get a sheet of faces per rule under a number; --torn reads which faces they
found torn, as {sheet: [numbers of faces]}.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parents[1] / "rules"))

from measurements import (
    Checkpoint,
    Columns,
    Document,
    Engine,
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
from rule import Rule, all_rules
from rule_costs import cost_models, draft_engine
from rule_distances import BEGINNINGS, LEVEL, OUTCOMES, Reference, chi_squares, outcome_of
from rule_draws import NUCLEUS, TEMPERATURE, Drawing, Drawn
from rule_pictures import plot, torn_shares, write_sheets
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig, require
from superres.evaluation.intervals import Entries, Estimate, with_interval
from superres.pipeline.upscaler import Upscaler
from superres.system.output import short_digest
from superres.tasks.face_data import read_faces

BASELINE = "token by token"
"""The rule that all others are compared with."""


def steps(drawn: Drawn) -> Entries:
    """Return the tokens per step and the model calls of pictures, with intervals over pictures."""
    tokens = np.full(len(drawn.tokens), float(drawn.tokens.shape[1]))
    calls = drawn.iterations.astype(np.float64)
    return (Estimate.ratio(tokens, calls).entries("tokens_per_step")
            | with_interval("model_calls", calls + 1))


def greedy_options(drawing: Drawing, rule: Rule) -> DecodeConfig | None:
    """Return how a rule decodes at temperature 0; None for rules of drawn proposals, which have no
    such form."""
    if rule.settings.get("sampling") == "speculative":
        return None
    return drawing.options(rule, temperature=0.0, nucleus=1.0)


def greedily(drawing: Drawing, rule: Rule, baseline: Rule, count: int) -> Values | None:
    """Return what a rule does at temperature 0, beside the tokens of greedy decoding."""
    options, alone = greedy_options(drawing, rule), greedy_options(drawing, baseline)
    if options is None or alone is None or not count:
        return None
    drawn, wanted = (drawing.drawn(one, how, count) for one, how in ((rule, options),
                                                                     (baseline, alone)))
    same = drawn.tokens == wanted.tokens
    return {**steps(drawn), "equal_tokens": float(same.mean()),
            "equal_pictures": float(same.all(1).mean())}


def measure(drawing: Drawing, rule: Rule, reference: Callable[[], Reference], baseline: Rule,
            samples: int, greedy: int) -> Values:
    """Return all values of a rule; its costs are those of the engine of `drawing`."""
    options, started, own = drawing.options(rule), time.perf_counter(), drawing.on(rule.engine)
    drawn = own.drawn(rule, options, len(drawing.pairs))
    columns, found = float(drawn.columns.mean()), steps(drawn)
    drafts = drawing.upscaler.block_size(options) - 1 if draft_engine(drawing.upscaler,
                                                                      options) else 0
    tokens = float(found["tokens_per_step"] or 0)
    speed_ups = {f"speed_up_{name}": model.speed_up(tokens, columns, drafts)
                 for name, model in cost_models(drawing.upscaler, options).items()}
    tested = chi_squares(own, options, samples) if rule.decode is None and samples else []
    return {"claims": rule.claims, "paper": rule.paper, "needs": rule.needs,
            "block_size": rule.settings.get("block_size"), "columns": columns, **found,
            **speed_ups, "chi_square": tested, **reference().distances(drawn),
            "greedy": greedily(drawing, rule, baseline, greedy),
            "seconds": time.perf_counter() - started}


def rows(drawing: Drawing, rules: dict[str, Rule], samples: int, greedy: int) -> list[Row]:
    """Return a row per rule; the first rule is the baseline."""
    baseline = rules[BASELINE]
    kept: list[Reference] = []

    def reference() -> Reference:
        if not kept:
            options = drawing.options(baseline)
            kept.append(Reference(drawing, drawing.drawn(baseline, options, len(drawing.pairs))))
        return kept[0]

    also = {"samples": samples, "greedy": greedy, "beginnings": BEGINNINGS}
    return [Row(name, partial(measure, drawing, rule, reference, baseline, samples, greedy),
                drawing.on(rule.engine).settings(rule, drawing.options(rule)) | also)
            for name, rule in rules.items()]


def chosen(names: str) -> dict[str, Rule]:
    """Return the rules named in a list such as "SJD; heads, exact", or all, after the baseline."""
    known = all_rules()
    wanted = list(known) if names == "all" else [name.strip() for name in names.split(";")]
    for name in wanted:
        require(name in known, f"--rules takes all, or names of {'; '.join(known)}, not {name!r}")
    return {name: known[name] for name in dict.fromkeys([BASELINE, *wanted])}


# Tables


def table_rows(document: Document) -> list[Values]:
    """Return the values of the rules with their names, and with what was found of their claim: by
    this, and by tokens per step."""
    found = [{"rule": name, **one, "outcome": outcome_of(one)}
             for name, one in values(document).items()]
    return sorted(found, key=lambda row: (OUTCOMES.index(row["outcome"]), -row["tokens_per_step"]))


def p_text(row: Values) -> str:
    """Return the p of the chi-square tests of a rule."""
    return ", ".join(f"{p:.2f}" if p >= 0.01 else f"{p:.0e}" if p >= 1e-9 else "< 1e-9"
                     for p in row["chi_square"]) or "-"


def torn_text(row: Values) -> str:
    """Return the share of torn pictures and its interval, in per cent."""
    if "torn" not in row:
        return "-"
    return f"{100 * row['torn']:.0f} ({100 * row['torn_low']:.0f}-{100 * row['torn_high']:.0f})"


MAIN: Columns = {
    "rule": ("rule", 0), "claims": ("claims", 0), "is": ("outcome", 0), "k": ("block_size", 0),
    "columns": ("columns", 1), "tokens per step": ("tokens_per_step", 2),
    "model calls": ("model_calls", 0), "speed-up, CPU": ("speed_up_cpu", 2),
    "H200, 1 face": ("speed_up_h200", 2), "H200, 1,024 faces": ("speed_up_h200_full", 2),
    "flat": ("speed_up_flat", 2), "needs": ("needs", 0)}
DISTANCES: Columns = {
    "rule": ("rule", 0), "chi-square, p": (p_text, 0), "bits/dim": ("bits_per_dim", 3),
    "above token by token": ("bits_above", 4),
    "equal pictures, %": (lambda row: 100 * row["equal_pictures"], 0),
    "off input, grey levels": ("off", 2),
    "ST-LPIPS": ("st_lpips", 3), "ST-LPIPS above": ("st_lpips_above", 4),
    "torn, %": (torn_text, 0)}
GREEDY: Columns = {
    "rule": ("rule", 0), "tokens per step": ("tokens_per_step", 2),
    "equal tokens, %": (lambda row: 100 * row["equal_tokens"], 1),
    "equal pictures, %": (lambda row: 100 * row["equal_pictures"], 0)}


def views(document: Document) -> dict[str, str]:
    """Return the rules with their speed, their distances, and what they do at temperature 0."""
    found = table_rows(document)
    greedy = [{"rule": row["rule"], **row["greedy"]} for row in found if row["greedy"]]
    return {"rules": columns_table(found, MAIN), "distances": columns_table(found, DISTANCES),
            "greedy": columns_table(greedy, GREEDY)}


def plots(document: Document) -> dict[str, bytes]:
    """Return the plot of tokens per step against the difference in bits/dim."""
    points = [{"name": row["rule"], "x": row["tokens_per_step"], "y": row["bits_above"],
               "half": row["bits_above_half_width"], "claims": row["claims"],
               "is": row["outcome"]} for row in table_rows(document)]
    return {f"{document['conditions']['name']}.png": plot(points)}


def name_of(upscaler: Upscaler) -> str:
    """Return the name of the document of a checkpoint."""
    target = upscaler.face_task.target
    return "rules" if upscaler.name == DEFAULT_CHECKPOINT else f"rules-{target}"


def main(
    data: Faces, output: Output = Path("rules"), checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    rules: Annotated[str, typer.Option(metavar="all|NAME;NAME...",
                                       help="Rules to measure.")] = "all",
    faces: Annotated[int, typer.Option(min=2, help="Faces that each rule draws.")] = 100,
    samples: Annotated[int, typer.Option(min=0, help="Samples of each chi-square test; 0 for "
                                         "none.")] = 5000,
    greedy: Annotated[int, typer.Option(min=0, help="Faces that are drawn at temperature 0.")] = 20,
    engine: Engine = "native", page: Page = None,
    sheets: Annotated[Path | None, typer.Option(help="Folder for the sheets of raters; their key "
                                                "is in --output.")] = None,
    torn: Annotated[Path | None, typer.Option(help="Judgements of the sheets, JSON.")] = None,
) -> None:
    """Measure the rules, and print their tables."""
    asked = chosen(rules)
    upscaler = Upscaler.load(checkpoint, "cpu", engine)
    drawing = Drawing(upscaler, read_faces(data, upscaler.face_task, "valid", faces), output)
    name = name_of(upscaler)
    table = Table("rules", output, {
        "name": name, "checkpoint": f"{upscaler.name}@{upscaler.revision}", "engine": engine,
        "faces": len(drawing.pairs), "data": short_digest(drawing.source.tobytes()),
        "temperature": TEMPERATURE, "nucleus": NUCLEUS, "level": LEVEL}, name=name)
    table.measure(rows(drawing, asked, samples, min(greedy, len(drawing.pairs))))
    key = output / f"{name}-key.json"
    if sheets is not None:
        write_sheets({rule: own.pictures(own.drawn(one, own.options(one), len(own.pairs)))
                      for rule, one in asked.items() for own in [drawing.on(one.engine)]},
                     sheets, key)
    if torn is not None:
        for rule, share in torn_shares(torn, key).items():
            table.document["rows"][rule]["values"] |= share
    table.finish(page)


if __name__ == "__main__":
    run(main)
