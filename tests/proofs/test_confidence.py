"""Block sizes by the probabilities of proposals: the same tokens at any probabilities, and
calibrated ones."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import NATIVE, SMALL, VARIANTS, Unruled, on_native, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from decodes import algorithm_of, decode, engine_of
from superres.checkpoint import CONFIDENCE, read_checkpoint, save_checkpoint
from superres.config import Confidence, CostRecord, DecodeConfig, StepCosts
from superres.decoding import cost
from superres.decoding.acceptance import CRITERIA
from superres.decoding.confidence import ConfidentBlockSize, best_width, passing, reach
from superres.decoding.cost import measured_costs
from superres.decoding.loop import Loop
from superres.decoding.plain.confidence import HeadConfidence
from superres.errors import CheckpointError, ConfigError
from superres.evaluation.calibration import (
    VerifiedProposals,
    calibrate,
    calibration_error,
    fit_confidence,
    verified_proposals,
)
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.pipeline.choose import BlockSizes
from superres.tasks.translation import END
from tests.proofs.test_refill import refilled

compiled = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")

ORDINAL = {name: replace(VARIANTS[name], free_scores=False, **NATIVE) for name in (
    "sequential heads", "base aids", "no remainder")}
TEXT = {"recurrent heads": replace(VARIANTS["recurrent heads"], **NATIVE)}
HEADS = SMALL.prediction_heads

COEFFICIENTS = [Confidence(0, 0), Confidence(1, 1), Confidence(8, 8), Confidence(-8, 0),
                Confidence(0, -8)]
COSTS = {"rising": [1 + 0.3 * k for k in range(HEADS)], "level": [1.0] * HEADS,
         "steep": [4.0**k for k in range(HEADS)]}
WAYS = {"exact": DecodeConfig(), "distance": DecodeConfig(accept="distance", epsilon=2),
        "top-k": DecodeConfig(accept="top-k", top_k=2), "minimum block": DecodeConfig(min_block=3)}


def confident(coefficients=COEFFICIENTS[1], costs="rising", options=WAYS["exact"], end_token=None):
    return ConfidentBlockSize(coefficients, COSTS[costs], options, SMALL.vocabulary, end_token)


def sizes_of(decoded):
    """Return the block size of every iteration of every row."""
    return [(trace.proposed >= 0).sum(1).tolist() for trace in decoded.traces]


def trace_text(trace):
    """Return the accepted tokens and the proposals of every iteration."""
    return [(count, [token for token in row if token >= 0])
            for count, row in zip(trace.accepted, trace.proposed.tolist(), strict=True)]


def engines(variant, seed=0):
    if variant in TEXT:
        network = random_model(TEXT[variant], seed, dtype=torch.float32)
        yield StepModel(network, END)
        if build.compiler() is not None:
            yield on_native(network, END, threads=1)
        return
    network = random_model(ORDINAL[variant], seed, dtype=torch.float32)
    network.project.weight.div_(6)  # centres near the estimates, where float32 is precise
    yield StepModel(network)
    if build.compiler() is not None:
        yield on_native(network, threads=1)  # all rows of a small batch are one group


@compiled
@pytest.mark.parametrize(("variant", "rows", "threads"), [
    (name, *((1, 2), (5, 3))[number % 2]) for number, name in enumerate([*ORDINAL, *TEXT])])
def test_compiled_exact_tokens_are_greedy_whatever_the_coefficients(variant, rows, threads):
    config, end = {**ORDINAL, **TEXT}[variant], END if variant in TEXT else None
    model = on_native(random_model(config, dtype=torch.float32), end, threads=threads)
    source = random_tokens(config, rows)[0]
    greedy = decode(model, source, DecodeConfig(block_size=1)).tokens
    for costs in COSTS:
        for coefficients in COEFFICIENTS:
            decoded = decode(model, source, DecodeConfig(),
                             adaptive=confident(coefficients, costs, end_token=end))
            assert torch.equal(decoded.tokens, greedy)
            for sizes, trace in zip(sizes_of(decoded), decoded.traces, strict=True):
                assert all(count <= size <= HEADS for count,
                           size in zip(trace.accepted, sizes, strict=True))


def test_no_token_counts_after_the_end_token():
    chooser = confident(Confidence(8, 0), "level", end_token=END)
    sure = HeadConfidence(None, log_odds=[torch.zeros(2, 1)] * (HEADS - 1)).passed(chooser)
    missing, block = np.full(2, 30), np.full((2, HEADS), 5)
    for place in range(HEADS):
        ends = block.copy()
        ends[:, place] = END
        assert chooser.choose(sure, ends, missing, chooser.block_costs(2, (30,))) == place + 1
    assert chooser.choose(sure, block, missing, chooser.block_costs(2, (30,))) == HEADS


@pytest.mark.parametrize("variant", ["sequential heads", "base aids", *TEXT])
def test_sure_proposals_are_verified_and_unsure_ones_are_not(variant):
    for model in engines(variant):
        source = random_tokens(TEXT.get(variant, SMALL), 2)[0]
        for coefficients, costs, expected in (
            # every proposal seems sure, but at a distance of half a level
            (Confidence(8, 0), "rising", HEADS),
            (Confidence(-8, 0), "steep", 1),
            (Confidence(-8, 0), "level", HEADS),  # a width that costs nothing
        ):
            sizes = sizes_of(decode(model, source, DecodeConfig(),
                                    adaptive=confident(coefficients, costs)))
            assert [int(np.median(row[1:])) for row in sizes] == [expected] * 2


@compiled
@pytest.mark.parametrize(("variant", "way"), [
    ("sequential heads", "exact"), ("base aids", "distance"), ("sequential heads", "minimum block"),
    ("base aids", "top-k"), ("recurrent heads", "exact")])
def test_compiled_iterations_choose_what_the_loop_chooses(variant, way, monkeypatch):
    """Unless heads stop early, which only compiled code does."""
    plain = ConfidentBlockSize.block_costs

    def never_stops(self, count, shape):
        costs = plain(self, count, shape)
        costs.rate[:, 2:] = 1e9
        return costs

    monkeypatch.setattr(ConfidentBlockSize, "block_costs", never_stops)
    options, same, sizes, end = WAYS[way], [], set(), END if variant in TEXT else None

    def is_same(source, seed, chooser=lambda: None):
        plain, native = (decode(model, source, options, adaptive=chooser())
                         for model in engines(variant, seed))
        sizes.update(*sizes_of(native))
        return [*map(trace_text, plain.traces)] == [*map(trace_text, native.traces)]

    for seed in range(4):
        source = random_tokens(TEXT.get(variant, SMALL), 2, seed)[0]
        if is_same(source, seed):  # rounding may put a proposal on either side of a boundary
            same.append(is_same(source, seed, lambda: confident(Confidence(1, 1), "rising", options,
                                                                end)))
    assert sum(same) >= 0.6 * len(same) > 0
    assert len(sizes) > 1


@given(st.integers(0, 10**6),
       st.sampled_from([("distance", 0), ("distance", 3), ("rank", 1), ("rank", 4)]))
def test_the_probability_is_that_of_a_laplace_distribution(seed, rule):
    """Counted over draws of p1's centre."""
    rng, most = np.random.default_rng(seed), 40
    # A rank is a distance only where p1's centre is far from the least and the largest token.
    mu = rng.uniform(-3, most + 3) if rule[0] == "distance" else rng.uniform(15, 25)
    slope = rng.uniform(0.05 if rule[0] == "distance" else 0.5, 3)
    token = np.clip(np.ceil(mu - 0.5), 0, most)
    chance = passing(Confidence(0.2, 0.9), np.array([mu]), np.array([slope]), np.array([token]),
                     reach(rule), most)[0]
    centre = mu + rng.laplace(scale=1 / math.exp(0.2 + 0.9 * math.log(slope)), size=40000)
    kind, bound = rule
    if kind == "distance":
        passed = np.abs(np.clip(np.rint(centre), 0, most) - token) <= bound
    else:  # fewer than `bound` tokens are nearer to p1's centre
        passed = (np.abs(np.arange(most + 1) - centre[:, None])
                  < np.abs(token - centre)[:, None]).sum(1) < bound
    assert chance == pytest.approx(passed.mean(), abs=0.015)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0, 2), st.floats(0, 1))
