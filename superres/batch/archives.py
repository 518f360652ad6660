"""The pictures in archives: which members are used, and their content.

A member is known by its archive and its number, since names may occur repeatedly. A zip or tar file
stands for the files that unpacking it would give: the last of several members of a name counts, and
a link has the content of its target. Archives are listed and read in processes of limited memory
and time: `superres.batch.containers`.
"""

from __future__ import annotations

import io
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from superres.batch.containers import PIECE, SECONDS
from superres.errors import InvalidInputError, SuperresError, plain
from superres.pictures.files import IMAGE_SUFFIXES
from superres.system.confined import Confined, KilledError, Values
from superres.system.folders import Tally
from superres.system.json_files import require_regular

ARCHIVE_SUFFIXES = (".zip", ".npz", ".parquet", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2",
                    ".tar.xz", ".txz")
# largest unpacked size of an archive's member in bytes, against zip bombs
MAX_MEMBER_BYTES = 500_000_000
DAMAGED = (SuperresError, ValueError, OSError)
"""Errors that `list_members` and `read_members` raise on archives that are damaged, or not
there."""
READER = Confined("superres.batch.containers:read", PIECE)

Content = str | IO[bytes] | np.ndarray[Any, Any]
"""An image: the path of its file, its content, or its pixels uint8 [H, W, 3]."""


def is_archive(path: str) -> bool:
    """Return whether a path or URL has the name of an archive, whose members are inputs."""
    return path.lower().endswith(ARCHIVE_SUFFIXES)


def list_members(path: str, label: str, tally: Tally) -> Iterator[tuple[int, str]]:
    """Yield the number and the name of each picture in the archive `label`, whose content is the
    file `path`.

    The numbers do not decrease; a link has the number of the member that has its content. Raises
    one of `DAMAGED` after the members before the damage.
    """
    with closing(_reader(path, label)) as found:
        for reply in found:
            tally.left_out.update(reply["left_out"])
            for number, name in reply["names"]:
                tally.used += 1
                yield number, name


def read_members(
    path: str, label: str, wanted: Iterable[int], most_bytes: int = MAX_MEMBER_BYTES,
) -> Iterator[Content | SuperresError]:
    """Yield the content of members of an archive by their numbers, which must not decrease.

    The content must be read before the next is asked for, as it is closed then. Ends early where a
    number is not there; raises one of `DAMAGED` where the archive is damaged.
    """
    with ExitStack() as stack:
        def start() -> Generator[Values, Values | None, None]:
            reader = stack.enter_context(closing(_reader(path, label, most_bytes)))
            next(reader)
            return reader

        reader = start()
        content: bytes | np.ndarray[Any, Any] | SuperresError | None = None
        last = -1
        for number in wanted:
            if number != last:
                content, last = None, number  # frees its memory
                try:
                    content = _content(reader, number)
                except KilledError:
                    reader = start()
                    content = _content(reader, number)
            if content is None:
                return
            # links share the content of their target, but not the position in it
            if isinstance(content, bytes):
                with io.BytesIO(content) as file:
                    yield file  # closing it frees the memory, whoever has it still
            else:
                yield content
        with suppress(StopIteration):
            reader.send({"number": None})  # otherwise closing it would end its process


def _reader(
    path: str, label: str, most_bytes: int | None = None,
) -> Generator[Values, Values | None, None]:
    require_regular(Path(path))
    return READER(SECONDS, path=os.path.abspath(path), label=label, suffixes=sorted(IMAGE_SUFFIXES),
                  most=most_bytes)


def _content(
    reader: Generator[Values, Values | None, None], number: int,
) -> bytes | np.ndarray[Any, Any] | InvalidInputError | None:
    """Return the content of a member, which comes in pieces; None if it is not there."""
    try:
        whole, piece = io.BytesIO(), reader.send({"number": number})
    except StopIteration:
        return None
    while "refused" not in piece:
        whole.write(piece["content"])
        if piece["is_last"]:  # `getvalue` copies nothing
            return whole.getvalue() if piece["shape"] is None else (
                np.frombuffer(whole.getbuffer(), np.uint8).reshape(piece["shape"]))
        piece = next(reader)
    return InvalidInputError(piece["refused"])


def reason_of(error: Exception) -> str:
    """Return the message of another library's error, printable."""
    return plain(str(error)) or type(error).__name__
