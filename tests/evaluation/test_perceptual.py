"""ST-LPIPS sees what the package of its weights sees, and without it there is one line with the
remedy."""

import itertools
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from skimage import data

from superres.evaluation.perceptual import BATCH, LEAST_SIDE, st_lpips
from superres.evaluation.picture_scores import quality
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce, enlarge


@pytest.fixture(autouse=True)
def fresh():
    st_lpips.cache_clear()
    yield
    st_lpips.cache_clear()


@pytest.fixture
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


def test_it_is_0_for_equal_pictures_and_grows_with_blur_for_each_picture_alone(score):
    truth = photographs()
    scores = [score(blurred(truth, sigma), truth) for sigma in (0, 0.5, 1, 2)]
    np.testing.assert_array_equal(scores[0], 0)
    assert all((better < worse).all() for better, worse in itertools.pairwise(scores))
    many = -(-(BATCH + 1) // 3)
    np.testing.assert_allclose(score(np.tile(blurred(truth, 1), (many, 1, 1, 1)),
                                     np.tile(truth, (many, 1, 1, 1))),
                               np.tile(scores[2], many), rtol=1e-4)


def test_it_prefers_detail_at_a_wrong_place_to_blur_and_psnr_prefers_blur(score):
    truth = photographs().astype(int)
    soft = blurred(truth, 2)
    misplaced = np.clip(soft + np.roll(truth - soft, 2, axis=2), 0, 255)
    errors = [np.square(pictures - truth).mean(axis=(1, 2, 3)) for pictures in (misplaced, soft)]
    scores = [score(pictures.astype(np.uint8), truth.astype(np.uint8)) for pictures in (misplaced,
                                                                                        soft)]
    assert (errors[0] > errors[1]).all()
    assert (scores[0] < scores[1]).all()


@pytest.mark.parametrize("side", [LEAST_SIDE, 32, 64])
def test_it_is_the_distance_of_the_package_of_its_weights(score, side):
    for undeclared in ("IPython", "torchsummary"):
        pytest.importorskip(undeclared, reason="the package imports it")
    package = pytest.importorskip("stlpips_pytorch.stlpips")
    network = package.LPIPS(net="vgg", variant="shift_tolerant", verbose=False)
    truth = photographs(side)
    images = enlarge(area_reduce(truth, side // 2, side // 2), "bicubic", side)
    first, second = (torch.from_numpy(pictures).movedim(-1, 1) / 127.5 - 1 for pictures in (images,
                                                                                            truth))
    with torch.inference_mode():
        np.testing.assert_allclose(score(images, truth), network(first, second).flatten(),
                                   rtol=1e-4)


def test_pictures_that_are_too_small_for_it_have_the_other_scores():
    truth = photographs(LEAST_SIDE - 2)
    pairs = FacePairs(truth, area_reduce(truth, 4, 4), np.arange(3, dtype=np.int32))
    assert ({"psnr", "ssim", "detail"} <= set(quality(truth, pairs)) - {"st_lpips"}
            == set(quality(truth, pairs)))


def test_without_its_package_it_is_left_out_and_named_once_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "stlpips_pytorch", raising=False)
    assert st_lpips() is st_lpips() is None
    assert capsys.readouterr().err == (
        "superres: ST-LPIPS is left out, since stlpips-pytorch is not installed; pip install "
        "'superres[scores]'\n")
