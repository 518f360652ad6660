"""Plan a run in parts, and find the parts that are done: for runs into object stores and into shards.

A part is the unit of work, of retry and of resumption: some inputs, or one archive. The plan lies beside the outputs,
so that machines without a shared disc agree on it:

    run.json            the settings, the inputs as the user named them, and the number of parts; written last
    plan/000000.jsonl   the inputs of part 0
    part-000000.tar     its shard (or .parquet; or the pictures one by one)
    part-000000.jsonl   its manifest, written after the outputs: the part is done

Nothing here grows with the number of inputs but the files, and one byte per part.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from superres.batch.archives import is_archive
from superres.batch.inputs import LOCAL, Input, find_inputs
from superres.batch.plan import BatchOptions
from superres.batch.record import RunSettings
from superres.config import reader_of
from superres.errors import ConfigError, InvalidInputError, OutputError
from superres.system.places import files_in, host_of, is_url, join, public, read_place, remove, write_place
from superres.system.progress import say
from superres.system.reading import parse_json, parse_lines
from superres.tasks.photos import FACE

RUN = "run.json"
ROWS = 1000  # default number of inputs per part
MOST_ROWS = 100_000
PLAN_BYTES = 200_000_000  # most bytes of a file of the plan
LAYOUTS = {"files": "", "webdataset": ".tar", "parquet": ".parquet"}
"""How the pictures of a part are stored, and the suffix of its shard."""
_BUCKETS = 256  # files of digests, each of which is sorted in memory
_PLANNED, _WHOLE = 0, 1  # a digest's origin: an output's name, or the name that it would have without "-faceN"
_DIGESTS = np.dtype([("digest", "<u8"), ("part", "<u4"), ("origin", "u1")])


@dataclass(frozen=True)
class Job:
    """What a run in parts reads and writes.

    Attributes:
        output: place of the outputs, a URL or the absolute path of a folder.
        layout: a key of `LAYOUTS`.
        rows: inputs per part.
        inputs: inputs as the user named them.
        listed: place of a list of inputs, or None.
        allowed: schemes and hosts that the command line names, from which alone inputs are read.
    """

    output: str
    layout: str
    rows: int
    inputs: tuple[str, ...]
    listed: str | None = None
    allowed: frozenset[tuple[str, str]] = frozenset({LOCAL})

    def place(self, name: str) -> str:
        """Return the place of a file of the run."""
        return join(self.output, name)

    def manifest(self, part: int) -> str:
        """Return the place of a part's manifest."""
        return self.place(f"part-{part:06d}.jsonl")

    def shard(self, part: int) -> str:
        """Return the place of a part's shard."""
        return self.place(f"part-{part:06d}{LAYOUTS[self.layout]}")

    def is_allowed(self, place: str) -> bool:
        """Return whether the command line names the place's scheme and host."""
        return (host_of(place) if is_url(place) else LOCAL) in self.allowed


@dataclass(frozen=True)
class Part:
    """A part of a run: an archive, or inputs that are files."""

    number: int
    archive: str | None
    entries: tuple[Input, ...] = ()

    def content(self) -> bytes:
        """Return the part as a file of the plan."""
        if self.archive is not None:
            return (json.dumps({"archive": self.archive}) + "\n").encode()
        return "".join(json.dumps([entry.input, entry.name, entry.error]) + "\n" for entry in self.entries).encode()


def read_part(job: Job, number: int) -> Part:
    """Read a part of the plan; raise InvalidInputError if it is missing or damaged, and PlaceError."""
    place = job.place(f"plan/{number:06d}.jsonl")
    content = read_place(place, PLAN_BYTES)
    try:
        values = parse_lines(content)
        if values and isinstance(values[0], dict):
            return Part(number, reader_of(str)("archive", values[0].get("archive")))
        rows = reader_of(list[tuple[str, str, str | None]])("the plan", values)
        return Part(number, None, tuple(Input(path, name, error=error) for path, name, error in rows))
    except (ValueError, ConfigError) as error:
        raise InvalidInputError(f"the plan {public(place)} is damaged; choose another --output") from error


