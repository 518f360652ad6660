"""Scores of several samples an input, and of blockwise against sequential sampling."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeUpscaler

from superres.config import DecodeConfig
from superres.evaluation.drawing import draw_samples
from superres.evaluation.picture_scores import psnr, ssim
from superres.evaluation.sample_scores import (
    diversity,
    evaluate_samples,
    likeliest_of,
    local_diversity,
    pictures_of,
    sample_scores,
    samples_table,
)
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce, enlarge, image_key

ROOT = Path(__file__).parents[2]
SAMPLED = DecodeConfig(block_size=4, temperature=0.9)


@pytest.fixture
def pairs():
    hr = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3)).astype(np.uint8)
    return FacePairs(hr, area_reduce(hr, 8, 8), np.arange(3, dtype=np.int32))


def constants(*values):
    """Pictures of one grey level each."""
    return np.stack([np.full((32, 32, 3), value, np.uint8) for value in values])


def test_diversity_is_the_mean_difference_of_two_samples_in_grey_levels():
    samples = np.stack([constants(0, 3, 6), constants(50, 50, 50)])
    assert diversity(samples[:1]) == pytest.approx((3 + 6 + 3) / 3)
    assert diversity(samples) == pytest.approx(2)


def test_local_diversity_is_what_choosing_a_sample_for_each_cell_gains():
    truth = constants(100, 100)
    samples = truth[:, None].repeat(2, axis=1)
    samples[0, 0, :, :16] = samples[0, 1, :, 16:] = 110  # of each sample, another half is right
    samples[1, 0], samples[1, 1] = 120, 110  # one sample is better everywhere
    assert local_diversity(samples[:1], truth[:1], 4) == pytest.approx(100)
    assert local_diversity(samples[1:], truth[1:], 4) == 0
    assert local_diversity(samples, truth, 4) == pytest.approx(50)
    samples[0, :, :, 8:24] = 110  # both are wrong in the middle
    assert local_diversity(samples[:1], truth[:1], 4) == pytest.approx(100 * (0.75 - 0.5) / 0.75)
    assert local_diversity(truth[:, None].repeat(2, axis=1), truth, 4) == 0


def test_each_input_takes_its_own_best_sample_and_each_measure_its_own(pairs, rng):
    samples = rng.integers(0, 256, (3, 2, 32, 32, 3)).astype(np.uint8)
    samples[0, 0] = np.clip(pairs.hr[0].astype(int) + 9, 0, 255)
    samples[0, 1] = 200
    samples[2, 1] = np.clip(pairs.hr[2].astype(int) - 5, 0, 255)
    scores = sample_scores(samples, samples[:, 1], samples[:, 0], pairs)
    for name, measure in (("psnr", psnr), ("ssim", ssim)):
        each = np.stack([measure(samples[:, i], pairs.hr) for i in range(2)])
        assert scores["one sample"][name] == pytest.approx(each.mean())
        assert scores["best of 2"][name] == pytest.approx(each.max(axis=0).mean())
        assert scores["likeliest of 2"][name] == pytest.approx(each[1].mean())


def test_samples_are_keyed_by_their_number_whatever_the_batches(pairs):
    upscaler = FakeUpscaler()
    samples = pictures_of(draw_samples(pairs.lr, upscaler, SAMPLED, range(2, 4), batch_size=4), 2)
    assert samples.shape == (3, 2, 32, 32, 3)
    assert upscaler.batches == [4, 2]
    expected = [[image_key(source, number) % 256 for number in (2, 3)] for source in pairs.lr]
    assert samples[:, :, 0, 0, 0].tolist() == expected
    np.testing.assert_array_equal(samples[:, 1, 1:], enlarge(pairs.lr, "nearest", 32)[:, 1:])


def test_the_likeliest_of_drawn_samples_is_the_one_that_the_upscaler_keeps(pairs, upscaler):
    sources = pairs.lr[:2]
    drawn = draw_samples(sources, upscaler, SAMPLED, range(1, 7), batch_size=2)
    kept = upscaler(sources, SAMPLED, samples=6, keep="likeliest")
    np.testing.assert_array_equal(likeliest_of(drawn, 6), kept.images)
    assert kept.samples != [1, 1]  # or the first sample would do


def test_samples_are_scored_next_to_greedy(pairs):
    upscaler = FakeUpscaler()
    report = evaluate_samples(pairs, upscaler, SAMPLED, 3, 3, None)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert list(report["methods"]) == ["greedy", "one sample", "likeliest of 3", "mean of 3",
                                       "best of 3"]
    assert [options.is_sampling for options in upscaler.called] == [True, True, True, False]
    assert report["methods"]["greedy"]["consistency_rmse"] == 0
    assert report["diversity_rmse"] > 0
    assert all(name in samples_table(report) for name in (*report["methods"], "3 samples"))
