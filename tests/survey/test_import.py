"""Import of exported votes: every field is checked, and a file that is damaged or hostile changes
no study."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import sqlite3
from contextlib import closing

import pyarrow
import pytest
from pyarrow import parquet
from survey_tools import add_study, vote_through

from superres.cli.main import run
from superres.errors import ConfigError, InvalidInputError
from superres.survey import importing
from superres.survey.exclusions import exclude
from superres.survey.export import csv_text, export_study, plain_text, study_file
from superres.survey.importing import Row, import_study
from superres.survey.records import COLUMNS
from superres.survey.store import Store
from superres.survey.study import FORMATS


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A study's export in every format, and a store that has another study."""
    folder = tmp_path_factory.mktemp("exported")
    store = Store(folder / "survey.db", create=True)
    study, _ = add_study(store, methods=("=k6", "greedy", "camera"), count=4, trials=8, gold=1,
                         repeats=2, practice=1, seed=4)
    for rater in ("one", "two"):
        vote_through(store, study, rater, lambda trial, number: ("left", "right")[number % 2])
    exclude(store, study, "votes<1", "nobody")
    for file_format in FORMATS:
        export_study(store, study, folder / f"votes.{file_format}")
    store.close()
    return folder


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A store that no refused file changes."""
    store = Store(tmp_path_factory.mktemp("kept") / "kept.db", create=True)
    add_study(store, "older")
    yield store
    store.close()


def content(store):
    with closing(sqlite3.connect(store.location)) as connection:
        return list(connection.iterdump())


def refused(store, path, message):
    """Assert that a file is refused in one line with a remedy, and that the store is as before."""
    before = content(store)
    with pytest.raises((InvalidInputError, ConfigError), match=message) as caught:
        import_study(store, path)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    assert re.search("; (export the study again|give a file|install a newer)|must end in|be an "
                     "option|rename it",
                     text), text
    assert content(store) == before


def study_of(exported, path, change):
    """Write the file of settings for the votes at `path` after a change, which may return another
    value."""
    document = json.loads((exported / "votes.study.json").read_text())
    value = change(document)
    study_file(path).write_text(json.dumps(document if value is None else value))


def put(*keys, value):
    """Return a change that sets a value at a path of keys."""
    def change(document):
        place = document
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


def drop(*keys):
    def change(document):
        place = document
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return change


def deep(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


NAN, LONG = float("nan"), "x" * 3_000_000
NESTED = "more than 32 lists and objects inside each other"
STUDIES = {
    "list": (lambda _: [], "dictionary"), "text": (lambda _: "study", "dictionary"),
    "null": (lambda _: None or 0, "dict"),
    "newer": (put("format", value=4), "has format 4, newer than this program's 3; install"),
    "format-0": (put("format", value=0), "format: Input should be greater than or equal to 1, not "
                 "0"),
    "format-text": (put("format", value="1"), "format: Input should be a valid integer"),
    "format-true": (put("format", value=True), "format: Input should be a valid integer"),
    "format-missing": (drop("format"), "format: Field required"),
    "unknown-key": (put("evil", value=1), "evil: Extra inputs are not permitted"),
    "name-traversal": (put("study", value="../../etc/passwd"), "without / and"),
    "name-backslash": (put("study", value="..\\..\\evil"), "without / and"),
    "name-option": (put("study", value="--store"), "must not begin with '-'"),
    "name-empty": (put("study", value=" "), "1 to 200 characters"),
    "name-long": (put("study", value="x" * 201), "shorten"),
    "name-number": (put("study", value=7), "study: Input should be a valid string, not 7"),
    "name-lines": (put("study", value="a\nb"), "on one line"),
    "name-nul": (put("study", value="a\0b"), "control char"),
    "name-surrogate": (put("study", value="a\ud800"), "surrogates not allowed"),
    "name-escape": (put("study", value="\x1b[2J"), "control"),
    "created-text": (put("created", value="yesterday"), "created: "),
    "created-month": (put("created", value="2026-13-01T00:00:00.000Z"), "created: month must be in "
                      "1..12"),
    "created-zone": (put("created", value="2026-01-01T00:00:00.000+01:00"), "created: "),
    "created-long": (put("created", value="2026-01-01T00:00:00.000Z" + "0" * 1000), "created: "),
    "settings-list": (put("settings", value=[]), "settings: Input should be a valid dictionary"),
    "settings-missing": (drop("settings", "trials"), "settings lack trials"),
    "settings-unknown": (put("settings", "evil", value=1), "unknown setting evil"),
    "trials-negative": (put("settings", "trials", value=-1), "trials must be at least 1, not -1"),
    "trials-huge": (put("settings", "trials", value=10**30), "trials must be at most 10000"),
    "trials-text": (put("settings", "trials", value="8"), "trials must be a whole number, not '8'"),
    "trials-float": (put("settings", "trials", value=8.5), "trials must be a whole number, not "
                     "8.5"), "repeats-many": (put("settings", "repeats", value=9), "repeats 9 are "
                                              "more than the trials, 8"),
    "seed-nan": (put("settings", "seed", value=NAN), "NaN is not a number in JSON"),
    "question-null": (put("settings", "question", value=None), "question must be text, not None"),
    "question-empty": (put("settings", "question", value=""), "question must not be empty"),
    "question-long": (put("settings", "question", value=LONG), "shorten it to 2,000"),
    "question-nul": (put("settings", "question", value="a\0"), "control characters"),
    "consent-other": (put("settings", "consent", value="another text"), "consent_version is of "
                      "another text"),
    "consent-number": (put("settings", "consent", value=3), "consent must be text, not 3"),
    "scale-huge": (put("settings", "scale", value=65), "scale must be at most 64"),
    "fill-text": (put("settings", "fill", value="yes"), "fill must be true or false"),
    "url-script": (put("settings", "completion_url", value="javascript:alert(1)"), "must be http"),
    "viewport-nested": (put("settings", "minimum_viewport", value=[[1], [2]]),
                        r"minimum_viewport must be a whole number, not \[1\]"),
    "viewport-larger": (put("settings", "minimum_viewport", value=[9000, 10]), "the window is "
                        "smaller than"),
    "params-number": (put("settings", "id_params", value=5), "id_params must be a list, not 5"),
    "params-many": (put("settings", "panel_params", value=["a"] * 9), "panel_params must be up to "
                    "8 names"),
    "methods-list": (put("methods", value=[]), "methods: Input should be a valid dictionary"),
    "methods-deep": (put("methods", "greedy", value={"a": deep(400)}), NESTED),
    "methods-infinite": (put("methods", "greedy", value={"a": float("inf")}), "Infinity is not a "
                         "number"),
    "methods-surrogate": (put("methods", "greedy", value={"a": "\ud800"}),
                          "surrogates not allowed"),
    "comparisons-none": (put("comparisons", value=[]), "at least 1 item"),
    "comparison-unknown-method": (put("comparisons", 0, "method_a", value="k7"),
                                  "'k7' of a comparison is not in methods"),
    "comparison-itself": (put("comparisons", 0, "method_b", value="=k6"), "'=k6' is compared with "
                          "itself"),
    "comparison-twice": (lambda d: d["comparisons"].append(d["comparisons"][0]), "two comparisons "
                         "have the same name"),
    "comparison-key": (put("comparisons", 0, "evil", value=1), "comparisons.0.evil: Extra inputs"),
    "comparison-gone": (lambda d: d["comparisons"].pop() and None, "the study has no comparison"),
    "comparison-named-gold": (lambda d: d["comparisons"].append({**d["comparisons"][0],
                                                                 "name": "gold"}),
                              "the name of gold pairs"),
    "rule-code": (put("exclusions", 0, "rule", value="votes<1; DROP TABLE x"), "exclusions.0.rule: "
                  "a rule is one of"),
    "rule-number": (put("exclusions", 0, "number", value=-1), "exclusions.0.number: "),
    "rule-huge": (put("exclusions", 0, "number", value=2**63), "exclusions.0.number: "),
    "rule-twice": (lambda d: d["exclusions"].append(d["exclusions"][0]), "two exclusions have the "
                   "same number"),
    "rule-revoked": (put("exclusions", 0, "revoked", value="no"), "exclusions.0.revoked: "),
    "rule-excludes": (put("exclusions", 0, "rule", value="votes<100"), "excluded is 0, which the "
                      "study's exclusions"),
    "withdrawal-negative": (put("withdrawals",
                                value=[{"recorded": "2026-01-01T00:00:00.000Z", "votes": -3}]),
                            "votes: "),
    "withdrawal-time": (put("withdrawals", value=[{"recorded": "", "votes": 3}]),
                        "withdrawals.0.recorded: "),
    "votes-other": (put("votes", value=3), "it has 24 votes, and 3 were exported"),
    "columns-number": (put("columns", value=3), "columns: Input should be a valid dictionary"),
}


@pytest.mark.parametrize("case", STUDIES)
def test_a_study_with_a_wrong_field_is_refused_and_no_study_changes(exported, kept, tmp_path, case):
    change, message = STUDIES[case]
    path = tmp_path / "votes.jsonl"
    path.write_bytes((exported / "votes.jsonl").read_bytes())
    study_of(exported, path, change)
    refused(kept, path, message)


def at(kind, /, **values):
    """Return a change of the first vote of a kind."""
    def change(rows):
        next(row for row in rows if row["kind"] == kind).update(values)

    return change


VOTES = {
    "rater-id": (at("main", rater="anna"), "row 2, rater: String should match"),
    "rater-other": (at("main", rater="0" * 32), "have not the positions 1 to 1"),
    "position-0": (at("main", position=0), "position: Input should be greater than or equal to 1, "
                   "not 0"),
    "position-text": (at("main", position="2"), "position: Input should be a valid integer, not "
                      "'2'"),
    "position-true": (at("main", position=True), "position: Input should be a valid integer"),
    "position-huge": (at("main", position=2**70), "the position 1180591620717411303424 is higher"),
    "position-twice": (at("main", position=1), "have not the positions 1 to 12, each once"),
    "kind": (at("main", kind="other"), "kind: Input should be 'main', 'gold', 'repeat' or "
             "'practice', not 'other'"),
    "kind-repeat": (at("main", kind="repeat"), "the repeat of the pair|same vote on this pair"),
    "kind-gold": (at("main", kind="gold"), "is none of gold pairs|same pair"),
    "comparison": (at("main", comparison="a vs b"), "the study has no comparison 'a vs b'|same "
                   "pair"),
    "pair-negative": (at("main", pair=-1), "pair: "),
    "pair-huge": (at("main", pair=2**31), "pair: "),
    "pair-null": (at("main", pair=None), "pair: Input should be a valid integer, not None"),
    "pair-float": (at("main", pair=0.5), "pair: Input should be a valid integer, not 0.5"),
    "image-traversal": (at("main", image="../../evil"), "an image's name must be 1 to 500 "
                        "characters"), "image-long": (at("main", image="x" * 501), "image: an "
                                                      "image's name has 501 characters"),
    "image-lines": (at("main", image="a\rb"), "image: "),
    "image-other": (at("repeat", image="face9"), "the same pair"),
    "method": (at("main", method_a="unknown"), "the study has no comparison"),
    "sha256": (at("main", sha256_a="0" * 63), "sha256_a: String should match"),
    "sha256-other": (at("main", sha256_a="0" * 64), "same (pair|picture of =k6)"),
    "left": (at("main", left="c"), "left: Input should be 'a' or 'b', not 'c'"),
    "choice": (at("main", choice="up"), "choice: Input should be 'left', 'right', 'unsure', .* or "
               "'good', not 'up'"),
    "choice-unsure": (at("main", choice="unsure", chosen="", chosen_method=""), "does not offer "
                      "the choice 'unsure'"),
    "chosen": (at("main", chosen=""), "contradict choice"),
    "chosen-method": (at("main", chosen_method="x"),
                      "contradict"),
    "side-swapped": (lambda rows: [row.update(left="ab"[row["left"] == "a"],
                                              choice={"left": "right", "right": "left"}[
                                                  row["choice"]]) for row in rows if row["kind"]
                                   == "repeat"], "has no vote before with the sides swapped"),
    "response-other": (at("main", response_ms=1.0e9), "which issued and voted contradict"),
    "response-negative": (at("main", response_ms=-1.0), "response_ms: "),
    "response-nan": (at("main", response_ms=NAN), "NaN is not a number in JSON"),
    "page-infinite": (at("main", page_ms=float("inf")), "Infinity is not a number in JSON"),
    "page-long": (at("main", page_ms=1e12), "page_ms: Input should be less than or equal to"),
    "display-0": (at("main", display_px=0), "display_px: Input should be greater than 0"),
    "ratio": (at("main", pixel_ratio="1"), "pixel_ratio: Input should be a valid number"),
    "window-0": (at("main", viewport_width=0), "viewport_width: "),
    "window-small": (at("main", viewport_width=9), "smaller"),
    "input": (at("main", input="voice"), "input: Input should be 'key' or 'pointer'"),
    "panel-code": (at("main", panel="<script>"), "panel: "),
    "panel-list": (at("main", panel="[1]"), "panel: "),
    "panel-many": (at("main", panel=json.dumps(dict.fromkeys(map(str, range(9)), "x"))), "panel: "),
    "panel-differs": (at("main", panel="{}"), "the same rater"),
    "consent-version": (at("main", consent_version="x"), "consent_version: String should match"),
    "consented-differs": (at("main", consented="2020-01-01T00:00:00.000Z"), "the same rater"),
    "issued-day": (at("main", issued="2026-02-30T00:00:00.000Z"), "issued: day"),
    "voted-local": (at("main", voted="2026-01-01T00:00:00"), "voted: "),
    "voted-empty": (at("main", voted=""),
                    "voted: "),
    "excluded-2": (at("main", excluded=2), "excluded: "), "excluded-other": (at("main", excluded=1),
                                                                             "excluded is 1"),
    "missing": (lambda rows: rows[3].pop("choice"), "row 4, choice: Field required"),
    "unknown": (lambda rows: rows[3].update(evil=1), "row 4, evil: Extra inputs are not permitted"),
    "row-list": (lambda rows: rows.__setitem__(3, []), "row 4, value: Input should be a valid "
                 "dictionary"),
    "row-twice": (lambda rows: rows.append(rows[3]), "it has 25 votes, and 24 were exported"),
    "row-instead": (lambda rows: rows.__setitem__(4, rows[3]), "have not the positions"),
    "row-lost": (lambda rows: rows.pop(), "it has 23 votes, and 24 were exported"),
}


@pytest.mark.parametrize("case", VOTES)
def test_a_vote_with_a_wrong_field_is_refused_and_no_study_changes(exported, kept, tmp_path, case):
    change, message = VOTES[case]
    path = tmp_path / "votes.jsonl"
    rows = [json.loads(line) for line in (exported / "votes.jsonl").read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    study_of(exported, path, lambda _: None)
    refused(kept, path, message)


def edit(old, new):
    return lambda data: data.replace(old, new, 1)


def table(change):
    """Return a change of a Parquet file's table."""
    def changed(data):
        sink = io.BytesIO()
        parquet.write_table(change(parquet.read_table(io.BytesIO(data))), sink, store_schema=False)
        return sink.getvalue()

    return changed