def planned_parts(job: Job, options: BatchOptions, settings: RunSettings, redo: bool) -> tuple[int, int]:
    """Return the numbers of parts and of inputs of a run, whose plan is written unless it is there.

    With `redo`, an existing plan and its manifests are removed first. Raises InvalidInputError if there are no inputs
    or two would have the same output; OutputError if the plan cannot be written, or there is another run's; PlaceError.
    """
    record = _record(job, options, settings)
    known = _read_run(job)
    if known is not None and redo:
        remove(job.place(RUN))
        for name in list(files_in(job.output, "part-")):
            if re.fullmatch(r"part-\d{6,}\.jsonl", name):
                remove(job.place(name))
        known = None
    if known is None:
        parts, count = _write_plan(job, options)
        content = (json.dumps({**record, "parts": parts, "count": count}, indent=1) + "\n").encode()
        if write_place(job.place(RUN), content, new=True):
            return parts, count
        known = _read_run(job) or {}  # another machine was faster
    changed = [f"{name} {known.get(name)!r} there, {value!r} now" for name, value in record.items()
               if known.get(name) != value]
    if changed:
        raise OutputError(f"the run in {public(job.output)} has other settings ({'; '.join(changed)[:500]}); repeat "
                          "them, choose another --output, or give --on-existing overwrite")
    say(f"{public(job.output)}: continuing the run that was planned for {known['count']} inputs; inputs that are new "
        "since then need another --output")
    return int(known["parts"]), int(known["count"])


def done_parts(job: Job, parts: int) -> bytearray:
    """Return a 1 per part that is done, and a 0 per other part."""
    done = bytearray(parts)
    for name in files_in(job.output, "part-"):
        found = re.fullmatch(r"part-(\d{6,9})\.jsonl", name)
        if found and int(found[1]) < parts:
            done[int(found[1])] = 1
    return done


def _record(job: Job, options: BatchOptions, settings: RunSettings) -> dict[str, Any]:
    return {"settings": settings.comparable, "samples": options.samples, "suffix": options.suffix,
            "recursive": options.recursive, "layout": job.layout, "rows": job.rows,
            "inputs": [public(place) for place in job.inputs],
            "listed": None if job.listed is None else public(job.listed)}


def _read_run(job: Job) -> dict[str, Any] | None:
    """Return the record of the run at a place, None if there is none."""
    if not any(name == RUN for name in files_in(job.output, RUN)):
        return None
    place = job.place(RUN)
    try:
        known = reader_of(dict[str, Any])("the record", parse_json(read_place(place, PLAN_BYTES)))
        parts = reader_of(int, 0)("parts", known.get("parts"))
        return {**known, "parts": parts, "count": reader_of(int, 0)("count", known.get("count", parts))}
    except (ValueError, ConfigError) as error:
        raise OutputError(f"{public(place)} is not the record of a run ({error}); choose another --output") from error


def _write_plan(job: Job, options: BatchOptions) -> tuple[int, int]:
    """List the inputs, write the plan, and return the numbers of parts and of inputs; an archive counts as an input."""
    from superres.batch.inputs import read_list

    listed = read_list(job.listed) if job.listed is not None else ()
    entries = find_inputs(job.inputs, listed, options.recursive, True, job.output, job.allowed, unpack=False)
    parts, count = 0, 0
    with ExitStack() as stack:
        names = _Names(options, stack)
        for part in _grouped(entries, job.rows):
            write_place(job.place(f"plan/{part.number:06d}.jsonl"), part.content())
            names.add(part, job.layout)
            parts, count = parts + 1, count + max(len(part.entries), 1)
        if not parts:
            hint = "" if options.recursive else "; add --recursive to include sub-folders"
            places = ", ".join(map(public, [*job.inputs, *([job.listed] if job.listed else [])]))
            raise InvalidInputError(f"no image in {places[:300]}{hint}")
        names.refuse_clashes(job)
    return parts, count


