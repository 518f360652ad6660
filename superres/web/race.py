"""The first thing that a visitor sees: a finished decode of a face beside one pixel value per step,
as a replay."""

from __future__ import annotations

import json
from html import escape

from superres.pictures.read import Pixels
from superres.web import drawing
from superres.web.decoding import Decoder


def race_html(decoder: Decoder, truth: Pixels | None) -> str:
    """Return the element that replays the decoder's example in blocks and in single steps; nothing
    without one.

    `truth` is what the example's input was reduced from, uint8 [target, target, 3].
    Exact blocks and single steps make the same picture, so one decode tells the steps of both.
    """
    example = decoder.example
    if example is None or example.sources is None or not decoder.upscaler.default.is_exact:
        return ""
    source = example.sources[0]
    stages = [{"uri": drawing.data_uri(stage.images[0]), "side": stage.images.shape[1],
               "tokens": trace.tokens, "accepted": trace.accepted} for stage in example.stages
              for trace in stage.traces[:1]]
    view = {"input": drawing.data_uri(source, None), "side": example.images.shape[1],
            "size": f"{len(source)}x{len(source)}",
            "truth": None if truth is None else drawing.data_uri(truth, None), "decodes": [
                {"name": "One pixel value per step", "end": "done",
                 "stages": [{name: value for name, value in stage.items() if name != "accepted"}
                            for stage in stages]},
                {"name": "Several pixel values per step", "end": "the same picture",
                 "stages": stages}]}
    data = json.dumps(view, separators=(",", ":"))
    return f'<superres-race role="group" aria-label="A face, decoded in two ways" data-view="{escape(data)}">' \
           "</superres-race>"