def test_the_best_width_has_the_largest_surplus(passed, rate, slope):
    survival = np.cumprod([1.0, *passed])
    costs = 1 + slope * np.arange(len(survival) + 2)
    surplus = np.cumsum(survival) - rate * costs[: len(survival)]
    chosen = best_width(survival.tolist(), costs.tolist(), rate)
    assert surplus[chosen - 1] == pytest.approx(surplus.max())


@pytest.mark.parametrize("values", [
    {"offset": math.nan, "exponent": 1}, {"offset": math.inf, "exponent": 1},
    {"offset": 1, "exponent": 9}, {"offset": "1", "exponent": 1}, {"offset": 1},
    {"offset": 1, "exponent": 1, "more": 1}, [1, 1], 3, {"offset": True, "exponent": 1},
])
def test_damaged_coefficients_are_refused(values, tmp_path):
    with pytest.raises(ConfigError):
        Confidence.from_dict(values)
    save_checkpoint(random_model(SMALL), tmp_path / "c", {CONFIDENCE: values})
    with pytest.raises(CheckpointError, match="damaged"):  # JSON itself has no NaN
        _ = read_checkpoint(tmp_path / "c").confidence


@pytest.mark.parametrize(("options", "kind"), [
    (WAYS["exact"], ConfidentBlockSize), (WAYS["distance"], ConfidentBlockSize),
    (WAYS["top-k"], ConfidentBlockSize), ("unruled", int), (DecodeConfig(temperature=1.0), int),
])
def test_other_criteria_and_samples_have_the_size_that_costs_make_the_fastest(options, kind,
                                                                              monkeypatch):
    monkeypatch.setitem(CRITERIA, "unruled", Unruled)
    options = DecodeConfig(accept=options) if isinstance(options, str) else options
    model = StepModel(random_model(ORDINAL["base aids"], dtype=torch.float32))
    model.costs = CostRecord({"1": StepCosts(tuple(COSTS["rising"]), 1.0)})
    sizes, without = BlockSizes(engine_of(model)), BlockSizes(engine_of(model))
    source, options = random_tokens(SMALL, 1)[0].numpy(), replace(options, adaptive=True)
    sizes.confidence = Confidence(1, 1)
    assert isinstance(sizes.get(options, source), kind)
    assert without.get(options, source) == 4  # 2.95 tokens in 1.9; 3.36 in 2.2 are fewer per second


