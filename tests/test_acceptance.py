"""What each acceptance criterion lets pass."""

from __future__ import annotations

import pytest
import torch
from fakes import criterion_options
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, Distance, Exact, TopK

# Few different values, so that ties are common.
SCORES = hnp.arrays(float, (2, 3, 7), elements=st.integers(-3, 3).map(float)).map(torch.from_numpy)
PROPOSED = hnp.arrays("int64", (2, 3), elements=st.integers(0, 6)).map(torch.from_numpy)
PLACE = torch.tensor([[1, 2, 3], [6, 7, 8]])


@given(PROPOSED, SCORES)
def test_exact_accepts_the_choice_of_the_verifier_alone(proposed, scores):
    accepted = Exact(DecodeConfig()).accept(proposed, scores, PLACE)
    assert torch.equal(accepted, proposed == scores.argmax(-1))


@given(PROPOSED, SCORES)
def test_epsilon_0_equals_exact(proposed, scores):
    accepted = Distance(DecodeConfig(epsilon=0)).accept(proposed, scores, PLACE)
    assert torch.equal(accepted, Exact(DecodeConfig()).accept(proposed, scores, PLACE))


@pytest.mark.parametrize("epsilon", [0, 1, 2, 5])
def test_distance_is_symmetric_and_includes_epsilon(epsilon):
    scores = torch.zeros(1, 256)
    scores[0, 100] = 1
    proposed = torch.arange(256).unsqueeze(0)
    accepted = Distance(DecodeConfig(epsilon=epsilon)).accept(proposed, scores.expand(1, 256, 256), proposed)
    assert accepted[0].nonzero().flatten().tolist() == list(range(100 - epsilon, 100 + epsilon + 1))


@given(PROPOSED, SCORES)
def test_top_1_accepts_what_exact_accepts(proposed, scores):
    accepted = TopK(DecodeConfig(top_k=1)).accept(proposed, scores, PLACE)
    assert bool((accepted | ~Exact(DecodeConfig()).accept(proposed, scores, PLACE)).all())


def test_top_k_accepts_ties_with_the_last_rank():
    scores = torch.tensor([[[5.0, 3.0, 3.0, 3.0, 1.0]]]).expand(1, 5, 5)
    proposed = torch.arange(5).unsqueeze(0)
    second, first = (TopK(DecodeConfig(top_k=k)).accept(proposed, scores, proposed) for k in (2, 1))
    assert second.tolist() == [[True, True, True, True, False]]
    assert first.tolist() == [[True, False, False, False, False]]


def test_top_k_beyond_the_vocabulary_accepts_everything():
    accepted = TopK(DecodeConfig(top_k=50)).accept(torch.tensor([[0, 4]]), torch.randn(1, 2, 5), PLACE[:1, :2])
    assert bool(accepted.all())


@given(PROPOSED, SCORES, st.integers(1, 6))
def test_top_k_accepts_by_rank(proposed, scores, k):
    accepted = TopK(DecodeConfig(top_k=k)).accept(proposed, scores, PLACE)
    better = (scores > scores.gather(-1, proposed.unsqueeze(-1))).sum(-1)
    assert torch.equal(accepted, better < k)


@given(PROPOSED, SCORES, st.integers(1, 5))
def test_a_looser_criterion_accepts_all_that_a_stricter_one_accepts(proposed, scores, level):
    for name in ("distance", "top-k"):
        strict, loose = (
            CRITERIA[name](DecodeConfig(epsilon=value, top_k=value)).accept(proposed, scores, PLACE)
            for value in (level, level + 1)
        )
        assert bool((loose | ~strict).all())


@pytest.mark.parametrize("name", CRITERIA)
@given(PROPOSED, SCORES, hnp.arrays(bool, (2, 3, 7)).map(torch.from_numpy))
def test_a_token_of_probability_0_never_passes(name, proposed, scores, left_out):
    possible = ~left_out | (torch.arange(7) == 3)  # a filter leaves one token at least
    scores = scores.masked_fill(~possible, float("-inf"))
    options = criterion_options(name, epsilon=6, top_k=5)
    accepted = CRITERIA[name](options).accept(proposed, scores, PLACE)
    assert not bool((accepted & ~possible.gather(2, proposed.unsqueeze(2)).squeeze(2)).any())
