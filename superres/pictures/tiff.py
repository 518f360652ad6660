"""Decode the pixels of TIFF files of many layouts of samples.

Pillow decodes the common layouts. Of another layout it decodes each row, or each row of a plane, as
one long row of grey samples, from which the pixels are made here. What is in neither table is
refused by name.
"""

from __future__ import annotations

import io
import os
import struct
from dataclasses import dataclass
from typing import IO

import numpy as np
from PIL import Image

from superres.pictures.colour import eight_bits
from superres.pictures.decode import Alpha, Colours, PixelSource
from superres.pictures.files import MOST_METADATA, FileView, Notes, Piece, ignored

_NEW_KIND, _OLD_KIND = 254, 255  # of a page: bit 0, or 2, of a reduced copy of another
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIPS, _ORIENTATION, _SAMPLES, _STRIP_BYTES, _PLANAR, _PREDICTOR = 273, 274, 277, 279, 284, 317
_TILE_WIDTH, _TILES, _TILE_BYTES, _EXTRA, _FORMAT, _PROFILE = 322, 324, 325, 338, 339, 34675
_PIXEL_TAGS = frozenset({
    _WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, 266, _STRIPS, _SAMPLES, 278, _STRIP_BYTES,
    _PLANAR, 292, 293, _PREDICTOR, 320, _TILE_WIDTH, 323, _TILES, _TILE_BYTES, _EXTRA, _FORMAT, 347,
    *range(512, 522), *range(529, 533)})
_WHOLE = {1: "B", 3: "H", 4: "I", 13: "I"}
_COLOURS = {0: "L", 1: "L", 2: "RGB", 3: "P", 5: "CMYK", 6: "YCbCr", 8: "LAB"}
_ANY = None
_NATIVE = {
    **{(photometric, bits): [()] for photometric in (0, 1) for bits in (1, 2, 4, 8)}, (1, 16): [()],
    (1, 8): [(), (2,)], (2, 8): _ANY, (2, 16): [(), (0,)],
    **{(3, bits): _ANY for bits in (1, 2, 4, 8)}, (5, 8): _ANY, (5, 16): [()], (6, 8): _ANY,
    (8, 8): [()],
}
"""What Pillow decodes right, in one plane: kinds of extra samples by photometric interpretation and
bits per sample."""
_BY_ROWS = {(photometric, bits) for photometric in (0, 1, 2, 5) for bits in (1, 2, 4, 8, 12, 16)}
"""What is decoded as long rows of samples, with any extra samples, in one plane or several."""
# compressions that know no colours: none, LZW, Deflate, PackBits, ...
_PLAIN = {1, 5, 8, 32773, 32946, 34925, 50000}
_MOST_PIXEL_TAG = 4_000_000  # bytes of values: 500,000 strips
MOST_PAGES = 20  # that may be thumbnails
MOST_ENTRIES = 4096  # of a directory that is read
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8,
          17: 8, 18: 8, 129: 1}
"""Bytes of a value, by its type."""
_OUTSIDE = (OSError, ValueError, OverflowError)  # of reading at an offset that is not in the file
TIFF_STARTS = b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"


@dataclass(frozen=True)
class Tag:
    """A tag's type, number of values, and bytes as in the file."""

    kind: int
    count: int
    raw: bytes


class Reader:
    """Reads directories of a TIFF file; `order` is "" if it is none."""

    def __init__(self, file: IO[bytes]) -> None:
        """Read the head of the content of `file`."""
        self.file = file
        file.seek(0)
        head = file.read(16)
        self.order = {b"II*\0": "<", b"II+\0": "<", b"MM\0*": ">", b"MM\0+": ">"}.get(head[:4], "")
        self.word = "Q" if b"+" in head[2:4] else "I"  # BigTIFF has offsets and counts of 8 bytes
        self.first = self.number(head[8:16] if self.word == "Q" else head[4:8])

    def number(self, data: bytes) -> int:
        """Return a whole number of any size."""
        return int.from_bytes(data, "little" if self.order == "<" else "big")

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        data = self.file.read(size)
        if len(data) < size:
            raise ValueError("the file is cut off")
        return data

    def entries(self, offset: int) -> list[tuple[int, int, int, bytes]]:
        """Return tag, type, count and inline value of each entry of a directory; the next one's
        offset may follow."""
        self.file.seek(offset)
        count = self.number(self.read(2 if self.word == "I" else 8))
        if count > MOST_ENTRIES:
            raise ValueError("the directory has too many entries")
        form = struct.Struct(self.order + {"I": "HHI4s", "Q": "HHQ8s"}[self.word])
        return list(form.iter_unpack(self.read(count * form.size)))

    def value(self, size: int, inline: bytes, most: int) -> bytes | None:
        """Return a value of `size` bytes, from the entry or where the entry says; None if it cannot
        be read."""
        if size <= len(inline):
            return inline[:size]
        if size > most:
            return None
        try:
            self.file.seek(self.number(inline))
            return self.read(size)
        except _OUTSIDE:
            return None


