"""The server's one folder of temporary files: made for the process, swept of old files, removed at the end."""

from __future__ import annotations

import hashlib
import io
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
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from superres.batch.image_files import encode_png
from superres.errors import InvalidInputError
from superres.tasks.pictures import Picture
from superres.web.visitors import Identities, current

Pixels = npt.NDArray[np.uint8]
NamedPicture = tuple[str, Pixels, dict[str, Any]]
"""A file's name, its picture, and what its metadata tells."""

NOT_UPLOADED = "was not uploaded by a user of this page, or is deleted; upload it again"
"""The one answer to whoever names a file that is not theirs: it tells nothing about what there is on the server."""
KEEP_SECONDS = 600
"""How long an upload or a result stays on the server after its last use."""
KEEP_BYTES = 2_000_000_000
"""What uploads and results may take on the server in all."""


class Workspace:
    """The folder; entered before the page is built, since Gradio then takes it for its own files, too.

    Attributes:
        folder: where it is.
    """

    def __init__(self) -> None:
        """Make the folder, which only the server's user can read."""
        self.folder = Path(tempfile.mkdtemp(prefix="superres-web-")).resolve()
        self._kept: set[Path] = set()
        self._key = secrets.token_bytes(32)
        self._before = os.environ.get("GRADIO_TEMP_DIR")

    def __enter__(self) -> Workspace:
        """Let Gradio keep its files here."""
        os.environ["GRADIO_TEMP_DIR"] = str(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        """Remove the folder with all that is in it."""
        os.environ.pop("GRADIO_TEMP_DIR")
        if self._before is not None:
            os.environ["GRADIO_TEMP_DIR"] = self._before
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_folder(self, visitor: Identities | None = None) -> Path:
        """Make a folder with a name that cannot be guessed, and return it.

        Args:
            visitor: whose folder it is; by default that of the visitor who is being served, if there is one.
        """
        owner = (current.get() if visitor is None else visitor)[:1]
        path = (self._folder_of(owner[0]) if owner else self.folder) / secrets.token_hex(16)
        path.mkdir(0o700, parents=True)
        return path

    def check(self, path: object, visitor: Identities) -> None:
        """Refuse a path that a visitor named, unless it lies in a folder of that visitor or is one of the page's files.

        Args:
            path: what the visitor sent. Nothing outside of the visitor's folders is looked at.
            visitor: who sent it.

        Raises:
            InvalidInputError: it is not the visitor's; the message is always the same.
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
            return True  # an upload that is deleted, as its reader will say
        except (OSError, RuntimeError, ValueError):  # a loop of links, or a name that no file can have
            return False

    def _folder_of(self, identity: str) -> Path:
        """Return the folder of a visitor; its name tells nothing about the visitor."""
        return self.folder / hashlib.blake2b(identity.encode(), key=self._key, digest_size=16).hexdigest()

    def save_pictures(self, pictures: Sequence[NamedPicture]) -> list[str]:
        """Write pictures as PNG into a new folder and return their paths."""
        folder = self.new_folder()
        for name, image, record in pictures:
            (folder / name).write_bytes(encode_png(Picture(image), record))
        return [str(folder / name) for name, _, _ in pictures]

    def save_zip(self, name: str, pictures: Sequence[NamedPicture], rows: Sequence[dict[str, Any]]) -> str:
        """Write pictures and a manifest of `rows` as the zip file `name` into a new folder and return its path."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, image, record in pictures:
                archive.writestr(member, encode_png(Picture(image), record))
            archive.writestr("manifest.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        path = self.new_folder() / name
        path.write_bytes(buffer.getvalue())
        return str(path)

    def keep_present_files(self) -> None:
        """Leave the files that are here now out of every sweep: they are the page's own."""
        self._kept = {path for path in self.folder.rglob("*") if path.is_file()}

    def sweep(self, age: float = KEEP_SECONDS, most_bytes: int = KEEP_BYTES) -> int:
        """Delete files last written or used more than `age` seconds ago, and the oldest above `most_bytes` in all.

        Returns:
            How many were deleted.
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
            with suppress(OSError):  # it holds something, or did a moment ago
                if folder.stat().st_mtime <= oldest:
                    folder.rmdir()
        return deleted

    def _by_age(self) -> list[tuple[Path, float, int]]:
        """Return the visitors' files with the time of their last use and their size, the youngest first."""
        found = []
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if path not in self._kept and not path.is_dir():
                    found.append((path, status.st_mtime, status.st_size))
        return sorted(found, key=lambda entry: -entry[1])
