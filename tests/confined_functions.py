"""Functions that `superres.system.confined` calls in processes of their own."""

import ctypes
import os
import sys
import time

import numpy as np

from superres.errors import InvalidInputError
from superres.system import confined
from superres.system.confined import limit_memory, limit_time


def misbehave(how="", **values):
    """Yield `values` and the process, or do what no decoder should."""
    if how == "crash":
        ctypes.string_at(0)
    if how == "exit":
        os._exit(3)
    if how == "spin":
        while True:
            pass
    if how == "sleep":
        confined.LEAST_WALL = 1
        limit_time(0.01)
        time.sleep(1000)
    if how == "grow":
        limit_memory(10**8)
        np.ones(10**9)
    if how == "refuse":
        raise InvalidInputError("a; b\nand " + "c" * 300)
    if how == "fail":
        raise TypeError("one\nline")
    if how == "print":
        os.write(1, b"noise")
        sys.stdout.write("noise")
        sys.stdout.flush()
    sent = yield {**values, "process": os.getpid()}
    yield {"second": True, **(sent or {})}
