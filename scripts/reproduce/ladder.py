"""What Tables 1 and 2 share: the ladder of networks, the series that are measured, and the paper's
conclusions.

A ladder is a run folder of `superres train ladder` with the recipe of a table. Its networks were
trained from one base in the same way, so the rows of a table differ in their names. Every network
has the name of its stage.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import (
    Columns,
    Document,
    Line,
    Panel,
    Row,
    cell_text,
    columns_table,
    draw,
    values,
    verdict,
)
from superres.checkpoint import read_training, weights_digest
from superres.config import DecodeConfig, require
from superres.system.output import markdown_table, short_digest
from superres.system.progress import say
from superres.training.recipes import read_recipe, train_recipe

if TYPE_CHECKING:
    from superres.pipeline.pipeline import Pipeline

Cell = dict[str, Any]
Records = dict[str, list[dict[str, Any]]]
"""The rows of training of each network, from `superres.checkpoint.read_training`, by role."""

RECIPES = Path(__file__).resolve().parents[1] / "train" / "recipes"
COMMON = ("steps", "images_seen", "pairs_seen")
DIGESTS = ("start_digest", "data_digest")
"""Entries of a training record in which networks may not differ; nor may they in settings other
than VARIED."""
VARIED = ("freeze_base", "head_loss", "head_target", "head_positions")
"""Settings of training in which the networks may differ."""
QUICK: dict[str, Any] = {"steps": 2, "batch_size": 2, "warmup_steps": 1, "snapshots": 2,
                         "head_positions": 8}
"""Settings of every stage of a ladder that only shows that all works."""
BLOCK_SIZES = (1, 2, 4, 6, 8, 10)
"""Block sizes k of the tables of the paper."""
EXACT = DecodeConfig()
ACCEPTED = "mean_accepted_block_size"


@dataclass(frozen=True)
class Series:
    """Measurements of one network with one criterion at increasing block sizes: a column of a table
    of the paper.

    `title` says how the heads were trained, `checkpoint` is the role of the network, the name of
    its stage. `paper` has the paper's scores by block size k and name of the score.
    """

    title: str
    checkpoint: str
    decode: DecodeConfig = EXACT
    paper: dict[int, dict[str, float]] = field(default_factory=dict)
    block_sizes: tuple[int, ...] = BLOCK_SIZES

    def ways(self, prediction_heads: int) -> dict[int, DecodeConfig]:
        """Return the settings by block size k up to the number of heads, greedy decoding (k = 1)
        first."""
        return {k: dataclasses.replace(self.decode, block_size=k) for k in self.block_sizes
                if k <= prediction_heads}


@dataclass(frozen=True)
class Claim:
    """A statement of the paper: at block size k, the `score` of one series is more than `factor`
    times another's."""

    text: str
    better: str
    other: str
    block_size: int
    factor: float = 1.0
    score: str = ACCEPTED
    other_block_size: int | None = None

    def row(self, series: Mapping[str, Series], document: Document) -> list[str]:
        """Return the claim, the paper's two scores and ours with intervals, and the verdict.

        If the document has the difference of the scores on the same examples, it decides.
        """
        places = ((self.better, self.block_size),
                  (self.other, self.other_block_size or self.block_size))
        theirs = [cell_text(series[name].paper.get(k, {}).get(self.score), 2) for name, k in places]
        better, other = (cells_of(document, name).get(k, {}) for name, k in places)
        text = self.text if self.factor == 1 else f"{self.text} (more than {self.factor:g} times)"
        known = values(document, "difference ").get(self.text)
        if known is not None:
            ours = " and ".join(cell_text(cell.get(self.score), 2) for cell in (better, other))
            return [text, " and ".join(theirs), f"{ours} ({known['difference']:+.2f} "
                    f"±{known['half_width']:.2f})",
                    verdict(known["difference"], known["half_width"])]
        ours = " and ".join(cell_text(cell.get(self.score), 2, cell.get(f"{self.score}_half_width"))
                            for cell in (better, other))
        return [text, " and ".join(theirs), ours, self.verdict(better, other)]

    def verdict(self, better: Cell, other: Cell) -> str:
        """Return whether the claim holds, beyond the intervals of both scores."""
        if better.get(self.score) is None or other.get(self.score) is None:
            return "not measured"
        halves = [cell.get(f"{self.score}_half_width") or 0.0 for cell in (better, other)]
        return verdict(better[self.score] - self.factor * other[self.score],
                       (halves[0] ** 2 + (self.factor * halves[1]) ** 2) ** 0.5)


# The ladder


def train(recipe: Path, data: Path, dev: Path | None, folder: Path,
          quick: Mapping[str, Any] | None = None) -> None:
    """Train the ladder in `folder`, or go on there; finished stages are kept.

    With `quick`, every stage has the settings QUICK and these fields of the network, to show that
    all works.
    """
    def report(stage: str, record: dict[str, float]) -> None:
        losses = ", ".join(f"{name} {record[name]:.4g}" for name in ("p1", "heads")
                           if name in record)
        if record.get("step", 0) % 500 == 0:
            say(f"{stage}: step {record.get('step', 0)} {losses}")

    stages = read_recipe(recipe, data=data, dev=dev, output=folder)
    if quick is not None:
        stages = tuple(dataclasses.replace(stage, **QUICK, network={**stage.network, **quick})
                       for stage in stages)
    train_recipe(stages, lambda: False, report)


