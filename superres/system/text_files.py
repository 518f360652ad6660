"""Read the lines of text files of other programs: UTF-8, or UTF-16 and UTF-32 with a byte order
mark."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from typing import IO

from superres.errors import InvalidInputError

CHUNK = 1 << 20  # bytes that are read together
# The mark of UTF-32 begins with that of UTF-16.
MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32-le"),
         (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF16_LE, "utf-16-le"),
         (codecs.BOM_UTF16_BE, "utf-16-be"))


def read_lines(stream: IO[bytes], origin: str, zero_separated: bool = False) -> Iterator[str]:
    r"""Yield the lines of a text without its byte order mark; only \n and \r\n end a line.

    Bytes that are not UTF-8 become surrogates, as in file names. With `zero_separated`, zero bytes
    end a line instead if the beginning has some, as in the output of `find -print0`.

    Raises:
        InvalidInputError: the text `origin` is UTF-16 without a mark, or ends within a character.
        OSError: the stream cannot be read.
    """
    chunk = stream.read(CHUNK)
    mark, encoding = next(((mark, encoding) for mark, encoding in MARKS if chunk.startswith(mark)),
                          (b"", "utf-8"))
    if not mark and _is_utf16(chunk):
        raise InvalidInputError(f"{origin} is UTF-16 without a byte order mark; convert it to "
                                "UTF-8, for example with iconv -f utf-16le -t utf-8")
    separator = "\0" if zero_separated and not mark and b"\0" in chunk else "\n"
    decoder = codecs.getincrementaldecoder(encoding)("surrogateescape" if encoding == "utf-8"
                                                     else "strict")
    # the parts of a line that is longer than a chunk
    chunk, begun = chunk[len(mark) :], list[str]()
    while True:
        try:
            first, *others = decoder.decode(chunk, final=not chunk).split(separator)
        except UnicodeDecodeError as error:
            raise InvalidInputError(f"{origin} is not {encoding.upper()}, as its byte order mark "
                                    "says; convert it to UTF-8") from error
        begun.append(first)
        if others:
            *whole, last = "".join(begun), *others
            begun = [last]
            yield from (line.removesuffix("\r") if separator == "\n" else line for line in whole)
        if not chunk:
            break
        chunk = stream.read(CHUNK)
    if rest := "".join(begun):
        yield rest.removesuffix("\r") if separator == "\n" else rest


def decode_lines(data: bytes, origin: str) -> list[str]:
    """Return the lines of the text `origin`; InvalidInputError if it is empty, or has bytes that
    are not text."""
    if not data:
        raise InvalidInputError(f"{origin} is empty; give a text of at least one line")
    lines = list(read_lines(io.BytesIO(data), origin))
    for number, line in enumerate(lines, 1):
        try:
            line.encode()
        except UnicodeEncodeError as error:
            place = len(line[: error.start].encode()) + 1
            raise InvalidInputError(f"{origin}, line {number}: byte {place} "
                                    f"(0x{ord(line[error.start]) - 0xDC00:02x}) is not UTF-8; "
                                    "convert the file, for example with iconv -t utf-8") from error
    return lines


def _is_utf16(start: bytes) -> bool:
    """Return whether every second byte is zero and a line ends so; names of one letter alone could
    look alike."""
    for zeros, others, end in ((start[1::2], start[::2], b"\n\0"),
                               (start[::2], start[1::2], b"\0\n")):
        if end in start and not zeros.strip(b"\0") and b"\0" not in others:
            return True
    return False
