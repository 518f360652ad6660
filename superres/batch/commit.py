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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

HIDDEN = ".superres"  # name of the hidden folder inside the output folder; the last run to end removes it
GROUP = 64  # number of outputs and rows that are committed together
LOCK_ATTEMPTS = 5  # number of attempts to take a lock, 0.1 seconds apart
FATAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
"""Error numbers that stop the run, since the next output would fail too."""


@contextmanager
def locked(folder: Path, shard: tuple[int, int]) -> Iterator[None]:
    """Lock an existing output folder against other runs; the shards (I, N) of one run share the lock.

    The operating system holds the locks, so they end with the process, even if it is killed. Raises OutputError if
    another run holds the lock, the folder cannot be written, or its hidden folder is a link.
    """
    hidden, (index, count), files = folder / HIDDEN, shard, list["BinaryIO"]()
    try:
        try:
            files.append(_lock(hidden, "lock", shared=count > 1))
            if count > 1:
                files.append(_lock(hidden, f"lock-{index}-of-{count}", shared=False))
        except BlockingIOError as error:
            raise OutputError(f"another run writes into {folder}; wait until it ends, choose another --output, or give "
                              "each run its own --shard I/N") from error
        except OSError as error:
            raise OutputError(f"cannot lock the folder {folder}: {error.strerror}; choose another with --output"
                              ) from error
        yield
    finally:
        if files:
            with suppress(OSError):
                for file in files[1:]:
                    os.unlink(file.name)
                lock_file(files[0])  # fails while another shard is running
                shutil.rmtree(hidden, ignore_errors=True)
        for file in files:
            file.close()


def _lock(hidden: Path, name: str, shared: bool) -> BinaryIO:
    """Create the hidden folder and lock a file in it."""
    path, attempts = hidden / name, 0
    while True:
        if hidden.is_symlink():
            raise OutputError(f"{hidden} is a link, and a run would delete files in its target; remove the link, or "
                              "choose another --output")
        hidden.mkdir(exist_ok=True)
        _remove_link(path)
        file = open(path, "ab")  # noqa: SIM115 -- open as long as the lock is held
        try:
            lock_file(file, shared)
            # The last process to exit removes the folder, and a lock on a deleted file does not exclude other runs.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        except BlockingIOError:
            attempts += 1
            if attempts == LOCK_ATTEMPTS:
                file.close()
                raise
            time.sleep(0.1)  # a shard that ends briefly holds the lock exclusively
        file.close()


def _remove_link(path: str | Path) -> None:
    """Remove `path` if it is a symbolic link, so that no run writes through a link in the hidden folder."""
    if os.path.islink(path):
        os.unlink(path)


@dataclass
class Staging:
    """Commits outputs and rows in groups of `group`; `report` is called with each committed row.

    `output` is the output folder, which contains all outputs, and `shard` is (I, N) of the run.
    """

    output: Path
    manifest: Manifest
    shard: tuple[int, int]
    report: Callable[[Row], None]
    group: int = GROUP
    _staged: list[tuple[Output, FileIO | None]] = field(default_factory=list)
    _changed: set[str] = field(default_factory=set)
    _count: int = 0

    def __post_init__(self) -> None:
        """Create an empty temporary folder, or raise OutputError; files of a killed run are deleted."""
        self.folder = str(self.output / HIDDEN / f"{self.shard[0]}-of-{self.shard[1]}")
        try:
            _remove_link(self.folder)  # `rmtree` leaves a link, and `makedirs` accepts it
            shutil.rmtree(self.folder, ignore_errors=True)
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}; choose another with "
                              "--output") from error

    def add(self, output: Output) -> None:
        """Write an output under a temporary name, or add its row only without data; `commit` renames it."""
        try:
            file = None if output.data is None else self._written(output.row.output, output.data)
        except OSError as error:
            self._refuse(output, error)
            return
        self._staged.append((output, file))
        if len(self._staged) >= self.group:
            self.commit()

    def _written(self, path: str, data: bytes) -> FileIO:
        """Write the content of the file `path` under a temporary name."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self._count += 1
        file = FileIO(os.path.join(self.folder, str(self._count)), "w")
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file.fileno(), view) :]
        except OSError:
            _discard(file)
            raise
        return file

    def commit(self) -> None:
        """Flush all added outputs and rows, and rename the outputs; raise OutputError if no more can be written."""
        staged, self._staged = self._staged, []
        if not staged:
            return
        try:
            for _, file in staged:
                if file is not None:
                    os.fsync(file.fileno())
                    file.close()
            self.manifest.append([(output.number, output.row) for output, _ in staged])
        except BaseException as error:
            for _, file in staged:
                _discard(file)
            if isinstance(error, OSError):
                raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}") from error
            raise
        for output, file in staged:
            if file is None:
                self.report(output.row)
            else:
                self._rename(output, file)
        self._sync_folders()

    def _rename(self, output: Output, file: FileIO) -> None:
        try:
            os.replace(file.name, output.row.output)
        except OSError as error:
            _discard(file)
            self._refuse(output, error)
        else:
            self._changed.add(os.path.dirname(output.row.output))
            self.report(output.row)

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

    def _refuse(self, output: Output, error: OSError) -> None:
        """Add a failed row for an output that cannot be written; raise if the next one could not be written either."""
        if error.errno in FATAL_ERRORS or not os.access(self.output, os.W_OK) or not os.path.isdir(self.folder):
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}") from error
        row = output.row
        self.add(Output(output.number, Row(
            row.input, row.output, "failed", f"cannot write {row.output}: {error.strerror}", checkpoint=row.checkpoint,
            config=row.config, seed=row.seed, options=row.options, crop=row.crop)))

    def close(self) -> None:
        """Delete all outputs that are not committed."""
        for _, file in self._staged:
            _discard(file)
        self._staged = []
        shutil.rmtree(self.folder, ignore_errors=True)


def _discard(file: FileIO | None) -> None:
    if file is not None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(file.name)