def read_ladder(folder: Path, roles: Sequence[str],
                kinds: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Return the checkpoints of the finished stages of a ladder by role, after `check_ladder`;
    ConfigError if none."""
    found = {role: folder / role / "checkpoint" for role in roles
             if (folder / role / "checkpoint").is_dir()}
    require(bool(found), f"{folder} has no finished stage {', '.join(roles)}; train the ladder "
            "there with --train")
    check_ladder({role: read_training(path) for role, path in found.items()}, kinds)
    return found


def check_ladder(records: Records, kinds: Mapping[str, str] | None = None) -> None:
    """Check that networks differ only in their heads' kind and loss, and in whether the base was
    frozen.

    Their base must never have been trained together with heads, or it would know how to serve them,
    frozen or not.

    Args:
        records: the rows of the networks' training.
        kinds: kind of training data by role; networks of another kind may have another base, which
            was trained in the same way on that data. One kind if None.

    Raises:
        ConfigError: they were not trained in the same way.
    """
    firsts: dict[str, str] = {}
    for role, rows in records.items():
        require(bool(rows), f"the network {role} has no training.jsonl; train the ladder anew")
        with_heads = [str(row.get("stage")) for row in rows[:-1] if row.get("stage") != "base"]
        require(not with_heads, f"the base of {role} was trained with heads before (stage "
                f"{', '.join(with_heads)}); train it from random weights")
        one = firsts.setdefault("" if kinds is None else kinds[role], role)
        require(rows[:-1] == records[one][:-1], f"{role} and {one} do not start from the same "
                "base; train them in one ladder")
        _check_alike(role, one, records, (*COMMON, *DIGESTS))
        _check_alike(role, next(iter(firsts.values())), records, COMMON)


def _check_alike(role: str, one: str, records: Records, common: Sequence[str]) -> None:
    """Raise ConfigError if any stage of two networks differs in the entries `common`, or in
    settings not in VARIED."""
    rows, others = records[role], records[one]
    require(len(rows) == len(others), f"{role} was trained in {len(rows)} stages and {one} in "
            f"{len(others)}; train them in one ladder")
    for row, other in zip(rows, others, strict=True):
        here, there = ({name: stage.get(name) for name in common} | stage.get("settings", {})
                       for stage in (row, other))
        different = [f"{name} {here[name]!r}, not {there.get(name)!r}" for name in here
                     if name not in VARIED and here[name] != there.get(name)]
        require(not different, f"{role} was trained otherwise than {one} ({', '.join(different)}); "
                "train them in one ladder")


# Rows


def series_row(name: str, pipeline: Pipeline, ways: Mapping[int, Any],
               cells: Callable[[], list[Cell]]) -> Row:
    """Return the row of a series, whose cells are measured together, since its block sizes take
    turns."""
    return Row(name, lambda: {"checkpoint": pipeline.name, "engine": pipeline.engine,
                              "cells": cells()},
               {"weights": pipeline.revision,
                "decode": [way.to_dict() for way in ways.values()]})


def curve_rows(ladder: Path, roles: Sequence[str], scores: Callable[[Path], Cell]) -> Iterator[Row]:
    """Return a row per network and snapshot of its training: what its heads accept after that
    number of steps."""
    for role in roles:
        for folder in sorted((ladder / role / "snapshots").glob("[0-9]*"),
                             key=lambda path: int(path.name)):
            yield Row(f"curve {role}, {folder.name} steps",
                      lambda folder=folder, role=role: {"role": role, "step": int(folder.name),
                                                        **scores(folder)},
                      {"weights": weights_digest(folder)})


def training_row(ladder: Path) -> Row:
    """Return the row with the record of a ladder's training."""
    stages = read_training(ladder)
    return Row("training", lambda: {"stages": stages},
               {"digest": short_digest(repr(stages).encode())})


# Views


def cells_of(document: Document, name: str) -> dict[int, Cell]:
    """Return the cells of a series by block size k; none if it is not measured."""
    return {cell["block_size"]: cell for cell in values(document).get(name, {"cells": []})["cells"]}


def measured(series: Mapping[str, Series], document: Document) -> dict[str, Series]:
    """Return the series that a document has."""
    return {name: one for name, one in series.items() if name in document["rows"]}


def common_views(
    claims: Sequence[Claim], series: Mapping[str, Series], document: Document, columns: Columns,
) -> dict[str, str]:
    """Return the views of both tables: the paper's conclusions, all scores, and the training of the
    networks.

    A quick run, of networks that have hardly been trained, has no verdicts on the conclusions.
    """
    scores = [{"series": name, **cell} for name in measured(series, document)
              for cell in cells_of(document, name).values()]
    is_quick = document["conditions"].get("quick", False)
    return {
        "conclusions": "No verdicts: --quick shows that all works, with hardly trained "
        "networks." if is_quick else
        markdown_table(["conclusion", "paper", "ours", "verdict"],
                       [claim.row(series, document) for claim in claims]),
        "scores": columns_table(scores, {"series": ("series", 0), "k": ("block_size", 0),
                                         **columns}),
        "training": columns_table(values(document).get("training", {"stages": []})["stages"], {
            "network": ("name", 0), "starts from": (lambda row: row["start"] or "random weights",
                                                    0),
            "steps": ("steps", 0),
            "examples": (lambda row: row.get("images_seen", row.get("pairs_seen")), 0),
            "hours": (lambda row: row["seconds"] / 3600, 2), "hardware": ("hardware", 0)})}


def curves_plot(document: Document, scores: Mapping[str, str], colours: Mapping[str, str]) -> bytes:
    """Plot the tokens per step of networks against the steps of their training, with a panel per
    score."""
    points = list(values(document, "curve ").values())
    panels = [
        Panel([Line([(point["step"], point[score]) for point in points if point["role"] == role],
                    role, colour)
               for role, colour in colours.items()],
              {"title": title, "xlabel": "steps of training with heads", "ylabel": "mean accepted "
               "block size"})
        for score, title in scores.items()]
    return draw(panels, len(panels), (4.5 * len(panels) + 1, 5))
