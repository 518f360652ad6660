"""The search for the fastest settings, and the default that it saves; with a real network made
small."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import NATIVE, TINY, LossyUpscaler, random_model, save_cascades
from PIL import Image
from textual import sentences, write_checkpoint, write_pairs

from superres import load
from superres.checkpoint import CONFIG, save_checkpoint
from superres.cli.main import run
from superres.config import CostRecord, DecodeConfig, QualityBound
from superres.decoding import cost
from superres.decoding.block_size import check_options
from superres.errors import ConfigError, OutputError
from superres.evaluation import recording, tuning
from superres.evaluation.tuning import (
    ACCEPTANCE,
    GREEDY,
    as_rows,
    compare,
    label,
    save_default,
    shortlist,
    within,
)
from superres.evaluation.tuning import tune_faces as search
from superres.pictures.read import read_image
from superres.pipeline.recorded_costs import COSTS
from superres.tasks.face_data import FacePairs, read_faces, write_npz
from superres.tasks.faces import FaceTask, area_reduce
from tests.evaluation.helpers import face_pairs

EXACT = DecodeConfig(block_size=8)
LOOSE = DecodeConfig(block_size=8, accept="distance", epsilon=255)
STRICT = DecodeConfig(block_size=8, accept="distance", epsilon=1)
CONSISTENT = replace(GREEDY, consistent=True)
BOUND = QualityBound(min_psnr_to_greedy=40)


def scores(psnr, bits=0.0):
    return {"psnr_to_greedy": psnr, "bits_loss": bits}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "tiny"
    model = random_model(replace(TINY, **NATIVE, free_scores=False), dtype=torch.float32)
    save_checkpoint(model, folder, {"training": [{"stage": "base"}]})
    return folder


@pytest.fixture
def folder(trained):
    """A checkpoint without a default."""
    before = (trained / CONFIG).read_bytes()
    yield trained
    (trained / CONFIG).write_bytes(before)
    (trained / COSTS).unlink(missing_ok=True)


@pytest.fixture
def data(tmp_path):
    write_npz(face_pairs(5), tmp_path / "dev.npz")
    return tmp_path / "dev.npz"


def tune(*words):
    more = ["--batch-size", 1] if "--data" in words else []
    return run(["tune", "--busy", "--device", "cpu", *map(str, [*more, *words])])


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Measure costs in a moment."""
    monkeypatch.setattr(recording, "BATCHES", {"faces": (1, 3), "translation": (1, 3)})
    monkeypatch.setattr(recording, "TIMED", (1, 2))
    monkeypatch.setattr(cost, "ROUNDS", 1)
    monkeypatch.setattr(cost, "TIMED_SECONDS", 0.0)


def test_every_setting_of_the_grid_is_accepted_and_has_a_name_of_its_own():
    assert all(check_options(options, 10) == 10 for options in ACCEPTANCE)
    assert len({label(options) for options in (GREEDY, *ACCEPTANCE)}) == len(ACCEPTANCE) + 1


def test_greedy_comes_first_and_loses_nothing_and_loose_blocks_trade_quality_for_size(data,
                                                                                      upscaler):
    pairs = read_faces(data, FaceTask(8, 32), limit=1)
    rows = compare(pairs, upscaler, [replace(LOOSE, block_size=None)], batch_size=1)
    assert list(rows) == [GREEDY, replace(LOOSE, block_size=None)]
    greedy, loose = rows.values()
    assert (greedy["mean_accepted_block_size"], loose["mean_accepted_block_size"]) == (1.0, 8.0)
    assert (greedy["psnr_to_greedy"], greedy["speed_up"], greedy["bits_loss"]) == (None, 1.0, 0.0)
    assert loose["psnr_to_greedy"] < 40
    assert loose["bits_loss"] == loose["bits_per_dim"] - greedy["bits_per_dim"] > 0
    listed = json.loads(json.dumps(as_rows(rows), allow_nan=False))
    assert [DecodeConfig.from_dict(row["config"]) for row in listed] == list(rows)


def test_a_bound_is_kept_by_what_is_at_it_and_by_identical_images():
    assert within(BOUND, scores(40.0))
    assert not within(BOUND, scores(39.99))
    assert within(BOUND, scores(None))
    assert within(QualityBound(max_bits_loss=0.1), scores(10.0, 0.1))
    assert not within(QualityBound(max_bits_loss=0.1), scores(None, 0.11))


def test_the_shortlist_holds_the_fastest_within_bounds_of_two_sizes_and_an_exact_one():
    by_psnr = {20: 1, 40.5: 2, 40.2: 3, 40.4: 4, 45: 5, 50: 6, 60: 7}
    rows = {replace(STRICT, epsilon=number): scores(psnr) for psnr, number in by_psnr.items()}
    rows[EXACT] = scores(None)
    assert [options.epsilon for options in shortlist(rows, BOUND)[:-1]] == [2, 3, 5, 6]
    assert shortlist(rows, BOUND)[-1] == EXACT


