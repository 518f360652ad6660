"""Perceptual scores: they rank what one sees, and a missing package or file is one line with the remedy."""

import importlib.util
import itertools
import json
import pickle
import sys

import numpy as np
import pytest
import torch
from fakes import FakeUpscaler
from PIL import Image
from scipy.ndimage import gaussian_filter
from skimage import data

from superres.config import DecodeConfig
from superres.evaluation.perceptual import BATCH, perceptual_measures
from superres.evaluation.pictures import evaluate_images, report_table
from superres.tasks.face_data import FacePairs
from superres.tasks.faces import area_reduce, enlarge


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    """No weights, and nothing remembered."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    perceptual_measures.cache_clear()
    yield
    perceptual_measures.cache_clear()


def photographs(count=3, side=64):
    squares = [data.astronaut()[:256, 96:352], data.coffee()[80:336, 150:406], data.chelsea()[20:276, 100:356]]
    return np.stack([np.asarray(Image.fromarray(square).resize((side, side), Image.Resampling.BOX))
                     for square in squares[:count]])


def weights_of_alexnet(folder):
    """Write random weights in the form of torchvision's file; those of its unused layers take no space."""
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in models.alexnet().state_dict().items()}
    state = {name: torch.zeros(1).expand(shape) if name.startswith("classifier") else 0.05 * torch.randn(shape)
             for name, shape in shapes.items()}
    (folder / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(state, folder / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth")


def test_fsim_ranks_enlargements_by_sharpness_and_each_picture_alone():
    pytest.importorskip("piq")
    fsim = perceptual_measures()[0]["fsim"]
    truth = photographs()
    small = area_reduce(truth, 32, 32, is_reduced=True)
    blurred = np.stack([gaussian_filter(image, (0.5, 0.5, 0)) for image in truth])
    scores = [fsim(images, truth) for images in (
        truth, blurred, enlarge(small, "lanczos", 64), enlarge(small, "nearest", 64))]
    np.testing.assert_allclose(scores[0], 1, atol=1e-6)
    assert all((better > worse).all() for better, worse in itertools.pairwise(scores))
    many = -(-(BATCH + 1) // 3)
    np.testing.assert_allclose(fsim(np.tile(blurred, (many, 1, 1, 1)), np.tile(truth, (many, 1, 1, 1))),
                               np.tile(scores[1], many), rtol=1e-5)


@pytest.mark.slow
def test_lpips_reads_the_weights_of_torchvisions_cache(tmp_path, monkeypatch):
    pytest.importorskip("lpips")
    weights_of_alexnet(tmp_path)
    monkeypatch.setattr(torch.hub, "download_url_to_file", None)  # nothing is downloaded
    measures, left_out = perceptual_measures()
    truth = photographs()
    np.testing.assert_allclose(measures["lpips"](truth, truth), 0, atol=1e-6)
    assert (measures["lpips"](255 - truth, truth) > 1e-4).all()
    assert not any("LPIPS" in line for line in left_out)


@pytest.mark.parametrize("content", [b"", b"damaged", pickle.dumps({"features.0.weight": 1})])
def test_damaged_weights_are_one_line(content, tmp_path):
    pytest.importorskip("lpips")
    file = tmp_path / "hub" / "checkpoints" / "alexnet-owt-7be5be79.pth"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    line = perceptual_measures()[1][-1]
    assert line.startswith(f"LPIPS is left out: {file} is damaged; download it again from https://")
    assert "\n" not in line


def test_what_is_missing_is_left_out_of_the_table_and_named_with_the_remedy(monkeypatch, tmp_path):
    hr = photographs(2, 32)
    pairs = FacePairs(hr, area_reduce(hr, 8, 8), np.arange(2, dtype=np.int32))
    if importlib.util.find_spec("lpips"):
        line = next(line for line in perceptual_measures()[1] if line.startswith("LPIPS is left out: its weights "))
        assert line.endswith(f"/alexnet-owt-7be5be79.pth to {tmp_path / 'hub' / 'checkpoints'}")
    for package in ("piq", "lpips"):
        monkeypatch.setitem(sys.modules, package, None)
    perceptual_measures.cache_clear()
    report, _ = evaluate_images(pairs, FakeUpscaler(), DecodeConfig())
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert not {"fsim", "lpips"} & set(report["methods"]["greedy"])
    assert [line[:5] for line in report["left_out"]] == ["FSIM ", "LPIPS"]
    assert all(line.endswith("pip install 'superres[scores]'") and "\n" not in line for line in report["left_out"])
    table = report_table(report)
    assert not any("FSIM" in line for line in table.splitlines()[:-2])
    assert all(line in table for line in report["left_out"])
