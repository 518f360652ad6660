"""Say which proposer is the fastest, by task, network, processor, engine and batch size, from measurements alone.

    python scripts/benchmark/proposers.py images --output speed/images-1 --batch 1
    python scripts/benchmark/proposers.py images --output speed/images-8 --batch 8
    python scripts/benchmark/which_proposer.py speed/*/proposers.json --page docs/which-proposer.md

Every report of `proposers.py` gives a row for greedy decoding and one for sampling. The script measures nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pages import fill_page
from superres.errors import InvalidInputError, SuperresError
from superres.system.output import markdown_table

Report = dict[str, Any]
Row = dict[str, Any]

WAYS = {"greedy": ("greedy",), "sampling": ("coupled", "speculative")}
"""Modes of `proposers.py` by way of choosing tokens. Coupled and speculative samples have the same distribution."""
GAIN = 1.05
"""Smallest speed-up that counts; below, one token per step is as fast within the noise of a shared machine."""
PAGE = "which proposer"


def read_report(path: Path) -> Report:
    """Read a report of `proposers.py`; raise InvalidInputError if the file is none."""
    try:
        report: Report = json.loads(path.read_text(encoding="utf-8"))
        rows = [(row["proposer"], row["mode"], row["block_size"], row["speed_up"]) for row in report["rows"]]
        known = report["task"], report["checkpoint"], report["weights"], report["code"], report["batch"], rows
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{path} is not a report of proposers.py ({error!r}); name its proposers.json"
                                ) from error
    del known
    return report


def ranking(report: Report, modes: Sequence[str]) -> list[Row]:
    """Return the fastest row of every proposer in any of the `modes`, the fastest first."""
    best: dict[str, Row] = {}
    for row in report["rows"]:
        if row["mode"] in modes and row["speed_up"] > best.get(row["proposer"], {"speed_up": 0.0})["speed_up"]:
            best[row["proposer"]] = row
    return sorted(best.values(), key=lambda row: -row["speed_up"])


def choice(ranked: Sequence[Row]) -> list[str]:
    """Return what to use, its speed-up, and the next proposer with its speed-up."""
    shown = [f"`{row['proposer']}`, k = {row['block_size']}" + (f", {row['mode']}" if row["mode"] == "speculative"
                                                               else "") for row in ranked]
    gains = [f"{row['speed_up']:.2f}" for row in ranked]
    if ranked[0]["speed_up"] < GAIN:
        return ["one token per step", "1.00", f"{shown[0]} ({gains[0]})"]
    return [shown[0], gains[0], f"{shown[1]} ({gains[1]})" if len(ranked) > 1 else "-"]


def which_markdown(reports: Sequence[Report]) -> str:
    """Return a table of choices, a row per report and way of choosing tokens."""
    order = {"faces": "images", "translation": "text"}
    lines = []
    for report in sorted(reports, key=lambda one: (one["task"], one["weights"], one["batch"], one["code"])):
        for way, modes in WAYS.items():
            if ranked := ranking(report, modes):
                network = f"{report['checkpoint'].split('@')[0]}, {report['weights'] / 1e6:.1f} M"
                engine = re.sub("-[0-9a-f]{12}$", "", report["code"])  # without the version of its compiled code
                lines.append([order.get(report["task"], report["task"]), way, str(report["batch"]), network, engine,
                              *choice(ranked)])
    header = ["task", "choosing", "batch", "network, weights", "engine", "use", "speed-up", "next"]
    machines = sorted({f"{one['machine']['cpu']}, {one['machine']['threads']} threads" for one in reports})
    return f"{'; '.join(machines)}.\n\n{markdown_table(header, sorted(lines, key=lambda line: line[:2]))}"


def main(
    reports: Annotated[list[Path], typer.Argument(metavar="REPORT...", help="Files proposers.json.")],
    page: Annotated[Path | None, typer.Option(help="Markdown page whose table to replace.")] = None,
) -> None:
    """Print which proposer is the fastest by the reports, or fill a page with it."""
    table = which_markdown([read_report(path) for path in reports])
    if page is not None:
        fill_page(page, PAGE, table)
    print(table)


if __name__ == "__main__":
    try:
        typer.run(main)
    except SuperresError as error:
        sys.exit(f"which_proposer: {error}")