def repeated(value):
    """Return a table of 500,000 times one text, which is stored once."""
    numbers = pyarrow.array([0] * 500_000, pyarrow.int32())
    return pyarrow.table({"rater": pyarrow.DictionaryArray.from_arrays(numbers, [value])})


def column(name, values):
    return table(lambda votes: votes.set_column(votes.schema.get_field_index(name), name,
                                                values(len(votes))))


FILES = {
    "csv": {
        "empty": (lambda _: b"", "it has 0 votes, and 24 were exported"),
        "header": (edit(b"position", b"rater"), "a column occurs twice"),
        "unknown": (edit(b"position", b"place"), "row 1, (position: Field required|place: Extra "
                    "inputs)"),
        "cells": (edit(b"main,", b"main,,"), "row 2 has 28 cells, not 27"),
        "quote": (edit(b"main", b'"main'), "unexpected end of data|expected after|field larger"),
        "utf16": (lambda data: data.decode().encode("utf-16"), "can't decode"),
        "latin": (edit(b"main", b"m\xe4in"),
                  "decode"),
        "nul": (edit(b"main", b"m\0in"), "NUL|kind: "),
        "field": (edit(b"main", b"m" * 200_000), "field larger than"),
        "nan": (lambda data: re.sub(rb",64\.0,", b",nan,", data, count=1),
                "display_px: Input should be a finite number"),
        "digits": (edit(b",main,", b",main" + b"9" * 6000 + b","), "kind: "),
        "semicolons": (lambda data: data.replace(b",", b";"), "Extra inputs|Field required"),
        "half": (lambda data: data[:len(data) // 2], "cells, not 27"),
    },
    "jsonl": {
        "deep": (lambda data: b"[" * 100_000 + b"\n" + data, NESTED),
        "deep-object": (lambda data: b'{"a":' * 100_000 + b"\n" + data, NESTED),
        "number": (edit(b'"position": 2', b'"position": ' + b"9" * 6000), "integer string "
                   "conversion|digits|higher"),
        "duplicate": (edit(b'"position": 2', b'"position": 2, "position": 3'), "the name "
                      "'position' occurs twice"),
        "binary": (lambda _: bytes(range(256)), "can't decode|Expecting"),
        "utf16": (lambda data: data.decode().encode("utf-16"), "can't decode"),
        "half": (lambda data: data[:-300], "Expecting|Unterminated"),
        "array": (lambda data: b"[" + data + b"]", "Expecting"),
    },
    "parquet": {
        "text": (lambda _: b"PAR1 no table PAR1", "."), "half": (lambda data: data[:len(data) // 2],
                                                                 "."),
        "footer": (lambda data: data[:-12] + b"\xff" * 8 + data[-4:], "."),
        "null": (column("choice", lambda count: pyarrow.nulls(count, pyarrow.string())),
                 "row 1, choice: Input should be"),
        "nested": (column("image", lambda count: pyarrow.array([["a"]] * count)), "column 'image' "
                   "has the type list"),
        "binary": (column("image", lambda count: pyarrow.array([b"\xff"] * count)), "'image' has "
                   "the type binary"),
        "nan": (column("page_ms", lambda count: pyarrow.array([NAN] * count)),
                "row 1, page_ms: Input should be a finite"),
        "unknown": (table(lambda votes: votes.append_column("evil", votes["rater"])), "row 1, "
                    "evil: Extra inputs"),
        "twice": (table(lambda votes: votes.append_column("rater", votes["pair"])), "."),
        "long": (table(lambda _: repeated("x" * 100_000)), "a text is longer than 65536 bytes"),
        "many": (table(lambda _: repeated("x")), "row 1, choice: Field required"),
        "lacks": (table(lambda votes: votes.drop_columns(["rater"])), "row 1, rater: Field "
                  "required"),
    },
}


@pytest.mark.parametrize(("file_format", "case"),
                         [(name, case) for name, cases in FILES.items() for case in cases])
def test_a_damaged_file_of_votes_is_refused_and_no_study_changes(exported, kept, tmp_path,
                                                                 file_format, case):
    change, message = FILES[file_format][case]
    path = tmp_path / f"votes.{file_format}"
    path.write_bytes(change((exported / path.name).read_bytes()))
    study_of(exported, path, lambda _: None)
    refused(kept, path, message)


@pytest.mark.parametrize(("data", "message"), [
    (b"", "Expecting value"), (b"\xff\xfe{\0}", "can't decode"),
    (b"\xff\xfe{\0}\0", "format: Field required"), (b"[" * 100_000, NESTED),
    (b'{"format": 1, "format": 1}', "the name 'format' occurs twice"),
    (b'{"format": NaN}', "NaN is not a number"),
    (b'{"format": ' + b"9" * 6000 + b"}", "integer string|digits"),
    (b" " * (importing.MAX_STUDY_BYTES + 1), "more than 16777216"),
    (None, "cannot be read: No such file"),
])
def test_a_damaged_file_of_settings_is_refused_and_no_study_changes(exported, kept, tmp_path, data,
                                                                    message):
    path = tmp_path / "votes.csv"
    path.write_bytes((exported / path.name).read_bytes())
    if data is not None:
        study_file(path).write_bytes(data)
    refused(kept, path, message)


def test_a_byte_order_mark_and_settings_in_utf_16_are_read(exported, sqlite, tmp_path):
    path = tmp_path / "votes.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + (exported / path.name).read_bytes())
    study_file(path).write_text((exported / "votes.study.json").read_text(), encoding="utf-16")
    study = import_study(sqlite, path)
    export_study(sqlite, study, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (exported / path.name).read_bytes()


def test_files_of_another_kind_or_too_large_are_refused(exported, kept, tmp_path, monkeypatch):
    refused(kept, exported / "votes.txt", "must end in .csv, .jsonl, .parquet")
    (tmp_path / "votes.csv").mkdir()
    study_of(exported, tmp_path / "votes.csv", lambda _: None)
    refused(kept, tmp_path / "votes.csv", "cannot be read: not a regular file")
    monkeypatch.setattr(importing, "MAX_VOTES_BYTES", 1000)
    for file_format in FORMATS:
        refused(kept, exported / f"votes.{file_format}", "more than 1000 bytes long")
    monkeypatch.setattr(importing, "MAX_VOTES_BYTES", 2**20)
    monkeypatch.setattr(importing, "MAX_VOTES", 23)
    for file_format in FORMATS:
        refused(kept, exported / f"votes.{file_format}", "more than 23")


def test_the_schema_has_every_column():
    assert set(Row.model_fields) == set(COLUMNS)


def test_the_command_prints_one_line(exported, tmp_path, capsys):
    path = tmp_path / "votes.csv"
    path.write_text("rater\n")
    study_of(exported, path, lambda _: None)
    assert run(["survey", "import", str(path), "--store", str(tmp_path / "new.db")]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"superres: {path} is not an export, or damaged: it has 0 votes")


def test_an_export_that_a_spreadsheet_saved_is_imported(exported, sqlite, tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text((exported / "votes.csv").read_text(), encoding="utf-8-sig")
    study_of(exported, path, lambda _: None)
    assert import_study(sqlite, path).name == "study"


def test_the_apostrophes_of_a_csv_file_can_be_removed_from_any_text():
    draw = random.Random(0)
    for _ in range(5000):
        text = "".join(draw.choices(";\t\r\n'\" =+-@a,\xa0", k=draw.randrange(9)))
        cell = csv_text(text)
        assert plain_text(cell) == text
        assert not re.search(r"(^|[;\t\r\n])[^\S\t\r\n]*[=+\-@]", cell)


def test_no_cell_of_a_csv_file_is_a_formula_and_numbers_stay(sqlite, tmp_path):
    methods = ("=1+1", "+cmd", "-2+3", "@SUM(A1)", " =x", "'=quoted", "\uff1dwide", "plain-='",
               "a;=1", "a; \"'@b;+1")
    study, _ = add_study(sqlite, methods=methods, count=3, trials=21, gold=0, repeats=0, practice=0,
                         adaptive=False, question="=HYPERLINK(1)")
    vote_through(sqlite, study)
    for layout in ("votes", "arena"):
        path = tmp_path / f"{layout}.csv"
        export_study(sqlite, study, path, layout)
        rows = list(csv.DictReader(path.open(newline="")))
        assert len(rows) == 21
        for row in rows:
            for name, cell in row.items():
                assert cell.lstrip()[:1] not in tuple("=+-@\uff1d"), name
        for separator in ";\t":  # as a spreadsheet of another country takes the file
            for row in csv.reader(path.open(newline=""), delimiter=separator):
                assert not any(cell.strip(" \"")[:1] in tuple("=+-@\uff1d") for cell in row if cell)
        if layout == "votes":
            assert {float(row["display_px"]) for row in rows} == {64.0}
            assert {row["method_a"] for row in rows} >= {"'=1+1", "'' =x"[1:], "''=quoted"}
    other = Store(tmp_path / "other.db", create=True)
    imported = import_study(other, tmp_path / "votes.csv")
    assert imported.methods == study.methods
    export_study(other, imported, tmp_path / "again.jsonl")
    export_study(sqlite, study, tmp_path / "votes.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "votes.jsonl").read_bytes()
    other.close()
