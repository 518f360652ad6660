"""Temporary files of the server: uploads and results, in folders whose names cannot be guessed, until they are old."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import time
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from superres.batch.image_files import encode_png
from superres.tasks.pictures import Picture, Pixels

NamedPicture = tuple[str, Pixels, dict[str, Any]]
"""A file's name, its picture, uint8 [H, W, 3], and its metadata."""

NOT_UPLOADED = "was not uploaded by a user of this page, or is deleted; upload it again"
"""Message for every file that is not an upload; it does not reveal which files exist."""
MAX_FILE_BYTES = 10 * 2**20
"""Largest size of an upload."""
KEEP_SECONDS = 600
"""Time that an upload or a result stays on the server after its last use."""
KEEP_BYTES = 2_000_000_000
"""Largest total size of uploads and results on the server."""


@contextmanager
def temporary_files() -> Iterator[Path]:
    """Make a folder that only the server's user can read, let Gradio keep its files there, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="superres-web-", ignore_cleanup_errors=True) as folder:
        before = os.environ.get("GRADIO_TEMP_DIR")
        os.environ["GRADIO_TEMP_DIR"] = str(Path(folder).resolve())
        try:
            yield Path(os.environ["GRADIO_TEMP_DIR"])
        finally:
            del os.environ["GRADIO_TEMP_DIR"]
            if before is not None:
                os.environ["GRADIO_TEMP_DIR"] = before


def new_folder() -> Path:
    """Make a folder whose name cannot be guessed; Gradio serves its files to those who know their paths."""
    path = Path(os.environ["GRADIO_TEMP_DIR"]) / secrets.token_hex(16)
    path.mkdir(0o700)
    return path


def is_temporary(path: object) -> bool:
    """Return whether a value is a path in the folder, which has no links.

    Gradio checks only the paths in values that say that they are files.
    """
    return isinstance(path, str) and Path(os.path.abspath(path)).is_relative_to(os.environ["GRADIO_TEMP_DIR"])


def save_pictures(pictures: Sequence[NamedPicture]) -> list[str]:
    """Write pictures as PNG files into a new folder, and return their paths."""
    folder = new_folder()
    for name, image, record in pictures:
        (folder / name).write_bytes(encode_png(Picture(image), record))
    return [str(folder / name) for name, _, _ in pictures]


def save_zip(name: str, pictures: Sequence[NamedPicture], rows: Sequence[dict[str, Any]]) -> str:
    """Write a zip file with pictures and a manifest of `rows` into a new folder, and return its path."""
    path = new_folder() / name
    with zipfile.ZipFile(path, "w") as archive:
        for member, image, record in pictures:
            archive.writestr(member, encode_png(Picture(image), record))
        archive.writestr("manifest.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def files_below(folder: Path) -> dict[Path, os.stat_result]:
    """Return the files in `folder` and below; others may delete files meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            if not path.is_dir():
                found[path] = path.lstat()
    return found


def sweep(folder: Path, kept: Collection[Path], age: float = KEEP_SECONDS, most_bytes: int = KEEP_BYTES) -> None:
    """Delete files not used for `age` seconds, the oldest files beyond a total of `most_bytes`, and empty folders.

    The last use is the time of modification. Files in `kept`, which belong to the page, stay and are not counted.
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
