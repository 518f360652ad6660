"""Drafts to the right and below: the distributions of their samples, and what they are worth."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from fakes import SMALL, TINY, random_model
from PIL import Image

import below_heads
import right_and_below
import spatial_heads
import ssd
from decodes import decode, iterations, result_of
from rule import all_rules
from superres.checkpoint import find_checkpoint, load_checkpoint, save_checkpoint
from superres.config import DecodeConfig
from superres.decoding.plain.sampling import filtered
from superres.nn.torch_model import StepModel
from superres.tasks.face_data import FacePairs, write_npz
from superres.tasks.faces import FaceTask, encode
from superres.testing import chi_square
from tests.pipeline.helpers import FACE
from tests.proofs.test_speculative import ALPHA

pytestmark = pytest.mark.slow
CONFIG = replace(SMALL, source_shape=(1, 1, 3), target_shape=(2, 2, 3), head_layer="sequential")
"""Two rows of six tokens, so that all of a picture's can be worked out."""
ROWS, ROW = 5_000, 6
PROPOSERS = ["right-and-below", "below"]
SETTINGS = {"blocks of 4": {"block_size": 4}, "blocks of 9": {"block_size": 9, "temperature": 1.4},
            "the picture": {"block_size": 12, "nucleus": 0.8, "seed": 1}}


@cache
def network():
    return StepModel(random_model(CONFIG, dtype=torch.float32))


@pytest.fixture(autouse=True)
def heads(monkeypatch):
    """Let the rules load a head with random weights."""
    torch.manual_seed(1)
    with monkeypatch.context() as small:
        small.setattr(spatial_heads, "SIZE", 16)
        head = spatial_heads.BelowHead(CONFIG).eval().requires_grad_(False)
    for weight in head.parameters():
        weight.add_(0.1 * torch.randn_like(weight))
    for module in (right_and_below, ssd):
        monkeypatch.setattr(module, "load_head", lambda config: head)
    return head


def options_of(**changes):
    return DecodeConfig(**{"temperature": 1.0, "sampling": "speculative", "sample_top_k": 2,
                           **changes})


def chances(tokens, options):
    """Return p1's probabilities [N, T, V] of tokens [N, T], as they are sampled."""
    source = torch.zeros(len(tokens), 3, dtype=torch.int64)
    scores = network().model.scores(network().model(source, tokens)) / options.temperature
    return filtered(scores, options.sample_top_k, options.nucleus).softmax(-1)


def p_of(tokens, options):
    """Return the p of chi-square for the second rows of pictures [N, T]: for whether each token
    is p1's likeliest."""
    first = (chances(tokens, options).argmax(-1) == tokens).long()  # [N, T]
    expected = torch.zeros(2**CONFIG.target_length, dtype=torch.float64)
    grown = torch.zeros(1, CONFIG.target_length, dtype=torch.int64)
    weights, number = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    for place in range(CONFIG.target_length):
        p, order = chances(grown, options)[:, place].sort(descending=True, stable=True)
        grown = grown.repeat(2, 1)
        grown[:, place] = torch.cat([order[:, 1], order[:, 0]])
        weights = weights.repeat(2) * torch.cat([p[:, 1], p[:, 0]])
        number = torch.cat([2 * number, 2 * number + 1])
    expected[number] = weights
    second = expected.view(2**ROW, -1).sum(0).view([2] * ROW)
    return chi_square(first[:, ROW:], second).p


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_drafts_of_two_directions_are_lossless(proposer, settings):
    options = options_of(proposer=proposer, **settings)
    decoded = decode(network(), torch.zeros(ROWS, 3, dtype=torch.int64), options)
    assert p_of(decoded.tokens, options) > ALPHA
    assert len({count for trace in decoded.traces for count in trace.accepted}) > 2


class OfOther(right_and_below.InOrder):
    """Draws from one head, and records the distribution of the other."""

    def __call__(self, scores, offsets):
        tokens = super().__call__(scores, offsets)
        if scores is not None:
            self.context.sampler.put(tokens, self.context.sampler.distribution(scores, offsets),
                                     offsets)
        return tokens


