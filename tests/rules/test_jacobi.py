"""Rules of Jacobi decoding: the distribution of their samples, and how many tokens they keep."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import scd
from decodes import decode
from rule import all_rules
from superres.config import DecodeConfig
from superres.decoding.acceptance import Draws
from superres.decoding.plain.sampling import Samplers, draw, filtered
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import Context
from superres.sessions import StepOutput
from superres.testing import chi_square
from tests.proofs.test_speculative import (
    ALPHA,
    FILTERS,
    VOCABULARY,
    MarkovModel,
    MarkovSession,
)

pytestmark = pytest.mark.slow
ROWS = 20_000
LAST = 4  # tokens whose joint distribution is tested, after others that couple the steps
RULES = {name: rule for name, rule in all_rules().items() if name.startswith(("SJD", "SCD"))}
LOSSLESS = [name for name, rule in RULES.items() if rule.claims == "lossless"]


@dataclass
class LongModel(MarkovModel):
    """Six tokens, of a text or of two pixels, so that stale tokens are judged several times."""

    shape: tuple = (6,)
    length: int = 6

    def session(self, source, width, padding=None, copies=1):
        return MarkovSession(self, width, self.shape)


WAYS = {"blocks of 3": (LongModel(0), {"block_size": 3}),
        "blocks of 4, filters": (LongModel(0), {"block_size": 4, "seed": 1, **FILTERS["all"]}),
        "pixels": (LongModel(2, shape=(1, 2, 3)), {"block_size": 4, "nucleus": 0.8})}


def p_of(rule, way, **arguments):
    """Return the p of chi-square for samples by `rule`."""
    model, changes = WAYS[way]
    options = DecodeConfig(**{"temperature": 1.0, **rule.settings, **changes})
    source = torch.zeros(ROWS, 1, dtype=torch.int64)
    tokens = decode(model, source, options, **arguments).tokens
    rows = filtered(model.table / options.temperature, options.sample_top_k,
                    options.nucleus).softmax(-1)
    start, step = rows[VOCABULARY], rows[:VOCABULARY]
    start = start @ torch.linalg.matrix_power(step, model.length - LAST)
    return chi_square(tokens[:, -LAST:], torch.einsum("a,ab,bc,cd->abcd", start, step, step,
                                                      step)).p


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LOSSLESS)
def test_samples_have_the_networks_distribution(name, way):
    assert p_of(RULES[name], way) > ALPHA


class OlderQ(scd.MaximalCoupling):
    """Maximal coupling as the authors' code for Lumina-mGPT and Janus-Pro has it."""

    def propose(self, context, offsets):
        tokens, sampler = super().propose(context, offsets), context.sampler
        _, q, kept = scd.previous(context.draws, context.index.unsqueeze(1) + offsets)
        return sampler.put(tokens, q.where(kept.unsqueeze(-1), sampler.q[:, offsets - 1]), offsets)


@pytest.mark.parametrize("way", WAYS)
def test_a_kept_token_with_its_older_q_shows(way):
    assert p_of(RULES["SCD, maximal coupling"], way, proposer=OlderQ()) < ALPHA**2


@pytest.mark.parametrize("way", WAYS)
def test_reused_tokens_with_the_q_of_new_ones_show(way):
    assert p_of(RULES["SJD++"], way) < ALPHA**2


# How many tokens stay

P, Q = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.25, 0.05]], dtype=torch.float64)
SHARED = float(torch.minimum(P, Q).sum())
STAY = {"SJD, left sampled": (float(P @ Q),) * 2, "SCD, maximal coupling": (SHARED, SHARED),
        "SCD, Gumbel coupling": (SHARED / (2 - SHARED), SHARED)}
"""The least and the largest chance that a token stays."""


@pytest.mark.parametrize("name", STAY)
def test_couplings_keep_tokens_and_their_distribution(name):
    model, keys = LongModel(0), torch.arange(ROWS)
    samplers = Samplers(DecodeConfig(temperature=1.0, sampling="speculative"), keys, VOCABULARY)
    places = keys.unsqueeze(1) * 0 + torch.arange(3)  # the step judged positions 0, 1 and 2
    before, sampler = samplers.at(places), samplers.at(places + 1)
    q = Q.expand(ROWS, 2, -1)
    noise = before.gumbel(torch.tensor([1, 2]))
    proposed = ((q.log() + noise).argmax(-1) if "Gumbel" in name else
                draw(q, before.noise[:, 1:, :1]))
    draws = Draws(proposed, P.expand(ROWS, 2, -1), q, before.noise[:, 1:, 1], places[:, 1:],
                  torch.full((ROWS, 1), 2))
    context = Context(
        SimpleNamespace(shape=model.shape), StepOutput(P.log().expand(ROWS, 3, -1), None),
        torch.zeros_like(keys), torch.ones_like(keys), draws.proposed[:, 0],
        torch.zeros(ROWS, 9, dtype=torch.int64), sampler, draws)
    found = PROPOSERS[RULES[name].settings["proposer"]]().propose(context, torch.tensor([1, 2]))
    least, largest = STAY[name]
    margin = 4 * (0.25 / ROWS) ** 0.5  # 4 standard errors
    stays = float((found[:, 0] == proposed[:, 1]).double().mean())
    assert least - margin < stays < largest + margin
    assert torch.equal(sampler.q[:, 0], P.expand(ROWS, -1))
    assert chi_square(found[:, :1], P).p > ALPHA
    assert chi_square(found, P.outer(P)).p > ALPHA  # the second one is new
