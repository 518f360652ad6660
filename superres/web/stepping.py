"""The data of a finished decode with which the browser shows its steps; `static/stepper.js` draws them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from superres.batch.text import accepted_tokens
from superres.decoding.trace import RowTrace

if TYPE_CHECKING:
    from superres.pipeline.translator import Translated, Translator
    from superres.pipeline.upscaler import Upscaled


def proposals(trace: RowTrace) -> list[list[int]]:
    """Return the tokens that each iteration proposed, without the filling of smaller blocks."""
    return [row[row >= 0].tolist() for row in trace.proposed]


def faces_stepper(result: Upscaled) -> str:
    """Return the element that steps through finished pictures."""
    decodes = [{"name": f"Sample {number}", "seconds": result.seconds,
                "parts": [{"accepted": trace.accepted, "proposed": proposals(trace)}]}
               for number, trace in enumerate(result.traces, 1)]
    return _element("face", decodes, side=result.images.shape[2])


def text_stepper(translator: Translator, frames: dict[str, Translated]) -> str:
    """Return the element that steps through finished translations, first the last variant's; "" if none has a trace."""
    decodes = [
        {"name": f"{name}, line {number}" if name else f"Line {number}",
         "seconds": result.seconds, "parts": [_text_part(translator, trace) for trace in traces]}
        for name, result in reversed(frames.items()) for number, traces in enumerate(result.traces, 1) if traces]
    return _element("text", decodes, translator.languages[1]) if decodes else ""


def _text_part(translator: Translator, trace: RowTrace) -> dict[str, Any]:
    """Return the steps of a segment: names of the proposed tokens, and the text that a step adds or would have added.

    White space at the start of a text is kept, so the texts of the steps, joined, are the translation.
    """
    codec, proposed = translator.codec, proposals(trace)
    texts, rejected = list[str](), list[str]()
    surfaces = iter(codec.surfaces(trace.sequence.tolist()))
    known: list[int] = []
    for tokens, accepted in zip(proposed, accepted_tokens([trace]), strict=True):
        texts.append("".join(next(surfaces) for _ in accepted))
        before, after = codec.decode([known + accepted])[0], codec.decode([known + tokens])[0]
        # A token that is a part of a character ends `before` with a replacement character.
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        rejected.append(after[shared:])
        known += accepted
    return {"accepted": trace.accepted, "proposed": [codec.names(tokens) for tokens in proposed], "texts": texts,
            "rejected": rejected}


def _element(kind: str, decodes: Sequence[dict[str, Any]], language: str = "", side: int = 0) -> str:
    """Return the element for `stepper.js` from name, seconds and parts of each decode; a part is one sequence."""
    data = json.dumps({"kind": kind, "decodes": decodes, "language": language, "side": side},
                      separators=(",", ":"), ensure_ascii=False)
    return ('<superres-stepper role="group" aria-label="Step through the decode" '
            f'data-view="{escape(data)}"></superres-stepper>')
