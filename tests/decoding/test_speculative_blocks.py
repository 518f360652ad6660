"""Block verification by enumeration: of every block of a small alphabet, what it gives with which
probability."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from superres.decoding.plain.sampling import COMMITTED, VERDICT, Samplers
from tests.proofs.test_speculative import speculative

VOCABULARY, MOST = 3, 5
HALVINGS = 40  # of an interval of uniform numbers, down to the unit of weights
FIRST = 4  # position of the block's first token


@dataclass
class Tree:
    """Scores of the tokens after every prefix of proposals: p1's [V**n, V] for n tokens, and those
    of the proposer."""

    p: list[torch.Tensor]
    q: list[torch.Tensor]


def blocks_of(size):
    """Return all blocks of `size` tokens."""
    return [*itertools.product(range(VOCABULARY), repeat=size)]


def tree_of(kind):
    """Return random scores; `kind` says how those of the proposer are related to p1's."""
    generator = torch.Generator().manual_seed(3)
    p, q = ([1.5 * torch.randn(VOCABULARY**size, VOCABULARY, generator=generator,
                               dtype=torch.float64)
             for size in range(MOST + 1)] for _ in range(2))
    sums = [torch.tensor([sum(tokens) for tokens in blocks_of(size)]) for size in range(MOST + 1)]
    if kind == "limited":  # the tokens of a block sum to 4 at most
        p = [scores.masked_fill(torch.arange(VOCABULARY) > (4 - total).clamp(min=0).unsqueeze(1),
                                -torch.inf)
             for scores, total in zip(p, sums, strict=True)]
    if kind == "never the same":
        odd = torch.tensor([True, False, True])
        p, q = ([scores.masked_fill(mask, -torch.inf) for scores in part] for part,
                mask in ((p, odd), (q, ~odd)))
    return Tree(p, p if kind == "the same" else q)


KINDS = ["others", "the same", "never the same", "limited", "certain"]
FILTERS = {"plain": {}, "hot": {"temperature": (2.0, 0.5, 1.0)}, "top-2": {"sample_top_k": 2},
           "nucleus": {"nucleus": 0.7}}


class Blocks:
    """Every block of `size` proposals, each in `copies` rows, drawn and ready to be verified."""

    def __init__(self, tree, size, options, copies=1, certain=False):
        every = torch.tensor(blocks_of(size))
        if certain:
            every = every[-2:-1]
        self.proposed = every.repeat_interleave(copies, 0)  # [rows, n]
        rows = len(self.proposed)
        number = torch.zeros(rows, dtype=torch.int64)
        self.samplers = Samplers(options, torch.arange(rows), VOCABULARY)
        self.sampler = self.samplers.at(self.places(0, size + 1))
        scores, chances = [], torch.ones(rows, dtype=torch.float64)
        for place in range(size):
            scores.append(tree.p[place][number])
            if not certain:
                self.sampler(tree.q[place][number].unsqueeze(1), torch.tensor([place + 1]))
                chances = chances * self.sampler.q[torch.arange(rows), place,
                                                   self.proposed[:, place]]
            number = number * VOCABULARY + self.proposed[:, place]
        if certain:
            self.sampler.record(self.proposed)
        self.after = [*scores, tree.p[size][number]]
        self.scores = torch.stack(self.after, dim=1)  # [rows, n + 1, V]
        self.chances = chances  # of a block's proposals

    def places(self, start, count):
        return (FIRST + start + torch.arange(count)).expand(len(self.proposed), -1)

    def accepted(self, verdicts):
        """Return how many proposals are accepted with uniform numbers [rows, n]."""
        size = self.proposed.shape[1]
        self.sampler.noise[:, 1:, VERDICT] = verdicts
        missing = torch.full((len(self.proposed),), size + 1)
        return self.sampler.accept(None, self.proposed, self.scores[:, :-1], self.places(1, size),
                                   missing).sum(1)

    def following(self, accepted, uniform):
        """Return the token after the first `accepted` [rows] proposals, drawn with uniform numbers
        [rows]."""
        place = accepted.view(-1, 1, 1)
        sampler = self.samplers.at(FIRST + 1 + accepted.unsqueeze(1))
        sampler.noise[:, 0, COMMITTED] = uniform
        scores = self.scores.gather(1, place.expand(-1, 1, VOCABULARY))
        return sampler.first(scores, self.sampler, accepted)[:, 0]


def threshold(is_below):
    """Return the uniform numbers up to which `is_below` holds for each row."""
    low = torch.zeros_like(is_below(torch.tensor(0.5, dtype=torch.float64)), dtype=torch.float64)
    high = low + 1
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = is_below(middle)
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return low


