"""Decode the pixels of opened picture files, and give them strip by strip: colours, and opacity
where there is one."""

from __future__ import annotations

import hashlib
from typing import IO, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from superres.pictures.colour import Deep
from superres.pictures.files import Notes, has_all_scans, split_jpeg, split_png

Alpha = npt.NDArray[np.uint8]
Colours: TypeAlias = "Image.Image | Deep"
"""Colours of a strip: an image without opacity, or uint16 [H, W, 1 or 3], grey or RGB."""
MOST_BYTES = 800_000_000
"""Memory for a picture's pixels while it is decoded and converted."""
# of Pillow's modes; others have 4
_CHANNEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2}
_DECODER_BYTES = {"WEBP": 16, "AVIF": 11, "HEIF": 8}
"""Bytes per pixel of decoding, as measured: canvases, planes, copies and Pillow's image."""
_MOST_DEEP_PIXELS = 25_000_000  # of a PNG that is decoded twice, for its high and its low bytes
_WANT_LOW_BYTES = frozenset({"transparency", "icc_profile", "gamma", "cicp"})
_TAILS = b"\xff\xd9", 64 * b"\xaa\x55" + b"\xff\xd9"
"""Ends for a JPEG without one. Both give the same pixels only if the file has all of them."""


class PixelSource:
    """A picture that Pillow decodes.

    Attributes:
        image: Pillow's image, with the metadata.
        size: width and height as stored, before the orientation is applied.
        notes: lines about metadata that is ignored.
        orientation: the EXIF orientation if it is known already; otherwise `image` has it.
    """

    orientation: int | None = None

    def __init__(self, image: Image.Image, notes: Notes) -> None:
        self.image, self.size, self.notes = image, image.size, notes

    def needed_bytes(self) -> int:
        """Return how many bytes decoding and converting take at most."""
        converted = _CHANNEL_BYTES.get(self.image.mode, 4) + 3 + self.image.has_transparency_data
        return self.size[0] * self.size[1] * max(converted,
                                                 _DECODER_BYTES.get(self.image.format or "", 0))

    def load(self) -> None:
        """Decode the pixels; raise an error of any type if they are damaged."""
        self.image.load()

    def is_opaque(self) -> bool:
        """Return whether opacity is to be ignored: BMP files of many programs have 0 everywhere and
        are opaque."""
        return self.image.format in ("BMP", "DIB") and self.image.mode == "RGBA" and (
            self.image.getextrema()[3:] == ((0, 0),))

    def rows(self, top: int, bottom: int) -> tuple[Colours, Alpha | None]:
        """Return a strip's colours, and its opacity, uint8 [H, W]; None where all is opaque."""
        strip, transparency = (self.image.crop((0, top, self.size[0], bottom)),
                               self.image.info.get("transparency"))
        if strip.mode.startswith("I"):
            return _sixteen_bits(strip, transparency)
        if strip.mode in ("La", "RGBa", "PA"):
            strip = strip.convert("LA" if strip.mode == "La" else "RGBA")
        if strip.mode in ("LA", "RGBA"):
            return strip.convert(strip.mode[:-1]), np.asarray(strip.getchannel("A"))
        if transparency is None or strip.mode not in ("1", "L", "P", "RGB"):
            return strip, None
        strip.info.pop("transparency", None)
        return strip, self._transparent(strip, transparency, top, bottom)

    def _transparent(self, strip: Image.Image, key: Any, top: int, bottom: int) -> Alpha:  # noqa: ANN401
        """Return the opacity of a strip of which one intensity, or each colour of the palette, is
        transparent."""
        values = np.asarray(strip)
        if isinstance(key, bytes):
            table = np.full(256, 255, np.uint8)
            table[: len(key[:256])] = np.frombuffer(key[:256], np.uint8)
            return np.asarray(table[values])
        is_clear = values == (bool(key) if strip.mode == "1" else np.asarray(key))
        return _opacity(is_clear if isinstance(key, int) else is_clear.all(axis=-1))


def _opacity(is_clear: npt.NDArray[np.bool_]) -> Alpha:
    return np.asarray(np.where(is_clear, 0, 255), np.uint8)


