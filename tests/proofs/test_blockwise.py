"""The blockwise loop: exact acceptance changes nothing but the number of calls, whatever is
proposed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from fakes import BAD_KEYS, VARIANTS, criterion_options, random_model, random_tokens
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedModel

from decodes import algorithm_of, decode, result_of
from superres.config import DecodeConfig
from superres.decoding import reference
from superres.decoding.acceptance import CRITERIA
from superres.decoding.loop import Loop
from superres.errors import ConfigError, InvalidInputError
from superres.nn.torch_model import StepModel

ROWS = 3
LENGTH = 23


@cache
def small(variant):
    config = VARIANTS[variant]
    return StepModel(random_model(config)), random_tokens(config, ROWS)[0]


@cache
def greedy(variant, temperature=0.0, seed=0):
    model, source = small(variant)
    options = DecodeConfig(temperature=temperature, seed=seed)
    decoded = (reference.decode(model, source[row : row + 1], options, key=row)
               for row in range(ROWS))
    return torch.tensor([reference.tokens_of(steps) for steps in decoded])


def check_exact(variant, options, proposer=None, width=None):
    """Decode a ragged batch and compare it with the plain decoder, token for token."""
    model, source = small(variant)
    decoded = decode(model, source, options, proposer=proposer, width=width)
    assert torch.equal(decoded.tokens, greedy(variant, options.temperature, options.seed))
    assert decoded.lengths.tolist() == [model.length] * ROWS
    check_traces(decoded, options.block_size or model.prediction_heads)
    return decoded


def check_traces(decoded, block_size):
    for row, trace in enumerate(decoded.traces):
        assert all(1 <= accepted <= block_size for accepted in trace.accepted)
        assert trace.tokens == decoded.lengths[row]
        assert trace.positions == [0, *np.cumsum(trace.accepted)[:-1].tolist()]
        assert trace.sequence.tolist() == decoded.tokens[row, : trace.tokens].tolist()


def script(hits, rows=4, **options):
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(2, 9, (rows, LENGTH), generator=generator)
    pattern = torch.rand(rows, LENGTH, generator=generator) < hits
    return ScriptedModel(truth, pattern, **options), torch.arange(rows).unsqueeze(1)


class Knowing:
    """Knows the result, and proposes it with `wrong` added (0 is always right) where `where`
    holds."""

    def __init__(self, result, wrong=0, where=lambda place: True):
        self.result, self.wrong, self.where = result, wrong, where

    def propose(self, context, offsets):
        place = context.position.unsqueeze(1) + offsets
        right = self.result.gather(1, place.clamp(max=self.result.shape[1] - 1))
        return torch.where(torch.as_tensor(self.where(place)), (right + self.wrong) % 6, right)


HOSTILE = {
    "always wrong": lambda result: Knowing(result, wrong=1),
    "right, then out of favour": lambda result: Knowing(result, wrong=2,
                                                        where=lambda place: place >= 20),
    "every third wrong": lambda result: Knowing(result, wrong=3,
                                                where=lambda place: place % 3 == 0),
    "always right": lambda result: Knowing(result),
}


@pytest.mark.slow
@pytest.mark.parametrize(("proposer", "temperature", "block_size"), [
    (name, *((0.0, 7), (0.9, 2))[number % 2]) for number, name in enumerate(HOSTILE)])
def test_exact_equals_greedy_whatever_is_proposed(proposer, temperature, block_size):
    result = greedy("base aids", temperature)
    options = DecodeConfig(block_size=block_size, temperature=temperature)
    decoded = check_exact("base aids", options, HOSTILE[proposer](result))
    if proposer == "always wrong":
        assert all(trace.accepted == [1] * trace.tokens for trace in decoded.traces)
    if proposer == "always right":
        assert all(trace.iterations == -(-trace.tokens // block_size) for trace in decoded.traces)


APPROXIMATE = {
    **{name: criterion_options(name) for name in CRITERIA},
    "minimum block": DecodeConfig(min_block=2), "minimum block and "
    "distance": DecodeConfig(min_block=3, accept="distance", epsilon=1),
    "sampled top-k": DecodeConfig(accept="top-k", top_k=3, temperature=0.8, seed=5), "minimum "
    "block and filters": DecodeConfig(min_block=3, temperature=1.2, sample_top_k=3, nucleus=0.8,
                                      seed=5),
    "speculative": DecodeConfig(temperature=1.2, sampling="speculative", seed=5),
    "speculative, filters": DecodeConfig(temperature=0.9, sampling="speculative", sample_top_k=4,
                                         nucleus=0.9, seed=5),
}


@pytest.mark.slow
@pytest.mark.parametrize(("options", "variant", "block_size"), [
    (options, *(("base aids", 4), ("sequential heads", 3))[number % 2])
    for number, options in enumerate(APPROXIMATE.values())], ids=APPROXIMATE)
def test_every_row_of_a_batch_is_decoded_as_by_the_reference(variant, block_size, options):
    model, source = small(variant)
    decoded = decode(model, source, replace(options, block_size=block_size), width=block_size + 2)
    check_traces(decoded, block_size)
    row = 1
    steps = reference.decode(model, source[row : row + 1], options, block_size, row)
    assert decoded.tokens[row].tolist() == reference.tokens_of(steps)
    assert decoded.traces[row].accepted == [step.accepted for step in steps]


@pytest.mark.slow
@given(
    st.floats(0, 1), st.integers(1, 5), st.integers(1, 5), st.sampled_from(list(CRITERIA)),
    st.sampled_from([None, 4, 9]), st.integers(0, 2), st.sampled_from([None, 4]),
)
def test_a_scripted_decode_equals_the_reference(hits, block_size, minimum, accept, end_token,
                                                epsilon, miss):
    model, source = script(hits, prediction_heads=5, end_token=end_token, miss=miss)
    minimum = min(minimum, block_size)
    options = DecodeConfig(block_size, accept, epsilon=epsilon, top_k=epsilon + 1,
                           min_block=minimum)
    decoded = decode(model, source, options)
    check_traces(decoded, block_size)
    for row in range(len(source)):
        steps = reference.decode(model, source[row : row + 1], options, block_size)
        assert decoded.tokens[row, : decoded.lengths[row]].tolist() == reference.tokens_of(steps)
        assert decoded.traces[row].accepted == [step.accepted for step in steps]
        assert bool((decoded.tokens[row, decoded.lengths[row] :] == 0).all())


def finish(model, source, block_size):
    """Drive the loop without the host's polling interval; return it with the number of model
    calls."""
    algorithm = algorithm_of(model, DecodeConfig(block_size=block_size))
    loop = Loop(algorithm.start(source.numpy(), block_size))
    plain = loop.decoder.plain
    before = plain.state.position.clone()
    while not loop.done():
        loop.run(1)
        assert bool(((plain.state.position > before) | (before >= plain.state.limit)).all())
        before = plain.state.position.clone()
    return result_of(loop), plain.session.calls


@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
def test_always_right_proposals_take_one_call_a_block_and_one_more(block_size):
    model, source = script(1.0)
    decoded, calls = finish(model, source, block_size)
    iterations = -(-LENGTH // block_size)
    assert calls == iterations + 1
    assert torch.equal(decoded.tokens, model.truth)
    for trace in decoded.traces:
        assert trace.iterations == iterations
        assert trace.model_calls == calls
        assert trace.accepted[:-1] == [block_size] * (iterations - 1)
        # the end lies inside the block
        assert trace.accepted[-1] == LENGTH - block_size * (iterations - 1)


@pytest.mark.parametrize("hits", [0.0, 0.6, 1.0])
def test_end_token_stops_a_row_at_any_offset_inside_a_block(hits):
    # Row r ends at token r; what the script holds after it would betray an overrun.
    model, source = script(hits, rows=LENGTH + 1, end_token=1)
    model.truth[torch.arange(LENGTH), torch.arange(LENGTH)] = 1
    decoded, _ = finish(model, source, 4)
    assert decoded.lengths.tolist() == [*range(1, LENGTH + 1), LENGTH]
    for row, length in enumerate(decoded.lengths.tolist()):
        assert torch.equal(decoded.tokens[row, :length], model.truth[row, :length])
        assert bool((decoded.tokens[row, length:] == 0).all())
        assert decoded.traces[row].tokens == length
    check_traces(decoded, 4)


@pytest.mark.parametrize(("options", "width", "named"), [
    (DecodeConfig(block_size=6), None, "block size 6"),
    (DecodeConfig(min_block=6), None, "min-block 6"), (DecodeConfig(block_size=3), 2, "width 2"),
])
def test_options_that_do_not_fit_are_refused_in_one_line(options, width, named):
    with pytest.raises(ConfigError, match=named) as caught:
        decode(*script(1.0), options, width=width)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("keys", "message"), BAD_KEYS, ids=repr)
@pytest.mark.parametrize("proposer", ["heads", "lookahead"])
def test_keys_that_do_not_fit_the_rows_are_refused(keys, message, proposer):
    model, source = small("plain")
    options = DecodeConfig(temperature=0.9, proposer=proposer, window=3)
    with pytest.raises(InvalidInputError, match=message):
        decode(model, source[:2], options, keys=keys)
    if isinstance(keys, list) and keys and not isinstance(keys[0], str):
        with pytest.raises(InvalidInputError):
            decode(model, source[:2], options, keys=torch.tensor(keys, dtype=torch.float64))
