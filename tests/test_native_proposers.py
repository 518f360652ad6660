"""Compiled iterations make the proposals that the loop around compiled steps makes, with every proposer they know."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import Waiting, draft_of, ngrams_of, proposer_for, random_tokens, stacked
from test_native import KNOWN, Sessions, assert_same_decode, by_steps, exact_heads, model_of  # noqa: F401

from superres.config import DecodeConfig
from superres.decoding.batching import ListFeed, RefilledDecoder
from superres.decoding.decode import decode
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.proposers.ngrams import NgramProposer
from superres.nn.engines.native import build
from superres.nn.engines.native.session import NativeModel

pytestmark = [pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine"),
              pytest.mark.usefixtures("exact_heads")]

PROPOSED = ("jacobi", "draft", "ngram", "lookup")
WAYS = {
    "greedy": {}, "distance": {"accept": "distance", "epsilon": 1}, "top-k": {"accept": "top-k", "top_k": 2},
    "Gumbel": {"temperature": 0.7}, "colours": {"temperature": (0.9, 0.5, 0.7)},
    "speculative": {"temperature": 0.7, "sampling": "speculative"},
    "speculative, filters": {"temperature": 0.7, "sampling": "speculative", "sample_top_k": 5, "nucleus": 0.9},
}
NETWORKS = {"faces": KNOWN["sequential heads"], "text": replace(KNOWN["text"], vocabulary=300),
            "recurrent heads": KNOWN["recurrent heads"]}


def made(name, model, noise=0.1):
    """Return the proposer `name`; a draft model runs in compiled code as well."""
    if name != "draft":
        return proposer_for(name, model)
    return DraftProposer(NativeModel(draft_of(model, noise).model, model.end_token))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("proposer", PROPOSED)
def test_whole_iterations_propose_what_the_loop_proposes(proposer, network, way, rows):
    config, options = NETWORKS[network], DecodeConfig(block_size=4, proposer=proposer, seed=3, **WAYS[way])
    source = random_tokens(config, rows)[0]
    for end_token in (None, 3):
        model = model_of(config, end_token=end_token, threads=2)
        whole = decode(model, source, options, proposer=made(proposer, model))
        assert model.sessions.asked
        assert_same_decode(whole, by_steps(model, source, options, proposer=made(proposer, model)))
        wider = decode(model, source, options, proposer=made(proposer, model), width=6)
        assert torch.equal(wider.tokens, whole.tokens)


@pytest.mark.parametrize("proposer", PROPOSED)
@pytest.mark.parametrize("way", ["greedy", "Gumbel", "speculative"])
def test_a_row_that_is_refilled_is_decoded_as_alone(way, proposer):
    model = model_of(NETWORKS["text"], end_token=3)
    source = random_tokens(NETWORKS["text"], 6)[0]
    options = DecodeConfig(block_size=3, proposer=proposer, **WAYS[way])
    feed = ListFeed([Waiting(one, row, row) for row, one in enumerate(source)])
    finished = [one for some in RefilledDecoder(
        model, feed, stacked, options, 2, proposer=made(proposer, model)).run() for one in some]
    for one in finished:
        row = one.item.tag
        alone = decode(model, source[row : row + 1], options, keys=torch.tensor([row]), proposer=made(proposer, model))
        assert one.tokens.tolist() == alone.tokens[0].tolist()
        assert one.trace.accepted == alone.traces[0].accepted
    assert len(finished) == 6


@pytest.mark.parametrize("together", [1, 2, 5])
@pytest.mark.parametrize("proposer", PROPOSED)
def test_rows_that_propose_apart_propose_what_they_do_together(proposer, together):
    model, source = model_of(NETWORKS["faces"], threads=3), random_tokens(NETWORKS["faces"], 5)[0]
    options = DecodeConfig(block_size=4, proposer=proposer, temperature=0.8)
    model.sessions = Sessions(together=together)
    apart = decode(model, source, options, proposer=made(proposer, model))
    assert_same_decode(apart, by_steps(model, source, options, proposer=made(proposer, model)))


def test_a_draft_of_another_engine_and_a_class_of_the_user_are_left_to_the_loop():
    model, source = model_of(NETWORKS["faces"]), random_tokens(NETWORKS["faces"], 1)[0]

    class Own(NgramProposer):
        def propose(self, context, offsets):
            return torch.zeros_like(super().propose(context, offsets))

    wanted = decode(model, source, DecodeConfig(1)).tokens
    ngrams = Own(ngrams_of(model))
    decoded = decode(model, source, DecodeConfig(block_size=3, proposer="ngram"), proposer=ngrams)
    assert all(set(proposed[1:]) == {0} for proposed in decoded.traces[0].proposed.tolist()[:-1])
    drafted = decode(model, source, DecodeConfig(block_size=3, proposer="draft"),
                     proposer=proposer_for("draft", model))
    assert torch.equal(drafted.tokens, wanted)


def test_every_proposer_is_tested():
    assert set(PROPOSERS) == {"heads", "lookahead", *PROPOSED}  # test_native_tree.py tests lookahead
