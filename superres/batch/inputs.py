"""List the inputs of a batch (files, folders, globs, archives) in a stable order.

Each of them may be a path or a URL (`superres.system.places`). Whatever a folder, a pattern or an
archive has that is no input is counted (`superres.system.folders`).
"""

from __future__ import annotations

import glob
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from superres.batch.archives import ARCHIVE_SUFFIXES, DAMAGED, is_archive, list_members, reason_of
from superres.errors import ConfigError, InvalidInputError, PlaceError, SuperresError, plain
from superres.pictures.files import IMAGE_SUFFIXES
from superres.system.confined import KilledError
from superres.system.folders import MEMBER, Inventory, Tally, walk_folder
from superres.system.places import (
    READ_ONLY,
    check_url,
    exists,
    fetched,
    files_in,
    host_of,
    is_url,
    public,
    version_of,
)
from superres.system.terminal import standard_input
from superres.system.text_files import read_lines

_SUFFIXES = tuple(sorted(IMAGE_SUFFIXES))
_MATCHED = (*_SUFFIXES, *ARCHIVE_SUFFIXES)  # suffixes of what a pattern gives
LOCAL = ("", "")  # stands for the paths of this machine among schemes and hosts


@dataclass(frozen=True, slots=True)
class Input:
    """One input image.

    Attributes:
        input: name in the manifest: a path; for a member of an archive, the archive's path and the
            member's name.
        name: path of the output below the output folder, without suffix.
        archive: path of the archive that contains the image, or None for a file.
        member: number of the member in the archive.
        error: reason why the input cannot be read, if listing found one; such an input has no
            `name`.
        version: text that changes when the input's file, or its archive, is changed; None where
            listing does not tell.
    """

    input: str
    name: str
    archive: str | None = None
    member: int = 0
    error: str | None = None
    version: str | None = None

    @property
    def key(self) -> int:
        """A digest of what is read, 64 bits."""
        return digest_of(self.input, self.version)