def ends_of(tree, size, options, certain):
    """Return every block, its chance, and the probability to accept each number of its proposals,
    [blocks, n + 1]."""
    blocks = Blocks(tree, size, options, size, certain)
    one = torch.eye(size, dtype=torch.bool).repeat(len(blocks.proposed) // size, 1)

    # row i of a block has this number for proposal i, and one that never passes for the others
    def ends(uniform):
        return blocks.accepted(torch.where(one, uniform.expand(len(one)).unsqueeze(1), 1.0)) > 0

    passing = threshold(ends).view(-1, size)
    # passes from each proposal on
    none = F.pad((1 - passing).flip(1).cumprod(1).flip(1), (0, 1), value=1.0)
    return blocks.proposed[::size], blocks.chances[::size], F.pad(passing, (1, 0), value=1.0) * none


def following_of(tree, size, options, certain):
    """Return the distribution of the token after each number of accepted proposals, [blocks, n + 1,
    V]."""
    copies = (size + 1) * (VOCABULARY - 1)
    blocks = Blocks(tree, size, options, copies, certain)
    blocks.accepted(torch.ones(len(blocks.proposed), size, dtype=torch.float64))
    accepted, token = (part.repeat(len(blocks.proposed) // copies) for part in (
        torch.arange(size + 1).repeat_interleave(VOCABULARY - 1),
        torch.arange(VOCABULARY - 1).repeat(size + 1)))
    sums = threshold(lambda uniform: blocks.following(accepted, uniform.expand(len(token)))
                     <= token)
    sums = sums.view(-1, size + 1, VOCABULARY - 1)
    return F.pad(sums, (1, 1)).index_fill(2, torch.tensor([VOCABULARY]), 1.0).diff()


def joint(tree, size, options):
    """Return p1's probability of every sequence of n + 1 tokens, [V, ..., V]."""
    sampler = Samplers(options, torch.arange(1),
                       VOCABULARY).at(FIRST + torch.arange(size + 2).unsqueeze(0))
    result = np.ones(())
    for place in range(size + 1):
        p = sampler.distribution(tree.p[place].unsqueeze(1).view(1, -1, VOCABULARY),
                                  slice(place + 1, place + 2))
        result = result[..., None] * p.view(*[VOCABULARY] * (place + 1)).numpy()
    return result


def check_distribution(kind, size, filters):
    """Check that accepted proposals, the token after them, and p1's tokens after that have p1's
    distribution."""
    options, tree = speculative(**FILTERS[filters]), tree_of(kind)
    wanted = joint(tree, size, options)
    proposed, chances, exactly = ends_of(tree, size, options, kind == "certain")
    following = following_of(tree, size, options, kind == "certain")
    found = np.zeros_like(wanted)
    for block, tokens in enumerate(proposed.tolist()):
        for accepted, token in itertools.product(range(size + 1), range(VOCABULARY)):
            weight = float(chances[block] * exactly[block, accepted] * following[block, accepted,
                                                                                 token])
            prefix = (*tokens[:accepted], token)
            rest = wanted[prefix]
            if weight > 1e-9:
                assert rest.sum() > 0, "a sequence that p1 does not give"
                found[prefix] += weight * rest / rest.sum()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)


@pytest.mark.parametrize("size", range(1, MOST + 1))
@pytest.mark.parametrize(("kind", "filters"), [*((kind, "plain") for kind in KINDS), *(
    (kind, filters) for kind in ("others", "certain") for filters in FILTERS
    if filters != "plain")])
def test_a_block_and_the_token_after_it_have_the_distribution_of_p1(kind, size, filters):
    check_distribution(kind, size, filters)


@pytest.mark.parametrize("kind", KINDS)
def test_no_fewer_tokens_are_accepted_than_one_by_one(kind):
    options, tree = speculative(), tree_of(kind)
    for size in range(1, MOST + 1):
        proposed, chances, exactly = ends_of(tree, size, options, kind == "certain")
        accepted = float((chances.unsqueeze(1) * exactly * torch.arange(size + 1)).sum())
        blocks = Blocks(tree, size, options, certain=kind == "certain")
        p = blocks.sampler.distribution(blocks.scores[:, :-1], slice(1, None))
        own = proposed.unsqueeze(-1)
        ratios = (p.gather(-1, own) / blocks.sampler.q[:, :-1].gather(-1, own)).squeeze(
            -1).nan_to_num(0)
        one_by_one = float((chances * ratios.clamp(max=1).cumprod(1).sum(1)).sum())
        if size > 1 and kind in ("others", "limited"):
            assert accepted > 1.02 * one_by_one
        else:
            assert accepted == pytest.approx(one_by_one, abs=1e-8)


def test_tokens_past_the_end_of_a_row_have_no_influence():
    tree, size, options = tree_of("others"), 4, speculative()
    wide, generator = Blocks(tree, size, options), torch.Generator().manual_seed(0)
    wide.sampler.noise[:, 1:, VERDICT] = verdicts = torch.rand(len(wide.proposed), size,
                                                               generator=generator).double()
    for missing in range(-1, size + 1):
        kept = max(missing - 1, 0)
        scores, sampler = wide.scores[:, :-1].clone(), replace(wide.sampler,
                                                               q=wide.sampler.q.clone())
        scores[:, kept:], sampler.q[:, kept:] = torch.nan, 0
        passed = sampler.accept(None, wide.proposed, scores, wide.places(1, size),
                                torch.full((len(scores),), missing))
        assert not bool(passed[:, kept:].any())
        if kept:
            narrow = Blocks(tree, kept, options, VOCABULARY ** (size - kept))
            assert torch.equal(passed.sum(1), narrow.accepted(verdicts[:, :kept]))
            assert set(passed.sum(1).tolist()) == {*range(kept + 1)}


def test_every_block_that_proposes_for_a_position_has_its_own_numbers():
    samplers = Samplers(speculative(), torch.arange(2), VOCABULARY)
    numbers = torch.cat([samplers.at(torch.arange(start, 6).expand(2, -1)).noise
                         for start in range(6)], dim=1)
    assert numbers.unique().numel() == numbers.numel()
