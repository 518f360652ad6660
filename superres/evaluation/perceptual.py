"""ST-LPIPS, a perceptual distance of pictures, with the weights in the package stlpips-pytorch
(`scores` extra)."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from superres.pictures.read import Pixels
from superres.system.progress import say

if TYPE_CHECKING:  # the page has scores, too, and waits for no torch
    import torch

Scores: TypeAlias = npt.NDArray[np.float64]
Weights: TypeAlias = "dict[str, torch.Tensor]"

BATCH = 32  # pictures that are scored together, which bounds the memory
WEIGHTS = "weights/vST0.0/vgg_shift_tolerant.pth"
CONVOLUTIONS = ((0, 2), (6, 8), (12, 14, 16), (20, 22, 24), (28, 30, 32))
"""Number of each convolution of VGG-16 in the weights, by the stage that it belongs to."""
LEAST_SIDE = 18
"""Side of the smallest pictures: after four reductions by two, the mirrored border needs more than
two pixels."""


@functools.cache
def st_lpips() -> Callable[[Pixels, Pixels], Scores] | None:
    """Return a function that computes the ST-LPIPS of images and their references, float64 [N],
    from uint8 [N,H,W,3].

    The shift-tolerant LPIPS of Ghildyal and Liu 2022, "Shift-tolerant Perceptual Similarity
    Metric", is the weighted distance of the features of a VGG-16 whose poolings blur: 0 for equal
    pictures and more for others, mostly below 1. Sides are at least `LEAST_SIDE`. The network is
    computed here: the package's own code imports two packages that it does not declare, and parts
    of it are for non-commercial use only.

    Returns None, after one line with the remedy, if the package is not installed.
    """
    package = importlib.util.find_spec("stlpips_pytorch")
    if package is None or not package.submodule_search_locations:
        say("ST-LPIPS is left out, since stlpips-pytorch is not installed; pip install "
            "'superres[scores]'")
        return None
    import torch

    path = Path(package.submodule_search_locations[0]) / WEIGHTS
    weights: Weights = torch.load(path, map_location="cpu", weights_only=True)

    def score(images: Pixels, references: Pixels) -> Scores:
        parts = [np.empty(0)]
        for first in range(0, len(images), BATCH):
            pair = np.stack([pictures[first : first + BATCH] for pictures in (images, references)])
            with torch.inference_mode():
                parts.append(distance(weights, torch.from_numpy(pair)).double().numpy())
        return np.concatenate(parts)

    return score


def distance(weights: Weights, pair: torch.Tensor) -> torch.Tensor:
    """Return the ST-LPIPS [N] of pairs of pictures, uint8 [2,N,H,W,3]."""
    from torch.nn import functional

    x = pair.flatten(0, 1).movedim(-1, 1) / 127.5 - 1  # [2N, 3, H, W]
    x = (x - weights["scaling_layer.shift"]) / weights["scaling_layer.scale"]
    total = x.new_zeros(pair.shape[1])
    for stage, numbers in enumerate(CONVOLUTIONS):
        part = f"net.slice{stage + 1}"
        if stage:
            x = blurred_pooling(x, weights[f"{part}.{numbers[0] - 1}.filt"])
        for number in numbers:
            x = functional.conv2d(x, weights[f"{part}.{number}.weight"],
                                  weights[f"{part}.{number}.bias"], padding=1)
            x = x.relu()
        images, references = functional.normalize(x, eps=1e-10).chunk(2)
        squares = (images - references).square()
        total += functional.conv2d(squares, weights[f"lin{stage}.model.1.weight"]).mean((1, 2, 3))
    return total


def blurred_pooling(x: torch.Tensor, blur: torch.Tensor) -> torch.Tensor:
    """Return the maxima of 2x2 pixels of [N,C,H,W], blurred by `blur` [C,1,3,3] and reduced by
    two."""
    from torch.nn import functional

    maxima = functional.pad(functional.max_pool2d(x, 2, stride=1), (2, 2, 2, 2), mode="reflect")
    return functional.conv2d(maxima, blur, stride=2, groups=x.shape[1])
