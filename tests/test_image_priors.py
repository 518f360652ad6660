"""Image priors: neighbour features, the residual sum of a cell, and the ordinal output."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from fakes import SMALL

from superres.config import PRESETS, ModelConfig
from superres.errors import ConfigError
from superres.nn.image_priors import (
    RESIDUAL_SCALE,
    ConvolutionBlock,
    NumericNeighbourhood,
    cell_tables,
    enlarge_source,
    feature_count,
    ordinal_scores,
    to_raster,
)

BASE = PRESETS["base"]


def place(shape, row, column, channel):
    return (row * shape[1] + column) * shape[2] + channel


def test_every_position_lies_in_the_cell_that_covers_it():
    cell, positions = cell_tables(BASE)
    for row, column, channel in itertools.product((0, 3, 4, 31), (0, 5, 31), range(3)):
        position = place(BASE.target_shape, row, column, channel)
        assert cell[position] == place(BASE.source_shape, row // 4, column // 4, channel)
        expected = [
            place(BASE.target_shape, row // 4 * 4 + y, column // 4 * 4 + x, channel)
            for y in range(4) for x in range(4)
        ]
        assert positions[position].tolist() == expected


def test_the_last_pixel_of_a_cell_is_known_from_its_source():
    config = SMALL
    target = torch.randint(0, 6, (2, config.target_length)).double()
    cell, positions = cell_tables(config)
    source = torch.zeros(2, config.source_length, dtype=torch.double)
    for position in range(config.target_length):
        source[:, cell[position]] = target[:, positions[position]].mean(1)
    estimate = torch.rand(2, config.target_length, dtype=torch.double) * 5
    neighbourhood = NumericNeighbourhood(config).double()
    deviation = torch.nn.functional.pad((target - estimate) / RESIDUAL_SCALE, (0, 1))
    every = torch.arange(config.target_length).expand(2, -1)
    buffer = neighbourhood.buffer(deviation, neighbourhood.residual_sum(source, estimate))
    features = neighbourhood.features(buffer, every)
    pixels = positions.shape[1]
    assert features.shape[-1] == feature_count(config)
    remainder = features[..., -pixels:]
    last = (positions[:, -1] == torch.arange(config.target_length)).nonzero().squeeze(1)
    assert torch.allclose(remainder[:, last, 0], deviation[:, last], atol=1e-12)
    first = (positions[:, 0] == torch.arange(config.target_length)).nonzero().squeeze(1)
    means = deviation[:, positions[first]].mean(-1)
    assert torch.allclose(remainder[:, first, pixels - 1], means, atol=1e-12)
    assert ((remainder != 0).sum(-1) <= 1).all()


def test_the_remainder_needs_the_neighbourhood():
    with pytest.raises(ConfigError, match="cell_remainder needs numeric_neighbourhood"):
        replace(SMALL, numeric_neighbourhood=False)


def test_ordinal_scores_peak_at_the_centre_and_fall_evenly():
    network = ModelConfig()
    alone = replace(network, free_scores=False)
    scores = ordinal_scores(torch.zeros(1, 258), torch.tensor([100.0]), network)
    assert scores.argmax() == 100
    assert torch.equal(scores, ordinal_scores(torch.zeros(1, 2), torch.tensor([100.0]), alone))
    assert torch.allclose(scores[0, 90:100], scores[0, 101:111].flip(0))
    shifted = torch.zeros(1, 258)
    shifted[0, 256] = 1.0
    assert ordinal_scores(shifted, torch.tensor([100.0]), network).argmax() == 100 + RESIDUAL_SCALE


def test_hyperbolic_scores_are_round_at_the_centre_and_become_laplacian_as_d_falls():
    network = ModelConfig(free_scores=False, ordinal_shape="hyperbolic")
    assert network.outputs == 3
    shift, sharpness, centre = 0.1, 2.0, torch.tensor([100.0])
    mu, z = 100 + shift * RESIDUAL_SCALE, (torch.arange(256) - 100 - shift * RESIDUAL_SCALE) * math.exp(2.0 - 2.5)

    def scores(log_d):
        return ordinal_scores(torch.tensor([[log_d, shift, sharpness]]), centre, network)[0]

    for log_d in (-2.0, 0.0, 1.5):
        d = math.exp(log_d)
        torch.testing.assert_close(scores(log_d), d - (d * d + z * z).sqrt())
        assert scores(log_d).argmax() == round(mu)
    torch.testing.assert_close(scores(-9.0), -z.abs(), atol=2e-3, rtol=0)  # log d is bounded below


def test_a_flat_source_stays_flat_and_convolutions_start_as_the_identity():
    source = torch.full((1, BASE.source_length), 77)
    assert torch.allclose(to_raster(enlarge_source(source, BASE)), torch.tensor(77.0), atol=1e-3)
    x = torch.randn(1, 4, 5, 5)
    assert torch.equal(ConvolutionBlock(4)(x), x)
