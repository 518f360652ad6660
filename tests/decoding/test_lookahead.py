"""Lookahead: greedy tokens and sequential samples, bit for bit, in fewer steps, whatever is in the
pool."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from fakes import VARIANTS, random_model, random_tokens
from hypothesis import given
from hypothesis import strategies as st
from textual import CONFIG, wordy

from decodes import decode, iterations, result_of
from superres.config import DecodeConfig
from superres.decoding import reference
from superres.decoding.proposers.lookahead.iteration import Layout
from superres.decoding.proposers.lookahead.pool import NgramPool
from superres.decoding.proposers.lookahead.proposer import LookaheadProposer
from superres.errors import ConfigError
from superres.nn.torch_model import StepModel

ROWS = 3
CAPACITY = 7
LOOKAHEAD = DecodeConfig(proposer="lookahead", window=4, block_size=3, candidates=3)
SIZES = [{"window": 1, "block_size": 2, "candidates": 1},
         {"window": 5, "block_size": 2, "candidates": 4},
         {"window": 4, "block_size": 3, "candidates": 3},
         {"window": 6, "block_size": 5, "candidates": 2}]


@cache
def small(variant):
    """Return a model and sources; of text, one that ends sentences."""
    if variant == "sentences":
        return StepModel(wordy(CONFIG, 2), end_token=1), random_tokens(CONFIG, ROWS)[0]
    return StepModel(random_model(VARIANTS[variant])), random_tokens(VARIANTS[variant], ROWS)[0]


@cache
def sequential(variant, temperature=0.0):
    model, source = small(variant)
    options = DecodeConfig(temperature=temperature, seed=3)
    decoded = (reference.decode(model, source[row : row + 1], options, key=row)
               for row in range(ROWS))
    return [reference.tokens_of(steps) for steps in decoded]


def check(decoded, expected, block_size):
    """Compare a ragged batch with the plain decoder's tokens, and its traces with its tokens."""
    for row, trace in enumerate(decoded.traces):
        assert decoded.tokens[row, : decoded.lengths[row]].tolist() == expected[row]
        assert bool((decoded.tokens[row, decoded.lengths[row] :] == 0).all())
        assert all(1 <= accepted <= block_size for accepted in trace.accepted)
        assert trace.positions == [0, *np.cumsum(trace.accepted)[:-1].tolist()]
        assert trace.sequence.tolist() == expected[row]
        assert trace.model_calls == trace.iterations + 1


def test_the_mask_of_a_step_is_that_of_the_papers_figure():
    """Figure 2b: W = 5, N = 4, G = 2. Cells are named by stage and place after the root, candidates
    by number."""
    layout = Layout(4, range(5), 2)
    names = ["0", "a1", "a2", "a3", "b1", "b2", "b3"]
    stage = {0: "orange", 1: "green", 2: "red"}
    names += [f"{stage[int(s)]} {int(s + c)}" for s, c in layout.cells.t()]
    assert len(names) == layout.tree.size == 5 * 3 + 2 * 3
    sees = {name: {names[i] for i in seen.tolist() if i >= 0}
            for name, seen in zip(names, layout.tree.ancestors, strict=True)}
    oranges = [f"orange {place}" for place in range(1, 5)]
    assert sees["red 6"] == {"red 6", "green 5", "0", *oranges}
    assert sees["red 2"] == {"red 2", "green 1", "0"}
    assert sees["green 3"] == {"green 3", "0", "orange 1", "orange 2"}
    assert sees["orange 2"] == {"orange 2", "orange 1", "0"}
    assert sees["a3"] == {"a3", "a2", "a1", "0"}
    assert sees["b1"] == {"b1", "0"}
    place = dict(zip(names, layout.tree.depth.tolist(), strict=True))
    assert all(place[name] == int(name.split()[-1].strip("ab")) for name in names)
    scored = {name for name in names[: layout.tree.scored]}
    assert scored == {"0", *names[1:7], *(f"red {place}" for place in range(2, 7))}
    assert [names[column] for column in layout.guesses] == [f"red {place}" for place in range(2, 7)]


@pytest.mark.parametrize(("variant", "sizes"), zip(["base aids", "plain", "text", "sentences"],
                                                   SIZES, strict=True))
def test_exact_equals_the_plain_greedy_decoder(variant, sizes):
    model, source = small(variant)
    check(decode(model, source, DecodeConfig(proposer="lookahead", **sizes)), sequential(variant),
          sizes["block_size"])


