"""Sampling noise: Gumbel-distributed, and a function of seed, key, position and token alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from superres.config import DecodeConfig
from superres.decoding.noise import philox
from superres.decoding.plain.noise import Noise, gumbel, logarithm, weights
from superres.decoding.plain.sampling import Samplers
from superres.testing import chi_square

SEEDS = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_noise_has_the_gumbel_distribution(seed):
    noise = Noise(seed, torch.arange(4), 32).gumbel(torch.arange(500).expand(4, -1))
    assert kstest(noise.flatten().numpy(), "gumbel_r").pvalue > 0.001


@given(SEEDS)
def test_seeds_keys_positions_and_tokens_all_change_the_noise(seed):
    keys = torch.tensor([1, 2])
    here = Noise(seed, keys, 8).gumbel(torch.tensor([[0, 1], [0, 1]]))
    assert here.unique().numel() == here.numel()
    other = Noise((seed + 1) % 2**63, keys, 8).gumbel(torch.tensor([[0, 1], [0, 1]]))
    assert not bool((here == other).any())


def test_extreme_words_give_finite_noise_within_the_bounds_of_compiled_code():
    noise = gumbel(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    assert noise.tolist() == sorted(noise.tolist(), reverse=True)
    assert -2.9 < float(noise[-1]) < -2.8
    assert 22.8 < float(noise[0]) < 22.9


@pytest.mark.parametrize(("counter", "key", "words"), [
    ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0], "d16cfe09 "
     "94fdcceb 5001e420 24126ea1"),
])
def test_random_words_are_those_of_the_authors_of_philox(counter, key, words):
    for kind in (int, lambda word: np.array([word]), torch.tensor):
        found = philox([kind(word) for word in counter], key)
        assert " ".join(f"{np.asarray(word).item():08x}" for word in found) == words


def test_words_have_the_counter_block_position_and_key_and_the_seed_as_key():
    seed, key, position = 5 + (6 << 32), 3 + (4 << 32), 9
    found = Noise(seed, torch.tensor([key]), 1).random_words(torch.tensor([[position]]),
                                                             torch.tensor([2]))
    assert tuple(found.flatten().tolist()) == philox((2, position, 3, 4), (5, 6))


def test_the_written_out_logarithm_and_exponential_are_right():
    x = torch.cat([torch.logspace(-30, 20, 10_000), 1 + torch.linspace(-1e-3, 1e-3, 10_000)])
    torch.testing.assert_close(logarithm(x).double(), x.double().log(), rtol=2e-7, atol=0)
    scores = torch.linspace(-100, 0, 10_000)
    torch.testing.assert_close(weights(scores).double() * 2.0**-24, scores.double().exp(),
                               rtol=2e-7, atol=6e-8)


# Sampling: argmax(scores / T + noise)


SCORES = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 1.5], dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_choice_samples_the_softmax(temperature):
    samplers = Samplers(DecodeConfig(temperature=temperature, seed=1), torch.arange(20), 6)
    place = torch.arange(500).expand(20, -1)
    tokens = samplers.at(place)(SCORES.expand(20, 500, -1)).view(-1, 1)
    assert chi_square(tokens, (SCORES / temperature).softmax(-1)).p > 0.001


def test_each_colour_has_its_own_temperature():
    samplers = Samplers(DecodeConfig(temperature=(0.5, 1.0, 2.0)), torch.arange(1), 6)
    place = torch.tensor([[2, 3, 7]])
    noise = Noise(0, torch.arange(1), 6).gumbel(place)
    adjusted = samplers.at(place).adjust(SCORES.expand(1, 3, -1)) - noise
    torch.testing.assert_close(adjusted[0], torch.stack([SCORES / 2, SCORES / 0.5, SCORES]))
