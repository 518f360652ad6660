"""The comparison of networks: equal training, the same after a kill, and an extrapolation that
finds known curves."""

from __future__ import annotations

import importlib
import itertools
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import compare_networks
from superres.config import PRESETS
from superres.errors import ConfigError
from superres.nn.model import EncoderDecoder
from superres.pipeline.choose import step_model
from superres.tasks.face_data import FacePairs, write_npz
from superres.training import trainer as training
from superres.training.stage import Stage
from superres.training.trainer import Trainer

ARGUMENTS = {"minutes": 0.1, "turns": 2, "limit": 2, "batch_size": 2, "rounds": 1,
             "networks": "small,base"}
"""Two turns of three steps each by the clock of the fixture."""


@pytest.fixture
def sizes(tmp_path, monkeypatch):
    """The script with networks of a few thousand weights, and a clock that shows one second per
    step."""
    module = importlib.reload(compare_networks)
    monkeypatch.setattr(module, "SIZES", {"small": (32, 1), "base": (64, 1)})
    monkeypatch.setitem(PRESETS, "base", replace(
        PRESETS["base"], source_shape=(2, 2, 3), target_shape=(8, 8, 3), encoder_layers=1,
        conditioning_blocks=1, prediction_heads=2))
    monkeypatch.setattr(module, "DECODED", 1)
    monkeypatch.setattr(module, "CLOCK", map(float, itertools.count()).__next__)
    monkeypatch.setattr(training, "plot_history", lambda *_: None)
    return module


@pytest.fixture
def data(tmp_path):
    low = np.random.default_rng(0).integers(0, 256, (3, 2, 2, 3), np.uint8)
    path = tmp_path / "faces.npz"
    write_npz(FacePairs(low.repeat(4, 1).repeat(4, 2), low, np.arange(3, dtype=np.int32)), path)
    return path


def test_the_extrapolation_finds_a_known_curve(sizes):
    minutes = np.arange(3.0, 33.0, 3.0)
    value, least, most = sizes.extrapolated(minutes, 3.2 + 1.5 * minutes**-0.6, 300.0)
    assert value == pytest.approx(3.2 + 1.5 * 300**-0.6, abs=1e-4)
    assert least <= value <= most
    assert most - least < 1e-3
    assert sizes.extrapolated(minutes[:4], minutes[:4], 300.0) is None


def test_scores_during_the_warm_up_are_not_extrapolated(sizes):
    minutes = np.arange(1.0, 11.0)
    bits = np.where(minutes > 4, 3.2 + 1.5 * minutes**-0.6, 7.0)
    history = [{"step": int(50 * t), "images": 200 * t, "seconds": 60 * t, "bits_per_dim": value}
               for t, value in zip(minutes, bits, strict=True)]
    trainer = SimpleNamespace(model=EncoderDecoder(sizes.network(32, 1)),
                              settings=Stage(endless=True), history=history)
    row = sizes.summary("small", [trainer], 10, 1.0)
    assert row["bits_per_dim"] == bits.tolist()
    assert row["extrapolated"]["10"][0] == pytest.approx(3.2 + 1.5 * 100**-0.6, abs=1e-3)
    assert sizes.summary("small", [trainer], 8, 1.0)["extrapolated"]["10"] is None


def rows_of(folder):
    """Return the measured rows, without the time of decoding."""
    document = json.loads((folder / "sizes.json").read_text())
    rows = [row["values"] for row in document["rows"].values()]
    assert all(row.pop("decoding_seconds") > 0 for row in rows)
    return rows


def test_sizes_are_trained_alike_in_turns(sizes, data, tmp_path, monkeypatch, capsys):
    runs, run = [], Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda self, stop: runs.append(self.model.config.width)
                        or run(self, stop))
    sizes.main(data, data, tmp_path / "out", **ARGUMENTS)
    assert runs == [32, 64, 32, 64]
    rows = rows_of(tmp_path / "out")
    assert [(row["size"], row["width"], row["minutes"]) for row in rows] == [("small", 32,
                                                                              [0.05, 0.1]),
                                                                             ("base", 64,
                                                                              [0.05, 0.1])]
    assert [row["learning_rate"] for row in rows] == [sizes.learning_rate(32),
                                                      sizes.learning_rate(64)]
    assert all(len(row["bits_per_dim"]) == 2 and row["extrapolated"]["10"] is None for row in rows)
    assert ("has the fewest bits/dim. Not every network has 5 scores after the "
            "warm-up" in capsys.readouterr().out)
    assert {path.name for path in (tmp_path / "out").glob("sizes.*")} == {"sizes.json", "sizes.md",
                                                                          "sizes.png"}


