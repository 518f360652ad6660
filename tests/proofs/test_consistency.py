"""Pictures that are decoded within limits reduce to exactly their input, whatever is proposed,
accepted or sampled."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import (
    SMALL,
    VARIANTS,
    Waiting,
    criterion_options,
    draft_of,
    drafted,
    limits_of,
    proposer_for,
    random_model,
    random_tokens,
    stacked,
)
from PIL import Image

from decodes import algorithm_of, decode
from superres.config import LARGEST_TEMPERATURE, DecodeConfig
from superres.decoding import reference
from superres.decoding.acceptance import CRITERIA
from superres.decoding.batching import Stream, feed_of
from superres.decoding.limits import Limits
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.proposers import PROPOSERS
from superres.nn.torch_model import StepModel
from superres.tasks.consistency import cell_limits
from superres.tasks.faces import FaceTask, area_reduce, encode
from superres.testing import chi_square_of_two

FACES = cell_limits((8, 8, 3), (32, 32, 3))
EARLIER, LOW, HIGH = FACES.earlier, FACES.low, FACES.high
HEADS = replace(VARIANTS["sequential heads"], free_scores=False)
LARGER = replace(HEADS, target_shape=(4, 8, 3), source_shape=(1, 2, 3), vocabulary=9)
NETWORKS = {"sequential heads": HEADS, "cells of 16": LARGER, "base": SMALL,
            "plain": VARIANTS["plain"]}

SAMPLED = {
    "Gumbel": DecodeConfig(temperature=0.8, seed=3),
    "uniform": DecodeConfig(temperature=LARGEST_TEMPERATURE),
    "colours": DecodeConfig(temperature=(0.9, 0.5, 0.7)),
    "top-k and nucleus": DecodeConfig(temperature=0.8, sample_top_k=2, nucleus=0.5),
    "speculative": DecodeConfig(temperature=0.8, sampling="speculative", seed=2),
    "speculative, filters": DecodeConfig(temperature=0.8, sampling="speculative", sample_top_k=3,
                                         nucleus=0.8), "minimum block": DecodeConfig(min_block=3),
    "k = 3": DecodeConfig(3),
}


def test_the_sums_of_every_intensity_are_those_that_reduce_to_it():
    whole, rest = np.divmod(np.arange(16 * 255 + 1), 16)
    cells = (whole[:, None] + (np.arange(16) < rest[:, None])).astype(np.uint8)  # [sums, 16]
    values = area_reduce(cells.reshape(-1, 4, 4, 1), 1, 1, is_reduced=True).ravel()
    assert (LOW[values] <= cells.sum(1)).all()
    assert (cells.sum(1) <= HIGH[values]).all()
    assert (LOW[1:] == HIGH[:-1] + 1).all()


@pytest.mark.parametrize("kind", ["any", "black", "white", "two"])
def test_a_picture_of_any_choices_within_the_bounds_reduces_to_its_source(kind, rng):
    source = {"any": rng.integers(0, 256, (1, 8, 8, 3)), "black": np.zeros((1, 8, 8, 3)),
              "white": np.full((1, 8, 8, 3), 255), "two": rng.integers(0, 2, (1, 8, 8, 3))
              * 255}[kind].astype(np.uint8)
    low, high = Limits.of(FACES).bounds(encode(source))[0].tolist()
    tokens, drawn = np.zeros(3072, np.int64), rng.random(3072)
    for place in range(3072):
        known = sum(tokens[other] for other in EARLIER[place] if other >= 0)
        least, most = max(low[place] - known, 0), min(high[place] - known, 255)
        # often an extreme one
        tokens[place] = least + round((most - least) * np.clip(2 * drawn[place] - 0.5, 0, 1))
    picture = FaceTask(8, 32).decode(tokens[None])
    assert (area_reduce(picture, 8, 8, is_reduced=True) == source).all()
    assert (np.asarray(Image.fromarray(picture[0]).reduce(4)) == source).all()


def limited(config, kind=StepModel):
    return LimitedModel(kind(random_model(config)), limits_of(config))


def proposer_of(name, model):
    if name == "draft":
        return drafted(draft_of(model.model), model.limits.limits)
    return proposer_for(name, model.model)


def assert_consistent(tokens, source, config):
    """Check that targets [B, T] reduce to their sources [B, S]."""
    rows, columns, channels = config.source_shape
    height, width = config.target_shape[0] // rows, config.target_shape[1] // columns
    size = height * width
    means = ((tokens.view(-1, rows, height, columns, width, channels).sum((2, 4)) + size // 2)
             // size)
    assert torch.equal(means.flatten(1), source)


@pytest.mark.parametrize("name", CRITERIA)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_criterion_and_proposer_keeps_to_the_limits(name, proposer):
    model, source = limited(LARGER), random_tokens(LARGER, 3)[0]
    options = criterion_options(name, proposer=proposer)
    decoded = decode(model, source, options, proposer=proposer_of(proposer, model))
    assert_consistent(decoded.tokens, source, LARGER)
    if name == "exact":
        assert torch.equal(decoded.tokens, decode(model, source, DecodeConfig(1)).tokens)


@pytest.mark.parametrize("way", SAMPLED)
def test_every_way_of_sampling_keeps_to_the_limits(way):
    model, source = limited(SMALL), random_tokens(SMALL, 3)[0]
    for proposer in ("heads", "draft", "lookahead"):
        options = replace(SAMPLED[way], proposer=proposer)
        if proposer != "lookahead" or options.min_block == 1:
            decoded = decode(model, source, options, proposer=proposer_of(proposer, model))
            assert_consistent(decoded.tokens, source, SMALL)


@pytest.mark.parametrize("way", ["greedy", "colours", "top-k and nucleus"])
@pytest.mark.parametrize("network", NETWORKS)
def test_exact_blocks_are_the_tokens_of_the_reference(network, way):
    config, options = NETWORKS[network], SAMPLED.get(way, DecodeConfig())
    model, source = limited(config), random_tokens(config, 2)[0]
    decoded = decode(model, source, options)
    steps = reference.decode(model, source[1:], options, key=1)
    assert decoded.tokens[1].tolist() == reference.tokens_of(steps)
    assert not torch.equal(decoded.tokens, decode(model.model, source, options).tokens)


def test_refilled_rows_and_changing_block_sizes_give_the_same_tokens():
    model, source = limited(LARGER), random_tokens(LARGER, 5)[0]
    wanted = decode(model, source, DecodeConfig()).tokens
    assert_consistent(wanted, source, LARGER)
    feed = feed_of([Waiting(one, key, key) for key, one in enumerate(source)])
    stream = Stream(algorithm_of(model, DecodeConfig()), feed, stacked, 2)
    finished = [one for some in stream.run() for one in some]
    assert len(finished) == 5
    for one in finished:
        assert one.tokens.tolist() == wanted[one.item.tag].tolist()
    narrow = decode(model, source, DecodeConfig(), adaptive=3)
    assert torch.equal(narrow.tokens, wanted)


def test_heads_propose_within_the_limits():
    model, source = limited(LARGER), random_tokens(LARGER, 4)[0]
    low, high = model.limits.bounds(source).unbind(1)  # [B, T + 1]
    decoded = decode(model, source, DecodeConfig())
    for row, trace in enumerate(decoded.traces):
        for position, proposed in zip(trace.positions, trace.proposed.tolist(), strict=True):
            tokens = decoded.tokens[row].tolist()[:position] + proposed
            for place in range(max(position, 0), min(len(tokens), LARGER.target_length)):
                known = sum(tokens[other] for other in model.limits.earlier[place].tolist()
                            if other >= 0)
                assert low[row, place] <= tokens[place] + known <= high[row, place]


def test_speculative_samples_have_the_limited_distribution():
    config = replace(HEADS, source_shape=(1, 1, 3), target_shape=(2, 2, 3), vocabulary=4)
    model, source = limited(config), torch.tensor([[1, 2, 3]])
    several, seen = source.expand(4000, -1), []
    for options in (DecodeConfig(temperature=1.0, sampling="speculative"),
                    DecodeConfig(1, temperature=1.0, seed=9)):
        seen.append(decode(model, several, options).tokens)
        assert_consistent(seen[-1], several, config)
    for place in range(config.target_length - 3):  # and its neighbour of the same colour
        pairs = [tokens[:, [place, place + 3]] for tokens in seen]
        assert chi_square_of_two(*pairs).p > 1e-4
