"""The choice between a face as the model drew it and a finished one, for which the viewer asks
after each decode."""

from __future__ import annotations

from typing import Any

from superres.config import DecodeConfig
from superres.pictures.read import Pixels
from superres.web import controls
from superres.web.content import text_of
from superres.web.decoding import VisitorDecoding
from superres.web.paint import Latest, finished, pixels_of

LATEST = Latest()


def question_of(source: Pixels, options: DecodeConfig, values: list[Any]) -> dict[str, Any]:
    """Return what the viewer of a face needs to ask for the finished one; {} for a sample.

    `values` are those of the controls as the visitor sent them, from which the face was drawn by
    `options`.
    """
    if options.is_sampling:
        return {}
    return {"finish": {"x": text_of(source), "side": len(source), "values": values}}


def finished_face(decoding: VisitorDecoding, asked: dict[str, Any]) -> dict[str, Any]:
    """Draw the finished face of a question, any JSON object, and return it for the page's
    script."""
    side = controls.whole_number("side", asked["side"])
    source = pixels_of(asked["x"], decoding.upscaler.face_task.from_size(side))
    options = controls.options_of(decoding.upscaler.default, asked["values"])
    with LATEST.question(str(asked)) as check:
        return finished(decoding, source, options, check)
