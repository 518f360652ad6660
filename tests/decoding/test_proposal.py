"""Proposers: what each of them proposes, position by position, in real decodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from fakes import SMALL, VARIANTS, drafted, ngrams_of, proposer_for, random_model, random_tokens

from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.block_size import DEFAULT_BLOCK_SIZE
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError
from superres.nn.torch_model import StepModel

K = 5
LENGTH = SMALL.target_length


def test_free_proposers_need_no_heads_and_take_any_block_size():
    config = replace(SMALL, prediction_heads=1)
    model, source = StepModel(random_model(config)), random_tokens(config, 2)[0]
    alone = decode(model, source, DecodeConfig()).tokens
    for name, proposer in PROPOSERS.items():
        options = DecodeConfig(block_size=8, proposer=name)
        if proposer.uses_heads:
            with pytest.raises(ConfigError, match="block size 8 is more than the 1 prediction "
                               "heads"):
                decode(model, source, options)
        else:
            made = proposer_for(name, model)
            assert torch.equal(decode(model, source, options, proposer=made).tokens, alone)
            unsaid = decode(model, source, DecodeConfig(proposer=name), proposer=made)
            assert max(count for trace in unsaid.traces for count in trace.accepted) > 1
            assert unsaid.traces[0].proposed.shape[1] == (proposer.block_size or DEFAULT_BLOCK_SIZE)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_jacobi_takes_the_verifiers_choices_as_far_as_they_reach_and_repeats_the_last(temperature):
    model, source = StepModel(random_model(SMALL)), random_tokens(SMALL, 3)[0]

    class Watched(PROPOSERS["jacobi"]):
        def propose(self, context, offsets):
            proposals = super().propose(context, offsets)
            for row, index in enumerate(context.index.tolist()):
                scores = context.output.scores[:, (index + offsets).clamp(max=K - 1)]
                assert torch.equal(proposals[row], context.sampler(scores, offsets)[row])
            return proposals

    decode(model, source, DecodeConfig(block_size=K, temperature=temperature), proposer=Watched())


def test_a_draft_equal_to_the_verifier_is_always_right():
    model, source = StepModel(random_model(SMALL)), random_tokens(SMALL, 3)[0]
    for block_size in (2, 5, 9):
        decoded = decode(model, source, DecodeConfig(block_size=block_size),
                         proposer=drafted(model))
        assert all(trace.iterations == -(-LENGTH // block_size) for trace in decoded.traces)


def ngram_by_hand(rows, tokens, order=3):
    """Return what followed the longest known end of `tokens` in `rows` most often, at places of the
    same channel."""
    for length in range(min(order - 1, len(tokens)), -1, -1):
        followed = Counter(row[place] for row in rows for place in range(len(tokens) % 3, len(row),
                                                                         3)
                           if place >= length and row[place - length : place]
                           == tokens[len(tokens) - length :])
        if followed:
            return min(followed, key=lambda token: (-followed[token], token))
    raise AssertionError("no context at all")


def lookup_by_hand(source, text, count):
    """Return `count` tokens: what followed the longest, then latest, match of the last three
    tokens, repeated."""
    tokens = [*source, *text]
    last, best = len(tokens) - 1, (0, 0)
    for place in range(last):
        length = 0
        while length < 3 and place >= length and tokens[place - length] == tokens[last - length]:
            length += 1
        best = max(best, (length, place))
    if best[0] == 0:
        return [tokens[-1]] * count
    copied = tokens[best[1] + 1 :]
    return [copied[number % len(copied)] for number in range(count)]


@pytest.mark.parametrize(("make", "message"), [
    (lambda model: PROPOSERS["draft"](), "needs a draft model; name its checkpoint with --draft"),
    (lambda model: PROPOSERS["ngram"](), "needs counts; name their file with --ngrams"),
    (lambda model: drafted(StepModel(random_model(replace(SMALL, vocabulary=7)))),
     "the draft model has 7 tokens in its vocabulary, the verifier 6"),
    (lambda model: drafted(StepModel(random_model(VARIANTS["text"]))),
     "has 30 target tokens"),
    (lambda model: drafted(StepModel(random_model(SMALL), end_token=1)),
     "has 1 as its end token"),
    (
        lambda model: PROPOSERS["ngram"](
            ngrams_of(StepModel(random_model(replace(SMALL, vocabulary=7))))), "the n-grams have a "
        "vocabulary of 7 tokens"),
])
def test_what_does_not_belong_to_the_model_is_refused_in_one_line(make, message):
    model, source = StepModel(random_model(SMALL)), random_tokens(SMALL, 1)[0]
    with pytest.raises(ConfigError, match=message) as caught:
        decode(model, source, DecodeConfig(block_size=3), proposer=make(model))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("variant", ["text", "base aids"])
def test_jacobi_with_a_block_of_the_whole_target_is_algorithm_1(variant):
    """Of Fu et al. (2024): all tokens are guessed from the guesses before them, until none
    changes."""
    network, (source, _) = random_model(VARIANTS[variant]), random_tokens(VARIANTS[variant], 1)
    length, guesses = network.config.target_length, []
    guess = torch.zeros(1, length, dtype=torch.int64)
    while not guesses or not torch.equal(guess, guesses[-1]):
        guesses.append(guess)
        guess = network.scores(network(source, guess)).argmax(-1)
    decoded = decode(StepModel(network), source, DecodeConfig(block_size=length, proposer="jacobi"))
    assert torch.equal(decoded.tokens, guess)
    # the start makes the first guess of all tokens
    assert decoded.traces[0].iterations == len(guesses) - 1
    assert 1 < len(guesses) - 1 <= length
