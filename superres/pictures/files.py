"""Picture files: the formats that are read, and a file's pixels told apart from its metadata.

Pillow decodes the pixels of a PNG or JPEG file from a view of the file without metadata, so damaged
metadata cannot harm the pixels. Of the metadata, only what the pixels depend on is read: colours,
transparency and the orientation, each item by itself; if it is damaged, a note says that it is
ignored.
"""

from __future__ import annotations

import bisect
import functools
import io
import os
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import IO, Any, TypeAlias

from PIL import Image, ImageFile, features

from superres.errors import plain

_SUFFIXES = {
    "PNG": (".png", ".apng"), "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "WEBP": (".webp",), "BMP": (".bmp", ".dib"), "DIB": (), "GIF": (".gif",),
    "TIFF": (".tif", ".tiff"), "PPM": (".ppm", ".pgm", ".pbm", ".pnm"), "AVIF": (".avif",),
    "HEIF": (".heic", ".heif", ".hif"),
}
"""Suffixes of files by Pillow's name of the format. For EPS, Pillow would run a program on an
untrusted file."""
IMAGE_SUFFIXES = frozenset(suffix for suffixes in _SUFFIXES.values() for suffix in suffixes)
MISSING = {
    "AVIF": "an AVIF picture, which this Pillow cannot read; pip install 'pillow>=11.3'",
    "HEIF": "a HEIC picture, which needs the heic extra; pip install 'superres[heic]'",
}
BRANDS = {b"avif": "AVIF", b"avis": "AVIF"} | dict.fromkeys(
    (b"heic", b"heix", b"hevc", b"heim", b"heis", b"mif1", b"msf1"), "HEIF")
# bytes of one item of metadata, packed and unpacked; profiles of printers have 2 to 4 MB
MOST_METADATA = 16_000_000
MOST_ITEMS = 1000  # of a file; pictures with histories have dozens
MOST_NOTES = 20  # lines about one picture
# of a JPEG, without those inside the data of a scan
_MARKER = re.compile(rb"\xff([\x01-\xcf\xd8-\xfe])")
_JPEG_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
Piece: TypeAlias = "bytes | tuple[int, int]"
"""Bytes, or the start and the end of a range of a file."""


@functools.cache
def formats() -> tuple[str, ...]:
    """Return Pillow's names of the formats that can be read; AVIF needs a Pillow with it, HEIF an
    optional package."""
    found = [name for name in _SUFFIXES if name != "HEIF"
             and (name != "AVIF" or features.check("avif"))]
    try:
        import pillow_heif
    except ImportError:
        return tuple(found)
    pillow_heif.register_heif_opener()
    return (*found, "HEIF")


class Notes(list[str]):
    """Lines about what is ignored in a picture's file: at most `MOST_NOTES`, and the number of the
    others in `more`."""

    more = 0

    def append(self, line: str, /) -> None:
        """Add a line, or count it."""
        if len(self) < MOST_NOTES:
            super().append(line)
        else:
            self.more += 1

    def lines(self) -> tuple[str, ...]:
        """Return the lines, with one about the others."""
        return (*self, *([f"and {self.more:,} more notes"] if self.more else []))


def ignored(name: str, error: object) -> str:
    """Return the note about an item of metadata that is ignored."""
    return f"metadata ignored: {name} ({plain(str(error)) or 'damaged'})"


class FileView(io.RawIOBase):
    """Pieces of an open file, and bytes between them, read as one file."""

    def __init__(self, file: IO[bytes], pieces: Sequence[Piece]) -> None:
        self._file, self._pieces, self._starts, self._position = file, pieces, [0], 0
        for piece in pieces:
            size = len(piece) if isinstance(piece, bytes) else piece[1] - piece[0]
            self._starts.append(self._starts[-1] + size)

    def readable(self) -> bool:
        """Return True, as `io.BufferedReader` requires."""
        return True

    def seekable(self) -> bool:
        """Return True, as `io.BufferedReader` requires."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a position, as files do."""
        self._position = max(offset + (0, self._position, self._starts[-1])[whence], 0)
        return self._position

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 -- any writable buffer
        """Read into a buffer up to the end of a piece, and return the number of bytes."""
        number = bisect.bisect_right(self._starts, self._position) - 1
        if number == len(self._pieces):
            return 0
        piece, offset = self._pieces[number], self._position - self._starts[number]
        size = min(len(buffer), self._starts[number + 1] - self._position)
        if isinstance(piece, bytes):
            data = piece[offset : offset + size]
        else:
            self._file.seek(piece[0] + offset)
            data = self._file.read(size)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


