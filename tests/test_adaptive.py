"""Adaptive block sizes: the same tokens at any sizes, the size that pays, and costs that are measured once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import (
    SMALL,
    TINY,
    VARIANTS,
    fixed_costs,
    random_model,
    random_tokens,
)
from hypothesis import given
from hypothesis import strategies as st
from stepping import check_steps

from decodes import Numbered, decode
from superres.config import DecodeConfig
from superres.decoding import cost
from superres.decoding.batching import RefilledDecoder, feed_of
from superres.decoding.block_size import fastest_size
from superres.decoding.cost import measured_costs
from superres.decoding.proposers.draft import DraftProposer
from superres.decoding.proposers.lookup import LookupProposer
from superres.errors import ConfigError
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.pipeline.block_sizes import BlockSizes

HEADS = SMALL.prediction_heads
compiled = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


@pytest.mark.parametrize("variant", ["base aids", "plain", "causal attention", "sequential heads", "text"])
def test_steps_of_changing_width_equal_the_uncached_network(variant):
    check_steps(random_model(VARIANTS[variant]), 5, resized=True)


@given(st.floats(0.0, 1.0), st.integers(1, 10))
def test_the_fastest_size_is_that_of_the_costs_if_four_of_five_proposals_pass(slope, least):
    """A token more costs `slope` of the first."""
    costs = 1 + slope * np.arange(10)
    truth = np.cumsum(0.8 ** np.arange(10)) / costs
    size, tokens = fastest_size(costs, least)
    assert size >= least
    assert tokens == pytest.approx(truth[size - 1] * costs[size - 1])
    assert truth[size - 1] == pytest.approx(truth[least - 1 :].max())


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The folder that costs are kept in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "superres"


def make_sizes(measured, revision="0123", steady=True, slope=0.15):
    """Make block sizes that find the machine `steady`, and add the batch size of every measurement to `measured`.

    Each further token of a step costs `slope` of the first.

    Those of single tokens, in sessions of their own, are not added.
    """
    def measure(model, source, options, largest, *arguments):
        measured.extend([len(source)] * (largest > 1))
        return fixed_costs(largest, slope), steady

    model = StepModel(random_model(SMALL, dtype=torch.float32))
    return BlockSizes(model, revision, "plain", torch.device("cpu"), measure)


def test_costs_are_those_of_the_proposer_that_is_used(cache, monkeypatch):
    """A draft as large as its verifier makes larger blocks slower; proposals that were looked up do not.

    A clock that counts multiplications in millionths of a second takes the place of the machine's.
    """
    network = random_model(replace(TINY, width=64, filter_size=256, decoder_layers=3), dtype=torch.float32)
    spent = [0.0]

    def count(layer, _, output):
        spent[0] += 1e-6 * layer.in_features * output.numel()

    for layer in network.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(count)
    monkeypatch.setattr("superres.decoding.cost.time", SimpleNamespace(thread_time=lambda: spent[0]))
    model, source = StepModel(network), random_tokens(network.config, 1)[0]
    sizes = BlockSizes(model, "0123", "plain", torch.device("cpu"), lambda *given: measured_costs(*given))
    costs = {name: sizes._costs(DecodeConfig(4, proposer=name, adaptive=True), source, None, proposer)
             for name, proposer in (("draft", DraftProposer(model)), ("lookup", LookupProposer()))}
    assert costs["draft"][3] > 1.5 * costs["lookup"][3]
    # In blocks of one token, the draft would not read the tokens that its next proposals depend on.
    monkeypatch.setattr(sizes, "measure", lambda *_: ([1.0, 9.0, 18.0, 27.0], False))
    drafted, looked_up = (sizes.get(DecodeConfig(4, proposer=name, adaptive=True), source, None, proposer)
                          for name, proposer in (("draft", DraftProposer(model)), ("lookup", LookupProposer())))
    assert (drafted, looked_up) == (2, 1)
    monkeypatch.setattr(sizes, "measure", lambda *_: ([1.0], False))
    assert sizes.get(DecodeConfig(1, proposer="draft", adaptive=True), source, None, DraftProposer(model)) == 1


def test_costs_are_measured_once_a_machine_and_network(cache):
    source, options, measured = random_tokens(SMALL, 3)[0], DecodeConfig(adaptive=True), []
    sizes = make_sizes(measured)
    first = sizes.get(options, source)
    assert sizes.get(replace(options, seed=7), source) == first
    sizes.get(options, source[:2])
    assert make_sizes(measured).get(options, source) == first
    assert measured == [4, 2]
    make_sizes(measured, "4567").get(options, source)
    for path in cache.glob("cost-*.json"):
        path.write_text(path.read_text().replace('"costs"', '"cost"'))
    assert make_sizes(measured).get(options, source) == first
    assert measured == [4, 2, 4, 4]
    assert sizes.get(DecodeConfig(), source) is None


@pytest.mark.parametrize(("alone", "expected"), [(0.4, 1), (1.0, HEADS)])
def test_single_tokens_are_decoded_without_heads_wherever_blocks_would_not_pay(cache, alone, expected):
    """A step costs `alone` in a session of its own; one of further tokens costs 1 and 0.15 for each of them."""
    model = StepModel(random_model(SMALL, dtype=torch.float32))
    sizes = BlockSizes(model, "0123", "plain", torch.device("cpu"), lambda _, source, options, largest, *more: (
        [alone] if largest == 1 else fixed_costs(largest), True))
    options, source = DecodeConfig(adaptive=True), random_tokens(SMALL, 3)[0]
    assert sizes.get(options, source) == expected
    # Where blocks of at least two tokens are asked for, there is no choice.
    assert sizes.get(replace(options, min_block=2), source) == HEADS
    decoder = RefilledDecoder(model, feed_of([Numbered(row, row) for row in range(3)]),
                              lambda items: (source[[item.row for item in items]], None), options, 3,
                              adaptive=lambda *found: sizes.get(options, *found))
    list(decoder.run())
    assert decoder.loop.plain.session.width == expected


def test_disturbed_costs_are_measured_again_by_the_next_process_and_kept_until_steady_ones_are_known(cache):
    source, options, measured = random_tokens(SMALL, 2)[0], DecodeConfig(adaptive=True), []

    def size(seen, slope, steady):
        """Return the size that a new process chooses where it measures that a further token costs `slope`."""
        sizes = make_sizes(seen, steady=steady, slope=slope)
        assert sizes.get(options, source) == sizes.get(replace(options, seed=7), source)
        return sizes.get(options, source)

    assert size(measured, 0.15, False) == HEADS
    assert size(measured, 9.0, False) == HEADS  # measured again, but the earlier costs are as good
    assert measured == [2, 2]
    assert size(measured, 9.0, True) == 1
    assert measured == [2, 2, 2]
    assert size(measured, 0.15, True) == 1
    assert measured == [2, 2, 2]


def test_costs_are_steady_if_two_rounds_agree(monkeypatch):
    model, source = StepModel(random_model(SMALL, dtype=torch.float32)), random_tokens(SMALL, 1)[0]
    slow = {"round 1": {0}, "rounds 1 and 3": {0, 2}, "all rounds but one": {0, 1, 2}}
    for rounds, expected in zip(slow.values(), (True, True, False), strict=True):
        times = iter([3.0 if number in rounds and size == 1 else 1.0 + size
                      for number in range(cost.ROUNDS) for size in range(HEADS)])
        monkeypatch.setattr(cost, "_least_seconds", lambda *_, times=times: next(times))
        costs, steady = measured_costs(model, source, DecodeConfig(), HEADS)
        assert (costs[:3], steady) == ([1.0, 2.0, 3.0], expected)


def test_a_cache_that_cannot_be_written_is_done_without(cache):
    cache.write_text("in the way")
    measured = []
    assert make_sizes(measured).get(DecodeConfig(adaptive=True), random_tokens(SMALL, 1)[0]) == HEADS
    assert measured == [1]


def test_what_does_not_go_with_it_is_refused():
    model, source = StepModel(random_model(SMALL)), random_tokens(SMALL, 1)[0]
    with pytest.raises(ConfigError, match="the block size of lookahead is the length of its n-grams"):
        decode(model, source, DecodeConfig(adaptive=True, proposer="lookahead"))
    with pytest.raises(ConfigError, match=f"leave out the width {HEADS}"):
        decode(model, source, DecodeConfig(adaptive=True), width=HEADS)
