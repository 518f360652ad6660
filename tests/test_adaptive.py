"""Adaptive block sizes: the same tokens at any sizes, the size that pays, and costs that are measured once."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import (
    NATIVE,
    SMALL,
    TINY,
    VARIANTS,
    Restless,
    fixed_costs,
    proposer_for,
    random_model,
    random_tokens,
)
from hypothesis import example, given
from hypothesis import strategies as st
from stepping import check_steps

from superres.config import DecodeConfig
from superres.decoding import cost
from superres.decoding.block_size import FEW_BLOCKS, PATIENCE, AdaptiveBlockSize
from superres.decoding.cost import measured_costs
from superres.decoding.decode import decode
from superres.decoding.proposers.draft import DraftProposer
from superres.errors import ConfigError
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.pipeline.block_sizes import BlockSizes
from superres.pipeline.engines import step_model

HEADS = SMALL.prediction_heads
compiled = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_of_changing_width_equal_the_uncached_network(variant):
    check_steps(random_model(VARIANTS[variant]), 5, resized=True)


@example(120, 0.3125, 0.25)  # fewer of the first blocks pass than expected: 1 token per step, 5 % slower than 2
@given(st.integers(0, 1000), st.floats(0.05, 0.99), st.floats(0.0, 1.0))
def test_it_finds_the_size_with_the_most_tokens_a_second(seed, share, slope):
    """Each proposal passes with probability `share`; a token more costs `slope` of the first.

    The first blocks show the share up to four standard errors: any size that is best at one of those shares may be
    chosen.
    """
    costs = 1 + slope * np.arange(10)
    sizes, rng = AdaptiveBlockSize(costs), np.random.default_rng(seed)
    truth = np.cumsum(share ** np.arange(10)) / costs
    assert sizes.choose() == 1 + int((np.arange(1, 11) / costs).argmax())
    spent = gained = 0.0
    for look in range(400):
        size = sizes.choose()
        accepted = np.minimum(rng.geometric(1 - share, AdaptiveBlockSize.interval), size)
        sizes.observe(accepted, np.full(AdaptiveBlockSize.interval, size))
        sizes.time(np.full(AdaptiveBlockSize.interval, size), AdaptiveBlockSize.interval * costs[size - 1])
        if look >= 100:
            spent, gained = spent + costs[size - 1], gained + truth[size - 1] * costs[size - 1]
    error = 4 * math.sqrt(share * (1 - share) / FEW_BLOCKS)
    least, most = (int((np.cumsum(seen ** np.arange(10)) / costs).argmax())
                   for seen in (max(share - error, 0), min(share + error, 1)))
    assert gained / spent >= 0.96 * truth[least : most + 1].min()  # 0.972 in the worst of 1,500 random examples


def test_a_moment_in_which_the_machine_was_busy_does_not_decide():
    sizes = AdaptiveBlockSize([1.0, 1.1, 1.2])
    for _ in range(100):
        sizes.observe(np.full(16, 3), np.full(16, 3))
        sizes.time(np.full(16, 3), 16 * 1.2)
    sizes.time(np.full(16, 3), 16 * 1000.0)
    assert max(sizes.costs) < 2 * 1.2
    assert sizes.choose() == 3


def test_the_minimum_block_bounds_the_size():
    sizes = AdaptiveBlockSize([1.0, 5.0, 9.0, 13.0], minimum=3)
    sizes.observe(np.ones(500, np.int64), np.full(500, 4))
    assert {sizes.choose() for _ in range(40)} == {3, 4}


def test_updates_are_as_rare_as_they_are_slow():
    sizes = AdaptiveBlockSize([1.0, 1.2])
    assert sizes.is_due(0.0)
    sizes.updated(0.002)
    assert not sizes.is_due(0.002 * PATIENCE - 0.01)
    sizes.waited = 0.06  # of an earlier decode
    assert sizes.is_due(0.002 * PATIENCE - 0.05)
    sizes.updated(5.0)  # something else kept the machine busy
    assert not sizes.is_due(0.004 * PATIENCE - 0.01)
    assert sizes.is_due(0.004 * PATIENCE + 0.01)


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """The folder that costs are kept in."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "superres"


