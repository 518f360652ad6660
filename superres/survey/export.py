"""Export votes as CSV, JSON lines or Parquet, with the study's settings and a data dictionary."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from superres.config import require, require_choice
from superres.errors import ConfigError
from superres.survey.exclusions import excluded_raters, read_exclusions
from superres.survey.records import COLUMNS, Record, read_votes
from superres.survey.store import Store
from superres.survey.study import FORMATS, MAIN, Study
from superres.survey.withdrawal import withdrawals
from superres.system.output import markdown_table, write_result

FORMAT = 3
"""Version of the files, which increases if an older program could misread newer files."""

_START = r"""(?:[^\S\t\r\n]|['"])*[=+\-@\uff1d\uff0b\uff0d\uff20]"""
FORMULA = re.compile(rf"(?:^|[;\t\r\n])(?={_START})|^(?='*[\t\r\n])")
"""The place before what a spreadsheet would take for a formula: at the start of a text, and after
each character that separates cells or rows elsewhere. An apostrophe is put there in CSV files, also
where there is one already."""


def csv_text(value: object) -> object:
    """Return a value for a cell of a CSV file: no text begins like a formula, and numbers stay as
    they are.

    That holds for the parts of a text, too, where a spreadsheet separates cells by semicolons or
    tabs.
    """
    return FORMULA.sub(r"\g<0>'", value) if isinstance(value, str) else value


def export_study(store: Store, study: Study, path: Path, layout: str = "votes") -> list[Path]:
    """Write a study's votes to `path`, one row per vote, in the format that its ending names, and
    return the files.

    With the `layout` "votes", `<stem>.study.json` and `<stem>.columns.md` are written beside the
    file; "arena" has counted votes of raters who are not excluded only, in the columns that
    Arena-Rank reads.

    Raises:
        ConfigError: the layout or the ending is unknown, or the format's library is not installed.
        OutputError: a file cannot be written.
    """
    require_choice("--layout", layout, ["votes", "arena"])
    require(layout == "votes" or not study.settings.judge,
            f"the study {study.name!r} has single pictures, and the arena layout is of pairs; "
            "leave out --layout")
    file_format = path.suffix.lstrip(".")
    require(file_format in FORMATS, f"{path} must end in .{', .'.join(FORMATS)}, which names its "
            "format")
    if layout == "arena":
        columns = dict.fromkeys(("model_a", "model_b", "winner"), str)
        write_result(path, _encode(_arena_rows(store, study), file_format, columns))
        return [path]
    exclusions, records = read_exclusions(store, study), read_votes(store, study)
    excluded = excluded_raters(records, exclusions)
    rows = [{name: int(record["rater"] in excluded) if name == "excluded" else record[name]
             for name in COLUMNS} for record in records]
    document = {"format": FORMAT, **study.record(), "votes": len(rows),
                "exclusions": [asdict(exclusion) for exclusion in exclusions],
                "withdrawals": [asdict(withdrawal) for withdrawal in withdrawals(store, study)],
                "columns": {name: {"type": kind.__name__, "meaning": meaning}
                            for name, (kind, meaning) in COLUMNS.items()}}
    settings = json.dumps(document, indent=1) + "\n"
    beside = {path.with_name(f"{path.stem}.study.json"): settings.encode(),
              path.with_name(f"{path.stem}.columns.md"): _dictionary(path, study).encode()}
    kinds = {name: kind for name, (kind, _) in COLUMNS.items()}
    # Last, so that a file of votes always has the other two files.
    for file, data in {**beside, path: _encode(rows, file_format, kinds)}.items():
        write_result(file, data)
    return [path, *beside]


def _dictionary(path: Path, study: Study) -> str:
    table = [[f"`{column}`", kind.__name__, meaning] for column, (kind, meaning) in COLUMNS.items()]
    return (f"# Columns of {path.name}\n\nOne row per vote in the study {study.name!r}, ordered by "
            "rater and position. An empty cell has no value. In CSV files, an apostrophe stands "
            "before what would be a formula at the start of a text, or after a semicolon or tab."
            f"\n\n{markdown_table(['column', 'type', 'meaning'], table)}\n")


def _arena_rows(store: Store, study: Study) -> list[Record]:
    """Return a row per counted vote of raters who are not excluded."""
    records = read_votes(store, study)
    excluded = excluded_raters(records, read_exclusions(store, study))
    return [{"model_a": record["method_a"], "model_b": record["method_b"],
             "winner": f"model_{record['chosen']}" if record["chosen"] else "tie"}
            for record in records if record["kind"] == MAIN and record["rater"] not in excluded]


def _encode(rows: Sequence[Record], file_format: str, kinds: Mapping[str, type]) -> bytes:
    if file_format == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if file_format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(kinds), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: csv_text(value) for name, value in row.items()} for row in rows)
        return text.getvalue().encode()
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("parquet needs pyarrow; install superres[parquet], or choose csv or "
                          "jsonl") from None
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    columns = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=columns), sink)
    return sink.getvalue()
