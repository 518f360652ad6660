"""The server's log on standard error: one JSON object per line, without data about visitors."""

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
    """Write the log to standard error, and turn the output of libraries there into log lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    _LOGGER.setLevel(logging.INFO)
    with contextlib.redirect_stderr(StrayLines()):
        yield


def log(event: str, **fields: Any) -> None:  # noqa: ANN401 -- any JSON values
    """Log an event with its fields."""
    _LOGGER.info(event, extra={"fields": fields})


def log_bug(error: BaseException) -> None:
    """Log an unexpected error with its places in the code, but without values, which may be visitors' data."""
    _LOGGER.error("bug", exc_info=error)


def _places(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {"type": type(error).__name__,
            "where": [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]}


class StrayLines(io.TextIOBase):
    """Replacement for standard error: of a printed traceback, only the places and the type of the error are logged."""

    def write(self, text: str) -> int:
        """Log the lines of `text` that name a place or an error, without messages, which may be visitors' data."""
        for line in text.splitlines():
            if line.startswith('  File "') or re.match(r"[\w.]+(Error|Exception)\b", line):
                _LOGGER.error("stray", extra={"fields": {"line": line.split(":")[0].strip()}})
        return len(text)


class JsonLines(logging.Formatter):
    """Formats log records as JSON objects."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line of JSON."""
        moment = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        error = record.exc_info[1] if record.exc_info else None
        return json.dumps({"time": moment, "level": record.levelname.lower(), "event": record.getMessage().strip(),
                           **getattr(record, "fields", {}), **(_places(error) if error else {})})
