"""Read picture files of any supported format, mode and colour profile as upright, opaque sRGB pixels.

A file that is missing, damaged, not a picture, too small or too large raises InvalidInputError.
"""

from __future__ import annotations

import functools
import io
import os
import stat
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms, ImageOps, UnidentifiedImageError

from superres.errors import InvalidInputError

Pixels = npt.NDArray[np.uint8]
"""Pixels of one or more pictures, uint8 [..., H, W, C]."""

HEIF_SUFFIXES = frozenset({".heic", ".heif"})
IMAGE_SUFFIXES = HEIF_SUFFIXES | {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
MAX_PIXELS = 50_000_000
# Only formats that Pillow decodes itself; for EPS it would run an external program on an untrusted file.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1")
_SPACES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture and its metadata.

    Attributes:
        rgb: uint8 [H, W, 3], sRGB, upright, blended with the background where it is transparent.
        alpha: uint8 [H, W], 255 where it is opaque; None if the whole picture is opaque.
        exif: EXIF data without orientation, sizes and thumbnail, which are no longer valid; None without EXIF.
        xmp: the XMP packet; None without XMP.
        has_profile: whether the file has a colour profile, from which `rgb` was converted.
    """

    rgb: Pixels
    alpha: Pixels | None = None
    exif: bytes | None = None
    xmp: bytes | None = None
    has_profile: bool = False


def read_image(path: str | os.PathLike[str], least: int = 1) -> Pixels:
    """Read the pixels of a picture file, uint8 [H, W, 3]; see `read_picture`."""
    return read_picture(path, least=least).rgb


def read_picture(
    file: str | os.PathLike[str] | IO[bytes], label: str | None = None, max_pixels: int = MAX_PIXELS,
    background: str = "white", least: int = 1,
) -> Picture:
    """Read a picture of any mode as upright, opaque sRGB pixels.

    The EXIF orientation is applied, and colours are converted from the file's profile to sRGB. Transparent pixels are
    blended with `background`, a colour's name in Pillow. 16-bit grey is scaled to 8 bits; palette, grey and CMYK
    pictures become RGB. Only the first frame of an animation is read. HEIC and HEIF need the extra `heic`.

    `file` is a path, or content opened for reading, and `label` its name in messages; the format is detected from the
    content. `max_pixels` in all, and `least` in width and height, are checked before the picture is decoded.
    """
    label = str(file) if label is None else label
    with warnings.catch_warnings():
        # Pillow warns of large pictures, which are checked below, and of unusual metadata, which is irrelevant here.
        warnings.filterwarnings("ignore", module=r"PIL\b")
        try:
            if isinstance(file, (str, os.PathLike)):
                check_file(file, label)
            with Image.open(file, formats=_formats()) as image:
                _check_size(label, image.width, image.height, max_pixels, least)
                return _decode(image, background)
        except InvalidInputError:
            raise
        except Exception as error:  # Pillow raises errors of many types for damaged files
            raise InvalidInputError(_explain(file, label, error, max_pixels)) from error


def picture_of(image: Image.Image, least: int = 1) -> Picture:
    """Convert a Pillow image of any mode as `read_picture` converts a file; `image` itself is not changed."""
    label = "the picture"
    _check_size(label, image.width, image.height, MAX_PIXELS, least)
    try:
        return _decode(image, "white")
    except Exception as error:  # as above: a file that Pillow opened is decoded only now
        raise InvalidInputError(_explain(label, label, error, MAX_PIXELS)) from error


@functools.cache
def _formats() -> tuple[str, ...]:
    """Return Pillow's names of the formats that can be read; HEIF needs an optional package."""
    try:
        import pillow_heif
    except ImportError:
        return _FORMATS
    pillow_heif.register_heif_opener()
    return (*_FORMATS, "HEIF")


def check_file(path: str | os.PathLike[str], label: str) -> None:
    """Raise InvalidInputError unless `path` is a regular file with content, OSError if it is missing."""
    status = Path(path).stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
        raise InvalidInputError(f"{label} cannot be read: it is {kind}; provide an image file")
    if status.st_size == 0:
        raise InvalidInputError(f"{label} is empty (0 bytes); provide an image file")


def _check_size(label: str, width: int, height: int, max_pixels: int, least: int) -> None:
    if width * height > max_pixels:
        raise InvalidInputError(f"{label} is too large: {width}x{height}, over {max_pixels:,} pixels; reduce it first")
    if min(width, height) < least:
        raise InvalidInputError(f"{label} is too small: {width}x{height}; provide an image of at least {least}x{least}")


def _explain(file: str | os.PathLike[str] | IO[bytes], label: str, error: Exception, max_pixels: int) -> str:
    reason = " ".join(str(error).split())
    if isinstance(error, Image.DecompressionBombError):
        return f"{label} is too large: over {max_pixels:,} pixels; reduce it first ({reason})"
    if isinstance(error, UnidentifiedImageError):
        if _is_heif(file) and "HEIF" not in _formats():
            return f"{label} is a HEIC picture, which needs the extra heic; pip install 'superres[heic]'"
        return f"{label} is not an image that can be read; provide one of {', '.join(_formats())}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"{label} cannot be read: {error.strerror}; check the path and its permissions"
    return f"{label} is damaged or not supported ({reason or type(error).__name__}); save it again as PNG or JPEG"


def _is_heif(file: str | os.PathLike[str] | IO[bytes]) -> bool:
    try:
        with open(file, "rb") if isinstance(file, (str, os.PathLike)) else nullcontext(file) as opened:
            opened.seek(0)
            start = opened.read(12)
    except OSError:
        return False
    return start[4:8] == b"ftyp" and start[8:] in _HEIF_BRANDS


def _decode(image: Image.Image, background: str) -> Picture:
    """Decode the first frame of an opened picture."""
    image.load()
    image = ImageOps.exif_transpose(image)
    profile, xmp, exif = image.info.get("icc_profile"), image.info.get("xmp"), _kept_exif(image)
    alpha = None
    if image.mode.startswith("I"):
        image = _from_sixteen_bits(image)
    if image.mode == "F":
        raise ValueError("floating-point intensities have no known range")
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        alpha = np.array(layer.getchannel("A"))
        opaque = _to_srgb(layer.convert("RGB"), profile)
        image = Image.composite(opaque, Image.new("RGB", layer.size, background), layer.getchannel("A"))
    else:
        image = _to_srgb(image, profile)
    xmp = xmp.encode() if isinstance(xmp, str) else xmp
    return Picture(np.array(image), None if alpha is None or alpha.min() == 255 else alpha, exif, xmp, bool(profile))


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Scale grey levels 0..65535 to 0..255; Pillow's own conversion would clip all levels above 255 to white."""
    grey = np.array(image).astype(np.int64)
    if grey.min() < 0 or grey.max() > 65535:
        raise ValueError(f"grey levels {grey.min()}..{grey.max()} do not fit 16 bits")
    grey[grey == image.info.get("transparency", -1)] = 65535
    return Image.fromarray(((grey + 128) // 257).astype(np.uint8))


def _to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Convert an opaque picture to sRGB; a profile that is damaged or for another colour space is ignored."""
    if profile and image.mode not in _SPACES.values():
        image = image.convert("RGB")
    transform = _transform(profile, image.mode) if profile else None
    return (ImageCms.applyTransform(image, transform) if transform else None) or image.convert("RGB")


@functools.lru_cache(maxsize=16)  # pictures of a folder often share a profile, and building takes milliseconds
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if _SPACES.get(source.profile.xcolor_space) != mode or (source.profile.profile_description or "")[:4] == "sRGB":
            return None
        return ImageCms.buildTransform(
            source, ImageCms.createProfile("sRGB"), mode, "RGB", ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


@functools.cache
def srgb_profile() -> bytes:
    """Return the ICC profile of sRGB, without its creation date, so that equal pictures give equal files."""
    profile = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    profile[24:36] = bytes(12)
    return bytes(profile)


def _kept_exif(image: Image.Image) -> bytes | None:
    """Return the picture's EXIF data without orientation, sizes and thumbnail; None if it is missing or damaged."""
    try:
        exif = image.getexif()
        for tags, names in ((exif, (0x0100, 0x0101, 0x0112)), (exif.get_ifd(0x8769), (0xA002, 0xA003))):
            for name in names:
                tags.pop(name, None)
        return exif.tobytes() if len(exif) else None
    except Exception:  # Pillow raises errors of many types for damaged metadata; they are not needed
        return None
