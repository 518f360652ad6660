"""Lookahead: greedy tokens and sequential samples, bit for bit, in fewer steps, whatever is in the pool."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from fakes import SMALL, VARIANTS, criterion_options, random_model, random_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from textual import CONFIG, wordy

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.blockwise import BlockwiseLoop, check_options, decode, iterations
from superres.decoding.lookahead import Layout, LookaheadLoop
from superres.decoding.pool import NgramPool
from superres.decoding.reference import sequential_reference
from superres.decoding.trace import mean_accepted_block_size
from superres.errors import ConfigError
from superres.nn.step import StepModel

ROWS = 3
LOOKAHEAD = DecodeConfig(proposer="lookahead", window=4, ngram_size=3, candidates=3)
SIZES = [{"window": 1, "ngram_size": 2, "candidates": 1}, {"window": 5, "ngram_size": 2, "candidates": 4},
         {"window": 4, "ngram_size": 3, "candidates": 3}, {"window": 6, "ngram_size": 5, "candidates": 2}]


@cache
def small(variant, dtype=torch.float64):
    """Return a model and sources; of text, one that ends sentences."""
    if variant == "sentences":
        return StepModel(wordy(CONFIG, dtype=dtype), end_token=1), random_tokens(CONFIG, ROWS)[0]
    config = VARIANTS[variant]
    return StepModel(random_model(config, dtype=dtype)), random_tokens(config, ROWS)[0]


@cache
def sequential(variant, temperature=0.0):
    model, source = small(variant)
    options = DecodeConfig(temperature=temperature, seed=3)
    return [sequential_reference(model, source[row : row + 1], options, row) for row in range(ROWS)]


def check(decoded, expected, block_size):
    """Compare a ragged batch with the plain decoder's tokens, and its traces with its tokens."""
    for row, trace in enumerate(decoded.traces):
        assert decoded.tokens[row, : decoded.lengths[row]].tolist() == expected[row]
        assert bool((decoded.tokens[row, decoded.lengths[row] :] == 0).all())
        assert all(1 <= accepted <= block_size for accepted in trace.accepted)
        assert trace.positions == [0, *np.cumsum(trace.accepted)[:-1].tolist()]
        kept = [p[:a] for p, a in zip(trace.proposed, trace.accepted, strict=True)]
        assert np.concatenate(kept).tolist() == expected[row]
        assert trace.model_calls == trace.iterations + 1


# Where the columns stand


def test_the_mask_of_a_step_is_that_of_the_papers_figure():
    """Figure 2b: W = 5, N = 4, G = 2. Cells are named by stage and place after the root, candidates by number."""
    layout = Layout(4, range(5), 2)
    names = ["0", "a1", "a2", "a3", "b1", "b2", "b3"]
    stage = {0: "orange", 1: "green", 2: "red"}
    names += [f"{stage[int(s)]} {int(s + c)}" for s, c in layout.cells.t()]
    assert len(names) == layout.tree.size == 5 * 3 + 2 * 3
    sees = {name: {names[i] for i in seen.nonzero().flatten()} for name, seen in zip(names, layout.tree.visible, strict=True)}
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


# Exact acceptance on real networks


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes.values())))
@pytest.mark.parametrize("variant", ["base aids", "plain", "text", "sentences"])
def test_exact_equals_the_plain_greedy_decoder(variant, sizes):
    model, source = small(variant)
    check(decode(model, source, DecodeConfig(proposer="lookahead", **sizes)), sequential(variant), sizes["ngram_size"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_exact_equals_the_plain_greedy_decoder_for_every_network(variant):
    model, source = small(variant)
    check(decode(model, source, LOOKAHEAD), sequential(variant), 3)
