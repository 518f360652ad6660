"""Read picture files of any supported format, mode and colour profile as upright, opaque sRGB
pixels.

A file that is missing, damaged, not a picture, too small or too large raises InvalidInputError.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from superres.errors import InvalidInputError
from superres.pictures.colour import profile_of, to_srgb
from superres.pictures.decode import MOST_BYTES, JpegSource, PixelSource, PngSource
from superres.pictures.files import BRANDS, MISSING, Notes, formats, ignored
from superres.pictures.tiff import TIFF_STARTS, open_tiff

Pixels = npt.NDArray[np.uint8]
"""Pixels of one or more pictures, uint8 [..., H, W, C]."""

MAX_PIXELS = 50_000_000
_STRIP_PIXELS = 1 << 18  # converted at a time

@dataclass(frozen=True, eq=False)
class Picture:
    """A picture.

    Attributes:
        rgb: uint8 [H, W, 3], sRGB, upright, blended with the background where it is transparent.
        alpha: uint8 [H, W], 255 where it is opaque; None if the whole picture is opaque.
        notes: lines about metadata that is damaged and ignored; the pixels are sound.
    """

    rgb: Pixels
    alpha: Pixels | None = None
    notes: tuple[str, ...] = ()


def read_image(path: str | os.PathLike[str], least: int = 1) -> Pixels:
    """Read the pixels of a picture file, uint8 [H, W, 3]; see `read_picture`."""
    return read_picture(path, least=least).rgb


def read_picture(
    file: str | os.PathLike[str] | IO[bytes], label: str | None = None,
    max_pixels: int = MAX_PIXELS, background: str = "white", least: int = 1,
) -> Picture:
    """Read a picture of any mode as upright, opaque sRGB pixels.

    The EXIF orientation is applied, and colours are converted from the file's profile to sRGB.
    Transparent pixels are blended with `background`, a colour's name in Pillow. All samples are
    scaled to 8 bits; palette, grey, CMYK and Lab pictures become RGB. Only the first frame of an
    animation is read. HEIC and HEIF need the `heic` extra. Damaged metadata is ignored, and the
    picture's notes say so.

    `file` is a path, or content opened for reading, and `label` its name in messages; the format is
    detected from the content. `max_pixels` in all, `least` in width and height, and the memory that
    decoding needs (`MOST_BYTES`), are checked before the picture is decoded.
    """
    label = str(file) if label is None else label
    with warnings.catch_warnings():
        # Pillow warns of large pictures, which are checked below, and of unusual metadata, which is
        # irrelevant here.
        warnings.filterwarnings("ignore", module=r"PIL\b")
        try:
            if isinstance(file, (str, os.PathLike)):
                check_file(file, label)
            with (open(file, "rb") if isinstance(file, (str, os.PathLike))
                  else nullcontext(file) as opened):
                try:
                    source = open_source(opened)
                    _check_size(label, source, max_pixels, least)
                    return _decode(source, background)
                except UnidentifiedImageError as error:
                    raise InvalidInputError(_unidentified(opened, label)) from error
        except InvalidInputError:
            raise
        except Exception as error:  # Pillow raises errors of many types for damaged files
            raise InvalidInputError(_explain(label, error, max_pixels)) from error


def picture_of(image: Image.Image, least: int = 1) -> Picture:
    """Convert a Pillow image of any mode as `read_picture` converts a file; `image` itself is not
    changed."""
    label, source = "the picture", PixelSource(image, Notes())
    _check_size(label, source, MAX_PIXELS, least)
    try:
        return _decode(source, "white")
    except Exception as error:  # as above: a file that Pillow opened is decoded only now
        raise InvalidInputError(_explain(label, error, MAX_PIXELS)) from error


def open_source(file: IO[bytes]) -> PixelSource:
    """Open a picture; the format is detected from the content."""
    file.seek(0)
    start = file.read(8)
    file.seek(0)
    if start == b"\x89PNG\r\n\x1a\n":
        return PngSource(file)
    if start.startswith(b"\xff\xd8\xff"):
        return JpegSource(file)
    if start[:4] in TIFF_STARTS:
        return open_tiff(file)
    others = [one for one in formats() if one not in ("PNG", "JPEG", "TIFF")]
    return PixelSource(Image.open(file, formats=others), Notes())


def check_file(path: str | os.PathLike[str], label: str) -> None:
    """Raise InvalidInputError unless the path names a file with content."""
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise InvalidInputError(f"{label} cannot be read: it is {kind}; provide an image file")
    if status.st_size == 0:
        raise InvalidInputError(f"{label} is empty (0 bytes); provide an image file")


def _check_size(label: str, source: PixelSource, max_pixels: int, least: int) -> None:
    width, height = source.size
    if width * height > max_pixels:
        raise InvalidInputError(f"{label} is too large: {width}x{height}, over {max_pixels:,} "
                                "pixels; reduce it first")
    if source.needed_bytes() > MOST_BYTES:
        raise InvalidInputError(f"{label} is too large: {width}x{height} pixels of its kind take "
                                f"{source.needed_bytes():,} bytes of memory, over {MOST_BYTES:,}; "
                                "reduce it first, or save it as JPEG")
    if min(width, height) < least:
        raise InvalidInputError(f"{label} is too small: {width}x{height}; provide an image of at "
                                f"least {least}x{least}")


def _unidentified(file: IO[bytes], label: str) -> str:
    file.seek(0)
    start = file.read(12)
    kind = BRANDS.get(start[8:], "") if start[4:8] == b"ftyp" else ""
    if kind and kind not in formats():
        return f"{label} is {MISSING[kind]}"
    if start.startswith((b"\x89PNG", b"\xff\xd8\xff", *TIFF_STARTS)):
        return f"{label} is damaged: its header has no sound picture; save it again as PNG or JPEG"
    return f"{label} is not an image that can be read; provide one of {', '.join(formats())}"


def _explain(label: str, error: Exception, max_pixels: int) -> str:
    reason = " ".join(str(error).split())
    if isinstance(error, Image.DecompressionBombError):
        count, *_ = re.findall(r"\d+", reason)  # Pillow speaks of limits of its own
        return f"{label} is too large: {int(count):,} pixels, over {max_pixels:,}; reduce it first"
    if isinstance(error, NotImplementedError):
        return (f"{label} is a {reason}, which cannot be read; save it with 8 bits per colour as "
                "PNG or TIFF")
    if isinstance(error, OSError) and error.errno is not None:
        return f"{label} cannot be read: {error.strerror}; check the path and its permissions"
    return (f"{label} is damaged or not supported ({reason or type(error).__name__}); save it "
            "again as PNG or JPEG")


def _decode(source: PixelSource, background: str) -> Picture:
    """Decode an opened picture and convert it, strip by strip so that no second copy is in
    memory."""
    source.load()
    info, notes = source.image.info, source.notes
    if source.image.mode == "F":
        raise NotImplementedError("picture of floating-point intensities, whose range is unknown")
    # what the metadata say of the pixels
    orientation = _orientation(source)
    try:
        profile = profile_of(info)
        to_srgb(source.rows(0, 1)[0], profile)
    except ValueError as error:
        notes.append(ignored("colour profile", error))
        profile = None
    # the upright picture, filled through a view of it as the file has it
    width, height = source.size
    shape = (width, height, 3) if orientation > 4 else (height, width, 3)
    rgb, alpha = np.empty(shape, np.uint8), None
    as_stored, is_opaque = _turned(rgb, orientation), source.is_opaque()
    step = max(_STRIP_PIXELS // width & ~1, 2)
    for top in range(0, height, step):
        rows = slice(top, min(top + step, height))
        strip, opacity = source.rows(rows.start, rows.stop)
        strip = to_srgb(strip, profile)
        if opacity is not None and not is_opaque and opacity.min() < 255:
            alpha = np.full(rgb.shape[:2], 255, np.uint8) if alpha is None else alpha
            _turned(alpha, orientation)[rows] = opacity
            strip = Image.composite(strip, Image.new("RGB", strip.size, background),
                                    Image.fromarray(opacity))
        as_stored[rows] = np.asarray(strip)
    return Picture(rgb, alpha, notes.lines())


def _orientation(source: PixelSource) -> int:
    """Return the EXIF orientation, 1 to 8; 1 if there is none, or it is damaged, as a note says."""
    if source.orientation is not None:
        return source.orientation
    try:
        value = source.image.getexif().get(0x0112, 1)
    except Exception:  # Pillow raises errors of many types for damaged metadata
        source.notes.append(ignored("EXIF", ""))
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _turned(upright: Pixels, orientation: int) -> Pixels:
    """Return a view of upright pixels, [H, W] or [H, W, 3], as a file with the orientation has
    them."""
    if orientation > 4:
        upright = upright.swapaxes(0, 1)
    down = -1 if orientation in (3, 4, 6, 7) else 1
    across = -1 if orientation in (2, 3, 7, 8) else 1
    return upright[::down, ::across]
