"""The server's folder of temporary files, with one folder per visitor; old files are deleted."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
import time
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from superres.batch.image_files import encode_png
from superres.errors import InvalidInputError
from superres.tasks.pictures import Picture, Pixels
from superres.web.visitors import Identities, current

NamedPicture = tuple[str, Pixels, dict[str, Any]]
"""A file's name, its picture, uint8 [H, W, 3], and its metadata."""

NOT_UPLOADED = "was not uploaded by a user of this page, or is deleted; upload it again"
"""Message for every file that does not belong to the visitor; it does not reveal which files exist."""
KEEP_SECONDS = 600
"""Time that an upload or a result stays on the server after its last use."""
KEEP_BYTES = 2_000_000_000
"""Largest total size of uploads and results on the server."""


class Workspace:
    """The folder of temporary files. Enter it before building the page, so that Gradio puts its files there too.

    Attributes:
        folder: path of the folder.
    """

    def __init__(self) -> None:
        """Create the folder, which only the server's user can read."""
        self.folder = Path(tempfile.mkdtemp(prefix="superres-web-")).resolve()
        self._kept: set[Path] = set()
        self._key = secrets.token_bytes(32)
        self._before = os.environ.get("GRADIO_TEMP_DIR")

    def __enter__(self) -> Workspace:
        """Make Gradio use the folder for its files."""
        os.environ["GRADIO_TEMP_DIR"] = str(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the folder and its files."""
        os.environ.pop("GRADIO_TEMP_DIR")
        if self._before is not None:
            os.environ["GRADIO_TEMP_DIR"] = self._before
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_folder(self, visitor: Identities | None = None) -> Path:
        """Create a folder with a name that cannot be guessed, and return it.

        Args:
            visitor: owner of the folder; by default the visitor of the current request, if there is one.
        """
        owner = (current.get() if visitor is None else visitor)[:1]
        path = (self._folder_of(owner[0]) if owner else self.folder) / secrets.token_hex(16)
        path.mkdir(0o700, parents=True)
        return path

    def check(self, path: object, visitor: Identities) -> None:
        """Check that a path is in a folder of the visitor or is a file of the page.

        Args:
            path: value that the visitor sent. Only the visitor's folders are accessed.
            visitor: identities of the visitor.

        Raises:
            InvalidInputError: the path is elsewhere; the message is always the same.
        """
        if not isinstance(path, str) or "\0" in path or not self._belongs(path, visitor):
            raise InvalidInputError(f"the file {NOT_UPLOADED}")

    def _belongs(self, name: str, visitor: Identities) -> bool:
        path = Path(os.path.normpath(name))
        if path in self._kept:
            return True
        folders = [folder for folder in map(self._folder_of, visitor) if path.is_relative_to(folder)]
        try:
            return bool(folders) and path.resolve().is_relative_to(folders[0]) and stat.S_ISREG(path.stat().st_mode)
        except FileNotFoundError:
            return True  # a deleted upload; reading it gives the error
        except (OSError, RuntimeError, ValueError):  # a loop of links, or a name that no file can have
            return False

    def _folder_of(self, identity: str) -> Path:
        """Return the folder of a visitor; its name does not reveal the identity."""
        return self.folder / hashlib.blake2b(identity.encode(), key=self._key, digest_size=16).hexdigest()

    def save_pictures(self, pictures: Sequence[NamedPicture]) -> list[str]:
        """Write pictures as PNG files into a new folder, and return their paths."""
        folder = self.new_folder()
        for name, image, record in pictures:
            (folder / name).write_bytes(encode_png(Picture(image), record))
        return [str(folder / name) for name, _, _ in pictures]

    def save_zip(self, name: str, pictures: Sequence[NamedPicture], rows: Sequence[dict[str, Any]]) -> str:
        """Write a zip file with pictures and a manifest of `rows` into a new folder, and return its path."""
        path = self.new_folder() / name
        with zipfile.ZipFile(path, "w") as archive:
            for member, image, record in pictures:
                archive.writestr(member, encode_png(Picture(image), record))
            archive.writestr("manifest.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    def keep_present_files(self) -> None:
        """Exclude the present files, which belong to the page, from all sweeps."""
        self._kept = {path for path in self.folder.rglob("*") if path.is_file()}

    def sweep(self, age: float = KEEP_SECONDS, most_bytes: int = KEEP_BYTES) -> int:
        """Delete files not used for `age` seconds, and the oldest files beyond a total of `most_bytes`.

        Returns:
            the number of deleted files.
        """
        oldest = time.time() - age
        deleted = total = 0
        for path, used, size in self._by_age():
            total += size
            if used <= oldest or total > most_bytes:
                with suppress(OSError):  # another request may have deleted it
                    path.unlink()
                    deleted += 1
        for folder in sorted((path for path in self.folder.rglob("*") if path.is_dir()), reverse=True):
            with suppress(OSError):  # not empty
                if folder.stat().st_mtime <= oldest:
                    folder.rmdir()
        return deleted

    def _by_age(self) -> list[tuple[Path, float, int]]:
        """Return the visitors' files with the time of their last use and their size, newest first."""
        found = []
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if path not in self._kept and not path.is_dir():
                    found.append((path, status.st_mtime, status.st_size))
        return sorted(found, key=lambda entry: -entry[1])
