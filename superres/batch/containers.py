"""List and read the members of an archive, in a process that `superres.batch.archives` starts.

The readers of archives unpack and believe what is in them; here that takes memory and time from
this process alone, which has little of both, and what it hands on is counted.
"""

from __future__ import annotations

import io
import math
import os
import posixpath
import stat
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np

from superres.batch import parquet_rows
from superres.batch.tar_files import Stream, tar_headers
from superres.errors import plain
from superres.system.confined import Values, limit_memory, limit_time
from superres.system.folders import NO_FILE, kind_left_out
from superres.system.unpacking import Gate

FREE_MEMORY = 500_000_000  # bytes that reading any archive may take beyond the interpreter
MEMORY_PER_BYTE = 8  # further bytes of memory per byte of the archive
MOST_MEMORY = 4_000_000_000
SECONDS = 60.0  # of processor time for a member, or a piece of it
PIECE = 4_000_000  # bytes of content in one message
MOST_NAME = 4096  # bytes of a member's name, as of a path
MOST_LISTED = 1000  # members in one message
MOST_NAMES = 50_000  # characters of names after which a message ends
MOST_LINKS = 40  # symbolic links that lead to each other
REPLACED, NO_TARGET = "replaced by a later member of the same name", "link without its target"
LONG_NAME = f"with a name of over {MOST_NAME:,} bytes"


class Member(NamedTuple):
    """A member of an archive.

    Attributes:
        number: its place in the archive, from 0.
        name: its path in the archive.
        open: opens its content, which must be read before the next member is asked for.
        shape: of a picture whose content is its pixels.
        is_separate: whether damage to its content leaves the other members readable.
        problem: why it cannot be read.
        target: of a link, the path of its target in the archive, normalised.
        is_symbolic: whether the link leads to what has the target's name in the end, not at its own
            place.
        left_out: why it is no picture whatever its name, None for a file.
    """

    number: int
    name: str
    open: Callable[[], Any] | None = None
    shape: tuple[int, ...] | None = None
    is_separate: bool = False
    problem: str | None = None
    target: str | None = None
    is_symbolic: bool = False
    left_out: str | None = None


def read(
    path: str, label: str, suffixes: Collection[str], most: int | None,
) -> Generator[Values, Values | None, None]:
    """List the pictures of the archive `label`, whose content is the file `path`, or read members
    of it.

    `suffixes` are those of pictures. Members are read if `most` is given, the bytes that each may
    have.
    """
    size = os.path.getsize(path)
    if label.lower().endswith(".parquet"):
        parquet_rows.prepare(label)
    memory = min(FREE_MEMORY + MEMORY_PER_BYTE * size, MOST_MEMORY)
    limit_memory(memory)
    gate = Gate(size)
    members = _scan(path, label, suffixes, gate)
    try:
        if most is not None:
            yield from _contents(members, label, most, gate)
        elif label.lower().endswith((".npz", ".parquet")):
            yield from _messages((one.left_out or (one.number, one.name) for one in members), gate)
        else:
            yield from _messages(_pictures(members, suffixes), gate)
    except MemoryError:
        raise ValueError(f"it takes over {memory // 1_000_000:,} MB of memory to unpack") from None


def _scan(path: str, label: str, suffixes: Collection[str], gate: Gate) -> Iterator[Member]:
    """Yield all members of an archive but its folders, in their order."""
    suffix = os.path.splitext(label.lower())[1]
    members = _parquet_members(path, suffixes, gate) if suffix == ".parquet" else (
        {".npz": _npz_members, ".zip": _zip_members}.get(suffix, _tar_members)(path, gate))
    for member in members:
        limit_time(SECONDS)
        gate.let()  # counts the time
        yield member


