"""Table 2: what is measured, when it is measured again, and what is written."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, TOKENS, FakeUpscaler, random_model
from PIL import Image

import tables
from ladder import check_ladder
from series import ACCEPTED, BLOCK_SIZES, Claim
from superres.errors import ConfigError, OutputError
from superres.pipeline.upscaler import Upscaler
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import area_reduce
from table2 import CHECKPOINTS, PLOTS, SERIES, Table2, table2_markdown


@pytest.fixture
def pairs():
    hr = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    return FacePairs(hr, area_reduce(hr, 8, 8), np.arange(3, dtype=np.int32))


@pytest.fixture
def opened(pairs, tmp_path):
    """Open the table in the same folder again and again, as a run that is resumed does."""
    return lambda: Table2(tmp_path / "table", pairs, 2, "cpu")


def saved(table):
    return json.loads(table.path.read_text())


def test_the_papers_figures_are_those_of_its_table():
    best = {name: max(one[ACCEPTED] for one in series.paper.values())
            for name, series in SERIES.items() if series.paper}
    assert best == {"regular": 1.10, "approximate": 1.49, "fine-tuned": 2.23, "both": 6.79}
    assert all(set(series.paper) - {1} == set(BLOCK_SIZES) - {1} for series in SERIES.values() if series.paper)


def test_a_cell_holds_acceptance_quality_likelihood_and_time_of_one_block_size(opened):
    table = opened()
    table.add("both", FakeUpscaler())
    cells = {cell["block_size"]: cell for cell in saved(table)["series"]["both"]["cells"]}
    assert tuple(cells) == BLOCK_SIZES
    cell = cells[10]
    assert (cell["config"]["accept"], cell["config"]["epsilon"]) == ("distance", 2)
    assert (cell["mean_accepted_block_size"], cell["model_calls_per_image"]) == (TOKENS / 308, 309)
    assert (cells[1]["speed_up"], cell["speed_up"]) == pytest.approx((1, 10))
    assert (cell["survival"], cell["equal_tokens"], cell["psnr_to_greedy"]) == ([1.0] * 10, 1, None)
    assert cell["bits_per_dim_truth"] > cell["bits_per_dim_decoded"] == 0
    assert cell["paper_mean_accepted_block_size"] == 6.79
    assert {"psnr", "ssim", "consistency_rmse", "seconds_per_image"} <= set(cell)


def test_a_real_network_is_measured(pairs, tmp_path):
    upscaler = Upscaler(random_model(replace(TINY, prediction_heads=1), dtype=torch.float32), "tiny", "89abcdef", "cpu")
    table = Table2(tmp_path, FacePairs(pairs.hr[:1], pairs.lr[:1], pairs.ids[:1]), 2, str(upscaler.device))
    table.add("regular", upscaler)
    (cell,) = saved(table)["series"]["regular"]["cells"]
    assert (cell["block_size"], cell["model_calls_per_image"], cell["survival"]) == (1, TOKENS + 1, [1.0])
    assert 0 < cell["bits_per_dim_decoded"] < cell["bits_per_dim_truth"]


def test_what_is_measured_is_not_decoded_again_and_a_new_revision_is(opened):
    opened().add("both", FakeUpscaler())
    same, new = FakeUpscaler(), FakeUpscaler(revision="89abcdef")
    before = saved(opened())
    opened().add("both", same)
    assert same.batches == []
    assert saved(opened()) == before
    opened().add("regular", same)
    assert same.batches != []
    opened().add("both", new)
    assert new.batches != []
    assert {name: entry["revision"] for name, entry in saved(opened())["series"].items()} == {
        "regular": "0123abcd", "both": "89abcdef"}


def test_a_run_that_stops_keeps_the_series_before(opened):
    opened().add("regular", FakeUpscaler())
    with pytest.raises(RuntimeError):
        opened().add("approximate", FakeUpscaler(most=0))
    assert list(saved(opened())["series"]) == ["regular"]


def test_measurements_of_other_data_batches_or_devices_are_not_mixed(pairs, opened):
    table = opened()
    table.add("regular", FakeUpscaler())
    fewer = FacePairs(pairs.hr[:2], pairs.lr[:2], pairs.ids[:2])
    for arguments, named in (((fewer, 2, "cpu"), "images 3, not 2"), ((pairs, 3, "cpu"), "batch_size 2, not 3"),
                             ((pairs, 2, "cuda"), "device cpu, not cuda")):
        with pytest.raises(ConfigError, match=f"{named}.*choose another --output"):
            Table2(table.folder, *arguments)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run": 3, "series": {}}'])
def test_a_damaged_table_is_refused_in_one_line(opened, text):
    opened().path.write_text(text)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        opened()
    assert "\n" not in str(caught.value)


def test_a_folder_or_batch_size_that_cannot_be_used_is_refused(pairs, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="--output"):
        Table2(tmp_path / "file", pairs, 2, "cpu")
    with pytest.raises(ConfigError, match="--batch-size"):
        Table2(tmp_path, pairs, 0, "cpu")


def test_markdown_has_the_papers_row_below_ours_and_names_what_is_missing(opened):
    table = opened()
    table.add("fine-tuned", FakeUpscaler())
    lines = table2_markdown(table.document).splitlines()
    ours = next(i for i, line in enumerate(lines) if line.startswith("| **fine-tuned** |"))
    assert lines[ours] == ("| **fine-tuned** | 1.00 +-0.00 | 2.00 +-0.00 | 4.00 +-0.00 | 6.00 +-0.00 | 8.00 +-0.00 | "
                           "9.97 +-0.00 |")
    assert lines[ours + 1] == "| fine-tuned, paper | - | 1.59 | 2.11 | 2.23 | 2.17 | 2.04 |"
    assert "fine-tuned (" not in (missing := next(line for line in lines if line.startswith("Missing: ")))
    assert "regular (rung regular)" in missing
    assert "both (rung fine-tuned)" in missing


def test_views_are_a_table_and_a_plot_each(opened):
    table = opened()
    for name in ("regular", "both"):
        table.add(name, FakeUpscaler())
    paths = table.write_views()
    assert [path.name for path in paths] == ["table2.md", *PLOTS]
    assert {path.name for path in table.folder.iterdir()} == {"table2.json", "table2.md", *PLOTS}
    for path in paths[1:]:
        with Image.open(path) as image:
            assert image.size == (900, 600)


@pytest.mark.parametrize(("words", "message"), [
    ("table2 --data x --output out", "tables: out/ladder has no finished rung regular, fine-tuned, sequential-regular, "
     "sequential-fine-tuned; train the ladder there with --train"),
    ("table1 --data x --output out --ladder there", "tables: there has no finished rung regular, distillation,"),
    ("table3 x --output out --store nowhere.db", "tables: no survey store nowhere.db"),
])
def test_the_script_names_what_is_missing_in_one_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tables", *words.split()])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(tables.__file__, run_name="__main__")
    assert caught.value.code.startswith(message)
    assert "\n" not in caught.value.code


def test_one_command_trains_the_ladder_and_measures_it(pairs, tmp_path, capsys):
    write_npz(pairs, tmp_path / "faces.npz")
    words = ["table2", "--train", str(tmp_path / "faces.npz"), "--data", str(tmp_path / "faces.npz"), "--output",
             str(tmp_path / "out"), "--device", "cpu", "--quick"]
    tables.app(words, standalone_mode=False)
    printed = capsys.readouterr().out
    assert all(part in printed for part in ("# Table 2", "## The paper's conclusions", "## Training"))
    assert "Missing" not in printed
    assert str(tmp_path) not in (tmp_path / "out" / "table2.md").read_text()
    document = json.loads((tmp_path / "out" / "table2.json").read_text())
    assert list(document["series"]) == list(SERIES)
    assert {len(entry["cells"]) for entry in document["series"].values()} == {len(BLOCK_SIZES)}
    assert {tuple(point["step"] for point in points) for points in document["curves"].values()} == {(1, 2)}
    assert [row["rung"] for row in document["costs"]] == ["base", *CHECKPOINTS]
    for role in ("regular", "sequential-regular"):  # a frozen base keeps its greedy pictures
        assert document["series"][role.replace("sequential-regular", "regular, sequential heads")]["cells"][0][
            "bits_per_dim_decoded"] == pytest.approx(document["series"]["regular"]["cells"][0]["bits_per_dim_decoded"])
    tables.app(words, standalone_mode=False)
    assert "already measured" in capsys.readouterr().err


@pytest.mark.parametrize(("ours", "other", "factor", "verdict"), [
    ((2.0, 0.1), (1.0, 0.1), 1, "holds"), ((2.0, 0.1), (1.0, 0.1), 2, "undecided"), ((2.0, 0.1), (1.2, 0.1), 2,
    "does not hold"), ((2.0, None), (1.0, None), 1, "holds"), (None, (1.0, 0.1), 1, "not measured"),
])
def test_a_claim_holds_beyond_the_intervals(ours, other, factor, verdict):
    def cell(score):
        return {} if score is None else {ACCEPTED: score[0], f"{ACCEPTED}_half_width": score[1]}

    assert Claim("", "", "", 2, factor).verdict(cell(ours), cell(other)) == verdict


def records(**changes):
    """Return the records of two networks from one base, the second one trained with other settings."""
    base = {"stage": "base", "steps": 9, "settings": {"learning_rate": 1e-3}}
    last = {"stage": "heads", "images_seen": 8, "settings": {"steps": 2, "seed": 0, "freeze_base": True}}
    other = {**last, "settings": {**last["settings"], "freeze_base": False, **changes}}
    return {"regular": [base, last], "fine-tuned": [base, other]}


def test_networks_that_differ_only_in_their_names_are_compared_and_no_others():
    check_ladder(records())
    with pytest.raises(ConfigError, match=r"fine-tuned was trained otherwise than regular \(seed 1, not 0\)"):
        check_ladder(records(seed=1))
    others = records()
    others["fine-tuned"][0] = {**others["fine-tuned"][0], "steps": 10}
    with pytest.raises(ConfigError, match="do not start from the same base"):
        check_ladder(others)
    seen = records()
    for rows in seen.values():
        rows.insert(1, {**rows[0], "stage": "distil"})
    with pytest.raises(ConfigError, match=r"base of regular was trained with heads before \(stage distil\)"):
        check_ladder(seen)
    with pytest.raises(ConfigError, match="has no training"):
        check_ladder({"regular": []})


def test_bases_of_other_text_were_trained_in_the_same_way():
    kinds = {"regular": "true", "fine-tuned": "distilled"}
    found = records()
    found["fine-tuned"] = [{**row, "data_digest": "other", "start_digest": "other"} for row in found["fine-tuned"]]
    check_ladder(found, kinds)
    with pytest.raises(ConfigError, match="do not start from the same base"):
        check_ladder(found)
    found["fine-tuned"][0]["steps"] = 10
    with pytest.raises(ConfigError, match=r"fine-tuned was trained otherwise than regular \(steps 10, not 9\)"):
        check_ladder(found, kinds)
