"""Read and write the EXIF tags that describe what a picture shows: its text, author, date and
place.

The other tags are about one file or the camera that wrote it: sizes, orientation, strips,
thumbnail, maker note, serial numbers. Values are copied byte by byte, so text keeps its encoding.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, TypeAlias

Tags: TypeAlias = dict[int, tuple[int, bytes]]
"""Type and value of tags."""

MAIN, EXIF, GPS = 0, 0x8769, 0x8825
"""The directories of a block; the main one has tags EXIF and GPS, which point to the others."""
DESCRIPTION, SOFTWARE, XMP, IPTC = 0x010E, 0x0131, 0x02BC, 0x83BB
MAX_VALUE, MAX_ENTRIES = 2**20, 4096  # bytes of a value, and entries of a directory, that are read
BYTE, ASCII, SHORT, LONG, RATIONAL, UNDEFINED, _IFD, UTF8 = 1, 2, 3, 4, 5, 7, 13, 129
_ERRORS = (OSError, ValueError, OverflowError)  # of reading at an offset that is not in the file
SIZES = {BYTE: 1, ASCII: 1, SHORT: 2, LONG: 4, RATIONAL: 8, 6: 1, UNDEFINED: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8,
         _IFD: 4, 16: 8, 17: 8, 18: 8, UTF8: 1}  # bytes of a value, by its type


def _allowed(*groups: tuple[tuple[int, ...], tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    return {tag: types for types, tags in groups for tag in tags}


_TEXT, _BYTES, _LONGS = (ASCII, UTF8), (BYTE, UNDEFINED), (BYTE, UNDEFINED, LONG)
KEPT = {
    # Document name, description, date, artist, copyright; Windows' ratings, title, comment, author,
    # keywords, subject.
    MAIN: _allowed((_TEXT, (0x010D, DESCRIPTION, 0x0132, 0x013B, 0x8298)), ((SHORT,), (0x4746, 0x4749)),
                   (_BYTES, (0x9C9B, 0x9C9C, 0x9C9D, 0x9C9E, 0x9C9F))),
    # Dates with their zones and fractions of seconds, title, photographer; the user's comment.
    EXIF: _allowed((_TEXT, (0x9003, 0x9004, 0x9010, 0x9011, 0x9012, 0x9290, 0x9291, 0x9292, 0xA436, 0xA437)),
                   (_BYTES, (0x9286,))),
    GPS: _allowed((_TEXT, (1, 3, 8, 9, 10, 12, 14, 16, 18, 19, 21, 23, 25, 29)), ((SHORT,), (30,)),
                  ((RATIONAL,), (2, 4, 6, 7, 11, 13, 15, 17, 20, 22, 24, 26, 31)), (_BYTES, (0, 5, 27, 28))),
}
"""The tags that are kept and the types that their values may have, by directory."""
# as TIFF files have them
_WANTED = {**KEPT, MAIN: {**KEPT[MAIN], **_allowed((_LONGS, (XMP, IPTC)))}}


@dataclass
class Block:
    """Tags of an EXIF block, or of a TIFF file, which has the same structure.

    Attributes:
        order: byte order of the values, "<" or ">"; "" if what was read is no block.
        directories: tags by directory: those of `KEPT`, and in the main one also `XMP` and `IPTC`
            as they were read.
        is_damaged: whether tags that would be kept could not be read.
    """

    order: str = ">"
    directories: dict[int, Tags] = field(default_factory=lambda: {MAIN: {}})
    is_damaged: bool = False

    def to_bytes(self) -> bytes:
        """Return the block as bytes, with the prefix that it has in a JPEG file."""
        directories = {name: tags for name, tags in self.directories.items() if tags
                       and name != MAIN}
        offset = 8 + len(self._packed({**self.directories[MAIN],
                                       **dict.fromkeys(directories, (LONG, bytes(4)))}, 0))
        body, pointers = b"", Tags()
        for name, tags in directories.items():
            pointers[name] = LONG, struct.pack(f"{self.order}I", offset + len(body))
            body += self._packed(tags, offset + len(body))
        head = (b"II" if self.order == "<" else b"MM") + struct.pack(f"{self.order}HI", 42, 8)
        return b"Exif\0\0" + head + self._packed({**self.directories[MAIN], **pointers}, 8) + body

    def _packed(self, tags: Tags, offset: int) -> bytes:
        """Return a directory at `offset`, followed by its longer values."""
        entries, values = struct.pack(f"{self.order}H", len(tags)), b""
        for tag, (kind, value) in sorted(tags.items()):
            entries += struct.pack(f"{self.order}HHI", tag, kind, len(value) // SIZES[kind])
            if len(value) <= 4:
                entries += value.ljust(4, b"\0")
            else:
                entries += struct.pack(f"{self.order}I", offset + 2 + 12 * len(tags) + 4
                                       + len(values))
                values += value + bytes(len(value) % 2)
        return entries + bytes(4) + values


def read_block(file: IO[bytes] | bytes) -> Block:
    """Read the kept tags of an EXIF block or a TIFF file, without damaged ones."""
    reader = Reader(BytesIO(file.removeprefix(b"Exif\0\0")) if isinstance(file, bytes) else file)
    block = Block(reader.order, is_damaged=reader.order == "")
    offsets = {MAIN: reader.first}
    for name, wanted in _WANTED.items() if reader.order else ():
        if name not in offsets:
            continue
        try:
            entries, tags = reader.entries(offsets[name]), block.directories.setdefault(name, {})
        except _ERRORS:
            block.is_damaged = True
            continue
        for tag, kind, count, inline in entries:
            if name == MAIN and tag in (EXIF, GPS):
                offsets[tag] = reader.number(inline[:4] if kind in (LONG, _IFD) else inline)
            elif tag in wanted:
                value = reader.value(SIZES[kind] * count, inline) if kind in wanted[tag] else None
                if value is not None:
                    tags[tag] = kind, value
                block.is_damaged |= value is None
    return block


class Reader:
    """Reads directories of a block or a TIFF file; `order` is "" if it is none."""

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
            raise ValueError("the block is cut off")
        return data

    def entries(self, offset: int) -> list[tuple[int, int, int, bytes]]:
        """Return tag, type, count and inline value of each entry of a directory; the next one's
        offset may follow."""
        self.file.seek(offset)
        count = self.number(self.read(2 if self.word == "I" else 8))
        if count > MAX_ENTRIES:
            raise ValueError("the directory has too many entries")
        form = struct.Struct(self.order + {"I": "HHI4s", "Q": "HHQ8s"}[self.word])
        return list(form.iter_unpack(self.read(count * form.size)))

    def value(self, size: int, inline: bytes, most: int = MAX_VALUE) -> bytes | None:
        """Return a value of `size` bytes, from the entry or where the entry says; None if it cannot
        be read."""
        if size <= len(inline):
            return inline[:size]
        if size > most:
            return None
        try:
            self.file.seek(self.number(inline))
            return self.read(size)
        except _ERRORS:
            return None
