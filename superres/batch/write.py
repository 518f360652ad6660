"""Where the outputs and the rows of a run are kept: a folder of single files, or parts in a store or in shards.

A killed run leaves nothing that a later one takes for something else. In a folder a part is committed in three steps:
its outputs are written and flushed under temporary names, its rows are appended to the manifest, the outputs get their
names. So there is no output without a row, and a row without its output is detected. Elsewhere a part's manifest is
written last.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import re
import shutil
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from superres.batch.inputs import Input, digest_of
from superres.batch.known import Known
from superres.batch.locks import HIDDEN, locked, remove_link
from superres.batch.options import LAYOUTS, BatchOptions
from superres.batch.parts import Part, Plan
from superres.batch.record import Output, RunSettings
from superres.batch.rows import Journal, Row, read_rows
from superres.batch.shards import PACKERS
from superres.errors import OutputError
from superres.system.output import prepare_folder, scratch_folder
from superres.system.places import fetched, files_in, is_url, join, move_to, remove, write_place

FATAL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE}
"""Error numbers that stop the run, since the next output would fail too."""
WRITERS = 8  # threads that write pictures to a store
WAITING = 64  # pictures that wait for these threads
FLUSHERS = 8  # threads that flush the files of a part: the disk takes little longer for several than for one


class PartWriter(Protocol):
    """Writes the outputs of a part, which it gets in the order of the inputs."""

    def add(self, output: Output) -> None:
        """Add an output, or only its row."""

    def finish(self) -> list[Row]:
        """Write everything, the manifest included, and return the rows."""

    def give_up(self) -> list[Row]:
        """Write what can stand for itself, remove the rest, and return the rows of what was written."""


class Store(Protocol):
    """The place of a run. A context manager."""

    def __enter__(self) -> Store:
        """Open the place.

        Raises OutputError if it cannot be written, another run is writing there, or outputs were made with other
        settings; InvalidInputError if a manifest is damaged; PlaceError.
        """

    def __exit__(self, *_: object) -> None:
        """Close it."""

    known: Known

    def standing(self, entry: Input, output: str) -> Output | None:
        """Return what an output is whose file exists and must not be replaced; None if it is to be made."""

    def number(self, part: Part) -> Part:
        """Return the part with the number by which it is written."""

    def writer(self, part: Part) -> PartWriter:
        """Begin to write a part."""

    def finish(self) -> None:
        """Complete the place after the last part."""


def store_of(plan: Plan, settings: RunSettings) -> Store:
    """Return the place of a run."""
    return PartStore(plan, settings) if plan.options.in_parts else FolderStore(plan, settings)


def file_digest(place: str) -> str:
    """Return the SHA-256 of the file at a place."""
    digest = hashlib.sha256()
    with fetched(place) as path, open(path, "rb") as file:
        while content := file.read(1 << 20):
            digest.update(content)
    return digest.hexdigest()


class FolderStore:
    """Single files in a folder of this machine, and one manifest, with a row per output in the order of the inputs."""

    def __init__(self, plan: Plan, settings: RunSettings) -> None:
        self.plan, self.settings, self.options = plan, settings, settings.options
        self.output, self.known = Path(self.options.output), Known(settings)
        self.hidden = str(self.output / HIDDEN / "{}-of-{}".format(*self.options.shard))
        self.count = itertools.count()

    def __enter__(self) -> FolderStore:
        prepare_folder(self.output)
        with ExitStack() as stack:
            stack.enter_context(locked(self.output, self.options.shard))
            self.journal = Journal(self.options.manifest_path)
            stack.callback(self.journal.close)
            self._read()
            self._empty_hidden()
            stack.callback(shutil.rmtree, self.hidden, ignore_errors=True)
            self.flushers = stack.enter_context(ThreadPoolExecutor(FLUSHERS, "superres-flushing"))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _read(self) -> None:
        is_kept = self.options.on_existing in ("skip", "redo")
        self.known.read(self.journal.rows(), self._holds if is_kept else lambda row: False, keeps_failures=False)
        self.known.freeze()
        if self.options.on_existing == "skip":
            self.known.refuse_others(self.plan)

    def _empty_hidden(self) -> None:
        try:
            remove_link(self.hidden)  # `rmtree` leaves a link, and `makedirs` accepts it
            shutil.rmtree(self.hidden, ignore_errors=True)
            os.makedirs(self.hidden, exist_ok=True)
        except OSError as error:
            raise OutputError(f"cannot write to the folder {self.output}: {error.strerror}; choose another with "
                              "--output") from error

    def _holds(self, row: Row) -> bool:
        try:
            is_there = os.stat(row.output).st_size == row.size
            return is_there and (not self.options.verify or file_digest(row.output) == row.sha256)
        except OSError:
            return False

    def standing(self, entry: Input, output: str) -> Output | None:
        """See `Store`: --on-existing says whether; what a manifest has is not taken for a user's own file."""
        is_ours = self.options.on_existing == "skip" and self.known.was_made(output)
        return None if is_ours else self.settings.standing(entry, output)

    def number(self, part: Part) -> Part:
        """See `Store`: the files have no numbers."""
        return part

    def writer(self, part: Part) -> FolderWriter:
        return FolderWriter(self)

    def finish(self) -> None:
        """See `Store`: sort the manifest."""
        self.journal.sort(self.plan.positions)


