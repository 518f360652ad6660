"""Identify visitors; the identity decides which files a request may use."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextvars import ContextVar

from starlette.requests import HTTPConnection
from starlette.types import Scope

COOKIE = "superres-visitor"

Identities = tuple[str, ...]
"""Identities of a visitor: the cookie, if there is one, and the address. The first one owns the visitor's files."""

current: ContextVar[Identities] = ContextVar("current", default=())
"""Visitor whose request or event is being handled; empty outside of requests."""


def identities_of(scope: Scope) -> Identities:
    """Return the identities of the visitor who sent a request.

    Browsers and `gradio_client` send the cookie that the page sets. A program without cookies is known only by its
    address. Names that cannot be guessed protect its uploads from other programs at the same address.
    """
    request = HTTPConnection(scope)
    cookie = request.cookies.get(COOKIE)
    address = request.client.host if request.client else ""
    return (*(("cookie " + cookie,) if cookie else ()), "address " + address)


def new_cookie(scope: Scope) -> str | None:
    """Return the value of a header that sets the visitor's cookie; None if the request has the cookie."""
    request = HTTPConnection(scope)
    if request.cookies.get(COOKIE):
        return None
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{COOKIE}={secrets.token_urlsafe(24)}; HttpOnly; Path=/; SameSite=Lax{secure}"


def named_paths(value: object) -> Iterator[object]:
    """Yield all values of the key "path" in a JSON value, at any depth."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "path" in item:
                yield item["path"]
            pending += item.values()
        elif isinstance(item, list):
            pending += item
