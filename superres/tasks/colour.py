"""Colour profiles: convert pixels to sRGB by the curves and primaries that a file declares.

A declaration that is damaged, or for other colours than the pixels', raises ValueError.
"""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

_SPACES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK", "Lab ": "LAB"}
SRGB = (0.3127, 0.3290, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
PRIMARIES = {1: SRGB, 9: (0.3127, 0.3290, 0.708, 0.292, 0.17, 0.797, 0.131, 0.046),
              12: (0.3127, 0.3290, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)}
"""Chromaticities of white, red, green and blue (x, y each), by the code of cICP: BT.709, BT.2020 and Display P3."""
_BT709 = (1 / 0.45, 1 / 1.099, 0.099 / 1.099, 1 / 4.5, 0.081)
CURVES = {1: _BT709, 4: (2.2,), 5: (2.8,), 6: _BT709, 8: (1.0,), 14: _BT709,
           13: (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045), 15: _BT709}
"""Parameters of ICC's parametric curves (type 0: exponent; type 3: with a linear part), by the code of cICP."""
_D50 = (0.9642, 1.0, 0.8249)
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]])


def profile_of(info: Mapping[Any, Any]) -> bytes | None:
    """Return the ICC profile of pixels with the metadata of Pillow's `Image.info`; None for sRGB.

    In the order of the PNG standard: code points (cICP), a profile, the mark "sRGB", gamma with chromaticities. A gamma
    within 5% of 1/2.2, without other primaries, means sRGB, as most programs that write it do.
    """
    if "cicp" in info:
        primaries, transfer, matrix, is_full = info["cicp"]
        if primaries not in PRIMARIES or transfer not in CURVES or matrix != 0 or is_full != 1:
            raise ValueError(f"cICP {primaries}/{transfer}/{matrix}/{is_full} is not supported")
        return None if (primaries, transfer) == (1, 13) else matrix_profile(PRIMARIES[primaries], CURVES[transfer])
    if info.get("icc_profile"):
        return bytes(info["icc_profile"])
    gamma, colours = info.get("gamma"), info.get("chromaticity", SRGB)
    if "srgb" in info or gamma is None:
        return None
    if not 0.1 <= gamma <= 4:
        raise ValueError(f"gAMA {gamma:g} is not between 0.1 and 4")
    is_srgb = abs(gamma * 2.2 - 1) < 0.05 and np.abs(np.subtract(colours, SRGB)).max() < 0.005
    return None if is_srgb else matrix_profile(tuple(colours), (1 / gamma,))


@functools.lru_cache(maxsize=16)
def matrix_profile(colours: tuple[float, ...], curve: tuple[float, ...]) -> bytes:
    """Return an ICC profile with the chromaticities of white, red, green and blue, and one parametric curve."""
    xyz = [np.array([x / y, 1, (1 - x - y) / y]) for x, y in zip(colours[::2], colours[1::2], strict=True) if y > 0]
    if len(xyz) != 4:
        raise ValueError("cHRM has a y of 0")
    white, primaries = xyz[0], np.stack(xyz[1:], axis=1)
    try:
        primaries = primaries * np.linalg.solve(primaries, white)
    except np.linalg.LinAlgError:
        raise ValueError("cHRM's primaries lie on a line") from None
    adapted = np.linalg.inv(_BRADFORD) @ np.diag(_BRADFORD @ _D50 / (_BRADFORD @ white)) @ _BRADFORD @ primaries
    tags = {b"wtpt": b"XYZ \0\0\0\0" + _fixed(_D50)}
    for name, column in zip((b"r", b"g", b"b"), adapted.T, strict=True):
        tags[name + b"XYZ"] = b"XYZ \0\0\0\0" + _fixed(column)
        tags[name + b"TRC"] = b"para\0\0\0\0" + struct.pack(">HH", 0 if len(curve) == 1 else 3, 0) + _fixed(curve)
    table, body = struct.pack(">I", len(tags)), b""
    for name, value in tags.items():
        table += struct.pack(">4sII", name, 132 + 12 * len(tags) + len(body), len(value))
        body += value
    head = struct.pack(">I4xI4s4s4s12x4s28x", 132 + len(table) - 4 + len(body), 0x04200000, b"mntr", b"RGB ", b"XYZ ",
                       b"acsp") + _fixed(_D50)
    return head.ljust(128, b"\0") + table + body


def _fixed(values: npt.ArrayLike) -> bytes:
    """Return numbers as ICC's s15Fixed16."""
    return bytes(np.rint(np.clip(values, -32767, 32767) * np.array(65536)).astype(">i4"))


_Change: TypeAlias = Callable[[Image.Image], Image.Image]


@functools.lru_cache(maxsize=16)  # pictures of a folder often share a profile, and building takes milliseconds
def transform(profile: bytes, mode: str) -> _Change | None:
    """Return what converts pixels of a mode to sRGB; None if it changes no colour by more than one level.

    Grey pixels may have a profile for RGB.
    """
    flags = ImageCms.Flags.BLACKPOINTCOMPENSATION
    if mode == "L":
        flags |= ImageCms.Flags.NOOPTIMIZE  # littlecms' shortcuts are 8 levels off in dark greys
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        space = _SPACES.get(source.profile.xcolor_space)
        if space is None or (space != mode and (space, mode) != ("RGB", "L")):
            raise ValueError(f"for {source.profile.xcolor_space.strip()}, not {mode}")
        change = ImageCms.buildTransform(source, srgb(), space, "RGB", ImageCms.Intent.RELATIVE_COLORIMETRIC, flags)
    except (ImageCms.PyCMSError, OSError, TypeError) as error:
        raise ValueError(f"damaged: {error}") from error

    def applied(image: Image.Image) -> Image.Image:
        return ImageCms.applyTransform(image, change) or image.convert("RGB")

    greys = np.arange(256, dtype=np.uint8)[None]
    if mode == "L":
        table = np.asarray(applied(Image.fromarray(greys).convert(space)))[0]
        return None if _is_near(table, greys.T) else lambda image: Image.fromarray(table[np.asarray(image)])
    if mode != "RGB":
        return applied
    cube = np.stack(np.meshgrid(*[greys[0, ::31]] * 3), -1).reshape(-1, 3)
    colours = np.concatenate([greys.T.repeat(3, 1), cube])[None]
    return None if _is_near(np.asarray(applied(Image.fromarray(colours))), colours) else applied


def _is_near(changed: npt.NDArray[np.uint8], before: npt.NDArray[np.uint8]) -> bool:
    return bool((np.abs(changed.astype(int) - before) <= 1).all())


def to_srgb(image: Image.Image, profile: bytes | None) -> Image.Image:
    """Convert an opaque image to sRGB; without a profile, Lab is CIELAB of D50, and other colours are sRGB's."""
    if image.mode not in _SPACES.values():
        image = image.convert("L" if image.mode == "1" else "RGB")
    if image.mode == "LAB":
        profile = profile or _lab().tobytes()
    change = transform(profile, image.mode) if profile else None
    return change(image) if change else image.convert("RGB")


@functools.cache
def srgb() -> ImageCms.ImageCmsProfile:
    """Return sRGB as littlecms knows it."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


@functools.cache
def _lab() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))


@functools.cache
def srgb_profile() -> bytes:
    """Return the ICC profile of sRGB, without its creation date, so that equal pictures give equal files."""
    profile = bytearray(srgb().tobytes())
    profile[24:36] = bytes(12)
    return bytes(profile)
