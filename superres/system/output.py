"""Write files atomically, and format numbers, tables and plots. This module is fast to import."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_path

from superres.errors import OutputError

if TYPE_CHECKING:
    from typing import BinaryIO

    from matplotlib.figure import Figure

SCRATCH = re.compile(r"\.superres-\d+-[0-9a-f]{8}\.tmp")
"""Pattern of a scratch file's name: id of the process that created it, and a random number."""
NUMBER = re.compile(r"[*+\-±(]*\d|-?$")
"""Pattern of the beginning of a cell with a number, or of a whole cell without a value."""


def cache_folder() -> Path:
    """Return the folder in the user's cache for compiled code, measured times and locks."""
    return user_cache_path("superres", appauthor=False)


def lock_file(file: BinaryIO, shared: bool = False) -> None:
    """Lock an open file until it is closed; the system also releases the lock of a process that is
    killed.

    Raises:
        BlockingIOError: another process, or another open file of this process, holds a lock.
        OSError: the file system does not support locks.
    """
    if sys.platform == "win32":
        import msvcrt

        if not shared:
            try:
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            except PermissionError as error:
                raise BlockingIOError from error
        return
    import fcntl

    fcntl.flock(file.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


@contextmanager
def scratch_file(folder: Path, replaces: Path | None = None) -> Iterator[BinaryIO]:
    """Open a new, empty file in `folder`; after the block it is renamed to `replaces`, or removed
    if that is None.

    The file is locked while it is in use. Unlocked scratch files in `folder` come from killed
    processes and are removed first, with the scratch folders that they belong to.

    Raises:
        OSError: the file cannot be created, written or renamed; it is removed, and `replaces` is
            unchanged.
    """
    _remove_abandoned(folder)
    file = _new_scratch(folder)
    try:
        yield file
        file.flush()
        if sys.platform == "win32":
            # Windows cannot rename an open file; elsewhere the lock protects the file until the
            # rename
            file.close()
        if replaces is not None:
            os.replace(file.name, replaces)
    finally:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(file.name)  # fails harmlessly after the rename


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Make an empty folder in `parent`, by default the system's for temporary files; it is removed
    after the block.

    It belongs to a scratch file, so the next scratch folder in `parent` removes those of killed
    processes.

    Raises:
        OSError: the folder cannot be made.
    """
    with scratch_file(Path(tempfile.gettempdir()) if parent is None else parent) as lock:
        folder = _folder_of(lock.name)
        folder.mkdir(0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_of(lock: str) -> Path:
    """Return the scratch folder that belongs to the scratch file `lock`."""
    return Path(lock).with_name(os.path.basename(lock).removeprefix(".").removesuffix(".tmp"))


def _new_scratch(folder: Path) -> BinaryIO:
    """Create a scratch file and lock it."""
    while True:
        # Mode "x" neither opens an existing file nor follows a link.
        file = open(folder / f".superres-{os.getpid()}-{secrets.token_hex(4)}.tmp", "xb")  # noqa: SIM115 -- returned
        try:
            lock_file(file)
        except BlockingIOError:
            pass  # another process found the file unlocked and is removing it
        except OSError:
            return file  # without locks, abandoned files are not removed either
        else:
            if os.fstat(file.fileno()).st_nlink:
                return file
        file.close()


def _remove_abandoned(folder: Path) -> None:
    """Remove unlocked scratch files in `folder`, and the folders that belong to them, but not
    links."""
    def open_no_link(path: str, flags: int) -> int:
        return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)

    with suppress(OSError), os.scandir(folder) as entries:
        for path in [entry.path for entry in entries if SCRATCH.fullmatch(entry.name)]:
            with suppress(OSError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    with open(path, "ab", opener=open_no_link) as file:
                        lock_file(file)
                        shutil.rmtree(_folder_of(path), ignore_errors=True)
                        os.unlink(path)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`, or raise OSError and leave `path` unchanged, even if the process is
    killed."""
    with scratch_file(path.parent, path) as file:
        file.write(data)


def write_result(path: Path, data: bytes, option: str = "--output") -> None:
    """Write `data` to `path` atomically, or raise OutputError, whose message names the option of
    the path."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another "
                          f"{option}") from error


def write_results(folder: Path, files: Mapping[str, bytes | str | dict[str, Any]]) -> list[Path]:
    """Write files by name into `folder`, which is created if it is missing, and return their paths.

    A dictionary is written as JSON. Raises OutputError if a file cannot be written.
    """
    prepare_folder(folder)
    for name, content in files.items():
        text = json.dumps(content, indent=1) + "\n" if isinstance(content, dict) else content
        write_result(folder / name, text.encode() if isinstance(text, str) else text)
    return [folder / name for name in files]


def prepare_folder(folder: Path, option: str = "--output") -> None:
    """Create `folder` and write a test file to it, so that a run fails before it computes results
    it cannot write.

    Raises OutputError, whose message names the option of the folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_file(folder) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        reason = "there is a file of that name" if folder.is_file() else error.strerror
        raise OutputError(f"cannot write to the folder {folder}: {reason}; choose another with "
                          f"{option}") from error


def check_folder(folder: Path) -> None:
    """Raise OutputError, as `prepare_folder`, if `folder` cannot be written or made; if it is
    missing, it stays so."""
    prepare_folder(next(path for path in (folder, *folder.parents, folder) if os.path.exists(path)))


def short_digest(data: bytes) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of `data`."""
    return hashlib.sha256(data).hexdigest()[:12]


def number_text(value: float | None, digits: int) -> str:
    """Return `value` with `digits` decimals, or "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, such as "1 image" or "2,000 images"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; columns of numbers, or of nothing, are aligned to the right."""
    numbers = [all(NUMBER.match(row[place]) for row in rows) for place in range(len(header))]
    ruler = ["---:" if place and number else "---" for place, number in enumerate(numbers)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))


def figure_png(figure: Figure) -> bytes:
    """Return a plot as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
