"""Faces: pictures as tokens, the reduction of photographs to 8x8 inputs, and readers of data sets.

A token is one intensity in 0..255. A picture is the sequence of its intensities in raster order, with red, green and
blue of each pixel in turn. Photographs are cropped and reduced as in the Img2imgCeleba problem of tensor2tensor, by
exact area averages with truncation.
"""

from __future__ import annotations

import hashlib
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
from superres.tasks.pictures import IMAGE_SUFFIXES as IMAGE_SUFFIXES  # re-exported, like the next two names
from superres.tasks.pictures import MAX_PIXELS as MAX_PIXELS
from superres.tasks.pictures import read_image as read_image

UInt8 = npt.NDArray[np.uint8]
Int64 = npt.NDArray[np.int64]
Source = Literal["auto", "lowres", "photo"]
Split = Literal["train", "valid", "test"]

name = "faces"
LOW_SIZE = 8
HIGH_SIZE = 32
INTENSITIES = 256
SOURCES: tuple[str, ...] = get_args(Source)
SPLITS: tuple[str, ...] = get_args(Split)
ENLARGEMENTS = {"nearest": Image.Resampling.NEAREST, "bicubic": Image.Resampling.BICUBIC}
_CELEBA_ALIGNED = (218, 178)


def area_reduce(images: UInt8, rows: int, columns: int) -> UInt8:
    """Reduce images by exact averages over boxes of fractional size, truncated to integers.

    Args:
        images: uint8 [..., H, W, C] with H >= `rows` and W >= `columns`.
        rows: rows of the result, at least 1.
        columns: columns of the result, at least 1.

    Returns:
        uint8 [..., rows, columns, C].

    Raises:
        InvalidInputError: the images are not uint8, or are smaller than the result.
    """
    if images.dtype != np.uint8 or images.ndim < 3:
        raise InvalidInputError(f"area_reduce needs uint8 [..., H, W, C], not {_describe(images)}; convert it first")
    height, width = images.shape[-3:-1]
    if not (1 <= rows <= height and 1 <= columns <= width):
        raise InvalidInputError(f"cannot reduce {height}x{width} to {rows}x{columns}; it can only shrink")
    total = _box_sums(_box_sums(images, rows, -3), columns, -2)
    return np.asarray(total // (height * width), np.uint8)


def _describe(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _box_sums(values: npt.NDArray[Any], size: int, axis: int) -> Int64:
    """Sum `size` equal boxes along `axis`, multiplied by `size`, so that all sums are integers."""
    length = values.shape[axis]
    edge, rest = np.divmod(np.arange(size + 1, dtype=np.int64) * length, size)
    # np.add.reduceat would copy the whole picture to int64, over 1 GB for a large photograph.
    boxes = np.split(values, edge[1:-1], axis=axis)
    whole = np.stack([box.sum(axis=axis, dtype=np.int64) for box in boxes], axis=axis)
    # An element across an edge contributes its part before the edge to the box on the left. The last edge has rest 0.
    at_edge = np.take(values, np.minimum(edge, length - 1), axis=axis).astype(np.int64)
    before = at_edge * np.expand_dims(rest, tuple(range(1, -axis)))
    return cast(Int64, size * whole + np.diff(before, axis=axis))


def crop_celeba(image: UInt8) -> UInt8:
    """Crop an aligned CelebA picture, uint8 [218, 178, 3], to the 138x138 pixels that Img2imgCeleba uses.

    Raises:
        InvalidInputError: the picture has another shape.
    """
    if image.shape != (*_CELEBA_ALIGNED, 3):
        raise InvalidInputError(f"the CelebA crop needs [218, 178, 3], not {list(image.shape)}; use aligned pictures")
    return image[40:178, 20:158]


def crop_square(image: UInt8) -> UInt8:
    """Crop uint8 [H, W, 3] to a square: the CelebA crop for 178x218 pictures, the centre for other sizes."""
    height, width = image.shape[:2]
    if (height, width) == _CELEBA_ALIGNED:
        return crop_celeba(image)
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[top : top + side, left : left + side]


def to_source(image: UInt8, source: Source = "auto") -> UInt8:
    """Return the network's 8x8 input for a picture.

    Args:
        image: uint8 [H, W, 3], at least 8x8.
        source: "auto" and "photo" crop and reduce larger pictures; "lowres" accepts only 8x8 pictures.

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


def encode(images: UInt8) -> Int64:
    """Return the tokens of uint8 [N, h, w, 3], int64 [N, h * w * 3] in 0..255, in raster order (R, G, B).

    Raises:
        InvalidInputError: the array has another type or shape.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
        raise InvalidInputError(f"images must be uint8 [N, h, w, 3], not {_describe(images)}; convert to RGB")
    return images.reshape(len(images), int(np.prod(images.shape[1:]))).astype(np.int64)


def decode(tokens: npt.ArrayLike) -> UInt8:
    """Return the pictures, uint8 [N, 32, 32, 3], of tokens, integers [N, 3072] in 0..255.

    Raises:
        InvalidInputError: the tokens have another type or shape, or a token is out of range.
    """
    array = np.asarray(tokens)
    length = HIGH_SIZE * HIGH_SIZE * 3
    if not np.issubdtype(array.dtype, np.integer) or array.ndim != 2 or array.shape[1] != length:
        raise InvalidInputError(f"tokens must be integers [N, {length}], not {_describe(array)}; pass one row per face")
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if low < 0 or high > 255:
        raise InvalidInputError(f"tokens must be in 0..255, not {low}..{high}; decode them with their own task")
    return array.astype(np.uint8).reshape(-1, HIGH_SIZE, HIGH_SIZE, 3)


def enlarge(images: UInt8, method: str, size: int = HIGH_SIZE) -> UInt8:
    """Enlarge uint8 [N, h, w, 3] to [N, size, size, 3] with Pillow's method "nearest" or "bicubic".

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
        ids: number of each picture, int32 [N].

    Raises:
        InvalidInputError: an array has the wrong type or shape, or the arrays' lengths differ.
    """

    hr: UInt8
    lr: UInt8
    ids: npt.NDArray[np.int32]

    def __post_init__(self) -> None:
        count = len(self.ids) if self.ids.ndim else 0
        expected = {
            "hr": ("uint8", (count, HIGH_SIZE, HIGH_SIZE, 3)),
            "lr": ("uint8", (count, LOW_SIZE, LOW_SIZE, 3)),
            "ids": ("int32", (count,)),
        }
        for key, (dtype, shape) in expected.items():
            array = getattr(self, key)
            if array.dtype != dtype or array.shape != shape:
                raise InvalidInputError(f"{key} must be {dtype} {list(shape)}, not {_describe(array)}; prepare the "
                                        "data again with scripts/prepare_celeba.py")

    def __len__(self) -> int:
        """Return the number of pictures N."""
        return len(self.ids)


def is_celeba(path: Path) -> bool:
    """Return whether a folder is a CelebA root in the layout of torchvision; other data sets have no splits."""
    return (path / "celeba" / "img_align_celeba").is_dir()


def read_faces(path: str | os.PathLike[str], split: Split = "train", limit: int | None = None) -> FacePairs:
    """Read a data set of faces.

    Args:
        path: a prepared `.npz` (keys `hr`, `lr`, `ids`), a folder of pictures, or a torchvision CelebA root (a folder
            that contains `celeba/img_align_celeba`).
        split: "train", "valid" or "test" of CelebA's official partition; ignored except for a CelebA root.
        limit: number of pictures to read, from the start; None for all.

    Raises:
        InvalidInputError: an argument is not valid, a picture cannot be read, or the data set is empty.
    """
    path = Path(path)
    if split not in SPLITS:
        raise InvalidInputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1, not {limit}; leave it out to read all")
    if is_celeba(path):
        return _read_pictures(_celeba_files(path, split)[:limit])
    if path.is_dir():
        files = sorted(entry for entry in path.iterdir() if entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file())
        if not files:
            raise InvalidInputError(f"{path} has no images ({' '.join(sorted(IMAGE_SUFFIXES))}); choose another folder")
        return _read_pictures(files[:limit])
    return _read_npz(path, limit)


def _read_npz(path: Path, limit: int | None) -> FacePairs:
    keys = ("hr", "lr", "ids")
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [key for key in keys if key not in archive]
            if missing:
                raise InvalidInputError(f"{path} lacks {', '.join(missing)}; prepare it with scripts/prepare_celeba.py")
            pairs = FacePairs(*(np.asarray(archive[key]) for key in keys))
    except FileNotFoundError as error:
        raise InvalidInputError(f"{path} does not exist; give an .npz, a folder of images or a CelebA root") from error
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}" if str(path) not in str(error) else str(error)) from error
    except (OSError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} is not a readable .npz; prepare it with scripts/prepare_celeba.py") from error
    if not len(pairs):
        raise InvalidInputError(f"{path} holds no pictures; prepare it with scripts/prepare_celeba.py")
    return FacePairs(pairs.hr[:limit], pairs.lr[:limit], pairs.ids[:limit])


def _celeba_files(root: Path, split: Split) -> list[Path]:
    """Return the files of a split in torchvision's order; torchvision checks the checksums of the annotation files."""
    images = root / "celeba" / "img_align_celeba"
    try:
        from torchvision.datasets import CelebA
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: torchvision was built for another torch
        remedy = f"install the torchvision of torch's release, or read the folder {images}"
        raise InvalidInputError(f"torchvision cannot be imported ({' '.join(str(error).split())}); {remedy}") from error
    try:
        dataset = CelebA(str(root), split=split, target_type=[], download=False)
    except RuntimeError as error:
        raise InvalidInputError(f"{root} has missing or damaged annotation files of CelebA; complete them, or read "
                                f"the folder {images}") from error
    return [images / file for file in dataset.filename]


def _read_pictures(files: Sequence[Path]) -> FacePairs:
    """Crop each picture and reduce it to both sizes; ids are the file names if all are numbers, else the positions."""
    hr = np.empty((len(files), HIGH_SIZE, HIGH_SIZE, 3), np.uint8)
    lr = np.empty((len(files), LOW_SIZE, LOW_SIZE, 3), np.uint8)
    for index, file in enumerate(tqdm(files, "reading images", disable=None)):
        square = crop_square(read_image(file))
        if len(square) < HIGH_SIZE:
            raise InvalidInputError(f"{file} is too small: {len(square)} pixels wide; pairs need at least 32x32")
        hr[index] = area_reduce(square, HIGH_SIZE, HIGH_SIZE)
        lr[index] = area_reduce(square, LOW_SIZE, LOW_SIZE)
    numbered = all(file.stem.isdecimal() and len(file.stem) <= 9 for file in files)
    return FacePairs(hr, lr, np.array([int(f.stem) if numbered else i for i, f in enumerate(files)], np.int32))


def write_npz(pairs: FacePairs, path: str | os.PathLike[str]) -> None:
    """Write `pairs` atomically as an `.npz` that `read_faces` reads.

    Raises:
        OutputError: the file cannot be written.
    """
    path = Path(path)
    try:
        with scratch_file(path.parent, path) as file:
            np.savez_compressed(file, hr=pairs.hr, lr=pairs.lr, ids=pairs.ids)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose a writable folder with space") from error


def image_key(source: UInt8, sample: int) -> int:
    """Return the 63-bit number that keys the sampling noise of an image.

    It depends only on the pixels and the number of the sample. The name of the file, the order of the inputs, the batch
    and the shard do not change a sample.

    Args:
        source: uint8 [8, 8, 3].
        sample: number of the sample, from 1.
    """
    digest = hashlib.sha256(np.ascontiguousarray(source).tobytes() + sample.to_bytes(8, "big")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
