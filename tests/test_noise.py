"""Sampling noise: Gumbel-distributed, and a function of seed, key, position and token alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from superres.config import DecodeConfig
from superres.decoding.noise import GumbelNoise, RandomWords, gumbel, logarithm, philox, round_keys, weights
from superres.decoding.sampling import Samplers

SEEDS = st.integers(0, 2**63 - 1)


def uniform(seed=0, rows=4, positions=500, vocabulary=32):
    """Turn Gumbel noise back to what should be uniform in (0, 1): [rows, positions, vocabulary]."""
    noise = GumbelNoise(seed, torch.arange(rows), vocabulary).at(torch.arange(positions).expand(rows, -1))
    return (-(-noise).exp()).exp()


def distance_from_uniform(values):
    """The statistic of Kolmogorov and Smirnov, times sqrt(n); above 1.95 one time in a thousand."""
    ordered = values.flatten().sort().values
    ideal = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    gap = torch.maximum((ideal[1:] - ordered).abs().max(), (ideal[:-1] - ordered).abs().max())
    return float(gap) * math.sqrt(len(ordered))


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_noise_has_the_gumbel_distribution(seed):
    assert distance_from_uniform(uniform(seed)) < 1.95


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_noise_has_the_gumbel_distribution_along_each_coordinate(axis):
    rows, positions, vocabulary = [(4000, 1, 1), (1, 4000, 1), (1, 1, 4000)][axis]
    assert distance_from_uniform(uniform(5, rows, positions, vocabulary)) < 1.95


def test_neighbouring_counters_are_not_correlated():
    values = uniform() - 0.5
    count = values.numel()
    for axis, shift in ((0, 1), (1, 1), (1, 2), (2, 1), (2, 3)):
        correlation = float((values * values.roll(shift, axis)).mean() * 12)
        assert abs(correlation) < 4 / math.sqrt(count)


@given(SEEDS, st.lists(st.integers(0, 2**62), min_size=1, max_size=4), st.integers(0, 4000))
def test_noise_of_a_row_does_not_depend_on_its_batch(seed, keys, position):
    place = torch.full((len(keys), 1), position)
    together = GumbelNoise(seed, torch.tensor(keys), 8).at(place)
    for row, key in enumerate(keys):
        assert torch.equal(together[row], GumbelNoise(seed, torch.tensor([key]), 8).at(place[:1])[0])


@given(SEEDS)
def test_seeds_keys_positions_and_tokens_all_change_the_noise(seed):
    keys = torch.tensor([1, 2])
    here = GumbelNoise(seed, keys, 8).at(torch.tensor([[0, 1], [0, 1]]))
    assert here.unique().numel() == here.numel()
    other = GumbelNoise((seed + 1) % 2**63, keys, 8).at(torch.tensor([[0, 1], [0, 1]]))
    assert not bool((here == other).any())


def test_extreme_words_give_finite_noise_within_the_bounds_of_compiled_code():
    noise = gumbel(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert noise.tolist() == sorted(noise.tolist(), reverse=True)
    assert -2.9 < float(noise[-1]) < -2.8
    assert 22.8 < float(noise[0]) < 22.9


@pytest.mark.parametrize(("counter", "key", "words"), [
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], "d16cfe09 94fdcceb 5001e420 24126ea1"),
])
def test_random_words_are_those_of_the_authors_of_philox(counter, key, words):
    found = philox(torch.tensor(counter), round_keys(torch.tensor(key)))
    assert " ".join(f"{word:08x}" for word in found.tolist()) == words


def test_words_have_the_counter_block_position_and_key_and_the_seed_as_key():
    seed, key, position = 5 + (6 << 32), 3 + (4 << 32), 9
    found = RandomWords(seed, torch.tensor([key])).at(torch.tensor([[position]]), torch.tensor([2]))
    wanted = philox(torch.tensor([2, position, 3, 4]), round_keys(torch.tensor([5, 6])))
    assert torch.equal(found.flatten(), wanted)


def test_the_written_out_logarithm_and_exponential_are_right():
    x = torch.cat([torch.logspace(-30, 20, 10_000), 1 + torch.linspace(-1e-3, 1e-3, 10_000)])
    torch.testing.assert_close(logarithm(x).double(), x.double().log(), rtol=2e-7, atol=0)
    scores = torch.linspace(-100, 0, 10_000)
    torch.testing.assert_close(weights(scores).double() * 2.0**-24, scores.double().exp(), rtol=2e-7, atol=6e-8)


# Sampling: argmax(scores / T + noise)


def chi_square(tokens, probabilities):
    counts = torch.bincount(tokens.flatten(), minlength=len(probabilities)).double()
    expected = probabilities * tokens.numel()
    return float(((counts - expected) ** 2 / expected).sum())


SCORES = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 1.5], dtype=torch.float64)
LIMIT = 20.5  # of chi-square with 5 degrees of freedom: exceeded one time in a thousand


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_choice_samples_the_softmax(temperature):
    samplers = Samplers(DecodeConfig(temperature=temperature, seed=1), torch.arange(20), 6)
    place = torch.arange(500).expand(20, -1)
    tokens = samplers.at(place)(SCORES.expand(20, 500, -1))
    assert chi_square(tokens, (SCORES / temperature).softmax(-1)) < LIMIT


def test_each_colour_has_its_own_temperature():
    samplers = Samplers(DecodeConfig(temperature=(0.5, 1.0, 2.0)), torch.arange(1), 6)
    place = torch.tensor([[2, 3, 7]])
    noise = GumbelNoise(0, torch.arange(1), 6).at(place)
    adjusted = samplers.at(place).adjust(SCORES.expand(1, 3, -1)) - noise
    torch.testing.assert_close(adjusted[0], torch.stack([SCORES / 2, SCORES / 0.5, SCORES]))