def _messages(found: Iterator[str | tuple[int, str]], gate: Gate) -> Iterator[Values]:
    """Yield numbers and names of pictures, and kinds that are left out, some together; then raise
    as `found` does."""
    names, left_out, length, damage = list[tuple[int, str]](), list[str](), 0, None
    try:
        for one in found:
            if isinstance(one, str) or len(one[1].encode(errors="surrogatepass")) > MOST_NAME:
                left_out.append(one if isinstance(one, str) else LONG_NAME)
                length += len(left_out[-1])
            else:
                names.append(one)
                length += len(one[1])
                gate.let(names=len(one[1]))
            if len(names) + len(left_out) == MOST_LISTED or length > MOST_NAMES:
                yield {"names": names, "left_out": left_out}
                names, left_out, length = [], [], 0
    except Exception as error:  # what was found before the damage counts
        damage = error
    yield {"names": names, "left_out": left_out}
    if damage is not None:
        raise damage


def _contents(
    members: Iterator[Member], label: str, most: int, gate: Gate,
) -> Generator[Values, Values | None, None]:
    """Yield the pieces of each member whose number is sent, or why it is refused; the numbers must
    increase.

    Ends where a number is not there, or is None.
    """
    number = ((yield {}) or {}).get("number")
    for member in members if number is not None else ():
        if member.number != number:
            continue
        if member.open is None and member.problem is None:
            return
        sent: Values | None = None
        for piece in _pieces(member, f"{label}/{plain(member.name)}", most, gate):
            sent = yield piece
        number = (sent or {}).get("number")
        if number is None:
            return


def _pieces(member: Member, name: str, most: int, gate: Gate) -> Iterator[Values]:
    """Yield the content of a member, piece by piece, each when the next one is known; or why it is
    refused."""
    total, problem = 0, member.problem
    try:
        file = io.BytesIO() if member.open is None else member.open()
        content = file.read(PIECE)
        if not content:
            problem = problem or "is empty (0 bytes); provide an image file"
        while content:
            total += len(content)
            if total > most:
                problem = f"is over {most / 1e6:g} MB once unpacked; reduce it first"
                break
            gate.let(content=len(content))
            following = file.read(PIECE)
            yield {"content": content, "is_last": not following, "shape": member.shape}
            content = following
    except Exception as error:
        if not member.is_separate:
            raise
        reason = plain(str(error)) or type(error).__name__
        problem = f"cannot be unpacked ({reason}); pack it again, without a password"
    if problem is not None:
        yield {"refused": f"{name} {problem}"}


class _Files:
    """The files that unpacking an archive would give, by their normalised path: the content's
    number."""

    def __init__(self) -> None:
        self.numbers: dict[str, int | None] = {}
        self.names: dict[str, str] = {}  # of the members whose name is not their path
        self.links: dict[str, str] = {}

    def add(self, member: Member) -> Iterator[str]:
        """Unpack a member, and yield what is left out for it."""
        if member.left_out is not None:
            yield member.left_out
            return
        path, number = normalised(member.name), None if member.is_symbolic else member.number
        # a hard link has what its target has by now
        if member.target is not None and not member.is_symbolic:
            number = self.numbers.get(member.target)
        if path in self.numbers:
            del self.numbers[path]
            yield REPLACED
        self.links.pop(path, None)
        self.names.pop(path, None)
        self.numbers[path] = number
        if path[1:] != member.name:
            self.names[path] = member.name
        if member.is_symbolic and member.target is not None:
            self.links[path] = member.target

    def pictures(self, suffixes: Collection[str]) -> Iterator[str | tuple[int, str]]:
        """Yield the numbers and the names of the pictures in the order of the numbers, and what is
        left out."""
        found = []
        for path in self.numbers:
            if (kind := kind_left_out(path.strip("/"), suffixes)) is not None:
                yield kind
                continue
            target = path
            for _ in range(MOST_LINKS):
                target = self.links.get(target, target)
            number = self.numbers.get(target)
            if number is None:
                yield NO_TARGET
            else:
                found.append((number, self.names.get(path, path[1:])))
        yield from sorted(found, key=lambda one: one[0])


def _pictures(
    members: Iterator[Member], suffixes: Collection[str],
) -> Iterator[str | tuple[int, str]]:
    """Yield the pictures among the files that unpacking would give; then raise as `members`
    does."""
    files, damage = _Files(), None
    try:
        for member in members:
            yield from files.add(member)
    except Exception as error:
        damage = error
    yield from files.pictures(suffixes)
    if damage is not None:
        raise damage


