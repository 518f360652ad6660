"""Speculative sampling has the distribution of direct sampling, whatever proposes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from fakes import SMALL, drafted, random_model, random_tokens
from hypothesis import given
from hypothesis import strategies as st

from decodes import decode
from superres.config import LEAST_TEMPERATURE, DecodeConfig, general_costs
from superres.decoding.plain import sampling
from superres.decoding.plain.sampling import filtered
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError
from superres.nn.torch_model import StepModel
from superres.sessions import StepOutput
from superres.testing import chi_square

VOCABULARY, LENGTH, ROWS = 4, 4, 10_000
ALPHA = 1e-4
"""How often a right sampler fails a test here."""


@dataclass
class MarkovSession:
    model: MarkovModel
    width: int
    shape: tuple = (LENGTH,)
    longest: None = None

    def step(self, tokens, position):
        place = position.unsqueeze(1) + torch.arange(self.width)
        return StepOutput(self.model.table[torch.where(place > 0, tokens, VOCABULARY)], None)

    def propose(self, output, index, first, offsets, choose):
        return choose(self.model.heads[offsets - 1][:, first].transpose(0, 1), offsets)

    def resize(self, width):
        self.width = width

    def copy_rows(self, rows, other, chosen, cache=True):
        pass


@dataclass
class MarkovModel:
    """Scores the next token by the last one alone; head i + 1 by the last one, too, and often
    wrongly."""

    seed: int
    vocabulary: int = VOCABULARY
    length: int = LENGTH
    prediction_heads: int = 3
    end_token: None = None
    own_threads = adaptive = False
    peers: None = None
    engine, device, costs = "Markov", torch.device("cpu"), general_costs(0.05)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(self.seed)
        self.table = 1.5 * torch.randn(VOCABULARY + 1, VOCABULARY, generator=generator,
                                       dtype=torch.float64)
        self.heads = 1.5 * torch.randn(2, VOCABULARY + 1, VOCABULARY, generator=generator,
                                       dtype=torch.float64)

    def decoder(self, plain):
        return None

    def encode(self, source, padding=None):
        return source

    def session(self, source, width, padding=None, copies=1):
        return MarkovSession(self, width)

    def uncached_scores(self, source, target, position):
        raise NotImplementedError


class Certain:
    """Proposes one token always."""

    def propose(self, context, offsets):
        return torch.full((len(context.position), len(offsets)), 2)


VERIFIER = MarkovModel(0)
WAYS = {
    "heads": {}, "another model": {"proposer": drafted(MarkovModel(1))},
    "itself": {"proposer": drafted(VERIFIER)}, "one token": {"proposer": Certain()},
    "jacobi": {"proposer": PROPOSERS["jacobi"]()},
}
FILTERS = {"plain": {}, "top-3": {"sample_top_k": 3}, "nucleus": {"nucleus": 0.8},
           "all": {"temperature": 1.4, "sample_top_k": 3, "nucleus": 0.9}}


def joint(options, model=VERIFIER):
    """Return the probability of each sequence under direct sampling, [V] * T, worked out token by
    token."""
    rows = filtered(model.table / options.temperature, options.sample_top_k,
                    options.nucleus).softmax(-1)
    start, step = rows[VOCABULARY], rows[:VOCABULARY]
    return torch.einsum("a,ab,bc,cd->abcd", start, step, step, step)


def speculative(**changes):
    return DecodeConfig(**{"temperature": 1.0, "sampling": "speculative", "block_size": 3,
                           **changes})


@pytest.mark.parametrize("settings", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("way", WAYS)
def test_samples_have_the_distribution_of_direct_sampling(way, settings):
    options = speculative(**settings)
    decoded = decode(VERIFIER, torch.zeros(ROWS, 1, dtype=torch.int64), options, **WAYS[way])
    assert chi_square(decoded.tokens, joint(options)).p > ALPHA
    accepted = {count for trace in decoded.traces for count in trace.accepted}
    assert accepted == {1, 3} if way == "itself" else len(accepted) > 1


# The filters


def kept_by_definition(scores, top_k, nucleus):
    """Return the tokens with fewer than `top_k` likelier ones, of which the likelier ones do not
    fill the nucleus."""
    few = [token for token, score in enumerate(scores) if sum(other > score for other in scores)
           < top_k]
    weight = {token: math.exp(scores[token]) for token in few}
    return {token for token in few
            if sum(weight[other] for other in few if scores[other] > scores[token]) < nucleus
            * sum(weight.values())}


@given(st.lists(st.integers(-40, 40), min_size=1, max_size=8, unique=True),
       st.none() | st.integers(1, 9), st.floats(0.01, 1.0))
def test_filters_keep_what_their_definitions_say(scores, top_k, nucleus):
    scores = torch.tensor(scores, dtype=torch.float64) / 10
    kept = filtered(scores, top_k, nucleus)
    inside = {token for token, score in enumerate(kept.tolist()) if score > float("-inf")}
    assert inside == kept_by_definition(scores.tolist(), top_k or len(scores),
                                        nucleus if nucleus < 1 else 2.0)
    assert all(kept[token] == scores[token] for token in inside)


def test_a_token_of_no_weight_is_never_drawn():
    weights = torch.tensor([0.0, 0.3, 0.0, 0.7, 0.0]).expand(1, 5, -1)
    uniform = torch.tensor([2.0**-53, 0.29, 0.31, 0.999, 1 - 2.0**-20]).view(1, 5, 1)
    assert sampling.draw(weights, uniform).tolist() == [[1, 1, 3, 3, 3]]


@pytest.mark.parametrize(("settings", "message"), [
    ({"nucleus": 0}, "nucleus must be above 0 and at most 1, not 0"), ({"nucleus": 1.5}, "not 1.5"),
    ({"nucleus": float("nan")}, "not nan"), ({"sample_top_k": 0}, "sample-top-k must be at least "
                                             "1, not 0"),
    ({"sampling": "wild"}, "sampling must be one of coupled, speculative, not 'wild'"),
    ({"temperature": 0}, "speculative sampling needs a temperature above 0"),
    ({"accept": "top-k"}, "its own acceptance rule"),
    ({"min_block": 2}, "leave out accept exact and min-block 2"),
])
def test_settings_that_contradict_themselves_are_refused_in_one_line(settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        speculative(**settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"sampling": "speculative"}, {"nucleus": 0.5},
                                     {"proposer": "lookahead", "window": 3, "block_size": 3}],
                         ids=str)
def test_the_least_temperature_samples_what_greedy_decoding_takes(options):
    network = random_model(SMALL, dtype=torch.float32)
    with torch.no_grad():  # scores of a size that no network should have
        for part in (network.project.weight, network.project.bias):
            part.mul_(1e6)
    model, source = StepModel(network), random_tokens(SMALL, 3)[0]
    wanted = decode(model, source, DecodeConfig(block_size=1)).tokens
    for temperature in (LEAST_TEMPERATURE, (LEAST_TEMPERATURE, 1.0, LEAST_TEMPERATURE)):
        found = decode(model, source, DecodeConfig(temperature=temperature, **options))
        assert torch.equal(found.tokens, wanted)
