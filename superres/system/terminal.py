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
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from superres.errors import InvalidInputError, OutputError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than the line feed, bidirectional controls, line separators, and
surrogates. Python uses surrogates for bytes of file names and arguments that are not UTF-8."""


class StandardOutputError(OutputError):
    """Standard output is full, closed, or no longer read."""


def printable(text: str) -> str:
    r"""Return `text` with control characters as escapes such as \x1b and \u202e; line feeds are
    left unchanged."""
    def escape(found: re.Match[str]) -> str:
        code = ord(found[0])
        is_byte = 0xDC80 <= code <= 0xDCFF  # a byte that is not UTF-8, as U+DC00 plus its value
        return f"\\x{code & 0xFF:02x}" if is_byte or code < 0x100 else f"\\u{code:04x}"

    return _CONTROL.sub(escape, text)


def one_line(message: str) -> str:
    """Return `message` as one printable line. Blanks inside a line stay: a command line may quote
    them."""
    return " ".join(filter(None, map(str.strip, printable(message).splitlines())))


def echo(text: str, err: bool = False) -> None:
    """Print text on standard output (or raise StandardOutputError), or with `err` on standard error
    if possible."""
    with suppress(*((OSError,) if err else ())):
        typer.echo(printable(text), err=err)


def echo_json(report: dict[str, Any]) -> None:
    """Print a report as one line of JSON on standard output, or raise StandardOutputError."""
    typer.echo(json.dumps(report).replace("\x7f", "\\u007f"))


def write_output(data: bytes) -> None:
    """Write bytes to standard output, or raise StandardOutputError."""
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def standard_input() -> BinaryIO:
    """Return standard input, or raise InvalidInputError if it is closed."""
    if sys.stdin is None:
        raise InvalidInputError(f"cannot read standard input: {os.strerror(errno.EBADF)}; give it "
                                "a file or a pipe")
    return sys.stdin.buffer


def read_standard_input() -> bytes:
    """Read standard input to its end, or raise InvalidInputError if it is closed or cannot be
    read."""
    try:
        return standard_input().read()
    except OSError as error:
        raise InvalidInputError(f"cannot read standard input: {error.strerror}; give it a file or "
                                "a pipe") from error


class PrintableFormatter(logging.Formatter):
    """Escapes control characters in log lines, which contain file names and messages of other
    programs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record, without control characters."""
        return printable(super().format(record))


class _Output(io.RawIOBase):
    """The raw file of standard output, whose errors differ in type from the errors of other
    files."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.has_failed = descriptor, False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def write(self, data: Buffer, /) -> int:
        if self.has_failed:  # Python flushes its buffer again at exit
            return memoryview(data).nbytes
        try:
            return os.write(self.descriptor, data)
        except OSError as error:
            self.has_failed = True
            raise StandardOutputError(f"cannot write to standard output: {error.strerror}; direct "
                                      "it to where it can be written") from error


@contextmanager
def standard_output() -> Iterator[None]:
    """Make failed writes to standard output raise StandardOutputError.

    A terminal, and an object that other code has assigned to `sys.stdout`, is left unchanged.
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
