"""The report, its sentences and warnings, exclusions, and exports."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sqlite3
from contextlib import closing
from statistics import fmean, median

import pytest
from PIL import Image
from pyarrow import parquet

from superres.errors import ConfigError, OutputError
from superres.survey.exclusions import exclude, excluded_raters, quality, read_exclusions, revoke
from superres.survey.export import FORMATS, export_study
from superres.survey.presentation import findings, report_markdown, report_plot, sentence
from superres.survey.records import COLUMNS, read_votes
from superres.survey.report import pilot_correlations, study_report
from superres.survey.store import Store
from tests.survey.helpers import PLAIN, add_study, choosing, vote_through


@pytest.fixture(scope="module")
def votes(tmp_path_factory):
    """A store with votes, and its study."""
    path = tmp_path_factory.mktemp("votes") / "survey.db"
    store = Store(path, create=True)
    # By this seed, every careful rater chooses both sides.
    study, _ = add_study(store, methods=("k6", "greedy", "camera"), count=6, trials=12, gold=2,
                         repeats=3, practice=1, allow_unsure=True, seed=4)
    for number in range(4):
        def careful(trial, _, number=number):
            if trial.kind in ("gold", "practice"):
                return "a"
            place = trial.pair_id + number
            return "" if place % 7 == 0 else "a" if place % 3 else "b"

        vote_through(store, study, f"careful{number}", choosing(store, careful))
    vote_through(store, study, "careless")
    store.close()
    return path, study


@pytest.fixture
def voted(sqlite, memory_folder, votes):
    """Four careful raters and one who always presses the same key, on three methods with one of
    them the camera."""
    path, study = votes
    with (closing(sqlite3.connect(path)) as full,
          closing(sqlite3.connect(memory_folder / "survey.db")) as empty):
        full.backup(empty)
    return study


def test_the_report_counts_what_was_voted(sqlite, voted):
    result = study_report(sqlite, voted)["result"]
    main = [record for record in read_votes(sqlite, voted) if record["kind"] == "main"]
    assert (result["votes"], result["raters"], result["images"]) == (len(main), 5, 6) == (60, 5, 6)
    for comparison in result["comparisons"]:
        own = [record for record in main if record["comparison"] == comparison["name"]]
        counts = [sum(record["chosen"] == chosen for record in own) for chosen in ("a", "b", "")]
        assert [comparison[key] for key in ("votes_a", "votes_b", "unsure")] == counts
        assert comparison["preference"] == pytest.approx((counts[0] + counts[2] / 2) / len(own))
        decided = counts[0] / (counts[0] + counts[1])
        assert comparison["preference_decided"] == pytest.approx(decided)
        assert comparison["fool_rate"]
        low, high = comparison["intervals"]["two_way"]
        assert 0 <= low <= comparison["preference"] <= high <= 1
    left = [record["choice"] == "left" for record in main if record["choice"] != "unsure"]
    assert result["sides"]["share"] == sum(left) / len(left)
    assert (result["gold"]["count"], result["repeats"]["count"]) == (10, 15)
    assert {s["method"] for s in result["strengths"]} == {"k6", "greedy", "camera"}
    assert result["response_ms"]["median"] == median(record["response_ms"] for record in main)


def test_studies_without_votes_and_with_a_single_one_have_reports(sqlite):
    study, _ = add_study(sqlite, count=1, trials=1, gold=0, repeats=0, practice=0)
    report = study_report(sqlite, study)
    assert "0 votes of 0 raters" in report_markdown(report)
    assert report_plot(report).startswith(b"\x89PNG")
    vote_through(sqlite, study)
    (comparison,) = study_report(sqlite, study)["result"]["comparisons"]
    assert comparison["intervals"]["two_way"] is None
    assert comparison["intervals"]["wilson"] is not None


def test_below_five_raters_there_are_no_strengths_and_p_values(sqlite):
    study, _ = add_study(sqlite, methods=("k6", "greedy", "camera"), count=6, trials=12, gold=0,
                         practice=0)
    for raters in range(1, 6):
        vote_through(sqlite, study, f"rater{raters}", choosing(sqlite, lambda *_: "a"))
        report = study_report(sqlite, study)
        result, text = report["result"], report_markdown(report)
        reason = f"p-values and strengths need at least 5 raters, not {raters}"
        for part in (result, *result["comparisons"]):
            assert part["withheld"] == (reason if raters < 5 else None)
        assert (result["strengths"] is None) == (raters < 5)
        assert (result["sides"]["p_binomial"] is None) == (raters < 5)
        for comparison in result["comparisons"]:
            assert (comparison["p_binomial"] is None) == (raters < 5)
            assert comparison["intervals"]["wilson"] is not None
        assert ("### Strengths" in text) == (raters == 5)
        assert (reason[1:] in text) == (raters < 5)
        assert ("<0.001" in text) == (raters == 5)
        assert report_plot(report).startswith(b"\x89PNG")


def test_markdown_and_plot_show_every_comparison(sqlite, voted):
    report = study_report(sqlite, voted)
    text = report_markdown(report)
    for comparison in report["result"]["comparisons"]:
        assert f"| {comparison['name']} | {100 * comparison['preference']:.1f} |" in text
    assert "60 votes of 5 raters on 6 images" in text
    assert "fool rate (k6, greedy)" in text
    with Image.open(io.BytesIO(report_plot(report, narrow=True))) as plot:
        assert plot.width == 420


def test_quality_tells_careful_raters_from_one_who_presses_one_key(sqlite, voted):
    measured = sorted(quality(read_votes(sqlite, voted)).values(),
                      key=lambda measures: measures["same-side"])
    assert {measures["votes"] for measures in measured} == {12}
    assert all(measures["gold"] == measures["repeats"] == 1 for measures in measured[:4])
    assert measured[4]["same-side"] == 1
    assert measured[4]["repeats"] == 0  # sides are swapped, so the same key is another choice


def test_exclusion_is_recorded_repeatable_and_revocable_and_deletes_nothing(sqlite, voted):
    before = study_report(sqlite, voted)["result"]
    votes = read_votes(sqlite, voted)
    exclude(sqlite, voted, " same-side > 0.95 ", "one key only")
    report = study_report(sqlite, voted)
    assert report["result"]["raters"] == 4
    assert report["without_exclusions"] == before
    assert [len(entry["raters"]) for entry in report["exclusions"]] == [1]
    assert [rater["excluded_by"] for rater in report["raters"]].count(1) == 1
    assert "Preference without exclusions" in report_markdown(report)
    revoke(sqlite, voted, 1, "too strict")
    report = study_report(sqlite, voted)
    assert report["result"] == before
    assert ([(entry["rule"], entry["revoked"]) for entry in report["exclusions"]]
            == [("same-side>0.95", True)])
    exclude(sqlite, voted, f"rater={votes[0]['rater']}", "asked for it")
    assert excluded_raters(votes, read_exclusions(sqlite, voted)) == {votes[0]["rater"]: 3}
    assert read_votes(sqlite, voted) == votes
    with pytest.raises(ConfigError, match="no active exclusion 1; active are: 3"):
        revoke(sqlite, voted, 1, "again")
    for rule in ("", "gold", "gold=1", "gold<x", "silver<1", "gold<1; DROP", "rater=me",
                 "gold<1.2.3"):
        with pytest.raises(ConfigError, match="a rule is one of gold, repeats, median-ms, "
                           "same-side, votes"):
            exclude(sqlite, voted, rule, "x")
    assert len(read_exclusions(sqlite, voted)) == 2


def test_a_pilots_correlations_are_the_reports(sqlite, voted):
    rater, image = pilot_correlations(sqlite, voted)
    assert 0 <= rater < 1
    assert 0 <= image < 1
    empty, _ = add_study(sqlite, "empty")
    with pytest.raises(ConfigError, match="has too few votes to estimate their correlations"):
        pilot_correlations(sqlite, empty)


def known(fool_rate=False, **changes):
    return {"method_a": "A", "method_b": "B", "fool_rate": fool_rate, "votes": 100,
            "anytime": {"raters": 20, "preference": 0.57, "interval": (0.48, 0.66),
                        "settled": False, "more_raters": 12, "votes_to_flip": 8,
                        "votes_to_unsettle": None, **changes}}


@pytest.mark.parametrize(("changes", "parts"), [
    ({}, ["A is preferred to B in 57 of 100 votes, on average over 20 raters, between 48 and 66 "
          "(90%", "12 more raters would settle", "8 votes the other way"]),
    ({"preference": 0.4, "interval": (0.3, 0.49), "settled": True, "votes_to_flip": 11,
      "votes_to_unsettle": 1},
     ["B is preferred to A in 60 of 100 votes", "settled. 1 vote the other way", "and 11 would "
      "turn it round"]),
    ({"preference": 0.5, "interval": (0.4, 0.61), "more_raters": None, "votes_to_flip": None},
     ["A and B are chosen in 50 of 100 votes each", "look again after more raters"]),
    ({"preference": 0.5, "more_raters": None, "votes_to_flip": None}, ["take the two as equal"]),
    ({"raters": 1, "preference": 0.504}, ["A is preferred to B in 50.4 of 100 votes, on average "
                                          "over 1 rater,", "too early to say, with 1 finished "
                                          "rater"]),
    ({"fool_rate": True, "preference": 0.36}, ["A is taken for the photograph in 36 of 100 votes"]),
])
def test_an_answer_is_a_sentence_with_the_numbers_of_the_leader(changes, parts):
    text = sentence(known(**changes), 0.9)
    assert [part for part in parts if part not in text] == []


def test_careless_raters_are_warned_of_with_what_to_do_and_careful_ones_are_not(sqlite):
    study, _ = add_study(sqlite, "my study", count=20, trials=16, gold=2, repeats=4, practice=0)
    for number in range(3):
        vote_through(sqlite, study, f"rater{number}", choosing(sqlite, lambda *_: "a"))
    report = study_report(sqlite, study)
    whats = [warning["what"] for warning in report["findings"]["warnings"]]
    # tests are fast
    assert [what for what in whats if "half a second" not in what] == ["Only 3 raters finished."]
    for number in range(3):
        vote_through(sqlite, study, f"careless{number}")
    found = {warning["what"]: warning["command"]
             for warning in study_report(sqlite, study)["findings"]["warnings"]}
    assert found["3 raters chose the same side in over 90 of 100 votes."] == (
        "superres survey exclude 'my study' 'same-side>0.9' --reason 'chose the same side in over "
        f"90 of 100 votes' --store {shlex.quote(sqlite.location)}")
    assert "3 raters gave another answer to most pairs that they saw twice." in found


@pytest.mark.parametrize(("unsure", "chance"),
                         [(False, "two answers gives 50"), (True, "three answers gives 33")])
def test_sides_repeats_and_unfinished_raters_are_warned_of(unsure, chance):
    result = {"comparisons": [known(raters=3)], "raters": 5,
              "sides": {"share": 0.3, "p_binomial": 0.001},
              "repeats": {"share": 0.52, "interval": (0.45, 0.6)}}
    report = {"study": "s", "level": 0.9, "raters": [], "result": result,
              "settings": {"judge": False, "allow_unsure": unsure}}
    warnings = findings(report, "survey.db")["warnings"]
    parts = ["right picture was chosen in 70 of 100", "the same answer in 52 of 100 cases; "
             f"guessing among {chance}.", "Only 3", "2 raters did not finish"]
    assert all(part in warning["what"] for part, warning in zip(parts, warnings, strict=True))


READING = {"csv": lambda path: list(csv.DictReader(path.open(newline=""))),
           "jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
           "parquet": lambda path: parquet.read_table(path).to_pylist()}


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_export_has_every_vote_in_every_format_and_the_study(sqlite, voted, tmp_path,
                                                                file_format):
    exclude(sqlite, voted, "same-side>0.95", "one key only")
    (number,) = excluded_raters(read_votes(sqlite, voted), read_exclusions(sqlite, voted))
    votes, described, _ = export_study(sqlite, voted, tmp_path / f"votes.{file_format}")
    rows, expected = READING[file_format](votes), read_votes(sqlite, voted)
    assert len(rows) == len(expected) == 5 * (12 + 2 + 3 + 1)
    for row, record in zip(rows, expected, strict=True):
        record["excluded"] = int(record["rater"] == number)
        assert row == {name: str(record[name]) if file_format == "csv" else record[name]
                       for name in COLUMNS}
    document = json.loads(described.read_text())
    assert document["votes"] == len(rows)
    assert {key: document[key] for key in voted.record()} == json.loads(json.dumps(voted.record()))
    assert [rule["rule"] for rule in document["exclusions"]] == ["same-side>0.95"]


@pytest.mark.parametrize("file_format", FORMATS)
def test_arena_rank_reads_the_counted_votes(sqlite, voted, tmp_path, file_format):
    exclude(sqlite, voted, "same-side>0.95", "one key only")
    counted = study_report(sqlite, voted)["result"]
    (arena,) = export_study(sqlite, voted, tmp_path / f"arena.{file_format}", "arena")
    battles = READING[file_format](arena)
    assert list(battles[0]) == ["model_a", "model_b", "winner"]
    assert len(battles) == counted["votes"]
    values = {"model_a": 1.0, "model_b": 0.0, "tie": 0.5}
    for comparison in counted["comparisons"]:
        own = [values[row["winner"]] for row in battles if row["model_a"] == comparison["method_a"]]
        assert fmean(own) == pytest.approx(comparison["preference"])
    with pytest.raises(ConfigError, match=r"must end in \.csv, \.jsonl, \.parquet"):
        export_study(sqlite, voted, tmp_path / "votes.xls")


def test_every_column_is_described_and_every_rater_a_pseudonym(sqlite, voted, tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        export_study(sqlite, voted, tmp_path / "nowhere" / "votes.csv")
    votes, described, dictionary = (
        path.read_text() for path in export_study(sqlite, voted, tmp_path / "v.csv"))
    rows = list(csv.DictReader(io.StringIO(votes)))
    assert list(rows[0]) == list(COLUMNS)
    for word in ("careful0", "careless", voted.salt):
        assert word not in votes + described + dictionary
    assert all(f"| `{column}` |" in dictionary for column in COLUMNS)
    assert [(row["rater"], int(row["position"])) for row in rows] == sorted(
        (row["rater"], int(row["position"])) for row in rows)


def test_no_cell_of_a_csv_file_is_a_formula_and_numbers_stay(sqlite, tmp_path):
    methods = ("=1+1", "+cmd", "-2+3", "@SUM(A1)", " =x", "'=quoted", "\uff1dwide", "plain-='",
               "a;=1", "a; \"'@b;+1")
    study, _ = add_study(sqlite, methods=methods, count=3, trials=21, **PLAIN,
                         question="=HYPERLINK(1)")
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
