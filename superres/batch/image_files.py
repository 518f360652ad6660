"""Encode images as PNG, lossless WebP or .npz files, with the record of their decoding inside.

Equal images with equal records give equal bytes, at any time and on any machine.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from superres.tasks.colour import srgb_profile
from superres.tasks.pictures import Picture

_SOFTWARE, _DESCRIPTION = 0x0131, 0x010E


def encode_png(picture: Picture, record: dict[str, Any]) -> bytes:
    """Return a picture as PNG bytes with `record` as JSON in the text field "superres"."""
    info = PngInfo()
    info.add_text("Software", "superres")
    info.add_text("superres", json.dumps(record))
    if picture.xmp is not None:
        info.add_itxt("XML:com.adobe.xmp", picture.xmp.decode("utf-8", "replace"))
    more = {} if picture.exif is None else {"exif": picture.exif}
    return _saved(picture, "PNG", pnginfo=info, **more)


def encode_webp(picture: Picture, record: dict[str, Any]) -> bytes:
    """Return a picture as lossless WebP; `record` is JSON in EXIF's ImageDescription unless the input has its own."""
    exif = Image.Exif()
    if picture.exif is not None:
        exif.load(picture.exif)
    for tag, value in ((_SOFTWARE, "superres"), (_DESCRIPTION, json.dumps(record))):
        if tag not in exif:
            exif[tag] = value
    more = {} if picture.xmp is None else {"xmp": picture.xmp}
    return _saved(picture, "WEBP", lossless=True, exact=True, exif=exif.tobytes(), **more)


def encode_npz(picture: Picture, record: dict[str, Any]) -> bytes:
    """Return a picture as .npz: "image" (uint8 [H,W,3], or [H,W,4] with alpha), and "record", JSON text."""
    buffer = io.BytesIO()
    np.savez(buffer, image=np.asarray(_image(picture)), record=np.array(json.dumps(record)))
    return buffer.getvalue()


def _image(picture: Picture) -> Image.Image:
    image = Image.fromarray(picture.rgb)
    if picture.alpha is not None:
        image.putalpha(Image.fromarray(picture.alpha))
    return image


def _saved(picture: Picture, kind: str, **more: Any) -> bytes:  # noqa: ANN401 -- Pillow's options
    if picture.has_profile:
        more["icc_profile"] = srgb_profile()
    buffer = io.BytesIO()
    _image(picture).save(buffer, kind, **more)
    return buffer.getvalue()


FORMATS = {"png": encode_png, "webp-lossless": encode_webp, "npz": encode_npz}
"""Functions that return the bytes of a file, by the values of --format."""
SUFFIXES = {"png": ".png", "webp-lossless": ".webp", "npz": ".npz"}  # suffixes of files by the values of --format
