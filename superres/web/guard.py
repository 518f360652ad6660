"""What stands before the page: headers, closed paths, the size of requests, and whose files may be fetched."""

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
"""A request may upload many files."""
MAX_REQUEST_BYTES = 1_000_000
"""Any other request holds settings, names of files, or a text."""
FILE_PATH = "/gradio_api/file="
HOMES = ("/", "/config")
"""What browsers and programs ask for first, and get the visitor's cookie with."""

# The page needs nothing from other hosts, and no other site needs the page inside its own. Gradio's own scripts and
# styles are partly inline.
HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' blob:; font-src 'self' data:; "
    "connect-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
# Parts of Gradio that the page does not use: some keep or send what a visitor entered.
CLOSED_PATHS = ("/gradio_api/deep_link", "/gradio_api/process_recording", "/gradio_api/proxy=", "/gradio_api/runs",
                "/gradio_api/run-history", "/gradio_api/component_server", "/gradio_api/vibe", "/gradio_api/dev",
                "/gradio_api/stream", "/gradio_api/file/", "/monitoring")


class Guard:
    """Adds headers to each answer, keeps Gradio's unused parts closed, limits requests, and keeps files apart."""

    def __init__(self, app: ASGIApp, workspace: Workspace, login: Login | None = None) -> None:
        """Wrap `app`, whose visitors' files are in `workspace`; a `login` lets in those who have a password."""
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
            return JSONResponse({"detail": f"send at most {most:,} bytes, and say how many"}, 413)
        if path.startswith(FILE_PATH):
            try:
                self.workspace.check(path.removeprefix(FILE_PATH), identities_of(scope))
            except InvalidInputError as error:
                return JSONResponse({"detail": str(error)}, 403)
        return None


def _headers_of_visitor(scope: Scope) -> dict[str, str]:
    """Return the headers of what belongs to a visitor: scripts and styles may be kept by others, this may not."""
    cookie = new_cookie(scope) if scope["path"] in HOMES else None
    if cookie is not None:
        return {"cache-control": "no-store", "set-cookie": cookie}
    return {"cache-control": "no-store"} if scope["path"].startswith("/gradio_api") else {}
