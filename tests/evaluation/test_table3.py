"""Table 3: which comparison measures which row, and the paper's figures beside ours."""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

import tables
from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.survey import schema
from superres.survey.pairs import Method, compare_methods, make_pairs
from superres.survey.report import study_report
from superres.survey.store import Store
from superres.survey.study import StudySettings
from superres.tasks.face_data import write_npz
from superres.training.recipes import read_recipe, train_recipe
from table3 import ROWS, match_rows, views
from tests.evaluation.helpers import face_pairs
from tests.survey.helpers import choosing, pictures, vote_through


def decoded(name, training="fine-tuned", revision="0123", **settings):
    record = {"checkpoint": "net", "revision": revision,
              "config": DecodeConfig(**settings).to_dict(), "training": training}
    return Method(name, pictures(2, seed=len(name)), record)


def regular(name="greedy", **settings):
    return decoded(name, "frozen base", "4567", **settings)


@pytest.fixture
def reported(memory_folder):
    """Return the report of a study of these methods against greedy, with the votes of two
    raters."""
    store = Store(memory_folder / "survey.db", create=True)

    def report(methods, greedy=None, name="table3"):
        compared = compare_methods(methods, [greedy or regular(block_size=1)])
        settings = StudySettings(gold=0, repeats=0, practice=0, scale=2)
        records = {method.name: method.record for _, a, b in compared for method in (a, b)}
        study, _ = store.create_study(name, settings, [c for c, _, _ in compared], records,
                                      make_pairs(compared, settings))
        for rater in ("one", "two"):
            vote_through(store, study, rater, lambda _, number: ("left", "right")[number % 2])
        return study_report(store, study)

    yield report
    store.close()


def shown(report):
    return "\n".join(views({"rows": {"votes": {"values": report}}}).values())


def test_the_papers_ten_rows():
    assert [row.name for row in ROWS] == [
        f"{criterion}-k{k}" for criterion in ("exact", "approximate") for k in (2, 4, 6, 8, 10)]
    best = max(ROWS, key=lambda row: row.preference)
    assert (best.name, best.preference, best.interval) == ("approximate-k6", 56.8, (55.4, 58.2))
    assert all(row.interval[0] < row.preference < row.interval[1] for row in ROWS)


def test_a_comparison_belongs_to_the_row_of_its_settings_or_its_name(reported):
    report = reported([
        decoded("six", block_size=6, accept="distance", epsilon=2),
        decoded("exact ten", block_size=10),
        Method("exact-k2", pictures(2, seed=40), {"folder": "x"}),
        decoded("loose", block_size=6, accept="distance", epsilon=4),
        decoded("three", block_size=3), decoded("drawn", block_size=8, temperature=0.9)])
    assert {name: comparison["method_a"] for name, comparison in match_rows(report).items()} == {
        "approximate-k6": "six", "exact-k10": "exact ten", "exact-k2": "exact-k2"}


@pytest.mark.parametrize("b", [regular("four", block_size=4),
                               regular("drawn", block_size=1, temperature=0.9),
                               Method("camera", pictures(2, seed=41), {"photographs": "x"}),
                               Method("bicubic", pictures(2, seed=42), {"bicubic": "x"})])
def test_method_b_must_be_known_to_be_greedy(reported, b):
    report = reported([decoded("six", block_size=6)], b)
    assert match_rows(report) == {}
    with pytest.raises(ConfigError, match="no comparison of the study 'table3' measures a row of"):
        shown(report)
    named = Method("exact-k6", pictures(2, seed=43), {"folder": "x"})
    expected = {"exact-k6"} if b.name != "camera" else set()
    assert set(match_rows(reported([named], b, "named"))) == expected