def digest_of(*texts: str | None) -> int:
    """Return a 64-bit digest of texts."""
    text = "\0".join(text or "" for text in texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def read_list(file: str) -> Iterator[str]:
    """Yield the inputs in a list: one per line, or separated by zero bytes as `find -print0` writes
    them.

    `file` is the place of the list; "-" is standard input. Raises InvalidInputError if the list
    cannot be read.
    """
    origin = "standard input" if file == "-" else f"the list {public(file)}"
    try:
        with _open_list(file) as stream:
            yield from filter(str.strip, read_lines(stream, origin, zero_separated=True))
    except OSError as error:
        raise InvalidInputError(f"cannot read {origin}: {error.strerror}; give a text file, or - "
                                "for standard input") from error


@contextmanager
def _open_list(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield standard_input()
        return
    with fetched(file) as path, open(path, "rb") as opened:
        yield opened


def find_inputs(
    inputs: Sequence[str], listed: Iterable[str], recursive: bool, keep_tree: bool,
    excluded: Path | str, allowed: frozenset[tuple[str, str]] = frozenset({LOCAL}),
    layout: str | None = None,
) -> Iterator[Input]:
    """Yield the images of all inputs in a stable order; a file that is named repeatedly is yielded
    repeatedly.

    `inputs` are files, folders, archives and globs. `listed` are the lines of a list: the same
    without globs, and folders end with a slash. With `keep_tree`, an output's name includes the
    input's sub-folder. `excluded` is the folder of the outputs, which is not entered. `allowed` are
    the schemes and hosts that `listed` may name (`superres.system.places.host_of`, and `LOCAL`).
    `layout` is that of a run in parts, where members have their names in the archive: alone in
    shards, and below a folder of the archive's name otherwise. A line prints what each folder,
    pattern and archive has that is no input.

    A line of the list that is not valid becomes an input with an error, and so does an archive that
    is damaged, after its members before the damage. Raises InvalidInputError if a given folder
    cannot be listed, or a glob matches nothing; PlaceError.
    """
    search = _Search(recursive, keep_tree, str(excluded), layout)
    for path in inputs:
        yield from search.given(path)
    for path in listed:
        try:
            if (host_of(path) if is_url(path) else LOCAL) not in allowed:
                raise InvalidInputError(refusal(path))
            yield from search.line(path)
        except (InvalidInputError, ConfigError) as error:
            yield Input(public(path), "", error=str(error))
    search.inventory.finish()


def refusal(path: str) -> str:
    """Return why an input of a list is not read, although the list names it."""
    if not is_url(path):
        return (f"{path} is a path of this machine, which a list from elsewhere must not name; "
                "download the list first")
    scheme, host = host_of(path)
    return (f"{public(path)} is at a place that the command line does not name; add --allow "
            f"{scheme}://{host.rpartition('@')[2]} if the list may be trusted")


@dataclass
class _Search:
    """The arguments of `find_inputs` that hold for all inputs, and what has been found so far."""

    recursive: bool
    keep_tree: bool
    excluded: str
    layout: str | None
    inventory: Inventory = field(default_factory=Inventory)

    def __post_init__(self) -> None:
        self.entered = {os.path.realpath(self.excluded)}

    def given(self, path: str) -> Iterator[Input]:
        """Yield the inputs of an argument of the command line."""
        if is_url(path):
            check_url(path)
            yield from self._given_url(path)
        elif os.path.isdir(path):
            yield from self._folder(path)
        elif os.path.lexists(path) or not glob.has_magic(path):
            yield from self._file(path, os.path.basename(path))
        else:
            yield from self._matches(path)

    def line(self, path: str) -> Iterator[Input]:
        """Yield the inputs of a line of a list."""
        if is_url(path):
            check_url(path)
            below = path.partition("://")[2]
            yield from self._url_folder(path) if path.endswith("/") else self._file(path, below)
        elif not os.path.isdir(path):
            yield from self._file(path, path)
        elif path.endswith(("/", os.sep)):
            yield from self._folder(path)
        else:
            raise InvalidInputError(f"{path} is a folder; end its line with / to take its pictures")

    def _file(self, path: str, relative: str, version: str | None = None) -> Iterator[Input]:
        """Yield a file, or the members of an archive; `relative` is its path relative to the given
        input."""
        version = version if is_url(path) else version_of(path)
        if not is_archive(path):
            yield input_of(path, relative, self.keep_tree, version=version)
            return
        tally = Tally(path, MEMBER)
        try:
            with fetched(path) as copy:
                for number, name in list_members(copy, path, tally):
                    yield self._member(path, relative, name, number, version)
        except PlaceError:  # may pass: no reason to record the archive as damaged
            raise
        except DAMAGED as error:
            yield Input(path, "", error=damage_of(path, error), version=version)
        else:
            self.inventory.add(tally)

    def _member(self, path: str, relative: str, name: str, number: int,
                version: str | None) -> Input:
        if self.layout is None:
            return member_input(path, relative, name, number, self.keep_tree, version)
        is_array = path.lower().endswith(".npz")
        if self.layout == "files" or is_array:
            return member_input(path, os.path.basename(path), name, number, not is_array, version)
        return input_of(f"{path}/{name}", _inside(name), True, path, number, version)

    def _folder(self, path: str) -> Iterator[Input]:
        if os.path.realpath(path) == os.path.realpath(self.excluded):
            raise InvalidInputError(f"{path} is both an input and the output folder; choose "
                                    "another with --output")
        tally = Tally(path)
        found = walk_folder(path, _SUFFIXES, self.recursive, tally, self.entered, "--recursive "
                            "includes them")
        for name, error in found:
            if error is not None:
                yield Input(name, "", error=error)
            else:
                yield input_of(name, os.path.relpath(name, path), self.keep_tree,
                               version=version_of(name))
        self.inventory.add(tally)

    def _matches(self, pattern: str) -> Iterator[Input]:
        """Yield the files and archives that match; names that exist as they are spelt are no
        patterns."""
        parts = Path(pattern).parts
        fixed = _count_literal(parts, lambda names: os.path.lexists(os.path.join(*names)))
        found = sorted(glob.iglob(os.path.join(*map(glob.escape, parts[:fixed]), *parts[fixed:]),
                                  recursive=True))
        root, tally = os.path.join(".", *parts[:fixed]), Tally(pattern, "match")
        for match in found:
            if os.path.isdir(match):
                tally.left_out.update(["folder"] if "**" not in parts else [])
            # a pattern may name hidden files
            elif tally.takes(os.path.basename(match).lstrip("."), _MATCHED):
                tally.used += 1
                yield from self._file(match, os.path.relpath(match, root))
        self._require(found, pattern)
        self.inventory.add(tally)

    def _given_url(self, url: str) -> Iterator[Input]:
        """Yield a picture, the members of an archive, or the pictures below a URL that ends with a
        slash or matches."""
        scheme = host_of(url)[0]
        parts = url.partition("://")[2].split("/")
        fixed = len(parts) if scheme in READ_ONLY else _count_literal(
            parts, lambda names: exists(f"{scheme}://{'/'.join(names)}"))
        if fixed < len(parts):
            yield from self._url_matches(url, f"{scheme}://{'/'.join(parts[:fixed])}",
                                         "/".join(parts[fixed:]))
        elif url.lower().endswith(_MATCHED) or (scheme in READ_ONLY and parts[1:] and parts[-1]):
            yield from self._file(url, parts[-1])
        else:
            yield from self._url_folder(url)

    def _url_folder(self, url: str) -> Iterator[Input]:
        scheme, host = host_of(url)
        root = url.rstrip("/")
        root, tally = root if root != f"{scheme}://{host}" else f"{root}/", Tally(url)
        for name, _, version in files_in(root, recursive=self.recursive,
                                         folders=not self.recursive):
            if name.endswith("/"):
                tally.left_out["sub-folder"] += 1
                tally.hint = "; --recursive includes sub-folders"
            elif (found := self._url_found(root, name, tally, _SUFFIXES)) is not None:
                yield input_of(found, name, self.keep_tree, version=version)
        self.inventory.add(tally)

    def _url_matches(self, url: str, root: str, pattern: str) -> Iterator[Input]:
        from fsspec.utils import glob_translate

        matches, tally = re.compile(glob_translate(pattern)), Tally(url, "match")
        start = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
        for name, _, version in files_in(root, start, recursive="/" in pattern or "**" in pattern):
            if (matches.match(name) and (found := self._url_found(root, name, tally, _MATCHED))
                is not None):
                yield from self._file(found, name, version)
        self._require(tally.seen, url)
        self.inventory.add(tally)

    def _url_found(self, root: str, name: str, tally: Tally,
                   suffixes: tuple[str, ...]) -> str | None:
        """Return the URL of a file in a folder, None if it is left out."""
        found = f"{root.rstrip('/')}/{name}"
        if found.startswith(f"{self.excluded.rstrip('/')}/"):
            tally.left_out["in the folder of the results"] += 1
        elif tally.takes(name, suffixes):
            tally.used += 1
            return found
        return None

    def _require(self, found: object, pattern: str) -> None:
        if not found:
            raise InvalidInputError(f"nothing matches {public(pattern)}; check the pattern, and "
                                    "quote it from the shell")


def _count_literal(parts: Sequence[str], exist: Callable[[Sequence[str]], bool]) -> int:
    """Return the number of a path's first parts that are no patterns: without wildcards, or names
    that exist."""
    return next((number for number, part in enumerate(parts)
                 if glob.has_magic(part) and not exist(parts[: number + 1])), len(parts))


def damage_of(path: str, error: Exception) -> str:
    """Return why an archive cannot be read."""
    if isinstance(error, SuperresError):
        return str(error)
    if isinstance(error, KilledError):
        return f"{path} was not listed ({reason_of(error)}); give the same command again"
    return f"{path} is damaged or not an archive ({reason_of(error)}); pack it again"


def member_input(
    path: str, relative: str, name: str, number: int, keep_tree: bool, version: str | None = None,
) -> Input:
    """Return the input of a member of the archive `path`, whose output stays below the archive's
    folder."""
    base = next(relative[: -len(suffix)] for suffix in reversed(ARCHIVE_SUFFIXES)
                if relative.lower().endswith(suffix))
    if path.lower().endswith(".npz"):
        below = (f"{base}/{number:06d}.png" if keep_tree
                 else f"{os.path.basename(base)}-{number:06d}.png")
    else:
        below = f"{base}/{_inside(name)}" if keep_tree else name
    return input_of(f"{path}/{name}", below, keep_tree, path, number, version)


def _inside(name: str) -> str:
    """Return the path of a member below the folder into which its archive is unpacked."""
    return posixpath.normpath(f"/{name.replace(os.sep, '/')}").strip("/")


def input_of(
    path: str, relative: str, keep_tree: bool, archive: str | None = None, member: int = 0,
    version: str | None = None,
) -> Input:
    """Return an input whose output has the name of `relative`, with folders if `keep_tree`; or one
    with an error."""
    pure = PurePosixPath(os.path.normpath(relative.replace(os.sep, "/")).replace(os.sep, "/"))
    parts = pure.parts[1:] if pure.is_absolute() else pure.parts
    problem = None
    if keep_tree and (".." in parts or not parts):
        problem = "lies outside the folder that it would be written to; leave out --keep-tree"
    elif "\0" in relative:
        problem = "has a NUL character in its name, which no file can have; rename it"
    if problem is not None:
        return Input(path, "", archive, member, f"{display_path(path, archive)} {problem}", version)
    return Input(path, "/".join([*parts[:-1], pure.stem]) if keep_tree else pure.stem, archive,
                 member, version=version)


def display_path(path: str, archive: str | None) -> str:
    """Return an input's path for messages; the names of members may be long and contain any
    character."""
    return path if archive is None else f"{archive}/{plain(path[len(archive) + 1:])}"
