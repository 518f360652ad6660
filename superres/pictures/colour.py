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

Deep = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]
_SPACES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK", "Lab ": "LAB"}
SRGB = (0.3127, 0.3290, 0.64, 0.33, 0.30, 0.60, 0.15, 0.06)
PRIMARIES = {1: SRGB, 9: (0.3127, 0.3290, 0.708, 0.292, 0.17, 0.797, 0.131, 0.046),
              12: (0.3127, 0.3290, 0.68, 0.32, 0.265, 0.69, 0.15, 0.06)}
"""Chromaticities of white, red, green and blue (x, y each), by the code of cICP: BT.709, BT.2020
and Display P3."""
_BT709 = (1 / 0.45, 1 / 1.099, 0.099 / 1.099, 1 / 4.5, 0.081)
CURVES = {1: _BT709, 4: (2.2,), 5: (2.8,), 6: _BT709, 8: (1.0,), 14: _BT709,
           13: (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045), 15: _BT709}
"""Parameters of ICC's parametric curves (type 0: exponent; type 3: with a linear part), by the code
of cICP."""
_D50 = (0.9642, 1.0, 0.8249)
_BRADFORD = np.array([[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367],
                      [0.0389, -0.0685, 1.0296]])


def profile_of(info: Mapping[Any, Any]) -> bytes | None:
    """Return the ICC profile of pixels with the metadata of Pillow's `Image.info`; None for sRGB.

    In the order of the PNG standard: code points (cICP), a profile, the mark "sRGB", gamma with
    chromaticities. A gamma within 5% of 1/2.2, without other primaries, means sRGB, as most
    programs that write it do.
    """
    if "cicp" in info:
        primaries, transfer, matrix, is_full = info["cicp"]
        if primaries not in PRIMARIES or transfer not in CURVES or matrix != 0 or is_full != 1:
            raise ValueError(f"cICP {primaries}/{transfer}/{matrix}/{is_full} is not supported")
        return None if (primaries, transfer) == (1, 13) else matrix_profile(
            PRIMARIES[primaries], CURVES[transfer])
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
    """Return an ICC profile with the chromaticities of white, red, green and blue, and one
    parametric curve."""
    tags = {b"wtpt": b"XYZ \0\0\0\0" + _fixed(_D50)}
    for name, column in zip((b"r", b"g", b"b"), _primaries(colours).T, strict=True):
        tags[name + b"XYZ"] = b"XYZ \0\0\0\0" + _fixed(column)
        kind = 0 if len(curve) == 1 else 3
        tags[name + b"TRC"] = b"para\0\0\0\0" + struct.pack(">HH", kind, 0) + _fixed(curve)
    table, body = struct.pack(">I", len(tags)), b""
    for name, value in tags.items():
        table += struct.pack(">4sII", name, 132 + 12 * len(tags) + len(body), len(value))
        body += value
    head = struct.pack(">I4xI4s4s4s12x4s28x", 132 + len(table) - 4 + len(body), 0x04200000, b"mntr",
                       b"RGB ", b"XYZ ", b"acsp") + _fixed(_D50)
    return head.ljust(128, b"\0") + table + body


