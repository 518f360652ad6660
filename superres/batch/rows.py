"""The rows of manifests: one JSON line per output, from which a later run goes on, and the files of
such lines.

A later row replaces an earlier row of the same output. A last line without its end, which a killed
run may leave, does not count.
"""

from __future__ import annotations

import array
import itertools
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

import numpy as np

from superres.batch.digests import Digests, Numbers, ends
from superres.config import reader_of, require
from superres.errors import ConfigError, InvalidInputError, OutputError
from superres.system.json_files import parse_json
from superres.system.output import scratch_file
from superres.system.paths import Place
from superres.system.places import open_place

STATUSES = ("ok", "skipped", "failed")
MOST_LINE = 1_000_000  # bytes of a line; rows have a few kilobytes


@dataclass(frozen=True)
class Row:
    """A line of a manifest; the numbers are None unless the image was decoded.

    Attributes:
        input: see `superres.batch.inputs.Input`.
        output: absolute path of the output; empty for an input that could not be listed.
        status: "ok", "skipped" (a file exists that has no row) or "failed"; `error` is the reason
            of a failure.
        tokens, iterations, model_calls, seconds: sums over all decodes of the image. A finished
            image has more than its stages: two or three of the stages whose pictures are averaged.
            `seconds` are its share of the time.
        checkpoint: name@revision.
        config: decoding settings with the block size filled in; None for a skipped output, whose
            settings are unknown.
        options: the other options of the run that determine an output:
            `BatchOptions.content_options`, as `start` the side of the model's input, and the
            `engine`.
        sha256: digest of the picture's file.
        crop: the square of a photo, with the attributes of `superres.tasks.crops.Crop`; None for
            other pictures.
        size: bytes of the file that holds the output: the picture, or the shard.
        version: what the input's file was then, as `Input.version`.
        shard_sha256: digest of the shard.
        sample: number of the sample that was kept of several.
        bits_per_dim: that of the picture under p1, if it was judged:
            `superres.pipeline.judging.Judged`.
    """

    input: str
    output: str
    status: str
    error: str | None = None
    tokens: int | None = None
    iterations: int | None = None
    model_calls: int | None = None
    mean_accepted_block_size: float | None = None
    seconds: float | None = None
    checkpoint: str | None = None
    config: dict[str, Any] | None = None
    seed: int | None = None
    options: dict[str, Any] | None = None
    sha256: str | None = None
    crop: dict[str, Any] | None = None
    size: int | None = None
    version: str | None = None
    shard_sha256: str | None = None
    sample: int | None = None
    bits_per_dim: float | None = None

    @property
    def key(self) -> str:
        """Key of the row: the output, or the input if it could not be listed."""
        return self.output or self.input

    @property
    def origin(self) -> str:
        """What the row was made from: rows with the same one, which follow each other, are all that
        this has given."""
        return "\0".join(map(str, (self.input, self.version, (self.options or {}).get("crop"))))

    def line(self) -> bytes:
        """Return the row as a line of JSON."""
        return json.dumps({name: getattr(self, name) for name in _READERS}).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Row:
        """Read a line without entries that this release does not know; ValueError or ConfigError if
        it is not a row."""
        values = parse_json(line)
        if not isinstance(values, dict) or values.get("status") not in STATUSES:
            raise ValueError("no status ok, skipped or failed")
        require({"input", "output"} <= values.keys(), "no input or no output")
        return cls(**{name: _READERS[name](name, value) for name,
                      value in values.items() if name in _READERS})


_READERS = {name: reader_of(hint, 0, 2**63 - 1) for name, hint in get_type_hints(Row).items()}


def read_rows(file: BinaryIO, path: Path | str) -> Iterator[tuple[int, Row]]:
    """Yield the byte offsets and rows of whole lines; raise InvalidInputError if a line is not a
    row."""
    place = 0
    for number, line in enumerate(iter(lambda: file.readline(MOST_LINE), b""), 1):
        try:
            if len(line) == MOST_LINE:
                raise ValueError(f"it has {MOST_LINE:,} bytes or more")
            if not line.endswith(b"\n"):
                return
            row = Row.parse(line)
        except (ValueError, ConfigError) as error:
            reason = " ".join(str(error).split())
            raise InvalidInputError(f"line {number} of the manifest {path} is damaged ({reason}); "
                                    "remove that line, or the manifest, or choose another "
                                    "--manifest") from error
        yield place, row
        place += len(line)


class _Lines:
    """Where the rows of a file are, by digests of outputs, inputs and origins: 33 bytes per row."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.outputs, self.inputs, self.origins = Digests(), Digests(), Digests()
        self._places, self._statuses = array.array("q"), array.array("b")

    def add(self, file: BinaryIO, path: Path | str, start: int = 0) -> None:
        """Add the rows of a file, which begin at `start` of this object's file."""
        for place, row in read_rows(file, path):
            self._places.append(start + place)
            self.outputs.add(row.key)
            self.inputs.add(row.input)
            self.origins.add(row.origin)
            self._statuses.append(STATUSES.index(row.status))

    @property
    def statuses(self) -> Numbers:
        """The place of each row's status in `STATUSES`, int8 [N]."""
        return np.array(self._statuses, np.int8)

    def latest(self, prefers_ok: bool) -> Numbers:
        """Return the numbers of the rows that count, one per output, in the order of the outputs'
        first rows.

        That is the last row of the output, or with `prefers_ok` its last one with the status ok, if
        there is any.
        """
        output = self.outputs.values()
        is_ok = (self.statuses == 0) & prefers_ok
        order = np.lexsort((np.arange(len(output)), is_ok, output))
        winners: Numbers = order[ends(output[order])]
        # Both lists are in the order of the digests.
        return winners[np.argsort(np.unique(output, return_index=True)[1], kind="stable")]

    def in_order(self, positions: Callable[[Numbers], Numbers]) -> Numbers:
        """Return the numbers of the rows that a sorted manifest has: those of other runs, then
        those of this run in its order; see `Journal.sort`."""
        inputs, origins = self.inputs.values(), self.origins.values()
        # Only the last rows of an input count, such as those of the faces that were found in it
        # last.
        group = np.cumsum(ends(origins)) - ends(origins)
        is_last = group == group[self.inputs.places(inputs)]
        place = np.where(is_last, positions(inputs), -1)
        numbers: Numbers = np.sort(self.latest(prefers_ok=False))
        numbers = numbers[(is_last | (self.statuses == 0))[numbers]]
        order: Numbers = np.argsort(place[numbers], kind="stable")
        return numbers.take(order)

    def lines(self, numbers: Numbers) -> Iterator[bytes]:
        """Yield the lines of rows."""
        for number in numbers.tolist():
            self.file.seek(self._places[number])
            yield self.file.readline()


