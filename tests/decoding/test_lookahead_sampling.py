"""Lookahead's verification for sampling has the distribution of direct sampling."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.proposers.lookahead.iteration import partition
from superres.decoding.proposers.lookahead.pool import NgramPool
from superres.decoding.proposers.lookahead.proposer import LookaheadProposer
from superres.decoding.proposers.lookahead.verification import verify_candidates
from superres.interfaces import StepOutput, Tree
from tests.proofs.test_speculative import (
    FILTERS,
    LENGTH,
    ROWS,
    VOCABULARY,
    MarkovModel,
    MarkovSession,
    joint,
    statistic,
)

LOOKAHEAD = DecodeConfig(proposer="lookahead", block_size=3, window=2, candidates=3,
                         temperature=1.0, sampling="speculative")


@dataclass
class MarkovTree(MarkovSession):
    tree: Tree = None

    def step(self, tokens, position):
        place, scored = position.unsqueeze(1) + self.tree.depth, slice(self.tree.scored)
        read = torch.where(place > 0, tokens, VOCABULARY)[:, scored]
        return StepOutput(self.model.table[read], None)

    def commit(self, columns):
        pass


@dataclass
class Markov(MarkovModel):
    """Reads trees as well: the score after a token depends on that token alone."""

    def tree_session(self, source, tree, kept, padding=None):
        return MarkovTree(self, tree.size, tree=tree)


MODEL = Markov(0)


class Small(NgramPool):
    """Holds few n-grams: thousands of rows with full-sized pools would take gigabytes."""

    def __init__(self, batch, ngram_size, device):
        super().__init__(batch, ngram_size, device, capacity=8)


class Crowded(Small):
    """Finds three candidates always: two that begin alike, the second one wrong most of the time,
    and another."""

    def find(self, first, most):
        tokens = torch.stack([first, first, first, (first + 1) % 4, (first + 2) % 4, first], dim=1)
        return tokens.view(-1, 3, 2), torch.ones(len(first), 3, dtype=torch.bool)


@pytest.mark.parametrize(("filters", "pool"),
                         [("plain", Small), *((filters, Crowded) for filters in FILTERS)])
def test_samples_have_the_distribution_of_direct_sampling(filters, pool):
    options = DecodeConfig(**{**LOOKAHEAD.to_dict(), **FILTERS[filters]})
    source = torch.zeros(ROWS, 1, dtype=torch.int64)
    decoded = decode(MODEL, source, options, keys=torch.arange(ROWS),
                     proposer=LookaheadProposer(pool))
    assert decoded.tokens.shape == (ROWS, LENGTH)
    assert statistic(decoded.tokens, joint(options, MODEL)) < 1
    if pool is Crowded:
        assert {accepted for trace in decoded.traces for accepted in trace.accepted} == {1, 2, 3}


def verify(p, candidates, verdict, committed=0.6, known=True):
    """Verify for one row; `p` gives the probabilities at each place."""
    table, candidates = torch.tensor(p), torch.tensor([candidates])
    return [int(x) for x in verify_candidates(
        lambda leader, place: table[place : place + 1], candidates,
        torch.full(candidates.shape[:2], known), torch.tensor([verdict]),
        torch.full((1, len(p)), committed))][:3]


def test_candidates_are_tried_in_turn_and_the_one_that_passes_leads():
    p = [[0.3, 0.2, 0.5], [0.1, 0.8, 0.1], [0.0, 0.0, 1.0]]
    assert verify(p, [[0, 1], [1, 1]], [0.29, 0.7]) == [0, 2, 2]
    assert verify(p, [[0, 1], [1, 1]], [0.31, 0.7]) == [1, 2, 2]
    # both begin with 0, the second one goes on
    assert verify(p, [[0, 0], [0, 1]], [0.1, 0.7]) == [1, 2, 2]
    assert verify(p, [[0, 0], [0, 1]], [0.1, 0.95]) == [0, 1, 2]  # 0 and 1 are out, 2 is left
    assert verify(p, [[0, 1], [1, 1]], [0.51, 0.0]) == [0, 0, 2]
    assert verify(p, [[0, 1], [1, 1]], [0.0, 0.0], known=False) == [0, 0, 2]


def test_a_token_is_tried_once_however_many_candidates_have_it():
    p = [[0.3, 0.7], [1.0, 0.0], [1.0, 0.0]]
    assert verify(p, [[0, 0], [0, 0], [0, 0]], [0.35, 0.5])[1] == 0


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3), st.integers(1, 4))
def test_one_of_several_processes_knows_the_result_of_a_single_one(seed, count, size, processes):
    """Candidates of few tokens share prefixes, across processes too; a prefix determines the
    distribution after it."""
    draw, rows = torch.Generator().manual_seed(seed), 4
    candidates = torch.randint(3, (rows, count, size), generator=draw)
    known = torch.arange(count) < torch.randint(count + 1, (rows, 1), generator=draw)
    verdict, committed = (torch.rand(rows, places, generator=draw, dtype=torch.float64)
                          for places in (size, size + 1))
    table = torch.rand(rows, 4 ** size, 3, generator=draw, dtype=torch.float64).pow(3)
    table /= table.sum(-1, keepdim=True)

    def run(own):
        def distribution(candidate, place):
            read = candidates[:, own][torch.arange(rows), candidate, :place] + 1
            return table[torch.arange(rows), (read * 4 ** torch.arange(place)).sum(-1)]

        # [4, rows]
        return torch.stack(verify_candidates(distribution, candidates, known, verdict, committed,
                                             own))

    alone = run(slice(None))
    parts = [partition(count, rank, min(processes, count)) for rank in range(min(processes, count))]
    # [4, processes, rows]
    results = torch.stack([run(slice(part.start, part.stop)) for part in parts], dim=1)
    assert bool(alone[3].all())
    assert bool(results[3].any(0).all())
    assert bool(((results == alone.unsqueeze(1)).all(0) | (results[3] == 0)).all())