@pytest.mark.parametrize(("bound", "largest"), [
    (QualityBound(max_bits_loss=2), 2), (QualityBound(min_psnr_to_greedy=38.5), 3),
    (QualityBound(min_psnr_to_greedy=60), 0)])
def test_the_search_ends_with_the_largest_block_that_keeps_the_bound_on_all_images(bound, largest,
                                                                                   data):
    upscaler = LossyUpscaler(default=CONSISTENT)
    report, table, fastest = search(read_faces(data, FaceTask(8, 32)), upscaler, bound,
                                    batch_size=3)
    assert fastest.block_size == 10
    assert fastest.accept == "exact" if largest == 0 else fastest.epsilon <= largest
    kept = [DecodeConfig.from_dict(row["config"]) for row in report["settings"]
            if row["within_bound"]]
    assert kept[0] == fastest
    assert all(options.accept == "exact" or options.epsilon <= largest for options in kept)
    assert CONSISTENT in kept
    assert "fastest" in next(line for line in table.splitlines() if label(fastest) in line)
    assert json.loads(json.dumps(report, allow_nan=False))["bound"] == bound.to_dict()
    assert fastest.consistent  # as the default
    assert all(row["config"]["consistent"] for row in report["settings"])


def test_what_few_images_allow_is_dropped_where_all_images_do_not():
    pairs = FacePairs(np.full((12, 32, 32, 3), 90, np.uint8), np.zeros((12, 8, 8, 3), np.uint8),
                      np.arange(12, dtype=np.int32))
    pairs.lr[tuning.FEW:] = 1

    class WorseLater(LossyUpscaler):
        def __call__(self, sources, options, **more):
            result = super().__call__(sources, options, **more)
            late = (options.accept != "exact") & (sources[:, :1, :1, :1] == 1)
            return replace(result, images=result.images + 50 * late)

    report, _, fastest = search(pairs, WorseLater(), QualityBound(max_bits_loss=2), batch_size=4)
    assert fastest.accept == "exact"
    assert any(row["config"]["accept"] != "exact" and not row["within_bound"]
               for row in report["settings"])


def test_tune_measures_the_real_network_and_saves_the_default_of_the_device(folder, data,
                                                                            monkeypatch, capsys):
    monkeypatch.setattr(tuning, "ACCEPTANCE", (replace(LOOSE, block_size=None),))
    monkeypatch.setattr(tuning, "BLOCK_SIZES", ())
    assert tune("--data", data, "--limit", 2, "--checkpoint", folder, "--min-psnr-to-greedy", 1,
                "--json") == 0
    report = json.loads(capsys.readouterr().out)
    fastest = DecodeConfig.from_dict(report["fastest"])
    assert report["settings"][0]["config"] == report["fastest"]
    seconds = [row["seconds_per_image"] for row in report["settings"]]
    assert seconds == sorted(seconds)
    assert (report["device"], report["saved"]) == ("cpu", str(folder))
    document = json.loads((folder / CONFIG).read_text())
    assert document["decode"] == {"cpu": report["fastest"]}
    assert document["training"] == [{"stage": "base"}]
    assert document["confidence"].items() <= report["confidence"].items()
    assert 0 <= report["confidence"]["calibration_error"] <= 1
    assert load(folder, "cpu").block_sizes.confidence.to_dict() == document["confidence"]
    assert load(folder, "cpu").default == fastest


def test_tune_records_costs_in_a_copy_whose_default_uses_them(folder, tmp_path, capsys):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):  # a copy is updated
        assert tune("--checkpoint", folder, "--save", tmp_path / "copy", "--engine", "plain") == 0
    assert "| tiny | 3 | " in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {*before, COSTS}
    copied, heads = load(tmp_path / "copy", "cpu", "plain"), TINY.prediction_heads
    assert copied.scoring.costs == copied.costs["plain"]["cpu"]
    for rows in (1, 3):
        costs = copied.scoring.costs.of(rows)
        assert len(costs.blocks) == heads
        assert 0 < costs.blocks[0] <= costs.blocks[-1]
    assert (copied.scoring.costs.revision, copied.scoring.costs.is_measured) == (copied.revision,
                                                                                 True)
    assert not load(folder, "cpu", "plain").scoring.costs.is_measured
    assert tune("--checkpoint", folder, "--save", tmp_path, "--engine", "plain") == 2
    assert (f"{tmp_path} is no copy of {folder}; choose a new folder for "
            "--save" in capsys.readouterr().err)


