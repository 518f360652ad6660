"""Data sets of faces: pairs of an input and an output of the same crop, and their files.

Data that cannot be used raise InvalidInputError.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from superres.errors import InvalidInputError, OutputError
from superres.pictures.files import IMAGE_SUFFIXES
from superres.pictures.read import Pixels
from superres.pictures.untrusted import read_untrusted
from superres.system.folders import folder_files, is_folder
from superres.system.output import scratch_file
from superres.system.progress import say, track
from superres.system.unpacking import read_array
from superres.tasks.crops import FACE
from superres.tasks.face_finder import KnownFaces
from superres.tasks.face_paths import SPLITS, Split, is_celeba, require_faces
from superres.tasks.faces import CHANNELS, FaceTask, area_reduce
from superres.tasks.photos import choose_crops

PREPARE = "scripts/train/prepare_celeba.py"
CHUNK = 1024  # pictures that are reduced together, which bounds the memory


@dataclass(frozen=True, eq=False)
class FacePairs:
    """Pictures at the two sizes of a task.

    Attributes:
        hr: uint8 [N, target, target, 3], RGB.
        lr: uint8 [N, source, source, 3], RGB, reduced from the same crop as `hr` (not from `hr`).
        ids: int32 [N], number of each picture.
        large: uint8 [N, side, side, 3], the same crop with a side of at least `FaceTask.large`, for
            random crops; or None.
    """

    hr: Pixels
    lr: Pixels
    ids: npt.NDArray[np.int32]
    large: Pixels | None = None

    def __post_init__(self) -> None:
        check_arrays(self.hr, self.lr, self.ids)
        least = self.task.large  # refuses sizes that no task has
        if self.large is not None:
            _check_squares("large", self.large, len(self.ids), least)

    def __len__(self) -> int:
        """Return the number of pictures N."""
        return len(self.ids)

    @property
    def task(self) -> FaceTask:
        """The sizes of the pictures."""
        return FaceTask(self.lr.shape[1], self.hr.shape[1])


def check_arrays(hr: Pixels, lr: Pixels, ids: npt.NDArray[np.int32]) -> None:
    """Raise InvalidInputError unless the arrays hold as many squares of RGB pixels as numbers."""
    count = len(ids) if ids.ndim else 0
    _check_squares("hr", hr, count)
    _check_squares("lr", lr, count)
    _check("ids", ids, "int32", (count,))


def _check_squares(key: str, array: npt.NDArray[Any], count: int, least: int = 1) -> None:
    """Raise InvalidInputError unless `array` has `count` squares of RGB pixels with a side of at
    least `least`."""
    side = max(array.shape[1] if array.ndim > 1 else 0, least)
    _check(key, array, "uint8", (count, side, side, CHANNELS))


def _check(key: str, array: npt.NDArray[Any], dtype: str, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise InvalidInputError(f"{key} must be {dtype} {list(shape)}, not {array.dtype} "
                                f"{list(array.shape)}; prepare the data again with {PREPARE}")


def read_faces(
    path: str | os.PathLike[str], task: FaceTask, split: Split = "train", limit: int | None = None,
    size: int | None = None,
) -> FacePairs:
    """Read a data set of faces at the sizes of a task.

    Args:
        path: a prepared `.npz` (keys `hr`, `lr`, `ids`), a folder of pictures (with its sub-folders
            if `/**` follows), or a torchvision CelebA root (a folder that contains
            `celeba/img_align_celeba`). Photos in a folder are cropped as `superres upscale` crops
            them: see `superres.tasks.photos.choose_crops`. If `hr` and `lr` in the `.npz` do not
                have the task's sizes, both are reduced from `hr`, which becomes `large` if it has
                at least
            the side `FaceTask.large`.
        task: the sizes.
        split: "train", "valid" or "test", CelebA's official partition; ignored for a file or a
            folder of pictures.
        limit: largest number of pictures to read, from the start; None reads all.
        size: for a folder or a root: keep `large` pictures of this side, at least `FaceTask.large`;
            None keeps none.
    """
    path = Path(path)
    if split not in SPLITS:
        raise InvalidInputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    if limit is not None and limit < 1:
        raise InvalidInputError(f"limit must be at least 1, not {limit}; leave it out to read all")
    if size is not None and size < task.large:
        raise InvalidInputError(f"size must be at least {task.large} for random crops of "
                                f"{task.target_size}, not {size}; {2 * task.target} is a good "
                                "choice")
    if is_celeba(path):
        return _read_pictures(_celeba_files(path, split)[:limit], task, size)
    if is_folder(path):
        return _read_pictures(folder_files(path, IMAGE_SUFFIXES, limit), task, size)
    return _read_npz(path, task, limit)


def read_drawn(path: Path, pairs: FacePairs) -> Pixels:
    """Read the inputs that an earlier stage of a cascade drew (`superres train decode`) for the
    first of `pairs`.

    Returns:
        Pictures, uint8 [M, source, source, 3], with M at most the number of pairs.
    """
    drawn, _, ids = _read_arrays(path)
    drawn, ids = drawn[: len(pairs)], ids[: len(pairs)]
    side = pairs.task.source
    if drawn.shape[1] != side or not np.array_equal(ids, pairs.ids[: len(ids)]):
        raise InvalidInputError(f"{path} must hold pictures of {pairs.task.source_size} of the "
                                "data's images in their order, not of "
                                f"{drawn.shape[1]}x{drawn.shape[2]}; draw them with 'superres "
                                "train decode' from the same data")
    return drawn


def mixed_inputs(pairs: FacePairs, drawn: Sequence[Pixels]) -> FacePairs:
    """Return `pairs` whose inputs are in turn the true ones and those of each array of `drawn`
    (`read_drawn`)."""
    inputs = pairs.lr.copy()
    for turn, pictures in enumerate(drawn, 1):
        inputs[turn : len(pictures) : len(drawn) + 1] = pictures[turn :: len(drawn) + 1]
    return FacePairs(pairs.hr, inputs, pairs.ids)


def _read_npz(path: Path, task: FaceTask, limit: int | None) -> FacePairs:
    hr, lr, ids = _read_arrays(path)
    try:
        return _fitted(hr[:limit], lr[:limit], ids[:limit], task)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from error


def _read_arrays(path: Path) -> tuple[Pixels, Pixels, npt.NDArray[np.int32]]:
    """Read `hr`, `lr` and `ids` of an `.npz`."""
    require_faces(path)
    try:
        with zipfile.ZipFile(path) as archive:
            keys, names = ("hr", "lr", "ids"), archive.namelist()
            missing = [key for key in keys if f"{key}.npy" not in names]
            if missing:
                raise InvalidInputError(f"{path} lacks {', '.join(missing)}; prepare it with "
                                        f"{PREPARE}")
            hr, lr, ids = (read_array(archive, key) for key in keys)
            check_arrays(hr, lr, ids)
            if not len(ids):
                raise InvalidInputError(f"{path} holds no pictures; prepare it with {PREPARE}")
            return hr, lr, ids
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}" if str(path) not in str(error)
                                else str(error)) from error
    except (OSError, ValueError, TypeError, AttributeError, EOFError, MemoryError,
            zipfile.BadZipFile) as error:
        raise InvalidInputError(f"{path} is not a readable .npz; prepare it with "
                                f"{PREPARE}") from error


def _fitted(hr: Pixels, lr: Pixels, ids: npt.NDArray[np.int32], task: FaceTask) -> FacePairs:
    """Return the pictures of a file at the sizes of a task: see `read_faces`."""
    side = hr.shape[1]
    if side < task.target:
        raise InvalidInputError(f"hr holds pictures of {side}x{side}, smaller than targets of "
                                f"{task.target_size}; prepare the data with {PREPARE} --source "
                                f"{task.source} --target {task.target}")
    if side == task.target and lr.shape[1] == task.source:
        return FacePairs(hr, lr, ids)
    parts = [task.both_sizes(hr[start : start + CHUNK]) for start in range(0, len(hr), CHUNK)]
    high, low = (np.concatenate(part) for part in zip(*parts, strict=True))
    return FacePairs(high, low, ids, hr if side >= task.large else None)


def _celeba_files(root: Path, split: Split) -> list[Path]:
    """Return a split's files in torchvision's order; torchvision also verifies the annotation
    files' checksums."""
    images = root / "celeba" / "img_align_celeba"
    try:
        from torchvision.datasets import CelebA
    # RuntimeError: torchvision was built for another torch
    except (ImportError, RuntimeError, OSError) as error:
        raise InvalidInputError(f"torchvision cannot be imported ({' '.join(str(error).split())}); "
                                "install the torchvision of torch's release, or read the folder "
                                f"{images}") from error
    try:
        dataset = CelebA(str(root), split=split, target_type=[], download=False)
    except RuntimeError as error:
        raise InvalidInputError(f"{root} lacks CelebA's annotation files or has damaged ones; "
                                f"complete them, or read the folder {images}") from error
    return [images / file for file in dataset.filename]


