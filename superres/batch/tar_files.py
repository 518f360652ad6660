"""The members of a tar file of any compression, in the process that reads archives
(`superres.batch.containers`)."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import IO, Any, Protocol

from superres.system.unpacking import Gate

MOST_HEADER_BYTES = 10_000  # of a long name or an extended header
_EXTENDED = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
             tarfile.GNUTYPE_LONGLINK)
_OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open, b"\x5d\0\0": lzma.open}
"""What unpacks a compressed tar file, by its first bytes."""
_ENDS = (tarfile.EOFHeaderError, tarfile.EmptyHeaderError)  # type: ignore[attr-defined]


class Stream(Protocol):
    """What is read from its beginning to its end."""

    def read(self, count: int, /) -> bytes:
        """Return the next `count` bytes, fewer only at the end."""


class _Header(tarfile.TarInfo):
    """A header of a tar file; the library takes a damaged one for the end of the file."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Header:
        """Read a header, and refuse a long one of those that tell more of the next member."""
        info = super().frombuf(buf, encoding, errors)
        if info.type in _EXTENDED and not 0 <= info.size <= MOST_HEADER_BYTES:
            raise ValueError(f"an extended header claims {info.size:,} bytes")
        return info

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> _Header:
        """Read the headers of a member."""
        try:
            return super().fromtarfile(archive)
        except _ENDS:
            raise
        except RecursionError:
            raise ValueError("it has too many extended headers before a member") from None
        except tarfile.HeaderError as error:
            raise ValueError(f"a header is damaged: {error}") from error


class _Counted:
    """An unpacked stream whose bytes a gate counts; the library may read at its end once, where it
    looks for a header."""

    def __init__(self, stream: Stream, gate: Gate) -> None:
        self.stream, self.gate, self.has_ended = stream, gate, False

    def read(self, count: int, /) -> bytes:
        """As a `Stream`."""
        content = self.stream.read(count)
        if not content and self.has_ended:
            raise EOFError("it ends early")
        self.has_ended = not content
        self.gate.let(unpacked=len(content))
        return content


def _open_tar(file: IO[bytes], gate: Gate) -> tarfile.TarFile:
    """Open a tar file of any compression; one without is not read where no content is wanted."""
    start = file.read(6)
    file.seek(0)
    for first, unpack in _OPENERS.items():
        if start.startswith(first):
            stream: Any = _Counted(unpack(file), gate)
            return tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 16, tarinfo=_Header)
    return tarfile.open(fileobj=file, mode="r:", tarinfo=_Header)


def tar_headers(path: str, gate: Gate) -> Iterator[tuple[tarfile.TarInfo, Callable[[], Any]]]:
    """Yield each member of a tar file, and what opens its content, which must be read before the
    next member is asked for.

    Raises errors of many types where the file is damaged, and ValueError for more than its size
    justifies.
    """
    with open(path, "rb") as file, _open_tar(file, gate) as archive:
        while (info := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # which would have all of them
            gate.let(members=1)
            if info.issparse():
                raise ValueError("it has sparse members")
            if not 0 <= info.size <= gate.bytes:
                raise ValueError(f"a member claims {info.size:,} bytes")
            yield info, partial(archive.extractfile, info)
