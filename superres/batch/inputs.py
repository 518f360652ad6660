"""List the inputs of a batch (files, folders, globs, archives) in a stable order, and open them one after another."""

from __future__ import annotations

import glob
import io
import itertools
import math
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from superres.errors import InvalidInputError, plain
from superres.system.terminal import read_standard_input
from superres.tasks.pictures import IMAGE_SUFFIXES

ARCHIVE_SUFFIXES = (".zip", ".npz", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SUFFIXES = tuple(sorted(IMAGE_SUFFIXES))
MAX_MEMBER_BYTES = 500_000_000  # largest unpacked size of an archive's member in bytes, against zip bombs
DAMAGED = Exception
"""Errors that readers raise on damaged archives: TarError and BadZipFile, but also TypeError and struct.error."""

Content = str | IO[bytes] | np.ndarray[Any, Any]
"""An image: the path of its file, its content, or its pixels uint8 [H, W, 3]."""
Members = Iterator[tuple[int, str, Callable[[], Content | InvalidInputError]]]


@dataclass(frozen=True, slots=True)
class Input:
    """One input image.

    Attributes:
        input: name in the manifest: a path; for a member of an archive, the archive's path and the member's name.
        name: path of the output below the output folder, without suffix.
        archive: path of the archive that contains the image, or None for a file.
        member: number of the member in the archive.
        error: reason why the input cannot be read, if listing found one; such an input has no `name`.
    """

    input: str
    name: str
    archive: str | None = None
    member: int = 0
    error: str | None = None


def read_list(file: str) -> list[str]:
    """Return the paths in a list: one per line, or separated by zero bytes as `find -print0` writes them.

    `file` is the path of the list; "-" is standard input. Raises InvalidInputError if the list cannot be read.
    """
    try:
        content = read_standard_input() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"cannot read the list {file}: {error.strerror}; give a text file, or - for standard "
                                "input") from error
    lines = content.split(b"\0") if b"\0" in content else content.splitlines()
    return [os.fsdecode(line) for line in lines if line.strip()]


def find_inputs(
    inputs: Sequence[str], listed: Sequence[str], recursive: bool, keep_tree: bool, excluded: Path,
) -> Iterator[Input]:
    """Yield the images of all inputs in a stable order; a file that is named repeatedly is yielded repeatedly.

    `inputs` are files, folders, archives and globs, `listed` the same without globs. With `keep_tree`, an output's name
    includes the input's sub-folder. `excluded` is the folder of the outputs, which is not entered. Raises
    InvalidInputError if a given folder cannot be listed, or a glob matches nothing.
    """
    entered = {os.path.realpath(excluded)}
    for number, path in enumerate([*inputs, *listed]):
        is_listed = number >= len(inputs)
        if os.path.isdir(path):
            if os.path.realpath(path) == os.path.realpath(excluded):
                raise InvalidInputError(f"{path} is both an input and the output folder; choose another with --output")
            for found in _walk(path, recursive, entered):
                if found.error is not None:
                    yield found
                else:
                    yield from _file_inputs(found.input, os.path.relpath(found.input, path), keep_tree)
        elif not is_listed and not os.path.lexists(path) and glob.has_magic(path):
            yield from _glob_inputs(path, keep_tree)
        else:
            yield from _file_inputs(path, path if is_listed else os.path.basename(path), keep_tree)


def _glob_inputs(pattern: str, keep_tree: bool) -> Iterator[Input]:
    found = sorted(glob.iglob(pattern, recursive=True))
    if not found:
        raise InvalidInputError(f"nothing matches {pattern}; check the pattern, and quote it from the shell")
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)
    root = os.path.join(".", *fixed)  # the folder before the pattern's first wildcard
    for match in found:
        if not os.path.isdir(match) and match.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVE_SUFFIXES)):
            yield from _file_inputs(match, os.path.relpath(match, root), keep_tree)


def list_inputs(inputs: Sequence[Path], recursive: bool, excluded: Path) -> list[Path]:
    """Return the distinct image files of `find_inputs`; raise InvalidInputError if there is none, or no access."""
    found = find_inputs([str(path) for path in inputs], [], recursive, False, excluded)
    files = [entry for entry in distinct(found) if entry.archive is None]
    for entry in files:
        if entry.error is not None:
            raise InvalidInputError(entry.error)
    require_inputs(files, inputs, recursive)
    return [Path(entry.input) for entry in files]


