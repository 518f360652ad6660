"""The choice between a face as the model drew it and a finished one, for which the viewer asks
after each decode."""

from __future__ import annotations

import base64
from typing import Any

from superres.config import DecodeConfig
from superres.pictures.read import Pixels
from superres.web import controls, drawing
from superres.web.decoding import Decoder
from superres.web.paint import Latest, pixels_of

FINISH = "mean"
"""How the page finishes faces, see `superres.pipeline.finish`: two blind raters preferred it."""
LATEST = Latest()


def question_of(source: Pixels, options: DecodeConfig, values: list[Any]) -> dict[str, Any]:
    """Return what the viewer of a face needs to ask for the finished one; {} for a sample.

    `values` are those of the controls as the visitor sent them, from which the face was drawn by
    `options`.
    """
    if options.is_sampling:
        return {}
    pixels = base64.b64encode(source.tobytes(), b"-_").decode("ascii").rstrip("=")
    return {"finish": {"x": pixels, "side": len(source), "values": values}}


def finished_face(decoder: Decoder, asked: dict[str, Any]) -> dict[str, Any]:
    """Draw the finished face of a question, any JSON object, and return it for the page's
    script."""
    task = decoder.upscaler.face_task
    side = controls.whole_number("side", asked["side"])
    source = pixels_of(asked["x"], task.from_size(side))
    upscaler = decoder.upscaler.from_size(side)
    options = controls.options_of(decoder.upscaler.default, asked["values"])
    with LATEST.question(str(asked)) as check:
        result = decoder.finish("finish", source[None], options, FINISH, check=check)
    record = drawing.record_of(upscaler, options, 1, FINISH)
    return {"faces": [{
        "name": f"Finished, {task.target_size}", "file": "face-finished.png",
        "note": f"The mean of {len(result.averaged)} pictures, sharpened, in {result.seconds:.1f} "
        f"seconds; --finish {FINISH} on the command line", "uri": drawing.data_uri(result.images[0],
                                                                                   record)}]}
