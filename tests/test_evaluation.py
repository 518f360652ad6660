import json

import numpy as np
import pytest
from fakes import TOKENS, FakeUpscaler

from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.evaluation.pictures import (
    agreement,
    consistency,
    consistency_scores,
    decode_interleaved,
    evaluate_images,
    evaluate_likelihood,
    half_width,
    likelihood_text,
    psnr,
    report_table,
)
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce, enlarge


def constant(value, count=2):
    return np.full((count, 32, 32, 3), value, np.uint8)


@pytest.fixture
def pairs():
    hr = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    return FacePairs(hr, area_reduce(hr, 8, 8), np.arange(5, dtype=np.int32))


def test_psnr_is_that_of_the_definition_per_image():
    images = constant(100)
    images[1] = 0
    references = constant(110)
    np.testing.assert_allclose(psnr(images, references), [20 * np.log10(255 / 10), 20 * np.log10(255 / 110)])


def test_consistency_is_zero_for_an_exact_enlargement_and_the_shift_in_grey_levels_otherwise(pairs):
    np.testing.assert_array_equal(consistency(enlarge(pairs.lr, "nearest", 32), pairs.lr), 0)
    sources = np.full((2, 8, 8, 3), 50, np.uint8)
    sources[1, :, :4] = 53
    np.testing.assert_allclose(consistency(constant(50), sources), [0, np.sqrt(4.5)])


def test_lr_psnr_pools_all_inputs_and_is_absent_if_every_image_reduces_to_its_input():
    sources = np.full((2, 8, 8, 3), 50, np.uint8)
    assert consistency_scores(constant(50), sources) == {
        "consistency_rmse": 0, "lr_psnr": None, "consistent_images": 1}
    sources[1] = 53
    scores = consistency_scores(constant(50), sources)
    assert scores["lr_psnr"] == pytest.approx(10 * np.log10(255**2 / 4.5))
    assert (scores["consistency_rmse"], scores["consistent_images"]) == (1.5, 0.5)


def test_agreement_pools_errors_so_that_one_identical_pair_does_not_hide_the_others():
    images = constant(9)
    images[0] += 2
    scores = agreement(images, constant(9), constant(9 + 10))
    assert scores["psnr_to_greedy"] == pytest.approx(10 * np.log10(255**2 / 2))
    assert scores["psnr_difference"] == pytest.approx((20 * np.log10(10) - 20 * np.log10(8)) / 2)
    assert (scores["equal_tokens"], scores["identical_images"]) == (0.5, 0.5)


def test_batches_are_decoded_both_ways_in_turn_and_only_whole_ones_timed(pairs):
    upscaler = FakeUpscaler(seconds_per_call=1.0)
    ways = {"greedy": DecodeConfig(block_size=1), "blockwise": DecodeConfig(block_size=4)}
    decoded = decode_interleaved(pairs.lr, upscaler, ways, batch_size=2)
    assert [options.block_size for options in upscaler.called] == [1, 4] * 4
    assert upscaler.batches == [2, 2, 2, 2, 2, 2, 1, 1]
    assert upscaler.keys[:4] == upscaler.keys[4:8]
    assert (decoded["greedy"].seconds_per_image, decoded["blockwise"].seconds_per_image) == (0.5, 0.125)
    np.testing.assert_array_equal(decoded["blockwise"].images, enlarge(pairs.lr, "nearest", 32))


def test_report_holds_every_score_and_is_strict_json(pairs):
    decode = DecodeConfig(accept="distance", min_block=2)
    report, pictures = evaluate_images(pairs, FakeUpscaler(), decode, batch_size=3)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    methods, greedy = report["methods"], report["methods"]["greedy"]
    assert list(pictures) == list(methods) == ["nearest", "bicubic", "greedy", "blockwise"]
    assert methods["blockwise"]["mean_accepted_block_size"] == TOKENS / 308
    assert (greedy["mean_accepted_block_size"], greedy["model_calls_per_image"]) == (1, TOKENS + 1)
    assert greedy["psnr"] == pytest.approx(psnr(pictures["nearest"], pairs.hr).mean())
    assert methods["nearest"]["consistency_rmse"] == 0
    assert report["speed_up"] == pytest.approx(10)
    assert report["agreement"]["identical_images"] == 1
    assert report["bits_per_dim"] < report["bits_per_dim_wrong_input"]
    assert report["config"]["block_size"] == 10
    assert all(method in report_table(report) for method in pictures)


class KnownLikelihood(FakeUpscaler):
    """An upscaler that needs 1, 2, 3, ... bits/dim for images in turn."""

    def bits_per_dim(self, sources, targets):
        return targets[:, 0, 0, 0].astype(float)


def test_the_likelihood_is_scored_over_all_images_without_decoding(pairs):
    upscaler = KnownLikelihood()
    pairs.hr[:, 0, 0, 0] = [1, 2, 3, 4, 5]
    report = evaluate_likelihood(pairs, upscaler, batch_size=2)
    assert json.loads(json.dumps(report)) == report
    assert (report["images"], report["batch_size"], report["bits_per_dim"]) == (5, 2, 3)
    # t of 4 degrees of freedom, and the standard error of 1..5
    assert report["bits_per_dim_half_width"] == pytest.approx(2.776445 * np.sqrt(2.5 / 5), rel=1e-6)
    assert likelihood_text(report) == "bits/dim 3.000 (95 % interval +-1.963)"
    assert upscaler.batches == []
    assert half_width(np.array([1.0])) is None


def test_without_greedy_nothing_is_decoded_greedily(pairs):
    upscaler = FakeUpscaler()
    report, pictures = evaluate_images(pairs, upscaler, DecodeConfig(), greedy=False)
    assert {options.block_size for options in upscaler.called} == {10}
    assert not {"agreement", "speed_up"} & set(report)
    assert "greedy" not in pictures
    assert "speed-up" not in report_table(report)


def test_settings_that_do_not_fit_are_refused_before_decoding(pairs):
    upscaler = FakeUpscaler()
    with pytest.raises(ConfigError, match="11 is more than the 10 prediction heads"):
        evaluate_images(pairs, upscaler, DecodeConfig(block_size=11))
    with pytest.raises(ConfigError, match="--batch-size"):
        evaluate_images(pairs, upscaler, DecodeConfig(), batch_size=0)
    assert upscaler.batches == []
