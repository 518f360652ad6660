"""A place on this machine: what every place offers (`superres.system.places`)."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar, NamedTuple

from superres.errors import InvalidInputError, OutputError
from superres.system import output
from superres.system.folders import Tally, walk_folder
from superres.system.json_files import read_file
from superres.system.output import scratch_file, write_atomically

FREE_BYTES = 500_000_000  # bytes of the disc that a fetched file leaves free
HERE = ("", "")  # stands for the paths of this machine among schemes and hosts


class Listed(NamedTuple):
    """A file of a folder: its name relative to it, its bytes, and text that changes with its
    content, if known."""

    name: str
    size: int = 0
    version: str | None = None


def version_of(path: str) -> str | None:
    """Return text that changes when a file of this machine is changed: its size and time; None if
    there is no file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a NUL character in the name
        return None
    return f"{found.st_size}-{found.st_mtime_ns}"


class Wanted(NamedTuple):
    """Which files a folder or a pattern gives: those with a suffix, but not those in the folders
    `entered`, by their real paths. The tally counts them and the others."""

    suffixes: tuple[str, ...]
    tally: Tally
    entered: set[str]


class Found(NamedTuple):
    """A file that a folder or a pattern gives: its place, and its name relative to that of the
    folder; with an error, if it cannot be listed."""

    place: Place
    name: str
    version: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Place:
    """A file or a folder, on this machine or at a URL.

    Everything that reads raises InvalidInputError if that fails for good, everything that writes
    OutputError, and both PlaceError if the place does not answer at present.

    Attributes:
        text: the place as it was typed or listed.
        renames: whether a file can be written under another name first, and then get its own.
        ahead: number of files to request before they are needed.
    """

    text: str
    renames: ClassVar[bool] = True
    ahead: ClassVar[int] = 0

    @property
    def host(self) -> tuple[str, str]:
        """Scheme and host, or bucket; `HERE` for this machine."""
        return HERE

    @property
    def public(self) -> str:
        """The place as messages show it: without password, query and fragment."""
        return self.text

    @property
    def full(self) -> str:
        """The whole path or URL, without a slash at its end."""
        return os.path.abspath(self.text)

    @property
    def path(self) -> str:
        """The path as typed; that of a URL begins with the host."""
        return self.text

    def real(self, parents: dict[str, str] | None = None) -> str:
        """Return the path without symbolic links; `parents` keeps what folders resolve to."""
        path, parents = self.text, {} if parents is None else parents
        if os.path.islink(path) or path.endswith("/"):
            return os.path.realpath(path)
        parent, name = os.path.split(path)
        if parent not in parents:
            parents[parent] = os.path.realpath(parent)
        return f"{parents[parent]}/{name}"

    def version(self) -> str | None:
        """Return text that changes when the file is changed, None if asking takes a request."""
        return version_of(self.text)

    def has_changed(self, version: str | None) -> bool:
        """Return whether the file is another one than that of `version`, if both are known."""
        return version is not None and version_of(self.text) != version

    @property
    def parent(self) -> Place:
        """The folder of this place."""
        return type(self)(os.path.dirname(self.text) or ".")

    def join(self, name: str) -> Place:
        """Return the place of `name` in this folder."""
        return type(self)(f"{self.text.rstrip('/')}/{name}")

    def read(self, most: int) -> bytes:
        """Return the content of at most `most` bytes."""
        try:
            return read_file(Path(self.text), most)
        except OSError as error:
            raise InvalidInputError(f"cannot read {self.text}: {error.strerror}; check the "
                                    "path") from error

    def source(self, most: int) -> str | IO[bytes]:
        """Return the path of the content, or its at most `most` bytes where they are far."""
        return self.text

    @contextmanager
    def fetched(self) -> Iterator[str]:
        """Yield the path of the content, or of a copy of it that is removed afterwards; a copy that
        leaves less than `FREE_BYTES` of the disc free is too large."""
        yield self.text

    @contextmanager
    def _writing(self) -> Iterator[Path]:
        """Make the parent folder, and explain an OSError of the block."""
        try:
            os.makedirs(os.path.dirname(os.path.abspath(self.text)), exist_ok=True)
            yield Path(self.text)
        except OSError as error:
            raise OutputError(f"cannot write {self.text}: {error.strerror}; choose another "
                              "--output") from error

    def write(self, data: bytes) -> None:
        """Write `data`, whole or not at all."""
        with self._writing() as path:
            write_atomically(path, data)

    @contextmanager
    def written(self) -> Iterator[IO[bytes]]:
        """Yield a file whose content is here, whole, after the block, or nothing if that fails."""
        with self._writing() as path, scratch_file(path.parent, path) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())

    def keep(self, path: str) -> str:
        """Keep the file of `written`, whose block fails, and return where."""
        os.replace(path, f"{self.text}.partial")
        return f"{self.text}.partial"

    def take(self, path: str) -> None:
        """Move a file of this machine here, whole or not at all."""
        with self._writing() as here, open(path, "rb") as content:
            os.fsync(content.fileno())
            if os.stat(path).st_dev == os.stat(os.path.abspath(here.parent)).st_dev:
                os.replace(path, here)
                return
            with scratch_file(here.parent, here) as file:
                shutil.copyfileobj(content, file)
                file.flush()
                os.fsync(file.fileno())
        os.unlink(path)

    def remove(self) -> None:
        """Remove the file, if there is one."""
        Path(self.text).unlink(missing_ok=True)

    def is_file(self) -> bool | None:
        """Return whether this is a file, and no folder or pattern, by its name alone where it is
        far; None if there is nothing."""
        if os.path.exists(self.text) or glob.has_magic(self.text):
            return os.path.isfile(self.text)
        return None

    def is_folder(self, suffixes: tuple[str, ...] = ()) -> bool:
        """Return whether this is a folder; without a slash at its end, a URL is a folder if
        `suffixes` of files are given, and it has none of them."""
        return os.path.isdir(self.text)

    def check_folder(self) -> None:
        """Raise OutputError if results cannot be written into this folder."""
        output.check_folder(Path(self.text))

    def prepare_folder(self) -> None:
        """Make the folder, if folders are made; raises as `check_folder`."""
        output.prepare_folder(Path(self.text))

    def files(self, start: str = "", recursive: bool = False) -> Iterator[Listed]:
        """Yield the files of this folder whose relative names begin with `start`, in the order of
        their names.

        A store's answers are read page by page, so that memory does not grow with their number (for
        other stores than S3, with that of a folder). A folder that does not exist has no files.
        """
        for parent, below, names in os.walk(self.text):
            here = os.path.relpath(parent, self.text)
            for name in sorted(names):
                relative = name if here == "." else f"{here}/{name}"
                if relative.startswith(start):
                    version = version_of(os.path.join(parent, name))
                    yield Listed(relative, int((version or "0-").partition("-")[0]), version)
            if not recursive:
                return
            below.sort()

    def pictures(self, wanted: Wanted, recursive: bool) -> Iterator[Found]:
        """Yield the files of this folder that are wanted, and count the others."""
        for path, error in walk_folder(self.text, wanted.suffixes, recursive, wanted.tally,
                                       wanted.entered, "--recursive includes them"):
            version = version_of(path) if error is None else None
            yield Found(Place(path), os.path.relpath(path, self.text), version, error)

    def pattern(self) -> tuple[Place, str]:
        """Return the part without wildcards, and the pattern below it, "" if this is none: a name
        that exists as it is spelt."""
        if os.path.lexists(self.text) or not glob.has_magic(self.text):
            return self, ""
        parts = Path(self.text).parts
        fixed = count_literal(parts, lambda names: os.path.lexists(os.path.join(*names)))
        return Place(os.path.join("", *parts[:fixed])), os.path.join(*parts[fixed:])

    def matching(self, wanted: Wanted, pattern: str) -> Iterator[Found]:
        """Yield the files below this folder that match, in the order of their names; otherwise as
        `pictures`."""
        root, tally = os.path.join(".", self.text), wanted.tally
        for match in sorted(glob.iglob(os.path.join(glob.escape(self.text), pattern),
                                       recursive=True)):
            if os.path.isdir(match):
                tally.left_out.update(["folder"] if "**" not in Path(pattern).parts else [])
            # a pattern may name hidden files
            elif tally.takes(os.path.basename(match).lstrip("."), wanted.suffixes):
                tally.used += 1
                yield Found(Place(match), os.path.relpath(match, root))


def count_literal(parts: Sequence[str], exist: Callable[[Sequence[str]], bool]) -> int:
    """Return the number of a path's first parts that are no patterns: without wildcards, or names
    that exist."""
    return next((number for number, part in enumerate(parts)
                 if glob.has_magic(part) and not exist(parts[: number + 1])), len(parts))
