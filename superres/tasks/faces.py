"""Faces: conversion between pictures and tokens, reduction of photographs to 8x8, and readers of data sets.

A token is one intensity in 0..255. A picture is the sequence of its intensities in raster order; the red, green and
blue of a pixel are consecutive. Photographs are reduced as in Tensor2Tensor's Img2imgCeleba: crop, then exact area
averaging with truncation.
"""

from __future__ import annotations

import hashlib
import math
import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
from PIL import Image
from tqdm import tqdm

from superres.errors import InvalidInputError, OutputError
from superres.system.output import scratch_file
from superres.tasks.pictures import IMAGE_SUFFIXES, Pixels
from superres.tasks.pictures import read_image as read_image  # for users

Int64 = npt.NDArray[np.int64]
Source = Literal["auto", "lowres", "photo"]
Split = Literal["train", "valid", "test"]

name = "faces"
LOW_SIZE = 8
HIGH_SIZE = 32
LARGE_SIZE = 40
"""Smallest side of a picture from which random crops are cut."""
INTENSITIES = 256
SOURCES: tuple[str, ...] = get_args(Source)
SPLITS: tuple[str, ...] = get_args(Split)
ENLARGEMENTS = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}
SMALLEST_CROP = 0.8
"""Smallest side of a random crop, over the side of the picture."""
CELEBA_ALIGNED = (218, 178)
"""Height and width of CelebA's aligned pictures."""


def area_reduce(images: Pixels, rows: int, columns: int, *, is_reduced: bool = False) -> Pixels:
    """Average boxes of fractional size exactly and truncate, as Tensor2Tensor's Img2imgCeleba does.

    Truncation lowers intensities by half a grey level on average. Pictures that were reduced before have lost this
    half already, so their averages are rounded.

    Args:
        images: uint8 [..., H, W, C]; H is at least `rows`, and W is at least `columns`.
        rows: number of rows of the result, at least 1.
        columns: number of columns of the result, at least 1.
        is_reduced: whether `images` are truncated averages themselves.

    Returns:
        uint8 [..., rows, columns, C].

    Raises:
        InvalidInputError: the images are not uint8, or the result would be larger.
    """
    if images.dtype != np.uint8 or images.ndim < 3:
        raise InvalidInputError(f"area_reduce needs uint8 [..., H, W, C], not {_describe(images)}; convert it first")
    height, width = images.shape[-3:-1]
    if not (1 <= rows <= height and 1 <= columns <= width):
        raise InvalidInputError(f"cannot reduce {height}x{width} to {rows}x{columns}; choose a smaller size")
    total = _box_sums(_box_sums(images, rows, -3), columns, -2)
    half = height * width // 2 if is_reduced else 0
    return np.asarray((total + half) // (height * width), np.uint8)


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _box_sums(values: npt.NDArray[Any], size: int, axis: int) -> Int64:
    """Sum `size` equal boxes along `axis`, in units of 1/`size` of an element, so that all sums are whole numbers."""
    length = values.shape[axis]
    edge, rest = np.divmod(np.arange(size + 1, dtype=np.int64) * length, size)
    # Sum box by box; np.add.reduceat would copy the whole picture to int64, over 1 GB for a large photograph.
    boxes = np.split(values, edge[1:-1], axis=axis)
    whole = np.stack([box.sum(axis=axis, dtype=np.int64) for box in boxes], axis=axis)
    # An element that a box edge divides belongs to both boxes in proportion. The last edge has rest 0.
    at_edge = np.take(values, np.minimum(edge, length - 1), axis=axis).astype(np.int64)
    before = at_edge * np.expand_dims(rest, tuple(range(1, -axis)))
    return cast(Int64, size * whole + np.diff(before, axis=axis))


def crop_celeba(image: Pixels) -> Pixels:
    """Crop Img2imgCeleba's 138x138 face from an aligned CelebA picture, uint8 [218, 178, 3].

    Raises:
        InvalidInputError: the picture has another shape.
    """
    if image.shape != (*CELEBA_ALIGNED, 3):
        raise InvalidInputError(f"the CelebA crop needs [218, 178, 3], not {list(image.shape)}; use aligned pictures")
    return image[40:178, 20:158]


def crop_square(image: Pixels) -> Pixels:
    """Crop a square from uint8 [H, W, 3]: the CelebA crop if it is 178 wide and 218 high, otherwise the centre."""
    height, width = image.shape[:2]
    if (height, width) == CELEBA_ALIGNED:
        return crop_celeba(image)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]


