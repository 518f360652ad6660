"""What a visitor uploads: read by the reader of the command line, cropped to a square, reduced as in training."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from superres.config import require
from superres.errors import InvalidInputError
from superres.tasks.faces import HIGH_SIZE, LOW_SIZE, area_reduce, crop_square, read_image
from superres.web.files import NOT_UPLOADED

Pixels = npt.NDArray[np.uint8]
Result = TypeVar("Result")

MAX_PIXELS = 24_000_000
"""Larger pictures are refused from their header: about 72 MB each once decoded."""
READING = threading.Lock()
"""Held while a picture is in memory at its full size: one at a time, whatever the number of visitors."""


@dataclass(frozen=True)
class Crop:
    """A square of a photo.

    Attributes:
        x: its centre from the left edge, in percent of the width.
        y: its centre from the top edge, in percent of the height.
        size: its side, in percent of the shorter side of the photo.
    """

    x: float = 50.0
    y: float = 50.0
    size: float = 100.0

    def __post_init__(self) -> None:
        for name, low in (("x", 0), ("y", 0), ("size", 1)):
            value = getattr(self, name)
            require(isinstance(value, (int, float)) and low <= value <= 100,
                    f"crop {name} must be a percentage from {low} to 100, not {value!r}")

    def box(self, width: int, height: int) -> tuple[int, int, int]:
        """Return left, top and side in pixels, moved and grown to lie inside the photo and span at least 8 pixels."""
        side = min(max(round(min(width, height) * self.size / 100), LOW_SIZE), width, height)
        left, top = round(width * self.x / 100 - side / 2), round(height * self.y / 100 - side / 2)
        return min(max(left, 0), width - side), min(max(top, 0), height - side), side


@dataclass(frozen=True, eq=False)
class Subject:
    """What is decoded, and what it was made from.

    Attributes:
        source: uint8 [8, 8, 3].
        truth: uint8 [32, 32, 3], the same crop reduced less; None where there was no photo large enough.
    """

    source: Pixels
    truth: Pixels | None = None


def reduce_upload(path: str | os.PathLike[str], reduce: Callable[[Pixels], Result], name: str = "the file") -> Result:
    """Read an upload and return what `reduce` makes of it, of which the picture itself must be no part.

    Args:
        path: the temporary file, of which is known that it belongs to the visitor.
        reduce: a function of the picture, uint8 [H, W, 3], at least 8x8.
        name: what to call it in messages, which never show the server's own paths.

    Raises:
        InvalidInputError: it is no picture, damaged, too small or too large, or was deleted meanwhile.
    """
    try:
        is_readable = stat.S_ISREG(os.lstat(path).st_mode) and os.access(path, os.R_OK)
        if is_readable:
            os.utime(path)  # in use: the sweep of old files leaves it alone for a while
    except (OSError, ValueError):
        is_readable = False
    if not is_readable:
        raise InvalidInputError(f"{name} {NOT_UPLOADED}")
    try:
        with READING:
            return reduce(read_image(path, MAX_PIXELS))
    except InvalidInputError as error:
        raise InvalidInputError(str(error).replace(str(path), name)) from None


def is_photo(image: Pixels) -> bool:
    """Tell whether a picture has to be cropped and reduced, rather than being an input as it is."""
    return image.shape[:2] != (LOW_SIZE, LOW_SIZE)


def default_crop(image: Pixels) -> Crop:
    """Return the crop that `superres upscale` takes of a picture."""
    height, width = image.shape[:2]
    return Crop(size=100 * len(crop_square(image)) / min(height, width))


def take(image: Pixels, crop: Crop | None = None) -> Subject:
    """Crop and reduce a picture, uint8 [H, W, 3]; an 8x8 one is the source itself.

    Args:
        image: the picture.
        crop: which square of a photo; the one of `superres upscale` if None.
    """
    if not is_photo(image):
        return Subject(image)
    left, top, side = (crop or default_crop(image)).box(image.shape[1], image.shape[0])
    square = image[top:top + side, left:left + side]
    truth = area_reduce(square, HIGH_SIZE, HIGH_SIZE) if side >= HIGH_SIZE else None
    return Subject(area_reduce(square, LOW_SIZE, LOW_SIZE), truth)


def shrink(image: Pixels, longest: int) -> Pixels:
    """Reduce a picture to at most `longest` pixels a side, for showing it."""
    height, width = image.shape[:2]
    scale = min(1.0, longest / max(height, width))
    return area_reduce(image, max(1, round(height * scale)), max(1, round(width * scale)))


def file_name(path: str) -> str:
    """Return the last part of a name as browsers and zip files give it, without the folders of any system."""
    return Path(path.replace("\\", "/")).name or "unnamed"