def require_inputs(entries: Sequence[Input], inputs: Sequence[object], recursive: bool) -> None:
    """Raise InvalidInputError if `inputs` yielded no entries."""
    if not entries:
        hint = "" if recursive else "; add --recursive to include sub-folders"
        raise InvalidInputError(f"no image ({' '.join(_SUFFIXES)}) in {', '.join(map(str, inputs))}{hint}")


def distinct(entries: Iterable[Input]) -> Iterable[Input]:
    """Leave out repeated inputs; paths are compared in their absolute form."""
    seen = set()
    for entry in entries:
        name = os.path.abspath(entry.input)
        if name not in seen:
            seen.add(name)
            yield entry


def _walk(folder: str, recursive: bool, entered: set[str]) -> Iterator[Input]:
    """Yield the images in a folder sorted by name, then those of its sub-folders.

    Hidden names are left out, and each real folder is entered only once (`entered`), even if symbolic links lead to it
    again. A sub-folder that cannot be listed is yielded as an input with an error; for `folder`, the error is raised.
    """
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            real = os.path.realpath(here)
            if real in entered:
                continue
            entered.add(real)
            with os.scandir(here) as entries:
                visible = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
            below = [entry.path for entry in visible if recursive and _succeeds(entry.is_dir)]
        except OSError as error:
            if here == folder:
                raise InvalidInputError(f"cannot list the folder {here}: {error.strerror}") from error
            yield Input(here, "", error=f"cannot list the folder {here}: {error.strerror}; check its permissions")
            continue
        for entry in visible:
            # Pipes and devices could block forever. Dangling links are yielded, so that their rows fail.
            if entry.name.lower().endswith(_SUFFIXES) and (_succeeds(entry.is_file) or not os.path.exists(entry)):
                yield Input(entry.path, "")
        waiting += reversed(below)


def _succeeds(check: Callable[[], bool]) -> bool:
    """Return the result of a check of a folder's entry; False if it raises OSError, as for a link to itself."""
    try:
        return check()
    except OSError:
        return False


def _file_inputs(path: str, relative: str, keep_tree: bool) -> Iterator[Input]:
    """Yield a file, or the members of an archive; `relative` is its path relative to the given input."""
    kind = path.lower()
    if not kind.endswith(ARCHIVE_SUFFIXES):
        yield _input(path, relative, keep_tree)
        return
    base = next(relative[: -len(suffix)] for suffix in reversed(ARCHIVE_SUFFIXES) if relative.lower().endswith(suffix))
    try:
        for number, name, _ in _members(path):
            if kind.endswith(".npz"):
                below = f"{base}/{number:06d}.png" if keep_tree else f"{os.path.basename(base)}-{number:06d}.png"
            else:
                below = f"{base}/{name}" if keep_tree else name
            yield _input(f"{path}/{name}", below, keep_tree, path, number)
    except DAMAGED as error:
        yield Input(path, "", error=f"{path} is damaged or not an archive ({_reason(error)}); pack it again")


def _input(path: str, relative: str, keep_tree: bool, archive: str | None = None, member: int = 0) -> Input:
    pure = PurePosixPath(os.path.normpath(relative.replace(os.sep, "/")).replace(os.sep, "/"))
    parts = pure.parts[1:] if pure.is_absolute() else pure.parts
    if keep_tree and (".." in parts or not parts):
        return Input(path, "", error=f"{_display_path(path, archive)} lies outside the folder that it would be written "
                                   "to; leave out --keep-tree")
    return Input(path, "/".join([*parts[:-1], pure.stem]) if keep_tree else pure.stem, archive, member)


def _display_path(path: str, archive: str | None) -> str:
    """Return an input's path for messages; the names of members may be long and contain any character."""
    return path if archive is None else f"{archive}/{plain(path[len(archive) + 1:])}"


def _reason(error: Exception) -> str:
    return plain(str(error)) or type(error).__name__