def random_crop(picture: Pixels, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Cut a random square from a reduced picture and reduce it to both sizes.

    The side is uniform between SMALLEST_CROP and 1 of the picture's side. The place is uniform inside the picture, so
    the mean centre is the picture's centre.

    Args:
        picture: uint8 [S, S, 3], a truncated average of a crop; S is at least 40.
        rng: random numbers.

    Returns:
        uint8 [32, 32, 3] and [8, 8, 3], both averaged from the same square.
    """
    whole = len(picture)
    side = int(rng.integers(math.ceil(SMALLEST_CROP * whole), whole, endpoint=True))
    top, left = rng.integers(0, whole - side, 2, endpoint=True)
    square = picture[top : top + side, left : left + side]
    return _both_sizes(square)


def _both_sizes(reduced: Pixels) -> tuple[Pixels, Pixels]:
    """Return reduced pictures, uint8 [..., S, S, 3], at 32x32 and 8x8."""
    high, low = (area_reduce(reduced, size, size, is_reduced=True) for size in (HIGH_SIZE, LOW_SIZE))
    return high, low


def to_source(image: Pixels, source: Source = "auto") -> Pixels:
    """Make the network's 8x8 input from a picture.

    Args:
        image: uint8 [H, W, 3], at least 8x8.
        source: "auto" leaves 8x8 unchanged and reduces larger pictures; "lowres" requires 8x8; "photo" crops and
            reduces.

    Returns:
        uint8 [8, 8, 3].

    Raises:
        InvalidInputError: `source` is unknown, the picture is too small, or `source` is "lowres" and it is not 8x8.
    """
    if source not in SOURCES:
        raise InvalidInputError(f"unknown source {source!r}; known: {', '.join(SOURCES)}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise InvalidInputError(f"an image must be uint8 [H, W, 3], not {_describe(image)}; convert it to RGB")
    height, width = image.shape[:2]
    if source == "lowres" and (height, width) != (LOW_SIZE, LOW_SIZE):
        raise InvalidInputError(f"source 'lowres' needs an 8x8 image, not {width}x{height}; use 'auto' or 'photo'")
    if min(height, width) < LOW_SIZE:
        raise InvalidInputError(f"an image must be at least 8x8, not {width}x{height}; use a larger one")
    return area_reduce(crop_square(image), LOW_SIZE, LOW_SIZE)


def encode(images: Pixels) -> Int64:
    """Convert uint8 [N, h, w, 3] to tokens, int64 [N, h * w * 3] in 0..255, in raster order, R G B.

    Raises:
        InvalidInputError: `images` has another type or shape.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise InvalidInputError(f"images must be uint8 [N, h, w, 3], not {_describe(images)}; convert to RGB")
    return images.reshape(len(images), int(np.prod(images.shape[1:]))).astype(np.int64)


def decode(tokens: npt.ArrayLike) -> Pixels:
    """Convert tokens, whole numbers [N, 3072] in 0..255, to uint8 [N, 32, 32, 3].

    Raises:
        InvalidInputError: `tokens` has another type or shape, or a token is out of range.
    """
    array = np.asarray(tokens)
    length = HIGH_SIZE * HIGH_SIZE * 3
    if not np.issubdtype(array.dtype, np.integer) or array.ndim != 2 or array.shape[1] != length:
        raise InvalidInputError(f"tokens must be whole numbers [N, {length}], not {_describe(array)}; pass one row per "
                                "face")
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if low < 0 or high > 255:
        raise InvalidInputError(f"tokens must be in 0..255, not {low}..{high}; decode them with their own task")
    return array.astype(np.uint8).reshape(-1, HIGH_SIZE, HIGH_SIZE, 3)


def enlarge(images: Pixels, method: str, size: int = HIGH_SIZE) -> Pixels:
    """Enlarge uint8 [N, h, w, 3] to [N, size, size, 3] with Pillow's "nearest" or "bicubic", for comparison.

    Raises:
        InvalidInputError: the method is unknown.
    """
    if method not in ENLARGEMENTS:
        raise InvalidInputError(f"unknown enlargement {method!r}; known: {', '.join(ENLARGEMENTS)}")
    enlarged = [np.asarray(Image.fromarray(image).resize((size, size), ENLARGEMENTS[method])) for image in images]
    return np.array(enlarged, np.uint8).reshape(-1, size, size, 3)


@dataclass(frozen=True, eq=False)
class FacePairs:
    """Pictures at both sizes.

    Attributes:
        hr: uint8 [N, 32, 32, 3], RGB.
        lr: uint8 [N, 8, 8, 3], RGB, reduced from the same crop as `hr` (not from `hr`).
        ids: int32 [N], number of each picture.
        large: uint8 [N, S, S, 3], the same crop with S of at least 40, for random crops; or None.

    Raises:
        InvalidInputError: an array has the wrong type or shape, or the arrays' lengths differ.
    """

    hr: Pixels
    lr: Pixels
    ids: npt.NDArray[np.int32]
    large: Pixels | None = None

    def __post_init__(self) -> None:
        count = len(self.ids) if self.ids.ndim else 0
        expected = {
            "hr": ("uint8", (count, HIGH_SIZE, HIGH_SIZE, 3)),
            "lr": ("uint8", (count, LOW_SIZE, LOW_SIZE, 3)),
            "ids": ("int32", (count,)),
        }
        if self.large is not None:
            side = max(self.large.shape[1] if self.large.ndim > 1 else 0, LARGE_SIZE)
            expected["large"] = ("uint8", (count, side, side, 3))
        for key, (dtype, shape) in expected.items():
            array = getattr(self, key)
            if array.dtype != dtype or array.shape != shape:
                raise InvalidInputError(f"{key} must be {dtype} {list(shape)}, not {_describe(array)}; "
                                        "prepare the data again with scripts/prepare_celeba.py")

    def __len__(self) -> int:
        """Return the number of pictures N."""
        return len(self.ids)


def random_crops(pairs: FacePairs, seed: int) -> FacePairs:
    """Return one `random_crop` of each picture, determined by the seed and the picture's place.

    Raises:
        InvalidInputError: `pairs` has no larger pictures.
    """
    if pairs.large is None:
        raise InvalidInputError(f"random crops need pictures of at least {LARGE_SIZE}x{LARGE_SIZE}; prepare them with "
                                "scripts/prepare_celeba.py, with the size 64")
    crops = [random_crop(picture, np.random.default_rng((seed, place))) for place, picture in enumerate(pairs.large)]
    high, low = (np.stack(images) for images in zip(*crops, strict=True))
    return FacePairs(high, low, pairs.ids)


def is_celeba(path: Path) -> bool:
    """Return whether a folder is a CelebA root in torchvision's layout; only such a root has splits."""
    return (path / "celeba" / "img_align_celeba").is_dir()


def read_faces(
    path: str | os.PathLike[str], split: Split = "train", limit: int | None = None, size: int = HIGH_SIZE,
) -> FacePairs:
    """Read a data set of faces.

    Args:
        path: a prepared `.npz` (keys `hr`, `lr`, `ids`), a folder of pictures, or a torchvision CelebA root (a folder
            that contains `celeba/img_align_celeba`). If `hr` in the `.npz` is 40x40 or larger, it becomes `large`, and
            both sizes are reduced from it.
        split: "train", "valid" or "test", CelebA's official partition; ignored for a file or a folder of pictures.
        limit: largest number of pictures to read, from the start; None reads all.
        size: for a folder or a root: keep `large` pictures of this size, at least 40; 32 keeps none.

    Raises:
        InvalidInputError: the path or an argument is invalid, a picture is unreadable, or there are no pictures.
    """
    path = Path(path)
    if split not in SPLITS:
        raise InvalidInputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1, not {limit}; leave it out to read all")
    if size != HIGH_SIZE and size < LARGE_SIZE:
        raise InvalidInputError(f"size must be {HIGH_SIZE} or at least {LARGE_SIZE}, not {size}; 64 is a good choice")
    if is_celeba(path):
        return _read_pictures(_celeba_files(path, split)[:limit], size)
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file())
        if not files:
            raise InvalidInputError(f"{path} has no images ({' '.join(sorted(IMAGE_SUFFIXES))}); choose another folder")
        return _read_pictures(files[:limit], size)
    return _read_npz(path, limit)


