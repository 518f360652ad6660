"""List the inputs of a batch (files, folders, globs, archives) in a stable order, and open them one after another.

Each of them may be a path or a URL (`superres.system.places`).
"""

from __future__ import annotations

import glob
import io
import itertools
import math
import os
import re
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from superres.batch.parquet_rows import parquet_rows
from superres.errors import InvalidInputError, SuperresError, plain
from superres.system.places import check_url, fetched, files_in, host_of, is_url, public, read_place
from superres.system.terminal import standard_input
from superres.system.unpacking import array_header, check_size, open_tar, zip_members
from superres.tasks.picture_files import IMAGE_SUFFIXES

ARCHIVE_SUFFIXES = (".zip", ".npz", ".parquet", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SUFFIXES = tuple(sorted(IMAGE_SUFFIXES))
MAX_MEMBER_BYTES = 500_000_000  # largest unpacked size of an archive's member in bytes, against zip bombs
LIST_BYTES = 1 << 20  # bytes of a list that are read together
READERS = 8  # threads that read from stores
READ_AHEAD = 32  # pictures that are requested from a store before they are needed
LOCAL = ("", "")  # stands for the paths of this machine among schemes and hosts
DAMAGED = Exception
"""Errors that readers raise on damaged archives: TarError and BadZipFile, but also TypeError and struct.error."""

Content = str | IO[bytes] | np.ndarray[Any, Any]
"""An image: the path of its file, its content, or its pixels uint8 [H, W, 3]."""
Members = Iterator[tuple[int, str, Callable[[], Content | SuperresError]]]


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

Files = Callable[[str, str, bool], Iterable["Input"]]
"""Returns the inputs of a file: its path or URL, that relative to the given input, and whether to keep the tree."""


def read_list(file: str) -> Iterator[str]:
    """Yield the inputs in a list: one per line, or separated by zero bytes as `find -print0` writes them.

    `file` is the place of the list; "-" is standard input. Raises InvalidInputError if the list cannot be read.
    """
    rest, is_zero_separated = b"", None
    with _open_list(file) as stream:
        while chunk := _read_list(stream, file):
            is_zero_separated = b"\0" in chunk if is_zero_separated is None else is_zero_separated
            content = rest + chunk
            *lines, rest = content.split(b"\0") if is_zero_separated else content.splitlines(keepends=True)
            yield from _names(lines, bool(is_zero_separated))
    yield from _names([rest], bool(is_zero_separated))


def _names(lines: Iterable[bytes], is_zero_separated: bool) -> Iterator[str]:
    return (os.fsdecode(line if is_zero_separated else line.rstrip(b"\r\n")) for line in lines if line.strip())


@contextmanager
def _open_list(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield standard_input()
        return
    with fetched(file) as path:
        try:
            opened = open(path, "rb")  # noqa: SIM115 -- closed below
        except OSError as error:
            raise InvalidInputError(f"cannot read the list {public(file)}: {error.strerror}; give a text file, or - "
                                    "for standard input") from error
        with opened:
            yield opened


def _read_list(stream: IO[bytes], file: str) -> bytes:
    try:
        return stream.read(LIST_BYTES)
    except OSError as error:
        raise InvalidInputError(f"cannot read {'standard input' if file == '-' else f'the list {public(file)}'}: "
                                f"{error.strerror}; give a text file, or - for standard input") from error


def find_inputs(
    inputs: Sequence[str], listed: Iterable[str], recursive: bool, keep_tree: bool, excluded: Path | str,
    allowed: frozenset[tuple[str, str]] = frozenset({LOCAL}), unpack: bool = True,
) -> Iterator[Input]:
    """Yield the images of all inputs in a stable order; a file that is named repeatedly is yielded repeatedly.

    `inputs` are files, folders, archives and globs, `listed` the same without globs. With `keep_tree`, an output's name
    includes the input's sub-folder. `excluded` is the folder of the outputs, which is not entered. `allowed` are the
    schemes and hosts that `listed` may name (`superres.system.places.host_of`, and `LOCAL`); others become inputs with
    an error. Unless `unpack`, an archive is an input itself. Raises InvalidInputError if a given folder cannot be
    listed, or a glob matches nothing.
    """
    files: Files = _file_inputs if unpack else (lambda *file: [_input(*file)])
    entered = {os.path.realpath(excluded)}
    for path, is_listed in itertools.chain(((path, False) for path in inputs), ((path, True) for path in listed)):
        host = host_of(path) if is_url(path) else LOCAL
        if is_listed and host not in allowed:
            yield Input(public(path), "", error=refusal(path))
        elif is_url(path):
            yield from _url_inputs(path, is_listed, recursive, keep_tree, str(excluded), files)
        elif os.path.isdir(path):
            if os.path.realpath(path) == os.path.realpath(excluded):
                raise InvalidInputError(f"{path} is both an input and the output folder; choose another with --output")
            for found in _walk(path, recursive, entered):
                if found.error is not None:
                    yield found
                else:
                    yield from files(found.input, os.path.relpath(found.input, path), keep_tree)
        elif not is_listed and not os.path.lexists(path) and glob.has_magic(path):
            yield from _glob_inputs(path, keep_tree, files)
        else:
            yield from files(path, path if is_listed else os.path.basename(path), keep_tree)


def refusal(path: str) -> str:
    """Return why an input of a list is not read, although the list names it."""
    if not is_url(path):
        return f"{path} is a path of this machine, which a list from elsewhere must not name; download the list first"
    scheme, host = host_of(path)
    return (f"{public(path)} is at a place that the command line does not name; add --allow {scheme}://{host} if the "
            "list may be trusted")


def _url_inputs(
    url: str, is_listed: bool, recursive: bool, keep_tree: bool, excluded: str, files: Files,
) -> Iterator[Input]:
    """Yield a picture, the members of an archive, or the pictures below a URL that ends with a slash or matches."""
    check_url(url)
    scheme, host = host_of(url)
    is_glob = not is_listed and scheme not in ("http", "https") and glob.has_magic(url)
    if is_glob:
        yield from _url_matches(url, keep_tree, excluded, files)
    elif url.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVE_SUFFIXES)):
        name = url.partition("://")[2]
        yield from files(url, name if is_listed else name.rpartition("/")[2], keep_tree)
    else:
        root = url.rstrip("/")
        root = root if root != f"{scheme}://{host}" else f"{root}/"
        for name in _visible(files_in(root, recursive=recursive), _SUFFIXES):
            found = f"{root.rstrip('/')}/{name}"
            if not found.startswith(f"{excluded.rstrip('/')}/"):
                yield from files(found, name, keep_tree)


