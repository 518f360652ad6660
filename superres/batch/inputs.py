"""List the inputs of a batch (files, folders, globs, archives) in a stable order, and open them one after another."""

from __future__ import annotations

import glob
import io
import itertools
import os
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from superres.errors import InvalidInputError, plain
from superres.system.terminal import read_standard_input
from superres.tasks.pictures import IMAGE_SUFFIXES

TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SUFFIXES = tuple(sorted(IMAGE_SUFFIXES))
ARCHIVE_SUFFIXES = (".zip", ".npz", *TAR_SUFFIXES)
MAX_MEMBER_BYTES = 500_000_000
"""Largest unpacked size of an archive's member in bytes, against zip bombs."""
DAMAGED = Exception
"""Errors that readers raise on damaged archives: TarError and BadZipFile, but also TypeError and struct.error."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input image.

    Attributes:
        input: name in the manifest: a path; for a member of an archive, the archive's path and the member's name.
        name: path of the output below the output folder, without suffix.
        archive: path of the archive that contains the image, or None for a file.
        member: number of the member in the archive.
        error: reason why the input cannot be read, if listing found one; such a entry has no `name`.
    """

    input: str
    name: str
    archive: str | None = None
    member: int = 0
    error: str | None = None


def is_archive(path: str) -> bool:
    """Return whether a file's name has the suffix of an archive."""
    return path.lower().endswith(ARCHIVE_SUFFIXES)


def read_list(file: str) -> list[str]:
    """Return the paths in a list: one per line, or separated by zero bytes as `find -print0` writes them.

    Args:
        file: path of the list; "-" is standard input.

    Raises:
        InvalidInputError: the list cannot be read.
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
    """Yield the entries of all inputs in a stable order; a file that is named repeatedly is yielded repeatedly.

    Args:
        inputs: files, folders, archives and globs.
        listed: files, folders and archives.
        recursive: descend into sub-folders.
        keep_tree: include the input's sub-folder in the output's name.
        excluded: folder of the outputs, which is not entered.

    Raises:
        InvalidInputError: a given folder cannot be listed, or a glob matches nothing.
    """
    entered = {os.path.realpath(excluded)}
    for path in inputs:
        if not os.path.lexists(path) and glob.has_magic(path):
            found = sorted(glob.iglob(path, recursive=True))
            if not found:
                raise InvalidInputError(f"nothing matches {path}; check the pattern, and quote it from the shell")
            fixed = itertools.takewhile(lambda part: not glob.has_magic(part), Path(path).parts)
            root = os.path.join(".", *fixed)  # the folder before the pattern's first wildcard
            for match in found:
                if not os.path.isdir(match) and match.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVE_SUFFIXES)):
                    yield from _file_inputs(match, os.path.relpath(match, root), keep_tree)
        elif os.path.isdir(path):
            yield from _folder_inputs(path, recursive, keep_tree, entered, excluded)
        else:
            yield from _file_inputs(path, os.path.basename(path), keep_tree)
    for path in listed:
        if os.path.isdir(path):
            yield from _folder_inputs(path, recursive, keep_tree, entered, excluded)
        else:
            yield from _file_inputs(path, path, keep_tree)


def list_inputs(inputs: Sequence[Path], recursive: bool, excluded: Path) -> list[Path]:
    """Return the files in `inputs` and in the folders of `inputs`, in a stable order and without repetitions.

    A given file is returned whether it exists or not; see `walk` for folders.

    Raises:
        InvalidInputError: a folder cannot be listed, or there is no file.
    """
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
        raise InvalidInputError(f"no image ({' '.join(sorted(IMAGE_SUFFIXES))}) in {', '.join(map(str, inputs))}{hint}")


def distinct(entries: Iterable[Input]) -> Iterable[Input]:
    """Leave out repeated inputs; paths are compared in their absolute form."""
    seen = set()
    for entry in entries:
        name = os.path.abspath(entry.input)
        if name not in seen:
            seen.add(name)
            yield entry


def _folder_inputs(
    path: str, recursive: bool, keep_tree: bool, entered: set[str], excluded: Path,
) -> Iterator[Input]:
    if os.path.realpath(path) == os.path.realpath(excluded):
        raise InvalidInputError(f"{path} is both an input and the output folder; choose another with --output")
    for found in walk(path, recursive, entered):
        if found.error is not None:
            yield found
        else:
            yield from _file_inputs(found.input, os.path.relpath(found.input, path), keep_tree)


def walk(folder: str, recursive: bool, entered: set[str]) -> Iterator[Input]:
    """Yield the images in a folder sorted by name, then those of its sub-folders.

    Hidden names are left out, and each real folder is entered only once, even if symbolic links lead to it again. A
    sub-folder that cannot be listed is yielded as a entry with an error.

    Args:
        folder: the folder.
        recursive: descend into sub-folders.
        entered: real paths of the folders entered so far; updated in place.

    Raises:
        InvalidInputError: `folder` itself cannot be listed.
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
    """Return the result of a check of a folder entry; False if it raises OSError, as for a link to itself."""
    try:
        return check()
    except OSError:
        return False