@pytest.mark.parametrize("kind", [StepModel, pytest.param(on_native, marks=compiled)])
def test_rows_that_are_refilled_have_the_tokens_that_they_have_alone(kind):
    model, sizes = kind(random_model(ORDINAL["sequential heads"], dtype=torch.float32)), confident()
    source = random_tokens(SMALL, 7)[0]
    finished, _ = refilled(model, source, DecodeConfig(), 3, adaptive=lambda *_: sizes)
    greedy = decode(model, source, DecodeConfig(block_size=1)).tokens
    if kind is on_native:  # torch's kernels differ between batches
        assert all(one.tokens.tolist() == greedy[one.item.tag].tolist() for one in finished)


@pytest.mark.parametrize("number", [0, pytest.param(1, marks=compiled)], ids=["Python", "compiled"])
def test_the_rows_that_are_kept_go_on_with_the_rate_of_all(number):
    """The expected tokens and seconds of the latest iterations, also without the row that they were
    read from."""
    model, source = list(engines("sequential heads"))[number], random_tokens(SMALL, 2)[0]
    sizes, algorithm = confident(), algorithm_of(model, DecodeConfig())
    loop = Loop(algorithm.start(source.numpy(), HEADS, None, sizes))
    assert loop.decoder.compiled == bool(number)

    def rate():
        decoder = loop.decoder
        return (decoder.rows["rate"] if number else decoder.plain.block_costs.rate).copy()

    for _ in range(5):
        loop.run(1)
    before = rate()
    assert before[1, 1] != sizes.first[1]
    loop.keep(np.array([1]))
    assert (rate() == before[1:]).all()
    assert (before[0] == before[1]).all()


