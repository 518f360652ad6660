"""Read folders and count what is left out: one reader for pictures to upscale, to train on, to
evaluate and to compare.

Nothing is left out in silence. A `Tally` counts the files of a folder, or the members of an
archive, by what became of them; its line is printed when the container has been read.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from superres.errors import InvalidInputError, plain
from superres.system.progress import say

LINES = 20  # containers of a run that get a line of their own; one line counts the further ones
KINDS = 12  # kinds that a line names; the remaining kinds are counted together
MOST_BELOW = 100_000  # files that are counted in sub-folders which are not read
ALL_BELOW = "**"  # the last part of a path that stands for a folder with all its sub-folders
HIDDEN, BELOW, UNNAMED, NO_FILE = "hidden", "in sub-folders", "without suffix", "not a regular file"
MEMBER = "member"
AGAIN = "folder read already or for the results"


def bundled_folder() -> Path:
    """Return the folder of the bundled checkpoints."""
    return _beside_package("_checkpoints", "checkpoints")


def page_folder() -> Path:
    """Return the folder of the page's files and examples."""
    return _beside_package("_page", ".")


def _beside_package(installed: str, checkout: str) -> Path:
    """Return a folder inside an installed package, or else one beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / installed if (package / installed).is_dir() else package.parent / checkout


@dataclass
class Tally:
    """Counts of a container's files: `used` ones, and those left out, by kind (`left_out`)."""

    name: str
    noun: str = "file"
    used: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    hint: str = ""

    @property
    def seen(self) -> int:
        """Number of files."""
        return self.used + self.left_out.total()

    def takes(self, name: str, suffixes: Collection[str]) -> bool:
        """Return whether the file `name` (a relative path) is a picture; otherwise count it as left
        out."""
        kind = kind_left_out(name, suffixes)
        self.left_out.update([] if kind is None else [kind])
        return kind is None

    @property
    def is_told(self) -> bool:
        """Whether a line is printed: always for an archive, and for a folder of which something is
        left out."""
        return bool(self.left_out) or self.noun == MEMBER

    def line(self) -> str:
        """Return the counts as text."""
        total = f"{plain(self.name)}: {self.seen:,} {self.noun}{'' if self.seen == 1 else 's'}"
        if not self.left_out:
            return f"{total}{', all used' if self.used else ''}"
        kinds = self.left_out.most_common()
        named = [f"{count:,} {kind}" for kind, count in kinds[:KINDS]]
        if kinds[KINDS:]:
            named.append(f"{sum(count for _, count in kinds[KINDS:]):,} of {len(kinds) - KINDS} "
                         "other kinds")
        return (f"{total}: {self.used:,} used, {self.left_out.total():,} left out "
                f"({', '.join(named)}){self.hint}")


@dataclass
class Inventory:
    """Prints the tallies of a run's containers: `LINES` of them one by one, and the sum of the
    further ones."""

    count: int = 0
    further: Tally = field(default_factory=lambda: Tally(""))

    def add(self, tally: Tally) -> None:
        """Print the tally of a container that has been read."""
        if not tally.is_told:
            return
        self.count += 1
        if self.count <= LINES:
            say(tally.line())
        else:
            self.further.used += tally.used
            self.further.left_out += tally.left_out

    def finish(self) -> None:
        """Print the sum of the containers that have no line of their own."""
        if self.count > LINES:
            self.further.name = f"{self.count - LINES:,} further folders and archives"
            say(self.further.line())


def kind_left_out(name: str, suffixes: Collection[str]) -> str | None:
    """Return the kind of a file that is left out because of its name, a relative path; None for a
    picture."""
    path = PurePosixPath(name)
    if "__MACOSX" in path.parts:
        return "in __MACOSX"
    if any(part[0] == "." and part != ".." for part in path.parts):
        return HIDDEN
    if name.lower().endswith(tuple(suffixes)):
        return None
    suffix = path.suffix.lower()
    return suffix if re.fullmatch(r"\.\w{1,10}", suffix, re.ASCII) else UNNAMED


