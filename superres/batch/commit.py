"""Commit outputs and manifest rows atomically, through a locked hidden folder inside the output folder.

Three steps commit an output: write and flush it under a temporary name in the hidden folder; append its row to the
manifest and flush that; rename the output to its own name. A killed run therefore leaves no partial output and no
output without a row. At worst it leaves a row without its output, which the next run detects.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from superres.batch.manifest import Manifest, Row
from superres.batch.record import Output
from superres.errors import OutputError
from superres.system.output import lock_file

if TYPE_CHECKING:
    from typing import BinaryIO

HIDDEN = ".superres"
"""Name of the hidden folder inside the output folder; the last run to end removes it."""
GROUP = 64
"""Number of outputs and rows that are committed together."""
LOCK_ATTEMPTS = 5
"""Number of attempts to take a lock, 0.1 seconds apart."""
FATAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
"""Error numbers that stop the run, since the next output would fail too."""


class Lock:
    """Locks an output folder against other runs; the shards of one run share the lock.

    The operating system holds the locks, so they end with the process, even if it is killed.
    """

    def __init__(self, folder: Path, shard: tuple[int, int]) -> None:
        """Take the lock.

        Args:
            folder: the output folder, which exists.
            shard: (I, N) of the run.

        Raises:
            OutputError: another run holds the lock, the folder cannot be written, or its hidden folder is a link.
        """
        self.folder = folder / HIDDEN
        index, count = shard
        self.files: list[BinaryIO] = []
        try:
            self._take("lock", shared=count > 1)
            if count > 1:
                self._take(f"lock-{index}-of-{count}", shared=False)
        except BlockingIOError as error:
            self.release()
            raise OutputError(f"another run writes into {folder}; wait until it ends, choose another --output, or give "
                              "each run its own --shard I/N") from error
        except OSError as error:
            self.release()
            raise OutputError(f"cannot lock the folder {folder}: {error.strerror}; choose another with --output"
                              ) from error

    def _take(self, name: str, shared: bool) -> None:
        path = self.folder / name
        attempts = 0
        while True:
            if self.folder.is_symlink():
                raise OutputError(f"{self.folder} is a link, and a run would delete files in its target; remove the "
                                  "link, or choose another --output")
            self.folder.mkdir(exist_ok=True)
            _remove_link(path)
            file = open(path, "ab")  # noqa: SIM115 -- open as long as the lock is held
            try:
                lock_file(file, shared)
                # The last process to exit removes the folder, and a lock on a deleted file does not exclude other runs.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    self.files.append(file)
                    return
            except FileNotFoundError:
                pass
            except BlockingIOError:
                attempts += 1
                if attempts == LOCK_ATTEMPTS:
                    file.close()
                    raise
                time.sleep(0.1)  # a shard that ends briefly holds the lock exclusively
            file.close()

    def release(self) -> None:
        """Release the lock; the last shard to do so removes the hidden folder."""
        if self.files:
            with suppress(OSError):
                for file in self.files[1:]:
                    os.unlink(file.name)
                lock_file(self.files[0])  # fails while another shard is running
                shutil.rmtree(self.folder, ignore_errors=True)
        for file in self.files:
            file.close()
        self.files = []


def _remove_link(path: str | Path) -> None:
    """Remove `path` if it is a symbolic link, so that no run writes through a link in the hidden folder."""
    if os.path.islink(path):
        os.unlink(path)


@dataclass
class Staging:
    """Commits outputs and rows in groups.

    Attributes:
        output: the output folder, which contains all outputs.
        manifest: manifest for the rows.
        shard: (I, N) of the run.
        report: called with each committed row.
        group: number of outputs and rows that are committed together.
    """

    output: Path
    manifest: Manifest
    shard: tuple[int, int]
    report: Callable[[Row], None]
    group: int = GROUP
    _staged: list[tuple[Output, FileIO]] = field(default_factory=list)
    _rows: list[Output] = field(default_factory=list)
    _created: set[str] = field(default_factory=set)
    _changed: set[str] = field(default_factory=set)
    _count: int = 0

    def __post_init__(self) -> None:
        """Create an empty temporary folder; files of a killed run are deleted.

        Raises:
            OutputError: the folder cannot be created.
        """
        self.folder = str(self.output / HIDDEN / f"{self.shard[0]}-of-{self.shard[1]}")
        try:
            _remove_link(self.folder)  # `rmtree` leaves a link, and `makedirs` accepts it
            shutil.rmtree(self.folder, ignore_errors=True)
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}; choose another with "
                              "--output") from error

    def add(self, output: Output) -> None:
        """Write an output under a temporary name, which the next `commit` changes; without data, add its row only.

        Raises:
            OutputError: no further output can be written.
        """
        if output.data is None:
            self._rows.append(output)
        else:
            try:
                self._write(output, output.data)
            except OSError as error:
                self._refuse(output.number, output.row, error)
                return
        if len(self._staged) + len(self._rows) >= self.group:
            self.commit()

    def _write(self, output: Output, data: bytes) -> None:
        parent = os.path.dirname(output.row.output)
        if parent not in self._created:
            os.makedirs(parent, exist_ok=True)
            self._created.add(parent)
        self._count += 1
        file = FileIO(os.path.join(self.folder, str(self._count)), "w")
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file.fileno(), view) :]
        except OSError:
            self._discard(file)
            raise
        self._staged.append((output, file))

    def commit(self) -> None:
        """Flush all added outputs and rows to disk and rename the outputs to their own names.

        Raises:
            OutputError: no further output can be written; the next run makes this group's outputs again.
        """
        staged, rows = self._staged, self._rows
        self._staged, self._rows = [], []
        if not staged and not rows:
            return
        try:
            for _, file in staged:
                os.fsync(file.fileno())
                file.close()
            self.manifest.append([(one.number, one.row) for one in (*rows, *(output for output, _ in staged))])
        except BaseException as error:
            for _, file in staged:
                self._discard(file)
            if isinstance(error, OSError):
                raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}") from error
            raise
        for one in rows:
            self.report(one.row)
        for output, file in staged:
            self._rename(output, file)
        self._sync_folders()

    def _rename(self, output: Output, file: FileIO) -> None:
        row = output.row
        try:
            os.replace(file.name, row.output)
        except OSError as error:
            self._discard(file)
            self._refuse(output.number, row, error)
        else:
            self._changed.add(os.path.dirname(row.output))
            self.report(row)

    def _sync_folders(self) -> None:
        """Flush the changed folders to disk, on systems that allow opening folders."""
        for folder in self._changed:
            with suppress(OSError):
                opened = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)
        self._changed.clear()

    def _discard(self, file: FileIO) -> None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(file.name)

    def _refuse(self, number: int, row: Row, error: OSError) -> None:
        """Add a failed row for an output that cannot be written; raise if the next one could not be written either."""
        if error.errno in FATAL_ERRORS or not os.access(self.output, os.W_OK) or not os.path.isdir(self.folder):
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}") from error
        message = f"cannot write {row.output}: {error.strerror}"
        self.add(Output(number, Row(row.input, row.output, "failed", message, checkpoint=row.checkpoint,
                                    config=row.config, seed=row.seed, options=row.options, crop=row.crop)))

    def close(self) -> None:
        """Delete all outputs that are not committed."""
        for _, file in self._staged:
            self._discard(file)
        self._staged = []
        shutil.rmtree(self.folder, ignore_errors=True)
