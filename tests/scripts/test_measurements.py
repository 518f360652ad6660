"""The engine of the tables: what is measured again, what is shown, and that no figure of a page
lacks its source."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest
from PIL import Image

import measurements
import table2
from measurements import (
    MEASUREMENTS,
    ROOT,
    SECTION,
    Line,
    Panel,
    Row,
    Table,
    columns_table,
    fill_page,
    pages,
    verdict,
)
from superres.errors import ConfigError, InvalidInputError, OutputError

FIGURE = re.compile(r"\| *\**[±+-]?\d[\d,]*(\.\d+ ?%?|%)\** +(?=[|(±/])")
"""A cell of a decimal number or a share, perhaps with an interval or a number in brackets."""


@pytest.fixture(autouse=True)
def _paths(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scripts/reproduce/tables.py", "table", "--output",
                                      "/somewhere/out"])


@pytest.fixture
def opened(tmp_path):
    """Open a table in the same folder again and again, as a run that is resumed does."""
    return lambda **conditions: Table("table2", tmp_path / "out",
                                      {"images": 3, "batch_size": 2, **conditions})


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_a_figure_of_a_page_is_in_a_table_with_a_source(page, tmp_path):
    shutil.copy(page, tmp_path / page.name)
    assert not fill_page(tmp_path / page.name), "run scripts/measurements.py"
    outside = SECTION.sub("", page.read_text())
    assert ([line for line in outside.splitlines() if line.startswith("|") and FIGURE.search(line)]
            == [])


def test_a_figure_that_is_changed_or_added_by_hand_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- table: table2.accepted -->\n<!-- end -->\n")
    assert fill_page(page)
    text = page.read_text()
    assert "| 6.33 |" in text
    page.write_text(text.replace("| 6.33 |", "| 6.34 |"))
    assert fill_page(page)
    assert page.read_text() == text
    assert all(FIGURE.search(line) for line in ("| a | 1.5 |", "| a | **2.25** |", "| a | +46% |",
                                                "| a | 1,840.5 |"))
    assert not any(FIGURE.search(line) for line in ("| a | `x86-64-v2` |", "| a | 4.8 MiB of "
                                                    "weights", "| k | 2 |"))


def words(*names):
    return [" ".join((ROOT / name).read_text().split()) for name in names]


def cells(name, view):
    """Return the cells of a table by its line, without the widths of intervals."""
    table = measurements.views(json.loads((MEASUREMENTS / f"{name}.json").read_text()))[view]
    return [[cell.strip().split(" ±")[0] for cell in line.split("|")[1:-1]]
            for line in table.splitlines()[2:]]


def test_the_cost_of_limits_is_that_of_its_table():
    cost = max(float(row[1]) - float(row[2]) for row in cells("consistent", "cost"))
    assert all(f"at most {cost:.2f} dB" in page for page in words("docs/results-faces.md",
                                                                  "docs/acceptance.md"))


def test_the_scores_in_the_readme_are_those_of_their_table():
    scores = {row[0].split(",")[0]: row for row in cells("face-scores-celeba-8to64", "similarity")}
    psnr, lpips = ([scores[name][column] for name in ("epsilon 2", "exact", "Lanczos")]
                   for column in (1, 5))
    [readme] = words("README.md")
    assert (f"epsilon 2 scores {psnr[0]} dB PSNR, greedy and exact decoding {psnr[1]} dB, and "
            f"Lanczos {psnr[2]} dB"
            in readme)
    assert f"ST-LPIPS (less is better) says {lpips[0]}, {lpips[1]} and {lpips[2]}" in readme
    exact, mean, *_ = (row[5] for row in cells("finish-celeba-8to64", "similarity"))
    assert f"has {mean} for {exact} on 100 others" in readme


@pytest.mark.parametrize("path", sorted(MEASUREMENTS.glob("*.json")), ids=lambda path: path.name)
def test_a_document_has_command_commit_date_and_processor_and_its_views_are_shown(path):
    document = json.loads(path.read_text())
    assert {"command", "commit", "date", "machine", "conditions"} <= document.keys()
    assert re.fullmatch(r"[0-9a-f]{7,}", document["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", document["date"])
    assert document["machine"]["cpu"]
    shown = {found[2] for page in pages() for found in SECTION.finditer(page.read_text())
             if found[1] == path.stem}
    assert shown <= measurements.views(document).keys()
    assert shown
    assert shown == document.get("printed", {}).keys() or "rows" in document


def test_a_row_is_measured_again_only_if_its_settings_change(opened, capsys):
    calls = []
    rows = [Row(name, lambda name=name: calls.append(name) or {"score": len(calls)},
                {"weights": name})
            for name in ("a", "b")]
    opened().measure(rows)
    first = json.loads(opened().path.read_text())
    again = opened()
    again.measure([*rows, Row("b", lambda: calls.append("new") or {"score": 0}, {"weights": "c"})])
    assert calls == ["a", "b", "new"]
    assert capsys.readouterr().err.count("already measured") == 2
    assert again.document["rows"]["a"] == first["rows"]["a"]
    assert first["command"] == "python scripts/reproduce/tables.py table --output out"


def test_a_run_that_stops_keeps_the_rows_before(opened):
    with pytest.raises(ZeroDivisionError):
        opened().measure([Row("a", lambda: {"score": 1}), Row("b", lambda: {"score": 1 // 0})])
    assert list(json.loads(opened().path.read_text())["rows"]) == ["a"]


@pytest.mark.parametrize(("changed", "message"), [
    ({"images": 4}, "images 3, not 4"), ({"batch_size": 1}, "batch_size 2, not 1"),
    ({"more": 1}, "more None, not 1")])
def test_measurements_of_other_conditions_are_not_mixed(opened, changed, message):
    opened().save()
    with pytest.raises(ConfigError, match=rf"table2\.json was measured with {message}; choose "
                       rf"another --output"):
        opened(**changed)


def test_measurements_of_another_processor_are_not_mixed(opened, monkeypatch):
    opened().save()
    here = measurements.machine
    monkeypatch.setattr(measurements, "machine", lambda device: {**here(device), "cpu": "Z80"})
    with pytest.raises(ConfigError, match=r"was measured with cpu .*, not Z80"):
        opened()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"conditions": 3, "rows": {}}'])
def test_a_damaged_document_is_refused_in_one_line(opened, text):
    opened().path.write_text(text)
    with pytest.raises(ConfigError, match=r"cannot be read.*choose another --output") as caught:
        opened()
    assert "\n" not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--output"):
        Table("table2", tmp_path / "file", {})


@pytest.mark.slow
def test_a_finished_table_is_written_printed_and_fills_its_page(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    page = tmp_path / "docs" / "page.md"
    page.write_text("before\n<!-- table: table2.conclusions -->\nold\n<!-- end -->\nafter\n")
    document = json.loads((MEASUREMENTS / "table2.json").read_text())
    table = Table("table2", tmp_path / "out", document["conditions"])
    table.document = document
    paths = table.finish(page)
    assert [path.name for path in paths] == ["table2.md", "table2-figure4.png", "table2-curves.png"]
    shown = table2.views(document)
    printed = capsys.readouterr().out
    assert all(part in printed for part in shown.values())
    assert page.read_text() == ("before\n<!-- table: table2.conclusions "
                                "-->\n\n" + shown["conclusions"]
                                + "\n\n<!-- end -->\nafter\n")
    assert json.loads((tmp_path / "docs" / "measurements" / "table2.json").read_text()) == document
    for name in ("table2-figure4", "table2-curves"):
        with Image.open(tmp_path / "docs" / "pictures" / f"{name}.webp") as picture:
            assert picture.width >= 900


@pytest.mark.parametrize(("text", "message"), [
    ("<!-- table: nothing.accepted -->\n<!-- end -->", "shows accepted of nothing.json, which "
     "cannot be read"),
    ("<!-- table: table2.nothing -->\n<!-- end -->", "shows nothing of table2.json")])
def test_a_table_without_a_source_is_refused(tmp_path, text, message):
    (tmp_path / "page.md").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        fill_page(tmp_path / "page.md")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        fill_page(tmp_path / "none.md")


def test_cells_show_numbers_intervals_and_what_is_missing():
    rows = [{"name": "a", "score": 1.234, "score_half_width": 0.05, "same": True},
            {"name": "b", "score": None}]
    text = columns_table(rows, {"": ("name", 0), "score": ("score", 2),
                                "twice": (lambda row: 2 * (row["score"] or 0), 1),
                                "same": ("same", 0)})
    assert text.splitlines() == ["|  | score | twice | same |", "| --- | ---: | ---: | --- |",
                                 "| a | 1.23 ±0.05 | 2.5 | yes |", "| b | - | 0.0 | - |"]


@pytest.mark.parametrize(("difference", "noise", "text"), [
    (0.2, 0.1, "holds"), (-0.2, 0.1, "does not hold"), (0.1, 0.2, "undecided"),
    (0.1, 0.0, "holds")])
def test_a_verdict_is_beyond_the_noise(difference, noise, text):
    assert verdict(difference, noise) == text


def test_a_plot_has_the_size_and_the_lines_that_it_is_given():
    lines = [Line([(1, 2), (2, 3)], "a", notes=["x", "y"]), Line([], "none")]
    panels = [Panel(lines, {"title": "left"}), Panel([], {})]
    plot = Image.open(measurements.io.BytesIO(measurements.draw(panels, 2, (6, 3))))
    assert plot.size == (600, 300)
    assert ROOT.joinpath("docs").is_dir()
