"""The pictures in archives: which members are used, and their content.

A member is known by its archive and its number, since names may occur repeatedly. A zip or tar file stands for the
files that unpacking it would give: the last of several members of a name counts, and a link has the content of its
target.
"""

from __future__ import annotations

import io
import math
import os
import posixpath
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np

from superres.batch.parquet_rows import parquet_rows
from superres.errors import InvalidInputError, SuperresError, plain
from superres.system.folders import NO_FILE, Tally
from superres.system.unpacking import Gate, array_header, check_size, open_tar, zip_members
from superres.tasks.picture_files import IMAGE_SUFFIXES

ARCHIVE_SUFFIXES = (".zip", ".npz", ".parquet", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MAX_MEMBER_BYTES = 500_000_000  # largest unpacked size of an archive's member in bytes, against zip bombs
MOST_LINKS = 40  # symbolic links that lead to each other
MOST_TARGET = 4096  # bytes of the path in a symbolic link
DAMAGED = Exception
"""Errors that readers raise on damaged archives: TarError and BadZipFile, but also TypeError and struct.error."""
REPLACED, NO_TARGET = "replaced by a later member of the same name", "link without its target"

Content = str | IO[bytes] | np.ndarray[Any, Any]
"""An image: the path of its file, its content, or its pixels uint8 [H, W, 3]."""


class Member(NamedTuple):
    """A member of an archive.

    Attributes:
        number: its place in the archive, from 0.
        name: its path in the archive.
        read: returns its content of at most so many bytes, or why there is none; must be called before the next member
            is asked for.
        target: of a link, the path of its target in the archive, normalised.
        is_symbolic: whether the link leads to what has the target's name in the end, not at its own place.
        left_out: why it is no picture whatever its name, None for a file.
    """

    number: int
    name: str
    read: Callable[[int], Content | SuperresError] | None = None
    target: str | None = None
    is_symbolic: bool = False
    left_out: str | None = None


def is_archive(path: str) -> bool:
    """Return whether a path or URL has the name of an archive, whose members are inputs."""
    return path.lower().endswith(ARCHIVE_SUFFIXES)


def list_members(path: str, label: str, tally: Tally) -> Iterator[tuple[int, str]]:
    """Yield the number and the name of each picture in the archive `label`, whose content is the file `path`.

    The numbers do not decrease; a link has the number of the member that has its content. Raises one of `DAMAGED` after
    the members before the damage.
    """
    damage: Exception | None = None
    members = scan(path, label)
    if not _holds_files(label):
        for member in members:
            if member.left_out is None:
                tally.used += 1
                yield member.number, member.name
            else:
                tally.left_out[member.left_out] += 1
        return
    files = _Files()
    try:
        for member in members:
            files.add(member, tally)
    except DAMAGED as error:
        damage = error
    yield from files.pictures(tally)
    if damage is not None:
        raise damage


def read_members(
    path: str, label: str, wanted: Iterable[int], most_bytes: int = MAX_MEMBER_BYTES,
) -> Iterator[Content | SuperresError]:
    """Yield the content of members of an archive by their numbers, which must not decrease.

    Ends early where a number is not there; raises one of `DAMAGED` where the archive is damaged.
    """
    members, last = scan(path, label), -1
    content: Content | SuperresError = ""
    for number in wanted:
        if number != last:
            read = next((member.read for member in members if member.number == number), None)
            if read is None:
                return
            content, last = read(most_bytes), number
        # Links share the content of their target, but not the position in it.
        yield io.BytesIO(content.getbuffer()) if isinstance(content, io.BytesIO) else content


def scan(path: str, label: str) -> Iterator[Member]:
    """Yield all members of an archive but its folders, in their order."""
    readers = {".npz": _npz_members, ".zip": _zip_members, ".parquet": _parquet_members}
    return readers.get(os.path.splitext(label.lower())[1], _tar_members)(path, label)


def _holds_files(label: str) -> bool:
    return not label.lower().endswith((".npz", ".parquet"))


class _Files:
    """The files that unpacking an archive would give, by their normalised path: name, and the content's number."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, int | None]] = {}
        self.links: dict[str, str] = {}

    def add(self, member: Member, tally: Tally) -> None:
        """Unpack a member."""
        if member.left_out is not None:
            tally.left_out[member.left_out] += 1
            return
        path, number = normalised(member.name), None if member.is_symbolic else member.number
        if member.target is not None and not member.is_symbolic:  # a hard link has what its target has by now
            number = self.files.get(member.target, ("", None))[1]
        tally.left_out.update([REPLACED] if self.files.pop(path, None) else [])
        self.links.pop(path, None)
        self.files[path] = member.name, number
        if member.is_symbolic and member.target is not None:
            self.links[path] = member.target

    def pictures(self, tally: Tally) -> list[tuple[int, str]]:
        """Return the numbers and the names of the pictures in the order of the numbers."""
        found = []
        for path, (name, _) in self.files.items():
            if not tally.takes(path.strip("/"), IMAGE_SUFFIXES):
                continue
            target = path
            for _ in range(MOST_LINKS):
                target = self.links.get(target, target)
            number = self.files.get(target, ("", None))[1]
            if number is None:
                tally.left_out[NO_TARGET] += 1
            else:
                tally.used += 1
                found.append((number, name))
        return sorted(found, key=lambda one: one[0])


def normalised(name: str) -> str:
    """Return the path of a member as unpacking would resolve it below the folder "/"."""
    return posixpath.normpath(f"/{name}").replace("//", "/")


def _zip_members(path: str, label: str) -> Iterator[Member]:
    with zipfile.ZipFile(path) as archive:
        for number, info in enumerate(zip_members(archive)):
            if info.is_dir():
                continue
            read = partial(_read_zip_member, label, archive, info)
            if not stat.S_ISLNK(info.external_attr >> 16):
                yield Member(number, info.filename, read)
                continue
            content = read(MOST_TARGET) if info.file_size <= MOST_TARGET else None
            target = content.getvalue().decode(errors="replace") if isinstance(content, io.BytesIO) else ""
            yield _symbolic(number, info.filename, target)


def _symbolic(number: int, name: str, target: str) -> Member:
    """Return a symbolic link; a target outside the archive is none of its members."""
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(name).lstrip("/"), target))
    is_inside = bool(target) and not reached.startswith(("/", ".."))
    return Member(number, name, None, normalised(reached) if is_inside else "", True)


def _read_zip_member(
    path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo, most_bytes: int,
) -> Content | SuperresError:
    label = f"{path}/{plain(info.filename)}"
    try:
        with archive.open(info) as file:
            return _limited(file, label, most_bytes)
    except DAMAGED as error:  # other members may still be readable
        return InvalidInputError(f"{label} cannot be unpacked ({reason_of(error)}); pack it again, without a password")


def reason_of(error: Exception) -> str:
    """Return the message of another library's error, printable."""
    return plain(str(error)) or type(error).__name__


def _tar_members(path: str, label: str) -> Iterator[Member]:
    with open(path, "rb") as content, open_tar(content) as archive:
        for number, info in enumerate(archive):
            if info.isfile() and (file := archive.extractfile(info)) is not None:
                yield Member(number, info.name, partial(_limited, file, f"{label}/{plain(info.name)}"))
            elif info.islnk():
                yield Member(number, info.name, None, normalised(info.linkname))
            elif info.issym():
                yield _symbolic(number, info.name, info.linkname)
            elif not info.isdir():
                yield Member(number, info.name, left_out=NO_FILE)
            archive.members = []  # type: ignore[attr-defined]  # keeps no members that were read


def _npz_members(path: str, label: str) -> Iterator[Member]:
    """See `scan`: the pictures of the array "lr" of a prepared data set, or of the only array."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        name = "lr.npy" if "lr.npy" in names else names[0] if len(names) == 1 else None
        if name is None:
            raise ValueError(f"it needs an array lr, or only one, not {', '.join(names) or 'none'}")
        stream, array = archive.open(name), name[:-4]
        shape, is_fortran, dtype = array_header(stream)
        if is_fortran or dtype != np.uint8 or len(shape) != 4 or shape[3] != 3 or 0 in shape[1:]:
            raise ValueError(f"{array} must be uint8 [N, H, W, 3], not {dtype} {list(shape)}")
        if math.prod(shape[1:]) > MAX_MEMBER_BYTES:
            raise ValueError(f"its pictures are too large: {shape[2]}x{shape[1]}")
        start = stream.tell()
        check_size(array, math.prod(shape), archive.getinfo(name), start)
        Gate.of(path).let(shape[0])
        for number in range(shape[0]):
            yield Member(number, f"{array}/{number:06d}", partial(_read_picture, stream, start, number, shape[1:]))
        for number, other in enumerate((other for other in names if other != name), shape[0]):
            yield Member(number, other, left_out=f"array {plain(other.removesuffix('.npy'))}")


def _parquet_members(path: str, label: str) -> Iterator[Member]:
    """See `scan`: the encoded images of a column. Their names are the keys, with the row's number if a key returns."""
    known = set[str]()
    for number, (key, content) in enumerate(parquet_rows(path, label)):
        name = (key or f"{number:06d}").strip("/")
        stem, suffix = os.path.splitext(name)
        if suffix.lower() not in IMAGE_SUFFIXES:
            stem, suffix = name, ".png"
        while stem in known:
            stem = f"{stem}-{number:06d}"
        known.add(stem)
        yield Member(number, f"{stem}{suffix}", partial(_limited, io.BytesIO(content), f"{label}/{plain(stem)}"))


def _read_picture(stream: IO[bytes], start: int, number: int, shape: tuple[int, ...], _most_bytes: int) -> Content:
    size = math.prod(shape)
    stream.seek(start + number * size)
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("it ends early")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _limited(file: IO[bytes], label: str, most_bytes: int) -> Content | SuperresError:
    content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        return InvalidInputError(f"{label} is over {most_bytes / 1e6:g} MB once unpacked; reduce it first")
    if not content:
        return InvalidInputError(f"{label} is empty (0 bytes); provide an image file")
    return io.BytesIO(content)
