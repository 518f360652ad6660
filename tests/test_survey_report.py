"""The report, exclusions, and exports that can be imported again."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
from contextlib import closing
from statistics import median

import pytest
from PIL import Image
from survey_tools import add_study, vote_through

from superres.errors import ConfigError, InvalidInputError, OutputError, StoreError
from superres.survey.exclusions import exclude, excluded_raters, quality, read_exclusions, revoke
from superres.survey.export import FORMATS, export_study, import_study, study_file
from superres.survey.planning import pilot_correlations
from superres.survey.presentation import report_markdown, report_plot
from superres.survey.records import COLUMNS, read_votes
from superres.survey.report import study_report
from superres.survey.server import survey_app
from superres.survey.store import Store


@pytest.fixture
def kept(memory_folder):
    store = Store(memory_folder / "survey.db", create=True)
    yield store
    store.close()


@pytest.fixture(scope="module")
def votes(tmp_path_factory):
    """A store with votes, and its study."""
    path = tmp_path_factory.mktemp("votes") / "survey.db"
    store = Store(path, create=True)
    study, _ = add_study(store, methods=("k6", "greedy", "camera"), count=6, trials=12, gold=2, repeats=3, practice=1,
                         allow_unsure=True)
    for number in range(3):
        vote_through(store, study, f"careful{number}", careful(store, study, number))
    vote_through(store, study, "careless", lambda *_: "left")
    store.close()
    return path, study


@pytest.fixture
def voted(kept, memory_folder, votes):
    """Three careful raters and one who always presses the same key, on three methods with one of them the camera."""
    path, study = votes
    with closing(sqlite3.connect(path)) as full, closing(sqlite3.connect(memory_folder / "survey.db")) as empty:
        full.backup(empty)
    return study


def careful(store, study, seed):
    """Return a chooser that knows the right side of gold pairs, and otherwise prefers k6, with some doubt."""
    from sqlalchemy import select

    from superres.survey import schema
    from superres.survey.credentials import digest

    def choose(trial, number):
        query = select(schema.trial.c.left_side, schema.trial.c.kind, schema.trial.c.pair_id) \
            .where(schema.trial.c.token_hash == digest(trial.token))
        with store.reading() as connection:
            left, kind, pair = connection.execute(query).one()
        if kind in ("main", "repeat") and (pair + seed) % 7 == 0:
            return "unsure"
        wanted = "a" if kind in ("gold", "practice") or (pair + seed) % 3 else "b"
        return "left" if left == wanted else "right"

    return choose


def test_the_report_counts_what_was_voted(kept, voted):
    result = study_report(kept, voted)["result"]
    main = [record for record in read_votes(kept, voted) if record["kind"] == "main"]
    assert (result["votes"], result["raters"], result["images"]) == (len(main), 4, 6) == (48, 4, 6)
    for comparison in result["comparisons"]:
        own = [record for record in main if record["comparison"] == comparison["name"]]
        counts = [sum(record["chosen"] == chosen for record in own) for chosen in ("a", "b", "")]
        assert [comparison[key] for key in ("votes_a", "votes_b", "unsure")] == counts
        assert comparison["preference"] == pytest.approx((counts[0] + counts[2] / 2) / len(own))
        assert comparison["preference_decided"] == pytest.approx(counts[0] / (counts[0] + counts[1]))
        assert comparison["fool_rate"]
        for kind in ("two_way", "votes", "rater", "image", "pigeonhole"):
            low, high = comparison["intervals"][kind]
            assert 0 <= low <= comparison["preference"] <= high <= 1
    left = [record["choice"] == "left" for record in main if record["choice"] != "unsure"]
    assert result["sides"]["share"] == sum(left) / len(left)
    assert result["gold"]["count"] == 8
    assert result["repeats"]["count"] == 12
    assert [s["method"] for s in result["strengths"]]
    assert {s["method"] for s in result["strengths"]} == {"k6", "greedy", "camera"}
    assert result["response_ms"]["median"] == median(record["response_ms"] for record in main)
    assert -1 <= result["agreement"] <= 1


def test_the_report_is_the_same_every_time_and_json_can_hold_it(kept, voted):
    first, second = (json.dumps(study_report(kept, voted), allow_nan=False) for _ in range(2))
    assert first == second
    assert voted.salt not in first


def test_a_study_without_votes_has_a_report(kept):
    study, _ = add_study(kept)
    report = study_report(kept, study)
    assert report["result"]["votes"] == 0
    assert "0 votes of 0 raters" in report_markdown(report)
    with Image.open(io.BytesIO(report_plot(report))) as plot:
        assert plot.width == 900


def test_a_single_vote_has_a_report(kept):
    study, _ = add_study(kept, count=1, trials=1, gold=0, repeats=0, practice=0)
    vote_through(kept, study, "me", lambda *_: "left")
    (comparison,) = study_report(kept, study)["result"]["comparisons"]
    assert comparison["intervals"]["two_way"] is None
    assert comparison["intervals"]["wilson"] is not None


def test_markdown_and_plot_show_every_comparison(kept, voted):
    report = study_report(kept, voted)
    text = report_markdown(report)
    for comparison in report["result"]["comparisons"]:
        assert f"| {comparison['name']} | {100 * comparison['preference']:.1f} |" in text
    assert "48 votes of 4 raters on 6 images" in text
    assert "fool rate (k6, greedy)" in text
    assert voted.settings.question in text
    with Image.open(io.BytesIO(report_plot(report))) as plot:
        assert plot.width == 900
        assert plot.height > 250


def test_quality_tells_careful_raters_from_one_who_presses_one_key(kept, voted):
    measured = quality(read_votes(kept, voted))
    careless = [rater for rater, measures in measured.items() if measures["same-side"] == 1]
    assert len(careless) == 1
    assert measured[careless[0]]["repeats"] == 0  # sides are swapped, so the same key is another choice
    for rater, measures in measured.items():
        assert measures["votes"] == 12
        if rater != careless[0]:
            assert measures["gold"] == measures["repeats"] == 1


def test_exclusion_is_recorded_repeatable_and_revocable_and_deletes_nothing(kept, voted):
    before = study_report(kept, voted)["result"]
    votes = read_votes(kept, voted)
    exclude(kept, voted, " same-side > 0.95 ", "one key only")
    report = study_report(kept, voted)
    assert report["result"]["raters"] == 3
    assert report["without_exclusions"] == before
    assert [len(entry["raters"]) for entry in report["exclusions"]] == [1]
    assert [rater["excluded_by"] for rater in report["raters"]].count(1) == 1
    assert "Preference without exclusions" in report_markdown(report)
    assert "1 rater excluded" in report_markdown(report)
    assert study_report(kept, voted) == report
    revoke(kept, voted, 1, "too strict")
    report = study_report(kept, voted)
    assert report["result"] == before
    assert [(entry["rule"], entry["revoked"]) for entry in report["exclusions"]] == [("same-side>0.95", True)]
    assert read_votes(kept, voted) == votes
    with pytest.raises(ConfigError, match="no active exclusion 1; active are: none"):
        revoke(kept, voted, 1, "again")


def test_rules_count_new_votes_as_well(kept, voted):
    exclude(kept, voted, "same-side>0.95", "one key only")
    vote_through(kept, voted, "careless too", lambda *_: "right")
    out = excluded_raters(read_votes(kept, voted), read_exclusions(kept, voted))
    assert len(out) == 2


def test_a_rater_can_be_excluded_by_name(kept, voted):
    rater = read_votes(kept, voted)[0]["rater"]
    exclude(kept, voted, f"rater={rater}", "asked for it")
    assert excluded_raters(read_votes(kept, voted), read_exclusions(kept, voted)) == {rater: 1}


@pytest.mark.parametrize("rule", ["", "gold", "gold=1", "gold<", "gold<x", "silver<1", "gold<0.8; DROP", "rater=me",
                                  "gold<1.2.3"])
def test_what_is_no_rule_is_refused(kept, voted, rule):
    with pytest.raises(ConfigError, match="a rule is one of gold, repeats, median-ms, same-side, votes"):
        exclude(kept, voted, rule, "x")
    assert read_exclusions(kept, voted) == []


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_exported_study_gives_the_same_report_and_the_same_export_again(kept, voted, tmp_path, file_format):
    exclude(kept, voted, "same-side>0.95", "one key only")
    exclude(kept, voted, "votes<1", "nobody")
    revoke(kept, voted, 2, "pointless")
    votes, described, dictionary = export_study(kept, voted, tmp_path / f"votes.{file_format}", file_format)
    other = Store(tmp_path / "other.db", create=True)
    imported = import_study(other, votes)
    report = json.dumps(study_report(other, imported)).replace(other.location, kept.location)  # in command lines
    assert report == json.dumps(study_report(kept, voted))
    (tmp_path / "again").mkdir()
    again = export_study(other, imported, tmp_path / "again" / votes.name, file_format)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in (votes, described, dictionary)]
    with pytest.raises(StoreError, match="was imported without its pictures; it can be reported, not served"):
        survey_app(other, imported)
    with pytest.raises(ConfigError, match="there is a study 'study'"):
        import_study(other, votes)
    assert import_study(other, votes, "second").name == "second"
    other.close()


def test_every_column_is_described_and_every_rater_a_pseudonym(kept, voted, tmp_path):
    votes, described, dictionary = export_study(kept, voted, tmp_path / "votes.csv", "csv")
    with votes.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    assert len(rows) == 4 * (12 + 2 + 3 + 1)
    text = votes.read_text() + described.read_text() + dictionary.read_text()
    assert "careful0" not in text
    assert "careless" not in text
    assert voted.salt not in text
    for column, (_, meaning) in COLUMNS.items():
        assert f"| `{column}` |" in dictionary.read_text()
        assert json.loads(described.read_text())["columns"][column]["meaning"] == meaning
    assert [(row["rater"], int(row["position"])) for row in rows] == sorted(
        (row["rater"], int(row["position"])) for row in rows)


def test_an_export_without_the_servers_times_gets_them_from_when_pairs_were_shown_and_voted_on(kept, voted, tmp_path):
    path = export_study(kept, voted, tmp_path / "votes.csv", "csv")[0]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["response_ms"] = row.pop("page_ms")  # as such files were before
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    other = Store(tmp_path / "other.db", create=True)
    assert read_votes(other, import_study(other, path)) == read_votes(kept, voted)
    other.close()


@pytest.mark.parametrize(("change", "message"), [
    (lambda path: path.with_suffix(".txt"), "must end in .csv, .jsonl, .parquet"),
    (lambda path: path.unlink() or path, "cannot be read: No such file"),
    (lambda path: study_file(path).unlink() or path, "cannot be read: No such file"),
    (lambda path: study_file(path).write_text("[]") and path, "is not what superres survey export writes"),
    (lambda path: study_file(path).write_text('{"format": 2}') and path, "has format 2, newer than this program's 1"),
    (lambda path: study_file(path).write_text('{"format": 1}') and path, "does not match"),
    (lambda path: path.write_text("rater,position\na,1\n") and path, "does not match"),
    (lambda path: path.write_text(path.read_text().replace(",left,", ",up,", 1)) and path, "does not match"),
    (lambda path: path.write_text(path.read_text().replace("T", "at")) and path, "does not match"),
])
def test_files_that_are_no_export_are_refused_in_one_line_and_nothing_is_stored(kept, voted, tmp_path, change, message):
    path = change(export_study(kept, voted, tmp_path / "votes.csv", "csv")[0])
    other = Store(tmp_path / "other.db", create=True)
    with pytest.raises(InvalidInputError, match=message) as caught:
        import_study(other, path)
    assert "\n" not in str(caught.value)
    assert other.studies() == []
    other.close()


def test_an_export_that_cannot_be_written_is_one_line(kept, voted, tmp_path):
    with pytest.raises(OutputError, match="cannot write"):
        export_study(kept, voted, tmp_path / "nowhere" / "votes.csv", "csv")
    with pytest.raises(ConfigError, match="--format must be one of csv, jsonl, parquet, not 'xls'"):
        export_study(kept, voted, tmp_path / "votes.xls", "xls")


def test_a_pilots_correlations_are_the_reports(kept, voted):
    rater, image = pilot_correlations(kept, voted)
    assert 0 <= rater < 1
    assert 0 <= image < 1
    empty, _ = add_study(kept, "empty")
    with pytest.raises(ConfigError, match="has too few votes to estimate their correlations"):
        pilot_correlations(kept, empty)
