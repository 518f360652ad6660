"""What each acceptance criterion lets pass."""

from __future__ import annotations

import pytest
import torch
from fakes import criterion_options
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, Distance, TopK

# Few different values, so that ties are common.
SCORES = hnp.arrays(float, (2, 3, 7), elements=st.integers(-3, 3).map(float)).map(torch.from_numpy)
PROPOSED = hnp.arrays("int64", (2, 3), elements=st.integers(0, 6)).map(torch.from_numpy)
PLACE = torch.tensor([[1, 2, 3], [6, 7, 8]])


@pytest.mark.parametrize("epsilon", [0, 1, 2, 5])
def test_distance_is_symmetric_and_includes_epsilon(epsilon):
    scores = torch.zeros(1, 256)
    scores[0, 100] = 1
    proposed = torch.arange(256).unsqueeze(0)
    accepted = Distance(DecodeConfig(epsilon=epsilon)).accept(proposed, scores.expand(1, 256, 256), proposed)
    assert accepted[0].nonzero().flatten().tolist() == list(range(100 - epsilon, 100 + epsilon + 1))


@given(PROPOSED, SCORES, st.integers(1, 9))
def test_top_k_accepts_by_rank(proposed, scores, k):
    accepted = TopK(DecodeConfig(top_k=k)).accept(proposed, scores, PLACE)
    better = (scores > scores.gather(-1, proposed.unsqueeze(-1))).sum(-1)
    assert torch.equal(accepted, better < k)


@pytest.mark.parametrize("name", CRITERIA)
@given(PROPOSED, SCORES, hnp.arrays(bool, (2, 3, 7)).map(torch.from_numpy))
def test_a_token_of_probability_0_never_passes(name, proposed, scores, left_out):
    possible = ~left_out | (torch.arange(7) == 3)  # a filter leaves one token at least
    scores = scores.masked_fill(~possible, float("-inf"))
    options = criterion_options(name, epsilon=6, top_k=5)
    accepted = CRITERIA[name](options).accept(proposed, scores, PLACE)
    assert not bool((accepted & ~possible.gather(2, proposed.unsqueeze(2)).squeeze(2)).any())
