"""The compiled encoder computes the network's memory, by the same bits in every batch and on any
number of threads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from fakes import NATIVE, PLAIN, SMALL, Waiting, random_model, random_tokens, stacked

from decodes import algorithm_of, decode
from superres.config import DecodeConfig
from superres.config.tables import SOURCE_MULTIPLE
from superres.decoding.batching import Stream, feed_of
from superres.decoding.cost import measured_costs
from superres.native import arrays, decoder, session
from superres.native.encoder import PARTS, encode, packed_encoder
from superres.native.weights import PackedWeights
from superres.nn.weights import network_of
from tests.native.helpers import KNOWN, compiled, native_model

PICTURES = replace(SMALL, **NATIVE, conditioning_width=32, source_shape=(4, 6, 3),
                   target_shape=(8, 12, 3))
CHANGES = {
    "a picture": {},
    "parts of tiles": {"source_shape": (3, 2, 3), "target_shape": (9, 6, 3),
                       "conditioning_blocks": 2},
    "less than a tile": {"source_shape": (1, 3, 3), "target_shape": (1, 3, 3)},
    "cells of another shape": {"source_shape": (4, 5, 3), "target_shape": (8, 25, 3)},
    "grey": {"source_shape": (4, 4, 1), "target_shape": (16, 16, 1)},
    "many channels": {"source_shape": (2, 2, 4), "target_shape": (8, 8, 4),
                      "conditioning_width": 64},
    "no blocks": {"conditioning_blocks": 0},
    "no layers, many pixels": {"encoder_layers": 0, "source_shape": (17, 18, 3),
                               "target_shape": (34, 36, 3), "cross_attention": False},
    "three layers": {"encoder_layers": 3, "source_shape": (6, 6, 3), "target_shape": (12, 12, 3)},
    "post-norm, one head": {"norm": "post", "prediction_heads": 1},
    "no neighbourhood": {"numeric_neighbourhood": False, "cell_remainder": False},
    "narrow maps": {"conditioning_width": 24}, "no conditioning": {"aligned_conditioning": False},
    "a picture without priors": PLAIN,
}
NETWORKS = {
    **{name: replace(PICTURES, **change) for name, change in CHANGES.items()},
    "text": replace(KNOWN["text"], encoder_layers=2),
    "text with vectors of its own": replace(KNOWN["recurrent heads"], norm="post",
                                            source_shape=(19,)),
}
BOUNDS = {"float32": 1e-5, "int8": 2e-1}
"""Largest error of the memory over its largest value, by the format of the weights."""

pytestmark = compiled


def encoder_of(config, precision="float32"):
    """Return a compiled encoder of random weights, of sources, threads and padding."""
    network = network_of(random_model(config, dtype=torch.float32))
    return partial(encode, packed_encoder(PackedWeights(network, precision)), config)


def sources_of(config, rows):
    return random_tokens(config, rows)[0].numpy()


def parts(memory):
    return {name: getattr(memory, name) for name in PARTS if getattr(memory, name) is not None}


def expected(config, source):
    """Return the parts of the memory by the network itself in float64."""
    network = random_model(config)
    memory = network.encode(torch.from_numpy(source)).rounded_up(SOURCE_MULTIPLE)
    estimate = memory.estimate if config.ordinal_output or config.numeric_neighbourhood else None
    found = {"states": memory.states, "estimate": estimate, "residual_sum": memory.residual_sum}
    if memory.conditioning is not None:
        found["position_table"] = network.signal + memory.conditioning
    if network.heads is not None and network.heads.conditioning is not None:
        found["head_table"] = network.heads.conditioning(memory.conditioning)
    return {name: part.numpy() for name, part in found.items() if part is not None}


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_the_memory_is_that_of_the_network(network, precision):
    config = NETWORKS[network]
    source = sources_of(config, 3)
    true = expected(config, source)
    found = parts(encoder_of(config, precision)(source, 1))
    assert found.keys() == true.keys()
    for name, part in found.items():
        error = np.abs(part - true[name]).max() / np.abs(true[name]).max()
        assert error < BOUNDS[precision], (name, error)


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("network", ["three layers", "cells of another shape"])
def test_a_picture_has_the_same_bits_alone_in_a_batch_and_on_any_number_of_threads(network,
                                                                                   precision):
    config = NETWORKS[network]
    encoder, source = encoder_of(config, precision), sources_of(config, 5)
    alone = [parts(encoder(one[None], 1)) for one in source]
    for batch, threads in 2 * ((1, 3), (2, 3), (5, 1), (5, 4)):
        for name, part in parts(encoder(source[:batch], threads)).items():
            own = np.concatenate([one[name] for one in alone[:batch]])
            assert np.array_equal(part, own), (name, batch, threads)


@pytest.mark.parametrize("precision", BOUNDS)
def test_a_text_has_the_same_bits_alone_and_padded_in_a_batch(precision):
    config = NETWORKS["text with vectors of its own"]
    encoder, source = encoder_of(config, precision), sources_of(config, 4)
    lengths = np.array([19, 1, 16, 7])
    padding = np.arange(19) >= lengths[:, None]
    states = random_model(config).encode(*map(torch.from_numpy, (source, padding))).states.numpy()
    for threads in (1, 3):
        found = encoder(source, threads, padding)
        assert np.array_equal(found.mask == 0, np.arange(32) < lengths[:, None])
        assert np.array_equal(found.longest, [config.longest_target(length) for length in lengths])
        assert np.isfinite(found.states).all()
        for row, length in enumerate(lengths.tolist()):
            own, true = found.states[row, :length], states[row, :length]
            alone = encoder(source[row : row + 1, :length], 1).states[0, :length]
            assert np.array_equal(own, alone)
            assert np.abs(own - true).max() < BOUNDS[precision] * np.abs(true).max()


def test_networks_that_share_a_threads_memory_do_not_disturb_each_other():
    encoders = [encoder_of(config, "int8") for config in NETWORKS.values()]
    sources = [sources_of(config, 1) for config in NETWORKS.values()]
    first = [parts(encoder(source, 1)) for encoder, source in zip(encoders, sources, strict=True)]
    for encoder, source, before in reversed(list(zip(encoders, sources, first, strict=True))):
        again = parts(encoder(source, 1))
        assert all(np.array_equal(again[name], before[name]) for name in before)


def test_costs_are_measured_whatever_was_in_memory_before(monkeypatch):
    """They are measured in the middle of targets that were never begun."""
    empty = arrays.empty

    def filled(shape, dtype):
        made = empty(shape, dtype)
        if made.dtype == np.float32:
            made.fill(np.nan)
        return made

    for module in (arrays, decoder, session):
        monkeypatch.setattr(module, "empty", filled)
    config = NETWORKS["three layers"]
    engine = native_model(config).native
    assert min(measured_costs(engine, sources_of(config, 3), DecodeConfig(),
                              engine.prediction_heads)) > 0


def test_decoding_encodes_in_compiled_code_alone_and_with_refilled_rows(monkeypatch):
    model, source = native_model(PICTURES), random_tokens(PICTURES, 5)[0]
    monkeypatch.delattr("superres.nn.model.EncoderDecoder.encode")
    alone = decode(model, source, DecodeConfig()).tokens
    feed = feed_of([Waiting(one, key, key) for key, one in enumerate(source)])
    stream = Stream(algorithm_of(model, DecodeConfig()), feed, stacked, 2)
    done = [one for some in stream.run() for one in some]
    assert len(done) == len(source)
    assert all(one.tokens.tolist() == alone[one.item.tag].tolist() for one in done)


@pytest.mark.parametrize(("source", "padding", "message"), [
    (np.full((2, 72), 6), None, r"tokens must be in \[0, 6\), not 6 to 6"),
    (np.full((2, 72), -1), None, r"tokens must be in \[0, 6\), not -1 to -1"),
    (np.zeros((2, 71), int), None, r"sources must have 72 tokens, not 71"),
    (np.zeros((1, 7), int), np.arange(7)[None] == 1, "padding must be at the"),
])
def test_sources_that_are_none_are_refused(source, padding, message):
    config = PICTURES if padding is None else NETWORKS["text"]
    with pytest.raises(ValueError, match=message):
        encoder_of(config)(source, 1, padding)


@pytest.mark.parametrize("change", ["without", "with more"])
@pytest.mark.parametrize("network", ["picture", "text"])
def test_every_array_of_a_network_is_packed_once(network, change):
    network = network_of(random_model(NETWORKS["a picture" if network == "picture" else network]))
    packed = PackedWeights(network, "float32")
    packed_encoder(packed)
    with pytest.raises(ValueError, match=r"no array encoder.0.* or it is packed already"):
        packed_encoder(packed)
    if change == "without":
        network.arrays.pop("encoder.0.attention.query.weight")
        message = "no array encoder.0.attention.query.weight"
    else:
        network.arrays["heads.gate.weight"] = np.zeros((1, 1), np.float32)
        message = "knows no array heads.gate.weight"
    with pytest.raises(ValueError, match=message):
        packed_encoder(PackedWeights(network, "float32"))
