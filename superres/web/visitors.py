"""Who a visitor is, which decides what files a request may name."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextvars import ContextVar

from starlette.requests import HTTPConnection
from starlette.types import Scope

COOKIE = "superres-visitor"

Identities = tuple[str, ...]
"""What a request tells of its visitor: the cookie, where there is one, and the address. Files go to the first."""

current: ContextVar[Identities] = ContextVar("current", default=())
"""The visitor whose request or event is being handled; nobody otherwise."""


def identities_of(scope: Scope) -> Identities:
    """Return the identities of the visitor who sent a request.

    A browser and `gradio_client` keep the cookie that the page gives them. A program without cookies is known by its
    address only, so its uploads are protected by their names, which cannot be guessed, from others at that address.
    """
    request = HTTPConnection(scope)
    cookie = request.cookies.get(COOKIE)
    address = request.client.host if request.client else ""
    return (*(("cookie " + cookie,) if cookie else ()), "address " + address)


def new_cookie(scope: Scope) -> str | None:
    """Return the header that makes a visitor known, or None for one who has a cookie already."""
    request = HTTPConnection(scope)
    if request.cookies.get(COOKIE):
        return None
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{COOKIE}={secrets.token_urlsafe(24)}; HttpOnly; Path=/; SameSite=Lax{secure}"


def named_paths(value: object) -> Iterator[object]:
    """Yield whatever stands as a "path" in a JSON value, at any depth."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "path" in item:
                yield item["path"]
            pending += item.values()
        elif isinstance(item, list):
            pending += item
