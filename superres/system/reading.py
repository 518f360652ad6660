"""Read untrusted files, such as those of a checkpoint: regular files of bounded size, and strict JSON."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any


def require_regular(path: Path) -> None:
    """Refuse what is no regular file (a link to one is): opening a pipe could wait for ever.

    Raises:
        OSError: it is missing, or a folder, a pipe, a socket or a device.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        OSError: it is missing, not a regular file, too large, or cannot be read.
    """
    require_regular(path)
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes long", str(path))
    return content


def parse_json(content: bytes) -> Any:  # noqa: ANN401 -- whatever stands there
    """Return what JSON text (RFC 8259, UTF-8) holds; NaN, Infinity and names that stand twice are refused.

    Raises:
        ValueError: it is no such text, or holds a number of thousands of digits, or is nested too deeply.
    """
    try:
        return json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice")
    return values


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")
