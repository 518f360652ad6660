"""Encode images as PNG, lossless WebP or .npz files, with the record of their decoding and the mark
inside.

Every picture that a model drew is marked as such, so that other programs can tell: see
`superres.pictures.mark`. Equal images with equal records give equal bytes, at any time and on any
machine.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from superres.errors import InvalidInputError, first_line
from superres.pictures.mark import SOFTWARE, marked, origin
from superres.pictures.read import MAX_PIXELS, Picture, Pixels
from superres.system.json_files import parse_json

ORIGIN_FORMATS = ("PNG", "JPEG", "WEBP", "TIFF")
XMP_KEYWORD = "XML:com.adobe.xmp"  # of the text field of a PNG file
_XMP_TAG = 700  # of a TIFF file


def encode_png(picture: Picture, record: Mapping[str, Any] | None) -> bytes:
    """Return a picture as PNG bytes with the mark, and `record` as JSON in the text field
    "superres".

    A `record` of None says that no model drew the picture; then there is no mark.
    """
    info = PngInfo()
    if record is not None:
        info.add_text("Software", SOFTWARE)
        if record:
            info.add_text(SOFTWARE, json.dumps(record))
        info.add_itxt(XMP_KEYWORD, marked().decode())
    return _saved(picture, "PNG", pnginfo=info)


def encode_webp(picture: Picture, record: Mapping[str, Any]) -> bytes:
    """Return a picture as lossless WebP with the mark, and `record` as JSON in EXIF's
    ImageDescription."""
    tags = Image.Exif()
    tags[ExifTags.Base.Software] = SOFTWARE
    tags[ExifTags.Base.ImageDescription] = json.dumps(record)
    return _saved(picture, "WEBP", lossless=True, exact=True, exif=tags.tobytes(), xmp=marked())


def encode_npz(picture: Picture, record: Mapping[str, Any]) -> bytes:
    """Return a picture as .npz: "image" (uint8 [H,W,3], or [H,W,4] with alpha), and "record", JSON
    text."""
    buffer = io.BytesIO()
    np.savez(buffer, image=np.asarray(_image(picture)), record=np.array(json.dumps(record)))
    return buffer.getvalue()


class DrawnImage(Image.Image):
    """A Pillow image that a model drew: its files have the mark in PNG, JPEG, WebP, TIFF and
    AVIF."""

    @classmethod
    def of(cls, pixels: Pixels, record: Mapping[str, Any]) -> DrawnImage:
        """Return the image of uint8 [H, W, 3]; its files have `record` beside the mark."""
        image = cls._copied(Image.fromarray(pixels))
        image.info["xmp"] = marked(record)
        return image

    @classmethod
    def _copied(cls, image: Image.Image) -> DrawnImage:
        copied = cls()
        vars(copied).update(vars(image))
        return copied

    def _new(self, core: Any) -> Image.Image:  # noqa: ANN401 -- as in Pillow, which makes copies, crops ... with it
        return self._copied(super()._new(core))

    def save(self, fp: Any, format: str | None = None, **params: Any) -> None:  # noqa: ANN401 -- as in Pillow
        """Save the image as `PIL.Image.Image.save` does, with the mark unless `params` have other
        metadata."""
        info, xmp = PngInfo(), self.info["xmp"]
        info.add_itxt(XMP_KEYWORD, xmp.decode())
        # each format takes its own
        marks = {"xmp": xmp, "pnginfo": info, "tiffinfo": {_XMP_TAG: xmp}}
        super().save(fp, format, **{**marks, **params})


def read_origin(file: IO[bytes], label: str) -> dict[str, Any]:
    """Return what a PNG, JPEG, WebP or TIFF file says of its picture's origin, as a JSON object.

    "mark" is the term of IPTC's digital source type, "tool" the program that wrote the picture, and
    "settings" the record of superres; each is None if the file has none. InvalidInputError, with
    `label`, if it cannot be read.
    """
    try:
        with warnings.catch_warnings(), Image.open(file, formats=ORIGIN_FORMATS) as image:
            warnings.simplefilter("ignore")  # Pillow's, of large pictures and unusual metadata
            if image.format == "PNG" and image.width * image.height <= MAX_PIXELS:
                image.load()  # its texts may stand behind the pixels
            info, description = image.info, _description(image)
            found = {"format": image.format, "width": image.width, "height": image.height}
    except UnidentifiedImageError:
        raise InvalidInputError(f"{label} is not a picture in {', '.join(ORIGIN_FORMATS)}; give "
                                "one of them") from None
    except Exception as error:  # Pillow raises errors of many types for damaged files
        raise InvalidInputError(f"{label} cannot be read ({first_line(error)}); check the "
                                "file") from error
    said = origin(info.get("xmp"))
    records = map(_record, (info.get(SOFTWARE), said.get("record"), description))
    return {**found, "mark": said.get("mark"), "tool": said.get("tool"),
            "settings": next(filter(None, records), None)}


def _description(image: Image.Image) -> str | None:
    """Return EXIF's ImageDescription; None if there is none, or it cannot be read."""
    try:
        return image.getexif().get(ExifTags.Base.ImageDescription)
    except Exception:  # Pillow raises errors of many types for damaged metadata
        return None


def _record(text: str | bytes | None) -> dict[str, Any] | None:
    """Return the record of superres that is in a text of a file; None if it is something else."""
    try:
        record = parse_json(text.encode() if isinstance(text, str) else text or b"")
    except ValueError:
        return None
    is_ours = isinstance(record, dict) and not {"checkpoint", "config"}.isdisjoint(record)
    return record if is_ours else None


def _image(picture: Picture) -> Image.Image:
    image = Image.fromarray(picture.rgb)
    if picture.alpha is not None:
        image.putalpha(Image.fromarray(picture.alpha))
    return image


def _saved(picture: Picture, kind: str, **more: Any) -> bytes:  # noqa: ANN401 -- Pillow's options
    buffer = io.BytesIO()
    _image(picture).save(buffer, kind, **more)
    return buffer.getvalue()


ENCODERS = {"png": encode_png, "webp-lossless": encode_webp, "npz": encode_npz}
"""Functions that return the bytes of a file, by the values of --format."""