def _is_picture(name: str) -> bool:
    pure = PurePosixPath(name)
    return pure.suffix.lower() in IMAGE_SUFFIXES and pure.name[0] != "." and pure.parts[0] != "__MACOSX"


def open_inputs(entries: Iterable[Input]) -> Iterator[tuple[Input, Content | InvalidInputError]]:
    """Yield the content of inputs in their order, or the error why one cannot be read; archives are read as streams."""
    for archive, group in itertools.groupby(entries, key=lambda entry: entry.archive):
        if archive is None:
            for entry in group:
                yield entry, entry.input if entry.error is None else InvalidInputError(entry.error)
        else:
            yield from _open_members(archive, group)


def _open_members(archive: str, entries: Iterator[Input]) -> Iterator[tuple[Input, Content | InvalidInputError]]:
    entry, problem = next(entries, None), "it ends early"
    try:
        for number, _, read in _members(archive):
            if entry is None:
                return
            if number == entry.member:
                yield entry, read()
                entry = next(entries, None)
    except DAMAGED as error:
        problem = _reason(error)
    for left in itertools.chain([entry] if entry is not None else [], entries):
        yield left, InvalidInputError(
            f"{_display_path(left.input, archive)} cannot be unpacked ({problem}); pack {archive} again")


def _members(path: str) -> Members:
    """Yield the number and the name of each image in an archive, and a function that reads it at once."""
    kind = path.lower()
    return _npz_members(path) if kind.endswith(".npz") else _zip_members(path) if kind.endswith(".zip") else \
        _tar_members(path)


def _zip_members(path: str) -> Members:
    with zipfile.ZipFile(path) as archive:
        for number, info in enumerate(archive.infolist()):
            if not info.is_dir() and _is_picture(info.filename):
                yield number, info.filename, partial(_read_zip_member, path, archive, info)


def _read_zip_member(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Content | InvalidInputError:
    label = f"{path}/{plain(info.filename)}"
    try:
        with archive.open(info) as file:
            return _limited(file, label)
    except DAMAGED as error:  # other members may still be readable
        return InvalidInputError(f"{label} cannot be unpacked ({_reason(error)}); pack it again, without a password")


def _tar_members(path: str) -> Members:
    with tarfile.open(path, "r|*") as archive:  # a stream of any compression
        for number, info in enumerate(archive):
            if info.isfile() and _is_picture(info.name) and (file := archive.extractfile(info)) is not None:
                yield number, info.name, partial(_limited, file, f"{path}/{plain(info.name)}")
            archive.members = []  # type: ignore[attr-defined]  # keeps no members that were read


def _npz_members(path: str) -> Members:
    """See `_members`: the images of the array "lr" of a prepared data set, or of the only array."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        name = "lr.npy" if "lr.npy" in names else names[0] if len(names) == 1 else None
        if name is None:
            raise ValueError(f"it needs an array lr, or only one, not {', '.join(names) or 'none'}")
        stream, array = archive.open(name), name[:-4]
        version = np.lib.format.read_magic(stream)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(stream)
        if fortran or dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
            raise ValueError(f"{array} must be uint8 [N, H, W, 3], not {dtype} {list(shape)}")
        if int(np.prod(shape[1:], dtype=object)) > MAX_MEMBER_BYTES:
            raise ValueError(f"its pictures are too large: {shape[2]}x{shape[1]}")
        start = stream.tell()
        for number in range(shape[0]):
            yield number, f"{array}/{number:06d}", partial(_read_picture, stream, start, number, shape[1:])


def _read_picture(stream: IO[bytes], start: int, number: int, shape: tuple[int, ...]) -> Content:
    size = math.prod(shape)
    stream.seek(start + number * size)
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("it ends early")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _limited(file: IO[bytes], label: str) -> Content | InvalidInputError:
    content = file.read(MAX_MEMBER_BYTES + 1)
    if len(content) > MAX_MEMBER_BYTES:
        return InvalidInputError(f"{label} is over {MAX_MEMBER_BYTES // 1_000_000} MB once unpacked; reduce it first")
    if not content:
        return InvalidInputError(f"{label} is empty (0 bytes); provide an image file")
    return io.BytesIO(content)
