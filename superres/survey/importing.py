"""Import exported votes as a study, after a check of every field of both files against one schema.

An imported study has the same report as the exported study.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, JsonValue, TypeAdapter, ValidationError
from sqlalchemy import Connection, Table

from superres.errors import ConfigError, InvalidInputError, first_line, plain, shown
from superres.survey import schema
from superres.survey.credentials import new_token
from superres.survey.exclusions import Exclusion, check_rule, excluded_raters
from superres.survey.export import FORMAT, arrow, plain_text, study_file
from superres.survey.pairs import RIGHT, WRONG
from superres.survey.records import COLUMNS, Record, answer_of, elapsed_ms
from superres.survey.store import Store, add_row
from superres.survey.study import (
    FORMATS,
    GOLD,
    JUDGEMENTS,
    MAIN,
    MAX_IMAGE_NAME,
    PRACTICE,
    REPEAT,
    Comparison,
    Study,
    StudySettings,
    check_name,
    check_text,
)
from superres.survey.voting import MAX_RESPONSE_MS, STRICT, Ballot, Panel
from superres.system.json_files import parse_json, read_file

MAX_STUDY_BYTES, MAX_VOTES_BYTES, MAX_VOTES, MAX_CELL_BYTES = 2**24, 2**28, 1_000_000, 2**16
"""Largest size of the file of settings, of the file of votes, and of one of its texts; and largest
number of votes."""

ROUNDING_MS = 0.001

ModelT = TypeVar("ModelT", bound=BaseModel)


def _checked(check: Callable[..., object], *arguments: object) -> AfterValidator:
    """Return a validator of pydantic that applies a check which raises ConfigError."""
    def validate(value: Any) -> Any:  # noqa: ANN401 -- the type of the field
        try:
            check(*arguments, value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    return AfterValidator(validate)


def _check_time(text: str) -> None:
    """Raise ValueError unless `text` is a time as `utc_now` returns it, which all sort alike."""
    if datetime.fromisoformat(text[:-1]).isoformat(timespec="milliseconds") + "Z" != text:
        raise ValueError("a time must be UTC as in 2026-01-31T12:00:00.000Z")


def _check_panel(text: str) -> None:
    if text:
        values = TypeAdapter(Panel).validate_python(parse_json(text.encode()))
        for word in (*values, *values.values()):
            check_text("panel", word)


Name = Annotated[str, _checked(check_name, "a name")]
ImageName = Annotated[str, _checked(partial(check_name, most=MAX_IMAGE_NAME), "an image's name")]
ComparisonName = Annotated[str, _checked(partial(check_name, most=410), "a comparison's name")]
Time = Annotated[str, _checked(_check_time)]
NoName = Literal[""]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Row(Ballot):
    """An exported vote, whose fields are `superres.survey.records.COLUMNS`."""

    rater: str = Field(pattern=r"^[0-9a-f]{32}$")
    position: int = Field(ge=1)
    kind: Literal["main", "gold", "repeat", "practice"]
    comparison: ComparisonName
    pair: Count
    image: ImageName
    method_a: Name
    method_b: Name | NoName
    sha256_a: Digest
    sha256_b: Digest | NoName
    left: Literal["a", "b"]
    chosen: Literal["a", "b", "", "torn", "unequal", "good"]
    chosen_method: str
    response_ms: float = Field(ge=0)
    page_ms: float = Field(ge=0, le=MAX_RESPONSE_MS)
    panel: Annotated[str, _checked(_check_panel)]
    consent_version: str = Field(pattern=r"^[0-9a-f]{12}$")
    consented: Time
    issued: Time
    voted: Time
    excluded: int = Field(ge=0, le=1)


class ComparisonEntry(BaseModel):
    """A comparison in the file of settings."""

    model_config = STRICT
    name: ComparisonName
    method_a: Name
    method_b: Name | NoName


class RuleEntry(BaseModel):
    """A rule of exclusion in the file of settings."""

    model_config = STRICT
    number: int = Field(ge=1, le=1_000_000)
    rule: Annotated[str, Field(max_length=200), _checked(check_rule)]
    reason: Annotated[str, Field(min_length=1), _checked(check_text, "a reason")]
    recorded: Time
    revoked: bool


class WithdrawalEntry(BaseModel):
    """A withdrawal in the file of settings."""

    model_config = STRICT
    recorded: Time
    votes: Count


class Document(BaseModel):
    """The file of settings beside exported votes."""

    model_config = STRICT
    format: int = Field(ge=1, le=FORMAT)
    study: Name
    created: Time
    settings: dict[str, JsonValue]
    methods: dict[Name, dict[str, JsonValue]]
    comparisons: list[ComparisonEntry] = Field(min_length=1, max_length=1000)
    votes: int
    exclusions: list[RuleEntry] = Field(max_length=10_000)
    withdrawals: list[WithdrawalEntry] = Field(max_length=100_000)
    columns: dict[str, dict[str, str]]


def import_study(store: Store, path: Path, name: str | None = None) -> Study:
    """Store an exported study atomically; it can be reported and exported again, but not served.

    `path` is the file with the votes, beside `<stem>.study.json`; its suffix determines the format.
    Without a `name`, the study keeps its own.

    Raises:
        InvalidInputError: a file is missing, damaged or of a newer format, a field is not valid, or
            two contradict each other.
        ConfigError: the name is taken.
    """
    file_format = path.suffix.lstrip(".")
    if file_format not in FORMATS:
        raise InvalidInputError(f"{path} must end in .{', .'.join(FORMATS)}, which names its "
                                "format")
    document, settings = _read_document(study_file(path))
    data = _read(path, MAX_VOTES_BYTES)
    try:
        rows = _read_rows(data, file_format)
        _check_rows(rows, document, settings)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, error) from error
    title = name if name is not None else document.study
    with store.writing() as connection:
        key = store.add_study(
            connection, title, settings,
            [Comparison(**entry.model_dump()) for entry in document.comparisons], document.methods,
            created=document.created, has_pictures=False)
        _add_votes(connection, key, [row.model_dump() for row in rows])
        _add_exclusions(connection, key, document.exclusions)
        for withdrawal in document.withdrawals:
            add_row(connection, schema.rater, study_id=key, pseudonym=f"withdrawn {new_token()}",
                    consent_version="", consented="", session_hash=None,
                    withdrawn=withdrawal.recorded, erased=withdrawal.votes)
    return store.study(title)


def _read(path: Path, most: int) -> bytes:
    try:
        return read_file(path, most)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}; give a file of superres survey export"
        raise InvalidInputError(message) from error


def _refusal(path: Path, error: Exception) -> InvalidInputError:
    return InvalidInputError(f"{path} is not an export, or damaged: {plain(str(error))}; export "
                             "the study again")


def _validated(model: type[ModelT], value: object, where: str = "", texts: bool = False) -> ModelT:
    """Return `value` as an instance of `model`; raise ValueError, whose message is one line, if it
    is none.

    `where` stands before the message. With `texts`, the values of numbers are texts.
    """
    try:
        return model.model_validate_strings(value) if texts else model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        field = ".".join(plain(str(part)) for part in first["loc"])
        found = ("" if first["type"] in ("missing", "value_error") else ", not "
                 f"{shown(first['input'])}")
        message = f"{where}{field or 'value'}: {first['msg'].removeprefix('Value error, ')}{found}"
        raise ValueError(message) from None


def _read_document(path: Path) -> tuple[Document, StudySettings]:
    content = _read(path, MAX_STUDY_BYTES)
    try:
        value = parse_json(content)
        newer = value.get("format") if isinstance(value, dict) else None
        if type(newer) is int and newer > FORMAT:
            raise InvalidInputError(f"{path} has format {newer}, newer than this program's "
                                    f"{FORMAT}; install a newer superres")
        json.dumps(value, ensure_ascii=False).encode()  # a ValueError for surrogates
        document = _validated(Document, value)
        values = ({"judge": False, **document.settings} if document.format == 1
                  else document.settings)
        lacking = [field.name for field in dataclasses.fields(StudySettings) if field.name
                   not in values]
        _require(not lacking, f"settings lack {', '.join(lacking)}")
        settings = StudySettings.from_dict(values)
        names = [entry.name for entry in document.comparisons]
        _require(len(set(names)) == len(names), "two comparisons have the same name")
        for entry in document.comparisons:
            _require(entry.name not in (GOLD, PRACTICE), "a comparison has the name of "
                     f"{entry.name} pairs")
            _require(settings.judge == (not entry.method_b), f"the comparison {entry.name!r} has "
                     f"{'one method' if not entry.method_b else 'two methods'}, which the setting "
                     "judge contradicts")
            for method in filter(None, (entry.method_a, entry.method_b)):
                _require(method in document.methods, f"the method {method!r} of a comparison is "
                         "not in methods")
            _require(entry.method_a != entry.method_b, f"the method {method!r} is compared with "
                     "itself")
        numbers = [rule.number for rule in document.exclusions]
        _require(len(set(numbers)) == len(numbers), "two exclusions have the same number")
    except (ValueError, RecursionError, ConfigError) as error:
        raise _refusal(path, error) from error
    return document, settings


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _read_rows(data: bytes, file_format: str) -> list[Row]:
    """Return the votes of a file; raise ValueError if it is damaged or a field is not valid."""
    reader = {"csv": _csv_rows, "jsonl": _json_rows, "parquet": _parquet_rows}[file_format]
    rows = []
    for number, value in enumerate(reader(data), 1):
        _require(number <= MAX_VOTES, f"its votes are more than {MAX_VOTES:,}")
        rows.append(_validated(Row, value, f"row {number}, ", texts=file_format == "csv"))
    return rows


def _json_rows(data: bytes) -> Iterator[Any]:
    return (parse_json(line) for line in data.split(b"\n") if line.strip())


def _csv_rows(data: bytes) -> Iterator[Any]:
    try:
        header, *lines = [line for line in csv.reader(io.StringIO(data.decode("utf-8-sig"),
                                                                  newline=""), strict=True)
                          if line] or [[]]
    except csv.Error as error:
        raise ValueError(first_line(error)) from None
    _require(len(set(header)) == len(header), "a column occurs twice")
    texts = {name for name, (kind, _) in COLUMNS.items() if kind is str}
    for number, line in enumerate(lines, 1):
        _require(len(line) == len(header), f"row {number} has {len(line)} cells, not {len(header)}")
        yield {name: plain_text(cell) if name in texts else cell for name,
               cell in zip(header, line, strict=True)}


def _parquet_rows(data: bytes) -> Iterator[Any]:
    pyarrow, parquet = arrow()
    from pyarrow import compute, types

    def is_text(kind: Any) -> bool:  # noqa: ANN401 -- of pyarrow
        return bool(types.is_string(kind) or types.is_large_string(kind))

    try:
        columns = parquet.ParquetFile(io.BytesIO(data)).schema_arrow
        for column in columns:
            _require(is_text(column.type) or types.is_integer(column.type)
                     or types.is_floating(column.type),
                     f"the column {column.name!r} has the type {column.type}")
        # A small file can repeat a long text a million times: texts stay in dictionaries until
        # their length is known.
        texts = [column.name for column in columns if is_text(column.type)]
        for batch in parquet.ParquetFile(io.BytesIO(data),
                                         read_dictionary=texts).iter_batches(1000):
            for column in batch.columns:
                if types.is_dictionary(column.type):
                    longest = compute.max(compute.binary_length(column.dictionary)).as_py() or 0
                    _require(longest <= MAX_CELL_BYTES, f"a text is longer than {MAX_CELL_BYTES} "
                             "bytes")
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, OverflowError, MemoryError,
            UnicodeDecodeError) as error:
        raise ValueError(first_line(error)) from None


def _check_rows(rows: Sequence[Row], document: Document, settings: StudySettings) -> None:
    """Raise ValueError if two fields of the votes or of the study contradict each other."""
    _require(document.votes == len(rows), f"it has {len(rows)} votes, and {document.votes} were "
             "exported")
    methods = {entry.name: {(entry.method_a, entry.method_b)} for entry in document.comparisons}
    obvious = {(judgement, "") for judgement in JUDGEMENTS} if settings.judge else {(RIGHT, WRONG)}
    methods.update(dict.fromkeys((GOLD, PRACTICE), obvious))
    facts: dict[tuple[object, ...], object] = {}
    positions: dict[str, list[int]] = defaultdict(list)
    for number, row in enumerate(rows, 1):
        for complaint in _contradictions(row, methods, settings, facts):
            raise ValueError(f"row {number}: {complaint}")
        positions[row.rater].append(row.position)
    for rater, found in positions.items():
        _require(sorted(found) == list(range(1, len(found) + 1)),
                 f"the votes of the rater {rater} have not the positions 1 to {len(found)}, each "
                 "once")
    records = [row.model_dump() for row in sorted(rows, key=lambda row: (row.rater, row.position))]
    sides = {(row.rater, row.pair): row.left for row in rows if row.kind == MAIN}
    swapped = {"a": "a"} if settings.judge else {"a": "b", "b": "a"}
    excluded = excluded_raters(records,
                               [Exclusion(**rule.model_dump()) for rule in document.exclusions])
    for number, row in enumerate(rows, 1):
        _require(row.kind != REPEAT or sides.get((row.rater, row.pair)) == swapped.get(row.left,
                                                                                       ""),
                 f"row {number}: the repeat of the pair {row.pair} has no vote before with the "
                 "sides swapped")
        _require(row.excluded == int(row.rater in excluded),
                 f"row {number}: excluded is {row.excluded}, which the study's exclusions "
                 "contradict")


def _contradictions(
    row: Row, methods: dict[str, set[tuple[str, str]]], settings: StudySettings,
    facts: dict[tuple[object, ...], object],
) -> list[str]:
    """Return what a vote contradicts, in words; `facts` are those of earlier votes, to which the
    vote's are added."""
    kind = MAIN if row.kind == REPEAT else row.kind
    width, height = settings.minimum_viewport
    own = [("rater", (row.rater,), (row.consented, row.consent_version, row.panel)),
           ("pair", (row.pair,), (kind, row.comparison, row.image, row.sha256_a, row.sha256_b)),
           ("vote on this pair by the rater", (row.rater, row.pair, row.kind), row.position)]
    if kind == MAIN:
        own += [(f"picture of {method}", (method, row.image), sha256)
                for method, sha256 in ((row.method_a, row.sha256_a), (row.method_b, row.sha256_b))
                if method]
    method = getattr(row, f"method_{row.chosen}", "")
    return [complaint for is_wrong, complaint in (
        *((facts.setdefault((what, *key), fact) != fact,
           f"it says something else of the same {what} than an earlier row") for what, key,
          fact in own),
        (row.comparison != kind if kind != MAIN else row.comparison in (GOLD, PRACTICE),
         f"the comparison {row.comparison!r} is none of {row.kind} pairs"),
        ((row.method_a, row.method_b) not in methods.get(row.comparison, ()),
         f"the study has no comparison {row.comparison!r} of {row.method_a!r} with "
         f"{row.method_b!r}"),
        ((row.chosen, row.chosen_method) != (answer_of(row.choice, row.left), method),
         f"chosen {row.chosen!r} and chosen_method {row.chosen_method!r} contradict choice "
         f"{row.choice!r} and left {row.left!r}"),
        (row.choice not in settings.choices, f"the study does not offer the choice {row.choice!r}"),
        ((row.method_b == "") != (row.sha256_b == "") or (row.left == "b" and not row.method_b),
         "a single picture has no method_b and sha256_b, and is on the left"),
        (row.position > settings.trials + settings.gold + settings.repeats + settings.practice,
         f"the position {row.position} is higher than the votes of a rater are many"),
        (row.viewport_width < width or row.viewport_height < height,
         "the window is smaller than the study's minimum_viewport"),
        (abs(row.response_ms - elapsed_ms(row.issued, row.voted)) > ROUNDING_MS,
         f"response_ms is {row.response_ms}, which issued and voted contradict"),
        (row.consent_version != settings.consent_version,
         "consent_version is of another text than the study's consent"),
    ) if is_wrong]


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
        a, b = (insert_once(schema.picture, method, image, sha256, method=method, image=image,
                            sha256=sha256, png=None)
                if method else None
                for method,
                sha256 in ((row[f"method_{side}"], row[f"sha256_{side}"]) for side in "ab"))
        pair = insert_once(schema.pair, row["pair"], number=row["pair"],
                           comparison=row["comparison"], image=image,
                           kind=MAIN if row["kind"] == REPEAT else row["kind"], picture_a=a,
                           picture_b=b)
        rater = insert_once(schema.rater, row["rater"], pseudonym=row["rater"],
                            consented=row["consented"], consent_version=row["consent_version"],
                            session_hash=None, panel=row["panel"] or None)
        trial = add_row(connection, schema.trial, rater_id=rater, pair_id=pair,
                        position=row["position"], kind=row["kind"], left_side=row["left"],
                        token_hash=None, issued=row["issued"])
        add_row(connection, schema.vote, trial_id=trial, response_ms=row["page_ms"],
                **{name: row[name] for name in columns})


def _add_exclusions(connection: Connection, study: int, exclusions: Sequence[RuleEntry]) -> None:
    """Add rules under their own numbers; a revocation of a revoked rule gets a number after all
    rules."""
    highest = max((exclusion.number for exclusion in exclusions), default=0)
    for exclusion in exclusions:
        values = {"study_id": study, "rule": exclusion.rule, "reason": exclusion.reason,
                  "recorded": exclusion.recorded}
        add_row(connection, schema.exclusion, **values, number=exclusion.number, revokes=None)
        if exclusion.revoked:
            highest += 1
            add_row(connection, schema.exclusion, **values, number=highest,
                    revokes=exclusion.number)
