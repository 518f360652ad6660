"""What the servers of the web demo and of the survey share: headers, a proxy's path, and the address to open."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return an ASGI `send` that adds missing `headers` (lower-case names) to responses."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in headers.items()]
            message["headers"] = [*message["headers"], *(header for header in added if header[0] not in present)]
        await send(message)

    return send_with_headers


class WithoutRootPath:
    """ASGI middleware that removes the path of a proxy from requests, if the proxy has not removed it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        """Wrap `app`, whose pages a proxy serves under `root_path`."""
        self.app, self.prefix = app, f"{root_path.rstrip('/')}/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope.get("path", "").startswith(self.prefix):
            scope = {**scope, "path": scope["path"][len(self.prefix) - 1:]}
        await self.app(scope, receive, send)


def local_address(host: str, port: int, root_path: str = "") -> str:
    """Return the URL of a server's page for a browser on this machine.

    Args:
        host: address on which the server listens; 0.0.0.0 and :: listen on all, of which the loopback one is named.
        port: port on which the server listens.
        root_path: path under which a proxy serves the page.
    """
    if _is_open_to_others(host):
        host = "::1" if ":" in host else "127.0.0.1"
    path = f"{root_path.strip('/')}/" if root_path.strip("/") else ""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/{path}"


def how_to_leave(host: str) -> str:
    """Return the words in parentheses after a server's address: how it stops, and how other machines reach it."""
    others = "; other machines need this machine's name in place of the local address"
    return f"Ctrl-C stops it{others if _is_open_to_others(host) else ''}"


def _is_open_to_others(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
