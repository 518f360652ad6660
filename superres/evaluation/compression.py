"""Bytes that pictures need: the ideal code length under p1 beside the files of lossless formats."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.pictures.read import Pixels
from superres.tasks.face_data import FacePairs

Bytes = npt.NDArray[np.float64]

FORMATS: dict[str, dict[str, Any]] = {
    "png": {"format": "PNG", "optimize": True},
    "webp": {"format": "WEBP", "lossless": True, "quality": 100, "method": 6},
}
"""Pillow's options for the smallest files of lossless formats, by name."""


def smallest_file(image: Pixels, form: str) -> bytes:
    """Return an image, uint8 [H,W,3], as a file of a format in FORMATS."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, **FORMATS[form])
    return buffer.getvalue()


def file_sizes(images: Pixels, form: str) -> Bytes:
    """Return the bytes of the `smallest_file` of each image, float64 [N], from uint8 [N,H,W,3]."""
    return np.array([len(smallest_file(image, form)) for image in images], np.float64)


def picture_bytes(pairs: FacePairs, bits_per_dim: npt.NDArray[np.float64]) -> dict[str, Bytes]:
    """Return the bytes that each true picture needs, float64 [N] each.

    "p1" is the ideal code length at `bits_per_dim` [N], for a receiver who has the input.
    "p1_and_input" adds the file of the input as WebP, so it compares with "png" and "webp", the
    files of the true picture.
    """
    code = bits_per_dim * math.prod(pairs.hr.shape[1:]) / 8
    return {"p1": code, "p1_and_input": code + file_sizes(pairs.lr, "webp"),
            **{form: file_sizes(pairs.hr, form) for form in FORMATS}}
