"""Rules that relax acceptance: their distributions by enumeration, beside p1's, and the bounds that
their papers state."""

from __future__ import annotations

import itertools
import math
from functools import cache

import pytest
import torch

from cool_sd import CoolSD
from decodes import decode
from gsd import Grouped
from lantern import Lantern
from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, Draws
from superres.decoding.plain.sampling import LEAST_WEIGHT, filtered
from superres.testing import chi_square
from tests.decoding.test_speculative_blocks import threshold
from tests.proofs.test_speculative import (
    ALPHA,
    LENGTH,
    ROWS,
    VERIFIER,
    VOCABULARY,
    MarkovModel,
    joint,
    speculative,
)
from token_by_token import TokenByToken

PROPOSALS = 2  # of a block


def changed(criterion, **parameters):
    """Return a criterion of this class with other parameters."""
    return type(criterion.__name__, (criterion,), parameters)(DecodeConfig())


STRICT = {"gsd": changed(Grouped, group=0), "lantern": changed(Lantern, nearest=0),
          "cool-sd": changed(CoolSD, relaxation=1.0, decay=0.0)}
RELAXED = {"gsd": changed(Grouped, group=2, difference=0.5, reach=1),
           "lantern": changed(Lantern, nearest=2, bound=0.3),
           "cool-sd": changed(CoolSD, relaxation=1.1)}


def outcomes(criterion, proposed, p, q):
    """Return the chance that each number of proposals [B, N], of distributions q [B, N, V], is
    accepted [B, N + 1], and the distribution of the token after them [B, N + 1, V].

    `p` [B, N + 1, V] are p1's distributions of the proposals and of one more token.
    """
    rows, count = proposed.shape
    last, position = torch.full((rows, 1), count), torch.zeros_like(proposed)

    def verdict(uniform):
        return criterion.judge(Draws(proposed, p[:, :-1], q, uniform, position, last))

    passing = threshold(lambda uniform: verdict(uniform.expand(rows, count).double()).passed)
    before = torch.cat([torch.ones(rows, 1).double(), passing.cumprod(1)], dim=1)
    chances = before * torch.cat([1 - passing, torch.ones(rows, 1).double()], dim=1)
    rest = verdict(torch.full((rows, count), 0.5)).rest
    beyond = torch.cat([q, torch.zeros_like(q[:, :1])], dim=1)  # after the last one, q is 0
    weights = torch.cat([rest(p[:, i: i + 1], beyond[:, i: i + 1], torch.full((rows,), i))
                         for i in range(count + 1)], dim=1)
    weights = weights.where(weights.amax(-1, keepdim=True) >= LEAST_WEIGHT, p)
    return chances, weights / weights.sum(-1, keepdim=True)


def outcomes_of_one(criterion, p, q):
    """Return `outcomes` for one proposal of each value, of the distribution q [V]."""
    size = len(p)
    return outcomes(criterion, torch.arange(size).view(-1, 1), p.expand(size, 2, size),
                    q.expand(size, 1, size))


def output(criterion, p, q):
    """Return the distribution [V] of the token that one proposal drawn from q [V] leads to."""
    chances, rest = outcomes_of_one(criterion, p, q)
    return q * chances[:, 1] + (q * chances[:, 0]) @ rest[:, 0]


def acceptance(criterion, p, q):
    """Return the probability to accept one proposal drawn from q [V]."""
    return float(q @ outcomes_of_one(criterion, p, q)[0][:, 1])


