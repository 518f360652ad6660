"""Read picture files from elsewhere in a process of limited memory and time; see
`superres.system.confined`."""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Iterator
from contextlib import nullcontext
from typing import IO, Any

from superres.errors import InvalidInputError
from superres.pictures import write
from superres.pictures.read import MAX_PIXELS, Picture, check_file, read_picture
from superres.system.confined import Confined, Values, limit_memory

MOST_BYTES = 500_000_000  # of a file
MOST_MEMORY = 2_000_000_000  # bytes that decoding a picture may take, beyond those of its file
MOST_SECONDS = 10.0  # of processor time that decoding a picture may take
READER = Confined("superres.pictures.untrusted:decode", 4 * MAX_PIXELS)
ORIGINS = Confined("superres.pictures.untrusted:describe", 0)


def read_untrusted(
    file: str | os.PathLike[str] | IO[bytes], label: str | None = None,
    max_pixels: int = MAX_PIXELS, background: str = "white", least: int = 1,
    seconds: float | None = None,
) -> Picture:
    """Read a picture as `read_picture` does, in a process that may take `seconds` of processor
    time, or `MOST_SECONDS`.

    Raises InvalidInputError, too, for a file of over `MOST_BYTES`, and for one that takes too much
    time or memory.
    """
    fields = _answer(READER, file, str(file) if label is None else label, seconds,
                     max_pixels=max_pixels, background=background, least=least)
    return Picture(**{**fields, "notes": tuple(fields["notes"])})


def read_origin(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what `superres.pictures.write.read_origin` does, read in a process as
    `read_untrusted` reads."""
    return _answer(ORIGINS, path, str(path))


def _answer(
    reader: Confined, file: str | os.PathLike[str] | IO[bytes], label: str,
    seconds: float | None = None, **options: Any,  # noqa: ANN401 -- of the reader's function
) -> dict[str, Any]:
    content = _content(file, label)
    try:
        (values,) = reader(MOST_SECONDS if seconds is None else seconds, content=content,
                           memory=MOST_MEMORY + len(content), label=label, **options)
    except ValueError as error:
        raise InvalidInputError(f"{label} cannot be decoded: {error}; reduce it, or save it again "
                                "as PNG") from error
    return dict(values)


def _content(file: str | os.PathLike[str] | IO[bytes], label: str) -> bytes:
    try:
        if isinstance(file, (str, os.PathLike)):
            check_file(file, label)
        with (open(file, "rb") if isinstance(file, (str, os.PathLike))
              else nullcontext(file) as opened):
            content = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError for a path with a zero byte
        reason = getattr(error, "strerror", None) or error
        raise InvalidInputError(f"{label} cannot be read: {reason}; check the path and its "
                                "permissions") from error
    if len(content) > MOST_BYTES:
        raise InvalidInputError(f"{label} has over {MOST_BYTES // 10**6} MB; reduce it first")
    return content


def decode(content: bytes, memory: int, **options: Any) -> Iterator[Values]:  # noqa: ANN401
    """Yield the fields of the picture that `content` encodes, in a process that `READER` starts."""
    limit_memory(memory)
    try:
        picture = read_picture(io.BytesIO(content), **options)
    except InvalidInputError as error:
        if isinstance(error.__cause__, MemoryError):
            raise ValueError(f"it takes over {memory // 10**6:,} MB of memory") from error
        raise
    yield {field.name: getattr(picture, field.name) for field in dataclasses.fields(picture)}


def describe(content: bytes, memory: int, label: str) -> Iterator[Values]:
    """Yield what `content` says of its picture's origin, in a process that `ORIGINS` starts."""
    limit_memory(memory)
    yield write.read_origin(io.BytesIO(content), label)
