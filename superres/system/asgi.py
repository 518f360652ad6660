"""What the servers of the web demo and of the survey share: headers, a proxy's path, and the
address to open."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


def with_headers(send: Send, headers: Mapping[str, str],
                 found: Mapping[str, str] | None = None) -> Send:
    """Return an ASGI `send` that adds missing `headers` (lower-case names) to responses, and
    `found` to successes."""
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            more = {**headers, **(found or {})} if message["status"] < 400 else headers
            added = [(name.encode(), value.encode()) for name, value in more.items()]
            message["headers"] = [*message["headers"],
                                  *(header for header in added if header[0] not in present)]
        await send(message)

    return send_with_headers


def without_root_path(app: ASGIApp, root_path: str) -> ASGIApp:
    """Return `app` for requests from which a proxy that serves it under `root_path` may or may not
    remove that path."""
    prefix = f"{root_path.rstrip('/')}/"

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path", "").startswith(prefix):
            scope = {**scope, "path": scope["path"][len(prefix) - 1:]}
        await app(scope, receive, send)

    return handle


def local_address(host: str, port: int, root_path: str = "") -> str:
    """Return the URL of a server's page for a browser on this machine; 0.0.0.0 and :: become the
    loopback address.

    `root_path` is the path under which a proxy serves the page.
    """
    if _is_open_to_others(host):
        host = "::1" if ":" in host else "127.0.0.1"
    path = f"{root_path.strip('/')}/" if root_path.strip("/") else ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{path}"


def how_to_leave(host: str) -> str:
    """Return the words in parentheses after a server's address: how it stops, and how other
    machines reach it."""
    others = "; other machines need this machine's name in place of the local address"
    return f"Ctrl-C stops it{others if _is_open_to_others(host) else ''}"


def _is_open_to_others(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
