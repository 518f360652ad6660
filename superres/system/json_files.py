"""Read untrusted files, such as checkpoints: regular files of bounded size, and strict JSON."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from superres.errors import ConfigError, SuperresError, plain, shown

T = TypeVar("T")

MOST_BYTES = 2**24
"""Largest accepted size of a file of settings or of rows, which typically has kilobytes."""
MOST_DEPTH = 32
"""Largest number of lists and objects inside each other in JSON."""
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|([\[{])|[\]}]', re.DOTALL)
"""A text, perhaps without its end, whose brackets count for nothing, an opening bracket, or a
closing one."""


def require_regular(path: Path) -> None:
    """Raise OSError unless `path` is a regular file or a link to one; opening a pipe could block
    forever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; OSError if it is none or cannot
    be read."""
    require_regular(path)
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes long", str(path))
    return content


def parse_json(content: bytes) -> Any:  # noqa: ANN401 -- any JSON value
    """Return the value of JSON text (RFC 8259); a byte order mark is skipped, as are UTF-16 and
    UTF-32 decoded.

    NaN, Infinity, numbers that no float holds, and duplicate names are refused.

    Raises:
        ValueError: the text is not valid, has an integer of thousands of digits, or is nested too
            deeply.
    """
    text = content.decode(json.detect_encoding(content))
    if text.count("[") + text.count("{") > MOST_DEPTH:
        steps = (1 if found[1] else -1 for found in _BRACKETS.finditer(text) if found[0][0] != '"')
        if any(depth > MOST_DEPTH for depth in itertools.accumulate(steps)):
            raise ValueError(f"more than {MOST_DEPTH} lists and objects inside each other")
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant,
                      parse_float=_finite)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict[str, Any]()
    for name, value in pairs:
        if name in values:
            raise ValueError(f"the name {shown(name)} occurs twice")
        values[name] = value
    return values


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(number: str) -> float:
    if math.isfinite(value := float(number)):
        return value
    raise ValueError(f"the number {shown(number)} is too large")


def parse_lines(content: bytes) -> list[Any]:
    """Return the values of JSON lines; errors as for `parse_json`."""
    return [parse_json(line) for line in content.split(b"\n") if line.strip()]


def read_json(
    path: Path, form: Callable[[Any], T], kind: type[SuperresError], remedy: str,
    most: int = MOST_BYTES, parse: Callable[[bytes], Any] = parse_json,
) -> T:
    """Return `form` of the JSON in a file, such as the `from_dict` of settings or a
    `superres.config.reader_of`.

    Args:
        path: a regular file of at most `most` bytes.
        form: returns the value as its type, or raises ConfigError.
        kind: type of the error if the file cannot be read; its one line ends with `remedy`.
        remedy: what a user can do about a file that cannot be read.
        most: largest accepted size in bytes.
        parse: `parse_json`, or `parse_lines` for JSON lines.
    """
    try:
        return form(parse(read_file(path, most)))
    except OSError as error:
        raise kind(f"cannot read {path}: {error.strerror}; {remedy}") from error
    except ValueError as error:
        raise kind(f"{path} is damaged ({plain(str(error))}); {remedy}") from error
    except ConfigError as error:
        raise kind(f"{path}: {error}; {remedy}") from error