def test_heads_that_are_not_ordinal_have_the_largest_block():
    model = StepModel(random_model(VARIANTS["plain"], dtype=torch.float32))
    sizes = sizes_of(decode(model, random_tokens(SMALL, 1)[0], DecodeConfig(),
                            adaptive=confident()))
    assert set(sizes[0]) == {HEADS}


@settings(max_examples=8)
@given(st.integers(0, 1000), st.floats(-1, 2), st.floats(0.5, 1.5))
def test_the_fit_finds_the_coefficients_that_made_the_verdicts(seed, offset, exponent):
    rng, count = np.random.default_rng(seed), 20000
    slope, mu = np.exp(rng.normal(0, 1.5, count)), rng.uniform(20, 200, count)
    for known in (np.stack([mu, slope, np.rint(mu)]), rng.normal(0, 2, (1, count))):
        proposals = VerifiedProposals(np.zeros(count), np.zeros(count), known, 256)
        chance = proposals.chance(Confidence(offset, exponent))
        proposals = replace(proposals, accepted=rng.random(count) < chance)
        fitted = proposals.chance(fit_confidence(proposals))
        assert np.abs(fitted - chance).mean() < 0.02
        assert calibration_error(fitted, proposals.accepted) < 0.02


def test_verified_proposals_are_those_of_the_trace():
    network, source = (random_model(ORDINAL["sequential heads"], dtype=torch.float32),
                       random_tokens(SMALL, 3)[0])
    found = verified_proposals(network, source.numpy())
    expected = [[] for _ in range(3)]
    for row, trace in enumerate(decode(StepModel(network), source, DecodeConfig()).traces):
        for position, count, block in zip(trace.positions, trace.accepted, trace.proposed,
                                          strict=True):
            if position + count < SMALL.target_length:
                expected[row] += [(block[i], i < count) for i in range(1, min(count + 1, HEADS))]
    for row in range(3):
        own = found.of(found.row == row)
        assert list(zip(own.known[2], own.accepted, strict=True)) == expected[row]


def test_verified_proposals_of_text_end_with_the_end_token():
    network, count = random_model(TEXT["recurrent heads"], dtype=torch.float32), 6
    source = random_tokens(TEXT["recurrent heads"], count)[0]
    found = verified_proposals(network, source.numpy(), end_token=END)
    for row, trace in enumerate(decode(StepModel(network, END), source, DecodeConfig()).traces):
        expected = [i < kept for kept in trace.accepted[:-1] for i in range(1,
                                                                            min(kept + 1, HEADS))]
        assert found.of(found.row == row).accepted.tolist() == expected
    coefficients, report = calibrate(network, source.numpy(), end_token=END)
    assert report["offset"] == coefficients.offset
    assert 0 <= report["calibration_error"] <= 1


@pytest.mark.parametrize("kind", [StepModel, pytest.param(on_native, marks=compiled)])
def test_rows_do_not_end_while_their_cost_is_measured(kind, monkeypatch):
    seen, least, config = [], cost._least_seconds, TEXT["recurrent heads"]
    network = random_model(config, dtype=torch.float32)
    network.project.bias.data[END] = 100  # p1 chooses nothing else
    engine = engine_of(kind(network, END))

    def watched(loop, engine):
        seconds = least(loop, engine)
        seen.extend((loop.decoder.plain.state.limit if kind is StepModel
                     else loop.decoder.rows["limit"]).tolist())
        return seconds

    monkeypatch.setattr(cost, "_least_seconds", watched)
    measured_costs(engine, random_tokens(config, 3)[0].numpy(), DecodeConfig(), HEADS)
    assert set(seen) == {config.target_length}


def test_networks_with_other_heads_are_not_calibrated():
    source = random_tokens(SMALL, 2)[0].numpy()
    for config, rows in ((VARIANTS["plain"], 2), (VARIANTS["base aids"], 2),
                         (ORDINAL["base aids"], 1)):
        assert calibrate(random_model(config, dtype=torch.float32), source[:rows]) == (None, None)
