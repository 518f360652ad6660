import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import TINY, TOKENS, FakeUpscaler, random_model
from PIL import Image

from superres import load
from superres.checkpoint import save_checkpoint
from superres.config import DecodeConfig
from superres.errors import ConfigError
from superres.evaluation.compression import FORMATS, file_sizes, smallest_file
from superres.evaluation.images import (
    bytes_text,
    decode_interleaved,
    evaluate_images,
    evaluate_likelihood,
    likelihood_text,
    report_table,
)
from superres.evaluation.intervals import Estimate, half_width
from superres.evaluation.picture_scores import (
    agreement,
    all_entries,
    compared_scores,
    consistency,
    consistency_scores,
    picture_scores,
    psnr,
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


def test_psnr_is_that_of_the_definition_per_image():
    images = constant(100)
    images[1] = 0
    references = constant(110)
    np.testing.assert_allclose(psnr(images, references),
                               [20 * np.log10(255 / 10), 20 * np.log10(255 / 110)])


def test_consistency_is_zero_for_an_exact_enlargement_and_the_shift_in_grey_levels_otherwise(pairs):
    np.testing.assert_array_equal(consistency(enlarge(pairs.lr, "nearest", 32), pairs.lr), 0)
    sources = np.full((2, 8, 8, 3), 50, np.uint8)
    sources[1, :, :4] = 53
    np.testing.assert_allclose(consistency(constant(50), sources), [0, np.sqrt(4.5)])


def test_lr_psnr_pools_all_inputs_and_is_absent_if_every_image_reduces_to_its_input():
    sources = np.full((2, 8, 8, 3), 50, np.uint8)
    assert all_entries(consistency_scores(constant(50), sources)) == {
        "consistency_rmse": 0, "consistency_rmse_half_width": 0, "lr_psnr": None,
        "lr_psnr_half_width": None, "consistent_images": 1, "consistent_images_half_width": 0}
    sources[1] = 53
    scores = consistency_scores(constant(50), sources)
    assert scores["lr_psnr"].value == pytest.approx(10 * np.log10(255**2 / 4.5))
    assert (scores["consistency_rmse"].value, scores["consistent_images"].value) == (1.5, 0.5)


def test_the_interval_of_lr_psnr_is_that_of_its_mean_squared_error():
    sources = np.full((40, 8, 8, 3), 50, np.uint8)
    sources += np.arange(40, dtype=np.uint8)[:, None, None, None] % 2
    scores = all_entries(consistency_scores(constant(53, 40), sources))  # squared errors 9 and 4
    half = half_width(np.array([9.0, 4.0] * 20))
    ends = [10 * np.log10(255**2 / (6.5 + sign * half)) for sign in (-1, 1)]
    assert scores["lr_psnr_half_width"] == pytest.approx((ends[0] - ends[1]) / 2, rel=0.02)


def test_differences_from_lanczos_are_paired_and_have_narrower_intervals_than_the_scores(pairs):
    truth = np.stack([constant(value, 1)[0] for value in (20, 60, 100, 140, 180)])
    noise = np.random.default_rng(1).integers(1, 40, (5, 1, 1, 1))
    pictures = {"lanczos": (truth + noise).astype(np.uint8),
                "half the error": (truth + noise / 2).astype(np.uint8)}
    scores = compared_scores(pictures, FacePairs(truth, area_reduce(truth, 8, 8), pairs.ids))
    better, other = psnr(pictures["half the error"], truth), psnr(pictures["lanczos"], truth)
    assert scores["half the error"]["psnr_above_lanczos"] == pytest.approx((better - other).mean())
    assert scores["half the error"]["psnr_above_lanczos_half_width"] == half_width(better - other)
    assert half_width(better - other) < half_width(better)
    assert not any("above" in name for name in scores["lanczos"])


def test_samples_of_the_same_input_do_not_narrow_the_interval(pairs):
    images = enlarge(pairs.lr, "bicubic", 32)
    assert picture_scores(images.repeat(4, axis=0), pairs) == pytest.approx(picture_scores(images,
                                                                                           pairs))
    assert picture_scores(images, pairs)["ssim_half_width"] == half_width(ssim(images, pairs.hr))


def test_the_interval_of_a_ratio_is_that_of_repeated_samples(rng):
    counts = rng.uniform(1, 3, (2000, 50))
    totals = 0.5 * counts + rng.normal(0, 0.2, counts.shape)
    found = [Estimate.ratio(total, count) for total, count in zip(totals, counts, strict=True)]
    spread = np.std([estimate.value for estimate in found])
    widths = [estimate.entries("ratio")["ratio_half_width"] for estimate in found]
    # Student's t of 49 degrees of freedom
    assert np.mean(widths) == pytest.approx(2.01 * spread, rel=0.05)
    assert found[0].value == pytest.approx(totals[0].sum() / counts[0].sum())


def test_decibels_and_differences_keep_the_pairing(rng):
    powers, truth = rng.uniform(1, 2, (2, 40))
    half, whole = Estimate.ratio(powers / 2, truth).decibels(), Estimate.ratio(powers,
                                                                               truth).decibels()
    assert whole.value == pytest.approx(10 * np.log10(powers.sum() / truth.sum()))
    assert half.minus(whole).entries("x") == pytest.approx({"x": 10 * np.log10(0.5),
                                                            "x_half_width": 0}, abs=1e-12)
    assert whole.entries("x")["x_half_width"] > 0.1
    nothing = Estimate.ratio(powers, np.zeros(40)).decibels()
    assert nothing.entries("x") == {"x": None, "x_half_width": None}


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
    assert (decoded["greedy"].seconds_per_image, decoded["blockwise"].seconds_per_image) == (0.5,
                                                                                             0.125)
    np.testing.assert_array_equal(decoded["blockwise"].images, enlarge(pairs.lr, "nearest", 32))


def test_report_holds_every_score_and_is_strict_json(pairs):
    decode = DecodeConfig(accept="distance", min_block=2)
    report, pictures = evaluate_images(pairs, FakeUpscaler(), decode, batch_size=3)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    methods, greedy = report["methods"], report["methods"]["greedy"]
    assert list(pictures) == list(methods) == ["nearest", "bicubic", "lanczos", "greedy",
                                               "blockwise"]
    assert methods["blockwise"]["mean_accepted_block_size"] == TOKENS / 308
    assert (greedy["mean_accepted_block_size"], greedy["model_calls_per_image"]) == (1, TOKENS + 1)
    assert greedy["psnr"] == pytest.approx(psnr(pictures["nearest"], pairs.hr).mean())
    assert methods["nearest"]["consistency_rmse"] == 0
    assert report["speed_up"] == pytest.approx(10)
    assert report["agreement"]["identical_images"] == 1
    assert report["bits_per_dim"] < report["bits_per_dim_wrong_input"]
    assert report["config"]["block_size"] == 10
    assert "stages" not in report
    assert greedy["detail"] == pytest.approx(methods["blockwise"]["detail"])
    assert methods["blockwise"]["detail_above_greedy"] == 0
    table = report_table(report)
    assert all(method in table for method in (*pictures, "truth", "above lanczos", "above greedy",
                                              "0-4 dB", ">8 dB"))
    assert f"{greedy['psnr']:.2f} +-{greedy['psnr_half_width']:.2f}" in table
    assert max(len(line) for line in table.splitlines()) <= 120


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
    assert half_width(np.array([1.0, np.inf])) is None
    sizes = report["bytes_per_picture"]
    assert sizes["p1"] == 3 * TOKENS / 8
    assert sizes["p1_and_input"] == pytest.approx(3 * TOKENS / 8 + file_sizes(pairs.lr,
                                                                              "webp").mean())
    assert (f"p1 {sizes['p1']:,.0f} +-{sizes['p1_half_width']:,.0f}, and its input as "
            "WebP" in bytes_text(report))


@pytest.mark.parametrize("form", FORMATS)
def test_the_files_are_lossless_and_smaller_for_smooth_pictures(form, pairs):
    smooth = np.broadcast_to(np.arange(32, dtype=np.uint8)[:, None, None], (32, 32, 3))
    for image in (pairs.hr[0], smooth):
        with Image.open(io.BytesIO(smallest_file(image, form))) as file:
            np.testing.assert_array_equal(np.asarray(file), image)
    assert len(smallest_file(smooth, form)) < 300 < TOKENS < file_sizes(pairs.hr, form).min()


@pytest.fixture
def cascade(tmp_path):
    """A cascade of networks with random weights and several heads, from 3 to 6 to 12 pixels."""
    for name, source, target in (("small", 3, 6), ("large", 6, 12)):
        network = replace(TINY, source_shape=(source, source, 3), target_shape=(target, target, 3))
        save_checkpoint(random_model(network, dtype=torch.float32), tmp_path / name)
    (tmp_path / "cascade").mkdir()
    (tmp_path / "cascade" / "config.json").write_text(
        json.dumps({"format_version": 1, "stages": ["small", "large"]}))
    return load(tmp_path / "cascade", device="cpu")


def test_a_cascade_is_scored_whole_and_by_stage(cascade, rng):
    hr = rng.integers(0, 256, (3, 12, 12, 3), np.uint8)
    pairs = FacePairs(hr, area_reduce(hr, 3, 3), np.arange(3, dtype=np.int32))
    report, pictures = evaluate_images(pairs, cascade, DecodeConfig(consistent=True), batch_size=2)
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert list(pictures) == ["nearest", "bicubic", "lanczos", "greedy", "blockwise",
                              "6x6 by lanczos"]
    drawn = cascade(pairs.lr, DecodeConfig(consistent=True))
    np.testing.assert_array_equal(pictures["6x6 by lanczos"],
                                  enlarge(drawn.earlier.images, "lanczos", 12))
    assert (report["methods"]["blockwise"]["consistent_images"],
            report["agreement"]["identical_images"]) == (1, 1)
    whole, stages = report["methods"]["greedy"], report["stages"]["greedy"]
    calls = {size: stage["model_calls_per_image"] for size, stage in stages.items()}
    assert calls == {"6x6": 6 * 6 * 3 + 1, "12x12": 12 * 12 * 3 + 1}
    assert whole["model_calls_per_image"] == sum(calls.values())
    assert whole["seconds_per_image"] == pytest.approx(sum(stage["seconds_per_image"]
                                                           for stage in stages.values()))
    assert all(stage["seconds_per_image"] > 0 for stage in stages.values())
    table = report_table(report)
    assert "greedy, 6x6" in table
    assert max(len(line) for line in table.splitlines()) <= 120


def test_every_stage_of_a_cascade_uses_all_its_heads(cascade, rng):
    hr = rng.integers(0, 256, (2, 12, 12, 3), np.uint8)
    pairs = FacePairs(hr, area_reduce(hr, 3, 3), np.arange(2, dtype=np.int32))
    everything = DecodeConfig(accept="distance", epsilon=255)
    stages = evaluate_images(pairs, cascade, everything, greedy=False)[0]["stages"]["blockwise"]
    heads = TINY.prediction_heads
    assert {size: stage["mean_accepted_block_size"] for size, stage in stages.items()} == {
        size: pytest.approx(tokens / np.ceil(tokens / heads)) for size,
        tokens in (("6x6", 108), ("12x12", 432))}


def test_samples_are_compared_with_greedy_pictures_and_decoded_alone_with_the_same_noise(pairs):
    upscaler = FakeUpscaler()
    report, pictures = evaluate_images(
        pairs, upscaler, DecodeConfig(temperature=0.9, accept="distance"), batch_size=5
    )
    assert list(pictures)[-3:] == ["greedy", "sequential", "blockwise"]
    assert [(options.is_sampling, options.block_size, options.accept)
            for options in upscaler.called[-3:]] == [
                (False, 1, "exact"), (True, 1, "exact"), (True, 10, "distance")]
    sampled = report["methods"]["sequential"]
    expected = psnr(pictures["sequential"], pairs.hr) - psnr(pictures["greedy"], pairs.hr)
    assert sampled["psnr_above_greedy"] == pytest.approx(expected.mean())
    assert "speed-up over sequential 10.00" in report_table(report)


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
