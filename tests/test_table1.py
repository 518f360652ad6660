"""Tables 1 and 4: what is measured, what is not measured again, and what is written."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image
from textual import learned, sentences, write_pairs

import tables
from series import ACCEPTED, BLOCK_SIZES
from superres.checkpoint import read_training
from superres.errors import ConfigError
from superres.evaluation.text import bleu, bleu_difference
from superres.tasks.translation import TextPairs
from table1 import CHECKPOINTS, CLAIMS, SERIES, TABLE_4, Table1, table1_markdown, table4_markdown

DEV, TEST = sentences(6), sentences(3, seed=1)


@pytest.fixture(scope="module")
def toy():
    return learned()[torch.float64]


@pytest.fixture
def opened(tmp_path):
    return lambda test=TEST: Table1(tmp_path / "tables", DEV, test, 4, "cpu")


def saved(table):
    return json.loads(table.path.read_text())


def test_the_papers_figures_are_those_of_its_tables():
    best = {name: max(one[ACCEPTED] for one in series.paper.values())
            for name, series in SERIES.items() if series.paper}
    assert best == {"regular": 1.76, "distillation": 1.91, "fine-tuning": 3.01, "both": 4.95,
                    "both, top-2": 5.67, "both, top-3": 5.91}
    assert all(set(series.paper) <= set(series.block_sizes) for series in SERIES.values())
    assert len(TABLE_4) == 23
    assert [speed for *_, speed in TABLE_4[-6:]] == [1.00, 1.72, 2.69, 3.10, 3.31, 3.04]


def test_a_cell_holds_quality_acceptance_and_time(opened, toy):
    table = opened()
    table.add("both, top-2", toy)
    cells = {cell["block_size"]: cell for cell in saved(table)["series"]["both, top-2"]["cells"]}
    assert tuple(cells) == (1, 2, 4)  # greedy for comparison, and what four heads allow
    assert (cells[1]["config"]["accept"], cells[4]["config"]["accept"]) == ("exact", "top-k")
    assert cells[1]["identical_to_greedy"] == cells[1]["speed_up"] == 1
    assert 1 <= cells[4]["mean_accepted_block_size"] <= 4
    assert {"bleu", "chrf", "seconds_per_sentence", "model_calls_per_sentence", "survival"} <= set(cells[4])


def test_the_test_set_is_decoded_one_by_one_greedily_blockwise_and_by_beam(opened, toy):
    table = opened()
    table.add_test("both", toy)
    cells = saved(table)["series"]["test, both"]["cells"]
    assert [cell["block_size"] for cell in cells] == [1, 2, 4, 0]
    assert cells[-1]["mean_accepted_block_size"] is None
    assert cells[-1]["config"] == {"size": 4, "length_penalty": 0.6}
    without = Table1(table.folder / "other", DEV, None, 4, "cpu")
    without.add_test("both", toy)
    assert "not measured" in table4_markdown(without.document)


def test_what_is_measured_is_not_decoded_again(opened, toy, capsys, monkeypatch):
    opened().add("regular", toy)
    before = saved(opened())
    assert all(cell["identical_to_greedy"] == 1 for cell in before["series"]["regular"]["cells"])  # exact
    again = opened()
    monkeypatch.setattr("table1.decode_text", pytest.fail)
    again.add("regular", toy)
    assert "regular: already measured" in capsys.readouterr().err
    assert saved(again) == before


def test_another_text_is_refused(opened, toy, tmp_path):
    opened().add("regular", toy)
    with pytest.raises(ConfigError, match=r"table1\.json was measured with dev .*choose another --output"):
        Table1(tmp_path / "tables", TextPairs(["a"], ["b"]), TEST, 4, "cpu")
    with pytest.raises(ConfigError, match="--batch-size must be at least 1"):
        Table1(tmp_path / "new", DEV, TEST, 0, "cpu")


def test_the_views_hold_ours_beside_the_papers(opened, toy):
    table = opened()
    for name in SERIES:
        table.add(name, toy)
    table.add_test("both", toy)
    paths = table.write_views()
    assert [path.name for path in paths] == ["table1.md", "table4.md", "table1.png", "figure4.png", "curves.png"]
    first, fourth = table1_markdown(table.document), table4_markdown(table.document)
    assert "| Both, paper | - | 26.58 / 1.88 | 26.36 / 3.27 | 26.18 / 4.18 | 26.11 / 4.69 | 25.60 / 4.95 |" in first
    assert "| **Regular** | " in first
    assert "Missing" not in first
    assert "| Blockwise parallel decoding for Transformer (k = 8) | Stern et al. (2018) | 27.88 | 3.31x |  |" in fourth
    assert "| both (greedy, k = 1) | ours | " in fourth
    assert "| both (beam size 4) | ours | " in fourth
    assert all(len(line.split("|")) == len(BLOCK_SIZES) + 3 for line in first.splitlines()[4:20] if line[:1] == "|")
    assert Image.open(paths[2]).size == (1100, 500)


def test_a_difference_in_bleu_is_of_the_same_sentences():
    references = [f"the {colour} dog runs through {depth} snow" for colour in ("red", "old", "small", "big")
                  for depth in ("deep", "new", "white", "wet")]
    good = [line.replace("deep", "thick") for line in references]
    bad = [line.replace("snow", "rain") if "red" in line else line for line in good]
    found = bleu_difference(good, bad, references, 200)
    assert found["difference"] == pytest.approx(bleu(good, references)["score"] - bleu(bad, references)["score"])
    alone = [bleu(one, references, 200)["half_width"] for one in (good, bad)]
    assert 0 < found["half_width"] < (alone[0] ** 2 + alone[1] ** 2) ** 0.5
    assert bleu_difference(good, good, references, 20) == {"difference": 0.0, "half_width": 0.0}
    claim = next(one for one in CLAIMS if one.score == "bleu")
    assert claim.row(SERIES, {}, {claim.text: {"difference": -1.5, "half_width": 0.5}})[2:] == [
        "- and - (-1.50 +-0.50)", "does not hold"]
    assert claim.row(SERIES, {}, {claim.text: {"difference": 0.4, "half_width": 0.5}})[3] == "undecided"


def test_one_command_trains_the_ladder_and_measures_it(tmp_path, capsys):
    paths = {name: write_pairs(sentences(count, seed), tmp_path / name)
             for name, count, seed in (("train", 200, 2), ("val", 3, 0), ("test", 2, 1))}
    output = tmp_path / "tables"
    words = ["table1", "--train", str(paths["train"]), "--data", str(paths["val"]), "--test", str(paths["test"]),
             "--output", str(output), "--device", "cpu", "--quick"]
    tables.app(words, standalone_mode=False)
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("# Table 1", "# Table 4", "## The paper's conclusions", "## Training"))
    assert "Missing" not in printed
    assert str(tmp_path) not in (output / "table1.md").read_text()
    document = json.loads((output / "table1.json").read_text())
    assert set(document["series"]) == {*SERIES, *(f"test, {role}" for role in CHECKPOINTS)}
    assert all([point["step"] for point in points] == [1, 2] for points in document["curves"].values())
    assert [row["rung"] for row in document["costs"]] == ["teacher", "base", "student", *CHECKPOINTS]
    assert set(document["differences"]) == {claim.text for claim in CLAIMS if claim.score == "bleu"}
    bases = {name: read_training(output / "ladder" / name / "checkpoint")[-1]
             for name in ("teacher", "base", "student")}
    assert bases["teacher"]["settings"]["seed"] != bases["base"]["settings"]["seed"]
    assert bases["base"]["settings"] == bases["student"]["settings"]
    assert bases["base"]["data_digest"] == bases["teacher"]["data_digest"] != bases["student"]["data_digest"]