@dataclass
class Split:
    """The pieces of a file that have its pixels, and its metadata.

    Attributes:
        pieces: what Pillow decodes of the file, in its order.
        info: metadata by the names of Pillow's `Image.info`, and "cicp" (four numbers) and "layers"
            (of a JPEG's first scan).
        notes: lines about items of metadata that are ignored because they are damaged.
        items: number of items of metadata.
    """

    pieces: list[Piece]
    info: dict[str, Any] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    items: int = 0

    def keep(self, start: int, end: int) -> None:
        """Add a range of the file to the pieces; ranges that follow each other become one."""
        last = self.pieces[-1]
        if isinstance(last, tuple) and last[1] == start:
            start = last[0]
            self.pieces.pop()
        self.pieces.append((start, end))

    def read(self, name: str, reader: Callable[..., dict[str, Any]], *arguments: object) -> None:
        """Add an item of metadata, `reader(*arguments)`, or a note if it is damaged, or one of over
        `MOST_ITEMS`."""
        self.items += 1
        if self.items > MOST_ITEMS:
            self.notes.append(f"metadata ignored: {name} (after {MOST_ITEMS:,} others)")
            return
        try:
            self.info |= reader(*arguments)
        except (ValueError, IndexError, struct.error, zlib.error) as error:
            self.notes.append(ignored(name, error))

    def open(self, file: IO[bytes], kind: str, end: bytes = b"") -> ImageFile.ImageFile:
        """Open the pixels, with `end` after them, as a Pillow image with the metadata."""
        view = io.BufferedReader(FileView(file, [*self.pieces, end]))
        image = Image.open(view, formats=[kind])
        image.info.update(self.info)
        return image


def inflate(data: bytes) -> bytes:
    """Unpack a zlib stream of at most `MOST_METADATA` bytes."""
    stream = zlib.decompressobj()
    result = stream.decompress(data, MOST_METADATA)
    if not stream.eof:
        raise ValueError(f"over {MOST_METADATA:,} bytes" if stream.unconsumed_tail else "cut off")
    return result


def split_png(file: IO[bytes]) -> Split:
    """Tell apart a PNG file's pixels and metadata. Of an animation, only the picture that all
    viewers show is kept."""
    size, position, split = file.seek(0, os.SEEK_END), 8, Split([(0, 8)])
    file.seek(24)
    depth, colours = file.read(2).ljust(2, b"\0")
    while position + 12 <= size:
        file.seek(position)
        length, kind = struct.unpack(">I4s", file.read(8))
        end = position + 12 + length
        if kind in (b"IHDR", b"PLTE", b"IDAT"):
            split.keep(position, min(end, size))
        elif kind in _PNG_READERS:
            split.read(f"PNG chunk {kind.decode()}", _png_item, file, kind, length,
                       (depth, colours))
        elif kind == b"IEND":
            break
        position = end
    if position <= size:  # otherwise the pixels are cut off, as Pillow is to notice
        split.pieces.append(b"\0\0\0\0IEND\xaeB`\x82")
    return split


def _png_item(file: IO[bytes], kind: bytes, length: int, layout: tuple[int, int]) -> dict[str, Any]:
    if length > MOST_METADATA:
        raise ValueError(f"{length:,} bytes")
    data = file.read(length)
    if file.read(4) != zlib.crc32(kind + data).to_bytes(4, "big"):
        raise ValueError("wrong checksum")
    return _png_transparency(data, *layout) if kind == b"tRNS" else _PNG_READERS[kind](data)