class FolderWriter:
    """See `FolderStore`."""

    def __init__(self, store: FolderStore) -> None:
        self.store, self.staged = store, list[tuple[Row, FileIO | None]]()
        self.reported = list[Row]()
        self.changed = set[str]()

    def add(self, output: Output) -> None:
        row, store = output.row, self.store
        if output.data is None:
            if store.known.was_made(row.output) and os.path.lexists(row.output):
                self.reported.append(row)  # the output exists, and its row in the manifest stays valid
            else:
                self.staged.append((row, None))
            return
        try:
            self.staged.append((replace(row, size=len(output.data)), self._written(row.output, output.data)))
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
        """Return the failed row of an output that cannot be written; raise if the next one could not be either."""
        store = self.store
        if error.errno in FATAL_ERRORS or not os.access(store.output, os.W_OK) or not os.path.isdir(store.hidden):
            raise OutputError(f"cannot write to the folder {store.output}: {error.strerror}") from error
        return Row(row.input, row.output, "failed", f"cannot write {row.output}: {error.strerror}", version=row.version,
                   checkpoint=row.checkpoint, config=row.config, seed=row.seed, options=row.options, crop=row.crop)

    def finish(self) -> list[Row]:
        staged, self.staged = self.staged, []
        try:
            flushed = [self.store.flushers.submit(os.fsync, file.fileno()) for _, file in staged if file is not None]
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
                raise OutputError(f"cannot write to the folder {self.store.output}: {error.strerror}") from error
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
        """Remove an older output of the same size: after a kill it must not be taken for the one of the new row."""
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


class PartStore:
    """Parts in a store or in shards: `part-000000.tar` (or .parquet; or the pictures one by one) and their manifests.

    The manifest `part-000000.jsonl` is written last: the part is done. If the outputs of all its inputs are lost, its
    number is free again.
    """

    def __init__(self, plan: Plan, settings: RunSettings) -> None:
        self.plan, self.settings, self.options = plan, settings, settings.options
        self.output, self.suffix = self.options.folder, LAYOUTS[self.options.layout]
        self.known, self.taken = Known(settings), set[int]()
        self.stack = ExitStack()

    def __enter__(self) -> PartStore:
        if not is_url(self.output):
            prepare_folder(Path(self.output))
            self.stack.enter_context(locked(Path(self.output), self.options.shard))
        try:
            self._read()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def place(self, number: int, suffix: str) -> str:
        """Return the place of a part's manifest or shard."""
        return place_of(self.options, number, suffix)

    def _read(self) -> None:
        """Read the manifests, and remove the parts that are to be made again."""
        listed = {found.name: found.size for found in files_in(self.output, "part-")}
        numbers = sorted(int(found[1]) for name in listed if (found := re.fullmatch(r"part-(\d{6,9})\.jsonl", name)))
        pictures = self._pictures() if numbers and not self.suffix else None
        mode, obsolete, (index, shards) = self.options.on_existing, list[int](), self.options.shard
        for number in numbers:
            place = self.place(number, ".jsonl")
            with fetched(place) as path, open(path, "rb") as file:
                rows = [row for _, row in read_rows(file, place)]
            made, holds = [row for row in rows if row.status == "ok"], _Holds(self, number, listed, pictures)
            # A shard is made again as a whole.
            is_lost = bool(self.suffix) and (self.plan.has_changed(rows) or not all(map(holds, made)))
            if mode == "overwrite" or is_lost or (mode == "redo" and any(map(self.settings.differences, made))):
                obsolete += [number] if number % shards == index else []
            elif self.known.read(rows, holds, keeps_failures=True):
                self.taken.add(number)
        self.known.freeze()
        self.known.refuse_others(self.plan)
        for number in obsolete:
            if self.suffix:
                remove(self.place(number, self.suffix))
            remove(self.place(number, ".jsonl"))

    def _pictures(self) -> np.ndarray[Any, Any]:
        """Return digests of the names and sizes of all files at the place."""
        return np.array(sorted(digest_of(f"{self.output}/{found.name}", str(found.size))
                               for found in files_in(self.output, recursive=True)), np.uint64)

    def standing(self, entry: Input, output: str) -> Output | None:
        """See `Store`: what no manifest has is made."""
        return None

    def number(self, part: Part) -> Part:
        """See `Store`: its own number, or a new one if that is taken by inputs that are done."""
        number, (index, shards) = part.number, self.options.shard
        if number in self.taken:
            number = max([self.plan.part_count - 1, *self.taken]) + 1
            number += (index - number) % shards  # no other machine takes it
        self.taken.add(number)
        return replace(part, number=number)

    def writer(self, part: Part) -> PartWriter:
        return part_writer(self.options, part)

    def finish(self) -> None:
        ...


