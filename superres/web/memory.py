"""Memory use of a server that sometimes reads large pictures."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

LARGE_BYTES = 4 * 2**20
_M_MMAP_THRESHOLD = -3  # of malloc.h


def return_large_blocks() -> None:
    """Make the C library return freed blocks of at least LARGE_BYTES to the system at once.

    After freeing such a block, glibc otherwise allocates blocks of up to 32 MB from the heaps of its threads. Every
    thread that has read a picture then keeps a heap of that size. On systems other than Linux, this does nothing.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # a C library without mallopt
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
