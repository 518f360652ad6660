"""The file of a checkpoint's recorded costs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from superres.config import CostRecord, CostTable, reader_of
from superres.errors import CheckpointError, OutputError
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
    batches = [f"   {json.dumps(rows)}: {json.dumps(costs)}"
               for rows, costs in about.pop("batches").items()]
    return (f'  {json.dumps(variant)}: {json.dumps(about)[:-1]}, "batches": '
            f'{{\n' + ",\n".join(batches) + "\n  }}")
