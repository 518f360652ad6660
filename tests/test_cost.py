"""The cost model: formulas against brute force, and alpha as decoding has seen it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_speculative import VERIFIER, MarkovModel, speculative

from cost_model import (
    acceptance_rate,
    best_gamma,
    expected_tokens,
    improvement_factor,
    mean_overlap,
    operations_factor,
)
from superres.config import DecodeConfig
from superres.decoding.decode import decode
from superres.decoding.loop import BlockwiseLoop
from superres.decoding.proposers.base import with_proposer_state
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.trace import RowTrace, TraceRecorder
from superres.errors import ConfigError

RATES, GAMMAS = st.floats(0, 1), st.integers(0, 8)


def brute_force(alpha, gamma, candidates):
    """Go through all outcomes of `candidates` sequences of `gamma` verdicts."""
    def length(verdicts):
        return next((i for i, verdict in enumerate(verdicts) if not verdict), len(verdicts))

    total = 0.0
    for outcome in itertools.product([True, False], repeat=gamma * candidates):
        rows = [outcome[start : start + gamma] for start in range(0, len(outcome), gamma)] or [()]
        total += math.prod(alpha if verdict else 1 - alpha for verdict in outcome) * (1 + max(map(length, rows)))
    return total


@given(RATES, st.integers(1, 3), st.integers(1, 3))
def test_expected_tokens_are_the_mean_over_all_outcomes(alpha, gamma, candidates):
    assert expected_tokens(alpha, gamma, candidates) == pytest.approx(brute_force(alpha, gamma, candidates))


@given(RATES, st.integers(1, 3), st.integers(1, 3), st.floats(0, 2), st.integers(1, 99))
def test_operations_of_branches_are_those_of_the_columns_that_they_read(alpha, gamma, candidates, c, columns):
    tokens = brute_force(alpha, gamma, candidates)
    assert operations_factor(alpha, gamma, c, columns, candidates) == pytest.approx((gamma * c + columns) / tokens)


@given(st.floats(0, 0.999), st.integers(0, 20), st.floats(0, 2))
def test_factors_are_the_published_ones(alpha, gamma, c):
    tokens = (1 - alpha ** (gamma + 1)) / (1 - alpha)
    assert improvement_factor(alpha, gamma, c) == pytest.approx(tokens / (gamma * c + 1))
    assert operations_factor(alpha, gamma, c) == pytest.approx((gamma * c + gamma + 1) / tokens)


@given(st.floats(0.01, 0.999), st.floats(0, 0.99))
def test_a_proposal_pays_if_and_only_if_alpha_is_above_c(alpha, c):
    """Corollary 3.9 of Leviathan et al., with at least (1 + alpha) / (1 + c)."""
    gamma = best_gamma(alpha, c, 30)
    if alpha > c + 1e-9:
        assert gamma >= 1
        assert improvement_factor(alpha, gamma, c) >= (1 + alpha) / (1 + c) - 1e-12
    elif alpha < c - 1e-9:
        assert gamma == 0


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: expected_tokens(1.1, 2), "in .0, 1., not 1.1"), (lambda: expected_tokens(0.5, -1), "gamma .* not -1"),
    (lambda: expected_tokens(0.5, 1, 0), "not 0"), (lambda: improvement_factor(0.5, 1, -1.0), "must be positive"),
    (lambda: operations_factor(0.5, 1, -1.0), "at least 0"),
])
def test_numbers_out_of_range_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        wrong()


def test_the_acceptance_rate_counts_verified_proposals():
    traces = [RowTrace([0, 3, 4, 6], [3, 1, 2, 1], np.zeros((4, 3))), RowTrace([0], [2], np.zeros((1, 3)))]
    # Of 3: two passed. Of 1: one failed. Of 2: one passed, one failed. A last block fails nowhere.
    assert acceptance_rate(traces, 3) == pytest.approx(4 / 6)
    assert acceptance_rate([], 3) == 0.0


def test_alpha_of_nothing_is_0():
    assert acceptance_rate([], 3, 4) == 0
    loop = BlockwiseLoop(VERIFIER, VERIFIER.session(torch.zeros(3, 1), 2), DecodeConfig(), torch.arange(3), 2)
    assert mean_overlap(loop) == 0  # it does not sample
    assert TraceRecorder().rows() == []


@pytest.mark.parametrize("candidates", [2, 10])
@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.8])
def test_the_acceptance_rate_of_one_of_several_branches_is_found_again(alpha, candidates):
    k, rng = 5, np.random.default_rng(0)
    verdicts = rng.random((4000, candidates, k - 1)) < alpha
    accepted = 1 + verdicts.cumprod(2).sum(2).max(1)
    traces = [RowTrace(list(range(40)), row.tolist(), np.zeros((40, k))) for row in accepted.reshape(-1, 40)]
    seen = acceptance_rate(traces, k, candidates)
    assert seen == pytest.approx(alpha, abs=0.02)
    assert expected_tokens(seen, k - 1, candidates) == pytest.approx(accepted.mean(), rel=0.02)
    assert acceptance_rate(traces, k) > alpha + 0.03  # which takes the best of several for the only one


def exact_overlap(draft):
    """Return sum(min(p, q)) after each token."""
    return torch.minimum(VERIFIER.table.softmax(-1), draft.table.softmax(-1)).sum(-1)


def test_both_measures_of_alpha_agree_with_the_distributions():
    draft, rows = MarkovModel(1), 4000
    proposer, source = DraftProposer(draft), torch.zeros(4000, 1, dtype=torch.int64)
    options = speculative(block_size=2)
    model = with_proposer_state(VERIFIER, proposer)
    loop = BlockwiseLoop(model, model.session(source, 2), options, torch.arange(rows), 2, proposer)
    overlap = mean_overlap(loop)
    seen = acceptance_rate(decode(VERIFIER, source, options, proposer=proposer).traces, 2)
    assert overlap == pytest.approx(seen, abs=0.03)
    values = exact_overlap(draft)[:-1]
    assert float(values.min()) < overlap < float(values.max())
    itself = DraftProposer(VERIFIER)
    model = with_proposer_state(VERIFIER, itself)
    loop = BlockwiseLoop(model, model.session(source[:50], 2), options, torch.arange(50), 2, itself)
    assert mean_overlap(loop) == pytest.approx(1)
