"""Read a visitor's picture, crop it to a square, and reduce it as in training."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeVar

from superres.config import require
from superres.errors import InvalidInputError
from superres.tasks.faces import FaceTask
from superres.tasks.photos import Crop, choose_crops
from superres.tasks.pictures import Pixels, read_picture
from superres.web.files import NOT_UPLOADED

Result = TypeVar("Result")

MAX_PIXELS = 24_000_000
"""Largest number of pixels of a picture, about 72 MB in memory; the header is checked before decoding."""
READER = ThreadPoolExecutor(1, thread_name_prefix="reading")
"""Thread that reads pictures: one is in memory at its full size, and one heap of the C library keeps freed memory."""


@dataclass(frozen=True)
class CropShare:
    """A square crop of a photo in percent, as programs give it.

    Attributes:
        x: centre from the left edge, in percent of the width.
        y: centre from the top edge, in percent of the height.
        size: side of the square, in percent of the photo's shorter side.
    """

    x: float = 50.0
    y: float = 50.0
    size: float = 100.0

    def __post_init__(self) -> None:
        for name, low in (("x", 0), ("y", 0), ("size", 1)):
            value = getattr(self, name)
            require(isinstance(value, (int, float)) and low <= value <= 100,
                    f"crop {name} must be a percentage from {low} to 100, not {value!r}")

    def of(self, image: Pixels, task: FaceTask) -> Crop:
        """Return the square of a picture [H, W, 3]; it lies inside, and is at least as large as the network's input."""
        height, width = image.shape[:2]
        side = min(max(round(min(width, height) * self.size / 100), task.source), width, height)
        left, top = round(width * self.x / 100 - side / 2), round(height * self.y / 100 - side / 2)
        return Crop(min(max(left, 0), width - side), min(max(top, 0), height - side), side, "given")


@dataclass(frozen=True, eq=False)
class Subject:
    """The input of a decoding, and its ground truth.

    Attributes:
        source: uint8 [source, source, 3].
        truth: the crop of the photo reduced to uint8 [target, target, 3]; None without a photo or if it is too small.
        crop: crop of the photo; None without a photo.
    """

    source: Pixels
    truth: Pixels | None = None
    crop: Crop | None = None


def reduce_picture(
    file: str | os.PathLike[str] | IO[bytes], reduce: Callable[[Pixels], Result], least: int, name: str = "the file",
) -> Result:
    """Read a picture file and return `reduce` of its pixels; the result must not refer to their memory.

    Args:
        file: an upload's path, or an open file. An upload counts as used now, so a sweep keeps it.
        reduce: function of the picture, uint8 [H, W, 3].
        least: smallest width and height of the picture, the side of the network's input.
        name: name of the file in messages, which never contain the server's paths.

    Raises:
        InvalidInputError: the file is not a picture, is damaged, too small or too large, or has been deleted.
    """
    if isinstance(file, (str, os.PathLike)):
        try:
            os.utime(file)
        except (OSError, ValueError):
            raise InvalidInputError(f"{name} {NOT_UPLOADED}") from None
    return READER.submit(lambda: reduce(read_picture(file, name, MAX_PIXELS, least=least).rgb)).result()


def default_crop(image: Pixels, task: FaceTask) -> Crop:
    """Return the crop that `superres upscale` uses for a picture: of several faces, the largest one's."""
    return largest(choose_crops(image, task))


def largest(crops: Sequence[Crop]) -> Crop:
    """Return the largest crop; of equal ones, the first."""
    return max(crops, key=lambda crop: crop.size)


def take(image: Pixels, task: FaceTask, crop: Crop | None = None) -> Subject:
    """Crop a picture, uint8 [H, W, 3], by default as `superres upscale` does; one of the input's size is the source."""
    if task.is_source(image):
        return Subject(image)
    crop = crop or default_crop(image, task)
    square = crop.take(image)
    return Subject(task.source_of(square), task.target_of(square) if crop.size >= task.target else None, crop)


def file_name(path: str) -> str:
    """Return the last part of a path from a browser or a zip file, with slashes or backslashes."""
    return Path(path.replace("\\", "/")).name or "unnamed"
