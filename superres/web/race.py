"""The first thing that a visitor sees: a finished decode of a face beside one pixel value per step, as a replay."""

from __future__ import annotations

import json
from collections import deque
from html import escape

from superres.config import DecodeConfig
from superres.decoding.trace import mean_accepted_block_size
from superres.pipeline.resolved_options import resolve_options
from superres.tasks.pictures import Pixels
from superres.web import drawing
from superres.web.decoding import Decoder

FEW_TOKENS, SHOWN_BLOCK = 1.5, 4
"""Tokens per step below which a race shows blocks of a fixed size, and that size."""


def with_blocks(decoder: Decoder, options: DecodeConfig) -> DecodeConfig:
    """Return settings whose steps have blocks to show, and that make the same picture.

    They are `options`, unless these choose the block size and the decoder's example took about one token per step: on
    some processors, smaller blocks are faster.
    """
    example = decoder.example
    if not options.adaptive or options.accept != "exact" or example is None:
        return options
    mean = mean_accepted_block_size([trace for stage in example.stages for trace in stage.traces])
    shown = options.changed({"adaptive": False, "block_size": SHOWN_BLOCK})
    return options if mean >= FEW_TOKENS else resolve_options(shown, decoder.upscaler)


def race_html(decoder: Decoder, truth: Pixels | None) -> str:
    """Return the element that replays the decoder's example in blocks and in single steps; nothing without one.

    `truth` is what the example's input was reduced from, uint8 [target, target, 3].
    Exact blocks and single steps make the same picture, so one decode tells the steps of both.
    """
    example, default = decoder.example, decoder.upscaler.default
    if example is None or example.sources is None or not default.is_exact:
        return ""
    source, blocks = example.sources[0], with_blocks(decoder, default)
    if blocks != default:
        (frames,) = deque(decoder.upscale("warm-up", example.sources, {"": blocks}), 1)
        example = frames[""]
    stages = [{"uri": drawing.data_uri(stage.images[0]), "side": stage.images.shape[1], "tokens": trace.tokens,
               "accepted": trace.accepted} for stage in example.stages for trace in stage.traces[:1]]
    view = {"input": drawing.data_uri(source, None), "side": example.images.shape[1],
            "size": f"{len(source)}x{len(source)}",
            "truth": None if truth is None else drawing.data_uri(truth, None), "decodes": [
                {"name": "One pixel value per step", "end": "done",
                 "stages": [{name: value for name, value in stage.items() if name != "accepted"} for stage in stages]},
                {"name": "Several pixel values per step", "end": "the same picture", "stages": stages}]}
    data = json.dumps(view, separators=(",", ":"))
    return f'<superres-race role="group" aria-label="A face, decoded in two ways" data-view="{escape(data)}">' \
           "</superres-race>"
