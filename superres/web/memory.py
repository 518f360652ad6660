"""The memory of a server that now and then holds large pictures."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

LARGE_BYTES = 4 * 2**20
_M_MMAP_THRESHOLD = -3  # of malloc.h


def return_large_blocks() -> None:
    """Let the C library give blocks from LARGE_BYTES on back to the system as soon as they are freed.

    glibc otherwise takes blocks of up to 32 MB from the heaps of its threads once such a block was freed. One heap for
    each thread that ever read a picture then stays as large as its largest picture. Elsewhere this does nothing.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library without mallopt
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
