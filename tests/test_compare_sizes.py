"""The comparison of sizes: equal training, resumed after a kill, and an extrapolation that finds known curves."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from superres.errors import ConfigError
from superres.tasks.faces import FacePairs, write_npz
from superres.training.trainer import Trainer


@pytest.fixture
def sizes(monkeypatch):
    """The script, with networks of a few thousand weights."""
    path = Path(__file__).parents[1] / "scripts" / "compare_sizes.py"
    spec = importlib.util.spec_from_file_location("compare_sizes", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "compare_sizes", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SIZES", {"small": (32, 1), "base": (64, 1)})
    monkeypatch.setattr(module, "DECODED", 1)
    return module


@pytest.fixture
def data(tmp_path):
    low = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
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


def test_sizes_are_trained_alike_and_a_killed_comparison_goes_on(sizes, data, tmp_path, monkeypatch, capsys):
    arguments = {"minutes": 1e-4, "turns": 2, "limit": 2, "batch_size": 2, "rounds": 1, "sizes": "small,base"}
    whole = Trainer.run
    runs = []

    def killed(trainer, stop):
        runs.append(trainer.settings.learning_rate)
        if len(runs) == 3:
            raise KeyboardInterrupt
        return whole(trainer, stop)

    monkeypatch.setattr(Trainer, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        sizes.main(data, data, tmp_path / "out", **arguments)
    assert not (tmp_path / "out" / "sizes.json").exists()
    sizes.main(data, data, tmp_path / "out", **arguments)
    small, base = sizes.learning_rate(32), sizes.learning_rate(64)
    assert runs == [small, base, small, small, base]  # in turns; those that ended are not repeated
    rows = json.loads((tmp_path / "out" / "sizes.json").read_text())["sizes"]
    assert [(row["size"], row["width"]) for row in rows] == [("small", 32), ("base", 64)]
    assert [len(row["bits_per_dim"]) for row in rows] == [2, 2]
    assert all(row["decoding_seconds"] > 0 and row["extrapolated"]["10"] is None for row in rows)
    assert "has the fewest bits/dim." in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").glob("sizes.*")} == {"sizes.json", "sizes.md", "sizes.png"}


def test_an_unknown_size_is_refused(sizes, data, tmp_path):
    with pytest.raises(ConfigError, match="unknown size 'huge'; known: small, base"):
        sizes.main(data, data, tmp_path / "out", sizes="small,huge")