def _url_matches(pattern: str, keep_tree: bool, excluded: str, files: Files) -> Iterator[Input]:
    from fsspec.utils import glob_translate

    scheme, _, path = pattern.partition("://")
    fixed = "/".join(itertools.takewhile(lambda part: not glob.has_magic(part), path.split("/")))
    root, rest, any_found = f"{scheme}://{fixed}", path[len(fixed):].strip("/"), False
    matches = re.compile(glob_translate(rest))
    start = re.split(r"[*?\[]", rest, maxsplit=1)[0]
    for name in _visible(files_in(root, start, recursive="/" in rest or "**" in rest),
                         (*IMAGE_SUFFIXES, *ARCHIVE_SUFFIXES)):
        found = f"{root}/{name}"
        if matches.match(name) and not found.startswith(f"{excluded.rstrip('/')}/"):
            any_found = True
            yield from files(found, name, keep_tree)
    if not any_found:
        raise InvalidInputError(f"nothing matches {public(pattern)}; check the pattern, and quote it from the shell")


def _visible(names: Iterable[str], suffixes: tuple[str, ...]) -> Iterator[str]:
    """Leave out names with other suffixes, and hidden files and folders."""
    return (name for name in names
            if name.lower().endswith(suffixes) and not any(part.startswith(".") for part in name.split("/")))


def _glob_inputs(pattern: str, keep_tree: bool, files: Files) -> Iterator[Input]:
    found = sorted(glob.iglob(pattern, recursive=True))
    if not found:
        raise InvalidInputError(f"nothing matches {pattern}; check the pattern, and quote it from the shell")
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), Path(pattern).parts)
    root = os.path.join(".", *fixed)  # the folder before the pattern's first wildcard
    for match in found:
        if not os.path.isdir(match) and match.lower().endswith((*IMAGE_SUFFIXES, *ARCHIVE_SUFFIXES)):
            yield from files(match, os.path.relpath(match, root), keep_tree)


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
    if not is_archive(path):
        yield _input(path, relative, keep_tree)
        return
    try:
        with fetched(path) as copy:
            for number, name, _ in _members(copy, path):
                yield _member_input(path, relative, name, number, keep_tree)
    except SuperresError as error:
        yield Input(path, "", error=str(error))
    except DAMAGED as error:
        yield Input(path, "", error=_damaged(path, error))


def is_archive(path: str) -> bool:
    """Return whether a path or URL has the name of an archive, whose members are inputs."""
    return path.lower().endswith(ARCHIVE_SUFFIXES)


def _damaged(path: str, error: Exception) -> str:
    return f"{path} is damaged or not an archive ({_reason(error)}); pack it again"


def _member_input(path: str, relative: str, name: str, number: int, keep_tree: bool) -> Input:
    """Return the input of a member of an archive, whose own path is `path`."""
    base = next(relative[: -len(suffix)] for suffix in reversed(ARCHIVE_SUFFIXES) if relative.lower().endswith(suffix))
    if path.lower().endswith(".npz"):
        below = f"{base}/{number:06d}.png" if keep_tree else f"{os.path.basename(base)}-{number:06d}.png"
    else:
        below = f"{base}/{name}" if keep_tree else name
    return _input(f"{path}/{name}", below, keep_tree, path, number)


