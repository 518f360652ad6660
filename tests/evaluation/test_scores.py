"""Scores of pictures, of decoding and of samples: those of their definitions, with intervals."""

from __future__ import annotations

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
from superres.evaluation import picture_scores
from superres.evaluation.compression import FORMATS, file_sizes, smallest_file
from superres.evaluation.drawing import draw_samples
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
    psnr,
    ssim,
)
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
from tests.evaluation.helpers import constants, face_pairs

SAMPLED = DecodeConfig(block_size=4, temperature=0.9)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """The network of ST-LPIPS takes longer than all else; `test_measures` has it."""
    monkeypatch.setattr(picture_scores, "st_lpips", lambda: None)


@pytest.fixture
def pairs():
    return face_pairs(3)


def test_psnr_is_that_of_the_definition_per_image():
    np.testing.assert_allclose(psnr(constants(100, 0), constants(110, 110)),
                               [20 * np.log10(255 / 10), 20 * np.log10(255 / 110)])


def test_consistency_is_zero_for_an_exact_enlargement_and_the_shift_in_grey_levels_otherwise(pairs):
    np.testing.assert_array_equal(consistency(enlarge(pairs.lr, "nearest", 32), pairs.lr), 0)
    sources = np.full((2, 8, 8, 3), 50, np.uint8)
    sources[1, :, :4] = 53
    np.testing.assert_allclose(consistency(constants(50, 50), sources), [0, np.sqrt(4.5)])


def test_lr_psnr_pools_all_inputs_and_is_absent_if_every_image_reduces_to_its_input():
    sources = np.full((2, 8, 8, 3), 50, np.uint8)
    assert all_entries(consistency_scores(constants(50, 50), sources)) == {
        "consistency_rmse": 0, "consistency_rmse_half_width": 0, "lr_psnr": None,
        "lr_psnr_half_width": None, "consistent_images": 1, "consistent_images_half_width": 0}
    sources[1] = 53
    scores = consistency_scores(constants(50, 50), sources)
    assert scores["lr_psnr"].value == pytest.approx(10 * np.log10(255**2 / 4.5))
    assert (scores["consistency_rmse"].value, scores["consistent_images"].value) == (1.5, 0.5)


def test_differences_from_lanczos_are_paired_and_have_narrower_intervals_than_the_scores():
    truth = constants(20, 60, 100, 140, 180)
    noise = np.random.default_rng(1).integers(1, 40, (5, 1, 1, 1))
    pictures = {"lanczos": (truth + noise).astype(np.uint8),
                "half the error": (truth + noise / 2).astype(np.uint8)}
    scores = compared_scores(pictures, FacePairs(truth, area_reduce(truth, 8, 8),
                                                  np.arange(5, dtype=np.int32)))
    better, other = psnr(pictures["half the error"], truth), psnr(pictures["lanczos"], truth)
    assert scores["half the error"]["psnr_above_lanczos"] == pytest.approx((better - other).mean())
    assert scores["half the error"]["psnr_above_lanczos_half_width"] == half_width(better - other)
    assert half_width(better - other) < half_width(better)
    assert not any("above" in name for name in scores["lanczos"])


def test_samples_of_the_same_input_do_not_narrow_the_interval(pairs):
    images = enlarge(pairs.lr, "bicubic", 32)
    once = picture_scores.picture_scores(images, pairs)
    assert (picture_scores.picture_scores(images.repeat(2, axis=0), pairs) == pytest.approx(once))
    assert once["ssim_half_width"] == half_width(ssim(images, pairs.hr))


def test_the_interval_of_a_ratio_is_that_of_repeated_samples(rng):
    counts = rng.uniform(1, 3, (1000, 50))
    totals = 0.5 * counts + rng.normal(0, 0.2, counts.shape)
    found = [Estimate.ratio(total, count) for total, count in zip(totals, counts, strict=True)]
    spread = np.std([estimate.value for estimate in found])
    widths = [estimate.entries("ratio")["ratio_half_width"] for estimate in found]
    # Student's t of 49 degrees of freedom
    assert np.mean(widths) == pytest.approx(2.01 * spread, rel=0.05)
    assert found[0].value == pytest.approx(totals[0].sum() / counts[0].sum())