def test_tune_records_the_stages_of_a_cascade_in_its_copy(tmp_path, capsys):
    save_cascades(tmp_path)
    stages = json.loads((tmp_path / "three" / CONFIG).read_text())["stages"]
    assert tune("--checkpoint", tmp_path / "three", "--save", tmp_path / "copy", "--engine",
                "plain", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [*report["costs"]] == stages
    copied = load(tmp_path / "copy", "cpu", "plain")
    assert [stage.scoring.costs for stage in recording.stages_of(copied)] == [
        CostRecord.from_dict(record) for record in report["costs"].values()]
    assert not [*tmp_path.glob(f"{stages[0]}/{COSTS}")]


@pytest.mark.parametrize(("words", "message"), [
    (["--save", "there", "--no-save"], "--save DIR and --no-save contradict each other"),
    (["--limit", 3], "--limit 3 has no effect without --data"),
    (["--max-bits-loss", 1], "--max-bits-loss 1.0 has no effect without --data"),
])
def test_options_without_effect_are_refused(words, message, folder, capsys):
    assert tune("--checkpoint", folder, *words) == 2
    assert message in capsys.readouterr().err


def test_the_default_is_used_where_no_option_is_given_and_given_options_win(folder, tmp_path, data):
    source, out, manifest = np.load(data)["lr"][:1], tmp_path / "out", tmp_path / "rows.jsonl"
    Image.fromarray(source[0]).save(tmp_path / "a.png")
    for default, words, expected in (
            (LOOSE, ["--epsilon", "200"], replace(LOOSE, epsilon=200)),
            (LOOSE, ["--accept", "exact", "--min-block", "4"], replace(EXACT, min_block=4)),
            (replace(EXACT, consistent=True), [], replace(EXACT, consistent=True)),
            (replace(EXACT, consistent=True), ["--no-consistent"], EXACT)):
        save_default(folder, "cpu", default)
        assert run(["upscale", str(tmp_path / "a.png"), "--output", str(out), "--checkpoint",
                    str(folder), "--device", "cpu", "--on-existing", "overwrite", "--manifest",
                    str(manifest), *words]) == 0
        assert DecodeConfig.from_dict(json.loads(manifest.read_text())["config"]) == expected
        reduced = area_reduce(read_image(out / "a.png"), 8, 8, is_reduced=True)
        assert (reduced == source[0]).all() == expected.consistent


def test_a_checkpoint_that_cannot_be_written_is_left_as_it_was(folder, monkeypatch):
    before = (folder / CONFIG).read_bytes()

    def refuse(*_):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        with pytest.raises(OutputError, match="Read-only file system; use a copy"):
            save_default(folder, "cpu", LOOSE)
    assert (folder / CONFIG).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == [CONFIG, "model.safetensors"]


@pytest.mark.parametrize(("bound", "message"), [
    ([], "either --min-psnr-to-greedy (dB) or --max-bits-loss (bits/dim)"),
    (["--min-psnr-to-greedy", 40, "--max-bits-loss", 1], "either --min-psnr-to-greedy"),
    (["--min-psnr-to-greedy", -1], "min-psnr-to-greedy must be positive, not -1"),
    (["--max-bits-loss", "nan"], "max-bits-loss must be at least 0, not nan"),
])
def test_bad_usage_is_one_line_and_code_2(bound, message, folder, data, capsys):
    assert tune("--data", data, "--checkpoint", folder, *bound) == 2
    line = capsys.readouterr().err
    assert message in line
    assert len(line.splitlines()) == 1


def test_given_settings_replace_the_defaults_and_what_belonged_to_them():
    default = DecodeConfig(10, "distance", 4, min_block=3)
    for given, expected in (({}, {}), ({"epsilon": 5}, {"epsilon": 5}), (
            {"accept": "top-k"}, {"accept": "top-k", "epsilon": 2}), (
            {"block_size": 2}, {"block_size": 2, "min_block": 2})):
        assert default.changed(given) == replace(default, **expected)
    with pytest.raises(ConfigError, match="min-block 4 is larger than the block size 2"):
        default.changed({"block_size": 2, "min_block": 4})


@pytest.mark.parametrize("layer", ["recurrent", "dense"])
def test_text_is_tuned_exactly_and_calibrated_if_its_heads_give_probabilities(layer, tmp_path,
                                                                              capsys):
    folder = tmp_path / "text"
    write_checkpoint(folder, head_layer=layer)
    pairs = write_pairs(sentences(9), tmp_path / "pairs")
    assert tune("--data", pairs, "--checkpoint", folder, "--limit", 6) == 0
    shown = capsys.readouterr().err
    assert shown.count("| k ") == 5  # 1 to 4, and adaptive
    assert "tokens per step" in shown
    assert ("calibration error" in shown) == (layer == "recurrent")
    saved = json.loads((folder / CONFIG).read_text())
    assert ("confidence" in saved) == (layer == "recurrent")
    default = DecodeConfig.from_dict(saved["decode"]["cpu"])
    assert default.accept == "exact"
    assert load(folder, device="cpu").default == default
    assert tune("--data", pairs, "--checkpoint", folder, "--split", "test") == 2
    assert "--split test has no effect on text; leave it out" in capsys.readouterr().err
    assert tune("--data", pairs, "--checkpoint", folder, "--no-save", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["sentences"] == 9
    assert report["saved"] is None
    assert len(report["settings"]) == 5
