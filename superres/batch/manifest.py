"""The manifest of a batch: one JSON line per output, from which a later run resumes.

During a run, rows are appended as outputs are finished; a later row replaces an earlier row of the same output. A
completed run sorts the rows in the order of the inputs, one row per output. A truncated last line, which a killed run
may leave, is dropped.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_type_hints

from superres.config import reader_of, require
from superres.errors import ConfigError, InvalidInputError, OutputError
from superres.system.output import scratch_file, scratch_folder
from superres.system.places import check_url, fetched, files_in, is_url, join, move_to, public
from superres.system.reading import parse_json
from superres.tasks.face_finder import MOST_FACES

LINE_BYTES = 2048  # bytes per read of a line; most lines are shorter
STATUSES = ("ok", "skipped", "failed")


@dataclass(frozen=True)
class Row:
    """A line of the manifest; the numbers are None unless the image was decoded.

    Attributes:
        input: see `superres.batch.inputs.Input`.
        output: absolute path of the output; empty for an input that could not be listed.
        status: "ok", "skipped" (a file exists that has no row) or "failed"; `error` is the reason of a failure.
        seconds: the image's share of the decoding time.
        checkpoint: name@revision.
        config: decoding settings with the block size filled in; None for a skipped output, whose settings are unknown.
        options: the other options that determine the output: `BatchOptions.content_options`, and as `start` the side
            of the model's input.
        sha256: digest of the output file.
        crop: the square of a photo, with the attributes of `superres.tasks.photos.Crop`; None for other pictures.
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

    @property
    def key(self) -> str:
        """Key of the row: the output, or the input if it could not be listed."""
        return self.output or self.input

    @property
    def faces(self) -> int:
        """Number of faces that were found in the photo; 0 if the row does not say."""
        found = (self.crop or {}).get("faces")
        return found if isinstance(found, int) and 0 <= found <= MOST_FACES else 0

    def line(self) -> bytes:
        """Return the row as a line of JSON."""
        return json.dumps({name: getattr(self, name) for name in _READERS}).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> Row:
        """Read a line without entries that this release does not know; ValueError or ConfigError if it is not a row."""
        values = parse_json(line)
        if not isinstance(values, dict) or values.get("status") not in STATUSES:
            raise ValueError("no status ok, skipped or failed")
        require({"input", "output"} <= values.keys(), "no input or no output")
        return cls(**{name: _READERS[name](name, value) for name, value in values.items() if name in _READERS})


_READERS = {name: reader_of(hint, 0, 2**63 - 1) for name, hint in get_type_hints(Row).items()}


def read_rows(file: BinaryIO, path: Path | str) -> Iterator[tuple[int, Row]]:
    """Yield the byte offsets and rows of whole lines; raise InvalidInputError if a line is not a row."""
    place = 0
    for number, line in enumerate(file, 1):
        if not line.endswith(b"\n"):
            return
        try:
            row = Row.parse(line)
        except (ValueError, ConfigError) as error:
            reason = " ".join(str(error).split())
            raise InvalidInputError(f"line {number} of the manifest {path} is damaged ({reason}); remove that line, or "
                                    "the manifest, or choose another --manifest") from error
        yield place, row
        place += len(line)


