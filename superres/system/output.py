"""Write results: atomic files, numbers, tables and plots. Nothing in this module is slow to import."""

from __future__ import annotations

import io
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from superres.errors import OutputError

if TYPE_CHECKING:
    from typing import BinaryIO

    from matplotlib.figure import Figure

SCRATCH = re.compile(r"\.superres-\d+-[0-9a-f]{8}\.tmp")
"""Pattern of a scratch file's name: the process that created it, and a random number."""


def lock_file(file: BinaryIO, shared: bool = False) -> None:
    """Lock an open file for as long as it is open; the system releases the lock when the process ends, however it ends.

    Raises:
        BlockingIOError: another process, or another open file of this one, has locked it.
        OSError: the file system has no locks.
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
    """Open a new, empty file in `folder`; at the end it is renamed to `replaces`, or removed.

    The file is locked while it is in use. Scratch files in `folder` that nobody has locked were left by killed
    processes; they are removed first, so that what a kill leaves lasts until the next run at most.

    Args:
        folder: where the file is made.
        replaces: path that the file takes over if the block ends without an exception; None removes the file.

    Raises:
        OSError: the file cannot be made, written or renamed; it is removed, and `replaces` is as it was.
    """
    _remove_abandoned(folder)
    file = _new_scratch(folder)
    try:
        yield file
        file.flush()
        if sys.platform == "win32":
            file.close()  # Windows renames no open file; elsewhere the lock is kept until the file has its name
        if replaces is not None:
            os.replace(file.name, replaces)
    finally:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(file.name)  # does nothing after the rename


def _new_scratch(folder: Path) -> BinaryIO:
    """Create a scratch file and lock it."""
    while True:
        # Mode "x" neither opens an existing file nor follows a link.
        file = open(folder / f".superres-{os.getpid()}-{secrets.token_hex(4)}.tmp", "xb")  # noqa: SIM115 -- returned
        try:
            lock_file(file)
        except BlockingIOError:
            pass  # another process took it for abandoned before it was locked, and is removing it
        except OSError:
            return file  # without locks, nobody removes abandoned files either
        else:
            if os.fstat(file.fileno()).st_nlink:
                return file
        file.close()


def _remove_abandoned(folder: Path) -> None:
    """Remove the scratch files in `folder` whose process has ended; links and files of running processes stay."""
    with suppress(OSError), os.scandir(folder) as entries:
        found = [entry.path for entry in entries if SCRATCH.fullmatch(entry.name)]
        for path in found:
            with suppress(OSError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    with open(path, "ab", opener=_without_following) as file:
                        lock_file(file)
                        os.unlink(path)


def _without_following(path: str, flags: int) -> int:
    """Open `path` unless it is a link; an `opener` for `open`."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`, which holds all of it or is left as it was, even if the process is killed.

    Raises:
        OSError: the file cannot be written; no temporary file is left.
    """
    with scratch_file(path.parent, path) as file:
        file.write(data)


def write_result(path: Path, data: bytes, option: str = "--output") -> None:
    """Write `data` to `path` in one move; `option` is what the user can change if this fails.

    Raises:
        OutputError: the file cannot be written.
    """
    try:
        write_atomically(path, data)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another {option}") from error


def prepare_folder(folder: Path, option: str = "--output") -> None:
    """Make `folder` and try it with a small file, so that a run does not decode what it cannot keep.

    Args:
        folder: the folder to write to later.
        option: what the user can change if this fails.

    Raises:
        OutputError: the folder cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with scratch_file(folder) as probe:
            probe.write(bytes(4096))
    except OSError as error:
        reason = "there is a file of that name" if folder.is_file() else error.strerror
        raise OutputError(f"cannot write to the folder {folder}: {reason}; choose another with {option}") from error


def number_text(value: float | None, digits: int) -> str:
    """Return `value` with `digits` decimals, or "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns but the first are aligned to the right."""
    ruler = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (header, ruler, *rows))


def figure_png(figure: Figure) -> bytes:
    """Return a plot as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()
