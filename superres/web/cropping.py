"""The crop of a photo in the tab Upscale: the element that `static/crop.js` runs, and the input that it gives."""

from __future__ import annotations

import functools
import json
import secrets
import zlib
from collections.abc import Sequence
from html import escape
from pathlib import Path

import gradio as gr
import numpy as np
from PIL import Image

from superres.errors import SuperresError
from superres.tasks.faces import FaceTask
from superres.tasks.photos import FACE, Crop, choose_crops
from superres.tasks.pictures import Pixels
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.photos import default_crop, largest, reduce_picture, take

PHOTO_SIZE = 768
"""Longer side of the photo on the page, in pixels."""
ON_LOAD = """document.addEventListener("superres-square", event => {
    props.value = event.detail;
    trigger("input");
});"""
"""Script of the component that has the chosen square: takes the square that the element sends."""


def crop_controls(upload: gr.Image, first: Path, task: FaceTask) -> gr.HTML:
    """Lay out the crop of an upload, which is `first` initially, and the network's input.

    Returns:
        The hidden component of the chosen square, "LEFT,TOP,SIDE" in pixels; "" is the default crop.
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
    """Return the element of a picture, the view of its input, and its first square."""

    def offer(image: Pixels) -> tuple[str, str, str]:
        if task.is_source(image):
            return "", preview_html(image, task), ""
        crops = choose_crops(image, task)
        chosen = largest(crops)
        return crop_html(image, crops, task), preview_html(image, task, chosen), setting_of(chosen)

    return reduce_picture(path, offer, task.source)


def offer_crop(task: FaceTask, upload: Value) -> tuple[str, str, str]:
    """Return the element of a new upload, the view of its input, and its first square."""
    try:
        return ("", "", "") if upload is None else crop_of(controls.path_of(upload), task)
    except SuperresError as error:
        return "", drawing.message(str(error)), ""


def show_crop(task: FaceTask, upload: Value, square: Value) -> str:
    """Return the view of an upload's input with another square."""
    try:
        if upload is None:
            return ""
        return reduce_picture(controls.path_of(upload),
                             lambda image: preview_html(image, task, chosen_crop(image, square, task)), task.source)
    except SuperresError as error:
        return drawing.message(str(error))


def chosen_crop(image: Pixels, square: Value, task: FaceTask) -> Crop:
    """Return the crop of a picture for the value of the component of the square; an input is used whole.

    Raises:
        ConfigError: the value is no crop setting.
        InvalidInputError: the square does not lie inside the picture.
    """
    return choose_crops(image, task, square)[0] if square and not task.is_source(image) else default_crop(image, task)


def setting_of(crop: Crop) -> str:
    """Return the crop setting of a square."""
    return f"{crop.left},{crop.top},{crop.size}"


def crop_html(image: Pixels, crops: Sequence[Crop], task: FaceTask) -> str:
    """Return a photo, uint8 [H, W, 3], in the element that moves its crop, which begins at the largest of `crops`."""
    small = Image.fromarray(image)
    small.thumbnail((PHOTO_SIZE, PHOTO_SIZE))
    data = json.dumps({
        "photo": photo_key(image), "turn": secrets.token_hex(4),  # the page hears of a photo that is chosen again
        "width": image.shape[1], "height": image.shape[0], "least": task.source, "chosen": crops.index(largest(crops)),
        "crops": [{"square": [crop.left, crop.top, crop.size], **names_of(crop)} for crop in crops]})
    photo = f'<img src="{drawing.data_uri(np.asarray(small))}" alt="Your photo">'
    return f'<superres-crop data-photo="{escape(data)}">{photo}</superres-crop>'


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
