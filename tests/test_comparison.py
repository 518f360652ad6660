"""Ways of decoding side by side, with a real network made small."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from fakes import TINY, random_model

from superres.config import DecodeConfig
from superres.decoding.decode import check_options
from superres.evaluation.comparison import (
    ACCEPTANCE,
    GREEDY,
    as_rows,
    compare,
    label,
    psnr_to_greedy,
)
from superres.pipeline.upscaler import Upscaler
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce

LOOSE = DecodeConfig(accept="distance", epsilon=255)


@pytest.fixture(scope="module")
def rows():
    hr = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    pairs = FacePairs(hr, area_reduce(hr, 8, 8), np.arange(2, dtype=np.int32))
    upscaler = Upscaler(random_model(TINY, dtype=torch.float32), "tiny", device="cpu")
    return compare(pairs, upscaler, [LOOSE], batch_size=2)


def test_every_setting_of_the_grid_is_accepted_and_has_a_name_of_its_own():
    assert all(check_options(options, 10) == 10 for options in ACCEPTANCE)
    assert len({label(options) for options in (GREEDY, *ACCEPTANCE)}) == len(ACCEPTANCE) + 1


def test_greedy_comes_first_and_loses_nothing_and_loose_blocks_trade_quality_for_size(rows):
    assert list(rows) == [GREEDY, LOOSE]
    greedy, loose = rows.values()
    assert (greedy["mean_accepted_block_size"], loose["mean_accepted_block_size"]) == (1.0, 8.0)
    assert psnr_to_greedy(greedy) == math.inf
    assert psnr_to_greedy(loose) < 40
    assert (greedy["speed_up"], greedy["bits_loss"]) == (1.0, 0.0)
    assert loose["bits_loss"] == loose["bits_per_dim"] - greedy["bits_per_dim"] > 0


def test_the_rows_are_strict_json_that_gives_the_settings_back(rows):
    listed = json.loads(json.dumps(as_rows(rows), allow_nan=False))
    assert [DecodeConfig.from_dict(row["config"]) for row in listed] == list(rows)
