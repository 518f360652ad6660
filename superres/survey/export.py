"""Export votes as CSV, JSON lines or Parquet, with the study's settings and a data dictionary; import them again.

An imported study has the same report as the exported study.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table

from superres.config import require, require_choice
from superres.errors import ConfigError, InvalidInputError
from superres.survey import schema
from superres.survey.credentials import new_token
from superres.survey.exclusions import Exclusion, check_rule, excluded_raters, read_exclusions
from superres.survey.records import COLUMNS, Record, chosen_picture, elapsed_ms, read_votes
from superres.survey.store import Store, add_row
from superres.survey.study import FORMATS, KINDS, MAIN, REPEAT, Comparison, Study, StudySettings
from superres.survey.withdrawal import Withdrawal, withdrawals
from superres.system.output import markdown_table, write_result

FORMAT = 1
"""Version of the files, which increases if an older program could misread newer files."""


def export_study(store: Store, study: Study, path: Path, layout: str = "votes") -> list[Path]:
    """Write a study's votes to `path`, one row per vote, in the format that its ending names, and return the files.

    `layout` is a name in `LAYOUTS`. With "votes", `<stem>.study.json` and `<stem>.columns.md` are written beside the
    file; the others have counted votes of raters who are not excluded only, in the columns that other programs read.

    Raises:
        ConfigError: the layout or the ending is unknown, or the format's library is not installed.
        OutputError: a file cannot be written.
    """
    require_choice("--layout", layout, list(LAYOUTS))
    file_format = path.suffix.lstrip(".")
    require(file_format in FORMATS, f"{path} must end in .{', .'.join(FORMATS)}, which names its format")
    if layout != "votes":
        columns, row_of = LAYOUTS[layout]
        write_result(path, _encode(_counted(store, study, row_of), file_format, columns))
        return [path]
    exclusions, records = read_exclusions(store, study), read_votes(store, study)
    excluded = excluded_raters(records, exclusions)
    rows = [{name: {**record, "excluded": int(record["rater"] in excluded)}[name] for name in COLUMNS}
            for record in records]
    kinds = {name: kind for name, (kind, _) in COLUMNS.items()}
    document = {"format": FORMAT, **study.record(), "exclusions": [asdict(exclusion) for exclusion in exclusions],
                "withdrawals": [asdict(withdrawal) for withdrawal in withdrawals(store, study)],
                "columns": {name: {"type": kind.__name__, "meaning": meaning}
                            for name, (kind, meaning) in COLUMNS.items()}}
    table = [[f"`{column}`", kind.__name__, meaning] for column, (kind, meaning) in COLUMNS.items()]
    dictionary = (f"# Columns of {path.name}\n\nOne row per vote in the study {study.name!r}, ordered by rater and "
                  f"position. An empty cell has no value.\n\n{markdown_table(['column', 'type', 'meaning'], table)}\n")
    files = {study_file(path): (json.dumps(document, indent=1) + "\n").encode(),
             path.with_name(f"{path.stem}.columns.md"): dictionary.encode(),
             path: _encode(rows, file_format, kinds)}  # last, so that a file of votes always has the other two files
    for file, data in files.items():
        write_result(file, data)
    return [path, *list(files)[:2]]


def study_file(path: Path) -> Path:
    """Return the file with the study's settings for the exported votes at `path`."""
    return path.with_name(f"{path.stem}.study.json")


def _counted(store: Store, study: Study, row_of: RowOf) -> list[Record]:
    """Return a row per counted vote of raters who are not excluded."""
    records = read_votes(store, study)
    excluded = excluded_raters(records, read_exclusions(store, study))
    return [row_of(study, record) for record in records if record["kind"] == MAIN and record["rater"] not in excluded]


def _arena_row(_: Study, record: Record) -> Record:
    return {"model_a": record["method_a"], "model_b": record["method_b"],
            "winner": f"model_{record['chosen']}" if record["chosen"] else "tie"}


def _pick_a_pic_row(study: Study, record: Record) -> Record:
    best = record["chosen"] and record[f"sha256_{record['chosen']}"]
    labels = {"a": (1.0, 0.0), "b": (0.0, 1.0), "": (0.5, 0.5)}[record["chosen"]]
    return {
        "are_different": int(record["sha256_a"] != record["sha256_b"]), "best_image_uid": best or "tie",
        "caption": study.settings.question, "created_at": record["voted"], "has_label": 1,
        "image_0_uid": record["sha256_a"], "image_1_uid": record["sha256_b"], "label_0": labels[0],
        "label_1": labels[1], "model_0": record["method_a"], "model_1": record["method_b"],
        "ranking_id": record["pair"], "user_id": record["rater"]}


RowOf = Callable[[Study, Record], Record]
LAYOUTS: dict[str, tuple[dict[str, type], RowOf]] = {
    "votes": ({}, lambda _, record: record),
    "arena": (dict.fromkeys(("model_a", "model_b", "winner"), str), _arena_row),
    "pick-a-pic": ({
        "are_different": int, "best_image_uid": str, "caption": str, "created_at": str, "has_label": int,
        "image_0_uid": str, "image_1_uid": str, "label_0": float, "label_1": float, "model_0": str, "model_1": str,
        "ranking_id": int, "user_id": str}, _pick_a_pic_row),
}
"""Types of the columns, and the row of a vote, by layout: all that the store has; the columns that Arena-Rank reads;
and those of Pick-a-Pic v2 that a study has."""


def _encode(rows: Sequence[Record], file_format: str, kinds: Mapping[str, type]) -> bytes:
    if file_format == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
    if file_format == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(kinds), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()
    pyarrow, parquet = _arrow()
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    columns = pyarrow.schema([(name, types[kind]) for name, kind in kinds.items()])
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=columns), sink)
    return sink.getvalue()