def normalised(name: str) -> str:
    """Return the path of a member as unpacking would resolve it below the folder "/"."""
    return posixpath.normpath(f"/{name}").replace("//", "/")


def _symbolic(number: int, name: str, target: str) -> Member:
    """Return a symbolic link; a target outside the archive is none of its members."""
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(name).lstrip("/"), target))
    is_inside = bool(target) and not reached.startswith(("/", ".."))
    return Member(number, name, target=normalised(reached) if is_inside else "", is_symbolic=True)


def _zip_members(path: str, gate: Gate) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        found = archive.infolist()
        # no more of a member is read than it claims, but members may lie upon each other
        gate.let(len(found), sum(info.file_size for info in found))
        for number, info in enumerate(found):
            if info.is_dir():
                continue
            if stat.S_ISLNK(info.external_attr >> 16):
                yield _symbolic(number, info.filename, _zip_target(archive, info))
            else:
                yield Member(number, info.filename, partial(archive.open, info), is_separate=True)


def _zip_target(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    """Return the path in a symbolic link, "" if it cannot be read."""
    try:
        return archive.read(info).decode(errors="replace") if info.file_size <= MOST_NAME else ""
    except Exception:  # other members may still be readable
        return ""


def _tar_members(path: str, gate: Gate) -> Iterator[Member]:
    for number, (info, extract) in enumerate(tar_headers(path, gate)):
        if info.isfile():
            yield Member(number, info.name, extract)
        elif info.islnk():
            yield Member(number, info.name, target=normalised(info.linkname))
        elif info.issym():
            yield _symbolic(number, info.name, info.linkname)
        elif not info.isdir():
            yield Member(number, info.name, left_out=NO_FILE)


def _npz_members(path: str, gate: Gate) -> Iterator[Member]:
    """Yield the pictures of the array "lr" of a prepared data set, or of the only array."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        name = "lr.npy" if "lr.npy" in names else names[0] if len(names) == 1 else None
        if name is None:
            raise ValueError(f"it needs an array lr, or only one, not {', '.join(names) or 'none'}")
        stream, array, claimed = archive.open(name), name[:-4], archive.getinfo(name).file_size
        # the array: its header says what follows, as the archive does
        is_long = np.lib.format.read_magic(stream) > (1, 0)
        shape, is_fortran, dtype = (np.lib.format.read_array_header_2_0 if is_long
                                    else np.lib.format.read_array_header_1_0)(stream)
        if (is_fortran or dtype != np.uint8 or len(shape) != 4 or shape[3] != 3
                or shape[0] < 0 or min(shape[1:]) < 1):
            raise ValueError(f"{array} must be uint8 [N, H, W, 3], not {dtype} {list(shape)}")
        start = stream.tell()
        if (size := math.prod(shape)) + start != claimed:
            raise ValueError(f"{array} claims {size:,} bytes and has {max(claimed - start, 0):,}")
        gate.let(shape[0], size)
        # its pictures, and the other arrays
        for number in range(shape[0]):
            yield Member(number, f"{array}/{number:06d}",
                         partial(_picture, stream, start, number, shape[1:]), shape[1:])
        for number, other in enumerate((other for other in names if other != name), shape[0]):
            yield Member(number, other, left_out=f"array {plain(other.removesuffix('.npy'))}")


def _picture(stream: IO[bytes], start: int, number: int, shape: tuple[int, ...]) -> Stream:
    size = math.prod(shape)
    stream.seek(start + number * size)
    return io.BytesIO(stream.read(size))


def _parquet_members(path: str, suffixes: Collection[str], gate: Gate) -> Iterator[Member]:
    """Yield the encoded images of a column. Their names are the keys, with the row's number if a
    key returns."""
    known = set[str]()
    for number, (key, content, problem) in enumerate(parquet_rows.rows(path, gate)):
        name = (key or f"{number:06d}").strip("/")
        stem, suffix = os.path.splitext(name)
        if suffix.lower() not in suffixes:
            stem, suffix = name, ".png"
        while stem in known:
            stem = f"{stem}-{number:06d}"
        known.add(stem)
        yield Member(number, f"{stem}{suffix}", partial(io.BytesIO, content), problem=problem)