class Manifest:
    """A manifest that a run reads, extends and sorts.

    Outputs are identified by their number in the run's plan. The object stores each row's file offset, not the row.
    """

    def __init__(
        self, path: Path, count: int, keys: Iterable[str],
        face_of: Callable[[str], tuple[str, int]] = lambda output: (output, 0),
    ) -> None:
        """Open or create the manifest of a run with `count` planned outputs.

        `keys` are the keys of their rows; output n of face f (`BatchOptions.face_of`) has the number n + f * `count`.
        Raises InvalidInputError if a line is damaged, and OutputError if the file cannot be read or written.
        """
        self.path, self.face_of, self.reading = path, face_of, threading.Lock()
        self.faces: dict[int, dict[int, int]] = {}
        self.places = array.array("q", [-1]) * count
        self.others: dict[str, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.file = open(path, "ab", buffering=0)  # noqa: SIM115 -- open as long as the run
            # Unbuffered, since a buffer could hold data that was truncated from the file.
            self.reader = open(path, "rb", buffering=0)  # noqa: SIM115 -- open as long as the run
        except OSError as error:
            raise OutputError(f"cannot write the manifest {path}: {error.strerror}; choose another --manifest"
                              ) from error
        try:
            self._read(keys)
        except BaseException:
            self.close()
            raise

    def numbers(self) -> Iterator[int]:
        """Yield the numbers of the outputs that have a row, in the order of the run's inputs."""
        count = len(self.places)
        for number, place in enumerate(self.places):
            if place >= 0:
                yield number
            yield from (number + face * count for face in sorted(self.faces.get(number, ())))

    def known_faces(self, planned: int) -> range:
        """Return the numbers of the faces of a planned output according to its rows; empty unless it has several."""
        places = list(self.faces.get(planned, {}).items())
        return range(1, max((max(face, Row.parse(self._line(place)).faces) for face, place in places), default=0) + 1)

    def _read(self, keys: Iterable[str]) -> None:
        """Note the place of every row, and drop a truncated last line."""
        self.end, last = 0, -1
        if not os.fstat(self.reader.fileno()).st_size:
            return
        numbers = {key: number for number, key in enumerate(keys)}
        with open(self.path, "rb") as file:
            for last, row in read_rows(file, self.path):
                number, face = numbers.get(row.key), 0
                if number is None and row.output:
                    planned, face = self.face_of(row.output)
                    number = numbers.get(planned)
                if number is None:
                    self.others[row.key] = last
                else:
                    self._place(number + face * len(self.places), row, last)
        self.end = last + len(self._line(last)) if last >= 0 else 0
        self.file.truncate(self.end)

    def _place(self, number: int, row: Row, place: int) -> None:
        """Note the place of an output's latest row.

        An input has either one output per sample or one per face. Complete outputs of the other kind, and of faces that
        are not found any more, become outputs of other runs.
        """
        face, planned = divmod(number, len(self.places))
        stale = []
        if face:
            faces = self.faces.setdefault(planned, {})
            faces[face] = place
            stale = [self.places[planned], *(faces.pop(old) for old in list(faces) if old > row.faces > 0)]
            self.places[planned] = -1
        else:
            self.places[planned] = place
            if row.status == "ok":
                stale += self.faces.pop(planned, {}).values()
        self.others.pop(row.key, None)
        for old in stale:
            before = Row.parse(self._line(old)) if old >= 0 else None
            if before is not None and before.status == "ok":
                self.others[before.key] = old

    def _line(self, place: int) -> bytes:
        """Return the line that begins at offset `place`."""
        line = b""
        with self.reading:
            self.reader.seek(place)
            while b"\n" not in line and (more := self.reader.read(LINE_BYTES)):
                line += more
        return line[: line.index(b"\n") + 1]

    def row(self, number: int) -> Row | None:
        """Return the latest row of output `number`, or None; thread-safe."""
        place = self._place_of(number)
        return None if place < 0 else Row.parse(self._line(place))

    def _place_of(self, number: int) -> int:
        face, planned = divmod(number, len(self.places))
        return self.faces.get(planned, {}).get(face, -1) if face else self.places[planned]

    def append(self, rows: Iterable[tuple[int, Row]]) -> None:
        """Append rows of outputs, given by number, and flush them; an OutputError leaves the earlier rows intact."""
        lines, places, end = [], [], self.end
        for number, row in rows:
            lines.append(row.line())
            places.append((number, row, end))
            end += len(lines[-1])
        try:
            rest = memoryview(b"".join(lines))
            while rest:
                rest = rest[self.file.write(rest) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            with suppress(OSError):
                self.file.truncate(self.end)
            raise OutputError(f"cannot write the manifest {self.path}: {error.strerror}") from error
        self.end = end
        for number, row, place in places:
            self._place(number, row, place)

    def finish(self) -> None:
        """Keep one row per output: those of other runs, then those of this run; an OutputError loses no row."""
        order = [*sorted(self.others.values()), *map(self._place_of, self.numbers())]
        try:
            _rewrite(self.path, map(self._line, order))
        except OSError as error:
            raise OutputError(f"cannot sort the manifest {self.path}: {error.strerror}; no row is lost; repeat "
                              "the command when there is space") from error

    def close(self) -> None:
        """Close the file."""
        for file in (self.reader, self.file):
            with suppress(OSError):
                file.close()


def merge(paths: Sequence[str], output: str) -> Counter[str]:
    """Merge the manifests of shards, in their order, into one row per output, in the order of an unsharded run.

    Of several rows of an output, the last "ok" row counts, or the last row if none is "ok". The rows of the manifests
    are interleaved input by input, as the shards divide the inputs. A folder, or a URL that ends with a slash, stands
    for the manifests of a run in parts, whose rows follow each other. `output` may be one of `paths`. All are places
    (`superres.system.places`), and memory does not grow with the number of rows. Returns the number of rows with each
    status. Raises InvalidInputError if a manifest cannot be read or is damaged, and OutputError if the result cannot be
    written.
    """
    counts = Counter[str]()
    for place in filter(is_url, (*paths, output)):
        check_url(place, writing=place == output)
    with ExitStack() as stack:
        if all(map(_is_run, paths)):
            lines = _counted((row.line() for path in paths for row in latest_rows(path)), counts)
        else:
            files = [stack.enter_context(_opened(path)) for path in paths]
            index = stack.enter_context(_Index(files, paths))
            lines, counts = index.lines(), index.counts()
        try:
            _write_lines(output, lines)
        except OSError as error:
            raise OutputError(f"cannot write {public(output)}: {error.strerror}; choose another --output") from error
    return counts


def _counted(lines: Iterable[bytes], counts: Counter[str]) -> Iterator[bytes]:
    for line in lines:
        counts[json.loads(line)["status"]] += 1
        yield line


def latest_rows(path: str) -> Iterator[Row]:
    """Yield the latest row of each output of a manifest, or of the manifests of a run in parts (see `merge`).

    Raises InvalidInputError if it cannot be read or is damaged.
    """
    if is_url(path):
        check_url(path)
    if _is_run(path):
        names = [name for name in files_in(path, "part-") if name.endswith(".jsonl")]
        if not names:
            raise InvalidInputError(f"{public(path)} has no manifests of a run in parts; name a manifest")
        for name in names:
            with _opened(join(path, name)) as file:
                yield from (row for _, row in read_rows(file, join(path, name)))
        return
    with _opened(path) as file, _Index([file], [path]) as index:
        yield from map(Row.parse, index.lines())


def _is_run(path: str) -> bool:
    return path.endswith("/") if is_url(path) else os.path.isdir(path)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    with fetched(path) as copy:
        try:
            file = open(copy, "rb")  # noqa: SIM115 -- closed below
        except OSError as error:
            raise InvalidInputError(f"cannot read the manifest {public(path)}: {error.strerror}; name manifests that "
                                    "superres upscale wrote") from error
        with file:
            yield file


class _Index:
    """The row that counts of each output in some manifests, in a temporary database. A context manager.

    A row's turn is the number of its input among those that its manifest is the first to name.
    """

    def __init__(self, files: Sequence[BinaryIO], paths: Sequence[str]) -> None:
        self.files = files
        self.database = sqlite3.connect("")  # a file that the system removes
        self.database.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;"
                                    "CREATE TABLE rows (key BLOB PRIMARY KEY, turn INTEGER, manifest INTEGER, number "
                                    "INTEGER, file INTEGER, place INTEGER, status TEXT) WITHOUT ROWID")
        try:
            for number, (file, path) in enumerate(zip(files, paths, strict=True)):
                self._add(file, path, number)
        except BaseException:
            self.database.close()
            raise

    def __enter__(self) -> _Index:
        return self

    def __exit__(self, *_: object) -> None:
        self.database.close()

    def _add(self, file: BinaryIO, path: str, number: int) -> None:
        source, turn = None, 0
        for count, (place, row) in enumerate(read_rows(file, path)):
            key = hashlib.blake2b(row.key.encode("utf-8", "surrogatepass"), digest_size=16).digest()
            turn_here = turn + (row.input != source)
            added = self.database.execute("INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?, ?, ?)", (
                key, turn_here, number, count, number, place, row.status))
            if added.rowcount:
                source, turn = row.input, turn_here
            else:
                self.database.execute("UPDATE rows SET file = ?, place = ?, status = ? WHERE key = ? AND (? = 'ok' OR "
                                      "status != 'ok')", (number, place, row.status, key, row.status))

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the rows in the order of their turns."""
        for file, place in self.database.execute("SELECT file, place FROM rows ORDER BY turn, manifest, number"):
            yield _line_at(self.files[file], place)

    def counts(self) -> Counter[str]:
        """Return the number of rows with each status."""
        return Counter(dict(self.database.execute("SELECT status, count(*) FROM rows GROUP BY status")))


def _line_at(file: BinaryIO, place: int) -> bytes:
    file.seek(place)
    return file.readline()


def _write_lines(place: str, lines: Iterable[bytes]) -> None:
    """Write lines to a place, whole or not at all."""
    if not is_url(place):
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        _rewrite(Path(place), lines)
        return
    with scratch_folder() as folder:
        path = os.path.join(folder, "manifest")
        with open(path, "wb") as file:
            file.writelines(lines)
        move_to(path, place)


def _rewrite(path: Path, lines: Iterable[bytes]) -> None:
    """Replace the file by `lines`, which may be read from it, atomically; an OSError leaves it unchanged."""
    with scratch_file(path.parent, path) as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