class Journal:
    """The manifest of a run into a folder: it is read, extended and sorted."""

    def __init__(self, path: Path) -> None:
        """Open or create the file; raise OutputError if it cannot be read or written."""
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "ab", buffering=0)  # noqa: SIM115 -- open as long as the run
        except OSError as error:
            raise OutputError(f"cannot write the manifest {path}: {error.strerror}; choose another "
                              "--manifest"
                              ) from error
        self.end = os.fstat(self.file.fileno()).st_size

    def rows(self) -> Iterator[Row]:
        """Yield the rows, and then drop a last line without its end; raise InvalidInputError if one
        is damaged."""
        last = -1
        with open(self.path, "rb") as file:
            for place, row in read_rows(file, self.path):
                last = place
                yield row
            file.seek(max(last, 0))
            self.end = last + len(file.readline()) if last >= 0 else 0
        self.file.truncate(self.end)

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows and flush them; an OutputError leaves the earlier rows intact."""
        rest = memoryview(b"".join(row.line() for row in rows))
        length = len(rest)
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            with suppress(OSError):
                self.file.truncate(self.end)
            raise OutputError(f"cannot write the manifest {self.path}: {error.strerror}") from error
        self.end += length

    def sort(self, positions: Callable[[Numbers], Numbers]) -> None:
        """Keep one row per output: those of other runs, then those of this run; an OutputError
        loses no row.

        `positions` returns the places of inputs, uint64 [N] (`digest_of`), in this run's order, -1
        for others.
        """
        with open(self.path, "rb") as file:
            lines = _Lines(file)
            lines.add(file, self.path)
            numbers = lines.in_order(positions)
            if np.array_equal(numbers, np.arange(len(lines.inputs))):
                return
            try:
                _rewrite(self.path, lines.lines(numbers))
            except OSError as error:
                raise OutputError(f"cannot sort the manifest {self.path}: {error.strerror}; no row "
                                  "is lost; repeat the command when there is space") from error

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self.file.close()


def merge(paths: Sequence[str], output: str) -> Counter[str]:
    """Write the rows of manifests one after another, one row per output, and return the number of
    each status.

    Of several rows of an output, the last "ok" row counts, or the last row if none is "ok". A
    folder, or a URL that ends with a slash, stands for its manifests. `output` may be one of
    `paths`. All are places (`superres.system.places`). Raises InvalidInputError if a manifest
    cannot be read or is damaged, and OutputError if the result cannot be written.
    """
    target, counts = open_place(output, writing=True), Counter[str]()
    with _manifests(paths) as lines:
        numbers = lines.latest(prefers_ok=True)
        counts.update({STATUSES[status]: count for status, count in Counter(
            lines.statuses[numbers].tolist()).items()})
        with target.written() as file:
            file.writelines(lines.lines(numbers))
    return counts


def latest_rows(path: str) -> Iterator[Row]:
    """Yield the latest row of each output of a manifest, or of the manifests of a folder's parts
    (see `merge`).

    Raises InvalidInputError if it cannot be read or is damaged.
    """
    with _manifests([path]) as lines:
        yield from map(Row.parse, lines.lines(lines.latest(prefers_ok=True)))


@contextmanager
def _manifests(paths: Sequence[str]) -> Iterator[_Lines]:
    """Open manifests as one file."""
    with tempfile.TemporaryFile() as whole:
        lines = _Lines(whole)
        for place in itertools.chain.from_iterable(map(_names, paths)):
            with _opened(place) as file:
                lines.add(file, place.text, whole.tell())
                file.seek(0)
                shutil.copyfileobj(file, whole)
        yield lines


def _names(path: str) -> list[Place]:
    """Return the manifest at a place, or those in a folder."""
    place = open_place(path)
    if not place.is_folder():
        return [place]
    found = [found.name for start in ("part-", "manifest") for found in place.files(start)]
    names = [place.join(name) for name in found if name.endswith(".jsonl")]
    if not names:
        raise InvalidInputError(f"{place.public} has no manifest (manifest.jsonl or "
                                "part-000000.jsonl); name one")
    return names


@contextmanager
def _opened(place: Place) -> Iterator[BinaryIO]:
    with place.fetched() as copy:
        try:
            file = open(copy, "rb")  # noqa: SIM115 -- closed below
        except OSError as error:
            raise InvalidInputError(f"cannot read the manifest {place.public}: {error.strerror}; "
                                    "name manifests that superres upscale wrote") from error
        with file:
            yield file


def _rewrite(path: Path, lines: Iterable[bytes]) -> None:
    """Replace the file by `lines`, which may be read from it, atomically; an OSError leaves it
    unchanged."""
    with scratch_file(path.parent, path) as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
