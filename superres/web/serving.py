"""The server of the page: its routes, its limits, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, RedirectResponse
from gradio import processing_utils
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from superres.system.asgi import WithoutRootPath, with_headers
from superres.web.decoding import Decoder
from superres.web.files import MAX_FILE_BYTES, files_below, sweep
from superres.web.page import STATIC, SURVEY_PATH, THEME, face_widths

MAX_UPLOAD_BYTES = 200_000_000
"""Largest size of an upload request, which may have many files."""
MAX_REQUEST_BYTES = 1_000_000
"""Largest size of other requests, which have settings, names of files, or text."""
MAX_CONNECTIONS = 512
"""Largest number of open connections; an open page uses two or three."""
SWEEP_SECONDS = 30
GRACE_SECONDS = 5
"""Time that open connections have to end when the server stops."""

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
# Parts of Gradio that the page does not use; some of them store or send visitors' input, or fetch from other hosts.
CLOSED_PATHS = (
    *(f"/gradio_api/{name}" for name in (
        "deep_link", "process_recording", "proxy=", "runs", "run-history", "component_server", "vibe", "dev", "stream",
        "file/", "file=http://", "file=https://")), "/monitoring")


class Guard:
    """ASGI middleware that adds headers, and refuses large requests and those to parts that the page does not use."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, given, headers = scope["path"], Headers(scope=scope), HEADERS
        most = MAX_UPLOAD_BYTES if path == "/gradio_api/upload" else MAX_REQUEST_BYTES
        app = self.app
        if path.startswith(CLOSED_PATHS):
            app = JSONResponse({"detail": "not found"}, 404)
        elif "transfer-encoding" in given or int(given.get("content-length", 0)) > most:
            app = JSONResponse({"detail": f"send at most {most:,} bytes, with a content-length header"}, 413)
        if path.startswith("/gradio_api"):  # visitors' data
            headers = {**headers, "cache-control": "no-store"}
        await app(scope, receive, with_headers(send, headers))


def build_server(
    page: gr.Blocks, decoder: Decoder, folder: Path, auth: list[tuple[str, str]] | None = None, root_path: str = "",
    survey: ASGIApp | None = None,
) -> FastAPI:
    """Return the server of a page.

    Args:
        page: the page.
        decoder: decodes for the page.
        folder: Gradio's folder of temporary files; the files in it at the start of the server stay.
        auth: names and passwords; None for no login. A survey needs none: its results need the owner's token.
        root_path: path under which a proxy serves the page.
        survey: application of a survey for SURVEY_PATH, or None.
    """

    @contextlib.asynccontextmanager
    async def sweeping(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(_sweep_forever(folder))
        yield
        task.cancel()

    server = FastAPI(lifespan=sweeping, docs_url=None, redoc_url=None, openapi_url=None)

    @server.get("/health")
    def health() -> JSONResponse:
        return JSONResponse({
            "status": "stopping" if decoder.is_closing else "ok", "busy": decoder.is_busy,
            "waiting": len(page._queue), "max_queue": page._queue.max_size, "checkpoint": decoder.upscaler.name,
            "revision": decoder.upscaler.revision, "device": str(decoder.upscaler.device),
        }, 503 if decoder.is_closing else 200)

    if survey is not None:
        server.get(SURVEY_PATH)(lambda: RedirectResponse(f"{SURVEY_PATH[1:]}/"))  # relative: see root_path
        server.mount(SURVEY_PATH, survey)
    # The page handles all other paths.
    gr.mount_gradio_app(
        server, page, path="/", auth=auth, root_path=root_path or None, max_file_size=MAX_FILE_BYTES, theme=THEME,
        css_paths=sorted(STATIC.glob("*.css")), head=face_widths(decoder.upscaler.face_task) + "".join(
            f"<script>{path.read_text(encoding='utf-8')}</script>" for path in sorted(STATIC.glob("*.js"))),
        footer_links=[], run_history=False, enable_monitoring=False, ssr_mode=False, pwa=False, mcp_server=False,
        show_error=True)
    # Gradio regards a mounted page as not launched. It would then accept files that were not uploaded, and would send
    # no heartbeats, by which it notices that a visitor has left.
    page.has_launched = page.is_running = True
    processing_utils.async_ssrf_protected_download = _refuse_download
    server.add_middleware(Guard)
    if root_path:
        server.add_middleware(WithoutRootPath, root_path=root_path)
    return server


async def _refuse_download(url: str, cache_dir: str) -> str:
    """Replace Gradio's download of files from URLs: this server sends no requests to other hosts."""
    raise gr.Error("give a file, not a URL", print_exception=False)


async def _sweep_forever(folder: Path) -> None:
    kept = set(files_below(folder))
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        await asyncio.to_thread(sweep, folder, kept)


class Server(uvicorn.Server):
    """A server that stops the running decoding when it receives a signal."""

    def __init__(self, config: uvicorn.Config, decoder: Decoder) -> None:
        """Create a server; a signal closes `decoder` first."""
        super().__init__(config)
        self.decoder = decoder

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        logging.getLogger(__name__).info("stopping after signal %d", sig)
        self.decoder.close()
        super().handle_exit(sig, frame)


def configure(app: FastAPI, grace_seconds: int = GRACE_SECONDS) -> uvicorn.Config:
    """Return the server's configuration: no log of requests, and a limited number of connections."""
    return uvicorn.Config(app, ws="none", log_config=None, access_log=False, server_header=False,
                          limit_concurrency=MAX_CONNECTIONS, timeout_graceful_shutdown=grace_seconds)


def serve(app: FastAPI, decoder: Decoder, listening: socket.socket) -> None:
    """Serve on a listening socket until SIGINT or SIGTERM."""
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # uvicorn raises the signal again after stopping
        Server(configure(app), decoder).run(sockets=[listening])