def read_archive(archive: str, prefix: str | None) -> Iterator[tuple[Input, Content | SuperresError]]:
    """Yield the members of an archive and their content in one pass.

    The outputs' names are those of the members with their folders, below `prefix`, the archive's path without suffix if
    that is None. A damaged archive yields an input with an error after those that could be read. Raises PlaceError.
    """
    with fetched(archive) as path:
        try:
            for number, name, read in _members(path, archive):
                if prefix is None:
                    entry = _member_input(archive, archive.partition("://")[2] or archive, name, number, True)
                elif archive.lower().endswith(".npz"):
                    entry = _member_input(archive, os.path.basename(archive), name, number, False)
                else:
                    entry = _input(f"{archive}/{name}", f"{prefix}{name}", True, archive, number)
                yield entry, read() if entry.error is None else InvalidInputError(entry.error)
        except DAMAGED as error:
            message = str(error) if isinstance(error, SuperresError) else _damaged(archive, error)
            yield Input(archive, "", error=message), InvalidInputError(message)


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


def open_inputs(entries: Iterable[Input]) -> Iterator[tuple[Input, Content | SuperresError]]:
    """Yield the content of inputs in their order, or the error why one cannot be read.

    Archives are read as streams, and pictures of stores by several threads ahead of their turn.
    """
    for (archive, at_url), group in itertools.groupby(entries, key=lambda entry: (entry.archive, is_url(entry.input))):
        if archive is not None:
            yield from _open_members(archive, group)
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


def _open_members(archive: str, entries: Iterator[Input]) -> Iterator[tuple[Input, Content | SuperresError]]:
    entry, problem = next(entries, None), "it ends early"
    try:
        with fetched(archive) as path:
            for number, _, read in _members(path, archive):
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


def _members(path: str, name: str) -> Members:
    """Yield the number and the name of each image in the archive `name`, whose content is the file `path`.

    The third value is a function that reads the image, and must be called at once.
    """
    kind = name.lower()
    readers = {".npz": _npz_members, ".zip": _zip_members, ".parquet": _parquet_members}
    return readers.get(os.path.splitext(kind)[1], _tar_members)(path, name)


def _zip_members(path: str, label: str) -> Members:
    with zipfile.ZipFile(path) as archive:
        for number, info in enumerate(zip_members(archive)):
            if not info.is_dir() and _is_picture(info.filename):
                yield number, info.filename, partial(_read_zip_member, label, archive, info)


def _read_zip_member(path: str, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Content | SuperresError:
    label = f"{path}/{plain(info.filename)}"
    try:
        with archive.open(info) as file:
            return _limited(file, label)
    except DAMAGED as error:  # other members may still be readable
        return InvalidInputError(f"{label} cannot be unpacked ({_reason(error)}); pack it again, without a password")


def _tar_members(path: str, label: str) -> Members:
    with open(path, "rb") as content, open_tar(content) as archive:
        for number, info in enumerate(archive):
            if info.isfile() and _is_picture(info.name) and (file := archive.extractfile(info)) is not None:
                yield number, info.name, partial(_limited, file, f"{label}/{plain(info.name)}")
            archive.members = []  # type: ignore[attr-defined]  # keeps no members that were read


def _npz_members(path: str, label: str) -> Members:
    """See `_members`: the images of the array "lr" of a prepared data set, or of the only array."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        name = "lr.npy" if "lr.npy" in names else names[0] if len(names) == 1 else None
        if name is None:
            raise ValueError(f"it needs an array lr, or only one, not {', '.join(names) or 'none'}")
        stream, array = archive.open(name), name[:-4]
        shape, is_fortran, dtype = array_header(stream)
        if is_fortran or dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
            raise ValueError(f"{array} must be uint8 [N, H, W, 3], not {dtype} {list(shape)}")
        if int(np.prod(shape[1:], dtype=object)) > MAX_MEMBER_BYTES:
            raise ValueError(f"its pictures are too large: {shape[2]}x{shape[1]}")
        start = stream.tell()
        check_size(array, math.prod(shape), archive.getinfo(name), start)
        for number in range(shape[0]):
            yield number, f"{array}/{number:06d}", partial(_read_picture, stream, start, number, shape[1:])


def _parquet_members(path: str, label: str) -> Members:
    """See `_members`: the encoded images of a column, with the keys of another column if there is one."""
    for number, (key, content) in enumerate(parquet_rows(path, label)):
        name = (key or f"{number:06d}").strip("/")
        name = name if name.lower().endswith(_SUFFIXES) else f"{name}.png"
        yield number, name, partial(_limited, io.BytesIO(content), f"{label}/{plain(name)}")


def _read_picture(stream: IO[bytes], start: int, number: int, shape: tuple[int, ...]) -> Content:
    size = math.prod(shape)
    stream.seek(start + number * size)
    content = stream.read(size)
    if len(content) < size:
        raise EOFError("it ends early")
    return np.frombuffer(content, np.uint8).reshape(shape)


def _limited(file: IO[bytes], label: str) -> Content | SuperresError:
    content = file.read(MAX_MEMBER_BYTES + 1)
    if len(content) > MAX_MEMBER_BYTES:
        return InvalidInputError(f"{label} is over {MAX_MEMBER_BYTES // 1_000_000} MB once unpacked; reduce it first")
    if not content:
        return InvalidInputError(f"{label} is empty (0 bytes); provide an image file")
    return io.BytesIO(content)