class _Holds:
    """Whether the outputs of a part are there."""

    def __init__(
        self, store: PartStore, number: int, listed: dict[str, int], pictures: np.ndarray[Any, Any] | None,
    ) -> None:
        self.options, self.pictures = store.options, pictures
        self.shard = store.place(number, store.suffix)
        self.size, self.has_shard = listed.get(f"part-{number:06d}{store.suffix}"), dict[str | None, bool]()

    def __call__(self, row: Row) -> bool:
        """Return whether the output of a row is there."""
        if self.pictures is not None:
            digest = np.uint64(digest_of(row.output, str(row.size)))
            place = int(np.searchsorted(self.pictures, digest))
            is_there = place < len(self.pictures) and bool(self.pictures[place] == digest)
            return is_there and (not self.options.verify or file_digest(row.output) == row.sha256)
        if row.shard_sha256 not in self.has_shard:
            self.has_shard[row.shard_sha256] = self.size == row.size and (
                not self.options.verify or file_digest(self.shard) == row.shard_sha256)
        return self.has_shard[row.shard_sha256]


def place_of(options: BatchOptions, number: int, suffix: str) -> str:
    """Return the place of a part's manifest (.jsonl) or shard."""
    return join(options.folder, f"part-{number:06d}{suffix}")


def part_writer(options: BatchOptions, part: Part) -> ShardWriter | FilesWriter:
    """Begin to write a part of a `PartStore`, on any machine."""
    return FilesWriter(options, part) if options.layout == "files" else ShardWriter(options, part)


class ShardWriter:
    """Packs a part into a shard."""

    def __init__(self, options: BatchOptions, part: Part) -> None:
        self.folder, self.rows, self.stack = options.folder, list[Row](), ExitStack()
        self.place = place_of(options, part.number, LAYOUTS[options.layout])
        self.manifest = place_of(options, part.number, ".jsonl")
        beside = Path(self.folder) / HIDDEN
        is_here = not is_url(self.folder) and beside.is_dir()
        self.path = str(self.stack.enter_context(scratch_folder(beside if is_here else None)) / "shard")
        self.packer = PACKERS[options.layout](self.path)

    def add(self, output: Output) -> None:
        row = output.row
        if output.data is not None:
            name = self.packer.named(row.output.removeprefix(f"{self.folder}/"))
            row = replace(row, output=f"{self.place}/{name}")
            self.packer.add(row, name, output.data)
        self.rows.append(row)

    def finish(self) -> list[Row]:
        self.packer.finish()
        size, sha256 = os.stat(self.path).st_size, file_digest(self.path)
        rows = [replace(row, size=size, shard_sha256=sha256) if row.status == "ok" else row for row in self.rows]
        move_to(self.path, self.place)
        write_place(self.manifest, b"".join(row.line() for row in rows))
        self.stack.close()
        return rows

    def give_up(self) -> list[Row]:
        with suppress(Exception):
            self.packer.finish()
        self.stack.close()
        return []


class FilesWriter:
    """Writes the pictures of a part to a store, several at a time."""

    def __init__(self, options: BatchOptions, part: Part) -> None:
        self.manifest, self.rows = place_of(options, part.number, ".jsonl"), list[Row]()
        self.waiting = list[Future[None]]()
        self.pool = ThreadPoolExecutor(WRITERS, "superres-writing")

    def add(self, output: Output) -> None:
        row = output.row
        if output.data is not None:
            row = replace(row, size=len(output.data))
            if len(self.waiting) >= WAITING:
                self.waiting.pop(0).result()
            self.waiting.append(self.pool.submit(write_place, row.output, output.data))
        self.rows.append(row)

    def finish(self) -> list[Row]:
        for future in self.waiting:
            future.result()
        write_place(self.manifest, b"".join(row.line() for row in self.rows))
        self.pool.shutdown()
        return self.rows

    def give_up(self) -> list[Row]:
        self.pool.shutdown(cancel_futures=True)
        return []