def _primaries(colours: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Return XYZ of red, green and blue in the columns of [3, 3], adapted to D50."""
    xyz = [np.array([x / y, 1, (1 - x - y) / y])
           for x, y in zip(colours[::2], colours[1::2], strict=True) if y > 0]
    if len(xyz) != 4:
        raise ValueError("cHRM has a y of 0")
    white, primaries = xyz[0], np.stack(xyz[1:], axis=1)
    try:
        primaries = primaries * np.linalg.solve(primaries, white)
    except np.linalg.LinAlgError:
        raise ValueError("cHRM's primaries lie on a line") from None
    adapted = (np.linalg.inv(_BRADFORD) @ np.diag(_BRADFORD @ _D50 / (_BRADFORD @ white))
               @ _BRADFORD @ primaries)
    return np.asarray(adapted)


def _fixed(values: npt.ArrayLike) -> bytes:
    """Return numbers as ICC's s15Fixed16."""
    return bytes(np.rint(np.clip(values, -32767, 32767) * np.array(65536)).astype(">i4"))


_Change: TypeAlias = Callable[[Image.Image], Image.Image]


# pictures of a folder often share a profile, and building takes milliseconds
@functools.lru_cache(maxsize=16)
def transform(profile: bytes, mode: str) -> _Change | None:
    """Return what converts pixels of a mode to sRGB; None if it changes no colour by more than one
    level.

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
        change = ImageCms.buildTransform(source, srgb(), space, "RGB",
                                         ImageCms.Intent.RELATIVE_COLORIMETRIC, flags)
    except (ImageCms.PyCMSError, OSError, TypeError) as error:
        raise ValueError(f"damaged: {error}") from error

    def applied(image: Image.Image) -> Image.Image:
        return ImageCms.applyTransform(image, change) or image.convert("RGB")

    greys = np.arange(256, dtype=np.uint8)[None]
    if mode == "L":
        table = np.asarray(applied(Image.fromarray(greys).convert(space)))[0]
        return None if _is_near(table, greys.T) else (
            lambda image: Image.fromarray(table[np.asarray(image)]))
    if mode != "RGB":
        return applied
    cube = np.stack(np.meshgrid(*[greys[0, ::31]] * 3), -1).reshape(-1, 3)
    colours = np.concatenate([greys.T.repeat(3, 1), cube])[None]
    return None if _is_near(np.asarray(applied(Image.fromarray(colours))), colours) else applied


def _is_near(changed: npt.NDArray[np.uint8], before: npt.NDArray[np.uint8]) -> bool:
    return bool((np.abs(changed.astype(int) - before) <= 1).all())


def to_srgb(pixels: Image.Image | Deep, profile: bytes | None) -> Image.Image:
    """Convert opaque pixels to sRGB; without a profile, Lab is CIELAB of D50, and other colours are
    sRGB's.

    The profile of 16-bit pixels is applied to all bits if it has curves and primaries; one with
    tables, to 8.
    """
    if isinstance(pixels, np.ndarray):
        mode = "L" if pixels.shape[-1] == 1 else "RGB"
        if profile and transform(profile, mode) and (curves := curves_of(profile)):
            return Image.fromarray(_encode(pixels, *curves))
        levels = eight_bits(pixels)
        pixels = Image.fromarray(levels[..., 0] if mode == "L" else levels)
    if pixels.mode not in _SPACES.values():
        pixels = pixels.convert("L" if pixels.mode == "1" else "RGB")
    if pixels.mode == "LAB":
        profile = profile or _lab().tobytes()
    change = transform(profile, pixels.mode) if profile else None
    return change(pixels) if change else pixels.convert("RGB")


@functools.lru_cache(maxsize=16)
def curves_of(profile: bytes) -> tuple[Floats, Floats] | None:
    """Return the light of the 16-bit levels, [1 or 3, 65536], and the matrix from it to sRGB's
    light, [3, 1 or 3].

    None for a profile that has no such curves and primaries, or others beside them.
    """
    try:
        tags = {}
        for number in range(struct.unpack(">I", profile[128:132])[0]):
            name, at, size = struct.unpack(">4sII", profile[132 + 12 * number : 144 + 12 * number])
            tags[name] = profile[at : at + size]
        if profile[20:24] != b"XYZ " or any(name.startswith((b"A2B", b"D2B")) for name in tags):
            return None
        if b"kTRC" in tags:
            return _curve(tags[b"kTRC"])[None], np.ones((3, 1), np.float32)
        curves = np.stack([_curve(tags[name + b"TRC"]) for name in (b"r", b"g", b"b")])
        xyz = [np.array(struct.unpack(">3i", tags[name + b"XYZ"][8:20])) / 65536
               for name in (b"r", b"g", b"b")]
        return curves, np.linalg.solve(_primaries(SRGB), np.stack(xyz, axis=1)).astype(np.float32)
    except (KeyError, ValueError, struct.error):
        return None


def _curve(tag: bytes) -> Floats:
    """Return a curve of ICC at all 16-bit levels: a gamma, a table, or parameters of types 0 to
    4."""
    levels = np.linspace(0, 1, 65536)
    if tag[:4] == b"curv":
        points = np.frombuffer(tag[12:], ">u2", struct.unpack(">I", tag[8:12])[0])
        if len(points) < 2:
            return np.asarray(levels ** (points[0] / 256 if len(points) else 1.0), np.float32)
        return np.interp(levels, np.linspace(0, 1, len(points)), points / 65535).astype(np.float32)
    kind = struct.unpack(">H", tag[8:10])[0]
    if tag[:4] != b"para" or kind > 4:
        raise ValueError("unknown curve")
    gamma, *rest = np.frombuffer(tag[12:], ">i4", (1, 3, 4, 5, 7)[kind]) / 65536
    a, b = rest[:2] or (1.0, 0.0)
    slope, start, above, below = 0.0, -b / a, 0.0, 0.0
    if kind == 2:
        above = below = rest[2]
    if kind > 2:
        slope, start, above, below = [*rest[2:], 0.0, 0.0][:4]
    curved = np.maximum(a * levels + b, 0) ** gamma + above
    return np.where(levels >= start, curved, slope * levels + below).clip(0, 1).astype(np.float32)


def _encode(values: Deep, curves: Floats, matrix: Floats) -> npt.NDArray[np.uint8]:
    """Return 16-bit levels as sRGB, uint8 [H, W, 3]; a grey level stands for three equal ones."""
    shares = [curve[values[..., number % values.shape[-1]]] for number, curve in enumerate(curves)]
    levels, result = _srgb_levels(), np.empty((*values.shape[:-1], 3), np.uint8)
    for number, weights in enumerate(matrix * np.float32(65535)):
        light = sum((weight * share for weight, share in zip(weights, shares, strict=True)),
                    np.float32(0.5))
        result[..., number] = levels[np.clip(light, 0, 65535).astype(np.uint16)]
    return result


@functools.cache
def _srgb_levels() -> npt.NDArray[np.uint8]:
    """Return sRGB's 8-bit levels by light in 65535ths."""
    light = np.linspace(0, 1, 65536)
    curved = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(255 * curved), np.uint8)


def eight_bits(values: npt.NDArray[Any], most: int = 65535) -> npt.NDArray[np.uint8]:
    """Return levels from 0 to `most` as levels from 0 to 255, rounded."""
    return np.asarray((values.astype(np.uint32) * np.uint32(255) + np.uint32(most // 2))
                      // np.uint32(most), np.uint8)


@functools.cache
def srgb() -> ImageCms.ImageCmsProfile:
    """Return sRGB as littlecms knows it."""
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


@functools.cache
def _lab() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB"))
