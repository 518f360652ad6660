"""The paint box: a visitor paints the pixels of an input, and sees the faces that reduce to them
after each stroke.

The box itself is `static/paint.js`. It asks for pictures by hidden components, one per kind of
picture, so that a small picture never waits for a large one that is drawn for an earlier stroke.
"""

from __future__ import annotations

import base64
import binascii
import functools
import io
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, cast

import gradio as gr
import numpy as np
from gradio.events import Dependency
from PIL import Image

from superres.config import DecodeConfig
from superres.errors import InvalidInputError
from superres.pictures.mark import marked
from superres.pictures.read import Pixels, read_image
from superres.pipeline.upscaled import Upscaled
from superres.tasks.faces import FaceTask
from superres.web import controls
from superres.web.card import card
from superres.web.content import OTHERS, box_view
from superres.web.controls import Value
from superres.web.decoding import VisitorDecoding
from superres.web.faces import PEOPLE, faces_of, sampled
from superres.web.files import MAX_FILE_BYTES, path_of
from superres.web.turns import VISITOR, StoppedError, Visitor

FILES = "card", "film"
KINDS = "small", "large", "finished", "others", *FILES
"""What the box asks for: the first stage's picture, the face, the finished face, other people with
the same pixels, and two files: a card with all of them, and the decode of a face as a moving
picture."""
FINISH = "mean"
"""How the page finishes faces, see `superres.pipeline.finish`: two blind raters preferred it."""
NOT_FINISHED = ("a sample keeps the detail that it invented, and only the likeliest face is "
                "finished; choose that one")
FRAMES, FRAME_MS, LAST_MS = 40, 80, 800
FILM = 256
"""Smallest side of a film in pixels."""
MOST_INSIDE, MOST_VISITORS = 20, 1000
"""Limits of `Latest`; the server has 40 threads."""
TOLD = """document.addEventListener("superres-%s", event => {
    props.value = event.detail;
    trigger("input");
});
document.dispatchEvent(new CustomEvent("superres-asking"));"""
"""Script of a hidden component that has what the box says last: a question, or what the buttons
below it take."""


def paint_box(decoding: VisitorDecoding, examples: Sequence[Path]) -> tuple[gr.HTML, gr.File,
                                                                            Dependency]:
    """Lay out the box, and return the hidden components of the painted pixels and of the chosen
    picture.

    The first has a value of `pixels_of`, "" where the pixels are those of the chosen picture, whose
    decodes have their truth. The chosen picture is a visitor's photo or an example, initially the
    first one; the third value is the event that chooses one, or none.
    """
    task = decoding.upscaler.face_task
    view = box_view(task, decoding.upscaler.stages,
                    {path.stem: read_image(path) for path in examples}, FILES)
    view["most_bytes"], view["first"] = MAX_FILE_BYTES, decoding.first
    gr.HTML(f'<superres-paint data-view="{escape(json.dumps(view))}"></superres-paint>',
            elem_id="paint", padding=False)
    painted, given = (gr.HTML("", html_template="", js_on_load=TOLD % name, visible="hidden",
                              elem_id=name)
                      for name in ("painted", "given"))
    upload = gr.File(str(examples[0]), visible="hidden", elem_id="photo")
    def take_given(value: Value) -> tuple[str | None, str]:
        if value == {}:
            return None, ""
        if isinstance(value, dict) and "example" in value:
            return str(examples[controls.whole_number("example", value["example"], 0,
                                                      len(examples) - 1)]), ""
        return path_of(value), ""

    # Nothing is painted until the box has the new picture's pixels. Gradio would drop an event
    # during another one.
    chosen = given.input(take_given, given, [upload, painted], trigger_mode="always_last",
                         **controls.INSTANT, **controls.RAW)
    for kind in KINDS:
        answer(kind, functools.partial(drawn, decoding, kind))
    return painted, upload, chosen