def law(criterion, model=VERIFIER, blocks=LENGTH):
    """Return the probability of every sequence of `model`, [V] * T, with proposals of its heads,
    worked out block by block; the tokens after `blocks` blocks are p1's own."""
    options = speculative()
    p = filtered(model.table, options.sample_top_k, options.nucleus).softmax(-1)
    heads = model.heads.softmax(-1)
    proposed = torch.tensor([*itertools.product(range(VOCABULARY), repeat=PROPOSALS)])

    @cache
    def after(token, count, left):
        """Return the law of `count` tokens after `token`, the first one of a block."""
        if count == 0:
            return torch.ones(()).double()
        if left == 0:
            return torch.stack([p[token, other] * after(other, count - 1, 0)
                                for other in range(VOCABULARY)])
        rows = len(proposed)
        own = torch.stack([p[token].expand(rows, -1), *(p[tokens] for tokens in
                                                        proposed.unbind(1))], dim=1)
        q = heads[:, token].expand(rows, -1, -1)
        chances, rest = outcomes(criterion, proposed, own, q)
        drawn = q.gather(-1, proposed.unsqueeze(-1)).squeeze(-1).prod(1)
        result = torch.zeros([VOCABULARY] * count).double()
        for row, tokens in enumerate(proposed.tolist()):
            for accepted in range(PROPOSALS + 1):
                prefix, weight = tuple(tokens[:accepted])[:count], drawn[row] * chances[row,
                                                                                        accepted]
                for other in range(VOCABULARY) if accepted < count else ():
                    result[(*prefix, other)] += weight * rest[row, accepted, other] * after(
                        other, count - accepted - 1, left - 1)
                if accepted >= count:
                    result[prefix] += weight
        return result

    start = p[VOCABULARY]
    return torch.stack([start[token] * after(token, LENGTH - 1, blocks)
                        for token in range(VOCABULARY)])


def distance(first, second):
    """Return the total variation distance of two distributions."""
    return float((first - second).abs().sum() / 2)


def distributions(seed, size=6):
    """Return p and q [V] of a random example."""
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(2, size, generator=generator).double()).softmax(-1)


def samples(accept, **settings):
    source = torch.zeros(ROWS, 1, dtype=torch.int64)
    return decode(VERIFIER, source, speculative(accept=accept, **settings)).tokens


@pytest.fixture
def registered(monkeypatch):
    """Return a function that registers a criterion as "tried" until the test ends."""
    return lambda criterion: monkeypatch.setitem(CRITERIA, "tried", type(criterion))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [
    {}, {"sample_top_k": 3}, {"temperature": 1.4, "nucleus": 0.8}], ids=str)
def test_without_relaxation_every_rule_is_token_by_token_verification(settings, registered):
    registered(TokenByToken(DecodeConfig()))
    wanted = samples("tried", **settings)
    assert chi_square(wanted, joint(speculative(**settings))).p > ALPHA
    for criterion in STRICT.values():
        registered(criterion)
        assert torch.equal(samples("tried", **settings), wanted)


@pytest.mark.parametrize("name", STRICT)
def test_without_relaxation_the_enumerated_distribution_is_that_of_p1(name):
    torch.testing.assert_close(law(STRICT[name]), joint(speculative()), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELAXED)
def test_a_relaxed_rule_draws_from_another_distribution_which_enumeration_gives(name, registered):
    registered(RELAXED[name])
    found = samples("tried")
    assert chi_square(found, law(RELAXED[name])).p > ALPHA
    assert chi_square(found, joint(speculative())).p < ALPHA**2
    assert (chi_square(samples("tried", nucleus=0.8), joint(speculative(nucleus=0.8))).statistic
            < math.inf)


# Cool-SD, theorem 2


def bound_of_a_block(criterion, model):
    """Return theorem 2's bound for the first block."""
    p, heads = model.table.softmax(-1), model.heads.softmax(-1)
    factors = criterion.factors(torch.empty(1, PROPOSALS, 1, dtype=torch.float64))
    total = 0.0
    for first in range(VOCABULARY):
        reached, before = p[VOCABULARY, first], {first: 1.0}  # by the last accepted token
        for factor, q in zip(factors, heads[:, first], strict=True):
            accepted = {token: torch.minimum(q, factor * p[token]) for token in before}
            total += reached * sum(weight * (accepted[token] - p[token]).clamp(min=0).sum()
                                   for token, weight in before.items())
            before = {token: sum(weight * accepted[other][token]
                                 for other, weight in before.items())
                      for token in range(VOCABULARY)}
    return float(total)


@pytest.mark.parametrize("relaxation", [1.0, 1.1, 2.0, 5.0])
def test_cool_sd_keeps_the_bound_of_its_theorem(relaxation):
    criterion = changed(CoolSD, relaxation=relaxation)
    for seed in range(5):
        model = MarkovModel(seed)
        bound = bound_of_a_block(criterion, model)
        found = distance(law(criterion, model, blocks=1), joint(speculative(), model))
        assert bound / 4 < found <= bound + 1e-9


