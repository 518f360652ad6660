"""Where a batch keeps what is not finished: a hidden folder with its lock, and files on their way to their names.

An output is written and brought to disc under a name in the hidden folder; then its row goes into the manifest, to
disc, too; then it takes its own name. So a kill leaves no half output, no output that no row tells of, and at worst a
row whose output is missing, which the next run sees.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from superres.batch.manifest import Manifest, Row
from superres.errors import OutputError
from superres.system.output import lock_file

if TYPE_CHECKING:
    from typing import BinaryIO

HIDDEN = ".superres"
"""Name of the hidden folder inside the output folder; it goes when no run is under way."""
BATCH = 64
"""Outputs that are brought to disc together."""
TRIES = 5
"""How often a lock is tried, a tenth of a second apart."""
HOPELESS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
"""Errors after which the next output could not be written either."""


class Lock:
    """Keeps other runs out of an output folder; shards of one run may share it.

    The locks are the system's own, so that they end with the process, however it ends.
    """

    def __init__(self, folder: Path, shard: tuple[int, int]) -> None:
        """Take the lock.

        Args:
            folder: the output folder, which exists.
            shard: (I, N) of the run.

        Raises:
            OutputError: another run has it, the folder cannot be written, or its hidden folder is a link.
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
            raise OutputError(f"another run writes into {folder}; wait for its end, choose another --output, or give "
                              "each run its own --shard I/N") from error
        except OSError as error:
            self.release()
            raise OutputError(f"cannot lock the folder {folder}: {error.strerror}; choose another with --output"
                              ) from error

    def _take(self, name: str, shared: bool) -> None:
        path = self.folder / name
        tries = 0
        while True:
            if self.folder.is_symlink():
                raise OutputError(f"{self.folder} is a link, and a run would delete files where it points; remove the "
                                  "link, or choose another --output")
            self.folder.mkdir(exist_ok=True)
            _remove_link(path)
            file = open(path, "ab")  # noqa: SIM115 -- open as long as the lock is held
            try:
                lock_file(file, shared)
                # Whoever ends removes the folder: a lock on a file that is gone keeps nobody out.
                if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                    self.files.append(file)
                    return
            except FileNotFoundError:
                pass
            except BlockingIOError:
                tries += 1
                if tries == TRIES:
                    file.close()
                    raise
                time.sleep(0.1)  # a shard that ends holds the lock alone for a moment
            file.close()

    def release(self) -> None:
        """Give the lock back; the last one removes the hidden folder."""
        if self.files:
            with suppress(OSError):
                for file in self.files[1:]:
                    os.unlink(file.name)
                lock_file(self.files[0])  # fails while another shard is at work
                shutil.rmtree(self.folder, ignore_errors=True)
        for file in self.files:
            file.close()
        self.files = []


def _remove_link(path: str | Path) -> None:
    """Remove `path` if it is a symbolic link: nothing is written to where a link in the hidden folder points."""
    if os.path.islink(path):
        os.unlink(path)


@dataclass
class _Staged:
    number: int
    row: Row
    temporary: str
    target: str
    file: int


@dataclass
class Staging:
    """Brings outputs and rows to disc, many at a time.

    Attributes:
        output: the output folder; all outputs are below it.
        manifest: where the rows go.
        shard: (I, N) of the run.
        report: called with each row that holds.
    """

    output: Path
    manifest: Manifest
    shard: tuple[int, int]
    report: Callable[[Row], None]
    _staged: list[_Staged] = field(default_factory=list)
    _rows: list[tuple[int, Row]] = field(default_factory=list)
    _made: set[str] = field(default_factory=set)
    _changed: set[str] = field(default_factory=set)
    _count: int = 0

    def __post_init__(self) -> None:
        """Begin with an empty folder: what a killed run left there is of no use.

        Raises:
            OutputError: it cannot be made.
        """
        self.folder = str(self.output / HIDDEN / f"{self.shard[0]}-of-{self.shard[1]}")
        try:
            _remove_link(self.folder)  # `rmtree` leaves a link, and `makedirs` accepts it
            shutil.rmtree(self.folder, ignore_errors=True)
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}; choose another with "
                              "--output") from error

    def add(self, number: int, row: Row, data: bytes) -> None:
        """Write an output, which takes its name with the next `commit`.

        Raises:
            OutputError: no output can be written any more.
        """
        temporary = os.path.join(self.folder, str(self._count))
        self._count += 1
        try:
            parent = os.path.dirname(row.output)
            if parent not in self._made:
                os.makedirs(parent, exist_ok=True)
                self._made.add(parent)
            file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except OSError as error:
            self._refuse(number, row, error)
            return
        self._staged.append(_Staged(number, row, temporary, row.output, file))
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        except OSError as error:
            self._discard(self._staged.pop())
            self._refuse(number, row, error)
            return
        self._commit_when_full()

    def add_row(self, number: int, row: Row) -> None:
        """Add a row that comes without an output.

        Raises:
            OutputError: no output can be written any more.
        """
        self._rows.append((number, row))
        self._commit_when_full()

    def _commit_when_full(self) -> None:
        if len(self._staged) + len(self._rows) >= BATCH:
            self.commit()

    def commit(self) -> None:
        """Bring all that was added to disc, and give the outputs their names.

        Raises:
            OutputError: no output can be written any more; those of this batch will be made again.
        """
        staged, rows = self._staged, self._rows
        self._staged, self._rows = [], []
        if not staged and not rows:
            return
        try:
            for one in staged:
                self._sync(one)
            self.manifest.append([*rows, *((one.number, one.row) for one in staged)])
        except BaseException as error:
            for one in staged:
                self._discard(one)
            if isinstance(error, OSError):
                raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}") from error
            raise
        for _, row in rows:
            self.report(row)
        for one in staged:
            self._rename(one)
        self._sync_folders()

    def _sync(self, one: _Staged) -> None:
        os.fsync(one.file)
        os.close(one.file)
        one.file = -1

    def _rename(self, one: _Staged) -> None:
        try:
            os.replace(one.temporary, one.target)
        except OSError as error:
            self._discard(one)
            self._refuse(one.number, one.row, error)
        else:
            self._changed.add(os.path.dirname(one.target))
            self.report(one.row)

    def _sync_folders(self) -> None:
        """Bring the new names to disc, where the system lets folders be opened."""
        for folder in self._changed:
            with suppress(OSError):
                opened = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)
        self._changed.clear()

    def _discard(self, one: _Staged) -> None:
        with suppress(OSError):
            if one.file >= 0:
                os.close(one.file)
        with suppress(OSError):
            os.unlink(one.temporary)

    def _refuse(self, number: int, row: Row, error: OSError) -> None:
        """Note that an output cannot be written, or give up where the next could not be either."""
        if error.errno in HOPELESS or not os.access(self.output, os.W_OK) or not os.path.isdir(self.folder):
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}") from error
        message = f"cannot write {row.output}: {error.strerror}"
        self.add_row(number, Row(row.input, row.output, "failed", message, checkpoint=row.checkpoint,
                                 config=row.config, seed=row.seed, options=row.options))

    def close(self) -> None:
        """Drop what was not committed."""
        for one in self._staged:
            self._discard(one)
        self._staged = []
        shutil.rmtree(self.folder, ignore_errors=True)
