"""The paint box: a visitor paints the pixels of an input, and sees the faces that reduce to them after each stroke.

The box itself is `static/paint.js`. It asks for pictures by hidden components, one per kind of picture, so that a small
picture never waits for a large one that is drawn for an earlier stroke.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import math
from html import escape
from typing import Any

import gradio as gr
import numpy as np

from superres.config import DecodeConfig
from superres.errors import InvalidInputError
from superres.pipeline.upscaled import Upscaled
from superres.system.output import short_digest
from superres.tasks.faces import FaceTask
from superres.tasks.pictures import Pixels
from superres.web import controls, drawing
from superres.web.controls import Value
from superres.web.decoding import Decoder

KINDS = "small", "large", "others"
"""What the box asks for: the first stage's picture, the face, and other people with the same pixels."""
OTHERS = 4
TEMPERATURE = 0.7
"""Temperature of samples where the settings are greedy; the higher it is, the more faces are torn."""
_READY = """
document.dispatchEvent(new CustomEvent("superres-asking"));"""
ASKED = """document.addEventListener("superres-ask-%s", event => {
    props.value = event.detail;
    trigger("input");
});""" + _READY
"""Script of the component that has the latest question of a kind."""
PAINTED = """document.addEventListener("superres-painted", event => {
    props.value = event.detail;
    trigger("input");
});""" + _READY
"""Script of the component that has the painted pixels, for the settings and buttons below the box."""


def paint_box(decoder: Decoder) -> gr.HTML:
    """Lay out the box, and return the hidden component of the painted pixels; see `pixels_of` for its values.

    It is "" where the pixels are those of the chosen photo or example, whose decodes have their truth.
    """
    task = decoder.upscaler.face_task
    view = {"side": task.source, "target": task.target, "stages": decoder.upscaler.stages, "others": OTHERS}
    gr.HTML(f'<superres-paint data-view="{escape(json.dumps(view))}"></superres-paint>', elem_id="paint", padding=False)
    for kind in KINDS:
        asked = gr.HTML("", html_template="", js_on_load=ASKED % kind, visible="hidden", elem_id=f"ask-{kind}")
        answer = gr.HTML("", visible="hidden", elem_id=f"answer-{kind}")
        asked.input(functools.partial(answer_of, decoder, kind), asked, answer, trigger_mode="always_last",
                    **controls.INSTANT)
    return gr.HTML("", html_template="", js_on_load=PAINTED, visible="hidden", elem_id="painted")


def pixels_of(text: Value, task: FaceTask) -> Pixels:
    """Return the pixels that the page writes as a text in links, uint8 [source, source, 3].

    The text is base64 with the letters - and _ of RFC 4648, section 5, without padding: four
    characters per pixel.

    Raises:
        InvalidInputError: the text is not that of as many pixels.
    """
    count = math.prod(task.source_shape)
    wrong = f"the pixels of this link are not {task.source_size}; copy the whole link, or begin with an empty box"
    try:
        values = base64.b64decode(f"{text}{'=' * (-count % 3)}", b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInputError(wrong) from None
    if len(values) != count:
        raise InvalidInputError(wrong)
    return np.frombuffer(values, np.uint8).reshape(task.source_shape)


def answer_of(decoder: Decoder, kind: str, question: Value) -> str:
    """Return the element that tells the box what was drawn, or what went wrong."""
    asked: dict[str, Any] = {}
    try:
        asked = json.loads(question)
        view = drawn(decoder, kind, pixels_of(asked["x"], decoder.upscaler.face_task), asked["s"])
    except Exception as error:  # told where the picture would be
        view = {"error": controls.shown_to_visitor(error).message}
    return f'<superres-answer data-view="{escape(json.dumps({**view, "kind": kind, "question": question}))}">' \
           "</superres-answer>"


def drawn(decoder: Decoder, kind: str, source: Pixels, seed: Value) -> dict[str, Any]:
    """Draw what the box asks for, and return it for the page's script."""
    options, count, size, task = decoder.upscaler.default, 1, None, decoder.upscaler.face_task
    if kind == "small":
        size = (*task.between, task.target)[0]
    elif kind == "others":
        options, count = sampled(options.changed({"seed": controls.whole_number("seed", seed, 0)})), OTHERS
    result = decoder.draw(f"paint, {kind}", source, options, count, size)
    return {"faces": [face_of(decoder, options, result, row) for row in range(count)]}


def sampled(options: DecodeConfig) -> DecodeConfig:
    """Return settings that sample: these, or if they are greedy, at `TEMPERATURE`."""
    return options if options.is_sampling else options.changed({"temperature": TEMPERATURE})


def face_of(decoder: Decoder, options: DecodeConfig, result: Upscaled, row: int) -> dict[str, Any]:
    """Return a picture for the page's script, with a digest of its pixels, and its steps and tokens."""
    image, record = result.images[row], drawing.record_of(decoder.upscaler, options, row + 1)
    counts = drawing.counts_of(result.stage_traces(row))
    return {"uri": drawing.data_uri(image, record), "digest": short_digest(image.tobytes()),
            "steps": counts["iterations"], "tokens": counts["tokens"]}
