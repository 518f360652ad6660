"""Say which proposer is the fastest, by task, network, processor, engine and batch size, from
measurements alone.

    python scripts/benchmark/proposers.py images --output speed/images-1 --batch 1
    python scripts/benchmark/proposers.py images --output speed/images-8 --batch 8
    python scripts/benchmark/which_proposer.py speed/*/proposers-*.json --output speed --page
    docs/which-proposer.md

Every document of `proposers.py` gives a line for greedy decoding and one for sampling. The script
measures nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import Document, Output, Page, Row, Table, Values, run, values
from superres.errors import InvalidInputError
from superres.system.output import markdown_table, short_digest

WAYS = {"greedy": ("greedy",), "sampling": ("coupled", "speculative")}
"""Modes of `proposers.py` by way of choosing tokens. Coupled and speculative samples have the same
distribution."""
GAIN = 1.05
"""Smallest speed-up that counts; below, one token per step is as fast within the noise of a shared
machine."""
KEPT = ("task", "checkpoint", "weights", "code", "batch")
"""Conditions of `proposers.py` that a line shows."""


def read_document(path: Path) -> Values:
    """Return what the table needs of a document of `proposers.py`; raise InvalidInputError for any
    other file."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        rows = [{name: row[name] for name in ("proposer", "mode", "block_size", "speed_up")}
                for row in document["rows"]["comparison"]["values"]["rows"]]
        return {**{name: document["conditions"][name] for name in KEPT}, "rows": rows,
                "machine": f"{document['machine']['cpu']}, {document['machine']['threads']} "
                "threads"}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInputError(f"{path} is not a document of proposers.py ({error!r}); name its "
                                "proposers-TASK.json"
                                ) from error


def ranking(found: Values, modes: Sequence[str]) -> list[Values]:
    """Return the fastest row of every proposer in any of the `modes`, the fastest first."""
    best: dict[str, Values] = {}
    for row in found["rows"]:
        if row["mode"] in modes and row["speed_up"] > best.get(row["proposer"],
                                                               {"speed_up": 0.0})["speed_up"]:
            best[row["proposer"]] = row
    return sorted(best.values(), key=lambda row: -row["speed_up"])


def choice(ranked: Sequence[Values]) -> list[str]:
    """Return what to use, its speed-up, and the next proposer with its speed-up."""
    shown = [f"`{row['proposer']}`, k = "
             f"{row['block_size']}" + (f", {row['mode']}" if row["mode"] == "speculative"
                                       else "") for row in ranked]
    gains = [f"{row['speed_up']:.2f}" for row in ranked]
    if ranked[0]["speed_up"] < GAIN:
        return ["one token per step", "1.00", f"{shown[0]} ({gains[0]})"]
    return [shown[0], gains[0], f"{shown[1]} ({gains[1]})" if len(ranked) > 1 else "-"]


def views(document: Document) -> dict[str, str]:
    """Return the choices, a line per document of `proposers.py` and way of choosing tokens."""
    order, lines = {"faces": "images", "translation": "text"}, []
    for found in sorted(values(document).values(), key=lambda one: tuple(one[name] for name in (
            "task", "weights", "batch", "code"))):
        for way, modes in WAYS.items():
            if ranked := ranking(found, modes):
                network = f"{found['checkpoint'].split('@')[0]}, {found['weights'] / 1e6:.1f} M"
                # without the version of its compiled code
                engine = re.sub("-[0-9a-f]{12}$", "", found["code"])
                lines.append([order.get(found["task"], found["task"]), way, str(found["batch"]),
                              network, engine, *choice(ranked)])
    header = ["task", "choosing", "batch", "network, weights", "engine", "use", "speed-up", "next"]
    return {"fastest": markdown_table(header, sorted(lines, key=lambda line: line[:2]))}


def main(
    documents: Annotated[list[Path],
                         typer.Argument(metavar="DOCUMENT...", help="Files of proposers.py.")],
    output: Output = Path("."), page: Page = None,
) -> None:
    """Say which proposer is the fastest by the documents."""
    table = Table("which_proposer", output, {}, name="which-proposer")
    for found in map(read_document, documents):
        name = ", ".join(str(found[name]) for name in KEPT)
        table.measure([Row(name, lambda found=found: found,
                           {"digest": short_digest(repr(found).encode())})])
    table.finish(page)


if __name__ == "__main__":
    run(main)
