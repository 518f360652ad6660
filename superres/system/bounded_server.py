"""Serve with a bounded number of connections, and with deadlines for requests that arrive slowly.

uvicorn limits requests under way, but neither connections that send none nor the time that half a
request may take.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MOST_CONNECTIONS = 512  # an open page uses two or three
SPARE_FILES = 64  # open files that the process keeps for other purposes than connections
# connections beyond the limit whose requests are answered by 503; further ones are closed
TOLD = 16
# connections that are accepted together; so many may be open beyond the limit for a moment
BACKLOG = 100
REQUEST_SECONDS = 15.0  # that a request may take to arrive, besides a second per `BYTES_PER_SECOND`
BYTES_PER_SECOND = 20_000
LOG_SECONDS = 60.0  # between two lines of the same text in the log
GRACE_SECONDS = 5  # that open connections have to end when a server stops


def server_config(app: ASGIApp, proxies: Sequence[str] = (), **more: Any) -> uvicorn.Config:  # noqa: ANN401
    """Return the configuration of a server without a log of requests, with limits and deadlines.

    `proxies` are the addresses from which X-Forwarded-For and X-Forwarded-Proto are believed.
    `more` are other options of uvicorn.
    """
    for name in ("asyncio", "uvicorn.error"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, Seldom) for one in logger.filters):
            logger.addFilter(Seldom())
    options: dict[str, Any] = {
        "http": BoundedProtocol, "ws": "none", "access_log": False, "server_header": False,
        "backlog": BACKLOG, "limit_concurrency": most_connections(), "proxy_headers": bool(proxies),
        "forwarded_allow_ips": list(proxies), "timeout_graceful_shutdown": GRACE_SECONDS,
    }
    return uvicorn.Config(app, **options | more)


def serve(
    config: uvicorn.Config, listening: socket.socket, stop: Callable[[], object] = int,
    clean: Callable[[], object] = int,
) -> None:
    """Serve on a listening socket until SIGINT or SIGTERM.

    A signal calls `stop`. Connections have the configuration's grace to end. If the process still
    lasts after three times as long, since a thread goes on, `clean` is called and it ends at once.
    """
    server, grace = uvicorn.Server(config), config.timeout_graceful_shutdown or GRACE_SECONDS
    handle_exit = server.handle_exit

    def end() -> None:
        logging.getLogger(__name__).error("a request did not end in %d seconds", 3 * grace)
        clean()
        os._exit(1)

    def handle(sig: int, frame: FrameType | None) -> None:
        timer = threading.Timer(3 * grace, end)
        timer.daemon = True
        timer.start()
        stop()
        handle_exit(sig, frame)

    server.handle_exit = handle  # type: ignore[method-assign]
    server.run(sockets=[listening])


def most_connections() -> int:
    """Return how many connections are served at the same time, from the process's limit on open
    files."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (min(MOST_CONNECTIONS, max(limit - SPARE_FILES - BACKLOG, 8)) if limit > 0
            else MOST_CONNECTIONS)


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections beyond the limit, and those whose request does not arrive in
    time."""

    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0
    _received = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for a request, unless there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > (self.limit_concurrency or MOST_CONNECTIONS) + TOLD:
            transport.abort()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle data of a request, which has a deadline until it is complete."""
        if self._deadline is None:
            self._wait()
        self._received += len(data)
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_waiting()

    def _wait(self) -> None:
        self._since, self._received = time.monotonic(), 0
        self._deadline = self.loop.call_later(REQUEST_SECONDS, self._late)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        """Close the connection, unless enough of the request has arrived to go on waiting."""
        left = self._since + REQUEST_SECONDS + self._received / BYTES_PER_SECOND - time.monotonic()
        if left > 0 and self.conn.their_state is h11.SEND_BODY:
            self._deadline = self.loop.call_later(left, self._late)
            return
        self._deadline = None
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            self.transport.abort()


class Seldom(logging.Filter):
    """Lets a text into the log once in `LOG_SECONDS`: an attack must not fill the disc."""

    def __init__(self) -> None:
        """Begin with no text."""
        super().__init__()
        self.next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record's text has not been logged lately."""
        text, now = str(record.msg)[:100], time.monotonic()
        if now < self.next.get(text, now):
            return False
        if len(self.next) > 1000:
            self.next.clear()
        self.next[text] = now + LOG_SECONDS
        return True
