"""Contact sheets: pictures side by side, enlarged, with a caption per column, and with names of the
rows if needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from superres.pictures.read import Pixels
from superres.tasks.faces import enlarge

SHEET_ROWS = 12
"""Largest number of images on a contact sheet."""
PANEL = 256
"""Largest side in pixels of a picture on the sheet of one face."""
VEIL, COVER = (122, 80, 200), 0.75
"""The colour over unreliable pixels, a violet that no face has, and its share in what is shown."""
Mask: TypeAlias = npt.NDArray[np.bool_]
"""Which pixels are meant, bool [H, W]."""


def contact_sheet(
    columns: dict[str, Pixels], scale: int = 4, caption_height: int = 16, rows: Sequence[str] = (),
) -> Pixels:
    """Return a sheet with one captioned column per method and one row per image, the first
    `SHEET_ROWS`.

    `columns` has pictures by caption, each uint8 [N,H,W,3]. `rows` are names of the rows, written
    to their left; a line break divides a name. The sheet is uint8 [caption_height + rows * H *
    scale, margin + columns * W * scale, 3], with a margin as wide as the longest name.
    """
    strips = [np.concatenate(list(images[:SHEET_ROWS])) for images in columns.values()]
    body = np.concatenate(strips, axis=1).repeat(scale, axis=0).repeat(scale, axis=1)
    ruler, size = ImageDraw.Draw(Image.new("RGB", (1, 1))), 0.625 * caption_height
    longest = max(ruler.textlength(caption, ImageFont.load_default(size)) for caption in columns)
    font = ImageFont.load_default(size * min(1.0, 0.9 * body.shape[1] / len(columns) / longest))
    margin = max((int(ruler.multiline_textbbox((0, 0), name, font=font)[2]) + 6 for name in rows),
                 default=0)
    sheet = Image.new("RGB", (margin + body.shape[1], body.shape[0] + caption_height), "white")
    sheet.paste(Image.fromarray(body), (margin, caption_height))
    draw = ImageDraw.Draw(sheet)
    for index, caption in enumerate(columns):
        draw.text((margin + index * body.shape[1] // len(columns) + 3, 2), caption, fill="black",
                  font=font)
    for index, name in enumerate(rows):
        middle = caption_height + (2 * index + 1) * body.shape[0] // (2 * len(rows))
        draw.multiline_text((3, middle), name, fill="black", font=font, anchor="lm")
    return np.asarray(sheet)


def face_sheet(source: Pixels, face: Pixels, reliable: Mask | None = None) -> Pixels:
    """Return a sheet of a face: its input, uint8 [source, source, 3], the Lanczos enlargement, and
    the result.

    `face` is uint8 [target, target, 3]. With the mask of its `reliable` pixels, bool [target,
    target], the sheet also has the `veiled` face. All are enlarged by whole pixels to at most
    PANEL, or shown as they are.
    """
    side = len(face)
    columns = {f"input, {len(source)}x{len(source)}": enlarge(source[None], "nearest", side),
               "Lanczos": enlarge(source[None], "lanczos", side),
               f"superres, {side}x{side}": face[None]}
    if reliable is not None:
        columns["unreliable pixels veiled"] = veiled(face, reliable)[None]
    return contact_sheet(columns, max(PANEL // side, 1))


def veiled(face: Pixels, reliable: Mask) -> Pixels:
    """Return a face, uint8 [H, W, 3], in which the colour VEIL covers the pixels that are not
    `reliable` [H, W]."""
    cover = np.where(reliable, 0.0, COVER)[:, :, None]
    return np.asarray(np.rint((1 - cover) * face + cover * np.array(VEIL)), np.uint8)
