"""Encode images as PNG, lossless WebP or .npz files, with the record of their decoding inside.

Equal images with equal records give equal bytes, at any time and on any machine.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from superres.tasks.pictures import srgb_profile

Pixels = npt.NDArray[np.uint8]

_SOFTWARE, _DESCRIPTION = 0x0131, 0x010E


@dataclass(frozen=True, eq=False)
class Extras:
    """Properties that a result copies from its input.

    Attributes:
        alpha: uint8 [H, W] with the size of the result; None for an opaque result.
        exif: EXIF bytes, or None.
        xmp: an XMP packet, or None.
        has_profile: embed an sRGB profile, because the input had a colour profile.
    """

    alpha: Pixels | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    has_profile: bool = False


NOTHING = Extras()


def encode_png(image: Pixels, record: dict[str, Any], extras: Extras = NOTHING) -> bytes:
    """Return `image` (uint8 [H,W,3]) as PNG bytes with `record` as JSON in the text field "superres"."""
    info = PngInfo()
    info.add_text("Software", "superres")
    info.add_text("superres", json.dumps(record))
    if extras.xmp is not None:
        info.add_itxt("XML:com.adobe.xmp", extras.xmp.decode("utf-8", "replace"))
    more: dict[str, Any] = {"exif": extras.exif} if extras.exif is not None else {}
    if extras.has_profile:
        more["icc_profile"] = srgb_profile()
    buffer = io.BytesIO()
    _picture(image, extras).save(buffer, "PNG", pnginfo=info, **more)
    return buffer.getvalue()


def encode_webp(image: Pixels, record: dict[str, Any], extras: Extras = NOTHING) -> bytes:
    """Return `image` as lossless WebP; `record` is JSON in EXIF's ImageDescription unless the input has its own."""
    exif = Image.Exif()
    if extras.exif is not None:
        exif.load(extras.exif)
    for tag, value in ((_SOFTWARE, "superres"), (_DESCRIPTION, json.dumps(record))):
        if tag not in exif:
            exif[tag] = value
    more: dict[str, Any] = {"xmp": extras.xmp} if extras.xmp is not None else {}
    if extras.has_profile:
        more["icc_profile"] = srgb_profile()
    buffer = io.BytesIO()
    _picture(image, extras).save(buffer, "WEBP", lossless=True, exact=True, exif=exif.tobytes(), **more)
    return buffer.getvalue()


def encode_npz(image: Pixels, record: dict[str, Any], extras: Extras = NOTHING) -> bytes:
    """Return `image` as .npz: "image" (uint8 [H,W,3], or [H,W,4] with alpha), and "record", JSON text."""
    buffer = io.BytesIO()
    np.savez(buffer, image=np.asarray(_picture(image, extras)), record=np.array(json.dumps(record)))
    return buffer.getvalue()


def _picture(image: Pixels, extras: Extras) -> Image.Image:
    picture = Image.fromarray(image)
    if extras.alpha is not None:
        picture.putalpha(Image.fromarray(extras.alpha))
    return picture


@dataclass(frozen=True)
class Format:
    """A file format of results.

    Attributes:
        suffix: suffix of the file name.
        encode: returns the bytes of a file.
    """

    suffix: str
    encode: Callable[[Pixels, dict[str, Any], Extras], bytes]


FORMATS = {
    "png": Format(".png", encode_png), "webp-lossless": Format(".webp", encode_webp), "npz": Format(".npz", encode_npz),
}
"""Formats by name, the values of --format."""
