"""Single files in a folder of this machine, with one manifest.

A part is committed in three steps: its outputs are written and flushed under temporary names, its
rows are appended to the manifest, the outputs get their names. So there is no output without a row,
and a row without its output is detected.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path

from superres.batch.inputs import Input
from superres.batch.locks import HIDDEN, remove_link
from superres.batch.parts import Part, Plan
from superres.batch.record import Output, RunSettings
from superres.batch.rows import Journal, Row
from superres.batch.write import Store, file_digest
from superres.errors import OutputError
from superres.system.paths import Place

FATAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
"""Error numbers that stop the run, since the next output would fail too."""
# threads that flush the files of a part: the disk takes little longer for several than for one
FLUSHERS = 8


class FolderStore(Store):
    """Single files in a folder of this machine, and one manifest, with a row per output in the
    order of the inputs."""

    def __init__(self, plan: Plan, settings: RunSettings) -> None:
        super().__init__(plan, settings)
        self.output, self.count = Path(self.options.output), itertools.count()
        self.hidden = str(self.output / HIDDEN / "{}-of-{}".format(*self.options.shard))

    def open(self, stack: ExitStack) -> None:
        self.journal = Journal(self.options.manifest_path)
        stack.callback(self.journal.close)
        self._read()
        self._empty_hidden()
        stack.callback(shutil.rmtree, self.hidden, ignore_errors=True)
        self.flushers = stack.enter_context(ThreadPoolExecutor(FLUSHERS, "superres-flushing"))

    def _read(self) -> None:
        is_kept = self.options.on_existing in ("skip", "redo")
        self.known.read(self.journal.rows(), self._holds if is_kept else lambda row: False,
                        keeps_failures=False)
        if self.options.on_existing == "skip":
            self.known.refuse_others(self.plan)

    def _empty_hidden(self) -> None:
        try:
            remove_link(self.hidden)  # `rmtree` leaves a link, and `makedirs` accepts it
            shutil.rmtree(self.hidden, ignore_errors=True)
            os.makedirs(self.hidden, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}; choose "
                              "another with --output") from error

    def _holds(self, row: Row) -> bool:
        try:
            is_there = os.stat(row.output).st_size == row.size
            return is_there and (not self.options.verify
                                 or file_digest(Place(row.output)) == row.sha256)
        except OSError:
            return False

    def standing(self, entry: Input, output: str) -> Output | None:
        """See `Store`: --on-existing says whether; what a manifest has is not taken for a user's
        own file."""
        is_ours = self.options.on_existing == "skip" and self.known.was_made(output)
        return None if is_ours else self.settings.standing(entry, output)

    def writer(self, part: Part) -> FolderWriter:
        return FolderWriter(self)

    def finish(self) -> None:
        """See `Store`: sort the manifest."""
        self.journal.sort(self.plan.positions)


class FolderWriter:
    """Writes the outputs of a part under temporary names, until the part is complete."""

    def __init__(self, store: FolderStore) -> None:
        self.store, self.staged = store, list[tuple[Row, FileIO | None]]()
        self.reported = list[Row]()
        self.changed = set[str]()

    def add(self, output: Output) -> None:
        row, store = output.row, self.store
        if output.data is None:
            if store.known.was_made(row.output) and os.path.lexists(row.output):
                # the output exists, and its row in the manifest stays valid
                self.reported.append(row)
            else:
                self.staged.append((row, None))
            return
        try:
            self.staged.append((replace(row, size=len(output.data)),
                                self._written(row.output, output.data)))
        except OSError as error:
            self.staged.append((self._refused(row, error), None))

    def _written(self, path: str, data: bytes) -> FileIO:
        """Write the content of the file `path` under a temporary name."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = FileIO(os.path.join(self.store.hidden, str(next(self.store.count))), "w")
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file.fileno(), view) :]
        except OSError:
            _discard(file)
            raise
        return file

    def _refused(self, row: Row, error: OSError) -> Row:
        """Return the failed row of an output that cannot be written; raise if the next one could
        not be either."""
        store = self.store
        if error.errno in FATAL_ERRORS or not os.access(store.output,
                                                        os.W_OK) or not os.path.isdir(store.hidden):
            raise OutputError(f"cannot write to the folder {store.output}: "
                              f"{error.strerror}") from error
        return Row(row.input, row.output, "failed", f"cannot write {row.output}: {error.strerror}",
                   version=row.version, checkpoint=row.checkpoint, config=row.config, seed=row.seed,
                   options=row.options, crop=row.crop)

    def finish(self) -> list[Row]:
        staged, self.staged = self.staged, []
        try:
            flushed = [self.store.flushers.submit(os.fsync, file.fileno()) for _,
                       file in staged if file is not None]
            wait(flushed)
            for one in flushed:
                one.result()
            for row, file in staged:
                if file is not None:
                    file.close()
                    self._make_room(row)
            self.store.journal.append(row for row, _ in staged)
        except BaseException as error:
            for _, file in staged:
                _discard(file)
            if isinstance(error, OSError):
                raise OutputError(f"cannot write to the folder {self.store.output}: "
                                  f"{error.strerror}") from error
            raise
        rows, refused = self.reported, list[Row]()
        for row, file in staged:
            failed = None if file is None else self._rename(row, file)
            rows.append(row if failed is None else failed)
            refused += [] if failed is None else [failed]
        if refused:
            self.store.journal.append(refused)
        self._sync_folders()
        return rows

    def _make_room(self, row: Row) -> None:
        """Remove an older output of the same size: after a kill it must not be taken for the one of
        the new row."""
        with suppress(OSError):
            if os.lstat(row.output).st_size == row.size:
                os.unlink(row.output)

    def _rename(self, row: Row, file: FileIO) -> Row | None:
        """Give an output its name; return its failed row if that does not succeed."""
        try:
            os.replace(file.name, row.output)
        except OSError as error:
            _discard(file)
            return self._refused(row, error)
        self.changed.add(os.path.dirname(row.output))
        return None

    def _sync_folders(self) -> None:
        """Flush the changed folders to disk, on systems that allow opening folders."""
        for folder in self.changed:
            with suppress(OSError):
                opened = os.open(folder, os.O_RDONLY)
                try:
                    os.fsync(opened)
                finally:
                    os.close(opened)

    def give_up(self) -> list[Row]:
        """See `PartWriter`: each output stands for itself."""
        return self.finish()


def _discard(file: FileIO | None) -> None:
    if file is not None:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(file.name)