def _read_npz(path: Path, limit: int | None) -> FacePairs:
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in ("hr", "lr", "ids") if key not in archive]
            if missing:
                raise InvalidInputError(f"{path} lacks {', '.join(missing)}; prepare it with scripts/prepare_celeba.py")
            hr, lr, ids = (np.asarray(archive[key]) for key in ("hr", "lr", "ids"))
            is_large = hr.ndim == 4 and hr.shape[1] >= LARGE_SIZE
            pairs = _large_pairs(hr[:limit], ids.reshape(-1)[:limit]) if is_large else FacePairs(hr, lr, ids)
    except FileNotFoundError as error:
        raise InvalidInputError(f"{path} does not exist; give an .npz, a folder of images or a CelebA root") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} is not a readable .npz; prepare it with scripts/prepare_celeba.py") from error
    if not len(pairs):
        raise InvalidInputError(f"{path} holds no pictures; prepare it with scripts/prepare_celeba.py")
    return pairs if is_large else FacePairs(pairs.hr[:limit], pairs.lr[:limit], pairs.ids[:limit])


def _large_pairs(large: Pixels, ids: npt.NDArray[np.int32]) -> FacePairs:
    """Return pictures, uint8 [N, S, S, 3], with their reductions to both sizes."""
    if large.shape[1] != large.shape[2]:
        raise InvalidInputError(f"hr must hold squares, not {_describe(large)}; prepare the data again with "
                                "scripts/prepare_celeba.py")
    parts = [_both_sizes(large[start : start + 1024]) for start in range(0, len(large), 1024)] or [_both_sizes(large)]
    high, low = (np.concatenate(part) for part in zip(*parts, strict=True))
    return FacePairs(high, low, ids, large)