@pytest.mark.parametrize(("a", "b", "message"), [
    (decoded("six", block_size=6), decoded("greedy", block_size=1),
     r"'six' and 'greedy' are pictures of one network \(fine-tuned, revision 0123\)"),
    (regular("six", block_size=6), decoded("greedy", block_size=1),
     "the heads of 'six' were trained as: frozen base, and those of 'greedy' as: fine-tuned"),
    (decoded("six", block_size=6), decoded("greedy", revision="89ab", block_size=1),
     "those of 'greedy' as: fine-tuned, not fine-tuned and with a frozen base; make the study of "
     "Table 3 with"),
    ([decoded("six", block_size=6), decoded("six again", block_size=6)], None,
     "measure the row exact-k6"),
])
def test_other_networks_and_a_row_twice_are_refused(reported, a, b, message):
    with pytest.raises(ConfigError, match=message) as caught:
        match_rows(reported(a if isinstance(a, list) else [a], b))
    assert "\n" not in str(caught.value)


IMAGES, STAGES = 4, [  # images of --quick
    {"name": "base"}, {"name": "regular", "start": "base", "stage": "heads", "freeze_base": True},
    {"name": "fine-tuned", "start": "base", "stage": "heads"}]


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    """Return the folder of a small run of a recipe such as table2.json, and its faces."""
    folder = tmp_path_factory.mktemp("ladder")
    write_npz(face_pairs(6, 8), folder / "faces.npz")
    (folder / "recipe.json").write_text(json.dumps({
        "preset": "tiny", "network": {"source_shape": [2, 2, 3], "target_shape": [8, 8, 3]},
        "prediction_heads": 10, "steps": 2, "batch_size": 2, "learning_rate": 0.1,
        "stages": STAGES}))
    assert train_recipe(read_recipe(folder / "recipe.json", data=folder / "faces.npz",
                                    output=folder), lambda: False, lambda *_: None)
    return folder


def script(*words):
    """Run a command of the script `tables`."""
    tables.app([str(word) for word in words], standalone_mode=False)


@pytest.mark.extended
def test_one_command_makes_the_study_of_ten_rows_and_the_table_shows_how_its_raters_voted(
    ladder, tmp_path, capsys):
    """Simulated raters prefer row n on n mod 5 of the four images, so their preferences are
    known."""
    place, data = tmp_path / "survey.db", ladder / "faces.npz"
    script("table3-study", "--ladder", ladder, "--data", data, "--store", place, "--quick",
           "--device", "cpu")
    store = Store(place)
    study = store.study("table3")
    assert store.is_owner(study, capsys.readouterr().out.strip())
    assert [comparison.name for comparison in study.comparisons] == [f"{row.name} vs regular"
                                                                     for row in ROWS]
    assert {name: record["training"] for name, record in study.methods.items()} == {
        "regular": "frozen base", **{row.name: "fine-tuned" for row in ROWS}}
    assert {name: record["config"]["block_size"] for name, record in study.methods.items()} == {
        "regular": 1, **{row.name: row.block_size for row in ROWS}}
    with store.reading() as connection:
        pairs = [pair for pair in connection.execute(select(schema.pair)) if pair.kind == "main"]
    names = sorted({pair.image for pair in pairs})
    assert len(names) == IMAGES
    assert len(pairs) == 10 * IMAGES
    preferred = {f"{row.name} vs regular": set(names[: number % 5])
                 for number, row in enumerate(ROWS)}

    def wanted(trial, comparison):
        return "a" if trial.image in preferred.get(comparison, {trial.image}) else "b"

    for rater in ("one", "two"):
        vote_through(store, study, rater, choosing(store, wanted))
    store.close()
    script("table3", "table3", "--store", place, "--output", tmp_path / "tables")
    lines = (tmp_path / "tables" / "table3.md").read_text().splitlines()
    for number, row in enumerate(ROWS):
        (line,) = (line for line in lines if line.startswith(f"| **{row.criterion}, k = "
                                                             f"{row.block_size}** |"))
        assert line.split("|")[2].strip() == f"{25 * (number % 5):.1f}"
        assert line.endswith("| 8 | 2 | 4 |")
        paper = f"| {row.criterion}, k = {row.block_size}, paper | {row.preference}"
        assert lines[lines.index(line) + 1].startswith(paper)
    with pytest.raises(ConfigError, match="the study 'table3' exists"):
        script("table3-study", "--ladder", ladder, "--data", data, "--store", place)
