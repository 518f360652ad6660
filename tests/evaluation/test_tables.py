"""Tables 1 to 3: the paper's figures, what one command trains and measures, and which networks and
comparisons may be in them."""

from __future__ import annotations

import json
import re
import runpy

import pytest
from fakes import TOKENS, FakeUpscaler
from sqlalchemy import select
from textual import sentences, write_pairs

import table1
import table2
import tables
from ladder import ACCEPTED, BLOCK_SIZES, Claim, check_ladder
from measurements import values
from superres.checkpoint import read_training
from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.evaluation.text import bleu, bleu_difference
from superres.survey import schema
from superres.survey.pairs import Method, compare_methods, make_pairs
from superres.survey.report import study_report
from superres.survey.store import Store
from superres.survey.study import StudySettings
from superres.tasks.face_data import write_npz
from superres.training import trainer
from superres.training.recipes import read_recipe, train_recipe
from table3 import ROWS, match_rows, views
from tests.evaluation.helpers import face_pairs
from tests.survey.helpers import choosing, pictures, vote_through


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