class Hostile(NgramPool):
    """Finds what it pleases."""

    def __init__(self, result, kind):
        self.result, self.kind, self.generator = result, kind, torch.Generator().manual_seed(0)

    def __call__(self, batch, ngram_size, device):
        super().__init__(batch, ngram_size, device)
        self.position = torch.zeros(batch, dtype=torch.int64)  # until the loop is known
        return self

    def find(self, first, most):
        shape = len(first), most, self.grams.shape[2] - 1
        tokens = torch.randint(2, 6, shape, generator=self.generator)
        place = self.position.unsqueeze(1) + 1 + torch.arange(shape[2])
        right = self.result.gather(1, place.clamp(max=self.result.shape[1] - 1))
        if self.kind != "random":
            tokens[:, -1] = right
        if self.kind == "right, then wrong":
            tokens[:, -1, -1:] = (right[:, -1:] + 1) % 6
        return tokens, torch.ones(shape[:2], dtype=torch.bool)

    def add(self, grams):
        pass


@pytest.mark.parametrize(("kind", "temperature"),
                         [("random", 0.9), ("right", 0.0), ("right, then wrong", 0.9)])
def test_exact_equals_the_plain_decoder_whatever_is_in_the_pool(kind, temperature):
    model, source = small("base aids")
    expected = sequential("base aids", temperature)
    options = replace(LOOKAHEAD, temperature=temperature, seed=3, block_size=4)
    pool = Hostile(torch.tensor(expected), kind)
    for loop in iterations(model, source, options, proposer=LookaheadProposer(pool)):
        pool.position = loop.plain.state.position
    decoded = result_of(loop)
    check(decoded, expected, 4)
    if kind == "right":
        assert all(trace.accepted == [4] * 12 for trace in decoded.traces)
    if kind == "right, then wrong":
        assert all(set(trace.accepted[:-1]) == {3} for trace in decoded.traces)


@pytest.mark.parametrize(("changes", "named"), [
    ({"window": 0}, "window must be at least 1, not 0"),
    ({"window": 129}, "window must be at most 128, not 129"),
    ({"block_size": 0}, "block-size must be at least 1, not 0"),
    ({"block_size": 30}, "block size 30 is more than the 29"),
    ({"candidates": 0}, "candidates must be at least 1, not 0"),
    ({"candidates": 2.5}, "candidates must be a whole number, not 2.5; give one from 1 to 128"),
    ({"window": 20, "block_size": 12}, "window 20 and block size 12 reach 30 tokens ahead, more "
     "than the 29"), ({"min_block": 2}, "min-block 2"),
    ({"adaptive": True}, "cannot be adaptive"),
])
def test_sizes_that_do_not_fit_are_refused_in_one_line(changes, named):
    config = replace(VARIANTS["text"], target_shape=(29,))
    with pytest.raises(ConfigError, match=named) as caught:
        decode(StepModel(random_model(config)), random_tokens(config, 1)[0],
               replace(LOOKAHEAD, **changes))
    assert "\n" not in str(caught.value)


class Listed:
    """The latest distinct n-grams of one row; what is known moves to the end and leaves its place
    empty."""

    def __init__(self):
        self.entries = [None] * CAPACITY

    def add(self, grams):
        kept = [gram if gram not in grams[number + 1 :] else None for number,
                gram in enumerate(grams)]
        self.entries = [None if entry in grams else entry for entry in self.entries]
        self.entries = (self.entries + kept)[-CAPACITY:]

    def find(self, first, most):
        return [gram[1:] for gram in self.entries[::-1] if gram is not None
                and gram[0] == first][:most]


@given(st.data(), st.integers(1, 3), st.integers(2, 4), st.integers(1, 5))
def test_the_pool_finds_the_latest_distinct_ngrams_of_each_row(data, rows, size, most):
    pool, plain = (NgramPool(rows, size, torch.device("cpu"), CAPACITY),
                   [Listed() for _ in range(rows)])
    for _ in range(data.draw(st.integers(1, 6))):
        count = data.draw(st.integers(1, CAPACITY))
        values = st.lists(st.integers(0, 2), min_size=rows * count * size,
                          max_size=rows * count * size)
        grams = torch.tensor(data.draw(values)).view(rows, count, size)
        pool.add(grams)
        for row in range(rows):
            plain[row].add([tuple(gram) for gram in grams[row].tolist()])
        if data.draw(st.booleans()):
            row = data.draw(st.integers(0, rows - 1))
            pool.clear(torch.tensor([row]))
            plain[row].entries = [None] * CAPACITY
        for first in range(3):
            tokens, known = pool.find(torch.full((rows,), first), most)
            for row in range(rows):
                found = [tuple(gram) for gram in tokens[row][known[row]].tolist()]
                assert found == plain[row].find(first, most)
                assert bool((tokens[row][~known[row]] == 0).all())
