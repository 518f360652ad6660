"""How much of a container its size justifies; what takes more time or memory than this is refused.

A small file can claim, or unpack to, any number of bytes. Archives are read in a process of limited
memory and time besides: `superres.batch.containers`.
"""

from __future__ import annotations

import time
import zipfile
from typing import Any

import numpy as np

MOST_RATIO = 200  # unpacked bytes per packed byte, beyond `FREE_BYTES`; pictures hardly shrink
FREE_BYTES = 500_000_000  # unpacked bytes that every file may have
FREE_MEMBERS = 10_000  # members that every archive may have
BYTES_PER_MEMBER = 50  # packed bytes of each further member; the smallest picture has more
FREE_NAMES = 20_000_000  # bytes of names that every archive may have
NAMES_PER_BYTE = 4  # further bytes of names per packed byte: 200 per member
FREE_SECONDS = 60  # of processor time that reading any container may take
# packed bytes of each further second; the slowest compressions have 50 times as many
BYTES_PER_SECOND = 100_000


class Gate:
    """Refuses more of a container than its size justifies: every reader of one counts here."""

    def __init__(self, packed: int) -> None:
        """`packed` is the size of the container in bytes."""
        self.members = self.members_left = FREE_MEMBERS + packed // BYTES_PER_MEMBER
        self.bytes = self.unpacked_left = self.content_left = FREE_BYTES + MOST_RATIO * packed
        self.names = self.names_left = FREE_NAMES + NAMES_PER_BYTE * packed
        self.seconds = FREE_SECONDS + packed // BYTES_PER_SECOND
        self.end = time.process_time() + self.seconds

    def let(self, members: int = 0, unpacked: int = 0, names: int = 0, content: int = 0) -> None:
        """Count further members, unpacked bytes, bytes of names, and bytes of the content that is
        handed on.

        Raises ValueError if they are too many, or took too much processor time.
        """
        self.members_left -= members
        self.names_left -= names
        self.unpacked_left -= unpacked
        self.content_left -= content
        if self.members_left < 0:
            raise ValueError(f"it has over {self.members:,} members, too many for its size")
        if self.names_left < 0:
            raise ValueError(f"its members' names have over {self.names // 1_000_000:,} MB, too "
                             "much for its size")
        if min(self.unpacked_left, self.content_left) < 0:
            raise ValueError(f"it unpacks to over {self.bytes // 1_000_000:,} MB, too much for its "
                             "size")
        if time.process_time() > self.end:
            raise ValueError(f"it takes over {self.seconds:,} seconds of processor time, too much "
                             "for its size")


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray[Any, Any]:
    """Read the array `name` of an .npz file; KeyError without one, ValueError or MemoryError if it
    is damaged or claims too much."""
    info = archive.getinfo(f"{name}.npy")
    Gate(info.compress_size).let(unpacked=info.file_size)  # zipfile reads no more of it
    with archive.open(info) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
