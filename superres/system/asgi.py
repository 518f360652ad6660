"""Add headers to the responses of an ASGI server."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import Message, Send


def with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return an ASGI `send` that adds missing `headers` (lower-case names) to responses."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in headers.items()]
            message["headers"] = [*message["headers"], *(header for header in added if header[0] not in present)]
        await send(message)

    return send_with_headers