class Directory:
    """The first directory of a TIFF file that is of no thumbnail: the tags that matter for the
    pixels."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.notes, self.tags = file, Notes(), dict[int, Tag]()
        self.size = file.seek(0, os.SEEK_END)
        reader = Reader(file)
        self.order = reader.order
        for tag, kind, count, inline in _picture_entries(reader):
            size, is_pixels = count * _SIZES.get(kind, 0), tag in _PIXEL_TAGS
            if not is_pixels and tag not in (_ORIENTATION, _PROFILE):
                continue
            value = reader.value(size, inline, _MOST_PIXEL_TAG if is_pixels else MOST_METADATA)
            if value is not None:
                if kind in (16, 18):  # of BigTIFF; files that are read are far smaller than 4 GB
                    numbers = struct.unpack(f"{self.order}{count}Q", value)
                    kind, value = 4, struct.pack(f"{self.order}{count}I", *numbers)
                self.tags[tag] = Tag(kind, count, value)
            elif is_pixels:
                raise ValueError(f"TIFF tag {tag} lies outside the file or has {size:,} bytes")
            else:
                self.notes.append(ignored(f"TIFF tag {tag}", f"cut off, or {size:,} bytes"))

    def whole(self, tag: int, *default: int) -> tuple[int, ...]:
        """Return a tag's whole numbers."""
        found = self.tags.get(tag)
        if found is None or found.kind not in _WHOLE or not found.count:
            return default
        return struct.unpack(f"{self.order}{found.count}{_WHOLE[found.kind]}", found.raw)

    @property
    def pixel_tags(self) -> dict[int, Tag]:
        """The tags that matter for the pixels."""
        return {tag: one for tag, one in self.tags.items() if tag in _PIXEL_TAGS}

    def view(self, tags: dict[int, Tag], order: str) -> Image.Image:
        """Open the file's pixels, with these tags in this byte order alone, as a Pillow image of a
        classic TIFF."""
        # the directory lies behind the file's content, and its longer values behind it
        start = self.size + self.size % 2
        first = start + 2 + 12 * len(tags) + 4
        entries, values = b"", b""
        for number, tag in sorted(tags.items()):
            value = tag.raw.ljust(4, b"\0")
            if len(value) > 4:
                value = struct.pack(f"{order}I", first + len(values))
                values += tag.raw + bytes(len(tag.raw) % 2)
            entries += struct.pack(f"{order}HHI", number, tag.kind, tag.count) + value
        header = struct.pack(f"{order}2sHI", b"II" if order == "<" else b"MM", 42, start)
        directory = struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + values
        pieces: list[Piece] = [header, (8, self.size), bytes(start - self.size) + directory]
        return Image.open(io.BufferedReader(FileView(self.file, pieces)), formats=["TIFF"])


def _picture_entries(reader: Reader) -> list[tuple[int, int, int, bytes]]:
    """Return the entries of the first directory that is of no thumbnail, or of the first one."""
    first = found = reader.entries(reader.first)
    for _ in range(MOST_PAGES):
        kinds = {tag: reader.number(inline[:_SIZES.get(kind, 0)])
                 for tag, kind, _, inline in found if tag in (_NEW_KIND, _OLD_KIND)}
        if not kinds.get(_NEW_KIND, 0) & 1 and kinds.get(_OLD_KIND) != 2:
            return found
        try:
            place = reader.number(reader.read(4 if reader.word == "I" else 8))
            found = reader.entries(place) if place else []
        except _OUTSIDE:  # the pages behind are damaged
            return first
        if not found:
            return first
    return first


