"""A visitor's picture: read it, let the page move its crop (`static/crop.js`), and reduce the crop as in training."""

from __future__ import annotations

import functools
import json
import os
import secrets
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import IO, TypeVar

import gradio as gr
import numpy as np
from PIL import Image

from superres.config import require
from superres.errors import InvalidInputError, SuperresError
from superres.tasks.faces import FaceTask
from superres.tasks.photos import DEFAULT_CROP, FACE, Crop, choose_crops
from superres.tasks.pictures import Pixels, read_picture
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.files import NOT_UPLOADED, path_of

Result = TypeVar("Result")
MAX_PIXELS = 24_000_000  # of a picture, about 72 MB in memory; the header is checked before decoding
READER = ThreadPoolExecutor(1, thread_name_prefix="reading")
"""Thread that reads pictures: one is in memory at its full size, and one heap of the C library keeps freed memory."""
PHOTO_SIZE = 768  # longer side of the photo on the page, in pixels
ON_LOAD = """document.addEventListener("superres-square", event => {
    props.value = event.detail;
    trigger("input");
});"""
"""Script of the component that has the chosen square: takes the square that the element sends."""


@dataclass(frozen=True)
class CropShare:
    """A square crop of a photo, as programs give it: its centre in percent of the photo's width and height.

    `size` is the side of the square, in percent of the photo's shorter side.
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
    """The input of a decoding, uint8 [source, source, 3], and the crop of the photo that it is from, if any.

    `truth` is the crop reduced to uint8 [target, target, 3]; None without a photo or if the crop is too small.
    """

    source: Pixels
    truth: Pixels | None = None
    crop: Crop | None = None


def reduce_picture(
    file: str | os.PathLike[str] | IO[bytes], reduce: Callable[[Pixels], Result], least: int, name: str = "the file",
) -> Result:
    """Read an upload or an open file, and return `reduce` of its pixels, uint8 [H, W, 3], but not their memory.

    A read upload counts as used now, so a sweep keeps it. `least` is the smallest width and height of the picture.
    Messages have `name`, and never the server's paths.

    Raises:
        InvalidInputError: the file is not a picture, is damaged, too small or too large, or has been deleted.
    """
    if isinstance(file, (str, os.PathLike)):
        try:
            os.utime(file)
        except (OSError, ValueError):
            raise InvalidInputError(f"{name} {NOT_UPLOADED}") from None
    return READER.submit(lambda: reduce(read_picture(file, name, MAX_PIXELS, least=least).rgb)).result()


def largest(crops: Sequence[Crop]) -> Crop:
    """Return the largest crop, of equal ones the first: of several faces, `superres upscale` uses this one."""
    return max(crops, key=lambda crop: crop.size)


def take(image: Pixels, task: FaceTask, crop: Crop | None = None) -> Subject:
    """Crop a picture, uint8 [H, W, 3], by default as `superres upscale` does; one of the input's size is the source."""
    if task.is_source(image):
        return Subject(image)
    crop = crop or largest(choose_crops(image, task))
    square = crop.take(image)
    return Subject(task.source_of(square), task.target_of(square) if crop.size >= task.target else None, crop)


def crop_controls(upload: gr.Image, first: Path, task: FaceTask) -> gr.HTML:
    """Lay out the crop of an upload, which is `first` initially, and the network's input.

    Return the hidden component of the chosen square, "LEFT,TOP,SIDE" in pixels; "" is the default crop.
    """
    element, preview, setting = crop_of(str(first), task)
    crop = gr.HTML(element, elem_id="crop")
    shown = gr.HTML(preview, elem_id="preview")
    square = gr.HTML(setting, html_template="", js_on_load=ON_LOAD, visible="hidden", elem_id="square")
    # Until the server has seen a new picture, a decode takes that picture's default crop, not the last one's square.
    upload.change(None, None, square, js="() => ''", **controls.INSTANT)
    upload.change(functools.partial(offer_crop, task), upload, [crop, shown, square], api_name="offer_crop",
                  **controls.INSTANT, **controls.RAW)
    square.input(functools.partial(show_crop, task), [upload, square], shown, trigger_mode="always_last",
                 api_name="show_crop", **controls.INSTANT, **controls.RAW)
    return square


def crop_of(path: str, task: FaceTask) -> tuple[str, str, str]:
    """Return the element that moves a photo's crop, from the largest one; the view of its input; its first square."""
    def offer(image: Pixels) -> tuple[str, str, str]:
        if task.is_source(image):
            return "", preview_html(image, task), ""
        crops, small = choose_crops(image, task), Image.fromarray(image)
        chosen = largest(crops)
        small.thumbnail((PHOTO_SIZE, PHOTO_SIZE))
        data = json.dumps({
            "photo": photo_key(image), "turn": secrets.token_hex(4),  # the page hears of a photo that is chosen again
            "width": image.shape[1], "height": image.shape[0], "least": task.source, "chosen": crops.index(chosen),
            "crops": [{"square": [crop.left, crop.top, crop.size], **names_of(crop)} for crop in crops]})
        photo = f'<img src="{drawing.data_uri(np.asarray(small))}" alt="Your photo">'
        return (f'<superres-crop data-photo="{escape(data)}">{photo}</superres-crop>',
                preview_html(image, task, chosen), setting_of(chosen))

    return reduce_picture(path, offer, task.source)


def offer_crop(task: FaceTask, upload: Value) -> tuple[str, str, str]:
    """Return the element of a new upload, the view of its input, and its first square."""
    try:
        return ("", "", "") if upload is None else crop_of(path_of(upload), task)
    except SuperresError as error:
        return "", drawing.message(str(error)), ""


def show_crop(task: FaceTask, upload: Value, square: Value) -> str:
    """Return the view of an upload's input with another square."""
    try:
        return "" if upload is None else reduce_picture(
            path_of(upload), lambda image: preview_html(image, task, chosen_crop(image, square, task)),
            task.source)
    except SuperresError as error:
        return drawing.message(str(error))


def chosen_crop(image: Pixels, square: Value, task: FaceTask) -> Crop:
    """Return the crop of a picture for the value of the component of the square, which `choose_crops` checks."""
    return largest(choose_crops(image, task, DEFAULT_CROP if task.is_source(image) else square or DEFAULT_CROP))


def setting_of(crop: Crop) -> str:
    """Return the crop setting of a square."""
    return f"{crop.left},{crop.top},{crop.size}"


def photo_key(image: Pixels) -> str:
    """Return a name for a picture's pixels, by which the page knows that an input belongs to a photo."""
    return f"{zlib.crc32(np.ascontiguousarray(image).data):08x}"


def names_of(crop: Crop) -> dict[str, str]:
    """Return what the page calls a crop that `choose_crops` found: in a sentence, and on a button."""
    if crop.kind == FACE:
        button = f"Found face {crop.face}" if crop.face else "Found face"
        return {"name": f"{button} of {crop.faces}" if crop.face else button, "button": button}
    if crop.kind == "aligned":
        return {"name": "CelebA's crop of aligned pictures", "button": "CelebA's crop"}
    return {"name": "No face was found, so the centre" if crop.faces == 0 else "The centre", "button": "Centre"}


def preview_html(image: Pixels, task: FaceTask, crop: Crop | None = None) -> str:
    """Return the model's input from a picture and the square of a photo."""
    source = drawing.figure(take(image, task, crop).source, f"{task.source_size}: the model's input",
                            f"The {task.source_size} input, enlarged")
    square = f' data-photo="{photo_key(image)}" data-square="{setting_of(crop)}"' if crop else ""
    return f'<div class="sr-input"{square}>{source}</div>'
