"""Temporary files of the server: uploads and results, in folders whose names cannot be guessed,
until they are old."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from superres.errors import InvalidInputError
from superres.system.output import scratch_folder

NOT_UPLOADED = "was not uploaded by a user of this page, or is deleted; upload it again"
"""Message for every file that is not an upload; it does not reveal which files exist."""
MAX_FILE_BYTES = 10 * 2**20  # of an upload
KEEP_SECONDS = 600  # that an upload or a result stays on the server after its last use
KEEP_BYTES = 2_000_000_000  # of all uploads and results on the server


@contextmanager
def temporary_files() -> Iterator[Path]:
    """Make a folder that only the server's user can read, let Gradio keep its files there, and
    remove it at the end."""
    with scratch_folder() as folder:
        before = os.environ.get("GRADIO_TEMP_DIR")
        os.environ["GRADIO_TEMP_DIR"] = str(folder.resolve())
        try:
            yield Path(os.environ["GRADIO_TEMP_DIR"])
        finally:
            del os.environ["GRADIO_TEMP_DIR"]
            if before is not None:
                os.environ["GRADIO_TEMP_DIR"] = before


def new_folder() -> Path:
    """Make a folder whose name cannot be guessed; Gradio serves its files to those who know their
    paths."""
    path = Path(os.environ["GRADIO_TEMP_DIR"]) / secrets.token_hex(16)
    path.mkdir(0o700)
    return path


def path_of(upload: Any) -> str:  # noqa: ANN401 -- any JSON value
    """Return the path of an upload; InvalidInputError if there is none, or if it is not in the
    temporary folder.

    The folder has no links. Gradio checks only the paths in values that say that they are files.
    """
    if not upload:
        raise InvalidInputError("there is no image yet; upload one or choose an example")
    path = upload.get("path") if isinstance(upload, dict) else None
    if not (isinstance(path, str)
            and Path(os.path.abspath(path)).is_relative_to(os.environ["GRADIO_TEMP_DIR"])):
        raise InvalidInputError(f"the file {NOT_UPLOADED}")
    return path


def files_below(folder: Path) -> dict[Path, os.stat_result]:
    """Return the files in `folder` and below; others may delete files meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if not path.is_dir():
                found[path] = path.lstat()
    return found


def sweep(folder: Path, kept: Collection[Path], age: float = KEEP_SECONDS,
          most_bytes: int = KEEP_BYTES) -> None:
    """Delete files not used for `age` seconds, the oldest files beyond a total of `most_bytes`, and
    empty folders.

    The last use is the time of modification. Files in `kept`, which belong to the page, stay and
    are not counted.
    """
    oldest, total = time.time() - age, 0
    found = [(status.st_mtime, status.st_size, path) for path, status in files_below(folder).items()
             if path not in kept]
    for used, size, path in sorted(found, reverse=True):
        total += size
        if used <= oldest or total > most_bytes:
            path.unlink(missing_ok=True)
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        with suppress(OSError):  # not empty, or deleted
            if path.stat().st_mtime <= oldest:
                path.rmdir()
