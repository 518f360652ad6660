"""The check of losslessness finds every planted fault by the right row, and passes right
decoders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from superres.errors import ConfigError, InvalidInputError
from superres.testing import (
    AS_UNDRAFTED,
    BESIDE,
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
    "greedy depends on seed": GREEDY, "no seed": {SAME_SEED}, "empty prompt": {"lengths"},
}
"""The checks that each fault fails."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_by_its_own_checks(fault):
    report = check(fault)
    assert failed(report) == FAULTS[fault]
    assert not report.ok


@pytest.mark.parametrize("fault", ["no residual", "greedy drafts"])
def test_samples_without_drafts_find_a_wrong_sampler_too(fault):
    assert failed(check(fault, p1=None, block_sizes=(5,))) == {"distribution"}


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
    assert f"position {place}: wanted {wanted[place]}, got {got[place]} (block_size 2" in str(report)
