"""Limits on the server's connections: their number, and the time that a client may keep the server waiting."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes, depending on what is installed
    """A connection that closes when its client keeps the server waiting; uvicorn alone would wait without a limit.

    If there are too many connections, the connection that has kept the server waiting longest is closed.

    Attributes:
        most: largest number of open connections; an open page uses two or three.
        request_seconds: time in which a request must arrive, and in which a client must accept sent data.
        bytes_per_second: smallest rate at which a request body may take longer than `request_seconds`.
    """

    most = 512
    request_seconds = 20.0
    bytes_per_second = 20_000

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 -- uvicorn's
        """Create the protocol of a connection with uvicorn's arguments."""
        super().__init__(*arguments, **keywords)
        self.deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to wait for a request."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.most:
            waiting = [each for each in self.connections if each is not self and each.deadline is not None]
            if waiting:
                min(waiting, key=lambda each: each.deadline).end()
            else:
                self.transport.write(_TOO_MANY)
                self.transport.close()

    def data_received(self, data: bytes) -> None:
        """Handle data from the client."""
        super().data_received(data)
        if not self._is_waiting:
            if not self.flow.write_paused:
                self._stop_waiting()
        elif self.deadline is None:
            self._wait()
        elif self.cycle is not None and not self.cycle.response_complete:  # a request body
            self.deadline += len(data) / self.bytes_per_second

    def on_response_complete(self) -> None:
        """Start to wait for the next request."""
        super().on_response_complete()
        if self._is_waiting and self.deadline is None:
            self._wait()

    def pause_writing(self) -> None:
        """Start to wait for the client to accept sent data."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """Stop waiting: the client has accepted the data."""
        super().resume_writing()
        if not self._is_waiting:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the timer of a closed connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def end(self) -> None:
        """Close the connection at once."""
        self._stop_waiting()
        self.transport.abort()

    @property
    def _is_waiting(self) -> bool:
        """Whether the server waits for a request or for the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _wait(self) -> None:
        self._stop_waiting()
        self.deadline = self.loop.time() + self.request_seconds
        self._timer = self.loop.call_at(self.deadline, self._check)

    def _check(self) -> None:
        if self.deadline is not None and self.loop.time() < self.deadline:  # more of the body has arrived
            self._timer = self.loop.call_at(self.deadline, self._check)
        else:
            self.end()

    def _stop_waiting(self) -> None:
        self.deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
