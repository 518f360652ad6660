"""A visitor's picture: read it, let the page move its crop (`static/crop.js`), and reduce the crop
as in training."""

from __future__ import annotations

import functools
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import IO, Any, TypeVar

import gradio as gr
from gradio.events import Dependency
from PIL import Image

from superres.errors import InvalidInputError, SuperresError
from superres.pictures.read import Pixels, read_image
from superres.pictures.untrusted import MOST_SECONDS, READER, read_untrusted
from superres.tasks.crops import DEFAULT_CROP, Crop
from superres.tasks.faces import FaceTask, area_reduce
from superres.tasks.photos import choose_crops, input_of, largest
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.decoding import Deadline
from superres.web.files import NOT_UPLOADED, path_of
from superres.web.turns import Turns

Result = TypeVar("Result")
READING = Turns(2)
"""Turns at reading pictures: two are in memory at their full size, and each visitor has one at
most."""
PHOTO_SIZE = 768  # longer side of the photo on the page, in pixels
ON_LOAD = """document.addEventListener("superres-square", event => {
    props.value = event.detail;
    trigger("input");
});"""
"""Script of the component that has the chosen square: takes the square that the element sends."""


UNREAD = """() => { document.dispatchEvent(new CustomEvent("superres-unread")); }"""
"""Script of the events that read a picture, for when the server has not answered."""


@dataclass(frozen=True, eq=False)
class Subject:
    """The input of a decoding, uint8 [source, source, 3], and the crop of the photo that it is
    from, if any.

    `truth` is the crop reduced to uint8 [target, target, 3]; None without a photo or if the crop is
    too small.
    """

    source: Pixels
    truth: Pixels | None = None
    crop: Crop | None = None


def reduce_picture(
    file: str | os.PathLike[str] | IO[bytes], reduce: Callable[[Pixels], Result], least: int,
    name: str = "the file", deadline: Deadline | None = None, notes: list[str] | None = None,
) -> Result:
    """Read an upload or an open file in the visitor's turn, and return `reduce` of its pixels,
    uint8 [H, W, 3].

    A read upload counts as used now, so a sweep keeps it. `least` is the smallest width and height
    of the picture. Messages have `name`, and never the server's paths. The deadline bounds the time
    of reading. Lines about damaged metadata are added to `notes`.

    Raises:
        InvalidInputError: the file is not a picture, is damaged, too small or too large, takes too
            much time or memory to decode, or has been deleted.
        StoppedError: see `Turns.turn`.
    """
    if isinstance(file, (str, os.PathLike)):
        try:
            os.utime(file)
        except (OSError, ValueError):
            raise InvalidInputError(f"{name} {NOT_UPLOADED}") from None
    with READING.turn() as waited:
        seconds = MOST_SECONDS
        if deadline is not None:
            deadline.time += waited
            seconds = max(min(seconds, round(deadline.left())), 1)
        picture = read_untrusted(file, name, least=least, seconds=seconds)
        if notes is not None:
            notes.extend(picture.notes)
        return reduce(picture.rgb)


def stop_reading() -> None:
    """Stop reading pictures, and those who wait for it: the server ends."""
    READING.close()
    READER.close()


def started(task: FaceTask, start: Value, crop: Crop) -> FaceTask:
    """Return the sizes of a decode that starts from `start` pixels, or from fewer if the crop is
    smaller."""
    most = min(task.from_size(start).source, crop.size)
    return task.from_size(max(side for side in task.starts if side <= most))


def take(image: Pixels, task: FaceTask, crop: Crop) -> Subject:
    """Reduce a crop of a picture, uint8 [H, W, 3]; a picture of the input's size is the source as
    it is."""
    source = input_of(image, crop, task)
    if source is image:
        return Subject(image)
    square = crop.take(image)
    return Subject(source, task.target_of(square) if len(square) >= task.target else None, crop)


def subjects(image: Pixels, task: FaceTask, setting: str = DEFAULT_CROP) -> list[Subject]:
    """Return the inputs from a picture, one per crop of `choose_crops`, as `superres upscale` has
    them."""
    return [take(image, task, crop) for crop in choose_crops(image, task, setting)]


def input_sizes(task: FaceTask) -> str:
    """Return the sizes of the pictures that are inputs as they are."""
    return " or ".join(f"{side}x{side}" for side in task.starts)


def start_control(task: FaceTask, elem_id: str, is_visible: bool) -> gr.Radio:
    """Lay out the choice of the side from which a decode starts."""
    more = [(f"{side}x{side}: more of what the photo really shows", side) for side in task.between]
    return gr.Radio([(task.source_size, task.source), *more], value=task.source, label="Start from",
                    visible=controls.visibility(is_visible), elem_id=elem_id)


def crop_controls(
    upload: gr.File, chosen: Dependency, first: Path, task: FaceTask,
) -> tuple[gr.HTML, gr.Radio]:
    """Lay out the crop of an upload, which is `first` initially and then that of the event
    `chosen`, and the input.

    Return the hidden component of the chosen square, a crop setting, where "" is the default crop,
    and the choice of the start, which is visible where the crop allows several.
    """
    # an example is no visitor's picture: no process of its own reads it
    element, preview, setting, is_visible = views_of(task, task.source, read_image(first))
    crop = gr.HTML(element, elem_id="crop")
    start = start_control(task, "start", is_visible)
    shown = gr.HTML(preview, elem_id="preview")
    square = gr.HTML(setting, html_template="", js_on_load=ON_LOAD, visible="hidden",
                     elem_id="square")
    # Until the server has seen the picture, a decode takes its default crop, not the last picture's
    # square.
    chosen.success(None, None, square, js="() => ''", **controls.INSTANT)
    offered = chosen.success(functools.partial(offer_crop, task), [upload, start],
                             [crop, shown, square, start], trigger_mode="always_last",
                             api_name="offer_crop", **controls.INSTANT, **controls.RAW)
    for event in (chosen, offered):
        event.failure(None, None, None, js=UNREAD, **controls.INSTANT)
    gr.on([square.input, start.input], functools.partial(show_crop, task), [upload, square, start],
          [shown, start], trigger_mode="always_last", api_name="show_crop", **controls.INSTANT,
          **controls.RAW)
    return square, start


