"""Checks before a request reaches the page: login, closed paths, size, and access to files."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from superres.errors import InvalidInputError
from superres.system.asgi import with_headers
from superres.web.files import Workspace
from superres.web.login import Login
from superres.web.uploads import UPLOAD_PATH
from superres.web.visitors import current, identities_of, new_cookie

MAX_UPLOAD_BYTES = 200_000_000
"""Largest size of an upload request, which may have many files."""
MAX_REQUEST_BYTES = 1_000_000
"""Largest size of other requests, which have settings, names of files, or text."""
FILE_PATH = "/gradio_api/file="
COOKIE_PATHS = ("/", "/config")
"""First requests of browsers and programs; their responses set the visitor's cookie."""

# The page loads nothing from other hosts, and other sites may not embed it. Some of Gradio's scripts and styles are
# inline.
HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
# Parts of Gradio that the page does not use; some of them store or send visitors' input.
CLOSED_PATHS = ("/gradio_api/deep_link", "/gradio_api/process_recording", "/gradio_api/proxy=", "/gradio_api/runs",
                "/gradio_api/run-history", "/gradio_api/component_server", "/gradio_api/vibe", "/gradio_api/dev",
                "/gradio_api/stream", "/gradio_api/file/", "/monitoring")


class Guard:
    """Middleware that adds headers, closes unused parts of Gradio, limits requests, and checks access to files."""

    def __init__(self, app: ASGIApp, workspace: Workspace, login: Login | None = None) -> None:
        """Wrap `app`; `workspace` has its visitors' files, and `login` checks passwords if there are any."""
        self.app, self.workspace, self.login = app, workspace, login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = (self.login.answer(scope) if self.login else None) or self._refusal(scope) or self.app
        token = current.set(identities_of(scope))
        try:
            await answer(scope, receive, with_headers(send, {**HEADERS, **_headers_of_visitor(scope)}))
        finally:
            current.reset(token)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        path, headers = scope["path"], Headers(scope=scope)
        if path.startswith(CLOSED_PATHS):
            return JSONResponse({"detail": "not found"}, 404)
        most = MAX_UPLOAD_BYTES if path == UPLOAD_PATH else MAX_REQUEST_BYTES
        if "transfer-encoding" in headers or int(headers.get("content-length", 0)) > most:
            return JSONResponse({"detail": f"send at most {most:,} bytes, with a content-length header"}, 413)
        if path.startswith(FILE_PATH):
            try:
                self.workspace.check(path.removeprefix(FILE_PATH), identities_of(scope))
            except InvalidInputError as error:
                return JSONResponse({"detail": str(error)}, 403)
        return None


def _headers_of_visitor(scope: Scope) -> dict[str, str]:
    """Return the headers that set the visitor's cookie and forbid caches to store visitors' data."""
    cookie = new_cookie(scope) if scope["path"] in COOKIE_PATHS else None
    if cookie is not None:
        return {"cache-control": "no-store", "set-cookie": cookie}
    return {"cache-control": "no-store"} if scope["path"].startswith("/gradio_api") else {}
