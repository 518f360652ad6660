"""Compiled iterations limit tokens as the loop around compiled steps does, in every format of the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import NATIVE, PLAIN, limits_of, random_model, random_tokens
from test_consistency import LARGER, SAMPLED, assert_consistent
from test_native import PreparedModel, Sessions, assert_same_decode, exact_heads  # noqa: F401
from test_native_proposers import made

from superres.config import DecodeConfig
from superres.decoding.decode import decode
from superres.decoding.limits import LimitedModel
from superres.decoding.proposers.draft import DraftProposer
from superres.nn.engines.native import build
from superres.nn.engines.torch_model import StepModel

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")

NETWORKS = {
    "no free scores": replace(LARGER, **NATIVE), "free scores": replace(LARGER, **NATIVE, free_scores=True),
    "large vocabulary": replace(
        LARGER, **NATIVE, **PLAIN, head_layer="per-head", free_scores=True, vocabulary=300),
}
WAYS = {
    "greedy": DecodeConfig(1), "exact": DecodeConfig(), "distance": DecodeConfig(accept="distance", epsilon=1),
    "top-k": DecodeConfig(accept="top-k", top_k=3), **SAMPLED,
    "Gumbel, distance": DecodeConfig(temperature=0.8, accept="distance", epsilon=2),
    "Gumbel, top-k": DecodeConfig(temperature=0.8, accept="top-k", top_k=3),
}


def limited(config, **options):
    return LimitedModel(PreparedModel(random_model(config, dtype=torch.float32), **options), limits_of(config))


def proposer_of(name, model):
    proposer = made(name, model.model)
    return DraftProposer(LimitedModel(proposer.draft, model.limits)) if name == "draft" else proposer


def by_steps(model, *arguments, **options):
    """Decode with `model`, whose sessions leave iterations to the loop."""
    model.model.sessions = Sessions(whole=False)
    decoded = decode(model, *arguments, **options)
    model.model.sessions = Sessions()
    return decoded


@pytest.mark.usefixtures("exact_heads")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("proposer", "network"), [
    (proposer, network) for proposer in ("heads", "jacobi", "draft", "ngram", "lookup") for network in NETWORKS
    if (proposer, network) != ("ngram", "large vocabulary")  # its table of contexts would be large
])
def test_whole_iterations_do_what_the_loop_does(proposer, network, way):
    config, options = NETWORKS[network], replace(WAYS[way], proposer=proposer)
    model, source = limited(config, threads=2), random_tokens(config, 3)[0]
    whole = decode(model, source, options, proposer=proposer_of(proposer, model))
    assert model.model.sessions.asked
    assert_consistent(whole.tokens, source, config)
    assert_same_decode(whole, by_steps(model, source, options, proposer=proposer_of(proposer, model)))


@pytest.mark.usefixtures("exact_heads")
@pytest.mark.parametrize("way", ["exact", "distance", "Gumbel", "colours", "speculative"])
def test_the_same_is_decoded_as_by_the_plain_step(way):
    config, options = NETWORKS["no free scores"], WAYS[way]
    model, source = limited(config), random_tokens(config, 3)[0]
    plain = LimitedModel(StepModel(random_model(config, dtype=torch.float32)), model.limits)
    assert torch.equal(decode(plain, source, options).tokens, decode(model, source, options).tokens)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_blocks_are_the_tokens_of_one_at_a_time_in_every_format(precision, way):
    config, options = NETWORKS["no free scores"], WAYS[way]
    model, source = limited(config, precision=precision), random_tokens(config, 4)[0]
    decoded = decode(model, source, options)
    assert_consistent(decoded.tokens, source, config)
    if options.is_exact:
        assert torch.equal(decoded.tokens, decode(model, source, options.sequential()).tokens)