def crop_of(path: str, task: FaceTask, start: Value) -> tuple[str, str, str, bool]:
    """Return the `views_of` a visitor's picture, with what is damaged in its file."""
    notes: list[str] = []
    element, preview, square, is_visible = reduce_picture(
        path, functools.partial(views_of, task, start), task.source, notes=notes)
    return element, "".join(map(drawing.message, notes)) + preview, square, is_visible


def views_of(task: FaceTask, start: Value, image: Pixels) -> tuple[str, str, str, bool]:
    """Return the views of a picture, uint8 [H, W, 3].

    They are the element that moves a photo's crop, from the largest one; the view of its input for
    a chosen start; its first square; and whether it allows several starts. The element shows a
    reduced copy in a data URI: a visitor's photo has no file that others could find.
    """
    if task.is_source(image):
        return "", preview_html(Subject(image), task, image), "", False
    crops = choose_crops(image, task)
    chosen = largest(crops)
    data = json.dumps({
        "choice": secrets.token_hex(4),  # the page hears of a photo that is chosen again
        "width": image.shape[1], "height": image.shape[0], "least": task.source,
        "chosen": crops.index(chosen),
        "crops": [{"square": [crop.left, crop.top, crop.size, crop.turn], "kind": crop.kind,
                   "searched": crop.faces is not None, "uncertain": crop.is_uncertain}
                  for crop in crops]})
    shown = drawing.jpeg_uri(Image.fromarray(image), PHOTO_SIZE)
    photo = f'<img src="{escape(shown)}" alt="Your photo">'
    return (f'<superres-crop data-photo="{escape(data)}">{photo}</superres-crop>',
            preview_html(take(image, started(task, start, chosen), chosen), task, image,
                         is_offered=True), chosen.setting, has_choice(task, chosen))


def offer_crop(task: FaceTask, upload: Value, start: Value) -> tuple[str, str, str, dict[str, Any]]:
    """Return the element of a new upload, the view of its input, its first square, and the choice
    of the start."""
    element, preview, square, is_visible = "", "", "", False
    try:
        element, preview, square, is_visible = crop_of(path_of(upload), task, start)
    except SuperresError as error:
        preview = refusal(error)
    return element, preview, square, gr.update(visible=controls.visibility(is_visible))


def show_crop(task: FaceTask, upload: Value, square: Value, start: Value) -> tuple[str,
                                                                                   dict[str, Any]]:
    """Return the view of an upload's input with another square or start, and the choice of the
    start."""
    def show(image: Pixels) -> tuple[str, bool]:
        subject = chosen(square, start, task, image)
        return (preview_html(subject, task, image),
                subject.crop is not None and has_choice(task, subject.crop))

    preview, is_visible = "", False
    try:
        if upload is not None:
            preview, is_visible = reduce_picture(path_of(upload), show, task.source)
    except SuperresError as error:
        preview = refusal(error)
    return preview, gr.update(visible=controls.visibility(is_visible))


def has_choice(task: FaceTask, crop: Crop) -> bool:
    """Return whether a decode of a crop can start from several sides."""
    return any(side <= crop.size for side in task.between)


def chosen(square: Value, start: Value, task: FaceTask, image: Pixels) -> Subject:
    """Return the input from a picture for values of the square, which `choose_crops` checks, and of
    the start."""
    crop = largest(choose_crops(image, task, square or DEFAULT_CROP))
    return take(image, started(task, start, crop), crop)


def refusal(error: SuperresError) -> str:
    """Return what tells the paint box why there is no input; the box says it."""
    return (f'<div class="sr-input" data-turn="{secrets.token_hex(4)}" '
            f'data-refused="{escape(str(error))}" hidden></div>')


def preview_html(
    subject: Subject, task: FaceTask, image: Pixels, *, is_offered: bool = False,
) -> str:
    """Return the model's input from a picture, uint8 [H, W, 3], and of a photo its crop and the
    truth.

    One that `is_offered` is of a square that was found, which a visitor has not accepted.

    The paint box takes an input of its size from here, and shows it itself. Of a larger input, it
    takes the picture reduced to its own size.
    """
    size = f"{len(subject.source)}x{len(subject.source)}"
    alone = "; only the last stage draws" if len(subject.source) > task.source else ""
    sees = "" if subject.crop is None else ", all that it sees"
    caption = f"{size}: the model's input{sees}{alone}"
    square = "" if subject.crop is None else f' data-square="{subject.crop.setting}"'
    truth = ("" if subject.truth is None
             else f' data-truth="{drawing.data_uri(subject.truth, None)}"')
    in_box, cells = " hidden", ""
    if len(subject.source) != task.source:
        whole = image if subject.crop is None else subject.crop.take(image)
        in_box = ""
        reduced = area_reduce(whole, task.source, task.source)
        cells = f' data-cells="{drawing.data_uri(reduced, None)}"'
    figure = drawing.figure(subject.source, caption, f"The {size} input, enlarged", None)
    turn = secrets.token_hex(4)  # the box hears of a picture that is chosen again
    offered = "yes" if is_offered else ""
    return (f'<div class="sr-input" data-turn="{turn}" data-offered="{offered}"{square}{truth}'
            f"{cells}{in_box}>{figure}</div>")
