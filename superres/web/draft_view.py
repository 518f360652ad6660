"""The data of the tab "You are the drafter", on the server's page and on the static one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from superres.pictures.read import Pixels
from superres.tasks.faces import FaceTask, area_reduce
from superres.web import drawing
from superres.web.content import ICON_SIZE, label_of, text_of

TAB = "You are the drafter"
SENTENCES = Path(__file__).with_name("static") / "sentences.json"
"""Translations with the lengths of the blocks that the prediction heads' proposals give:
`scripts/record_sentences.py` writes them."""
EPSILON, MOST_EPSILON = 12, 64
"""Grey levels: the first epsilon of the game, with which a person's guesses pass, and the largest
one."""


def draft_view(task: FaceTask, heads: int, examples: Mapping[str, Pixels]) -> dict[str, Any]:
    """Return the data of the game: its sizes, faces to draw and sentences; `heads` is the number of
    prediction heads of the first stage."""
    return {"source": task.source, "side": (*task.between, task.target)[0], "heads": heads,
            "epsilon": EPSILON, "most": MOST_EPSILON, "faces": faces_of(examples, task),
            "text": json.loads(SENTENCES.read_text(encoding="utf-8"))}


def faces_of(examples: Mapping[str, Pixels], task: FaceTask) -> list[dict[str, str]]:
    """Return the examples that a model drew, or that are inputs: their names, pixels and icons."""
    faces = []
    for name, image in examples.items():
        if name.endswith("-drawn") or task.is_source(image):
            cells = area_reduce(image[None], task.source, task.source)[0]
            icon = drawing.data_uri(cells.repeat(ICON_SIZE // task.source or 1, 0).repeat(
                ICON_SIZE // task.source or 1, 1), None)
            faces.append({"name": label_of(name), "x": text_of(cells), "icon": icon})
    return faces