def _png_transparency(data: bytes, depth: int = 8, colours: int = 3) -> dict[str, Any]:
    """Return the transparent intensities as Pillow's pixels have them, or the opacity of a
    palette's colours."""
    if colours == 3:
        return {"transparency": data}
    mask = 2**depth - 1
    levels = [level & mask for level in struct.unpack(">H" if colours == 0 else ">3H", data)]
    return {"transparency": tuple(levels) if colours == 2 else levels[0]
            * (255 // mask if depth <= 8 else 1)}


def _png_text(data: bytes) -> dict[str, Any]:
    """Read the EXIF data that ImageMagick writes as text of hexadecimal digits."""
    key, _, value = data.partition(b"\0")
    if key != b"Raw profile type exif":
        return {}
    return {"exif": bytes.fromhex("".join(value.decode("latin-1").split("\n")[3:]))}


def _png_packed_text(data: bytes) -> dict[str, Any]:
    key, _, value = data.partition(b"\0")
    return _png_text(key + b"\0" + inflate(value[1:])) if key == b"Raw profile type exif" else {}


_PNG_READERS: dict[bytes, Callable[[bytes], dict[str, Any]]] = {
    b"tRNS": _png_transparency,
    b"iCCP": lambda data: {"icc_profile": inflate(data.partition(b"\0")[2][1:])},
    b"eXIf": lambda data: {"exif": b"Exif\0\0" + data},
    b"tEXt": _png_text, b"zTXt": _png_packed_text,
    b"gAMA": lambda data: {"gamma": struct.unpack(">I", data)[0] / 100_000},
    b"cHRM": lambda data: {
        "chromaticity": tuple(value / 100_000 for value in struct.unpack(">8I", data))},
    b"sRGB": lambda data: {"srgb": data[0]},
    b"cICP": lambda data: {"cicp": struct.unpack("4B", data)},
}


def split_jpeg(file: IO[bytes]) -> Split:
    """Tell apart a JPEG file's pixels and metadata."""
    size, position, split = file.seek(0, os.SEEK_END), 2, Split([(0, 2)])
    profile: dict[int, bytes] = {}
    while True:
        file.seek(position)
        head = file.read(4)
        code = head[1] if len(head) == 4 and head[0] == 0xFF else 0xDA
        if code == 0xFF:  # bytes that fill up to a marker
            file.seek(position)
            filling = file.read(1 << 16)
            position += max(len(filling) - len(filling.lstrip(b"\xff")) - 1, 1)
            continue
        if code == 0xDA:  # the pixels; or nonsense, of which Pillow says what it is
            split.info["layers"] = int.from_bytes(file.read(1), "big")
            split.keep(position, size)
            break
        has_length = code not in (0x01, *range(0xD0, 0xD9))
        end = position + 2 + (int.from_bytes(head[2:], "big") if has_length else 0)
        data = file.read(end - position - 4) if 0xE0 <= code <= 0xEF or code == 0xFE else None
        if data is None or _says_colours(code, data):
            split.keep(position, min(end, size))
        else:
            _read_segment(split, profile, code, data)
        position = end
    if profile:
        split.read("colour profile", _joined, profile)
    return split


def has_all_scans(file: IO[bytes]) -> bool:
    """Return whether a JPEG file has scans of all coefficients of all components, to their lowest
    bit."""
    file.seek(0)
    data, place = file.read(), 0
    missing, is_progressive = {(-1, 0)}, False  # component and coefficient
    while found := _MARKER.search(data, place):
        code, place = found[1][0], found.end()
        if code in _JPEG_FRAMES:  # names the components
            is_progressive = code in (0xC2, 0xCA)
            missing = {(one, number)
                       for one in data[place + 8 : place + 8 + 3 * data[place + 7] : 3]
                       for number in range(64)}
        elif code == 0xDA:  # a scan says what of which components it has
            end = place + 3 + 2 * int.from_bytes(data[place + 2 : place + 3], "big")
            if end + 3 > len(data):
                return False
            first, last, bits = data[end : end + 3] if is_progressive else (0, 63, 0)
            if bits & 15 == 0:
                missing -= {(one, number) for one in data[place + 3 : end : 2]
                            for number in range(first, last + 1)}
        if code not in (0x01, 0xD8, 0xD9):  # the others have a length
            place += int.from_bytes(data[place : place + 2], "big")
    return not missing


def _says_colours(code: int, data: bytes) -> bool:
    """Return whether a segment is a sound JFIF or Adobe header, which says what the layers are."""
    return (code, data[:5]) in ((0xE0, b"JFIF\0"), (0xEE, b"Adobe")) and len(data) >= 12


def _read_segment(split: Split, profile: dict[int, bytes], code: int, data: bytes) -> None:
    if code == 0xE1 and data.startswith(b"Exif\0\0"):
        split.info.setdefault("exif", data)  # what is too long for one segment follows in others
    elif code == 0xE2 and data.startswith(b"ICC_PROFILE\0") and len(data) > 14:
        profile[data[12]] = data[13:]  # number of this part, then of all parts


def _joined(parts: dict[int, bytes]) -> dict[str, Any]:
    if sorted(parts) != list(range(1, parts[min(parts)][0] + 1)):
        raise ValueError("parts are missing")
    return {"icc_profile": b"".join(parts[number][1:] for number in sorted(parts))}
