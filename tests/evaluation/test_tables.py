"""Tables 1 and 2: the paper's figures, what one command trains and measures, and which networks may
be compared."""

from __future__ import annotations

import json
import re
import runpy

import pytest
from fakes import TOKENS, FakeUpscaler
from textual import sentences, write_pairs

import table1
import table2
import tables
from ladder import ACCEPTED, BLOCK_SIZES, Claim, check_ladder
from measurements import values
from superres.checkpoint import read_training
from superres.errors import ConfigError
from superres.evaluation.text import bleu, bleu_difference
from superres.tasks.face_data import write_npz
from superres.training import trainer
from tests.evaluation.helpers import face_pairs


@pytest.mark.parametrize(("module", "best"), [
    (table1, {"regular": 1.76, "distillation": 1.91, "fine-tuning": 3.01, "both": 4.95,
              "both, top-2": 5.67, "both, top-3": 5.91}),
    (table2, {"regular": 1.10, "approximate": 1.49, "fine-tuned": 2.23, "both": 6.79})],
                         ids=["table1", "table2"])
def test_the_papers_figures_are_those_of_its_tables(module, best):
    papers = {name: one for name, one in module.SERIES.items() if one.paper}
    assert {name: max(figure[ACCEPTED] for figure in one.paper.values()) for name,
            one in papers.items()} == best
    assert all(set(one.paper) - {1} == set(BLOCK_SIZES) - {1} for one in papers.values())
    assert [one["speed_up"] for one in table1.PAPER_SPEED.values()] == [1.00, 1.72, 2.69, 3.10,
                                                                        3.31, 3.04]


def test_a_cell_of_faces_holds_acceptance_quality_likelihood_and_time():
    upscaler, pairs = FakeUpscaler(), face_pairs(3)
    made = {cell["block_size"]: cell for cell in table2.cells(
        pairs, upscaler, table2.SERIES["both"].ways(upscaler.model_config.prediction_heads), 2)}
    assert tuple(made) == BLOCK_SIZES
    cell = made[10]
    assert (cell["mean_accepted_block_size"], cell["model_calls_per_image"]) == (TOKENS / 308, 309)
    assert (made[1]["speed_up"], cell["speed_up"]) == pytest.approx((1, 10))
    assert (cell["survival"], cell["equal_tokens"], cell["psnr_to_greedy"]) == ([1.0] * 10, 1, None)
    assert cell["bits_per_dim_truth"] > cell["bits_per_dim_decoded"] == 0
    assert {"psnr", "ssim", "consistency_rmse", "seconds_per_image"} <= set(cell)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["table1", "table2"])
def test_one_command_trains_the_ladder_and_measures_it(name, tmp_path, capsys, monkeypatch):
    module, out = {"table1": table1, "table2": table2}[name], tmp_path / "out"
    monkeypatch.setattr(trainer, "plot_history", lambda *_: None)
    if name == "table2":
        monkeypatch.setattr(tables, "QUICK_NETWORK", {
            **tables.QUICK_NETWORK, "source_shape": (3, 3, 3), "target_shape": (12, 12, 3)})
        write_npz(face_pairs(2, 12), tmp_path / "faces.npz")
        data, base = ["--train", tmp_path / "faces.npz", "--data", tmp_path / "faces.npz"], ["base"]
    else:
        paths = [write_pairs(sentences(count, seed), tmp_path / part)
                 for part, count, seed in (("train", 200, 2), ("val", 3, 0), ("test", 2, 1))]
        data = [word for pair in zip(("--train", "--data", "--test"), paths, strict=True)
                for word in pair]
        base = ["teacher", "base", "student"]
    words = [str(word) for word in (name, *data, "--output", out, "--device", "cpu", "--quick")]
    tables.app(words, standalone_mode=False)
    document = json.loads((out / f"{name}.json").read_text())
    text = (out / f"{name}.md").read_text()
    assert str(tmp_path) not in text
    assert "No verdicts: --quick" in text
    assert not re.search(r"holds|does not hold|undecided", text)
    assert set(module.SERIES) <= set(document["rows"])
    assert {(point["role"], point["step"]) for point in values(document, "curve ").values()} == {
        (role, step) for role in module.CHECKPOINTS for step in (1, 2)}
    assert ([row["name"] for row in document["rows"]["training"]["values"]["stages"]]
            == [*base, *module.CHECKPOINTS])
    if name == "table2":  # a frozen base keeps its greedy pictures
        first, second = (table2.cells_of(document, series)[1]["bits_per_dim_decoded"]
                         for series in ("regular", "regular, sequential heads"))
        assert first == pytest.approx(second)
        capsys.readouterr()
        monkeypatch.setattr(table2, "plots", lambda _: {})
        tables.app(words, standalone_mode=False)
        assert capsys.readouterr().err.count("already measured") == len(document["rows"])
    else:
        top_2 = table1.cells_of(document, "both, top-2")
        assert next(iter(top_2)) == 1  # greedy, for comparison
        assert top_2[1]["identical_to_greedy"] == top_2[1]["speed_up"] == 1
        assert all(cell["identical_to_greedy"] == 1  # exact
                   for cell in table1.cells_of(document, "regular").values())
        assert table1.cells_of(document, "test, both")[0][ACCEPTED] is None  # beam search
        assert ("| paper | - | 26.58 / 1.88 | 26.36 / 3.27 | 26.18 / 4.18 | 26.11 / 4.69 | 25.60 / "
                "4.95 |") in text
        assert {key for key in document["rows"] if key.startswith("difference ")} == {
            f"difference {claim.text}" for claim in table1.CLAIMS if claim.score == "bleu"}
        bases = {one: read_training(out / "ladder" / one / "checkpoint")[-1] for one in base}
        assert bases["teacher"]["settings"]["seed"] != bases["base"]["settings"]["seed"]
        assert bases["base"]["settings"] == bases["student"]["settings"]
        assert (bases["base"]["data_digest"] == bases["teacher"]["data_digest"]
                != bases["student"]["data_digest"])


