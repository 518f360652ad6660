"""The file of a checkpoint's recorded costs, and the record that an engine takes from it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from superres.config import CostRecord, CostTable, reader_of
from superres.errors import CheckpointError, OutputError
from superres.native.model import BY_PRECISION as COMPILED
from superres.native.variants import NEIGHBOURS
from superres.nn.torch_model import StepModel
from superres.system.json_files import read_json
from superres.system.output import write_atomically

COSTS = "costs.json"


def read_costs(folder: Path) -> CostTable:
    """Return the records in a checkpoint's folder; none without the file, a CheckpointError if it
    is damaged."""
    path = folder / COSTS
    if not os.path.lexists(path):
        return {}
    read = reader_of(dict[str, dict[str, CostRecord]])
    table: CostTable = read_json(path, lambda value: read("the costs", value), CheckpointError,
                                 "run superres tune again, or remove the file")
    return table


def save_costs(folder: Path, engine: str, variant: str, record: CostRecord) -> None:
    """Set the record of an engine and variant in a checkpoint's folder; its other records are
    unchanged.

    Raises:
        CheckpointError: the file is damaged.
        OutputError: the file cannot be written; it is unchanged.
    """
    table = read_costs(folder)
    table.setdefault(engine, {})[variant] = record
    engines = list[str]()
    for name, found in sorted(table.items()):
        records = ",\n".join(_record_text(kind, found[kind]) for kind in sorted(found))
        engines.append(f" {json.dumps(name)}: {{\n{records}\n }}")
    try:
        write_atomically(folder / COSTS, ("{\n" + ",\n".join(engines) + "\n}\n").encode())
    except OSError as error:
        raise OutputError(f"cannot write {folder / COSTS}: {error.strerror}; choose another "
                          "folder") from error


def _record_text(variant: str, record: CostRecord) -> str:
    """Return the JSON of a record, with one line per number of rows."""
    about = record.to_dict()
    batches = [f"   {json.dumps(rows)}: {json.dumps(costs)}" for rows,
               costs in about.pop("batches").items()]
    return (f'  {json.dumps(variant)}: {json.dumps(about)[:-1]}, "batches": '
            f'{{\n' + ",\n".join(batches) + "\n  }}")


def record_for(table: CostTable, engine: str, variant: str) -> CostRecord | None:
    """Return the record of an engine and variant, or the most similar one; None if nothing similar
    is recorded.

    A variant without a record has that of a neighbour, and a compiled engine without one that of
    the other compiled engine. Steps of torch and of a GPU are not similar to them: a wide step of
    these hardly takes more time.
    """
    compiled = ([name for name in COMPILED.values() if name != engine]
                if engine in COMPILED.values() else [])
    for name in (engine, *compiled):
        for kind in (variant, *NEIGHBOURS.get(variant, ())):
            if (record := table.get(name, {}).get(kind)) is not None:
                return record
    return None


def use_costs(model: StepModel, table: CostTable) -> None:
    """Let `model` decode by the record of its engine in a checkpoint's table, or by its general
    costs."""
    if (record := record_for(table, model.engine, model.variant)) is not None:
        model.costs = record
