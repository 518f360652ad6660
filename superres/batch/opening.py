"""Open the inputs of a batch one after another: files, members of archives, and pictures in
stores."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from superres.batch.archives import DAMAGED, MAX_MEMBER_BYTES, Content, read_members, reason_of
from superres.batch.inputs import Input, display_path
from superres.batch.parts import Part
from superres.batch.reading import Opened
from superres.errors import InvalidInputError, SuperresError
from superres.system.places import known_place

READERS = 8  # threads that read from stores


def open_inputs(entries: Iterable[Input]) -> Iterator[tuple[Input, Content | SuperresError]]:
    """Yield the content of inputs in their order, or the error why one cannot be read.

    Archives are read as streams, and pictures of stores by several threads ahead of their turn.
    """
    for (archive, ahead), group in itertools.groupby(
        entries, key=lambda entry: (entry.archive, known_place(entry.input).ahead)
    ):
        if archive is not None:
            yield from _open_archive(archive, group)
        elif ahead:
            yield from _open_ahead(group, ahead)
        else:
            yield from ((entry, _content(entry)) for entry in group)


def _open_ahead(entries: Iterator[Input],
                ahead: int) -> Iterator[tuple[Input, Content | SuperresError]]:
    pool, waiting = (ThreadPoolExecutor(READERS, "superres-reading"),
                     deque[tuple[Input, Future[Any]]]())
    try:
        for entry in entries:
            waiting.append((entry, pool.submit(_content, entry)))
            if len(waiting) == ahead:
                first, content = waiting.popleft()
                yield first, content.result()
        while waiting:
            first, content = waiting.popleft()
            yield first, content.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _content(entry: Input) -> Content | SuperresError:
    if entry.error is not None:
        return InvalidInputError(entry.error)
    try:
        return known_place(entry.input).source(MAX_MEMBER_BYTES)
    except SuperresError as error:
        return error


def _open_archive(archive: str,
                  entries: Iterator[Input]) -> Iterator[tuple[Input, Content | SuperresError]]:
    try:
        with known_place(archive).fetched() as path:
            yield from open_members(archive, path, entries)
    except SuperresError as error:
        yield from ((entry, error) for entry in entries)


def open_members(
    archive: str, path: str, entries: Iterator[Input], most_bytes: int = MAX_MEMBER_BYTES,
) -> Iterator[tuple[Input, Content | SuperresError]]:
    """Yield the content of members of the archive, whose copy is the file `path`, in the order of
    their numbers.

    A member of over `most_bytes`, or which cannot be listed, has an error instead.
    """
    asked, problem = deque[Input](), "it ends early"

    def numbers() -> Iterator[int]:
        for entry in entries:
            asked.append(entry)
            yield entry.member

    try:
        for content in read_members(path, archive, numbers(), most_bytes):
            entry = asked.popleft()
            error = _problem(entry, archive)
            yield entry, content if error is None else InvalidInputError(error)
    except DAMAGED as error:
        problem = reason_of(error)
    for left in itertools.chain(asked, entries):
        yield left, InvalidInputError(_problem(left, archive) or (
            f"{display_path(left.input, archive)} cannot be unpacked ({problem}); pack {archive} "
            "again"))


def _problem(entry: Input, archive: str) -> str | None:
    """Return why a member is not used: listing has found it, or the archive's file is another one
    since then."""
    if entry.error is not None or not known_place(archive).has_changed(entry.version):
        return entry.error
    return (f"{display_path(entry.input, archive)} is not used: {archive} was changed or removed "
            "after it was listed; give the same command again")


def open_parts(parts: Iterable[Part]) -> Iterator[tuple[Part, Opened | None]]:
    """Open the inputs of parts in their order; each part comes first alone.

    Neighbouring members of an archive are read in one pass, whatever parts they are in.
    """
    pending, current = deque[tuple[Part, int]](), None

    def entries() -> Iterator[Input]:
        for part in parts:
            for place, entry in enumerate(part.entries):
                pending.append((part, place))
                yield entry

    for entry, content in open_inputs(entries()):
        part, place = pending.popleft()
        if part is not current:
            yield part, None
            current = part
        yield part, (part.turn + place, entry, list(part.samples[place]), content)
