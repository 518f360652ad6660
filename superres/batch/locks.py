"""Lock a folder of outputs against other runs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from superres.errors import OutputError
from superres.system.output import lock_file

if TYPE_CHECKING:
    from typing import BinaryIO

# name of the hidden folder inside the output folder; the last run to end removes it
HIDDEN = ".superres"
LOCK_ATTEMPTS = 5  # number of attempts to take a lock, 0.1 seconds apart


@contextmanager
def locked(folder: Path, shard: tuple[int, int]) -> Iterator[None]:
    """Lock an existing output folder against other runs; the shards (I, N) of one run share the
    lock.

    The operating system holds the locks, so they end with the process, even if it is killed. Raises
    OutputError if another run holds the lock, the folder cannot be written, or its hidden folder is
    a link.
    """
    hidden, (index, count), files = folder / HIDDEN, shard, list["BinaryIO"]()
    try:
        try:
            files.append(_lock(hidden, "lock", shared=count > 1))
            if count > 1:
                files.append(_lock(hidden, f"lock-{index}-of-{count}", shared=False))
        except BlockingIOError as error:
            raise OutputError(f"another run writes into {folder}; wait until it ends, choose "
                              "another --output, or give each run its own --shard I/N") from error
        except OSError as error:
            raise OutputError(f"cannot lock the folder {folder}: {error.strerror}; choose another "
                              "with --output"
                              ) from error
        yield
    finally:
        if files:
            with suppress(OSError):
                for file in files[1:]:
                    os.unlink(file.name)
                lock_file(files[0])  # fails while another shard is running
                shutil.rmtree(hidden, ignore_errors=True)
        for file in files:
            file.close()


def _lock(hidden: Path, name: str, shared: bool) -> BinaryIO:
    """Create the hidden folder and lock a file in it."""
    path, attempts = hidden / name, 0
    while True:
        if hidden.is_symlink():
            raise OutputError(f"{hidden} is a link, and a run would delete files in its target; "
                              "remove the link, or choose another --output")
        hidden.mkdir(exist_ok=True)
        remove_link(path)
        file = open(path, "ab")  # noqa: SIM115 -- open as long as the lock is held
        try:
            lock_file(file, shared)
            # The last process to exit removes the folder, and a lock on a deleted file does not
            # exclude other runs.
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        except BlockingIOError:
            attempts += 1
            if attempts == LOCK_ATTEMPTS:
                file.close()
                raise
            time.sleep(0.1)  # a shard that ends briefly holds the lock exclusively
        file.close()


def remove_link(path: str | Path) -> None:
    """Remove `path` if it is a symbolic link, so that no run writes through a link in the hidden
    folder."""
    if os.path.islink(path):
        os.unlink(path)
