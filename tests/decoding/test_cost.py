"""The cost model: formulas against brute force, and alpha as decoding has seen it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from fakes import drafted
from hypothesis import given
from hypothesis import strategies as st

from cost_model import (
    acceptance_rate,
    best_gamma,
    expected_tokens,
    improvement_factor,
    mean_overlap,
)
from decodes import decode
from superres.decoding.trace import RowTrace
from superres.errors import ConfigError
from tests.proofs.test_speculative import VERIFIER, MarkovModel, speculative
from timed_variants import loop_of

RATES = st.floats(0, 1)


def brute_force(alpha, gamma, candidates):
    """Go through all outcomes of `candidates` sequences of `gamma` verdicts."""
    def length(verdicts):
        return next((i for i, verdict in enumerate(verdicts) if not verdict), len(verdicts))

    total = 0.0
    for outcome in itertools.product([True, False], repeat=gamma * candidates):
        rows = [outcome[start : start + gamma] for start in range(0, len(outcome), gamma)] or [()]
        total += (math.prod(alpha if verdict else 1 - alpha for verdict in outcome)
                  * (1 + max(map(length, rows))))
    return total


@given(RATES, st.integers(1, 3), st.integers(1, 3), st.floats(0, 2))
def test_factors_are_those_of_the_mean_over_all_outcomes(alpha, gamma, candidates, c):
    tokens = brute_force(alpha, gamma, candidates)
    assert expected_tokens(alpha, gamma, candidates) == pytest.approx(tokens)
    assert improvement_factor(alpha, gamma, c) == pytest.approx(brute_force(alpha, gamma, 1)
                                                                / (gamma * c + 1))


@given(st.floats(0.01, 0.999), st.floats(0, 0.99))
def test_a_proposal_reduces_the_time_if_and_only_if_alpha_is_above_c(alpha, c):
    """Corollary 3.9 of Leviathan et al., with at least (1 + alpha) / (1 + c)."""
    gamma = best_gamma(alpha, c, 30)
    if alpha > c + 1e-9:
        assert gamma >= 1
        assert improvement_factor(alpha, gamma, c) >= (1 + alpha) / (1 + c) - 1e-12
    elif alpha < c - 1e-9:
        assert gamma == 0


@pytest.mark.parametrize(("wrong", "message"), [
    (lambda: expected_tokens(1.1, 2), "in .0, 1., not 1.1"),
    (lambda: expected_tokens(0.5, -1), "gamma .* not -1"),
    (lambda: expected_tokens(0.5, 1, 0), "not 0"), (lambda: improvement_factor(0.5, 1, -1.0),
                                                    "must be positive"),
])
def test_numbers_out_of_range_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        wrong()


@pytest.mark.parametrize("candidates", [1, 10])
def test_the_acceptance_rate_of_one_of_several_branches_is_found_again(candidates):
    alpha, k, rng = 0.3, 5, np.random.default_rng(0)
    verdicts = rng.random((4000, candidates, k - 1)) < alpha
    accepted = 1 + verdicts.cumprod(2).sum(2).max(1)
    traces = [RowTrace(list(range(40)), row.tolist(), np.zeros((40, k)))
              for row in accepted.reshape(-1, 40)]
    assert acceptance_rate(traces, k, candidates) == pytest.approx(alpha, abs=0.02)
    assert acceptance_rate([], k, candidates) == 0


def test_both_measures_of_alpha_agree_with_the_distributions():
    draft, source = MarkovModel(1), torch.zeros(4000, 1, dtype=torch.int64)
    options = speculative(block_size=2)

    def overlap(proposer, rows):
        batch = source[:rows].numpy(), None
        return mean_overlap(loop_of(VERIFIER, batch, options, proposer))

    seen = acceptance_rate(decode(VERIFIER, source, options, proposer=drafted(draft)).traces, 2)
    assert overlap(drafted(draft), 4000) == pytest.approx(seen, abs=0.03)
    # sum(min(p, q)) by token
    exact = torch.minimum(VERIFIER.table.softmax(-1), draft.table.softmax(-1)).sum(-1)[:-1]
    assert float(exact.min()) < seen < float(exact.max())
    assert overlap(drafted(VERIFIER), 50) == pytest.approx(1)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_one_guess_is_equation_4_and_several_are_the_longest_of_independent_ones(alpha):
    """Of Fu et al."""
    for gamma in range(1, 6):
        assert expected_tokens(alpha, gamma, 1) == pytest.approx((1 - alpha ** (gamma + 1))
                                                                 / (1 - alpha))
    passed = np.random.default_rng(0).random((40_000, 3, 4)) < alpha  # b = 3 guesses of 4 tokens
    longest = 1 + passed.cumprod(2).sum(2).max(1)
    assert expected_tokens(alpha, 4, 3) == pytest.approx(longest.mean(), abs=0.03)
