"""Proposers: what each of them proposes, position by position, in real decodes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import SMALL, VARIANTS, random_model, random_tokens

from superres.config import DecodeConfig
from superres.decoding.blockwise import decode
from superres.decoding.proposal import PROPOSERS
from superres.errors import ConfigError
from superres.nn.step import StepModel

K = 5
LENGTH = SMALL.target_length


def watched(variant, name, block_size=K, temperature=0.0):
    """Decode and return the result and, of every row that is not done, (context, row, position, proposals)."""
    seen = []

    class Watched:
        def propose(self, context, offsets):
            proposals = PROPOSERS[name]().propose(context, offsets)
            seen.extend((context, row, place, proposals[row].tolist())
                        for row, place in enumerate(context.position.tolist()) if place < LENGTH)
            return proposals

    config = VARIANTS[variant]
    options = DecodeConfig(block_size=block_size, temperature=temperature)
    model, source = StepModel(random_model(config)), random_tokens(config, 3)[0]
    return decode(model, source, options, proposer=Watched()), seen


def proposed_by_heads(context, offsets):
    return context.session.propose(context.output, context.index, context.first, offsets, context.choose)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_stale_takes_the_verifiers_choices_as_far_as_they_reach_and_then_the_heads(temperature):
    _, seen = watched("base aids", "stale", temperature=temperature)
    offsets, reaches = torch.arange(1, K), set()
    for context, row, _, proposals in seen[::5]:
        index = int(context.index[row])
        reach = K - 1 - index  # columns of the step past the one that chose the next token
        reaches.add(reach)
        heads = proposed_by_heads(context, offsets)[row].tolist()
        stale = [int(context.choose(context.output.scores[:, index + d : index + d + 1], offsets[d - 1 : d])[row])
                 for d in range(1, reach + 1)]
        assert proposals == stale + heads[reach:]
    assert {0, K - 1} < reaches


def head_scores(context, propose):
    """Return what `propose` gives and the scores of the heads that chose one by one, [B, k - 1, V]."""
    seen = []

    def choose(scores, offsets):
        if len(offsets) == 1:
            seen.append(scores)
        return context.choose(scores, offsets)

    return propose(replace(context, choose=choose)), torch.cat(seen, dim=1)


def test_stale_proposals_are_what_sequential_heads_read():
    _, seen = watched("sequential heads", "stale")
    offsets, differences = torch.arange(1, K), 0
    for context, row, _, _ in seen[::5]:
        proposals, scores = head_scores(context, lambda c: PROPOSERS["stale"]().propose(c, offsets))
        forced = []

        def given(scores, offsets, proposals=proposals, forced=forced):
            forced.append(scores)
            return proposals[:, offsets - 1]

        context.session.propose(context.output, context.index, context.first, offsets, given)
        assert torch.equal(scores, torch.cat(forced, dim=1))
        alone, own = head_scores(context, lambda c: proposed_by_heads(c, offsets))
        differ = proposals[row, :-1] != alone[row, :-1]
        differences += int(differ.sum())
        assert torch.equal(scores[row, 1:], own[row, 1:]) != bool(differ.any())
    assert differences


@pytest.mark.parametrize("variant", ["base aids", "plain"])
def test_source_proposes_the_rounded_estimate(variant):
    config = VARIANTS[variant]
    _, seen = watched(variant, "source", block_size=9)
    estimate = random_model(config).encode(random_tokens(config, 3)[0]).estimate
    expected = estimate.round().clamp(0, config.vocabulary - 1).long().tolist()
    for _, row, place, proposals in seen:
        inside = proposals[: LENGTH - place - 1]
        assert inside == expected[row][place + 1 : place + 9]


@pytest.mark.parametrize(("name", "stride"), [("left", 3), ("above", 12)])
@pytest.mark.parametrize("block_size", [4, 15])
def test_neighbours_are_copied_from_the_latest_known_place_a_whole_number_of_strides_back(name, stride, block_size):
    decoded, seen = watched("base aids", name, block_size)
    for _, row, place, proposals in seen:
        known = decoded.tokens[row, : place + 1].tolist()  # the next token is chosen already
        for offset, proposal in enumerate(proposals, start=1):
            source = place + offset
            while source > place:
                source -= stride
            assert proposal == known[max(source, 0)]


def test_neighbours_of_text_are_the_token_before():
    config = VARIANTS["text"]
    model, source = StepModel(random_model(config)), random_tokens(config, 2)[0]
    for name in ("left", "above"):
        trace = decode(model, source, DecodeConfig(block_size=4, proposer=name)).traces[0]
        assert all(len(set(proposed)) == 1 for proposed in trace.proposed)


def test_source_of_text_is_refused_in_one_line():
    config = VARIANTS["text"]
    model, source = StepModel(random_model(config)), random_tokens(config, 1)[0]
    with pytest.raises(ConfigError, match="'source' needs a model that estimates") as caught:
        decode(model, source, DecodeConfig(proposer="source"))
    assert "\n" not in str(caught.value)


def test_free_proposers_need_no_heads_and_take_any_block_size():
    config = replace(SMALL, prediction_heads=1)
    model, source = StepModel(random_model(config)), random_tokens(config, 2)[0]
    alone = decode(model, source, DecodeConfig()).tokens
    for name, proposer in PROPOSERS.items():
        options = DecodeConfig(block_size=8, proposer=name)
        if proposer.uses_heads:
            with pytest.raises(ConfigError, match="block size 8 is more than the 1 prediction heads"):
                decode(model, source, options)
        else:
            assert torch.equal(decode(model, source, options).tokens, alone)