def test_a_comparison_killed_in_a_step_and_in_scoring_has_the_rows_of_a_whole_one(
    sizes, data, tmp_path, monkeypatch
):
    sizes.main(data, data, tmp_path / "whole", **ARGUMENTS)
    monkeypatch.setattr(training, "SAVE_SECONDS", -1.0)  # after every step
    for owner, name, calls in ((Trainer, "_step", 5), (sizes, "bits_per_dim", 2)):
        work, count = getattr(owner, name), itertools.count(1)

        def killed(*arguments, work=work, count=count, calls=calls):
            if next(count) == calls:
                raise KeyboardInterrupt
            return work(*arguments)

        monkeypatch.setattr(owner, name, killed)
        with pytest.raises(KeyboardInterrupt):
            sizes.main(data, data, tmp_path / "killed", **ARGUMENTS)
        assert not json.loads((tmp_path / "killed" / "sizes.json").read_text())["rows"]
    sizes.main(data, data, tmp_path / "killed", **ARGUMENTS)
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")


def test_a_finished_comparison_is_continued_by_more_turns_of_the_same_length_and_nothing_else(
    sizes, data, tmp_path):
    out = tmp_path / "out"
    sizes.main(data, data, out, **ARGUMENTS)
    first = rows_of(out)
    sizes.main(data, data, out, **{**ARGUMENTS, "minutes": 0.15, "turns": 3})
    longer = rows_of(out)
    assert [row["minutes"] for row in longer] == [pytest.approx([0.05, 0.1, 0.15])] * 2
    assert [row["bits_per_dim"][:2] for row in longer] == [row["bits_per_dim"] for row in first]
    sizes.main(data, data, out, **ARGUMENTS)
    assert [row["bits_per_dim"] for row in rows_of(out)] == [row["bits_per_dim"] for row in first]
    for change, message in (({"minutes": 0.2}, "minutes_per_turn 0.05, not 0.1"),
                            ({"limit": 1}, "measured with dev "),
                            ({"batch_size": 1}, "batch_size 2, not 1")):
        with pytest.raises(ConfigError, match=message):
            sizes.main(data, data, out, **{**ARGUMENTS, **change})


def test_two_comparisons_do_not_train_in_one_folder(sizes, data, tmp_path):
    with sizes.run_folder(tmp_path / "out"), pytest.raises(ConfigError, match="another process "
                                                           "trains in"):
        sizes.main(data, data, tmp_path / "out", **ARGUMENTS)


@pytest.mark.parametrize(("change", "message"), [
    ({"networks": "small,huge"}, "unknown network 'huge'; known: small, base, large, pixels, "
     "factors-of-two"),
    ({"networks": "factors-of-two", "preset": "face-64"}, "enlarges as the base preset does, not "
     "as face-64; leave"),
    ({"minutes": 0.0}, "--minutes must be positive and finite, not 0.0"),
    ({"minutes": float("inf")}, "--minutes must be positive and finite, not inf")])
def test_bad_options_are_refused(sizes, data, tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        sizes.main(data, data, tmp_path / "out", **{**ARGUMENTS, **change})
    assert not (tmp_path / "out").exists()


def test_a_cascade_shares_the_time_between_its_stages_and_scores_the_final_picture(
    sizes, data, tmp_path, monkeypatch
):
    for name, source, target in (("face-16", 2, 4), ("face-32", 4, 8)):
        monkeypatch.setitem(PRESETS, name, replace(
            PRESETS[name], source_shape=(source, source, 3), target_shape=(target, target, 3),
            width=32, attention_heads=1, encoder_layers=0, decoder_layers=1, conditioning_blocks=1,
            prediction_heads=2))
    sizes.main(data, data, tmp_path / "out", **{**ARGUMENTS, "networks": "pixels,factors-of-two"})
    pixels, cascade = rows_of(tmp_path / "out")
    assert (pixels["width"], cascade["width"], cascade["decoder_layers"]) == (128, "32 and 32",
                                                                              "1 and 1")
    assert pixels["minutes"] == [0.05, 0.1]
    histories = [json.loads((tmp_path / "out" / f"factors-of-two{stage}"
                             / "history.json").read_text())
                 for stage in ("", "1")]
    first, last = ([one for one in records if "bits_per_dim" in one] for records in histories)
    for turn, share in enumerate((1.5, 3.0)):  # seconds of each stage
        assert first[turn]["seconds"] == last[turn]["seconds"] >= share
        assert cascade["minutes"][turn] == pytest.approx(2 * first[turn]["seconds"] / 60)
        bits = first[turn]["bits_per_dim"] / 4 + last[turn]["bits_per_dim"]
        assert cascade["bits_per_dim"][turn] == pytest.approx(bits)


def test_all_sizes_decode_with_the_compiled_engine():
    module = importlib.reload(compare_networks)
    for width, layers in module.SIZES.values():
        assert step_model(EncoderDecoder(module.network(width, layers)).eval(),
                          engine="native").engine == "native"
