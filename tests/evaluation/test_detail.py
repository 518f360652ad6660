"""Detail, swing by cell and power by band of pictures whose answers are known."""

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from superres.evaluation.detail import (
    band_power,
    bands,
    detail_scores,
    gradient_by_position,
    luminance,
    mean_gradient,
    swing,
)
from superres.tasks.faces import FaceTask, area_reduce, enlarge

TASK = FaceTask(8, 32)


def grey(values):
    """Return grey pictures, uint8 [N,H,W,3], of values [N,H,W]."""
    return np.repeat(np.asarray(values, np.uint8)[..., None], 3, axis=3)


def wave(cycles, side=32, amplitude=50):
    """Return a picture with so many half cycles across, as the cosine transform has them."""
    across = 128 + amplitude * np.cos(np.pi * cycles * (np.arange(side) + 0.5) / side)
    return grey(np.rint(np.broadcast_to(across, (1, side, side))))


@pytest.fixture
def noise(rng):
    return rng.integers(0, 256, (6, 32, 32, 3)).astype(np.uint8)


def test_luminance_weighs_the_colours_and_keeps_grey():
    np.testing.assert_allclose(luminance(grey([[[0, 255]]])), [[[0, 255]]])
    np.testing.assert_allclose(luminance(np.eye(3, dtype=np.uint8)[None] * 100),
                               [[29.9, 58.7, 11.4]])


def test_the_gradient_of_a_ramp_is_its_slope():
    across, down = np.meshgrid(3 * np.arange(16), 4 * np.arange(16))
    np.testing.assert_allclose(mean_gradient(grey([across, across + down])), [3, 5])
    np.testing.assert_allclose(gradient_by_position(grey([across + down]), 4, axis=2), [[3] * 4])
    np.testing.assert_allclose(gradient_by_position(grey([across + down]), 4, axis=1), [[4] * 4])
    assert swing(grey([across + down]), 4, axis=2).value == pytest.approx(0, abs=1e-9)


def test_the_interval_of_swing_is_that_of_repeated_sets_of_pictures(rng):
    # gradients between them are largest at 0 and smallest at 2
    weights = np.tile([1, 0.8, 0.5, 0.2], 4)[:, None]
    sets = (rng.integers(0, 256, (400, 30, 16, 16, 3)) * weights).astype(np.uint8)
    found = [swing(pictures, 4, axis=2) for pictures in sets]
    widths = [estimate.entries("swing")["swing_half_width"] for estimate in found]
    assert np.mean(widths) == pytest.approx(2.045 * np.std([estimate.value for estimate in found]),
                                            rel=0.15)


def test_cells_of_one_colour_swing_only_at_their_borders(noise):
    cells = enlarge(area_reduce(noise, 8, 8), "nearest", 32)
    positions = gradient_by_position(cells, 4, axis=2)
    assert (positions[:, :3] == 0).all()
    assert (positions[:, 3] > 0).all()
    for axis in (1, 2):  # one of four positions has all of the gradient: (g - 0) / (g / 4)
        assert swing(cells, 4, axis).value == pytest.approx(400)
    assert swing(noise, 4, axis=1).value < 10


def test_seams_across_do_not_count_as_seams_down(noise):
    seams = noise // 8
    seams[:, :, ::4] += 100
    assert swing(seams, 4, axis=2).value > 100
    assert swing(seams, 4, axis=1).value < 10


def test_bands_are_octaves_from_the_nyquist_frequency_of_the_input():
    assert list(bands(FaceTask(8, 64))) == ["power_0_to_4", "power_4_to_8", "power_8_to_16",
                                            "power_over_16"]
    assert list(bands(FaceTask(32, 64))) == ["power_0_to_16", "power_over_16"]
    assert list(bands(FaceTask(3, 12))) == ["power_0_to_1.5", "power_1.5_to_3", "power_over_3"]
    assert list(bands(FaceTask(8, 8))) == ["power_over_0"]


@pytest.mark.parametrize(("half_cycles", "name"), [
    (1, "power_0_to_4"), (8, "power_0_to_4"), (9, "power_4_to_8"), (16, "power_4_to_8"),
    (31, "power_over_8")])
def test_a_wave_has_its_power_in_its_own_band(half_cycles, name):
    power = band_power(wave(half_cycles), TASK)
    assert power[name][0] == pytest.approx(32 * 32 * 50**2 / 2, rel=0.03)  # rounded to grey levels
    assert sum(power.values())[0] == pytest.approx(np.var(luminance(wave(half_cycles))) * 32 * 32)
    assert all(values[0] < 0.001 * power[name][0] for band, values in power.items() if band != name)


def test_half_the_amplitude_is_6_db_less_and_half_the_detail():
    scores = detail_scores(wave(12, amplitude=40), wave(12, amplitude=80), TASK)
    assert scores["power_4_to_8"].value == pytest.approx(-6.02, abs=0.05)
    assert scores["detail"].value == pytest.approx(0.5, rel=0.01)


def test_the_truth_has_all_detail_a_blurred_picture_less_and_a_noisy_one_more(noise):
    truth = np.stack([gaussian_filter(picture, (1, 1, 0)) for picture in noise])
    same = detail_scores(truth, truth, TASK)
    assert same["detail"].value == 1
    assert all(score.value == 0 for name, score in same.items() if name.startswith("power"))
    soft = detail_scores(np.stack([gaussian_filter(picture, (1.5, 1.5, 0)) for picture in truth]),
                         truth, TASK)
    rough = detail_scores((truth * 0.8 + noise * 0.2).astype(np.uint8), truth, TASK)
    assert soft["detail"].value < 0.7 < 1 < rough["detail"].value
    assert soft["power_over_8"].value < soft["power_4_to_8"].value < soft["power_0_to_4"].value < 0
    assert rough["power_over_8"].value > 3


def test_a_constant_truth_has_no_ratio():
    flat = grey(np.full((3, 32, 32), 90))
    assert (detail_scores(flat, flat, TASK)["detail"].entries("detail")
            == {"detail": None, "detail_half_width": None})
