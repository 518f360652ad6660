"""The server's log: one JSON object a line on standard error, about what it did and never about who asked."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger("superres.web")


@contextlib.contextmanager
def logging_as_json() -> Iterator[None]:
    """Write the log to standard error, and what libraries print there as a part of it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _LOGGER.setLevel(logging.INFO)
    with contextlib.redirect_stderr(StrayLines()):
        yield


def log(event: str, **facts: Any) -> None:  # noqa: ANN401 -- whatever JSON can hold
    """Note an event."""
    _LOGGER.info(event, extra={"facts": facts})


def log_bug(error: BaseException) -> None:
    """Note an error that nobody foresaw, with the places in the code but without values, which may be a visitor's."""
    _LOGGER.error("bug", exc_info=error)


def _places(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {"type": type(error).__name__,
            "where": [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]}


class StrayLines(io.TextIOBase):
    """Stands in for standard error: of a traceback that is printed, the log keeps the places and the kind of error."""

    def write(self, text: str) -> int:
        """Note the lines of `text` that name a place or an error, without its message, which may be a visitor's."""
        for line in text.splitlines():
            if line.startswith('  File "') or re.match(r"[\w.]+(Error|Exception)\b", line):
                _LOGGER.error("stray", extra={"facts": {"line": line.split(":")[0].strip()}})
        return len(text)


class JsonLines(logging.Formatter):
    """Formats records as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`."""
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        error = record.exc_info[1] if record.exc_info else None
        return json.dumps({"time": moment, "level": record.levelname.lower(), "event": record.getMessage().strip(),
                           **getattr(record, "facts", {}), **(_places(error) if error else {})})
