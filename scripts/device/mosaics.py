"""Faces as lossless WebP mosaics, so that tens of thousands travel in a few MB to a machine without
a network."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from superres.tasks.face_data import FacePairs

GRID = 32
FACES = GRID * GRID
"""Number of faces of a mosaic."""


def pack(pairs: FacePairs, number: int) -> dict[str, bytes]:
    """Return the files of mosaic `number`, which has the faces from `number` * FACES on, by
    name."""
    part = slice(number * FACES, (number + 1) * FACES)
    buffer = io.BytesIO()
    np.save(buffer, pairs.ids[part])
    return {f"{number:03d}-hr.webp": _mosaic(pairs.hr[part]),
            f"{number:03d}-lr.webp": _mosaic(pairs.lr[part]),
            f"{number:03d}-ids.npy": buffer.getvalue()}


def unpack(folder: Path) -> FacePairs:
    """Return the faces of all mosaics in `folder`, of one size."""
    high, low, ids = [], [], []
    for path in sorted(folder.glob("*-ids.npy")):
        ids.append(np.load(path))
        for kind, parts in (("hr", high), ("lr", low)):
            parts.append(_tiles(path.with_name(path.name.replace("ids.npy", f"{kind}.webp")),
                                len(ids[-1])))
    return FacePairs(np.concatenate(high), np.concatenate(low), np.concatenate(ids))


def _mosaic(faces: np.ndarray) -> bytes:
    side = faces.shape[1]
    tiles = np.zeros((FACES, side, side, 3), np.uint8)
    tiles[: len(faces)] = faces
    sheet = tiles.reshape(GRID, GRID, side, side, 3).swapaxes(1, 2).reshape(GRID * side,
                                                                            GRID * side, 3)
    buffer = io.BytesIO()
    Image.fromarray(sheet).save(buffer, "WEBP", lossless=True, quality=100, method=4)
    return buffer.getvalue()


def _tiles(path: Path, count: int) -> np.ndarray:
    with Image.open(path) as image:
        sheet = np.asarray(image.convert("RGB"))
    side = len(sheet) // GRID
    return sheet.reshape(GRID, side, GRID, side, 3).swapaxes(1, 2).reshape(FACES, side, side,
                                                                           3)[:count]
