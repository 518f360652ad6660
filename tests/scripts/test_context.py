"""How far back a network looks: what is replaced, what that costs, and the table of it."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, random_model

import context
from superres.checkpoint import save_checkpoint
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import area_reduce

NETWORK = replace(TINY, source_shape=(4, 4, 3), target_shape=(8, 8, 3), decoder_layers=2,
                  attention_block_length=24)
KEPT = {"row": context.within_rows, "column": context.within_columns}


@pytest.fixture
def pictures(rng):
    high, other = rng.integers(0, 256, (2, 8, 8, 3), np.uint8)
    return area_reduce(high, 4, 4, is_reduced=True), high, other


@pytest.mark.parametrize("by", KEPT)
def test_the_cost_is_that_of_each_row_or_column_in_a_picture_that_is_true_near_it(by, pictures):
    model, (low, high, other) = random_model(NETWORK, dtype=torch.float32), pictures
    by_row, most = by == "row", 2

    def bits(target):
        source, tokens, true = (torch.from_numpy(one.reshape(1, -1)).long() for one in (low, target,
                                                                                        high))
        log_p = model.scores(model(source, tokens)).log_softmax(-1).gather(-1, true.unsqueeze(-1))
        return log_p.view(8, 8, 3).double() / np.log(2)

    costs = []
    for number in range(8):
        mixed = high.copy()
        for place in range(8):
            if by_row and place < number - most:
                mixed[place] = other[place]
            if not by_row and abs(place - number) > most:
                mixed[:, place] = other[:, place]
        where = (number,) if by_row else (slice(None), number)
        if (mixed != high).any():
            costs.append((bits(high) - bits(mixed))[where].mean())
    keep = lambda *place: KEPT[by](most, *place)  # noqa: E731
    assert context.cost(model, low, high, other, keep,
                        by_row) == pytest.approx(float(np.mean(costs)), rel=1e-4)
    assert context.cost(model, low, high, high, keep, by_row) == pytest.approx(0, abs=1e-3)


def test_the_script_leaves_out_distances_within_a_cell_and_writes_a_table(tmp_path, rng):
    high = rng.integers(0, 256, (2, 8, 8, 3), np.uint8)
    write_npz(FacePairs(high, area_reduce(high, 4, 4), np.arange(2, dtype=np.int32)),
              tmp_path / "dev.npz")
    save_checkpoint(random_model(NETWORK, dtype=torch.float32), tmp_path / "small")
    context.main(tmp_path / "dev.npz", tmp_path / "out", str(tmp_path / "small"), 2)
    (row,) = json.loads((tmp_path / "out" / "context.json").read_text())["rows"].values()
    assert list(row["values"]) == ["rows_1", "rows_2", "rows_3", "rows_4", "rows_6", "columns_4"]
    assert "| rows beyond 1 | " in (tmp_path / "out" / "context.md").read_text()
