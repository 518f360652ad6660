"""What only a GPU can show: decoding and training are what they are on a CPU, and blocks have one
token's tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import (
    TINY,
    VARIANTS,
    Waiting,
    criterion_options,
    limits_of,
    proposer_for,
    random_model,
    random_tokens,
    stacked,
)

from decodes import algorithm_of, decode
from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA
from superres.decoding.batching import Stream
from superres.decoding.plain.limited import LimitedModel
from superres.decoding.proposers import PROPOSERS
from superres.nn.torch_model import StepModel
from superres.training.construction import build_model
from superres.training.stage import Stage
from tests.proofs.test_refill import ScriptedFeed
from tests.training.helpers import image_batches, training_steps

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(),
                                                  reason="no GPU on this machine")]

CUDA = torch.device("cuda")
CONFIG = replace(VARIANTS["sequential heads"], free_scores=False)
TEXT = replace(VARIANTS["text"], source_shape=(21,))
ROWS = 3
SAMPLINGS = {}, {"temperature": 0.8}, {"temperature": 0.8, "sampling": "speculative"}

WAYS = {
    "greedy": DecodeConfig(block_size=1), **{name: criterion_options(name) for name in CRITERIA},
    "minimum block": DecodeConfig(min_block=2), "sampled": DecodeConfig(temperature=0.8, seed=3),
    "speculative": DecodeConfig(temperature=0.8, sampling="speculative", nucleus=0.9, seed=3),
}


def on_both(config, end_token=None):
    """Return the plain engine of a network on a CPU and on the GPU, in float64, where kernels
    hardly differ."""
    return [StepModel(random_model(config).to(device), end_token) for device in ("cpu", CUDA)]


def assert_same(actual, expected):
    assert torch.equal(actual.tokens, expected.tokens)
    for one, other in zip(actual.traces, expected.traces, strict=True):
        assert (one.positions, one.accepted) == (other.positions, other.accepted)
        assert (one.proposed == other.proposed).all()


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_tokens_and_traces_are_those_of_a_cpu(way, limited):
    source, models = random_tokens(CONFIG, ROWS)[0], on_both(CONFIG)
    if limited:
        models = [LimitedModel(model, limits_of(CONFIG)) for model in models]
    expected, found = (decode(model, source, WAYS[way]) for model in models)
    assert_same(found, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_blocks_are_greedy_tokens_of_their_width_in_every_network(variant):
    model = StepModel(random_model(VARIANTS[variant], dtype=torch.float32).to(CUDA))
    source = random_tokens(VARIANTS[variant], 2)[0]
    greedy, blocks = (decode(model, source, DecodeConfig(block_size=k), width=5).tokens
                      for k in (1, 5))
    assert torch.equal(greedy, blocks)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_text_with_every_proposer_and_padding(proposer, sampling):
    models, source = on_both(TEXT, end_token=3), random_tokens(TEXT, ROWS)[0]
    padding = torch.arange(21) >= torch.tensor([[21], [3], [19]])
    options = DecodeConfig(block_size=4, proposer=proposer, window=5, candidates=3, **sampling)
    decoded = []
    for model in models:
        made = proposer_for(proposer, models[0])
        if proposer == "draft":
            made.draft.model.model.to(model.device)
        decoded.append(decode(model, source, options, proposer=made, padding=padding))
    assert_same(decoded[1], decoded[0])


@pytest.mark.parametrize("way", ["exact", "sampled", "speculative"])
def test_rows_are_refilled_in_place(way):
    (cpu, gpu), source = on_both(CONFIG), random_tokens(CONFIG, 7)[0]
    waiting = [Waiting(one, key, key) for key, one in enumerate(source)]
    stream = Stream(algorithm_of(gpu, WAYS[way]), ScriptedFeed(waiting, [1, 0, 2, 0, 0, 1]),
                    stacked, ROWS)
    for one in [one for some in stream.run() for one in some]:
        alone = decode(cpu, source[one.item.tag, None], WAYS[way], keys=[one.item.tag])
        assert one.tokens.tolist() == alone.tokens[0].tolist()
        assert one.trace.accepted == alone.traces[0].accepted


def test_the_estimate_is_that_of_a_cpu_and_the_setting_of_convolutions_stays():
    model, source = random_model(CONFIG, dtype=torch.float32), random_tokens(CONFIG, ROWS)[0]
    before, expected = torch.backends.cudnn.conv.fp32_precision, model.encode(source).estimate
    found = model.to(CUDA).encode(source.to(CUDA)).estimate.cpu()
    assert (found - expected).abs().max() < 1e-3  # with TF32, 0.04 in a bundled checkpoint
    assert torch.backends.cudnn.conv.fp32_precision == before


def test_training_batches_are_those_of_a_cpu():
    here, there = (image_batches(device, Stage(steps=1, batch_size=32))
                   for device in (torch.device("cpu"), CUDA))
    for step in range(4):
        for one, other in zip(here.batch(step)[:2], there.batch(step)[:2], strict=True):
            assert torch.equal(one, other.cpu())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_training_steps_learn_what_those_of_a_cpu_do_and_wait_for_no_value(optimizer):
    settings = Stage(steps=9, batch_size=8, stage="heads", optimizer=optimizer)
    totals = []
    for device in (torch.device("cpu"), CUDA):
        model = build_model(replace(TINY, dropout=0.0, prediction_heads=4), settings).to(device)
        if device == CUDA:
            model.fuse_attention()
        take = training_steps(model, settings)
        first = take(0)  # makes tables and states
        torch.cuda.set_sync_debug_mode("error" if device == CUDA else "default")
        try:
            later = [take(step) for step in range(1, 4)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        totals.append([float(total) for total in (first, *later)])
    # Muon's products are in bfloat16 on a GPU
    assert totals[1] == pytest.approx(totals[0], rel=0.02)