def _file_inputs(path: str, relative: str, keep_tree: bool) -> Iterator[Input]:
    """Yield the entry of a file, or the entries of the members of an archive.

    Args:
        path: the file.
        relative: path of the file relative to the given input.
        keep_tree: include the input's sub-folder in the output's name.
    """
    if not is_archive(path):
        yield _input(path, relative, keep_tree)
        return
    base = next(relative[: -len(suffix)] for suffix in reversed(ARCHIVE_SUFFIXES) if relative.lower().endswith(suffix))
    try:
        kind = path.lower()
        lister = _list_npz if kind.endswith(".npz") else _list_zip if kind.endswith(".zip") else _list_tar
        for number, name in lister(path):
            if lister is _list_npz:
                stem = f"{base}/{number:06d}" if keep_tree else f"{os.path.basename(base)}-{number:06d}"
                yield _input(f"{path}/{name}", f"{stem}.png", keep_tree, path, number)
            else:
                yield _input(f"{path}/{name}", f"{base}/{name}" if keep_tree else name, keep_tree, path, number)
    except DAMAGED as error:
        reason = plain(str(error)) or type(error).__name__
        yield Input(path, "", error=f"{path} is damaged or not an archive ({reason}); pack it again")


def _input(path: str, relative: str, keep_tree: bool, archive: str | None = None, member: int = 0) -> Input:
    pure = PurePosixPath(os.path.normpath(relative.replace(os.sep, "/")).replace(os.sep, "/"))
    parts = pure.parts[1:] if pure.is_absolute() else pure.parts
    if keep_tree and (".." in parts or not parts):
        return Input(path, "", error=f"{_display_path(path, archive)} lies outside the folder that it would be written "
                                   "to; leave out --keep-tree")
    return Input(path, "/".join([*parts[:-1], pure.stem]) if keep_tree else pure.stem, archive, member)


def _display_path(path: str, archive: str | None) -> str:
    """Return a entry's path for messages; the names of members may be long and contain any character."""
    return path if archive is None else f"{archive}/{plain(path[len(archive) + 1:])}"


def _is_picture(name: str) -> bool:
    pure = PurePosixPath(name)
    return pure.suffix.lower() in IMAGE_SUFFIXES and pure.name[0] != "." and pure.parts[0] != "__MACOSX"


def _list_zip(path: str) -> Iterator[tuple[int, str]]:
    with zipfile.ZipFile(path) as archive:
        for number, info in enumerate(archive.infolist()):
            if not info.is_dir() and _is_picture(info.filename):
                yield number, info.filename


def _tar_members(path: str) -> Iterator[tuple[int, tarfile.TarInfo, tarfile.TarFile]]:
    """Read a tar file of any compression as a stream, without keeping the members that were read."""
    with tarfile.open(path, "r|*") as archive:
        for number, info in enumerate(archive):
            yield number, info, archive
            archive.members = []  # type: ignore[attr-defined]


def _list_tar(path: str) -> Iterator[tuple[int, str]]:
    for number, info, _ in _tar_members(path):
        if info.isfile() and _is_picture(info.name):
            yield number, info.name