def _grouped(entries: Iterable[Input], rows: int) -> Iterator[Part]:
    """Divide inputs, in their order, into parts of an archive or of `rows` files."""
    number, group = 0, list[Input]()
    for entry in entries:
        alone = is_archive(entry.input) and entry.error is None
        if group and (alone or len(group) == rows):
            yield Part(number, None, tuple(group))
            number, group = number + 1, []
        if alone:
            yield Part(number, entry.input)
            number += 1
        else:
            group.append(entry)
    if group:
        yield Part(number, None, tuple(group))


class _Names:
    """Finds outputs of the same name among any number of inputs, in files of digests: temporary, sorted one by one."""

    def __init__(self, options: BatchOptions, stack: ExitStack) -> None:
        self.options = options
        self.files: list[IO[bytes]] = [
            stack.enter_context(tempfile.TemporaryFile()) for _ in range(_BUCKETS)]  # noqa: SIM115 -- closed by `stack`

    def add(self, part: Part, layout: str) -> None:
        """Add the outputs of a part."""
        if part.archive is not None:
            self._add([archive_prefix(part.archive)] if layout == "files" else [], part.number, _PLANNED)
            return
        planned = [name for entry in part.entries if entry.error is None for name in self.options.names(entry)]
        self._add(planned, part.number, _PLANNED)
        if self.options.crop == FACE:
            self._add([whole for whole, face in map(self.options.face_of, (name for name in planned if "-face" in name))
                       if face], part.number, _WHOLE)

    def _add(self, names: Sequence[str], part: int, origin: int) -> None:
        for name in names:
            digest = digest_of(name)
            record = np.array([(digest, part, origin)], _DIGESTS)
            self.files[digest % _BUCKETS].write(record.tobytes())

    def refuse_clashes(self, job: Job) -> None:
        """Raise InvalidInputError if two inputs would have the same output."""
        for file in self.files:
            file.seek(0)
            found = np.sort(np.frombuffer(file.read(), _DIGESTS), order=("digest", "origin"))
            same = found["digest"][1:] == found["digest"][:-1]
            suspects = found[:-1][same & (found["origin"][:-1] == _PLANNED)]
            for digest in suspects["digest"]:
                self._refuse(job, int(digest), {int(part) for part in found["part"][found["digest"] == digest]})

    def _refuse(self, job: Job, digest: int, parts: set[int]) -> None:
        inputs: dict[str, list[str]] = {}
        for part in map(read_part, [job] * len(parts), sorted(parts)):
            if part.archive is not None:
                inputs.setdefault(archive_prefix(part.archive), []).append(part.archive)
            for entry in part.entries if part.archive is None else ():
                for name in self.options.names(entry) if entry.error is None else ():
                    inputs.setdefault(name, []).append(entry.input)
                    whole, face = self.options.face_of(name)
                    if face and self.options.crop == FACE:
                        inputs.setdefault(whole, []).append(entry.input)
        for name, owners in inputs.items():
            if digest_of(name) == digest and len(owners) > 1:
                first, second = owners[:2]
                raise InvalidInputError(
                    f"{public(first)} is named twice; leave one out" if first == second else
                    f"{public(first)} and {public(second)} would both be written to {name}; rename one of them, or "
                    "upscale them into separate places")


def digest_of(name: str) -> int:
    """Return a 64-bit digest of an output's name."""
    return int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "little")


def archive_prefix(archive: str) -> str:
    """Return the folder of the outputs of an archive's members: its name without suffix, and a slash."""
    name = archive.rsplit("/", 1)[-1]
    return f"{re.sub(r'(?i)(.tar)?[.][a-z0-9]+$', '', name) or name}/"
