"""Unpack untrusted archives and arrays: bytes are counted while they are unpacked, never after.

A small file can claim, or unpack to, any number of bytes. These readers refuse it before they take
the memory.
"""

from __future__ import annotations

import bz2
import io
import lzma
import math
import os
import struct
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Any, BinaryIO, Protocol

import numpy as np

MOST_NAME = 4096  # bytes of a member's name, as of a path
MOST_HEADER_BYTES = 10_000  # of a long name or an extended header of a tar file
MOST_HEADERS = 20  # long names and extended headers of one member
MOST_ARRAY_HEADER = 10_000  # bytes of the header of an array
MOST_DICTIONARY = 300_000_000  # bytes that unpacking xz may take
MOST_RATIO = 200  # unpacked bytes per packed byte, beyond `FREE_BYTES`; pictures hardly shrink
FREE_BYTES = 500_000_000  # unpacked bytes that every file may have
FREE_MEMBERS = 10_000  # members that every archive may have
BYTES_PER_MEMBER = 50  # packed bytes of each further member; the smallest picture has more
FREE_NAMES = 20_000_000  # bytes of names that every archive may have
NAMES_PER_BYTE = 4  # further bytes of names per packed byte: 200 per member
FREE_SECONDS = 60  # of processor time that reading any container may take
# packed bytes of each further second; the slowest compressions have 50 times as many
BYTES_PER_SECOND = 100_000
_CHUNK = 1 << 16
_BLOCK = tarfile.BLOCKSIZE
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_LONG = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
_SPARSE = "it has sparse members"
_USED = (b"path", b"linkpath", b"size")  # records of extended headers


class Gate:
    """Refuses more of a container than its size justifies: every reader of one counts here."""

    def __init__(self, packed: int) -> None:
        """`packed` is the size of the container in bytes."""
        self.members = self.members_left = FREE_MEMBERS + packed // BYTES_PER_MEMBER
        self.bytes = self.unpacked_left = self.content_left = FREE_BYTES + MOST_RATIO * packed
        self.names = self.names_left = FREE_NAMES + NAMES_PER_BYTE * packed
        self.seconds = FREE_SECONDS + packed // BYTES_PER_SECOND
        self.end = time.process_time() + self.seconds

    def let(self, members: int = 0, unpacked: int = 0, names: int = 0, content: int = 0) -> None:
        """Count further members, unpacked bytes, bytes of names, and bytes of the content that is
        handed on.

        Raises ValueError if they are too many, or took too much processor time.
        """
        self.members_left, self.names_left = self.members_left - members, self.names_left - names
        self.unpacked_left, self.content_left = (self.unpacked_left - unpacked,
                                                 self.content_left - content)
        if self.members_left < 0:
            raise ValueError(f"it has over {self.members:,} members, too many for its size")
        if self.names_left < 0:
            raise ValueError(f"its members' names have over {self.names // 1_000_000:,} MB, too "
                             "much for its size")
        if min(self.unpacked_left, self.content_left) < 0:
            raise ValueError(f"it unpacks to over {self.bytes // 1_000_000:,} MB, too much for its "
                             "size")
        if time.process_time() > self.end:
            raise ValueError(f"it takes over {self.seconds:,} seconds of processor time, too much "
                             "for its size")


class Stream(Protocol):
    """What is read from its beginning to its end."""

    def read(self, count: int, /) -> bytes:
        """Return the next `count` bytes, fewer only at the end."""


class Section:
    """The next bytes of a stream, `left` of them; EOFError if they are not there."""

    def __init__(self, stream: Stream, left: int) -> None:
        self.stream, self.left = stream, left

    def read(self, count: int, /) -> bytes:
        """As a `Stream`."""
        count = min(count, self.left)
        content = self.stream.read(count)
        if len(content) < count:
            raise EOFError("it ends early")
        self.left -= count
        return content


