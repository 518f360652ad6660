"""Print text without terminal control sequences, and handle failures of standard output."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from superres.errors import InvalidInputError, OutputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but the line feed, marks and overrides of the direction of writing, separators of lines, and bytes
that are not UTF-8, as Python's file names and arguments hold them."""


class StandardOutputError(OutputError):
    """Standard output is full, closed, or no longer read; the cause says which."""


def printable(text: str) -> str:
    r"""Return `text` with terminal control characters as escapes such as \x1b and \u202e; line feeds stay."""
    return _OBEYED.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    is_byte = 0xDC80 <= code <= 0xDCFF  # not UTF-8: U+DC00 + its value
    return f"\\x{code & 0xFF:02x}" if is_byte or code < 0x100 else f"\\u{code:04x}"


def one_line(message: str) -> str:
    """Return `message` as one printable line."""
    return " ".join(printable(message).split())


def echo(text: str, err: bool = False) -> None:
    """Print text for people on standard output, or, where it goes, on standard error.

    Raises:
        StandardOutputError: standard output cannot be written.
    """
    # What cannot be told on standard error cannot be told at all, and is no reason to stop.
    with suppress(*((OSError,) if err else ())):
        typer.echo(printable(text), err=err)


def echo_json(report: dict[str, Any]) -> None:
    """Print a report as one line of JSON on standard output.

    Raises:
        StandardOutputError: it cannot be written.
    """
    typer.echo(json.dumps(report).replace("\x7f", "\\u007f"))


def write_output(data: bytes) -> None:
    """Write data to standard output as it is.

    Raises:
        StandardOutputError: it cannot be written.
    """
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def read_standard_input() -> bytes:
    """Return all of standard input.

    Raises:
        InvalidInputError: it is closed, or cannot be read.
    """
    try:
        if sys.stdin is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return sys.stdin.buffer.read()
    except OSError as error:
        raise InvalidInputError(f"cannot read standard input: {error.strerror}; give it a file or a pipe") from error


class PrintableFormatter(logging.Formatter):
    """Makes the lines of a log printable, since they contain file names and messages of other programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        return printable(super().format(record))


class _Output(io.RawIOBase):
    """The file behind standard output, with errors that the command line tells from those of other files."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.has_failed = descriptor, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def write(self, data: Buffer, /) -> int:
        if self.has_failed:  # at exit, Python tries again to flush its buffer
            return memoryview(data).nbytes
        try:
            return os.write(self.descriptor, data)
        except OSError as error:
            self.has_failed = True
            raise StandardOutputError(f"cannot write to standard output: {error.strerror}; direct it to where it can "
                                      "be written") from error


@contextmanager
def standard_output() -> Iterator[None]:
    """Let everything that is written to standard output meanwhile raise StandardOutputError where it cannot be written.

    A terminal, and what somebody else has put in the place of standard output, is left as it is.
    """
    original = sys.stdout
    if original is not sys.__stdout__ or (original is not None and original.isatty()):
        yield
        return
    raw = _Output(-1 if original is None else original.fileno())
    encoding = "utf-8" if original is None else original.encoding
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "backslashreplace")
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = original
