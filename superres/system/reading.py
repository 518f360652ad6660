"""Read untrusted files, such as checkpoints: regular files of bounded size, and strict JSON."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any


def require_regular(path: Path) -> None:
    """Raise OSError unless `path` is a regular file or a link to one; opening a pipe could block forever."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_file(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes; OSError if it is none or cannot be read."""
    require_regular(path)
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes long", str(path))
    return content


def parse_json(content: bytes) -> Any:  # noqa: ANN401 -- any JSON value
    """Return the value of JSON text (RFC 8259, UTF-8); NaN, Infinity and duplicate names are refused.

    Raises:
        ValueError: the text is not valid, has an integer of thousands of digits, or is nested too deeply.
    """
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} occurs twice")
        return values

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a number in JSON")

    try:
        return json.loads(content.decode(), object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