def answer(kind: str, draw: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Lay out the hidden components by which the page's script asks for pictures, which `draw`
    returns."""
    asked = gr.HTML("", html_template="", js_on_load=TOLD % f"ask-{kind}", visible="hidden",
                    elem_id=f"ask-{kind}")
    answered = gr.HTML("", visible="hidden", elem_id=f"answer-{kind}")
    asked.input(functools.partial(answer_of, draw, kind), asked, answered,
                trigger_mode="always_last", **controls.INSTANT)


def pixels_of(text: Value, task: FaceTask) -> Pixels:
    """Return the pixels that the page writes as a text in links, uint8 [source, source, 3].

    The text is base64 with the letters - and _ of RFC 4648, section 5, without padding: four
    characters per pixel.

    Raises:
        InvalidInputError: the text is not that of as many pixels.
    """
    count = math.prod(task.source_shape)
    wrong = (f"the pixels of this link are not {task.source_size}; copy the whole link, or begin "
             "with an empty box")
    try:
        values = base64.b64decode(f"{text}{'=' * (-count % 3)}", b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError(wrong) from None
    if len(values) != count:
        raise InvalidInputError(wrong)
    return np.frombuffer(values, np.uint8).reshape(task.source_shape)


def answer_of(draw: Callable[[dict[str, Any]], dict[str, Any]], kind: str, question: Value) -> str:
    """Return the element that tells the page's script what was drawn, or what went wrong."""
    try:
        view = draw(json.loads(question))
    except Exception as error:  # said where the picture would be
        view = {"error": controls.shown_to_visitor(error).message}
    data = json.dumps({**view, "kind": kind, "question": question})
    return f'<superres-answer data-view="{escape(data)}"></superres-answer>'


class Latest:
    """The latest pixels of each visitor, so that no decode goes on for pixels that have changed.

    A visitor is known for the last `MOST_VISITORS` questions of others. At most `MOST_INSIDE`
    questions are answered or wait for their turn, since each of them holds a thread of the server.
    """

    def __init__(self) -> None:
        self._pixels = OrderedDict[Visitor, str]()
        self._room, self._lock = threading.BoundedSemaphore(MOST_INSIDE), threading.Lock()

    @contextmanager
    def question(self, pixels: str) -> Iterator[Callable[[], None]]:
        """Answer a question of `VISITOR` in the block; the value raises StoppedError once there are
        newer pixels."""
        if not self._room.acquire(blocking=False):
            raise StoppedError("too many visitors ask for faces at this moment; try again in a "
                               "minute")
        try:
            visitor = self.note(pixels)

            def check() -> None:
                if self._pixels.get(visitor, pixels) != pixels:
                    raise StoppedError("another face has been asked for since")

            yield check
        finally:
            self._room.release()

    def note(self, pixels: str) -> Visitor:
        """Note the latest pixels of `VISITOR`, which ends the answers to earlier ones, and return
        the visitor."""
        visitor = VISITOR.get() or Visitor()
        with self._lock:
            self._pixels[visitor] = pixels
            self._pixels.move_to_end(visitor)
            if len(self._pixels) > MOST_VISITORS:
                self._pixels.popitem(last=False)
        return visitor


LATEST = Latest()


def drawn(decoding: VisitorDecoding, kind: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Draw what the box asks for, and return it for the page's script.

    A question has the pixels `x` (see `pixels_of`), the temperature `t` and the seed `s` of
    samples, and the number `n` of the sample that is shown large, 0 for the likeliest face; that of
    a card also the `link` to write on it.
    """
    pixels = pixels_of(asked["x"], decoding.upscaler.face_task)
    with LATEST.question(asked["x"]) as check:
        if kind == "finished":
            if controls.whole_number("n", asked["n"], 0, OTHERS):
                raise InvalidInputError(NOT_FINISHED)
            return finished(decoding, pixels, decoding.upscaler.default, check)
        draw = functools.partial(decoding.draw, f"paint, {kind}", pixels, check=check)
        return _drawn(decoding, draw, kind, asked)


def _drawn(
    decoding: VisitorDecoding, draw: Callable[..., Upscaled], kind: str, asked: dict[str, Any],
) -> dict[str, Any]:
    task, default = decoding.upscaler.face_task, decoding.upscaler.default
    chosen = controls.whole_number("n", asked["n"], 0, OTHERS)
    samples = sampled(default.changed({"seed": controls.whole_number("s", asked["s"], 0),
                                       "temperature": asked["t"]}))
    options, numbers, everyone = samples if chosen else default, [max(chosen, 1)], PEOPLE
    if kind == "small":
        return faces_of(decoding.upscaler, options,
                        draw(options, numbers, size=(*task.between, task.target)[0]), numbers)
    if kind == "large":
        return faces_of(decoding.upscaler, options, draw(options, numbers), numbers)
    if kind == "others":
        return faces_of(decoding.upscaler, samples, draw(samples, everyone), everyone)
    if kind == "film":
        return file_of("face.webp", film(draw(options, numbers)))
    return file_of("card.png", card_of(draw(default), draw(samples, everyone), chosen,
                                       str(asked["link"])))


def finished(decoding: VisitorDecoding, source: Pixels, options: DecodeConfig,
             check: Callable[[], None]) -> dict[str, Any]:
    """Draw the finished face of an input, uint8 [side, side, 3], and return it for the page's
    script: for the box, and for the viewer of a result."""
    result = decoding.finish("finish", source[None], options, FINISH, check=check)
    (face,) = faces_of(decoding.upscaler, options, result, [1], FINISH)["faces"]
    note = (f"The mean of {len(result.averaged)} pictures, sharpened, in {result.seconds:.1f} "
            f"seconds; --finish {FINISH} on the command line")
    return {"faces": [{**face, "name": f"Finished, {decoding.upscaler.face_task.target_size}",
                       "file": "face-finished.png", "note": note}]}


def film(result: Upscaled) -> bytes:
    """Return a face while it is decoded, as a moving WebP."""
    steps = np.linspace(0, len(result.ends(0)), FRAMES).round().astype(int)
    factor = -(-FILM // result.images.shape[1])
    first, *others = (Image.fromarray(result.after(0,
                                                   int(step)).repeat(factor, axis=0).repeat(factor,
                                                                                            axis=1))
                      for step in steps)
    content = io.BytesIO()
    first.save(content, "WEBP", save_all=True, append_images=others, quality=80, loop=0,
               xmp=marked(), duration=[*[FRAME_MS] * len(others), LAST_MS])
    return content.getvalue()


def card_of(likeliest: Upscaled, samples: Upscaled, chosen: int, link: str) -> bytes:
    """Return the card of the chosen face and the other ones as a PNG."""
    faces = [likeliest.images[0], *samples.images]
    face, source = faces.pop(chosen), cast(Pixels, likeliest.sources)[0]
    content = io.BytesIO()
    card(source, face, faces[-OTHERS:], link).save(content, "PNG")
    return content.getvalue()


def file_of(name: str, content: bytes) -> dict[str, Any]:
    """Return a file for the page's script, which saves it."""
    kind = "image/webp" if name.endswith(".webp") else "image/png"
    return {"file": name, "uri": f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"}
