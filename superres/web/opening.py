"""What the server's page shows until its scripts have laid it out: the first example and its faces,
where the paint box will be."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from superres.pictures.read import Pixels
from superres.tasks.faces import FaceTask
from superres.web import drawing
from superres.web.content import OTHERS, introduction

STYLES = tuple(Path(__file__).with_name("static") / name for name in ("paint.css", "opening.css"))
"""Those of the box, and of what is around it."""


def opening(task: FaceTask, first: Mapping[str, Any], source: Pixels) -> str:
    """Return the section for the faces `first` of `source`; see `superres.web.faces.first_view`.

    The box has its elements and styles, and removes it (`static/paint.js`). It needs no script and
    no other file.
    """
    headline, text = introduction(task)
    likeliest, *others = first["faces"]
    steps, tokens = likeliest["steps"], likeliest["tokens"]
    bars = "".join(
        f'<div><img src="{likeliest["uri"]}" alt=""><span>{name}</span><b>{count:,} steps</b>'
        f'<i style="--share: {count / tokens}"></i></div>'
        for name, count in (("One pixel value per step", tokens),
                            ("superres: the same picture", steps)))
    people = "".join(f'<img src="{one["uri"]}" alt="Another person with the same pixels">'
                     for one in others)
    title, told = others_of(task)
    cells = drawing.data_uri(source, None)
    return (f'<section id="first" aria-label="The page is loading"><style>{_styles()}</style>'
            f'<h1>superres</h1><h2>{escape(headline)}</h2><p class="sr-introduction">{text}</p>'
            '<div class="sr-paint"><div class="sr-box">'
            f'<img class="sr-cells sr-sharp" src="{cells}" alt="{task.source_size} pixels"></div>'
            f'<div class="sr-portrait"><figure class="sr-canvas"><img src="{likeliest["uri"]}" '
            'alt="The face that the model draws from them"></figure><p class="sr-told">The page is '
            f'loading…</p><div class="sr-bars"><p><strong>{tokens / steps:.1f} times fewer steps'
            f"</strong>for the same picture, bit for bit</p>{bars}</div></div>"
            f'<div class="sr-strangers"><p><b>{title} </b>{told}</p>'
            f'<div class="sr-others">{people}</div></div></div></section>')


def others_of(task: FaceTask) -> tuple[str, str]:
    """Return what the box says of the other people, as its `introduce` has it."""
    number, count = ("No", "One", "Two", "Three", "Four")[OTHERS], task.source**2
    return (f"{number} other people with the same {count} colours.", "Each of these pictures "
            f"reduces to exactly your {count} colours. Choose one to see it large.")


@functools.cache
def _styles() -> str:
    return "".join(path.read_text(encoding="utf-8") for path in STYLES)