def _decode(data: bytes, file_format: str) -> list[Record]:
    if file_format == "jsonl":
        return [json.loads(line) for line in data.decode().splitlines()]
    if file_format == "csv":
        return list(csv.DictReader(io.StringIO(data.decode(), newline="")))
    rows: list[Record] = _arrow()[1].read_table(io.BytesIO(data)).to_pylist()
    return rows


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("parquet needs pyarrow; install superres[parquet], or choose csv or jsonl") from None
    return pyarrow, parquet


def import_study(store: Store, path: Path, name: str | None = None) -> Study:
    """Store an exported study atomically; it can be reported and exported again, but not served.

    `path` is the file with the votes, beside `<stem>.study.json`; its suffix determines the format. Without a `name`,
    the study keeps its own.

    Raises:
        InvalidInputError: a file is missing, damaged or of a newer format, or a row is not valid.
        ConfigError: the name is taken.
    """
    file_format = path.suffix.lstrip(".")
    if file_format not in FORMATS:
        raise InvalidInputError(f"{path} must end in .{', .'.join(FORMATS)}, which names its format")
    try:
        document = json.loads(_read(study_file(path)))
        if int(document["format"]) > FORMAT:
            raise InvalidInputError(f"{study_file(path)} has format {document['format']}, newer than this program's "
                                    f"{FORMAT}; install a newer superres")
        rows = [_row(row) for row in _decode(_read(path), file_format)]
        settings = StudySettings.from_dict(document["settings"])
        comparisons = [Comparison(**values) for values in document["comparisons"]]
        exclusions = [Exclusion(**values) for values in document["exclusions"]]
        left = [Withdrawal(**values) for values in document.get("withdrawals", ())]
        title, methods, created = str(name or document["study"]), dict(document["methods"]), str(document["created"])
        for exclusion in exclusions:
            check_rule(exclusion.rule)
    except (KeyError, TypeError, ValueError, OSError) as error:
        message = f"{path} does not match {study_file(path)} ({error!r}); export the study again"
        raise InvalidInputError(message) from error
    with store.writing() as connection:
        key = store.add_study(connection, title, settings, comparisons, methods, created=created, has_pictures=False)
        _add_votes(connection, key, rows)
        _add_exclusions(connection, key, exclusions)
        for withdrawal in left:
            add_row(connection, schema.rater, study_id=key, pseudonym=f"withdrawn {new_token()}", consent_version="",
                    consented="", session_hash=None, withdrawn=withdrawal.recorded, erased=withdrawal.votes)
    return store.study(title)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; give a file of superres survey export"
        raise InvalidInputError(message) from error


def _row(row: Record) -> Record:
    """Return an imported row with converted and checked values; raise ValueError or KeyError if it is not valid."""
    row = {"panel": "", **row}  # older exports have no such column
    cleaned = {name: kind(row[name] if row[name] is not None else "") for name, (kind, _) in COLUMNS.items()}
    if cleaned["choice"] not in ("left", "right", "unsure") or cleaned["left"] not in ("a", "b") \
            or cleaned["kind"] not in KINDS or cleaned["chosen"] != chosen_picture(cleaned["choice"], cleaned["left"]):
        raise ValueError(f"row of rater {cleaned['rater']!r}, position {cleaned['position']}")
    elapsed_ms(cleaned["issued"], cleaned["voted"])  # raises ValueError if a time is not valid
    return cleaned


def _add_votes(connection: Connection, study: int, rows: Sequence[Record]) -> None:
    ids: dict[tuple[Any, ...], int] = {}

    def insert_once(table: Table, *key: Any, **values: object) -> int:  # noqa: ANN401 -- values of columns
        """Insert a row unless a row of this key was inserted before, and return its id."""
        place = (table.name, *key)
        if place not in ids:
            ids[place] = add_row(connection, table, study_id=study, **values)
        return ids[place]

    columns = [c.name for c in schema.vote.c if c.name not in ("id", "trial_id", "response_ms")]
    for row in rows:
        image = row["image"]
        a, b = (insert_once(schema.picture, method, image, sha256, method=method, image=image, sha256=sha256, png=None)
                for method, sha256 in ((row[f"method_{side}"], row[f"sha256_{side}"]) for side in "ab"))
        pair = insert_once(schema.pair, row["pair"], number=row["pair"], comparison=row["comparison"], image=image,
                           kind=MAIN if row["kind"] == REPEAT else row["kind"], picture_a=a, picture_b=b)
        rater = insert_once(schema.rater, row["rater"], pseudonym=row["rater"], consented=row["consented"],
                            consent_version=row["consent_version"], session_hash=None, panel=row["panel"] or None)
        trial = add_row(connection, schema.trial, rater_id=rater, pair_id=pair, position=row["position"],
                        kind=row["kind"], left_side=row["left"], token_hash=None, issued=row["issued"])
        add_row(connection, schema.vote, trial_id=trial, response_ms=row["page_ms"],
                **{name: row[name] for name in columns})


def _add_exclusions(connection: Connection, study: int, exclusions: Sequence[Exclusion]) -> None:
    """Add rules under their own numbers; a revocation of a revoked rule gets a number after all rules."""
    highest = max((exclusion.number for exclusion in exclusions), default=0)
    for exclusion in exclusions:
        values = {"study_id": study, "rule": exclusion.rule, "reason": exclusion.reason, "recorded": exclusion.recorded}
        add_row(connection, schema.exclusion, **values, number=exclusion.number, revokes=None)
        if exclusion.revoked:
            highest += 1
            add_row(connection, schema.exclusion, **values, number=highest, revokes=exclusion.number)