def _open_array(archive: zipfile.ZipFile) -> tuple[str, IO[bytes], tuple[int, ...]]:
    """Open the images in an .npz file: the array "lr" of a prepared data set, or the only array, uint8 [N, H, W, 3].

    Returns:
        The name of the array, a stream at its first image, and its shape.

    Raises:
        ValueError: there is no such array, or its type, shape or size is not supported.
    """
    names = [info.filename for info in archive.infolist()]
    name = "lr.npy" if "lr.npy" in names else names[0] if len(names) == 1 else None
    if name is None:
        raise ValueError(f"it needs an array lr, or only one, not {', '.join(names) or 'none'}")
    stream = archive.open(name)
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if fortran or dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
        raise ValueError(f"{name[:-4]} must be uint8 [N, H, W, 3], not {dtype} {list(shape)}")
    if int(np.prod(shape[1:], dtype=object)) > MAX_MEMBER_BYTES:
        raise ValueError(f"its pictures are too large: {shape[2]}x{shape[1]}")
    return name[:-4], stream, shape


def _list_npz(path: str) -> Iterator[tuple[int, str]]:
    with zipfile.ZipFile(path) as archive:
        name, _, shape = _open_array(archive)
        for number in range(shape[0]):
            yield number, f"{name}/{number:06d}"


Content = str | IO[bytes] | np.ndarray[Any, Any]
"""An image: the path of its file, its content, or its pixels uint8 [H, W, 3]."""


def open_inputs(entries: Iterable[Input]) -> Iterator[tuple[Input, Content | InvalidInputError]]:
    """Yield the content of each entry's image, or the error why it cannot be read; archives are read as streams.

    Args:
        entries: entries in the order of their listing; entries may be left out.
    """
    for archive, group in itertools.groupby(entries, key=lambda entry: entry.archive):
        if archive is None:
            for entry in group:
                yield entry, entry.input if entry.error is None else InvalidInputError(entry.error)
        else:
            yield from _open_members(archive, group)


def _open_members(archive: str, entries: Iterator[Input]) -> Iterator[tuple[Input, Content | InvalidInputError]]:
    kind = archive.lower()
    reader = _read_npz if kind.endswith(".npz") else _read_zip if kind.endswith(".zip") else _read_tar
    entry = next(entries, None)
    contents = reader(archive)
    problem = "it ends early"
    try:
        next(contents)
        while entry is not None:
            try:
                content = contents.send(entry.member)
            except StopIteration:
                break
            yield entry, content
            entry = next(entries, None)
    except DAMAGED as error:
        problem = plain(str(error)) or type(error).__name__
    for left in itertools.chain([entry] if entry is not None else [], entries):
        yield left, InvalidInputError(
            f"{_display_path(left.input, archive)} cannot be unpacked ({problem}); pack {archive} again")


Members = Generator[Any, int, None]
"""A generator that receives the numbers of members, in rising order, and yields their contents; `next` starts it."""


def _read_zip(path: str) -> Members:
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        content: Content | InvalidInputError | None = None
        while True:
            number = yield content
            label = f"{path}/{plain(members[number].filename)}"
            try:
                with archive.open(members[number]) as file:
                    content = _limited(file, label)
            except DAMAGED as error:  # other members may still be readable
                reason = plain(str(error)) or type(error).__name__
                content = InvalidInputError(f"{label} cannot be unpacked ({reason}); pack it again, without a password")


def _read_tar(path: str) -> Members:
    number = yield None
    for here, info, archive in _tar_members(path):
        if here == number:
            file = archive.extractfile(info)
            if file is None:
                raise ValueError(f"{plain(info.name)} is not a file")
            number = yield _limited(file, f"{path}/{plain(info.name)}")


def _read_npz(path: str) -> Members:
    with zipfile.ZipFile(path) as archive:
        _, stream, shape = _open_array(archive)
        size = int(np.prod(shape[1:]))
        here, picture = 0, None
        while True:
            number = yield picture
            for _ in range(here, number):
                stream.read(size)
            content = stream.read(size)
            if len(content) < size:
                raise EOFError("it ends early")
            picture, here = np.frombuffer(content, np.uint8).reshape(shape[1:]), number + 1


def _limited(file: IO[bytes], label: str) -> Content | InvalidInputError:
    content = file.read(MAX_MEMBER_BYTES + 1)
    if len(content) > MAX_MEMBER_BYTES:
        return InvalidInputError(f"{label} is over {MAX_MEMBER_BYTES // 1_000_000} MB once unpacked; reduce it first")
    if not content:
        return InvalidInputError(f"{label} is empty (0 bytes); provide an image file")
    return io.BytesIO(content)
