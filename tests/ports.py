"""Ports for servers of other programs, which take a number and cannot report one that the system
chose."""

import itertools
import os
import socket

_asked = itertools.count()


def own_port():
    """Return a free port that no other test takes before it is used.

    A port that the system chose and that is closed again may go to any connection of a test beside
    this one. These lie below the ports that the system gives, and every process has eight of its
    own.
    """
    for _ in range(8):
        port = 20_000 + (8 * os.getpid() + next(_asked) % 8) % 12_000
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no port is free")