def test_decibels_and_differences_keep_the_pairing(rng):
    powers, truth = rng.uniform(1, 2, (2, 40))
    half, whole = (Estimate.ratio(powers / 2, truth).decibels(),
                   Estimate.ratio(powers, truth).decibels())
    assert whole.value == pytest.approx(10 * np.log10(powers.sum() / truth.sum()))
    assert half.minus(whole).entries("x") == pytest.approx({"x": 10 * np.log10(0.5),
                                                            "x_half_width": 0}, abs=1e-12)
    ends = [10 * np.log10(Estimate.ratio(powers, truth).value + sign * half_width(
        Estimate.ratio(powers, truth).terms)) for sign in (-1, 1)]
    assert whole.entries("x")["x_half_width"] == pytest.approx((ends[1] - ends[0]) / 2, rel=0.02)
    nothing = Estimate.ratio(powers, np.zeros(40)).decibels()
    assert nothing.entries("x") == {"x": None, "x_half_width": None}


def test_agreement_pools_errors_so_that_one_identical_pair_does_not_hide_the_others():
    scores = agreement(constants(11, 9), constants(9, 9), constants(19, 19))
    assert scores["psnr_to_greedy"] == pytest.approx(10 * np.log10(255**2 / 2))
    assert scores["psnr_difference"] == pytest.approx((20 * np.log10(10) - 20 * np.log10(8)) / 2)
    assert (scores["equal_tokens"], scores["identical_images"]) == (0.5, 0.5)


def test_batches_are_decoded_in_turns_and_only_whole_ones_timed():
    upscaler, pairs = FakeUpscaler(seconds_per_call=1.0), face_pairs(5)
    ways = {"greedy": DecodeConfig(block_size=1), "blockwise": DecodeConfig(block_size=4)}
    decoded = decode_interleaved(pairs.lr, upscaler, ways, batch_size=2)
    assert [options.block_size for options in upscaler.called] == [1, 4] * 4
    assert upscaler.batches == [2, 2, 2, 2, 2, 2, 1, 1]
    assert upscaler.keys[:4] == upscaler.keys[4:8]
    assert [one.seconds_per_image for one in decoded.values()] == [0.5, 0.125]
    np.testing.assert_array_equal(decoded["blockwise"].images, enlarge(pairs.lr, "nearest", 32))


def checked_report(report):
    """Return the text of a report, which is strict JSON, too."""
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    table = report_table(report)
    assert max(len(line) for line in table.splitlines()) <= 120
    return table


def test_a_report_holds_every_score(pairs):
    decode = DecodeConfig(accept="distance", min_block=2)
    report, pictures = evaluate_images(pairs, FakeUpscaler(), decode, batch_size=2)
    table = checked_report(report)
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
    assert all(method in table for method in (*pictures, "truth", "above lanczos", "above greedy",
                                              "0-4 dB", ">8 dB"))
    assert f"{greedy['psnr']:.2f} +-{greedy['psnr_half_width']:.2f}" in table


class KnownLikelihood(FakeUpscaler):
    """An upscaler that needs 1, 2, 3, ... bits/dim for images in turn."""

    def bits_per_dim(self, sources, targets):
        return targets[:, 0, 0, 0].astype(float)


def test_the_likelihood_is_scored_over_all_images_without_decoding():
    upscaler, pairs = KnownLikelihood(), face_pairs(5)
    pairs.hr[:, 0, 0, 0] = [1, 2, 3, 4, 5]
    report = evaluate_likelihood(pairs, upscaler, batch_size=2)
    assert json.loads(json.dumps(report)) == report
    assert (report["images"], report["batch_size"], report["bits_per_dim"]) == (5, 2, 3)
    # t of 4 degrees of freedom, and the standard error of 1..5
    assert report["bits_per_dim_half_width"] == pytest.approx(2.776445 * np.sqrt(2.5 / 5), rel=1e-6)
    assert likelihood_text(report) == "bits/dim 3.000 (95 % interval +-1.963)"
    assert upscaler.batches == []
    assert half_width(np.array([1.0])) is half_width(np.array([1.0, np.inf])) is None
    sizes = report["bytes_per_picture"]
    assert sizes["p1"] == 3 * TOKENS / 8
    assert sizes["p1_and_input"] == pytest.approx(3 * TOKENS / 8
                                                  + file_sizes(pairs.lr, "webp").mean())
    assert (f"p1 {sizes['p1']:,.0f} +-{sizes['p1_half_width']:,.0f}, and its input as "
            "WebP" in bytes_text(report))


