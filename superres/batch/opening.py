"""Open the inputs of a batch one after another: files, members of archives, and pictures in stores."""

from __future__ import annotations

import io
import itertools
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from superres.batch.archives import DAMAGED, MAX_MEMBER_BYTES, Content, list_members, read_members, reason_of
from superres.batch.inputs import Input, damage_of, display_path, input_of, member_input
from superres.batch.parts import Part, archive_prefix
from superres.batch.reading import Opened
from superres.batch.record import RunSettings
from superres.errors import InvalidInputError, SuperresError
from superres.system.folders import MEMBER, Inventory, Tally
from superres.system.places import fetched, is_url, read_place

READERS = 8  # threads that read from stores
READ_AHEAD = 32  # pictures that are requested from a store before they are needed


def open_inputs(entries: Iterable[Input]) -> Iterator[tuple[Input, Content | SuperresError]]:
    """Yield the content of inputs in their order, or the error why one cannot be read.

    Archives are read as streams, and pictures of stores by several threads ahead of their turn.
    """
    for (archive, at_url), group in itertools.groupby(entries, key=lambda entry: (entry.archive, is_url(entry.input))):
        if archive is not None:
            yield from _open_archive(archive, group)
        elif at_url:
            yield from _open_urls(group)
        else:
            for entry in group:
                yield entry, entry.input if entry.error is None else InvalidInputError(entry.error)


def _open_urls(entries: Iterator[Input]) -> Iterator[tuple[Input, Content | SuperresError]]:
    pool, waiting = ThreadPoolExecutor(READERS, "superres-reading"), deque[tuple[Input, Future[Any]]]()
    try:
        for entry in entries:
            waiting.append((entry, pool.submit(_read_url, entry)))
            if len(waiting) == READ_AHEAD:
                first, content = waiting.popleft()
                yield first, content.result()
        while waiting:
            first, content = waiting.popleft()
            yield first, content.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _read_url(entry: Input) -> Content | SuperresError:
    if entry.error is not None:
        return InvalidInputError(entry.error)
    try:
        content = read_place(entry.input, MAX_MEMBER_BYTES)
    except SuperresError as error:
        return error
    return io.BytesIO(content) if content else InvalidInputError(f"{entry.input} is empty (0 bytes); provide an image "
                                                                 "file")


def _open_archive(archive: str, entries: Iterator[Input]) -> Iterator[tuple[Input, Content | SuperresError]]:
    try:
        with fetched(archive) as path:
            yield from open_members(archive, path, entries)
    except SuperresError as error:
        yield from ((entry, error) for entry in entries)


def open_members(
    archive: str, path: str, entries: Iterator[Input], most_bytes: int = MAX_MEMBER_BYTES,
) -> Iterator[tuple[Input, Content | SuperresError]]:
    """Yield the content of members of the archive, whose copy is the file `path`, in the order of their numbers.

    A member of over `most_bytes` has an error instead.
    """
    asked, problem = deque[Input](), "it ends early"

    def numbers() -> Iterator[int]:
        for entry in entries:
            asked.append(entry)
            yield entry.member

    try:
        for content in read_members(path, archive, numbers(), most_bytes):
            yield asked.popleft(), content
    except DAMAGED as error:
        problem = reason_of(error)
    for left in itertools.chain(asked, entries):
        yield left, InvalidInputError(
            f"{display_path(left.input, archive)} cannot be unpacked ({problem}); pack {archive} again")


def read_archive(
    archive: str, prefix: str, inventory: Inventory,
) -> Iterator[tuple[Input, Content | SuperresError]]:
    """Yield the members of an archive and their content, and print what the archive has that is no input.

    The outputs' names are those of the members with their folders, below `prefix`. A damaged archive yields an input
    with an error after those that could be read. Raises PlaceError.
    """
    def entry_of(number: int, name: str) -> Input:
        if archive.lower().endswith(".npz"):
            return member_input(archive, os.path.basename(archive), name, number, False)
        return input_of(f"{archive}/{name}", f"{prefix}{name}", True, archive, number)

    entries, tally, damage = list[Input](), Tally(archive, MEMBER), None
    with fetched(archive) as path:
        try:
            entries.extend(entry_of(number, name) for number, name in list_members(path, archive, tally))
        except DAMAGED as error:
            damage = damage_of(archive, error)
        else:
            inventory.add(tally)
        yield from open_inputs(entry for entry in entries if entry.error is not None)
        yield from open_members(archive, path, (entry for entry in entries if entry.error is None))
    if damage is not None:
        yield Input(archive, "", error=damage), InvalidInputError(damage)


def open_parts(
    parts: Iterable[Part], settings: RunSettings, inventory: Inventory,
) -> Iterator[tuple[Part, Opened | None]]:
    """Open the inputs of parts in their order; each part comes first alone.

    Neighbouring members of an archive are read in one pass, whatever parts they are in. An input whose output has the
    name of an earlier one's in the part fails. `inventory` prints what an archive has that is no input.
    """
    current, names, turn = None, dict[str, str](), 0
    for part, found in _contents(parts, settings, inventory):
        if part is not current:
            yield part, None
            current, names, turn = part, {}, part.turn
        if found is None:
            continue
        entry, content = found
        if entry.error is not None:
            content = InvalidInputError(entry.error)
        elif (owner := names.setdefault(entry.name, entry.input)) != entry.input:
            content = InvalidInputError(f"{entry.input} would be written to the same output as {owner}; rename it")
        all_samples = range(1, 1 + (1 if entry.error is not None else settings.options.per_input))
        samples = list(all_samples if part.archive is not None else part.samples[turn - part.turn])
        yield part, (turn, entry, samples, content)
        turn += 1


def _contents(
    parts: Iterable[Part], settings: RunSettings, inventory: Inventory,
) -> Iterator[tuple[Part, tuple[Input, Content | SuperresError] | None]]:
    pending = deque[Part]()

    def entries(parts: Iterable[Part]) -> Iterator[Input]:
        for part in parts:
            for entry in part.entries:
                pending.append(part)
                yield entry

    for is_archive, group in itertools.groupby(parts, key=lambda part: part.archive is not None):
        if not is_archive:
            for found in open_inputs(entries(group)):
                yield pending.popleft(), found
            continue
        for part in group:
            yield part, None
            archive = part.entries[0]
            prefix = archive_prefix(archive.input) if settings.options.layout == "files" else ""
            for entry, content in read_archive(archive.input, prefix, inventory):
                yield part, (replace(entry, version=archive.version), content)
