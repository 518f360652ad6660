"""Contact sheets: pictures side by side, enlarged, with a caption per column."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from superres.tasks.faces import enlarge
from superres.tasks.pictures import Pixels

SHEET_ROWS = 12
"""Largest number of images on a contact sheet."""
PANEL = 256
"""Largest side in pixels of a picture on the sheet of one face."""


def contact_sheet(columns: dict[str, Pixels], scale: int = 4, caption_height: int = 16) -> Pixels:
    """Return a sheet with one captioned column per method and one row per image, the first `SHEET_ROWS`.

    `columns` has pictures by caption, each uint8 [N,H,W,3]. The sheet is uint8 [caption_height + rows * H * scale,
    columns * W * scale, 3].
    """
    strips = [np.concatenate(list(images[:SHEET_ROWS])) for images in columns.values()]
    body = np.concatenate(strips, axis=1).repeat(scale, axis=0).repeat(scale, axis=1)
    sheet = Image.new("RGB", (body.shape[1], body.shape[0] + caption_height), "white")
    sheet.paste(Image.fromarray(body), (0, caption_height))
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default()
    for index, caption in enumerate(columns):
        draw.text((index * body.shape[1] // len(columns) + 3, 2), caption, fill="black", font=font)
    return np.asarray(sheet)


def face_sheet(source: Pixels, face: Pixels) -> Pixels:
    """Return a sheet of a face: its input, uint8 [source, source, 3], the Lanczos enlargement, and the result.

    `face` is uint8 [target, target, 3]. All are enlarged by whole pixels to at most PANEL, or shown as they are.
    """
    side = len(face)
    columns = {f"input, {len(source)}x{len(source)}": enlarge(source[None], "nearest", side),
               "Lanczos": enlarge(source[None], "lanczos", side), f"superres, {side}x{side}": face[None]}
    return contact_sheet(columns, max(PANEL // side, 1))
