"""The figures of speculative decoding: what is measured, what is predicted from it, and what is
written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from fakes import NATIVE, TINY, ngram_rows, random_model
from PIL import Image

import tables
from cost_model import expected_tokens, improvement_factor
from measurements import values
from speculative import (
    PAPER_ALPHA,
    QUICK_GAMMAS,
    TIMED,
    alpha_table,
    best_gammas,
    cells_of,
    errors,
    is_positive,
)
from superres.checkpoint import save_checkpoint
from superres.decoding.proposers.ngrams import NgramTable, count_ngrams
from superres.errors import ConfigError
from superres.nn.torch_model import StepModel

NETWORK = replace(TINY, **NATIVE, source_shape=(4, 4, 3), target_shape=(8, 8, 3),
                  prediction_heads=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint with counts; beside it are a draft of the same weights, and a smaller one of
    other weights."""
    root = tmp_path_factory.mktemp("checkpoints")
    model = random_model(NETWORK, dtype=torch.float32)
    for name in ("toy", "same"):
        save_checkpoint(model, root / name, dtype=torch.float32)
    save_checkpoint(random_model(replace(NETWORK, filter_size=32), 1, torch.float32),
                    root / "other", dtype=torch.float32)
    counts = count_ngrams(ngram_rows(StepModel(model)).numpy(), NgramTable(3, 256, 3), least=1)
    (root / "toy" / "ngrams.safetensors").write_bytes(counts.to_bytes())
    return root / "toy"


def test_the_command_measures_and_predicts(folder, tmp_path, capsys):
    drafts = [str(folder.with_name(name)) for name in ("same", "other")]
    tables.speculative(tables.Task.images, tmp_path, checkpoint=str(folder), draft=drafts, rows=2,
                       is_quick=True, device="cpu")
    document = json.loads((tmp_path / "speculative-images.json").read_text())
    alphas = values(document, "alpha of ")
    names = list(alphas)
    assert names[:4] == ["unigram", "bigram", "lookup", "heads"]
    same, other = names[4:]
    assert alphas[same]["alpha"] == pytest.approx([1, 1], abs=1e-6)
    assert alphas[same]["share"] == 1 > alphas[other]["share"] > 0
    assert max(alphas[other]["alpha"]) < 1
    for row in alphas.values():
        for mean, (low, high) in zip(row["alpha"], row["intervals"], strict=True):
            assert 0 <= low <= mean <= high <= 1
    cells = {(cell["draft"], cell["temperature"], cell["gamma"]): cell
             for cell in cells_of(document)}
    assert cells.keys() == {(name, temperature, gamma) for name in names for temperature in TIMED
                            for gamma in QUICK_GAMMAS}
    for (_, _, gamma), cell in cells.items():
        assert cell["speed_up"] > 0
        assert 1 <= cell["tokens"] <= gamma + 1
        assert cell["predicted_tokens"] == pytest.approx(expected_tokens(cell["alpha"], gamma))
        c = cell["predicted_c"]
        assert (c is None or cell["paper_speed_up"]
                == pytest.approx(improvement_factor(cell["alpha"], gamma, c)))
    assert cells[same, 0.0, 3]["tokens"] > 3.9
    assert cells[same, 1.0, 3]["operations"] == pytest.approx(7 / cells[same, 1.0, 3]["tokens"])
    page = (tmp_path / "speculative-images.md").read_text()
    assert page in capsys.readouterr().out
    assert "T5-small" not in page  # translates
    assert Image.open(tmp_path / "speculative-images.png").size == (1200, 450)


def test_two_drafts_of_one_size_are_refused(folder, tmp_path):
    draft = str(folder.with_name("same"))
    with pytest.raises(ConfigError, match=r"two drafts have as many weights: .*draft of 100.0 %; "
                       r"leave one "):
        tables.speculative(tables.Task.images, tmp_path, checkpoint=str(folder),
                           draft=[draft, draft], is_quick=True)


def cell(gamma, speed_up, predicted, **more):
    return {"draft": "heads", "temperature": 1.0, "gamma": gamma, "speed_up": speed_up,
            "tokens": 2.0, "predicted_speed_up": predicted, "paper_speed_up": 2 * predicted,
            "alpha": 0.5, "alpha_seen": 0.5, "predicted_c": None, "c": 0.1, "verify": 1.0,
            "predicted_verify": 1.2, "predicted_tokens": 2.2, "predicted_operations": 1.0,
            "operations": 1.0, **more}


def test_the_best_gamma_and_the_errors_are_those_of_the_cells():
    cells = [cell(1, 0.8, 0.9), cell(3, 1.2, 0.95)]
    (row,) = best_gammas(cells)
    assert (row["speed_up_gamma"], row["predicted_speed_up_gamma"],
            row["paper_speed_up_gamma"]) == (3, 0, 3)
    assert (row["speed_up"], row["chosen_speed_up"]) == (1.2, 1.0)
    found = {row["what"]: row for row in errors(cells)}
    assert "c (draft models)" not in found
    assert found["speed-up with the measured call"]["near"] == 1
    assert found["speed-up with the measured call"]["most"] == pytest.approx(0.125)
    assert (found["tokens per step"]["near"], found["a call for gamma + 1 tokens"]["near"]) == (2,
                                                                                                0)


def test_the_papers_rates_are_beside_ours_for_translation():
    row = {"share": 0.0, "temperatures": [0.0, 1.0], "alpha": [0.2, 0.1], "sharper": 0.1,
           "intervals": [[0.1, 0.3], [0.0, 0.2]], "sharper_interval": [0.05, 0.15]}
    shown = alpha_table({"conditions": {"task": "translation"},
                         "rows": {"alpha of lookup": {"values": row}}})
    assert all(f"paper: {name}" in shown for name in PAPER_ALPHA)
    assert ("| lookup | 0.0 | 0.200 ±0.100 | 0.100 ±0.100 | +0.100 (+0.050 to +0.150) | yes "
            "|" in shown)
    assert ([is_positive(bounds) for bounds in ([0.1, 0.2], [-0.1, 0.2], [-0.2, -0.1])]
            == ["yes", "undecided", "no"])