def test_the_distribution_of_another_head_shows(monkeypatch):
    monkeypatch.setattr(right_and_below, "InOrder", OfOther)
    options = options_of(proposer="below", block_size=4)
    decoded = decode(network(), torch.zeros(ROWS, 3, dtype=torch.int64), options)
    assert p_of(decoded.tokens, options) < ALPHA**2


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_greedy_decoding_has_its_own_tokens(proposer):
    source = torch.randint(6, (7, 3), generator=torch.Generator().manual_seed(2))
    plain = decode(network(), source, DecodeConfig(block_size=1)).tokens
    for block_size in (2, 5, 9, 12):
        options = DecodeConfig(proposer=proposer, block_size=block_size)
        assert torch.equal(decode(network(), source, options).tokens, plain)
        assert torch.equal(decode(network(), source[3:5], options).tokens, plain[3:5])


# The paper's schedule

def drawn(rounds, **changes):
    options = options_of(**changes)
    source, keys = torch.zeros(ROWS, 3, dtype=torch.int64), torch.arange(ROWS)
    return ssd.decode(network(), source, options, keys, rounds), options


def test_rows_verified_once_are_no_samples_of_the_network():
    assert p_of(*(part.tokens if number == 0 else part
                 for number, part in enumerate(drawn(1)))) < ALPHA**2


def test_rows_are_samples_once_every_token_was_judged_after_its_final_context():
    decoded, options = drawn(ROW)
    assert p_of(decoded.tokens, options) > ALPHA


@pytest.mark.parametrize("rounds", [0, 2])
def test_a_row_takes_its_rounds_and_one_more_call(rounds):
    decoded, _ = drawn(rounds)
    firsts, calls = 2, rounds + 1  # the first row of six tokens is drafted by five heads
    trace = decoded.traces[3]
    assert trace.accepted == [*([0] * rounds), 5, *([0] * rounds), 1, *([0] * rounds), 6]
    assert trace.iterations == (firsts + 1) * calls
    assert np.array_equal(trace.sequence, decoded.tokens[3])


def test_rules_are_listed():
    rules = all_rules()
    assert {rules[f"SSD, {rounds}"].claims
            for rounds in ("0 rounds", "1 round", "2 rounds")} == {"none"}
    assert {rules[name].claims for name in ("right and below, 16", "below")} == {"lossless"}


# What the drafts are worth, on a real network

@cache
def faces():
    network = load_checkpoint(find_checkpoint("celeba-8to32")).requires_grad_(False)
    return StepModel(network), torch.from_numpy(encode(np.asarray(Image.open(FACE))[None]))


def accepted(**settings):
    """Return the numbers of tokens that the steps of the first four rows accept."""
    options = DecodeConfig(temperature=0.9, nucleus=0.9, sampling="speculative", **settings)
    for loop in iterations(*faces(), options):
        if loop.decoder.positions()[0] >= 4 * 96:
            break
    return np.array(result_of(loop).traces[0].accepted)


def test_the_head_below_drafts_where_the_right_heads_end(monkeypatch):
    monkeypatch.setattr(right_and_below, "load_head", spatial_heads.load_head)
    right, both = accepted(block_size=10), accepted(proposer="right-and-below", block_size=24)
    assert both.mean() > 1.1 * right.mean()
    assert both.max() > 16


def test_the_head_below_reads_the_states_above(monkeypatch):
    monkeypatch.setattr(right_and_below, "load_head", spatial_heads.load_head)
    informed = accepted(proposer="below", block_size=10)
    monkeypatch.setattr(spatial_heads.Known, "note", lambda self, state: None)  # they stay 0
    assert informed.mean() > 1.5 * accepted(proposer="below", block_size=10).mean()


def test_a_head_is_trained_on_a_frozen_network(tmp_path, capsys):
    folder, data, weights = tmp_path / "network", tmp_path / "faces.npz", tmp_path / "head"
    save_checkpoint(random_model(TINY, dtype=torch.float32), folder)
    rng = np.random.default_rng(0)
    task = FaceTask.of(TINY)
    high, low = task.both_sizes(rng.integers(256, size=(4, task.target, task.target, 3),
                                             dtype=np.uint8))
    write_npz(FacePairs(high, low, np.arange(4, dtype=np.int32)), data)
    below_heads.main(data, data, str(folder), weights, minutes=0.005, batch=2, repeats=2, count=16,
                     faces=1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("p1 ")
    assert lines[0].endswith("overlap 1.000")
    head = spatial_heads.load_head(TINY, weights)
    assert {name: weight.shape for name, weight in head.named_parameters()} == {
        name: weight.shape for name, weight in spatial_heads.BelowHead(TINY).named_parameters()}
    assert head.last.weight.abs().max() > 0
