"""Serve the pages of the web demo and of a survey, and end however long a request goes on.

Slow connections and floods of them are for the proxy in front of a public page; see
docs/web-serving.md.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn

from superres.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp

MOST_CONNECTIONS = 512  # beyond it, requests are answered by 503; an open page uses two or three
BACKLOG = 100  # connections that are accepted together
GRACE_SECONDS = 5  # that open connections have to end when a server stops


def server_config(app: ASGIApp, proxies: Sequence[str] = (), **more: Any) -> uvicorn.Config:  # noqa: ANN401
    """Return the configuration of a server without a log of requests, for MOST_CONNECTIONS.

    `proxies` are the addresses from which X-Forwarded-For and X-Forwarded-Proto are believed.
    `more` are other options of uvicorn.
    """
    options: dict[str, Any] = {
        "http": "h11", "ws": "none", "access_log": False, "server_header": False,
        "backlog": BACKLOG, "limit_concurrency": MOST_CONNECTIONS, "proxy_headers": bool(proxies),
        "forwarded_allow_ips": list(proxies), "timeout_graceful_shutdown": GRACE_SECONDS,
    }
    return uvicorn.Config(app, **options | more)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket for `serve`; ConfigError if the address cannot be used."""
    try:
        listening = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET,
            backlog=BACKLOG)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}, port {port}: {error.strerror}; choose "
                          "another --port or --host") from error
    # Otherwise the body of an answer waits until its headers are acknowledged, 40 ms later.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


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
