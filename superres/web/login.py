"""Login and logout, and the responses to visitors who are not logged in."""

from __future__ import annotations

from html import escape
from urllib.parse import urlsplit

import gradio as gr
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = ("/health",)
"""Paths that need no login."""
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>superres: {title}</title>
<style>:root {{ color-scheme: light dark; --accent: #c2410c; --on-accent: #fff }}
@media (prefers-color-scheme: dark) {{ :root {{ --accent: #fb923c; --on-accent: #111 }} }}
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 22rem; margin: 0 auto; padding: 4rem 1rem }}
h1 {{ font-size: 1.5rem; line-height: 1.3 }} label {{ display: block; margin: 1rem 0; font-weight: 600 }}
input, button {{ box-sizing: border-box; display: block; min-height: 44px; padding: 0.4rem 0.8rem; font: inherit;
border: 1px solid #808080; border-radius: 8px }}
input {{ width: 100%; margin-top: 0.25rem; background: Field; color: FieldText }}
button {{ padding: 0.4rem 1.2rem; border-color: var(--accent); background: var(--accent); color: var(--on-accent);
font-weight: 600; cursor: pointer }}
:focus-visible {{ outline: 3px solid var(--accent); outline-offset: 2px }}
[role=alert] {{ font-weight: 600 }}</style></head>
<body><main><h1>{title}</h1>{content}</main></body></html>"""
_LOGIN = """<p>Log in with the name and the password that you were given.</p>
<form method="post" action="{action}">
<label>User name <input name="username" autocomplete="username" required autofocus></label>
<label>Password <input name="password" type="password" autocomplete="current-password" required></label>
<button>Log in</button><p role="alert"></p></form>
<script>document.forms[0].onsubmit = async event => {{
  event.preventDefault();
  const form = event.target, status = form.querySelector("[role=alert]");
  status.textContent = "";
  try {{
    const answer = await fetch(form.action, {{method: "POST", body: new FormData(form)}});
    if (answer.ok) return location.reload();
    status.textContent = answer.status === 400 ? "The name or the password is wrong." : (await answer.json()).detail;
  }} catch {{ status.textContent = "The server does not respond; try again."; }}
}};</script>"""
_LOGOUT = """<p>This ends all sessions of this user, in other browsers too.</p>
<form method="post" action="{action}"><button>Log out</button></form>"""


class Login:
    """Decides whether a request to a page with passwords is answered by the page."""

    def __init__(self, page: gr.routes.App, root_path: str = "", open_paths: tuple[str, ...] = ()) -> None:
        """Protect the mounted `page`, served under `root_path`; `open_paths` and paths below them need no login."""
        self._page, self._root = page, escape(root_path.rstrip("/"))
        self._open = open_paths

    def is_logged_in(self, scope: Scope) -> bool:
        """Return whether the request belongs to a visitor who is logged in."""
        cookies, name = HTTPConnection(scope).cookies, self._page.cookie_id
        tokens = (cookies.get(f"access-token-{name}"), cookies.get(f"access-token-unsecure-{name}"))
        return any(token in self._page.tokens for token in tokens)

    def answer(self, scope: Scope) -> ASGIApp | None:
        """Return the response that replaces the page's response; None if the page may respond."""
        path, method = scope["path"].rstrip("/") or "/", scope["method"]
        if path in ("/login", "/logout") and method == "POST" and _is_from_another_site(scope):
            return JSONResponse({"detail": "only the page itself may send this request"}, 403)
        if path in OPEN_PATHS or path.startswith(tuple(f"{each}/" for each in self._open)) or path in self._open:
            return None
        if path == "/login" and method == "POST":
            return None
        if self.is_logged_in(scope):
            return self._logout(method) if path == "/logout" else None
        if path == "/" and method in ("GET", "HEAD"):
            form = _LOGIN.format(action=f"{self._root}/login")
            return HTMLResponse(_PAGE.format(title="Log in", content=form), headers={"cache-control": "no-store"})
        return JSONResponse({"detail": "log in first"}, 401)

    def _logout(self, method: str) -> ASGIApp:
        """Ask for confirmation: a GET request may come from another site, for example as the address of a picture."""
        if method == "POST":
            return self._end
        form = _LOGOUT.format(action=f"{self._root}/logout")
        # With the referrer policy of the other pages, the browser would not send the origin of the form.
        return HTMLResponse(_PAGE.format(title="Log out", content=form),
                            headers={"cache-control": "no-store", "referrer-policy": "same-origin"})

    async def _end(self, scope: Scope, receive: Receive, send: Send) -> None:
        """End all sessions of the user, as Gradio does for a GET request."""
        await self._page({**scope, "method": "GET", "path": "/logout"}, receive, send)


def _is_from_another_site(scope: Scope) -> bool:
    """Return whether a page of another site sent the request; programs other than browsers send no such headers."""
    headers = Headers(scope=scope)
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")
    origin = headers.get("origin")
    hosts = (headers.get("host"), headers.get("x-forwarded-host"))
    return origin is not None and urlsplit(origin).netloc not in hosts
