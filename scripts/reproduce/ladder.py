"""Ladders: networks that were trained from one base in the same way, so that the rows of a table differ in their names.

A ladder is a run folder of `superres train ladder` with the recipe of a table. Every network has the name of its rung.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from series import Claim, Series
from superres.checkpoint import read_training
from superres.config import require
from superres.system.output import markdown_table
from superres.system.progress import say
from superres.training.recipes import Recipe, train_recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Records = dict[str, list[dict[str, Any]]]
"""The rows of training of each network, from `superres.checkpoint.read_training`, by role."""

RECIPES = Path(__file__).resolve().parents[1] / "train" / "recipes"
COMMON = ("steps", "images_seen", "pairs_seen")
DIGESTS = ("start_digest", "data_digest")
"""Entries of a training record in which networks may not differ; nor may they in settings other than VARIED."""
VARIED = ("freeze_base", "head_loss", "head_target", "head_positions")
"""Settings of training in which the networks may differ."""
QUICK: dict[str, Any] = {"steps": 2, "batch_size": 2, "warmup_steps": 1, "snapshots": 2, "head_positions": 8}
"""Settings of every rung of a ladder that only shows that all works."""


def quick(recipe: Recipe, network: Mapping[str, Any]) -> Recipe:
    """Return a recipe with two steps per rung, and with other fields of the network."""
    stages = [dataclasses.replace(stage, settings=stage.settings | QUICK) for stage in recipe.rungs]
    return dataclasses.replace(recipe, rungs=tuple(stages),
                               network={**recipe.network, **network})


def train(recipe: Recipe, data: Path, dev: Path | None, folder: Path) -> None:
    """Train the ladder in `folder`, or go on there; finished rungs are kept."""
    def report(rung: str, record: dict[str, float]) -> None:
        losses = ", ".join(f"{name} {record[name]:.4g}" for name in ("p1", "heads") if name in record)
        if record.get("step", 0) % 500 == 0:
            say(f"{rung}: step {record.get('step', 0)} {losses}")

    train_recipe(recipe, data, folder, dev, lambda: False, report)


def networks(folder: Path, roles: Sequence[str]) -> dict[str, Path]:
    """Return the checkpoints of a ladder by role, of those rungs that are finished; ConfigError if there is none."""
    found = {role: folder / role / "checkpoint" for role in roles if (folder / role / "checkpoint").is_dir()}
    require(bool(found), f"{folder} has no finished rung {', '.join(roles)}; train the ladder there with --train")
    return found


def snapshots(folder: Path, role: str) -> dict[int, Path]:
    """Return the checkpoints that were kept on the way, by step."""
    kept = sorted((folder / role / "snapshots").glob("[0-9]*"), key=lambda path: int(path.name))
    return {int(path.name): path for path in kept}


def check_ladder(records: Records, kinds: Mapping[str, str] | None = None) -> None:
    """Check that networks differ only in their heads' kind and loss, and in whether the base was frozen.

    Their base must never have been trained together with heads, or it would know how to serve them, frozen or not.

    Args:
        records: the rows of the networks' training.
        kinds: kind of training data by role; networks of another kind may have another base, which was trained in the
            same way on that data. One kind if None.

    Raises:
        ConfigError: they were not trained in the same way.
    """
    firsts: dict[str, str] = {}
    for role, rows in records.items():
        require(bool(rows), f"the network {role} has no training.jsonl; train the ladder anew")
        with_heads = [str(row.get("stage")) for row in rows[:-1] if row.get("stage") != "base"]
        require(not with_heads, f"the base of {role} was trained with heads before (stage {', '.join(with_heads)}); "
                                "train it from random weights")
        kind = "" if kinds is None else kinds[role]
        one = firsts.setdefault(kind, role)
        require(rows[:-1] == records[one][:-1], f"{role} and {one} do not start from the same base; train them in one "
                                                "ladder")
        _check_alike(role, one, records, (*COMMON, *DIGESTS))
        _check_alike(role, next(iter(firsts.values())), records, COMMON)


def _check_alike(role: str, one: str, records: Records, common: Sequence[str]) -> None:
    """Raise ConfigError if any stage of two networks differs in the entries `common`, or in settings not in VARIED."""
    rows, others = records[role], records[one]
    require(len(rows) == len(others), f"{role} was trained in {len(rows)} stages and {one} in {len(others)}; train "
                                      "them in one ladder")
    for row, other in zip(rows, others, strict=True):
        here, there = ({name: stage.get(name) for name in common} | stage.get("settings", {})
                       for stage in (row, other))
        different = [f"{name} {here[name]!r}, not {there.get(name)!r}" for name in here
                     if name not in VARIED and here[name] != there.get(name)]
        require(not different, f"{role} was trained otherwise than {one} ({', '.join(different)}); train them in one "
                               "ladder")


def read_ladder(folder: Path, roles: Sequence[str], kinds: Mapping[str, str] | None = None) -> dict[str, Path]:
    """Return the checkpoints of a ladder by role, after `check_ladder`."""
    found = networks(folder, roles)
    check_ladder({role: read_training(path) for role, path in found.items()}, kinds)
    return found


def costs(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a ladder's training, one per rung."""
    return read_training(folder)


def conditions(document: Mapping[str, Any]) -> str:
    """Return the command, the engines and the machine of a table as a sentence or two."""
    here, engines = document["machine"], {entry["engine"] for entry in document["series"].values()}
    return (f"Command: `{document['command']}`. Engine {', '.join(sorted(engines))}; "
            f"{here['cpu']}, {here['cores']} cores, {here['threads']} threads, torch {here['torch']}.")


def claims_parts(
    claims: Sequence[Claim], series: Mapping[str, Series], measured: Mapping[str, Any], differences: Mapping[str, Any],
) -> list[str]:
    """Return the heading and the table of what the paper concludes, and whether it holds here."""
    rows = [claim.row(series, measured, differences) for claim in claims]
    return ["## The paper's conclusions", markdown_table(["claim", "paper", "ours", "verdict"], rows)]


def costs_parts(document: Mapping[str, Any]) -> list[str]:
    """Return the heading and the table of what each network cost; nothing if the ladder has no record of it."""
    if not document["costs"]:
        return []
    lines = [[str(row["rung"]), str(row["start"] or "random weights"), f"{row['steps']:,}",
              f"{row.get('images_seen', row.get('pairs_seen', 0)):,}", f"{row['seconds'] / 3600:.2f}",
              str(row["hardware"])] for row in document["costs"]]
    return ["## Training", markdown_table(["network", "starts from", "steps", "examples", "hours", "hardware"], lines)]


def draw_curves(axes: Axes, curves: Mapping[str, Any], score: str, colours: Mapping[str, str]) -> None:
    """Plot the tokens per step of networks against the steps of their training."""
    for role, points in curves.items():
        known = [(point["step"], point[score]) for point in points if score in point]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", label=role, color=colours[role])
    axes.set(xlabel="steps of training with heads", ylabel="mean accepted block size")
    axes.grid(alpha=0.3)
