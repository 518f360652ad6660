"""The check of losslessness finds every planted fault by the right row, and passes right
decoders."""

from __future__ import annotations

import doctest
import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fakes import PLAIN, SMALL, on_native, random_model, random_tokens
from scipy.stats import chisquare, kstest

import superres.testing
from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.plain.sampling import filtered
from superres.errors import ConfigError, InvalidInputError
from superres.native import build
from superres.nn.torch_model import StepModel
from superres.testing import (
    AS_UNDRAFTED,
    BESIDE,
    DIFFERS,
    FAILED,
    NOT_SUPPORTED,
    NOT_TESTED,
    PASSED,
    SAME_SEED,
    check_lossless,
    chi_square,
    chi_square_of_two,
    prefix_probabilities,
)

VOCABULARY, END, PROMPTS = 5, 4, [0, 1, 2, 3, 1]
SCORES = np.random.default_rng(30).normal(size=(6, VOCABULARY, VOCABULARY))
"""Of a token, by its position modulo 6 and the token before it; a prompt is a first token."""
DRAFTED = SCORES + 0.7 * np.random.default_rng(130).normal(size=SCORES.shape)


def chances(scores, row, temperature):
    """Return the probabilities [V] of the token after `row`."""
    scores = scores[len(row) % 6, row[-1]]
    if temperature == 0:
        return np.eye(VOCABULARY)[scores.argmax()]
    weights = np.exp(scores / temperature)
    return weights / weights.sum()


def draw(weights, number):
    return int(np.searchsorted(weights.cumsum(), number * weights.sum(), side="right"))


@dataclass
class Drafting:
    """Speculative sampling of a Markov chain, which another one drafts, with a fault."""

    fault: str = ""

    def __call__(self, prompts, *, block_size, seed, temperature, length):
        if self.fault == "no batches" and len(prompts) > 1 < block_size:
            raise NotImplementedError("one prompt at a time")
        if self.fault == "no draft raises" and length == 1 < block_size:
            raise IndexError("no draft")
        if self.fault == "greedy depends on seed" and temperature == 0:
            temperature = 0.3
        numbers = [np.random.default_rng([seed, place] if self.fault != "no seed" else None)
                   for place in range(len(prompts))]
        rows, open_rows = [[prompt] for prompt in prompts], list(range(len(prompts)))
        while open_rows:
            drafts = {row: block_size - 1 if self.fault == "too long"
                      else min(block_size - 1, length - len(rows[row])) for row in open_rows}
            steps = {row: self.step(rows[row], drafts[row], numbers[row], temperature)
                     for row in open_rows}
            most = max(accepted for _, accepted, _ in steps.values())
            for row, (proposed, accepted, last) in steps.items():
                if self.fault == "the batch's acceptance":
                    accepted = min(most, len(proposed))
                block = [*proposed[:accepted], last]
                if END in block and self.fault != "end within a block":
                    block = block[:block.index(END) + 1]
                rows[row] += block
            open_rows = [row for row in open_rows
                         if len(rows[row]) <= length and rows[row][-1] != END]
        return [row[1:] for row in rows]

    def step(self, row, count, numbers, temperature):
        """Return proposals, how many of them are accepted, and the token after those."""
        fault, drafted = self.fault, [*row]
        for _ in range(count):
            q = chances(DRAFTED, drafted, temperature)
            drafted.append(int(q.argmax()) if fault == "greedy drafts" else draw(q,
                                                                                 numbers.random()))
        for place, token in enumerate(drafted[len(row):]):
            p, q = (chances(scores, drafted[:len(row) + place], temperature)
                    for scores in (SCORES, DRAFTED))
            number = numbers.random()
            if number * q[token] >= p[token]:
                rest = p if fault == "no residual" else np.maximum(p - q, 0)
                again = number if fault == "one number for both" else numbers.random()
                return drafted[len(row):], place + (fault == "one too many"), draw(rest, again)
        last = chances(DRAFTED if fault == "last token drafted" and count else SCORES, drafted,
                       temperature)
        return drafted[len(row):], count, draw(last, numbers.random())


def p1(prompt, prefixes):
    return [chances(SCORES, (prompt, *prefix), 1.0) for prefix in prefixes]


def check(fault="", **changes):
    return check_lossless(Drafting(fault), PROMPTS, **{
        "length": 12, "end_token": END, "block_sizes": (2, 5), "p1": p1, "samples": 2000,
        **changes})


