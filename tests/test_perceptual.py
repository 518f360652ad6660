"""FSIM ranks what one sees, and without its package there is one line with the remedy."""

import itertools
import sys

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter
from skimage import data

from superres.evaluation.perceptual import BATCH, fsim
from superres.evaluation.picture_scores import quality
from superres.tasks.faces import area_reduce, enlarge


@pytest.fixture(autouse=True)
def fresh():
    fsim.cache_clear()
    yield
    fsim.cache_clear()


def photographs(side=64):
    squares = [data.astronaut()[:256, 96:352], data.coffee()[80:336, 150:406], data.chelsea()[20:276, 100:356]]
    return np.stack([np.asarray(Image.fromarray(square).resize((side, side), Image.Resampling.BOX))
                     for square in squares])


def test_fsim_ranks_enlargements_by_sharpness_and_each_picture_alone():
    pytest.importorskip("piq")
    score, truth = fsim(), photographs()
    small = area_reduce(truth, 32, 32, is_reduced=True)
    blurred = np.stack([gaussian_filter(image, (0.5, 0.5, 0)) for image in truth])
    scores = [score(images, truth) for images in (
        truth, blurred, enlarge(small, "lanczos", 64), enlarge(small, "nearest", 64))]
    np.testing.assert_allclose(scores[0], 1, atol=1e-6)
    assert all((better > worse).all() for better, worse in itertools.pairwise(scores))
    many = -(-(BATCH + 1) // 3)
    np.testing.assert_allclose(score(np.tile(blurred, (many, 1, 1, 1)), np.tile(truth, (many, 1, 1, 1))),
                               np.tile(scores[1], many), rtol=1e-5)


def test_without_its_package_fsim_is_left_out_and_named_once_with_the_remedy(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "piq", None)
    truth = photographs(32)
    assert set(quality(truth, truth)) == set(quality(truth, truth)) == {"psnr", "ssim"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("superres: FSIM is left out, since piq cannot be imported (")
    assert line.endswith("; pip install 'superres[scores]'")