@pytest.mark.parametrize("form", FORMATS)
def test_the_files_are_lossless_and_smaller_for_smooth_pictures(form, pairs):
    smooth = np.broadcast_to(np.arange(32, dtype=np.uint8)[:, None, None], (32, 32, 3))
    for image in (pairs.hr[0], smooth):
        with Image.open(io.BytesIO(smallest_file(image, form))) as file:
            np.testing.assert_array_equal(np.asarray(file), image)
    assert len(smallest_file(smooth, form)) < 300 < TOKENS < file_sizes(pairs.hr[:1], form).min()


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


def test_a_cascade_is_scored_whole_and_by_stage_each_with_all_its_heads(cascade, rng):
    pairs, consistent = face_pairs(3, 12, rng), DecodeConfig(consistent=True)
    report, pictures = evaluate_images(pairs, cascade, consistent, batch_size=2)
    assert "greedy, 6x6" in checked_report(report)
    assert list(pictures) == ["nearest", "bicubic", "lanczos", "greedy", "blockwise",
                              "6x6 by lanczos"]
    np.testing.assert_array_equal(
        pictures["6x6 by lanczos"],
        enlarge(cascade(pairs.lr, consistent).earlier.images, "lanczos", 12))
    assert (report["methods"]["blockwise"]["consistent_images"],
            report["agreement"]["identical_images"]) == (1, 1)
    whole, stages = report["methods"]["greedy"], report["stages"]["greedy"]
    calls = {size: stage["model_calls_per_image"] for size, stage in stages.items()}
    assert calls == {"6x6": 6 * 6 * 3 + 1, "12x12": 12 * 12 * 3 + 1}
    assert whole["model_calls_per_image"] == sum(calls.values())
    seconds = [stage["seconds_per_image"] for stage in stages.values()]
    assert whole["seconds_per_image"] == pytest.approx(sum(seconds))
    assert min(seconds) > 0

    everything = DecodeConfig(accept="distance", epsilon=255)
    report, pictures = evaluate_images(pairs, cascade, everything, greedy=False)
    assert "speed-up" not in report_table(report)
    assert not {"agreement", "speed_up", "greedy"} & {*report, *pictures}
    stages = report["stages"]["blockwise"]
    assert {size: stage["mean_accepted_block_size"] for size, stage in stages.items()} == {
        size: pytest.approx(tokens / np.ceil(tokens / TINY.prediction_heads))
        for size, tokens in (("6x6", 108), ("12x12", 432))}


def test_samples_are_compared_with_greedy_pictures_and_decoded_alone_with_the_same_noise(pairs):
    upscaler = FakeUpscaler()
    report, pictures = evaluate_images(
        pairs, upscaler, DecodeConfig(temperature=0.9, accept="distance"), batch_size=3)
    assert list(pictures)[-3:] == ["greedy", "sequential", "blockwise"]
    assert [(options.is_sampling, options.block_size, options.accept)
            for options in upscaler.called[-3:]] == [
                (False, 1, "exact"), (True, 1, "exact"), (True, 10, "distance")]
    sampled = report["methods"]["sequential"]
    expected = psnr(pictures["sequential"], pairs.hr) - psnr(pictures["greedy"], pairs.hr)
    assert sampled["psnr_above_greedy"] == pytest.approx(expected.mean())
    assert "speed-up over sequential 10.00" in report_table(report)


def test_settings_that_do_not_fit_are_refused_before_decoding(pairs):
    upscaler = FakeUpscaler()
    with pytest.raises(ConfigError, match="11 is more than the 10 prediction heads"):
        evaluate_images(pairs, upscaler, DecodeConfig(block_size=11))
    with pytest.raises(ConfigError, match="--batch-size"):
        evaluate_images(pairs, upscaler, DecodeConfig(), batch_size=0)
    assert upscaler.batches == []


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


@pytest.mark.slow
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
