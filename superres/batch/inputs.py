"""List the inputs of a batch (files, folders, globs, archives) in a stable order.

Each of them may be a path or a URL (`superres.system.places`). Whatever a folder, a pattern or an
archive has that is no input is counted (`superres.system.folders`).
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from superres.batch.archives import ARCHIVE_SUFFIXES, DAMAGED, is_archive, list_members, reason_of
from superres.errors import ConfigError, InvalidInputError, PlaceError, SuperresError, plain
from superres.pictures.files import IMAGE_SUFFIXES
from superres.system.confined import KilledError
from superres.system.folders import MEMBER, Inventory, Tally
from superres.system.paths import HERE, Place, Wanted
from superres.system.places import known_place, open_place, public
from superres.system.terminal import standard_input
from superres.system.text_files import read_lines

_SUFFIXES = tuple(sorted(IMAGE_SUFFIXES))
_MATCHED = (*_SUFFIXES, *ARCHIVE_SUFFIXES)  # suffixes of what a pattern gives


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
    with open_place(file).fetched() as path, open(path, "rb") as opened:
        yield opened


def find_inputs(
    inputs: Sequence[str], listed: Iterable[str], recursive: bool, keep_tree: bool,
    excluded: Path | str, allowed: frozenset[tuple[str, str]] = frozenset({HERE}),
    layout: str | None = None,
) -> Iterator[Input]:
    """Yield the images of all inputs in a stable order; a file that is named repeatedly is yielded
    repeatedly.

    `inputs` are files, folders, archives and globs. `listed` are the lines of a list: the same
    without globs, and folders end with a slash. With `keep_tree`, an output's name includes the
    input's sub-folder. `excluded` is the folder of the outputs, which is not entered. `allowed` are
    the schemes and hosts that `listed` may name (`superres.system.paths.Place.host`).
    `layout` is that of a run in parts, where members have their names in the archive: alone in
    shards, and below a folder of the archive's name otherwise. A line prints what each folder,
    pattern and archive has that is no input.

    A line of the list that is not valid becomes an input with an error, and so does an archive that
    is damaged, after its members before the damage. Raises InvalidInputError if a given folder
    cannot be listed, or a glob matches nothing; PlaceError.
    """
    search = _Search(recursive, keep_tree, known_place(str(excluded)), layout)
    for text in inputs:
        yield from search.given(open_place(text))
    for text in listed:
        try:
            if known_place(text).host not in allowed:
                raise InvalidInputError(refusal(text))
            yield from search.line(open_place(text))
        except (InvalidInputError, ConfigError) as error:
            yield Input(public(text), "", error=str(error))
    search.inventory.finish()


def refusal(text: str) -> str:
    """Return why an input of a list is not read, although the list names it."""
    scheme, host = known_place(text).host
    if not scheme:
        return (f"{text} is a path of this machine, which a list from elsewhere must not name; "
                "download the list first")
    return (f"{public(text)} is at a place that the command line does not name; add --allow "
            f"{scheme}://{host.rpartition('@')[2]} if the list may be trusted")


@dataclass
class _Search:
    """The arguments of `find_inputs` that hold for all inputs, and what has been found so far."""

    recursive: bool
    keep_tree: bool
    excluded: Place
    layout: str | None
    inventory: Inventory = field(default_factory=Inventory)

    def __post_init__(self) -> None:
        self.entered = {self.excluded.real()}

    def given(self, place: Place) -> Iterator[Input]:
        """Yield the inputs of an argument of the command line."""
        fixed, pattern = place.pattern()
        if pattern:
            yield from self._matches(place, fixed, pattern)
        elif place.is_folder(_MATCHED):
            yield from self._folder(place)
        else:
            yield from self._file(place, os.path.basename(place.path))

    def line(self, place: Place) -> Iterator[Input]:
        """Yield the inputs of a line of a list."""
        if not place.is_folder():
            yield from self._file(place, place.path)
        elif place.text.endswith(("/", os.sep)):
            yield from self._folder(place)
        else:
            raise InvalidInputError(f"{place.text} is a folder; end its line with / to take its "
                                    "pictures")

    def _file(self, place: Place, relative: str, version: str | None = None) -> Iterator[Input]:
        """Yield a file, or the members of an archive; `relative` is its path relative to the given
        input."""
        yield from inputs_of(place, relative, self.inventory, self.keep_tree, self.layout, version)

    def _folder(self, place: Place) -> Iterator[Input]:
        if place.real() == self.excluded.real():
            raise InvalidInputError(f"{place.text} is both an input and the output folder; choose "
                                    "another with --output")
        tally = Tally(place.text)
        for found in place.pictures(Wanted(_SUFFIXES, tally, self.entered), self.recursive):
            if found.error is not None:
                yield Input(found.place.text, "", error=found.error)
            else:
                yield input_of(found.place.text, found.name, self.keep_tree, version=found.version)
        self.inventory.add(tally)

    def _matches(self, place: Place, fixed: Place, pattern: str) -> Iterator[Input]:
        """Yield the files and archives below `fixed` that match."""
        tally = Tally(place.text, "match")
        for found in fixed.matching(Wanted(_MATCHED, tally, self.entered), pattern):
            yield from self._file(found.place, found.name, found.version)
        if not tally.seen:
            raise InvalidInputError(f"nothing matches {place.public}; check the pattern, and quote "
                                    "it from the shell")
        self.inventory.add(tally)


def inputs_of(
    place: Place, relative: str, inventory: Inventory, keep_tree: bool, layout: str | None = None,
    version: str | None = None,
) -> Iterator[Input]:
    """Yield a file, or the members of an archive, whose counts the inventory gets.

    `relative` is the path relative to the given input; for `layout` see `find_inputs`.
    """
    path, version = place.text, version or place.version()
    if not is_archive(path):
        yield input_of(path, relative, keep_tree, version=version)
        return
    tally = Tally(path, MEMBER)
    try:
        with place.fetched() as copy:
            for number, name in list_members(copy, path, tally):
                yield _member(path, relative, name, number, keep_tree, layout, version)
    except PlaceError:  # may pass: no reason to record the archive as damaged
        raise
    except DAMAGED as error:
        yield Input(path, "", error=damage_of(path, error), version=version)
    else:
        inventory.add(tally)


def _member(
    path: str, relative: str, name: str, number: int, keep_tree: bool, layout: str | None,
    version: str | None,
) -> Input:
    if layout is None:
        return member_input(path, relative, name, number, keep_tree, version)
    is_array = path.lower().endswith(".npz")
    if layout == "files" or is_array:
        return member_input(path, os.path.basename(path), name, number, not is_array, version)
    return input_of(f"{path}/{name}", _inside(name), True, path, number, version)


def nothing_in(places: Sequence[str], recursive: bool) -> InvalidInputError:
    """Return the error of inputs without a picture."""
    hint = "" if recursive else "; add --recursive to include sub-folders"
    return InvalidInputError(f"no image ({' '.join(_SUFFIXES)}) in "
                             f"{', '.join(map(public, places))[:300]}{hint}")


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