def _celeba_files(root: Path, split: Split) -> list[Path]:
    """Return a split's files in torchvision's order; torchvision also verifies the annotation files' checksums."""
    images = root / "celeba" / "img_align_celeba"
    try:
        from torchvision.datasets import CelebA
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: torchvision was built for another torch
        remedy = f"install the torchvision of torch's release, or read the folder {images}"
        raise InvalidInputError(f"torchvision cannot be imported ({' '.join(str(error).split())}); {remedy}") from error
    try:
        dataset = CelebA(str(root), split=split, target_type=[], download=False)
    except RuntimeError as error:
        raise InvalidInputError(f"{root} lacks CelebA's annotation files or has damaged ones; complete them, or read "
                                f"the folder {images}") from error
    return [images / file for file in dataset.filename]


def _read_pictures(files: Sequence[Path], size: int) -> FacePairs:
    """Crop each picture and reduce the crop to both sizes; ids are the numbers in the file names, or 0, 1, 2, ..."""
    hr = np.empty((len(files), HIGH_SIZE, HIGH_SIZE, 3), np.uint8)
    lr = np.empty((len(files), LOW_SIZE, LOW_SIZE, 3), np.uint8)
    large = None if size == HIGH_SIZE else np.empty((len(files), size, size, 3), np.uint8)
    for index, file in enumerate(tqdm(files, "reading images", disable=None)):
        square = crop_square(read_image(file))
        if len(square) < size:
            raise InvalidInputError(f"{file} is too small: {len(square)} pixels wide; pairs need at least "
                                    f"{size}x{size}")
        hr[index] = area_reduce(square, HIGH_SIZE, HIGH_SIZE)
        lr[index] = area_reduce(square, LOW_SIZE, LOW_SIZE)
        if large is not None:
            large[index] = area_reduce(square, size, size)
    numbered = all(file.stem.isdecimal() and len(file.stem) <= 9 for file in files)
    ids = np.array([int(f.stem) if numbered else i for i, f in enumerate(files)], np.int32)
    return FacePairs(hr, lr, ids, large)


def write_npz(pairs: FacePairs, path: str | os.PathLike[str]) -> None:
    """Write `pairs` atomically as an `.npz` that `read_faces` reads. Large pictures take the place of `hr`.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(path)
    try:
        with scratch_file(path.parent, path) as file:
            np.savez_compressed(file, hr=pairs.hr if pairs.large is None else pairs.large, lr=pairs.lr, ids=pairs.ids)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose a writable folder with space") from error


def image_key(source: Pixels, sample: int) -> int:
    """Return the key of an image's sampling noise, in [0, 2**63).

    The key depends on the pixels and the number of the sample only. So an output does not depend on the file's name,
    the order of the inputs, the batch or the shard.

    Args:
        source: uint8 [8, 8, 3].
        sample: number of the sample, from 1.
    """
    digest = hashlib.sha256(np.ascontiguousarray(source).tobytes() + sample.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