def found(report):
    """Return what did not pass, by kind of check."""
    return {row.name.partition(",")[0]: row.status for row in report.rows if row.status != PASSED}


def failed(report):
    return {name for name, status in found(report).items() if status == FAILED}


@pytest.mark.slow
@pytest.mark.parametrize("compared", [p1, None], ids=["p1", "samples"])
def test_a_right_decoder_passes(compared):
    report = check(p1=compared)
    # The noise of speculative sampling depends on what is accepted.
    assert found(report) == {AS_UNDRAFTED: DIFFERS}
    assert report.ok
    assert failed(check(promised=[AS_UNDRAFTED], samples=1)) == {AS_UNDRAFTED}


GREEDY = {"block sizes", "batches", "neighbours", "seeds", "lengths"}
FAULTS = {
    "no residual": {"distribution"}, "one number for both": {"distribution"},
    "greedy drafts": {"distribution"}, "last token drafted": {*GREEDY, "distribution"},
    "one too many": {*GREEDY, "distribution"}, "end within a block": {"end tokens"},
    "too long": {"largest length"}, "the batch's acceptance": {"batches", "neighbours"},
    "greedy depends on seed": GREEDY, "no seed": {SAME_SEED},
    "no draft raises": {"lengths"},
}
"""The checks that each fault fails."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_its_own_checks(fault):
    report = check(fault)
    assert failed(report) == FAULTS[fault]
    assert not report.ok


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["no residual", "greedy drafts"])
def test_samples_without_drafts_find_a_wrong_sampler_too(fault):
    assert failed(check(fault, p1=None, block_sizes=(5,), samples=5000)) == {"distribution"}


def test_the_first_token_that_differs_is_told():
    report = check("one too many", samples=0)
    difference = report["block sizes"].found
    assert difference.settings == {"block_size": 2, "seed": 0, "temperature": 0.0, "length": 12,
                                   "prompts": [difference.prompt]}
    decode, place = Drafting("one too many"), difference.position
    wanted, got = (decode([PROMPTS[difference.prompt]], block_size=size, seed=0, temperature=0,
                          length=12)[0] for size in (1, 2))
    assert wanted[:place] == got[:place]
    assert (wanted[place], got[place]) == (difference.wanted, difference.got)
    assert (f"position {place}: wanted {wanted[place]}, got {got[place]} (block_size "
            "2" in str(report))


# What is not supported, and what is not tested


def test_what_a_decoder_does_not_have_is_no_failure():
    report = check("no batches", samples=0)
    assert found(report) == {"batches": NOT_SUPPORTED, "neighbours": NOT_SUPPORTED}
    assert "one prompt at a time" in report["batches"].text
    assert report.ok


def test_a_decoder_that_raises_fails():
    report = check("no draft raises", samples=0)
    assert failed(report) == {"lengths"}
    assert "raised IndexError: no draft" in report["lengths"].text


def test_checks_without_a_case_say_what_they_need():
    report = check_lossless(Drafting(), [0], length=12, samples=20, p1=p1, seeds=(), lengths=())
    assert {name for name, status in found(report).items() if status == NOT_TESTED} == {
        "batches", "neighbours", "seeds", "lengths", BESIDE, "end tokens"}
    few = check(samples=4)
    assert few["distribution"].text == "needs more samples, or fewer possible sequences"

@pytest.mark.parametrize(("changes", "message"), [
    ({"length": 0}, "a length of 1"), ({"block_sizes": (1, 2)}, r"above 1, not \(1, 2\)"),
    ({"promised": ["a sample"]}, "promised must be of 'sampling repeats', .* not .'a sample'"),
])
def test_arguments_out_of_their_range_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        check(**changes)


# superres itself


@pytest.mark.slow
def test_the_example_in_the_documentation_works():
    assert doctest.testmod(superres.testing) == (0, 7)


COMPILED = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


@functools.cache
def network(length, dtype=torch.float32):
    """Return a network for `length` tokens, whose weights do not depend on it."""
    config = replace(SMALL, **PLAIN, width=32, filter_size=64, head_filter_size=32,
                     vocabulary=VOCABULARY, source_shape=(7,), target_shape=(length,))
    return random_model(config, seed=1, dtype=dtype)


@functools.cache
def engine(name, length):
    own = network(length)
    return StepModel(own, END) if name == "plain" else on_native(own, END)


def superres_decoder(name, **settings):
    """Return superres as a decoder to check."""
    def run(prompts, *, block_size, seed, temperature, length):
        sampled = {"temperature": temperature, **settings} if temperature else {}
        found = decode(engine(name, length), torch.stack(prompts),
                       DecodeConfig(min(block_size, length), seed=seed, **sampled))
        return [row[:count] for row, count in zip(found.tokens, found.lengths, strict=True)]
    return run


def next_probabilities(prompt, prefixes, top_k=None):
    """Return p1's probabilities [N, V] after prefixes, without a cache."""
    model = StepModel(network(3))
    target = torch.zeros(len(prefixes), 3, dtype=torch.int64)
    target[:, :len(prefixes[0])] = torch.tensor(prefixes, dtype=torch.int64)
    position = torch.full((len(prefixes),), len(prefixes[0]))
    scores = model.uncached_scores(prompt.expand(len(prefixes), -1), target, position)[:, 0]
    return filtered(scores, top_k, 1.0).softmax(-1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", pytest.param("native", marks=COMPILED)])
@pytest.mark.parametrize("sampling", ["coupled", "speculative"])
def test_superres_is_lossless(name, sampling):
    report = check_lossless(
        superres_decoder(name, sampling=sampling, sample_top_k=3),
        [*random_tokens(network(9).config, 4)[0]], length=9, end_token=END, block_sizes=(2, 5),
        p1=functools.partial(next_probabilities, top_k=3), batch=500,
        promised=[SAME_SEED, BESIDE, *([AS_UNDRAFTED] if sampling == "coupled" else [])])
    assert found(report) == ({} if sampling == "coupled" else {AS_UNDRAFTED: DIFFERS}), report


# Chi-square


@pytest.mark.slow
def test_chi_square_has_its_distribution_with_rare_sequences_and_impossible_ones():
    numbers = np.random.default_rng(0)
    weights = numbers.dirichlet(np.full(64, 0.3)).reshape(4, 4, 4)
    weights[0, 0] = 0
    weights /= weights.sum()

    def samples(count):
        drawn = numbers.choice(64, count, p=weights.ravel())
        return np.stack(np.unravel_index(drawn, weights.shape), 1)

    assert kstest([chi_square(samples(1000), weights).p for _ in range(400)],
                  "uniform").pvalue > 0.01
    assert kstest([chi_square_of_two(samples(800), samples(1500)).p for _ in range(400)],
                  "uniform").pvalue > 0.01
    wrong = [*map(tuple, samples(1000).tolist()), (0, 0, 3)]
    assert chi_square(wrong, weights)[1:] == (0, 0.0, "(0, 0, 3) occurred 1 times and cannot")


def test_chi_square_is_that_of_scipy_where_no_sequence_is_rare():
    counts, expected = np.array([50, 60, 40, 50]), np.array([0.2, 0.3, 0.3, 0.2])
    found = chi_square({(token,): count for token, count in enumerate(counts)}, expected)
    assert (found.statistic, found.p) == pytest.approx(chisquare(counts, expected * 200))
    assert found.worst == "(2,) occurred 40 times of 60.0 expected"


def test_prefixes_are_enumerated_up_to_their_end_with_one_call_per_position():
    calls = []

    def halves(prefixes):
        calls.append(prefixes)
        return [[0, 0.5, 0.5]] * len(prefixes)

    assert prefix_probabilities(halves, 2, end_token=2) == {(2,): 0.5, (1, 1): 0.25, (1, 2): 0.25}
    assert calls == [[()], [(1,)]]
    assert prefix_probabilities(lambda prefixes: [[0, 1.0]] * len(prefixes), 9, 1) == {(1,): 1.0}


@pytest.mark.parametrize(("row", "message"), [
    ([0.5, 0.4], r"p1 after \(\) adds up to 0.9, not to 1"), ([1.5, -0.5], "after temperature"),
    ([float("nan"), 1], "adds up to nan"), (np.full(2000, 1 / 2000), "4,000,000 sequences, more"),
])
def test_what_is_no_distribution_is_refused(row, message):
    with pytest.raises(InvalidInputError, match=message):
        prefix_probabilities(lambda prefixes: [row] * len(prefixes), 2)
    with pytest.raises(InvalidInputError, match=r"add up to 0\.5, not"):
        chi_square([(0,)], {(0,): 0.5})
