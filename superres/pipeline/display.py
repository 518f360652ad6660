"""How a notebook shows results: a row of pictures with their notes, or a table of texts."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

import numpy as np

from superres.pictures.read import Picture
from superres.pictures.write import encode_png
from superres.system.output import counted

ENLARGED = 96  # smallest side of a picture in a notebook, in pixels of the page
MOST_SHOWN = 64  # largest number of pictures or texts that are shown
COLUMNS = 8  # pictures per row of a contact sheet


def images_png(images: np.ndarray) -> bytes | None:
    """Return a contact sheet of pictures, uint8 [N, H, W, 3], as a marked PNG in their own size;
    None for none."""
    if not len(images):
        return None
    images = images[:MOST_SHOWN]
    count, height, width, _ = images.shape
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    sheet = np.full((rows * columns, height, width, 3), 255, np.uint8)
    sheet[:count] = images
    sheet = sheet.reshape(
        rows, columns, height, width, 3
    ).swapaxes(1, 2).reshape(rows * height, columns * width, 3)
    return encode_png(Picture(sheet), {})


def images_html(stages: Sequence[np.ndarray], lines: Sequence[str]) -> str:
    """Return a contact sheet of the pictures of each stage, uint8 [N, H, W, 3], and `lines` below
    them, as HTML."""
    below = [*lines, *_more(len(stages[-1]), "image")]
    return "".join(map(_sheet_html, stages)) + "".join(f"<div>{html.escape(line)}</div>"
                                                       for line in below)


def _sheet_html(images: np.ndarray) -> str:
    """Return a contact sheet whose pixels are sharp, and all have the same whole number of the
    page's pixels."""
    png = images_png(images)
    if png is None:
        return ""
    _, height, width, _ = images.shape
    shown = -(-ENLARGED // width) * width * min(len(images), COLUMNS)
    alt = f"{counted(len(images), 'upscaled picture')} of {width}x{height}"
    return (f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}" width="{shown}" '
            f'alt="{alt}" style="image-rendering: pixelated; max-width: 100%">')


def texts_html(texts: Sequence[str], line: str) -> str:
    """Return texts as an ordered list with `line` below it, as HTML."""
    items = "".join(f"<li>{html.escape(text)}</li>" for text in texts[:MOST_SHOWN])
    below = "".join(f"<div>{html.escape(one)}</div>" for one in [line, *_more(len(texts), "line")])
    return f"<ol>{items}</ol>{below}"


def _more(count: int, noun: str) -> list[str]:
    return [f"not shown: {counted(count - MOST_SHOWN, noun)}"] if count > MOST_SHOWN else []