@pytest.mark.parametrize(("words", "message"), [
    ("table2 --data x --output out", "tables: out/ladder has no finished stage regular, "
     "fine-tuned, sequential-regular, sequential-fine-tuned; train the ladder there with --train"),
    ("table1 --data x --output out --ladder there", "tables: there has no finished stage regular, "
     "distillation,"),
    ("table3 x --output out --store nowhere.db", "tables: no survey store nowhere.db"),
])
def test_the_script_names_what_is_missing_in_one_line(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["tables", *words.split()])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(tables.__file__, run_name="__main__")
    assert caught.value.code.startswith(message)
    assert "\n" not in caught.value.code


@pytest.mark.parametrize(("ours", "other", "factor", "verdict"), [
    ((2.0, 0.1), (1.0, 0.1), 1, "holds"), ((2.0, 0.1), (1.0, 0.1), 2, "undecided"),
    ((2.0, 0.1), (1.2, 0.1), 2, "does not hold"), ((2.0, None), (1.0, None), 1, "holds"),
    (None, (1.0, 0.1), 1, "not measured"),
])
def test_a_claim_holds_beyond_the_intervals(ours, other, factor, verdict):
    def cell(score):
        return {} if score is None else {ACCEPTED: score[0], f"{ACCEPTED}_half_width": score[1]}

    assert Claim("", "", "", 2, factor).verdict(cell(ours), cell(other)) == verdict


def test_a_difference_in_bleu_is_of_the_same_sentences_and_decides_its_claim():
    references = [f"the {colour} dog runs through {depth} snow"
                  for colour in ("red", "old", "small", "big")
                  for depth in ("deep", "new", "white", "wet")]
    good = [line.replace("deep", "thick") for line in references]
    bad = [line.replace("snow", "rain") if "red" in line else line for line in good]
    found = bleu_difference(good, bad, references, 200)
    assert found["difference"] == pytest.approx(bleu(good, references)["score"]
                                                - bleu(bad, references)["score"])
    alone = [bleu(one, references, 200)["half_width"] for one in (good, bad)]
    assert 0 < found["half_width"] < (alone[0] ** 2 + alone[1] ** 2) ** 0.5
    assert bleu_difference(good, good, references, 20) == {"difference": 0.0, "half_width": 0.0}
    claim = next(one for one in table1.CLAIMS if one.score == "bleu")
    for difference, verdict in ((-1.5, "does not hold"), (0.4, "undecided")):
        document = {"rows": {f"difference {claim.text}": {"values": {"difference": difference,
                                                                     "half_width": 0.5}}}}
        assert claim.row(table1.SERIES, document)[2:] == [f"- and - ({difference:+.2f} ±0.50)",
                                                          verdict]


def records(**changes):
    """Return the records of two networks from one base, the second one trained with other
    settings."""
    base = {"stage": "base", "steps": 9, "settings": {"learning_rate": 1e-3}}
    last = {"stage": "heads", "images_seen": 8,
            "settings": {"steps": 2, "seed": 0, "freeze_base": True}}
    other = {**last, "settings": {**last["settings"], "freeze_base": False, **changes}}
    return {"regular": [base, last], "fine-tuned": [base, other]}


def changed_records(change):
    found = records()
    for rows in found.values():
        change(rows)
    return found


@pytest.mark.parametrize(("found", "message"), [
    (records(seed=1), r"fine-tuned was trained otherwise than regular \(seed 1, not 0\)"),
    (changed_records(lambda rows: rows.__setitem__(0, {**rows[0], "steps": 9 + rows[1]["settings"][
        "freeze_base"]})), "do not start from the same base"),
    (changed_records(lambda rows: rows.insert(1, {**rows[0], "stage": "distil"})),
     r"base of regular was trained with heads before \(stage distil\)"),
    ({"regular": []}, "has no training")])
def test_networks_that_differ_only_in_their_names_are_compared_and_no_others(found, message):
    check_ladder(records())
    with pytest.raises(ConfigError, match=message):
        check_ladder(found)


def test_bases_of_other_text_were_trained_in_the_same_way():
    kinds = {"regular": "true", "fine-tuned": "distilled"}
    found = records()
    found["fine-tuned"] = [{**row, "data_digest": "other", "start_digest": "other"}
                           for row in found["fine-tuned"]]
    check_ladder(found, kinds)
    with pytest.raises(ConfigError, match="do not start from the same base"):
        check_ladder(found)
    found["fine-tuned"][0]["steps"] = 10
    with pytest.raises(ConfigError, match=r"fine-tuned was trained otherwise than regular \(steps "
                       r"10, not 9\)"):
        check_ladder(found, kinds)