@pytest.mark.parametrize("relaxation", [0.5, 1.1, 2.0])
def test_for_one_proposal_the_bound_of_cool_sd_is_the_distance(relaxation):
    criterion = changed(CoolSD, relaxation=relaxation)
    for seed in range(5):
        p, q = distributions(seed)
        excess = (torch.minimum(q, relaxation * p) - p).clamp(min=0).sum()
        assert distance(output(criterion, p, q), p) == pytest.approx(float(excess), abs=1e-9)
        assert (excess > 0) == (relaxation > 1)


def expected(factors, p, q):
    """Return how many proposals are accepted, each of the distribution q [V], and theorem 2's
    bound."""
    accepted = torch.minimum(q, factors.unsqueeze(1) * p)  # [N, V]
    reached = accepted.sum(-1).cumprod(0)
    before = torch.cat([torch.ones(1).double(), reached[:-1]])
    return float(reached.sum()), float(before @ (accepted - p).clamp(min=0).sum(-1))


def without_decay(number, count, p, q):
    """Return `expected` for the one factor of `count` proposals by which `number` are accepted."""
    def factors(share):
        return (20 * share).expand(count)

    return expected(factors(threshold(
        lambda share: torch.tensor(expected(factors(share), p, q)[0] < number))), p, q)


@pytest.mark.parametrize(("count", "better"), [(2, True), (9, False)])
def test_decay_has_the_smaller_bound_for_two_proposals_but_not_for_nine(count, better):
    for seed in range(5):
        p, other = distributions(seed)
        q = 0.7 * p + 0.3 * other
        assert distance(p, q) < 0.4  # the paper's assumption
        number, bound = expected(changed(CoolSD).factors(p.expand(1, count, -1)), p, q)
        equal, plain = without_decay(number, count, p, q)
        assert equal == pytest.approx(number, abs=1e-6)
        assert (bound < plain) == better


# LANTERN's delta


@pytest.mark.parametrize("bound", [0.05, 0.2, 0.4])
def test_the_bound_of_lantern_holds_for_the_distribution_of_every_proposal(bound):
    criterion, every = changed(Lantern, nearest=4, bound=bound), torch.arange(6).view(-1, 1)
    for seed in range(5):
        p = distributions(seed)[0].expand(6, 1, 6)
        moved = criterion.moved(every, p)
        mass = (p * moved).sum(-1, keepdim=True)
        relaxed = p.masked_fill(moved, 0.0).scatter_add(-1, every.unsqueeze(-1), mass)
        torch.testing.assert_close((relaxed - p).abs().sum(-1) / 2, mass.squeeze(-1))
        assert float(mass.max()) <= bound
        assert not bool(moved.gather(-1, every.unsqueeze(-1)).any())


def test_what_lantern_draws_can_be_farther_from_p1_than_its_bound():
    # p is on odd levels and q on even ones, but for a hundredth
    odd = torch.arange(20) % 2 == 1
    p = torch.where(odd, 0.099, 0.001).double()
    drawn = output(changed(Lantern, nearest=2, bound=0.2), p, p.flip(0))
    assert distance(drawn, p) > 0.9


# GSD's clusters


class Halves(Grouped):
    """Fixed clusters, {0, 1, 2} and {3, 4, 5}."""

    def cluster(self, proposed, p):
        return torch.arange(p.shape[-1]) // 3 == proposed.unsqueeze(-1) // 3


def test_disjoint_clusters_accept_more_but_do_not_keep_their_masses():
    criterion, differences = Halves(DecodeConfig()), []
    for seed in range(5):
        p, q = distributions(seed)
        accepted = [acceptance(one, p, q) for one in (criterion, STRICT["gsd"])]
        assert accepted[0] > accepted[1]
        assert accepted[1] == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-9)
        found = output(criterion, p, q)
        differences.append(distance(found.view(2, 3).sum(-1), p.view(2, 3).sum(-1)))
    assert max(differences) > 0.01


def test_clusters_by_rank_can_accept_fewer_than_token_by_token_verification():
    p, q = torch.tensor([[1, 28, 28, 126, 65, 1], [126, 28, 28, 2, 1, 65]]).double()
    p, q = p / p.sum(), q / q.sum()
    by_rank = changed(Grouped, group=2, difference=1.0, reach=6)
    assert acceptance(by_rank, p, q) < acceptance(STRICT["gsd"], p, q) - 0.02
