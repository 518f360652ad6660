"""The server's one folder of temporary files: made for the process, swept of old files, removed at the end."""

from __future__ import annotations

import io
import json
import os
import shutil
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

from superres.batch import encode_png

Pixels = npt.NDArray[np.uint8]
Picture = tuple[str, Pixels, dict[str, Any]]
"""A file's name, its picture, and what its metadata tells."""

KEEP_SECONDS = 600
"""How long an upload or a result stays on the server after its last use."""


class Workspace:
    """The folder; entered before the page is built, since Gradio then takes it for its own files, too.

    Attributes:
        folder: where it is.
    """

    def __init__(self) -> None:
        """Make the folder, which only the server's user can read."""
        self.folder = Path(tempfile.mkdtemp(prefix="superres-web-")).resolve()
        self._kept: set[Path] = set()
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

    def new_folder(self) -> Path:
        """Return a new folder with a name that cannot be guessed."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def save_pictures(self, pictures: Sequence[Picture]) -> list[str]:
        """Write pictures as PNG into a new folder and return their paths."""
        folder = self.new_folder()
        for name, image, record in pictures:
            (folder / name).write_bytes(encode_png(image, record))
        return [str(folder / name) for name, _, _ in pictures]

    def save_zip(self, name: str, pictures: Sequence[Picture], rows: Sequence[dict[str, Any]]) -> str:
        """Write pictures and a manifest of `rows` as the zip file `name` into a new folder and return its path."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, image, record in pictures:
                archive.writestr(member, encode_png(image, record))
            archive.writestr("manifest.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        path = self.new_folder() / name
        path.write_bytes(buffer.getvalue())
        return str(path)

    def keep_present_files(self) -> None:
        """Leave the files that are here now out of every sweep: they are the page's own."""
        self._kept = {path for path in self.folder.rglob("*") if path.is_file()}

    def sweep(self, age: float = KEEP_SECONDS) -> int:
        """Delete files that were last written or used more than `age` seconds ago, and return how many."""
        oldest = time.time() - age
        deleted = 0
        for path in sorted(self.folder.rglob("*"), reverse=True):  # the files of a folder before the folder
            with suppress(OSError):  # another request may have deleted it; a folder may have been filled
                if path.lstat().st_mtime > oldest or path in self._kept:
                    continue
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                else:
                    path.unlink()
                    deleted += 1
        return deleted