def tar_members(file: BinaryIO, gate: Gate) -> Iterator[tuple[tarfile.TarInfo, Section]]:
    """Yield the members of a tar file of any compression, and their content, which must be read
    before the next member.

    The library tarfile takes memory and time by the square of an extended header, and unpacks
    sparse members to any size; here such headers are short, and sparse members are refused.

    Raises ValueError, EOFError, OSError, lzma.LZMAError or zlib.error for what is damaged or too
    large.
    """
    stream = Unpacked(file, gate)
    everywhere, here, headers, is_empty = dict[str, str](), dict[str, str](), 0, True
    while (block := stream.read(_BLOCK)).strip(b"\0"):
        info, is_empty = _header(block), False
        if info.type in _PAX or info.type in _LONG:
            headers += 1
            if info.size > MOST_HEADER_BYTES or headers > MOST_HEADERS:
                raise ValueError(f"an extended header claims {info.size:,} "
                                 "bytes" if headers <= MOST_HEADERS else
                                 f"it has over {MOST_HEADERS} extended headers before a member")
            gate.let(names=info.size)
            text = Section(stream, info.size).read(info.size)
            (everywhere if info.type == tarfile.XGLTYPE else here).update(
                _records(text) if info.type in _PAX
                else {_LONG[info.type]: _text(text.partition(b"\0")[0])})
            stream.skip(-info.size % _BLOCK)
            continue
        gate.let(members=1)
        _amend(info, {**everywhere, **here})
        has_content = info.isreg() or info.type not in tarfile.SUPPORTED_TYPES
        here, headers, content = {}, 0, Section(stream, info.size if has_content else 0)
        end = -content.left % _BLOCK
        yield info, content
        stream.skip(content.left + end)
    if is_empty and not block:
        raise ValueError("it is empty")


def _header(block: bytes) -> tarfile.TarInfo:
    if len(block) < _BLOCK:
        raise EOFError("it ends early")
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise ValueError(f"a header is damaged: {error}") from error
    if info.size < 0:
        raise ValueError(f"a member claims {info.size} bytes")
    return info


def _records(content: bytes) -> dict[str, str]:
    """Return the records of an extended header that count; ValueError unless one follows the
    other."""
    found, place = dict[str, str](), 0
    while place < len(content) and content[place]:
        digits = content[place : place + 6].partition(b" ")[0]
        end = place + (int(digits) if digits.isdigit() else 0)
        name, equals, value = content[place + len(digits) + 1 : end - 1].partition(b"=")
        if not name or not equals or content[end - 1 : end] != b"\n":
            raise ValueError("an extended header is damaged")
        if name.startswith(b"GNU.sparse."):
            raise ValueError(_SPARSE)
        # each member copies those of global headers, which may have millions of others
        if name in _USED:
            found[_text(name)] = _text(value)
        place = end
    return found


def _text(content: bytes) -> str:
    return content.decode(errors="surrogateescape")


def _amend(info: tarfile.TarInfo, said: dict[str, str]) -> None:
    """Give a member what its extended headers say of it; ValueError if it is sparse, or has no such
    size."""
    if info.type == tarfile.GNUTYPE_SPARSE:
        raise ValueError(_SPARSE)
    size = said.get("size", str(info.size))
    if not size.isdecimal() or len(size) > 20:
        raise ValueError("an extended header is damaged")
    info.name, info.linkname = said.get("path", info.name), said.get("linkpath", info.linkname)
    info.size = int(size)


class Unpacked:
    """The unpacked content of a file that may be compressed by gzip, bzip2 or xz.

    Raises EOFError where it is cut off, and ValueError if more is unpacked than a `Gate` lets
    through.
    """

    def __init__(self, file: BinaryIO, gate: Gate) -> None:
        """Find the compression by the first bytes of `file`."""
        self.file, self.gate, self.content, self.place = file, gate, b"", 0
        start = file.read(6)
        file.seek(0)
        self.make = _GzipDecompressor if start[:2] == b"\x1f\x8b" else bz2.BZ2Decompressor if start[:3] == b"BZh" else \
            _xz if start in (b"\xfd7zXZ\0", b"\x5d\0\0\x80\0\xff") or start[:3] == b"\x5d\0\0" else None
        self.decompressor: Any = None
        self.waiting = b""

    def read(self, count: int, /) -> bytes:
        """Return the next `count` bytes, fewer only at the end."""
        pieces = []
        while count > 0 and (self.place < len(self.content) or self._go_on()):
            pieces.append(self.content[self.place : self.place + count])
            self.place, count = self.place + len(pieces[-1]), count - len(pieces[-1])
        return b"".join(pieces)

    def skip(self, count: int) -> None:
        """Leave out the next `count` bytes; EOFError if they are not there."""
        if self.make is None and count > len(self.content) - self.place:
            end = self.file.tell() - len(self.content) + self.place + count
            if end > os.fstat(self.file.fileno()).st_size:
                raise EOFError("it ends early")
            self.file.seek(end)
            self.content, self.place, count = b"", 0, 0
        while count > 0:
            if self.place == len(self.content) and not self._go_on():
                raise EOFError("it ends early")
            step = min(count, len(self.content) - self.place)
            self.place, count = self.place + step, count - step

    def _go_on(self) -> bool:
        """Take the next piece of the content; return whether there is one."""
        self.content, self.place = (self.file.read(_CHUNK) if self.make is None
                                    else self._unpack(_CHUNK), 0)
        self.gate.let(unpacked=len(self.content) if self.make is not None else 0)
        return bool(self.content)

    def _unpack(self, most: int) -> bytes:
        while True:
            is_end = False
            if self.decompressor is None or (self.decompressor.needs_input and not self.waiting):
                self.waiting = self.waiting or self.file.read(_CHUNK)
                is_end = not self.waiting
            if self.decompressor is None:
                if is_end or not self.waiting.strip(b"\0"):  # nothing, or padding
                    return b""
                self.decompressor = self.make() if self.make is not None else None
            content: bytes = self.decompressor.decompress(self.waiting, most)
            self.waiting = b""
            if self.decompressor.eof:
                self.waiting, self.decompressor = self.decompressor.unused_data, None
            elif is_end and not content:
                raise EOFError("it ends early")
            if content:
                return content