def _read_pictures(files: Sequence[Path], task: FaceTask, size: int | None) -> FacePairs:
    """Reduce the crops of each picture, as `choose_crops` finds them, to both sizes.

    Files that cannot be read, and crops that are too small, are named and skipped. The ids are the
    numbers in the file names, or 0, 1, 2, ... if those do not tell the crops apart.
    """
    least = size or task.target
    numbers, high, low, large = [], list[Pixels](), list[Pixels](), list[Pixels]()
    without, uncertain, known = 0, 0, KnownFaces()
    for file in track(files, "reading pictures and searching faces", "pictures"):
        try:
            image = read_untrusted(file).rgb
            crops = choose_crops(image, task, search=known.search)
        except InvalidInputError as error:
            say(f"skipped: {error}")
            continue
        without += crops[0].faces == 0
        for crop in crops:  # of the square that is taken, all sizes are made
            square = crop.take(image)
            if len(square) < least:
                say(f"skipped: {file} is too small: {len(square)} pixels of it are used, and pairs "
                    f"need at least {least}x{least}")
                continue
            uncertain += crop.kind == FACE and crop.is_uncertain
            numbers.append(file.stem)
            high.append(task.target_of(square))
            low.append(task.source_of(square))
            if size is not None:
                large.append(area_reduce(square, size, size))
    if not numbers:
        raise InvalidInputError(f"{files[0].parent} has no picture that can be used; add pictures "
                                f"of at least {least}x{least}")
    _say_doubts(without, len(files), uncertain, len(numbers))
    numbered = len(set(numbers)) == len(numbers) and all(
        name.isdecimal() and len(name) <= 9 for name in numbers)
    ids = np.array([int(name) for name in numbers] if numbered else range(len(numbers)), np.int32)
    return FacePairs(np.stack(high), np.stack(low), ids, None if size is None else np.stack(large))


def _say_doubts(without: int, photos: int, uncertain: int, faces: int) -> None:
    """Say how many photos are without a found face, and how many faces are uncertain."""
    if without:
        say(f"no face was found in {without} of {photos} photos, whose central square is used; "
            "leave them out if their faces are elsewhere")
    if uncertain:
        say(f"{uncertain} of {faces} faces are uncertain, so their squares are not turned; "
            "look at their photos")


def write_npz(pairs: FacePairs, path: str | os.PathLike[str]) -> None:
    """Write `pairs` atomically as an `.npz` that `read_faces` reads, with `large` as `hr`, or raise
    OutputError."""
    path = Path(path)
    try:
        with scratch_file(path.parent, path) as file:
            np.savez_compressed(file, hr=pairs.hr if pairs.large is None else pairs.large,
                                lr=pairs.lr, ids=pairs.ids)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose a writable folder with "
                          "space") from error
