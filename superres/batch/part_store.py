"""Parts in a store or in shards, each with its own manifest, which is written last."""

from __future__ import annotations

import itertools
import os
import re
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from superres.batch.digests import Digests
from superres.batch.locks import HIDDEN
from superres.batch.parts import Part, Plan
from superres.batch.record import Output, RunSettings
from superres.batch.rows import Row, read_rows
from superres.batch.run_options import LAYOUTS, BatchOptions
from superres.batch.shards import PACKERS
from superres.batch.write import PartWriter, Store, file_digest
from superres.system.output import scratch_folder
from superres.system.paths import Place
from superres.system.places import known_place

WRITERS = 8  # threads that write pictures to a store
WAITING = 64  # pictures that wait for these threads


class PartStore(Store):
    """Parts in a store or in shards: `part-000000.tar` (or .parquet; or the pictures one by one)
    and their manifests.

    The manifest `part-000000.jsonl` is written last: the part is done. If the outputs of all its
    inputs are lost, its number is free again.
    """

    def __init__(self, plan: Plan, settings: RunSettings) -> None:
        super().__init__(plan, settings)
        self.suffix, self.taken = LAYOUTS[self.options.layout], set[int]()

    def place(self, number: int, suffix: str) -> Place:
        """Return the place of a part's manifest or shard."""
        return place_of(self.options, number, suffix)

    def open(self, stack: ExitStack) -> None:
        """See `Store`: read the manifests, and remove the parts that are to be made again."""
        # The parts that are there, by their manifests.
        listed = {found.name: found.size for found in self.options.place.files("part-")}
        numbers = sorted(int(found[1]) for name in listed
                         if (found := re.fullmatch(r"part-(\d{6,9})\.jsonl", name)))
        pictures = self._pictures() if numbers and not self.suffix else None
        mode, obsolete, (index, shards) = self.options.on_existing, list[int](), self.options.shard
        for number in numbers:
            place = self.place(number, ".jsonl")
            with place.fetched() as path, open(path, "rb") as file:
                rows = [row for _, row in read_rows(file, place.text)]
            made, holds = [row for row in rows if row.status == "ok"], _Holds(self, number, listed,
                                                                              pictures)
            # A shard is made again as a whole.
            is_lost = bool(self.suffix) and (self.plan.has_changed(rows)
                                             or not all(map(holds, made)))
            if mode == "overwrite" or is_lost or (mode == "redo"
                                                  and any(map(self.settings.differences, made))):
                obsolete += [number] if number % shards == index else []
            elif self.known.read(rows, holds, keeps_failures=True):
                self.taken.add(number)
        self.known.refuse_others(self.plan)
        # A shard goes before its manifest: a part without a shard is found to be lost.
        for number in obsolete:
            if self.suffix:
                self.place(number, self.suffix).remove()
            self.place(number, ".jsonl").remove()

    def _pictures(self) -> Digests:
        """Return the names and sizes of all files at the place."""
        pictures = Digests()
        for found in self.options.place.files(recursive=True):
            pictures.add(f"{self.options.folder}/{found.name}", str(found.size))
        return pictures

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


class _Holds:
    """Whether the outputs of a part are there."""

    def __init__(
        self, store: PartStore, number: int, listed: dict[str, int],
        pictures: Digests | None,
    ) -> None:
        self.options, self.pictures = store.options, pictures
        self.shard = store.place(number, store.suffix)
        self.size, self.has_shard = listed.get(f"part-{number:06d}{store.suffix}"), dict[str | None,
                                                                                         bool]()

    def __call__(self, row: Row) -> bool:
        """Return whether the output of a row is there."""
        if self.pictures is not None:
            is_there = self.pictures.has(row.output, str(row.size))
            return is_there and (not self.options.verify
                                 or file_digest(known_place(row.output)) == row.sha256)
        if row.shard_sha256 not in self.has_shard:
            self.has_shard[row.shard_sha256] = self.size == row.size and (
                not self.options.verify or file_digest(self.shard) == row.shard_sha256)
        return self.has_shard[row.shard_sha256]


def place_of(options: BatchOptions, number: int, suffix: str) -> Place:
    """Return the place of a part's manifest (.jsonl) or shard."""
    return known_place(f"{options.folder}/part-{number:06d}{suffix}")


def part_writer(options: BatchOptions, part: Part) -> ShardWriter | FilesWriter:
    """Begin to write a part of a `PartStore`, on any machine."""
    return FilesWriter(options, part) if options.layout == "files" else ShardWriter(options, part)


class ShardWriter:
    """Packs a part into a shard, in which the members of several archives may have the same name:
    keys are unique."""

    def __init__(self, options: BatchOptions, part: Part) -> None:
        self.folder, self.rows, self.stack = options.folder, list[Row](), ExitStack()
        self.place = place_of(options, part.number, LAYOUTS[options.layout])
        self.manifest = place_of(options, part.number, ".jsonl")
        beside = Path(self.folder) / HIDDEN
        folder = scratch_folder(beside if beside.is_dir() else None)
        self.path = str(self.stack.enter_context(folder) / "shard")
        self.packer, self.keys = PACKERS[options.layout](self.path), set[str]()

    def add(self, output: Output) -> None:
        row = output.row
        if row.output:
            name = self._named(row.output.removeprefix(f"{self.folder}/"))
            row = replace(row, output=f"{self.place.text}/{name}")
            if output.data is not None:
                self.packer.add(row, name, output.data)
        self.rows.append(row)

    def _named(self, name: str) -> str:
        """Return the name of a picture in the shard."""
        stem, suffix = os.path.splitext(name)
        first = self.packer.key(stem)
        key = next(one for one in itertools.chain([first],
                                                  (f"{first}-{again}"
                                                   for again in itertools.count(2)))
                   if one not in self.keys)
        self.keys.add(key)
        return f"{key}{suffix}"

    def finish(self) -> list[Row]:
        self.packer.finish()
        size, sha256 = os.stat(self.path).st_size, file_digest(known_place(self.path))
        rows = [replace(row, size=size, shard_sha256=sha256) if row.status == "ok" else row
                for row in self.rows]
        self.place.take(self.path)
        self.manifest.write(b"".join(row.line() for row in rows))
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
            self.waiting.append(self.pool.submit(known_place(row.output).write, output.data))
        self.rows.append(row)

    def finish(self) -> list[Row]:
        for future in self.waiting:
            future.result()
        self.manifest.write(b"".join(row.line() for row in self.rows))
        self.pool.shutdown()
        return self.rows

    def give_up(self) -> list[Row]:
        self.pool.shutdown(cancel_futures=True)
        return []
