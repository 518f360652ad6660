"""Photos: choose the squares that are reduced to the model's input, and read pictures of any kind.

A photo is a picture whose shorter side has more pixels than the model's output, unless it has the
size of CelebA's aligned pictures, 178x218, whose crop is known. A smaller picture is used as it is,
or its central square. A picture that cannot be used raises InvalidInputError, and an impossible
crop setting ConfigError.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from superres.errors import InvalidInputError
from superres.pictures.read import Picture, Pixels, picture_of
from superres.pictures.untrusted import MOST_BYTES, read_untrusted
from superres.system.places import open_place, public
from superres.tasks.crops import CENTRE, DEFAULT_CROP, FACE, Crop, parse_crop
from superres.tasks.face_finder import find_faces
from superres.tasks.faces import CELEBA_ALIGNED, FaceTask, area_reduce

PictureLike: TypeAlias = str | os.PathLike[str] | Image.Image | Pixels
"""A picture: the path or URL of a file, a Pillow image, pixels uint8 [H, W, 3], or floats of this
shape from 0 to 1."""


def is_photo(image: Pixels, task: FaceTask) -> bool:
    """Return whether a picture [H, W, 3] is a photo, in which faces are searched for; see the
    module."""
    return min(image.shape[:2]) > task.target and image.shape[:2] != CELEBA_ALIGNED


def choose_crops(
    image: Pixels | Image.Image, task: FaceTask, setting: str = DEFAULT_CROP,
    search: Callable[[Pixels], npt.NDArray[np.float64]] | None = None,
) -> list[Crop]:
    """Return the squares of a picture that become the model's inputs: at least one, and one per
    face that is found.

    Args:
        image: uint8 [H, W, 3] or a Pillow image, at least as large as the model's input.
        task: the sizes of the model's input and output.
        setting: "face" finds the faces of a photo, and takes the centre if it finds none; "centre"
            takes the largest square in the centre (CelebA's crop of a picture of 178x218);
            "X,Y,SIZE" takes the square with this left edge, top edge and side, in pixels, and
            "X,Y,SIZE,TURN" turns it clockwise by TURN degrees.
        search: finds the faces of a photo; `find_faces` if None.

    Raises:
        ConfigError: the setting is unknown.
        InvalidInputError: the picture cannot be used, a found face has fewer pixels than the
            model's input, or a given square lies outside the picture.
    """
    given, image = parse_crop(setting, task.source), to_picture(image, task.source).rgb
    height, width = image.shape[:2]
    if given is not None:
        given.check_inside(height, width)
        return [given]
    searched = setting == FACE and is_photo(image, task)
    found = (search or find_faces)(image).tolist() if searched else []
    if found:
        faces = [_around(*square) for square in found]
        smallest = min(faces, key=lambda crop: crop.size)
        if smallest.size < task.source:
            raise InvalidInputError(f"the face found at ({smallest.left}, {smallest.top}) has "
                                    f"{smallest.size}x{smallest.size} pixels, fewer than the "
                                    f"model's input of {task.source_size}; give a smaller --start, "
                                    "a larger photo or --crop X,Y,SIZE")
        return [replace(crop, face=number if len(faces) > 1 else 0, faces=len(faces))
                for number, crop in enumerate(faces, 1)]
    return [_central(height, width, searched)]


def _central(height: int, width: int, searched: bool) -> Crop:
    """Return the square of a picture of which no face is known; CelebA's of aligned ones."""
    if (height, width) == CELEBA_ALIGNED:
        return Crop(20, 40, 138, "aligned")
    side = min(height, width)
    return Crop((width - side) // 2, (height - side) // 2, side, faces=0 if searched else None)


def input_of(image: Pixels, crop: Crop, task: FaceTask) -> Pixels:
    """Return the model's input, uint8 [source, source, C], from a square of a picture, uint8 [H, W,
    C].

    A picture of the size of a stage's input is one as it is; a square of this size in a larger
    picture is reduced as every other square.
    """
    if _is_input(image, crop, task):
        return image
    return area_reduce(crop.take(image), task.source, task.source)


def _is_input(image: Pixels, crop: Crop, task: FaceTask) -> bool:
    return task.is_source(image) and crop.is_whole(*image.shape[:2])


def largest(crops: Sequence[Crop]) -> Crop:
    """Return the largest crop, of equal ones the first: where one face of a picture is wanted."""
    return max(crops, key=lambda crop: crop.size)


def _around(x: float, y: float, side: float, turn: float, doubt: float) -> Crop:
    """Return the square around the centre (x, y) of a face: see
    `superres.tasks.face_finder.find_faces`."""
    size = round(side)
    return Crop(round(x - size / 2), round(y - size / 2), size, FACE, turn=round(turn, 1) + 0.0,
                doubt=round(doubt, 3))


def crop_note(name: str, image: Pixels, crops: Sequence[Crop], task: FaceTask) -> str | None:
    """Return a line with the squares of the picture `name`, uint8 [H, W, 3], that are used, and the
    size of the input.

    For a cascade, the line says whether the squares have enough pixels to start from a later stage.
    `crops` come from `choose_crops`. The result is None for a picture that needs no reduction.
    """
    (height, width), first = image.shape[:2], crops[0]
    if _is_input(image, first, task) and len(image) > task.source:
        return (f"{name} ({width}x{height}): has the size of a later stage's input, so only that "
                "stage enlarges it")
    if task.is_source(image) and first.kind != "given":
        return None
    # where the squares lie, how they were chosen, and what would keep more of them
    sizes = ", ".join(f"{crop.size}x{crop.size}" for crop in crops)
    places = ", ".join(
        f"({crop.left}, {crop.top}){f' turned by {crop.degrees} degrees' if crop.turn else ''}"
        for crop in crops)
    if any(crop.beyond(height, width) for crop in crops):
        places += ", partly beyond the picture, whose edges are repeated,"
    which = {
        "face": f"crop face, {'one face' if first.faces == 1 else f'{first.faces} faces'} "
        f"found{_doubt(crops)}",
        "centre": "crop centre" if first.faces is None else "crop centre, no face found",
        "aligned": "CelebA's crop of aligned pictures", "given": "crop as given",
    }[first.kind]
    each = " of each face" if len(crops) > 1 else ""
    later = [side for side in task.between if side <= min(crop.size for crop in crops)]
    more = f"; --start {later[-1]} keeps more of what the photo really shows" if later else ""
    if first.kind == CENTRE and first.size == height == width:
        return (f"{name} ({width}x{height}): reduced, and the model sees only "
                f"{task.source_size}{more}")
    return (f"{name} ({width}x{height}): {which}; {sizes} pixels at {places} are used, and the "
            f"model sees only {task.source_size}{each}{more}")


def _doubt(crops: Sequence[Crop]) -> str:
    """Return how many of the found faces are uncertain, for a line."""
    uncertain = sum(crop.is_uncertain for crop in crops)
    return (f", {uncertain} of them uncertain" if uncertain and len(crops) > 1 else ", uncertain"
            if uncertain else "")


def is_share(image: object) -> bool:
    """Return whether an object is an array of floats from 0 to 1, shares of the brightest value."""
    return isinstance(image, np.ndarray) and image.dtype.kind == "f" and image.size > 0 and bool(
        (image >= 0).all() and (image <= 1).all())


def to_picture(image: PictureLike, least: int) -> Picture:
    """Return a picture of any kind, whose sides have at least `least` pixels."""
    if isinstance(image, str | os.PathLike):
        place = open_place(image)
        return read_untrusted(place.source(MOST_BYTES), place.public, least=least)
    if isinstance(image, Image.Image):
        return picture_of(image, least)
    # pixels
    if is_share(image):
        image = np.rint(255 * image).astype(np.uint8)
    if (not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3
        or image.shape[2] != 3):
        what = (f"{image.dtype} {list(image.shape)}" if isinstance(image, np.ndarray) else "a "
                f"{type(image).__name__}")
        raise InvalidInputError("a picture must be a path, a Pillow image, uint8 [H, W, 3], or "
                                f"floats from 0 to 1, not {what}; convert it")
    if min(image.shape[:2]) < least:
        raise InvalidInputError(f"a picture must be at least {least}x{least}, not "
                                f"{image.shape[1]}x{image.shape[0]}; give a larger one")
    return Picture(image)


@dataclass(frozen=True, eq=False)
class PhotoSources:
    """The model's inputs from pictures of any kind.

    Attributes:
        images: uint8 [N, source, source, 3].
        crops: the square of its picture that each image is reduced from.
        inputs: number of each image's picture, from 0.
        notes: lines about damaged metadata, and the `crop_note` of each picture that is reduced.
    """

    images: Pixels
    crops: list[Crop]
    inputs: list[int]
    notes: list[str]

    def repeat(self, count: int) -> PhotoSources:
        """Return each input `count` times in succession."""
        crops = [crop for crop in self.crops for _ in range(count)]
        inputs = [number for number in self.inputs for _ in range(count)]
        return PhotoSources(self.images.repeat(count, axis=0), crops, inputs, self.notes)


def read_sources(
    pictures: PictureLike | Iterable[PictureLike], task: FaceTask, crop: str = DEFAULT_CROP,
) -> PhotoSources:
    """Read one or several pictures one by one, and reduce their squares to the model's inputs: see
    `choose_crops`."""
    parse_crop(crop, task.source)
    dimensions = pictures.ndim if isinstance(pictures, np.ndarray) else None
    if isinstance(pictures, str | os.PathLike | Image.Image) or dimensions == 3:
        pictures = [pictures]  # type: ignore[list-item]
    elif not isinstance(pictures, Iterable) or dimensions not in (None, 4):
        what = f"have the shape {list(pictures.shape)}" if isinstance(pictures, np.ndarray) else (
            f"are a {type(pictures).__name__}")
        raise InvalidInputError(f"pictures {what}; give a path, a Pillow image or uint8 [N, H, W, "
                                "3]")
    images: list[Pixels] = []
    result = PhotoSources(np.empty((0, *task.source_shape), np.uint8), [], [], [])
    for number, picture in enumerate(pictures):
        name = (public(os.fspath(picture)) if isinstance(picture, str | os.PathLike)
                else f"picture {number + 1}")
        try:
            read = to_picture(picture, task.source)
            pixels, crops = read.rgb, choose_crops(read.rgb, task, crop)
        except InvalidInputError as error:
            raise InvalidInputError(str(error) if name in str(error)
                                    else f"{name}: {error}") from error
        images += [input_of(pixels, one, task) for one in crops]
        result.crops.extend(crops)
        result.inputs.extend([number] * len(crops))
        result.notes.extend(f"{name}: {line}" for line in read.notes)
        if is_share(picture):
            result.notes.append(f"{name}: floats from 0 to 1 are taken as 0 to 255")
        if (note := crop_note(name, pixels, crops, task)) is not None:
            result.notes.append(note)
    sizes = [f"{side}x{side}" for side in sorted({len(image) for image in images})]
    if len(sizes) > 1:
        raise InvalidInputError(f"inputs of one call have one size, not {' and '.join(sizes)}; "
                                "upscale pictures that have a later stage's input size by a call "
                                "of their own")
    return replace(result, images=np.stack(images)) if images else result
