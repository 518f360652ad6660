"""The compiled encoder computes the network's memory, by the same bits in every batch and on any
number of threads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import NATIVE, PLAIN, SMALL, VARIANTS, Waiting, random_model, random_tokens, stacked

from decodes import decode
from superres.config import DecodeConfig
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import Stream, feed_of
from superres.decoding.cost import measured_costs
from superres.native import build
from superres.native.model import NativeModel
from superres.nn.torch_model import SOURCE_MULTIPLE

PICTURES = replace(SMALL, **NATIVE, conditioning_width=32, source_shape=(4, 6, 3),
                   target_shape=(8, 12, 3))
NETWORKS = {
    "a picture": PICTURES,
    "parts of tiles": replace(PICTURES, source_shape=(3, 2, 3), target_shape=(9, 6, 3),
                              conditioning_blocks=2),
    "less than a tile": replace(PICTURES, source_shape=(1, 3, 3), target_shape=(1, 3, 3)),
    "cells of another shape": replace(PICTURES, source_shape=(4, 5, 3), target_shape=(8, 25, 3)),
    "grey": replace(PICTURES, source_shape=(4, 4, 1), target_shape=(16, 16, 1)),
    "many channels": replace(PICTURES, source_shape=(2, 2, 4), target_shape=(8, 8, 4),
                             conditioning_width=64),
    "no blocks": replace(PICTURES, conditioning_blocks=0),
    "no layers, many pixels": replace(PICTURES, encoder_layers=0, source_shape=(17, 18, 3),
                                      target_shape=(34, 36, 3), cross_attention=False),
    "three layers": replace(PICTURES, encoder_layers=3, source_shape=(6, 6, 3),
                            target_shape=(12, 12, 3)),
    "post-norm, one head": replace(PICTURES, norm="post", prediction_heads=1),
    "no neighbourhood": replace(PICTURES, numeric_neighbourhood=False, cell_remainder=False),
    "narrow maps": replace(PICTURES, conditioning_width=24),
    "no conditioning": replace(PICTURES, aligned_conditioning=False),
    "a picture without priors": replace(PICTURES, **PLAIN),
    "text": replace(VARIANTS["text"], **NATIVE, encoder_layers=2),
    "text with vectors of its own": replace(VARIANTS["recurrent heads"], **NATIVE, norm="post",
                                            source_shape=(19,)),
}
BOUNDS = {"float32": 1e-5, "int8": 2e-1}
"""Largest error of the memory over its largest value, by the format of the weights."""

PARTS = "states", "position_table", "head_table", "estimate", "residual_sum"

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


def model_of(config, **options):
    return NativeModel(random_model(config, dtype=torch.float32), **options)


def parts(memory):
    return {name: getattr(memory, name) for name in PARTS if getattr(memory, name) is not None}


def expected(config, source):
    """Return the parts of the memory by the network itself in float64."""
    network = random_model(config)
    memory = network.encode(source).rounded_up(SOURCE_MULTIPLE)
    estimate = memory.estimate if config.ordinal_output or config.numeric_neighbourhood else None
    found = {"states": memory.states, "estimate": estimate, "residual_sum": memory.residual_sum}
    if memory.conditioning is not None:
        found["position_table"] = network.signal + memory.conditioning
    if network.heads is not None and network.heads.conditioning is not None:
        found["head_table"] = network.heads.conditioning(memory.conditioning)
    return {name: part for name, part in found.items() if part is not None}


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_memory_is_that_of_the_network(network, precision):
    config = NETWORKS[network]
    source = random_tokens(config, 3)[0]
    true, found = (expected(config, source),
                   parts(model_of(config, precision=precision).encoder(source, 1)))
    assert found.keys() == true.keys()
    for name, part in found.items():
        error = (part - true[name]).abs().max() / true[name].abs().max()
        assert error < BOUNDS[precision], (name, error)


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("network", ["three layers", "cells of another shape"])
def test_a_picture_has_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads(network,
                                                                                   precision):
    config = NETWORKS[network]
    encoder, source = model_of(config, precision=precision).encoder, random_tokens(config, 5)[0]
    alone = [parts(encoder(one[None], 1)) for one in source]
    for batch, threads in 2 * ((1, 3), (2, 3), (5, 1), (5, 4)):
        for name, part in parts(encoder(source[:batch], threads)).items():
            assert torch.equal(part, torch.cat([one[name] for one in alone[:batch]])), (name, batch,
                                                                                        threads)


@pytest.mark.parametrize("precision", BOUNDS)
def test_a_text_has_the_same_bits_alone_and_padded_in_a_batch(precision):
    config = NETWORKS["text with vectors of its own"]
    encoder, source = model_of(config, precision=precision).encoder, random_tokens(config, 4)[0]
    lengths = torch.tensor([19, 1, 16, 7])
    padding = torch.arange(19) >= lengths.unsqueeze(1)
    memory = random_model(config).encode(source, padding)
    for threads in (1, 3):
        found = encoder(source, threads, padding)
        assert torch.equal(found.mask[:, 0, 0] == 0, torch.arange(32) < lengths.unsqueeze(1))
        assert bool(torch.isfinite(found.states).all())
        for row, length in enumerate(lengths.tolist()):
            alone = encoder(source[row : row + 1, :length], 1).states
            assert torch.equal(found.states[row, :length], alone[0, :length])
            true = memory.states[row, :length]
            assert ((found.states[row, :length] - true).abs().max() < BOUNDS[precision]
                    * true.abs().max())


def test_networks_that_share_a_threads_memory_do_not_disturb_each_other():
    encoders = [model_of(config, precision="int8").encoder for config in NETWORKS.values()]
    sources = [random_tokens(config, 1)[0] for config in NETWORKS.values()]
    first = [parts(encoder(source, 1)) for encoder, source in zip(encoders, sources, strict=True)]
    for encoder, source, before in reversed(list(zip(encoders, sources, first, strict=True))):
        again = parts(encoder(source, 1))
        assert all(torch.equal(again[name], before[name]) for name in before)


@pytest.mark.parametrize("found", [torch.nan, 3e38])
@pytest.mark.parametrize("network", ["three layers", "no neighbourhood"])
def test_tokens_do_not_depend_on_what_was_in_memory_before(network, found, monkeypatch):
    model, source = model_of(NETWORKS[network]), random_tokens(NETWORKS[network], 3)[0]
    clean = decode(model, source, DecodeConfig()).tokens
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **options: (
        empty(*size, **options) if options.get("dtype", torch.float32) != torch.float32
        else empty(*size, **options).fill_(found)))
    assert torch.equal(decode(model, source, DecodeConfig()).tokens, clean)
    # Costs are measured in the middle of targets that were never begun.
    assert min(measured_costs(model, source, DecodeConfig(), model.prediction_heads)) > 0


def test_decoding_encodes_in_compiled_code_alone_and_with_refilled_rows(monkeypatch):
    model, source = model_of(PICTURES), random_tokens(PICTURES, 5)[0]
    monkeypatch.delattr("superres.nn.model.EncoderDecoder.encode")
    expected = decode(model, source, DecodeConfig()).tokens
    feed = feed_of([Waiting(one, key, key) for key, one in enumerate(source)])
    done = [one for some in Stream(Algorithm(model, DecodeConfig()), feed, stacked, 2).run()
            for one in some]
    assert len(done) == len(source)
    for one in done:
        assert torch.equal(one.tokens, expected[one.item.tag])


@pytest.mark.parametrize(("source", "message"), [
    (torch.full((2, 72), 6), r"tokens must be in \[0, 6\), not 6 to 6"),
    (torch.full((2, 72), -1), r"tokens must be in \[0, 6\), not -1 to -1"),
    (torch.zeros(2, 71, dtype=torch.int64), r"sources must have 72 tokens, not 71"),
])
def test_sources_that_are_none_are_refused(source, message):
    with pytest.raises(ValueError, match=message):
        model_of(PICTURES).session(source, 1)
    with pytest.raises(ValueError, match="padding must be at the end"):
        model_of(NETWORKS["text"]).encoder(torch.zeros(1, 7, dtype=torch.int64), 1,
                                           torch.arange(7)[None] == 1)
