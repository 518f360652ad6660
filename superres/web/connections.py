"""Connections of the server: how long a peer may keep it waiting, and how many there may be."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 10\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]  # one of two classes, by what is installed
    """A connection that ends when its peer keeps the server waiting, which uvicorn would do for good.

    Where there are too many, the one that has kept the server waiting longest makes room.

    Attributes:
        most: number of connections; an open page takes two or three.
        request_seconds: within this time a request has to arrive, and a peer has to take what is sent.
        bytes_per_second: a body may take longer at this rate or a faster one.
    """

    most = 512
    request_seconds = 20.0
    bytes_per_second = 20_000

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 -- uvicorn's
        """Make the protocol of a connection, with uvicorn's arguments."""
        super().__init__(*arguments, **keywords)
        self.deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
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
        """Take what the peer sends."""
        super().data_received(data)
        if not self._is_peers_turn:
            if not self.flow.write_paused:
                self._stop_waiting()
        elif self.deadline is None:
            self._wait()
        elif self.cycle is not None and not self.cycle.response_complete:  # a body
            self.deadline += len(data) / self.bytes_per_second

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        if self._is_peers_turn and self.deadline is None:
            self._wait()

    def pause_writing(self) -> None:
        """Begin to wait for the peer to take what was sent."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """Go on once it did."""
        super().resume_writing()
        if not self._is_peers_turn:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_waiting()
        super().connection_lost(exc)

    def end(self) -> None:
        """Close the connection at once."""
        self._stop_waiting()
        self.transport.abort()

    @property
    def _is_peers_turn(self) -> bool:
        """Whether the server waits for a request, or for the rest of one."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def _wait(self) -> None:
        self._stop_waiting()
        self.deadline = self.loop.time() + self.request_seconds
        self._timer = self.loop.call_at(self.deadline, self._check)

    def _check(self) -> None:
        if self.deadline is not None and self.loop.time() < self.deadline:  # the body has come on meanwhile
            self._timer = self.loop.call_at(self.deadline, self._check)
        else:
            self.end()

    def _stop_waiting(self) -> None:
        self.deadline = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
