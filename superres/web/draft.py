"""The tab "You are the drafter": a visitor guesses the next pixels of a face, or the next words of
a translation, and the model verifies the guesses in one call.

The game itself is `static/draft.js`. A question has all that an answer depends on, so the server
keeps nothing of a game.
"""

from __future__ import annotations

import base64
import binascii
import functools
import json
import threading
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np

from superres.decoding.drafting import Drafted, Propose, drafted
from superres.errors import InvalidInputError
from superres.pictures.read import Pixels, read_image
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import CHANNELS, INTENSITIES
from superres.web import controls
from superres.web.content import text_of
from superres.web.controls import Value
from superres.web.decoding import VisitorDecoding
from superres.web.draft_view import MOST_EPSILON, draft_view
from superres.web.paint import MOST_INSIDE, answer, pixels_of
from superres.web.turns import StoppedError

DRAFT = "draft"
OPEN_DRAFT = """document.addEventListener("superres-open-draft", () => trigger("input"));
document.dispatchEvent(new CustomEvent("superres-asking"));"""
"""Script of a hidden component that opens the tab for a link to a score."""
DRAFTERS = "you", "heads", "left"
ROOM = threading.BoundedSemaphore(MOST_INSIDE // 2)
"""Questions that are answered, or wait for their turn: each of them holds a thread of the
server."""


def draft_tab(decoding: VisitorDecoding, examples: Sequence[Path]) -> None:
    """Lay out the game."""
    heads = first_stage(decoding.upscaler).model_config.prediction_heads
    view = draft_view(decoding.upscaler.face_task, heads,
                      {path.stem: read_image(path) for path in examples})
    gr.HTML(f'<superres-draft data-view="{escape(json.dumps(view))}"></superres-draft>',
            elem_id=DRAFT, padding=False)
    answer(DRAFT, functools.partial(played, decoding))


def is_offered(upscaler: Upscaler) -> bool:
    """Return whether the decoders of an upscaler's first stage take tokens from outside, and its
    heads propose some."""
    stage = first_stage(upscaler)
    return stage.device == "cpu" and stage.model_config.prediction_heads > 1


def first_stage(upscaler: Upscaler) -> Upscaler:
    """Return the stages up to the first one."""
    task = upscaler.face_task
    return upscaler.at_size((*task.between, task.target)[0])


def tokens_of(text: Value, most: int) -> list[int]:
    """Return up to `most` tokens that the page writes as `text_of` does."""
    try:
        given = text if isinstance(text, str) else "?"
        values = base64.b64decode(f"{given}{'=' * (-len(given) % 4)}", b"-_", validate=True)
    except (binascii.Error, ValueError):
        values = bytes(most + 1)
    if len(values) > most:
        raise InvalidInputError("these are no pixels of this face; begin again")
    return list(values)


def played(decoding: VisitorDecoding, asked: dict[str, Any]) -> dict[str, Any]:
    """Verify what a drafter proposes, and return for the page's script what is accepted.

    A question has the pixels `x` of the input (see `pixels_of`), the tokens `c` that are committed
    (see `tokens_of`), who drafts (`by`, one of `DRAFTERS`), the visitor's guesses `g` of the tokens
    after the model's next one, the block size `k`, the largest accepted difference `e`, and the
    largest number of `calls`.
    """
    stage = first_stage(decoding.upscaler)
    cells, length = pixels_of(asked["x"], decoding.upscaler.face_task), stage.tokens_per_image
    size = controls.whole_number("k", asked["k"], 1, stage.model_config.prediction_heads)
    by, guesses = asked["by"], asked.get("g") or []
    if by not in DRAFTERS or not isinstance(guesses, list) or len(guesses) >= max(size, 2):
        raise InvalidInputError("the page and the server are of different releases; load the page "
                                "again")
    given = [controls.whole_number("a guess", one, 0, INTENSITIES - 1) for one in guesses]
    proposers: dict[str, Propose | None] = {"you": lambda _: given, "heads": None,
                                            "left": left_of(cells, stage.face_task.target, size)}
    draft = functools.partial(
        drafted, stage.scoring, stage.limits, stage.source_tokens(cells[None])[0],
        tokens_of(asked["c"], length - 1), block_size=size, propose=proposers[by],
        epsilon=controls.whole_number("e", asked["e"], 0, MOST_EPSILON),
        calls=controls.whole_number("calls", asked["calls"], 0, length))
    if not ROOM.acquire(blocking=False):
        raise StoppedError("too many visitors draft faces at this moment; try again in a minute")
    try:
        found = decoding.drafted(DRAFT, lambda check: draft(check=check))
    finally:
        ROOM.release()
    return view_of(found)


def view_of(found: Drafted) -> dict[str, Any]:
    """Return what the page's script is told of a draft."""
    return {"tokens": text_of(np.array(found.tokens, np.uint8)), "accepted": found.accepted,
            "pending": found.pending, "seconds": found.seconds}


def left_of(cells: Pixels, side: int, size: int) -> Propose:
    """Return the rule "the pixel on the left" for blocks of `size`.

    The first pixel of a row is that above, the first of all the input's.
    """
    row, values = CHANNELS * side, cells.ravel()

    def propose(known: list[int]) -> list[int]:
        tokens = list(known)
        for at in range(len(known), len(known) + size - 1):
            tokens.append(tokens[at - CHANNELS] if at % row >= CHANNELS
                          else tokens[at - row] if at >= row else int(values[at]))
        return tokens[len(known):]

    return propose
