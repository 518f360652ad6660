"""The perceptual score FSIM, by the package piq (`scores` extra), which needs no weights.

LPIPS needs those of AlexNet, which no package has. HaarPSI, GMSD and their relatives reduce pictures before they
compare them, and so hardly see the difference between a picture and its enlargement to twice the size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from superres.system.progress import say
from superres.tasks.pictures import Pixels

Scores: TypeAlias = npt.NDArray[np.float64]

BATCH = 32  # pictures that are scored together, which bounds the memory


@functools.cache
def fsim() -> Callable[[Pixels, Pixels], Scores] | None:
    """Return a function that computes the FSIM of images and their references, float64 [N], from uint8 [N,H,W,3] each.

    The feature similarity of colour pictures (FSIMc of Zhang et al. 2011, "FSIM: A Feature Similarity Index for Image
    Quality Assessment") is 1 for equal pictures and less for others. Returns None, after one line with the remedy, if
    piq cannot be imported.
    """
    try:
        import piq
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: torchvision was built for another torch
        say(f"FSIM is left out, since piq cannot be imported ({' '.join(str(error).split())}); pip install "
            "'superres[scores]'")
        return None

    def score(images: Pixels, references: Pixels) -> Scores:
        parts = [np.empty(0)]
        for first in range(0, len(images), BATCH):
            pair = [torch.from_numpy(pictures[first : first + BATCH]).movedim(-1, 1) / 255
                    for pictures in (images, references)]
            parts.append(piq.fsim(*pair, reduction="none").double().numpy())
        return np.concatenate(parts)

    return score