def walk_folder(
    folder: str, suffixes: Collection[str], recursive: bool, tally: Tally, entered: set[str],
    remedy: str,
) -> Iterator[tuple[str, str | None]]:
    """Yield the paths of a folder's pictures, sorted by name, then those of its sub-folders; with
    an error or None.

    Hidden sub-folders are left out as a whole. A real folder is read only once (`entered`), even if
    symbolic links lead to it again. A sub-folder that cannot be listed is yielded with an error;
    for `folder`, InvalidInputError is raised. Unless `recursive`, the files in sub-folders are
    counted, and `remedy` says how to take them.
    """
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        real = os.path.realpath(here)
        if real in entered:
            tally.left_out[AGAIN] += 1
            continue
        entered.add(real)
        try:
            pictures, below = _list_folder(here, suffixes, tally)
        except OSError as error:
            problem = f"cannot list the folder {here}: {error.strerror}"
            if here == folder:
                raise InvalidInputError(problem) from error
            tally.used += 1
            yield here, f"{problem}; check its permissions"
            continue
        for path in pictures:
            tally.used += 1
            yield path, None
        if recursive:
            waiting += reversed(below)
        elif below:
            _count_below(below, suffixes, tally, entered, remedy)


def _list_folder(folder: str, suffixes: Collection[str], tally: Tally) -> tuple[list[str],
                                                                                list[str]]:
    """Return the paths of a folder's pictures and of its sub-folders, sorted; OSError if it cannot
    be listed."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    pictures, below = list[str](), list[str]()
    for entry in entries:
        if _succeeds(entry.is_dir):
            if entry.name[0] == ".":
                tally.left_out["hidden folder"] += 1
            else:
                below.append(entry.path)
        # Pipes and devices could block forever. Dangling links are taken, so that their rows fail.
        elif not _succeeds(entry.is_file) and os.path.exists(entry):
            tally.left_out[NO_FILE] += 1
        elif tally.takes(entry.name, suffixes):
            pictures.append(entry.path)
    return pictures, below


def _count_below(
    folders: list[str], suffixes: Collection[str], tally: Tally, entered: set[str], remedy: str,
) -> None:
    """Count the files in sub-folders that are not read, at most `MOST_BELOW` of them."""
    files, pictures = 0, 0
    for folder in folders:
        for parent, names, found in os.walk(folder):
            names[:] = [] if os.path.realpath(parent) in entered else [name for name in names
                                                                       if name[0] != "."]
            if os.path.realpath(parent) in entered or files >= MOST_BELOW:
                continue
            files += len(found)
            pictures += sum(kind_left_out(name, suffixes) is None for name in found)
    tally.left_out[BELOW] += files
    if pictures:
        more = " or more" if files >= MOST_BELOW else ""
        tally.hint = f"; {pictures:,}{more} of those in sub-folders are pictures: {remedy}"


def _succeeds(check: Callable[[], bool]) -> bool:
    """Return the result of a check of a folder's entry; False if it raises OSError, as for a link
    to itself."""
    try:
        return check()
    except OSError:
        return False


def folder_files(folder: Path, suffixes: Collection[str], limit: int | None = None) -> list[Path]:
    """Return a folder's pictures, at most `limit`, sorted by name, and print what is left out.

    A path that ends with "**" includes all sub-folders. Raises InvalidInputError if the folder or a
    sub-folder cannot be listed, or there is no picture.
    """
    root, recursive = (folder.parent, True) if folder.name == ALL_BELOW else (folder, False)
    tally, files = Tally(str(root)), list[Path]()
    for path, error in walk_folder(str(root), suffixes, recursive, tally, set(),
                                   f"'{root / ALL_BELOW}' includes them"):
        if error is not None:
            raise InvalidInputError(error)
        files.append(Path(path))
    if limit is not None and len(files) > limit:
        tally.used = limit
        tally.left_out[f"after the first {limit:,}"] += len(files) - limit
    if tally.is_told:
        say(tally.line())
    if not files:
        raise InvalidInputError(f"{root} has no images ({' '.join(sorted(suffixes))}); choose "
                                "another folder")
    return files[:limit]


def is_folder(path: Path) -> bool:
    """Return whether a path is a folder, or stands for a folder with all its sub-folders."""
    return path.is_dir() or (path.name == ALL_BELOW and path.parent.is_dir())


def folder_name(path: Path) -> str:
    """Return the name of a folder for which `is_folder` holds."""
    return (path.parent if path.name == ALL_BELOW else path).resolve().name
