"""Unpack untrusted archives and arrays: bytes are counted while they are unpacked, never after.

A small file can claim, or unpack to, any number of bytes. These readers refuse it before they take the memory.
"""

from __future__ import annotations

import bz2
import io
import lzma
import math
import os
import struct
import tarfile
import zipfile
import zlib
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

MOST_HEADER_BYTES = 1_000_000  # of a long name or an extended header of a tar file
MOST_HEADERS = 20  # long names and extended headers of one member
MOST_ARRAY_HEADER = 10_000  # bytes of the header of an array
MOST_DICTIONARY = 300_000_000  # bytes that unpacking xz may take
MOST_RATIO = 200  # unpacked bytes per packed byte, beyond `FREE_BYTES`; pictures hardly shrink
FREE_BYTES = 500_000_000  # unpacked bytes that every file may have
FREE_MEMBERS = 10_000  # members that every archive may have
BYTES_PER_MEMBER = 50  # packed bytes of each further member; the smallest picture has more
_CHUNK = 1 << 16
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)


class Gate:
    """Refuses more members and bytes of a container than its size justifies: every reader of one counts here."""

    def __init__(self, packed: int) -> None:
        """`packed` is the size of the container in bytes."""
        self.members = self.members_left = FREE_MEMBERS + packed // BYTES_PER_MEMBER
        self.bytes = self.bytes_left = FREE_BYTES + MOST_RATIO * packed

    @classmethod
    def of(cls, file: str | int) -> Gate:
        """Return the gate of a file, given by its path or descriptor."""
        return cls(os.stat(file).st_size)

    def let(self, members: int = 0, size: int = 0) -> None:
        """Count further members and unpacked bytes; raise ValueError if they are too many."""
        self.members_left, self.bytes_left = self.members_left - members, self.bytes_left - size
        if self.members_left < 0:
            raise ValueError(f"it has over {self.members:,} members, too many for its size")
        if self.bytes_left < 0:
            raise ValueError(f"it unpacks to over {self.bytes // 1_000_000:,} MB, too much for its size")


def open_tar(file: BinaryIO) -> tarfile.TarFile:
    """Open a tar file of any compression as a stream of bounded memory.

    Raises tarfile.TarError, EOFError, OSError, ValueError or zlib.error for what is damaged or too large, also later.
    """
    class Member(_Member):
        gate = Gate.of(file.fileno())

    return tarfile.open(fileobj=Unpacked(file), mode="r|", tarinfo=Member)


class _Member(tarfile.TarInfo):
    """A member whose headers have a bounded size."""

    gate: Gate

    def _proc_member(self, archive: Any) -> Any:  # noqa: ANN401 -- tarfile calls it for every header
        is_long = self.type in _LONG
        self.gate.let(members=not is_long)
        archive.headers = getattr(archive, "headers", 0) + 1 if is_long else 0
        if archive.headers > MOST_HEADERS:  # tarfile reads them by recursion
            raise tarfile.ReadError(f"it has over {MOST_HEADERS} headers before a member")
        if self.size < 0:
            raise tarfile.ReadError(f"a member claims {self.size} bytes")
        if is_long and self.size > MOST_HEADER_BYTES:
            raise tarfile.ReadError(f"a header claims {self.size:,} bytes")
        if self.type == tarfile.XGLTYPE:
            archive.global_bytes = getattr(archive, "global_bytes", 0) + self.size
            if archive.global_bytes > MOST_HEADER_BYTES:
                raise tarfile.ReadError(f"its global headers have over {MOST_HEADER_BYTES:,} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("it has sparse members")
        return super()._proc_member(archive)  # type: ignore[misc]  # not in the types of tarfile

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("it has sparse members")


class Unpacked(io.RawIOBase):
    """The unpacked content of a file that may be compressed by gzip, bzip2 or xz.

    Raises EOFError where a reader goes on reading past the end, as one does that skips a member of a false size, and
    ValueError if more is unpacked than a `Gate` lets through.
    """

    def __init__(self, file: BinaryIO) -> None:
        """Find the compression by the first bytes of `file`."""
        self.file, self.gate, self.ends = file, Gate.of(file.fileno()), 0
        start = file.read(6)
        file.seek(0)
        self.make = _GzipDecompressor if start[:2] == b"\x1f\x8b" else bz2.BZ2Decompressor if start[:3] == b"BZh" else \
            _xz if start in (b"\xfd7zXZ\0", b"\x5d\0\0\x80\0\xff") or start[:3] == b"\x5d\0\0" else None
        self.decompressor: Any = None
        self.waiting = b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        """Fill `buffer` with the next bytes and return their number, 0 at the end."""
        view = memoryview(buffer).cast("B")
        content = self.file.read(len(view)) if self.make is None else self._unpack(len(view))
        self.ends = 0 if content or not len(view) else self.ends + 1
        if self.ends > 2:
            raise EOFError("it ends early")
        self.gate.let(size=len(content) if self.make is not None else 0)
        view[: len(content)] = content
        return len(content)

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


def zip_members(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Return the members of a zip file; ValueError if they are too many, or claim too many bytes together.

    zipfile reads no more of a member than it claims, but members may lie upon each other.
    """
    found = archive.infolist()
    gate = Gate(0 if archive.fp is None else os.fstat(archive.fp.fileno()).st_size)
    gate.let(len(found), sum(info.file_size for info in found))
    return found


def array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array in numpy's format; return its shape, whether it is in Fortran's order, and its type.

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
    read = np.lib.format.read_array_header_1_0 if start[6] == 1 else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(content)
    if not all(isinstance(side, int) and side >= 0 for side in shape):
        raise ValueError(f"its shape is {list(shape)}")
    return shape, is_fortran, dtype


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """Read the array `name` of an .npz file; raise as `array_header`, KeyError, or EOFError if it is not all there.

    ValueError, too, if its size is not that of its shape, or it unpacks to more than a `Gate` lets through.
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
    """Raise ValueError unless an array of `size` bytes after its header fits what the .npz file says of it."""
    if size + header != info.file_size:
        raise ValueError(f"{name} claims {size:,} bytes and has {max(info.file_size - header, 0):,}")
    Gate(info.compress_size).let(size=size)