class _GzipDecompressor:
    """zlib's decompressor of gzip with the interface of those of bz2 and lzma."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def unused_data(self) -> bytes:
        return self.inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self.inner.unconsumed_tail

    def decompress(self, data: bytes, most: int) -> bytes:
        return self.inner.decompress(self.inner.unconsumed_tail + data, most)


def _xz() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=MOST_DICTIONARY)


def zip_members(archive: zipfile.ZipFile, gate: Gate) -> list[zipfile.ZipInfo]:
    """Return the members of a zip file; ValueError if they are too many, or claim too many bytes
    together.

    zipfile reads no more of a member than it claims, but members may lie upon each other.
    """
    found = archive.infolist()
    gate.let(len(found), sum(info.file_size for info in found))
    return found


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array in numpy's format; return its shape, whether it is in Fortran's
    order, and its type.

    Raises ValueError if it is none, too long, or has a negative dimension.
    """
    start = stream.read(8)
    if start[:6] != b"\x93NUMPY" or start[6:7] not in (b"\1", b"\2", b"\3"):
        raise ValueError("it is not an array of numpy")
    kind = "<H" if start[6] == 1 else "<I"
    (length,) = struct.unpack(kind, stream.read(struct.calcsize(kind)))
    if length > MOST_ARRAY_HEADER:
        raise ValueError(f"its header claims {length:,} bytes")
    content = io.BytesIO(struct.pack(kind, length) + stream.read(length))
    read = (np.lib.format.read_array_header_1_0 if start[6] == 1
            else np.lib.format.read_array_header_2_0)
    shape, is_fortran, dtype = read(content)
    if not all(isinstance(side, int) and side >= 0 for side in shape):
        raise ValueError(f"its shape is {list(shape)}")
    return shape, is_fortran, dtype


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """Read the array `name` of an .npz file; raise as `array_header`, KeyError, or EOFError if it
    is not all there.

    ValueError, too, if its size is not that of its shape, or it unpacks to more than a `Gate` lets
    through.
    """
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as stream:
        shape, is_fortran, dtype = array_header(stream)
        size = math.prod(shape) * dtype.itemsize
        check_size(name, size, info, stream.tell())
        if dtype.hasobject:
            raise ValueError(f"{name} holds objects")
        found = np.empty(shape[::-1] if is_fortran else shape, dtype)
        view = memoryview(found.reshape(-1).view(np.uint8).data) if size else memoryview(b"")
        while view:
            count = stream.readinto(view[: 16 * _CHUNK])  # type: ignore[attr-defined]  # as all of io
            if not count:
                raise EOFError(f"{name} ends early")
            view = view[count:]
    return found.T if is_fortran else found


def check_size(name: str, size: int, info: zipfile.ZipInfo, header: int) -> None:
    """Raise ValueError unless an array of `size` bytes after its header fits what the .npz file
    says of it."""
    if size + header != info.file_size:
        raise ValueError(f"{name} claims {size:,} bytes and has "
                         f"{max(info.file_size - header, 0):,}")
    Gate(info.compress_size).let(unpacked=size)