def _sixteen_bits(strip: Image.Image, transparency: int | None) -> tuple[Deep, Alpha | None]:
    """Return grey levels 0..65535; Pillow's own conversion to 8 bits would clip all levels above
    255 to white."""
    grey = np.asarray(strip)
    if strip.mode == "I" and (grey.min() < 0 or grey.max() > 65535):
        raise ValueError(f"grey levels {grey.min()}..{grey.max()} do not fit 16 bits")
    return (grey.astype(np.uint16)[..., None],
            None if transparency is None else _opacity(grey == transparency))


class PngSource(PixelSource):
    """The pixels of a PNG file; those of 16 bits are decoded whole if they have a profile or a
    transparent colour."""

    def __init__(self, file: IO[bytes]) -> None:
        split = split_png(file)
        image = split.open(file, "PNG")
        super().__init__(image, split.notes)
        self.low: ImageFile.ImageFile | None = None
        kind = image.tile[0].args if image.tile else ""
        is_wanted = (not _WANT_LOW_BYTES.isdisjoint(image.info) and image.width * image.height
                     <= _MOST_DEEP_PIXELS)
        if kind in ("RGB;16B", "RGBA;16B") and is_wanted:
            # Pillow keeps one byte of a colour: here the low one
            self.low = split.open(file, "PNG")
            self.low.tile = [image.tile[0]._replace(args=kind[:-1] + "L")]

    def needed_bytes(self) -> int:
        """As the base class; the low bytes of 16-bit colours are an image of their own."""
        return super().needed_bytes() + (4 * self.size[0] * self.size[1] if self.low else 0)

    def load(self) -> None:
        """Decode the pixels, and the low bytes of 16-bit colours if they are needed."""
        super().load()
        if self.low is not None:
            self.low.load()

    def rows(self, top: int, bottom: int) -> tuple[Colours, Alpha | None]:
        """As the base class."""
        if self.low is None:
            return super().rows(top, bottom)
        high, low = (np.asarray(image.crop((0, top, self.size[0], bottom)))
                     for image in (self.image, self.low))
        colours, key = (high[..., :3] * np.uint16(256) + low[..., :3],
                        self.image.info.get("transparency"))
        if high.shape[-1] == 4:
            return colours, high[..., 3]
        return colours, None if key is None else _opacity((colours == np.array(key)).all(axis=-1))


class JpegSource(PixelSource):
    """The pixels of a JPEG file; those of a progressive one take more memory, as its coefficients
    are kept."""

    def __init__(self, file: IO[bytes]) -> None:
        self.split, self.file = split_jpeg(file), file
        super().__init__(self.split.open(file, "JPEG"), self.split.notes)

    def needed_bytes(self) -> int:
        """As the base class, or with the coefficients of a progressive file, two bytes each."""
        pixels, image = self.size[0] * self.size[1], self.image
        layers = [across * down for _, across, down, _ in getattr(image, "layer", [])]
        kept = 0
        if "progressive" in image.info or image.info["layers"] < len(layers):
            kept = 2 * pixels * sum(layers) // max(max(layers), 1)
        return pixels * _CHANNEL_BYTES.get(image.mode, 4) + max(kept, 3 * pixels)

    def load(self) -> None:
        """Decode the pixels, also if the file lacks nothing but its end."""
        try:
            self.image.load()
        except OSError as error:
            found = set()
            self._drop_half_marker()
            for tail in _TAILS:
                self.image = self.split.open(self.file, "JPEG", tail)
                self.image.load()
                digest = hashlib.sha256()
                for top in range(0, self.image.height, 64):
                    digest.update(self.image.crop((0, top, self.image.width, top + 64)).tobytes())
                found.add(digest.digest())
            if len(found) > 1 or not has_all_scans(self.file):
                raise error
            self.notes.append("the JPEG's end marker is missing; all pixels are there")

    def _drop_half_marker(self) -> None:
        start, end = cast("tuple[int, int]", self.split.pieces.pop())
        self.file.seek(end - 1)
        self.split.pieces.append((start, end - (self.file.read(1) == b"\xff")))
