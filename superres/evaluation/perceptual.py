"""Perceptual scores of pictures, by packages of the extra `scores`: FSIM, and LPIPS where its weights are.

FSIM needs no weights. HaarPSI, GMSD and their relatives reduce pictures before they compare them, and so hardly see the
difference between a picture and its enlargement to twice the size.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from superres.errors import ConfigError
from superres.tasks.pictures import Pixels

Scores: TypeAlias = npt.NDArray[np.float64]
Measure: TypeAlias = Callable[[Pixels, Pixels], Scores]
"""Returns each image's score, float64 [N], from images and their references, uint8 [N,H,W,3] each."""

BATCH = 32  # pictures that are scored together, which bounds the memory


@functools.cache
def perceptual_measures() -> tuple[dict[str, Measure], list[str]]:
    """Return the perceptual scores that are available, by name, and for each other one a line with the remedy."""
    measures: dict[str, Measure] = {}
    left_out: list[str] = []
    for name, load in (("fsim", _fsim), ("lpips", _lpips)):
        try:
            measures[name] = load()
        except ConfigError as error:
            left_out.append(f"{name.upper()} is left out: {error}")
    return measures, left_out


def _fsim() -> Measure:
    """Return FSIM of colour pictures (Zhang et al. 2011, FSIMc): 1 for equal pictures, less for others."""
    piq = _package("piq")
    return _measure(lambda images, references: piq.fsim(images, references, reduction="none"))


def _lpips() -> Measure:
    """Return LPIPS by AlexNet (Zhang et al. 2018, version 0.1): 0 for equal pictures, more for others."""
    lpips = _package("lpips")
    url = _package("torchvision.models").AlexNet_Weights.IMAGENET1K_V1.url
    weights = Path(torch.hub.get_dir(), "checkpoints", Path(url).name)
    if not weights.is_file():  # torchvision would download them
        raise ConfigError(f"its weights are missing; download {url} to {weights.parent}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # lpips calls torchvision in an old way
            network = lpips.LPIPS(net="alex", verbose=False)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        raise ConfigError(f"{weights} is damaged; download it again from {url}") from error
    return _measure(lambda images, references: network(images, references, normalize=True))


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: torchvision was built for another torch
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} cannot be imported ({reason}); pip install 'superres[scores]'") from error


def _measure(score: Callable[[Tensor, Tensor], Tensor]) -> Measure:
    """Return a measure from a function of tensors [N,3,H,W] in [0, 1] that gives N values."""
    def measure(images: Pixels, references: Pixels) -> Scores:
        parts = [np.empty(0)]
        with torch.inference_mode():
            for first in range(0, len(images), BATCH):
                pair = (torch.from_numpy(pictures[first : first + BATCH]).movedim(-1, 1) / 255
                        for pictures in (images, references))
                parts.append(score(*pair).flatten().double().numpy())
        return np.concatenate(parts)
    return measure
