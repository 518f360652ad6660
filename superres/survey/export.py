"""Votes as files that outlive this program: CSV, JSON lines or Parquet, with the study's settings and a dictionary.

An exported study can be imported into any store, where it gives the same report.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert

from superres.errors import ConfigError, InvalidInputError
from superres.survey import schema
from superres.survey.exclusions import Exclusion, check_rule, excluded_raters, read_exclusions
from superres.survey.records import COLUMNS, Record, chosen_picture, elapsed_ms, read_votes
from superres.survey.store import Store, number_of
from superres.survey.study import KINDS, Comparison, Study, StudySettings
from superres.system.output import markdown_table, write_result

FORMAT = 1
"""Version of the files; raised when an older reader could misread a newer one."""


def export_study(store: Store, study: Study, path: Path, file_format: str) -> list[Path]:
    """Write a study's votes to `path`, one row per vote, and `<stem>.study.json` and `<stem>.columns.md` beside it.

    Args:
        store: where the votes are.
        study: which to export.
        path: the file for the votes.
        file_format: a name in `FORMATS`.

    Returns:
        the three files.

    Raises:
        ConfigError: the format is unknown, or its library is not installed.
        OutputError: a file cannot be written.
        StoreError: the store cannot be read.
    """
    if file_format not in FORMATS:
        raise ConfigError(f"--format must be one of {', '.join(FORMATS)}, not {file_format!r}")
    exclusions = read_exclusions(store, study)
    records = read_votes(store, study)
    out = excluded_raters(records, exclusions)
    rows = [{name: {**record, "excluded": int(record["rater"] in out)}[name] for name in COLUMNS}
            for record in records]
    document = {"format": FORMAT, **study.record(), "exclusions": [asdict(exclusion) for exclusion in exclusions],
                "columns": {name: {"type": kind.__name__, "meaning": meaning}
                            for name, (kind, meaning) in COLUMNS.items()}}
    described, dictionary = study_file(path), path.with_name(f"{path.stem}.columns.md")
    encoded = FORMATS[file_format][0](rows)
    write_result(described, (json.dumps(document, indent=1) + "\n").encode())
    write_result(dictionary, _dictionary(study, path.name).encode())
    # The votes last: where they are, the rest is.
    write_result(path, encoded)
    return [path, described, dictionary]


def study_file(path: Path) -> Path:
    """Return the file with the settings that belong to exported votes."""
    return path.with_name(f"{path.stem}.study.json")


def _dictionary(study: Study, name: str) -> str:
    rows = [[f"`{column}`", kind.__name__, meaning] for column, (kind, meaning) in COLUMNS.items()]
    return (f"# Columns of {name}\n\nOne row a vote in the study {study.name!r}, ordered by rater and position. Empty "
            f"means that there is no value.\n\n{markdown_table(['column', 'type', 'meaning'], rows)}\n")


def _to_csv(rows: Sequence[Record]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(COLUMNS), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _to_jsonl(rows: Sequence[Record]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _to_parquet(rows: Sequence[Record]) -> bytes:
    pyarrow, parquet = _arrow()
    types = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64()}
    schema = pyarrow.schema([(name, types[kind]) for name, (kind, _) in COLUMNS.items()])
    sink = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), sink)
    return sink.getvalue()


def _from_csv(data: bytes) -> list[Record]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def _from_jsonl(data: bytes) -> list[Record]:
    return [json.loads(line) for line in data.decode().splitlines()]


def _from_parquet(data: bytes) -> list[Record]:
    rows: list[Record] = _arrow()[1].read_table(io.BytesIO(data)).to_pylist()
    return rows


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ConfigError("parquet needs pyarrow; install superres[parquet], or choose csv or jsonl") from None
    return pyarrow, parquet


FORMATS: dict[str, tuple[Callable[[Sequence[Record]], bytes], Callable[[bytes], list[Record]]]] = {
    "csv": (_to_csv, _from_csv), "jsonl": (_to_jsonl, _from_jsonl), "parquet": (_to_parquet, _from_parquet),
}
"""How votes are written and read, by the format's name, which is also the file's suffix."""


def import_study(store: Store, path: Path, name: str | None = None) -> Study:
    """Store an exported study atomically; it can be reported and exported again, but not served.

    Args:
        store: where it goes.
        path: the file with the votes, `<stem>.study.json` beside it; the suffix tells the format.
        name: of the study; that of the export if None.

    Raises:
        InvalidInputError: a file is missing, damaged or of a newer format, or a row does not fit.
        ConfigError: the name is taken.
        StoreError: the store cannot be written.
    """
    file_format = path.suffix.lstrip(".")
    if file_format not in FORMATS:
        raise InvalidInputError(f"{path} must end in .{', .'.join(FORMATS)}, so that its format is known")
    document = _read_document(study_file(path))
    try:
        rows = [_row(row) for row in FORMATS[file_format][1](_read(path))]
        settings = StudySettings.from_dict(document["settings"])
        comparisons = [Comparison(**values) for values in document["comparisons"]]
        exclusions = [Exclusion(**values) for values in document["exclusions"]]
        title, methods, created = str(name or document["study"]), dict(document["methods"]), str(document["created"])
        for exclusion in exclusions:
            check_rule(exclusion.rule)
    except (KeyError, TypeError, ValueError, OSError) as error:
        message = f"{path} does not fit {study_file(path)} ({error!r}); export the study again"
        raise InvalidInputError(message) from error
    with store.writing() as connection:
        key = store.add_study(connection, title, settings, comparisons, methods, created=created, has_pictures=False)
        _add_votes(connection, key, rows)
        _add_exclusions(connection, key, exclusions)
    return store.study(title)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; give a file of superres survey export"
        raise InvalidInputError(message) from error


def _read_document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_read(path))
        version = int(document["format"])
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInputError(f"{path} is not what superres survey export writes; export the study again") from error
    if version > FORMAT:
        raise InvalidInputError(f"{path} has format {version}, newer than this program's {FORMAT}; install a newer "
                                "superres")
    return dict(document)


def _row(row: Record) -> Record:
    """Return an imported row with every column in its type, checked as a vote of ours would be."""
    if "page_ms" not in row:  # an older export, where response_ms was the browser's
        row = {**row, "page_ms": row["response_ms"]}
    cleaned = {name: kind(row[name] if row[name] is not None else "") for name, (kind, _) in COLUMNS.items()}
    if cleaned["choice"] not in ("left", "right", "unsure") or cleaned["left"] not in ("a", "b") \
            or cleaned["kind"] not in KINDS or cleaned["chosen"] != chosen_picture(cleaned["choice"], cleaned["left"]):
        raise ValueError(f"row of rater {cleaned['rater']!r}, position {cleaned['position']}")
    elapsed_ms(cleaned["issued"], cleaned["voted"])  # raises ValueError if there is none
    return cleaned


def _add_votes(connection: Connection, study: int, rows: Sequence[Record]) -> None:
    pictures: dict[tuple[str, str, str], int] = {}
    pairs: dict[int, int] = {}
    raters: dict[str, int] = {}
    for row in rows:
        for side in "ab":
            picture = row[f"method_{side}"], row["image"], row[f"sha256_{side}"]
            if picture not in pictures:
                pictures[picture] = number_of(connection.execute(insert(schema.picture).values(
                    study_id=study, method=picture[0], image=picture[1], sha256=picture[2], png=None)))
        if row["pair"] not in pairs:
            keys = [pictures[row[f"method_{side}"], row["image"], row[f"sha256_{side}"]] for side in "ab"]
            pairs[row["pair"]] = number_of(connection.execute(insert(schema.pair).values(
                study_id=study, number=row["pair"], kind="main" if row["kind"] == "repeat" else row["kind"],
                comparison=row["comparison"], image=row["image"], picture_a=keys[0], picture_b=keys[1])))
        if row["rater"] not in raters:
            raters[row["rater"]] = number_of(connection.execute(insert(schema.rater).values(
                study_id=study, pseudonym=row["rater"], consent_version=row["consent_version"],
                consented=row["consented"], session_hash=None)))
        trial = number_of(connection.execute(insert(schema.trial).values(
            rater_id=raters[row["rater"]], pair_id=pairs[row["pair"]], position=row["position"], kind=row["kind"],
            left_side=row["left"], token_hash=None, issued=row["issued"])))
        columns = (c.name for c in schema.vote.c if c.name not in ("id", "trial_id", "response_ms"))
        connection.execute(insert(schema.vote).values(trial_id=trial, response_ms=row["page_ms"],
                                                      **{name: row[name] for name in columns}))


def _add_exclusions(connection: Connection, study: int, exclusions: Sequence[Exclusion]) -> None:
    """Add rules under their own numbers; one that was revoked is revoked again, by a step after all of them."""
    highest = max((exclusion.number for exclusion in exclusions), default=0)
    for exclusion in exclusions:
        values = {"study_id": study, "rule": exclusion.rule, "reason": exclusion.reason,
                  "recorded": exclusion.recorded}
        connection.execute(insert(schema.exclusion).values(**values, number=exclusion.number, revokes=None))
        if exclusion.revoked:
            highest += 1
            connection.execute(insert(schema.exclusion).values(**values, number=highest, revokes=exclusion.number))