def open_tiff(file: IO[bytes]) -> PixelSource:
    """Open the first picture of a TIFF file; raise NotImplementedError with its layout if that
    cannot be read."""
    # the layout
    directory = Directory(file)
    whole = directory.whole
    photometric, compression = whole(_PHOTOMETRIC, 0)[0], whole(_COMPRESSION, 1)[0]
    bits, formats = whole(_BITS, 1), set(whole(_FORMAT, 1))
    is_jpeg = photometric in (2, 6) and compression in (6, 7)
    samples = whole(_SAMPLES, max(len(bits), 3 if is_jpeg else 1))[0]
    planes = samples if whole(_PLANAR, 1)[0] == 2 else 1
    # who can read it: of 16-bit colours, Pillow itself keeps 8 bits
    key, extra = (photometric, bits[0]), _NATIVE.get((photometric, bits[0]), ())
    is_even, is_plain = formats == {1} and len(set(bits)) == 1, compression in _PLAIN
    is_native = is_even and (planes == 1 or not is_plain) and (
        extra is _ANY or whole(_EXTRA) in extra)
    differs_in_tiles = bool(whole(_TILES)) and whole(_PREDICTOR, 1) != (1,) and planes < samples
    is_by_rows = (is_even and is_plain and key in _BY_ROWS and samples <= 16
                  and not differs_in_tiles)
    source: PixelSource
    if is_by_rows and not (is_native and bits[0] < 16):
        source = RowSource(directory, key, samples, planes)
    elif is_native:
        source = PixelSource(directory.view(directory.pixel_tags, directory.order), directory.notes)
    else:
        kinds = {2: "signed", 3: "floating-point", 5: "complex", 6: "complex"}
        names = [kinds[one] for one in sorted(formats) if one in kinds]
        raise NotImplementedError(
            f"TIFF with {' '.join([*names, 'samples'])} of {'/'.join(map(str, sorted(set(bits))))} "
            f"bits, {samples} per pixel, photometric interpretation {photometric} and compression "
            f"{compression}")
    turn = whole(_ORIENTATION, 1)[0]
    source.orientation = turn if turn in range(1, 9) else 1
    if _PROFILE in directory.tags:
        source.image.info["icc_profile"] = directory.tags[_PROFILE].raw
    return source


class RowSource(PixelSource):
    """A TIFF picture whose rows Pillow decodes as long rows of grey samples."""

    def __init__(self, directory: Directory, key: tuple[int, int], samples: int,
                 planes: int) -> None:
        (self.photometric, self.bits), self.samples, self.planes = key, samples, planes
        self.extra = directory.whole(_EXTRA)
        self.has_differences = planes < samples and directory.whole(_PREDICTOR, 1)[0] == 2
        self.images = [self._plane(directory, number) for number in range(planes)]
        super().__init__(self.images[0], directory.notes)
        self.size = directory.whole(_WIDTH)[0], directory.whole(_HEIGHT)[0]

    def _plane(self, directory: Directory, number: int) -> Image.Image:
        """Open a plane, or all samples of each pixel in a row."""
        values = {tag: directory.whole(tag) for tag in directory.pixel_tags if directory.whole(tag)}
        across = self.samples // self.planes
        for tag in (_STRIPS, _STRIP_BYTES, _TILES, _TILE_BYTES):
            if tag in values:
                count = len(values[tag]) // self.planes
                values[tag] = values[tag][number * count : (number + 1) * count]
        for tag in (_WIDTH, _TILE_WIDTH):
            if tag in values:
                values[tag] = (values[tag][0] * across,)
        values |= {_BITS: (self.bits,), _PHOTOMETRIC: (1,), _SAMPLES: (1,), _PLANAR: (1,)}
        for tag in (_EXTRA, _FORMAT, *([_PREDICTOR] if self.has_differences else [])):
            values.pop(tag, None)
        # Pillow unpacks 12-bit samples in files of little-endian order only; these have no byte
        # order.
        order = "<" if self.bits == 12 else directory.order
        tags = {tag: Tag(4, len(one), struct.pack(f"{order}{len(one)}I", *one))
                for tag, one in values.items()}
        return directory.view(tags, order)

    def needed_bytes(self) -> int:
        """Return how many bytes decoding and converting take at most."""
        return self.size[0] * self.size[1] * (self.samples * (2 if self.bits > 8 else 1) + 3
                                              + bool(self.extra))

    def load(self) -> None:
        """Decode all planes."""
        for image in self.images:
            image.load()

    def rows(self, top: int, bottom: int) -> tuple[Colours, Alpha | None]:
        """As the base class."""
        strips = [np.asarray(image.crop((0, top, image.width, bottom))) for image in self.images]
        values = np.stack(strips, axis=-1).reshape(bottom - top, self.size[0], -1)  # [H, W, K]
        if self.has_differences:
            values = np.cumsum(values, axis=1, dtype=values.dtype)
        # Pillow has scaled 2 and 4 bits to 8.
        most = {1: 1, 12: 4095, 16: 65535}.get(self.bits, 255)
        mode = _COLOURS[self.photometric]
        colours, alpha = values[..., : len(mode) if mode != "L" else 1].astype(np.uint32), None
        # the first extra sample that is the opacity
        for place, kind in enumerate(self.extra, colours.shape[-1]):
            if kind in (1, 2) and place < self.samples:
                opacity = values[..., place, None].astype(np.uint32)
                if kind == 1:  # the colours are multiplied by it
                    colours = np.minimum(colours * most // np.maximum(opacity, 1), most)
                alpha = eight_bits(opacity, most)[..., 0]
                break
        if self.photometric == 0:
            colours = most - colours
        if most > 255 and mode != "CMYK":
            return (colours * np.uint32(65535) // np.uint32(most)).astype(np.uint16), alpha
        layers = np.moveaxis(eight_bits(colours, most), -1, 0).copy()
        return Image.merge(mode, [Image.fromarray(layer) for layer in layers]), alpha
