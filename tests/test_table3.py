"""Table 3: which comparison measures which row, and the paper's figures beside ours."""

from __future__ import annotations

import pytest
from PIL import Image
from survey_tools import pictures, vote_through

from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.survey.pairs import Method, compare_methods, make_pairs
from superres.survey.report import study_report
from superres.survey.store import Store
from superres.survey.study import StudySettings
from table3 import ROWS, match_rows, table3_markdown, write_table3


def decoded(name, **settings):
    record = {"checkpoint": "net", "revision": "0123", "config": DecodeConfig(**settings).to_dict()}
    return Method(name, pictures(2, seed=len(name)), record)


@pytest.fixture
def reported(memory_folder):
    """Return the report of a study of these methods against greedy, with the votes of two raters."""
    store = Store(memory_folder / "survey.db", create=True)

    def report(methods, greedy=None, name="table3"):
        compared = compare_methods(methods, [greedy or decoded("greedy", block_size=1)])
        settings = StudySettings(gold=0, repeats=0, practice=0, scale=2)
        records = {method.name: method.record for _, a, b in compared for method in (a, b)}
        study, _ = store.create_study(name, settings, [c for c, _, _ in compared], records,
                                      make_pairs(compared, settings))
        for rater in ("one", "two"):
            vote_through(store, study, rater, lambda _, number: ("left", "right")[number % 2])
        return study_report(store, study)

    yield report
    store.close()


def test_the_papers_ten_rows():
    assert [row.name for row in ROWS] == [f"{criterion}-k{k}" for criterion in ("exact", "approximate")
                                          for k in (2, 4, 6, 8, 10)]
    best = max(ROWS, key=lambda row: row.preference)
    assert (best.name, best.preference, best.interval) == ("approximate-k6", 56.8, (55.4, 58.2))
    assert all(row.interval[0] < row.preference < row.interval[1] for row in ROWS)


def test_a_comparison_belongs_to_the_row_of_its_settings_or_its_name(reported):
    report = reported([
        decoded("six", block_size=6, accept="distance", epsilon=2), decoded("exact ten", block_size=10),
        Method("exact-k2", pictures(2, seed=40), {"folder": "x"}),
        decoded("loose", block_size=6, accept="distance", epsilon=4), decoded("three", block_size=3),
        decoded("drawn", block_size=8, temperature=0.9)])
    assert {name: comparison["method_a"] for name, comparison in match_rows(report).items()} == {
        "approximate-k6": "six", "exact-k10": "exact ten", "exact-k2": "exact-k2"}


def test_method_b_must_be_greedy(reported):
    report = reported([decoded("six", block_size=6)], decoded("four", block_size=4))
    assert match_rows(report) == {}
    with pytest.raises(ConfigError, match="no comparison of the study 'table3' measures a row of Table 3"):
        table3_markdown(report)


@pytest.mark.parametrize("b", [decoded("drawn", block_size=1, temperature=0.9),
                               Method("camera", pictures(2, seed=41), {"photographs": "x"}),
                               Method("bicubic", pictures(2, seed=42), {"bicubic": "x"})])
def test_method_b_must_be_known_to_be_greedy(reported, b):
    assert match_rows(reported([decoded("six", block_size=6)], b)) == {}
    named = Method("exact-k6", pictures(2, seed=43), {"folder": "x"})
    assert set(match_rows(reported([named], b, "named"))) == ({"exact-k6"} if b.name != "camera" else set())


def test_a_row_is_measured_once(reported):
    report = reported([decoded("six", block_size=6), decoded("six again", block_size=6)])
    with pytest.raises(ConfigError, match="measure the row exact-k6"):
        match_rows(report)


def test_markdown_has_ten_rows_with_the_papers_below_ours(reported):
    report = reported([decoded("six", block_size=6, accept="distance", epsilon=2)])
    (comparison,) = report["result"]["comparisons"]
    lines = [line for line in table3_markdown(report).splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + 1 + 20
    ours = next(i for i, line in enumerate(lines) if line.startswith("| **approximate, k = 6**"))
    assert lines[ours].startswith(f"| **approximate, k = 6** | {100 * comparison['preference']:.1f} | (")
    assert lines[ours].endswith("| 4 | 2 | 2 |")
    assert lines[ours + 1].startswith("| approximate, k = 6, paper | 56.8 | (55.4, 58.2) | -")
    assert "Not in the study: exact-k2, exact-k4" in table3_markdown(report)


def test_the_plot_has_ours_and_the_papers(reported, tmp_path):
    paths = write_table3(reported([decoded("six", block_size=6)]), tmp_path / "tables")
    assert [path.name for path in paths] == ["table3.json", "table3.md", "table3.png"]
    with Image.open(paths[2]) as plot:
        assert plot.width == 1000