def make_sizes(measured, revision="0123", steady=True):
    """Make block sizes that add the batch size of every measurement to `measured`, and find the machine `steady`."""
    def measure(model, source, *arguments):
        measured.append(len(source))
        return fixed_costs(HEADS), steady

    model = StepModel(random_model(SMALL, dtype=torch.float32))
    return BlockSizes(model, revision, "plain", torch.device("cpu"), measure)


@pytest.mark.parametrize("name", ["jacobi", "draft", "ngram", "lookup"])
@pytest.mark.parametrize("engine", ["plain", pytest.param("native", marks=compiled)])
def test_every_proposer_makes_the_greedy_tokens_while_its_block_size_changes(engine, name):
    network = random_model(replace(TINY, **NATIVE, source_shape=(4, 4, 3), target_shape=(8, 8, 3)), dtype=torch.float32)
    model, source = step_model(network, engine=engine), random_tokens(network.config, 2)[0]
    proposer = DraftProposer(model) if name == "draft" else proposer_for(name, StepModel(network))
    options = DecodeConfig(6, proposer=name, adaptive=True)
    decoded = decode(model, source, options, proposer=proposer, adaptive=Restless(6))
    assert torch.equal(decoded.tokens, decode(model, source, DecodeConfig(1)).tokens)
    assert decoded.model_calls < network.config.target_length or name != "draft"


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
    monkeypatch.setattr("superres.decoding.cost.time", SimpleNamespace(perf_counter=lambda: spent[0]))
    model, source = StepModel(network), random_tokens(network.config, 1)[0]
    sizes = BlockSizes(model, "0123", "plain", torch.device("cpu"), lambda *given: measured_costs(*given))
    costs = {name: sizes.get(DecodeConfig(4, proposer=name, adaptive=True), source, None, proposer).costs
             for name, proposer in (("draft", DraftProposer(model)), ("lookup", None))}
    assert costs["draft"][3] > 1.5 * costs["lookup"][3]
    drafted, looked_up = (sizes.get(DecodeConfig(4, proposer=name, adaptive=True), source) for name in costs)
    assert (drafted.minimum, looked_up.minimum) == (2, 1)


def test_costs_are_measured_once_a_machine_and_network(cache):
    source, options, measured = random_tokens(SMALL, 3)[0], DecodeConfig(adaptive=True), []
    sizes = make_sizes(measured)
    first = sizes.get(options, source)
    assert sizes.get(replace(options, seed=7), source) is first
    assert sizes.get(options, source[:2]) is not first
    assert make_sizes(measured).get(options, source).costs.tolist() == first.costs.tolist()
    assert measured == [4, 2]
    make_sizes(measured, "4567").get(options, source)
    for path in cache.glob("cost-*.json"):
        path.write_text(path.read_text().replace('"costs"', '"cost"'))
    assert make_sizes(measured).get(options, source).costs.min() > 0
    assert measured == [4, 2, 4, 4]
    assert sizes.get(DecodeConfig(), source) is None


def test_costs_that_other_work_has_disturbed_are_measured_again_by_the_next_process(cache):
    source, options, measured = random_tokens(SMALL, 2)[0], DecodeConfig(adaptive=True), []
    disturbed = make_sizes(measured, steady=False)
    assert disturbed.get(options, source) is disturbed.get(replace(options, seed=7), source)
    assert measured == [2]
    assert not [*cache.glob("cost-*.json")]
    for _ in range(2):
        make_sizes(measured).get(options, source)
    assert measured == [2, 2]


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
    assert make_sizes(measured).get(DecodeConfig(adaptive=True), random_tokens(SMALL, 1)[0]).costs.min() > 0
    assert measured == [1]


def test_what_does_not_go_with_it_is_refused():
    model, source = StepModel(random_model(SMALL)), random_tokens(SMALL, 1)[0]
    with pytest.raises(ConfigError, match="the block size of lookahead is the length of its n-grams"):
        decode(model, source, DecodeConfig(adaptive=True, proposer="lookahead"))
    with pytest.raises(ConfigError, match=f"leave out the width {HEADS}"):
        decode(model, source, DecodeConfig(), width=HEADS, adaptive=Restless(HEADS))
