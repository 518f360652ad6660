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
    contact_sheet,
    decode_interleaved,
    equal_tokens,
    evaluate_images,
    evaluate_likelihood,
    half_width,
    likelihood_text,
    mean_squared_error,
    method_lines,
    psnr,
    report_table,
    ssim,
)
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce, enlarge


def constant(value, count=2):
    return np.full((count, 32, 32, 3), value, np.uint8)


@pytest.fixture
def pairs():
    hr = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    return FacePairs(hr, area_reduce(hr, 8, 8), np.arange(5, dtype=np.int32))


def test_squared_error_does_not_wrap_around():
    assert mean_squared_error(constant(250), constant(5)).tolist() == [245.0**2] * 2


def test_psnr_is_that_of_the_definition_per_image():
    images = constant(100)
    images[1] = 0
    references = constant(110)
    np.testing.assert_allclose(psnr(images, references), [20 * np.log10(255 / 10), 20 * np.log10(255 / 110)])


def test_psnr_of_equal_images_is_infinite():
    assert np.isposinf(psnr(constant(7), constant(7))).all()


def test_ssim_of_constant_images_is_the_luminance_term():
    c1 = (0.01 * 255) ** 2
    expected = (2 * 100 * 120 + c1) / (100**2 + 120**2 + c1)
    np.testing.assert_allclose(ssim(constant(100), constant(120)), expected)
    np.testing.assert_allclose(ssim(constant(100), constant(100)), 1.0)


def gaussian_ssim(x, y):
    """One channel's SSIM by the definition of Wang et al.: 11x11 Gaussian windows wholly inside the image."""
    offsets = np.arange(11) - 5
    line = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    scores = []
    for row in range(x.shape[0] - 10):
        for column in range(x.shape[1] - 10):
            a, b = (z[row:row + 11, column:column + 11].astype(float) for z in (x, y))
            ma, mb = (window * a).sum(), (window * b).sum()
            va, vb = (window * (a - ma) ** 2).sum(), (window * (b - mb) ** 2).sum()
            cov = (window * (a - ma) * (b - mb)).sum()
            scores.append((2 * ma * mb + c1) * (2 * cov + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2)))
    return np.mean(scores)


def test_ssim_equals_the_published_definition(pairs):
    noisy = np.clip(pairs.hr[:1].astype(int) + 20, 0, 255).astype(np.uint8)
    expected = np.mean([gaussian_ssim(noisy[0, :, :, c], pairs.hr[0, :, :, c]) for c in range(3)])
    np.testing.assert_allclose(ssim(noisy, pairs.hr[:1]), [expected], rtol=1e-6)


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


def test_the_interval_of_a_mean_is_that_of_students_t():
    assert half_width(np.array([1.0, 2.0, 3.0, 4.0])) == pytest.approx(3.182446 * 1.290994 / 2, rel=1e-6)
    assert half_width(np.array([1.0])) is None


def test_equal_tokens_counts_intensities_not_pixels():
    images = constant(9)
    images[0, 0, 0, 0] = 8
    assert equal_tokens(images, constant(9)).tolist() == [1 - 1 / TOKENS, 1.0]


def test_agreement_of_identical_images_is_whole_and_its_psnr_none():
    assert agreement(constant(9), constant(9), constant(20)) == {
        "psnr_to_greedy": None, "psnr_difference": 0.0, "equal_tokens": 1.0, "identical_images": 1.0}


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
    assert list(pictures) == list(report["methods"]) == ["nearest", "bicubic", "greedy", "blockwise"]
    assert report["methods"]["blockwise"]["mean_accepted_block_size"] == TOKENS / 308
    assert report["methods"]["greedy"]["mean_accepted_block_size"] == 1
    assert report["methods"]["greedy"]["model_calls_per_image"] == TOKENS + 1
    assert report["methods"]["greedy"]["psnr"] == pytest.approx(psnr(pictures["nearest"], pairs.hr).mean())
    assert report["methods"]["nearest"]["consistency_rmse"] == 0
    assert report["speed_up"] == pytest.approx(10)
    assert report["agreement"]["identical_images"] == 1
    assert report["bits_per_dim"] < report["bits_per_dim_wrong_input"]
    assert report["bits_per_dim_half_width"] >= 0
    assert f"95 % interval +-{report['bits_per_dim_half_width']:.3f}" in report_table(report)
    assert report["config"]["block_size"] == 10
    assert all(method in report_table(report) for method in pictures)


def test_the_table_shows_the_share_of_consistent_images_also_where_lr_psnr_is_infinite():
    assert method_lines({
        "nearest": {"psnr": 20.0, "ssim": 0.5, "consistency_rmse": 0.0, "lr_psnr": None, "consistent_images": 1.0},
        "best of 2": {"psnr": 21.0},
        "greedy": {"lr_psnr": 54.65, "consistent_images": 0.125, "seconds_per_image": 0.5},
    }) == [
        "           PSNR dB   SSIM  consistency  LR-PSNR dB  consistent  mean accepted  model calls  s/image",
        "nearest      20.00  0.500         0.00           -      100.0%              -            -        -",
        "best of 2    21.00      -            -           -           -              -            -        -",
        "greedy           -      -            -       54.65       12.5%              -            -    0.500",
    ]


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


def test_without_greedy_nothing_is_decoded_greedily(pairs):
    upscaler = FakeUpscaler()
    report, pictures = evaluate_images(pairs, upscaler, DecodeConfig(), greedy=False)
    assert {options.block_size for options in upscaler.called} == {10}
    assert not {"agreement", "speed_up"} & set(report)
    assert "greedy" not in pictures
    assert "speed-up" not in report_table(report)


def test_one_image_has_no_wrong_input_and_no_interval(pairs):
    single = FacePairs(pairs.hr[:1], pairs.lr[:1], pairs.ids[:1])
    report = evaluate_images(single, FakeUpscaler(), DecodeConfig())[0]
    assert report["bits_per_dim_wrong_input"] is report["bits_per_dim_half_width"] is None
    assert f"bits/dim {report['bits_per_dim']:.3f}, with a wrong input -" in report_table(report)


def test_settings_that_do_not_fit_are_refused_before_decoding(pairs):
    upscaler = FakeUpscaler()
    with pytest.raises(ConfigError, match="11 is more than the 10 prediction heads"):
        evaluate_images(pairs, upscaler, DecodeConfig(block_size=11))
    with pytest.raises(ConfigError, match="--batch-size"):
        evaluate_images(pairs, upscaler, DecodeConfig(), batch_size=0)
    assert upscaler.batches == []


def test_contact_sheet_shows_every_pixel_as_a_square_below_its_caption(pairs):
    sheet = contact_sheet({"one": pairs.hr, "two": constant(7, 5)}, scale=4, caption_height=16)
    assert sheet.shape == (16 + 5 * 128, 2 * 128, 3)
    np.testing.assert_array_equal(sheet[16:, :128][::4, ::4], np.concatenate(list(pairs.hr)))
    assert (sheet[16:, 128:] == 7).all()
    assert (sheet[:16, :128] < 128).any()
    assert (sheet[:16, 128:] < 128).any()
