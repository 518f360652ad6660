"""The server around the page: what it refuses, its health, its log, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import FrameType
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, RedirectResponse
from gradio import processing_utils
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from superres.headers import with_headers
from superres.web.decoding import Decoder
from superres.web.files import Workspace
from superres.web.logs import log
from superres.web.page import CSS, THEME
from superres.web.survey_tabs import SURVEY_PATH

MAX_FILE_SIZE = "10mb"
MAX_REQUEST_BYTES = 200_000_000
"""A request may upload many files."""
SWEEP_SECONDS = 30
GRACE_SECONDS = 5
"""How long open connections may take to end when the server stops."""

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
                "/monitoring")


def build_server(
    page: gr.Blocks, decoder: Decoder, workspace: Workspace, auth: list[tuple[str, str]] | None = None,
    root_path: str = "", survey: ASGIApp | None = None,
) -> FastAPI:
    """Put the page into a server.

    Args:
        page: the page.
        decoder: what decodes for it.
        workspace: its temporary files.
        auth: names and passwords that may enter the page; everybody if None. The survey lets raters in without, and
            asks the study's owner for a token.
        root_path: the path under which a proxy offers the page.
        survey: a survey's application, if there is one, for SURVEY_PATH.
    """

    @contextlib.asynccontextmanager
    async def sweeping(_: FastAPI) -> AsyncIterator[None]:
        workspace.keep_present_files()
        task = asyncio.create_task(_sweep_forever(workspace))
        try:
            yield
        finally:
            task.cancel()

    server = FastAPI(lifespan=sweeping, docs_url=None, redoc_url=None, openapi_url=None)

    @server.get("/health")
    def health() -> JSONResponse:
        waiting = len(page._queue)
        report = {"status": "stopping" if decoder.is_closing else "ok", "busy": decoder.is_busy, "waiting": waiting,
                  "max_queue": page._queue.max_size, "checkpoint": decoder.upscaler.name,
                  "revision": decoder.upscaler.revision, "device": str(decoder.upscaler.device)}
        return JSONResponse(report, 503 if decoder.is_closing else 200)

    if survey is not None:
        server.get(SURVEY_PATH)(lambda: RedirectResponse(f"{SURVEY_PATH[1:]}/"))  # relative: a proxy may add a path
        server.mount(SURVEY_PATH, survey)
    # The page takes all the rest.
    gr.mount_gradio_app(
        server, page, path="/", auth=auth, root_path=root_path or None, max_file_size=MAX_FILE_SIZE, theme=THEME,
        css_paths=[CSS], footer_links=[], run_history=False, enable_monitoring=False, ssr_mode=False, pwa=False,
        mcp_server=False, show_error=True,
    )
    # A mounted page counts as not launched, for which Gradio skips the check that a file which a visitor names is one
    # that was uploaded, and sends no heartbeats, by which it notices that a visitor has left.
    page.has_launched = page.is_running = True
    processing_utils.async_ssrf_protected_download = _refuse_download
    server.add_middleware(Guard)
    return server


async def _refuse_download(url: str, cache_dir: str) -> str:
    """Stand in for Gradio's download of files that visitors name by address: this server asks no other host."""
    raise gr.Error("give a file, not an address on the network", print_exception=False)


async def _sweep_forever(workspace: Workspace) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        deleted = await asyncio.to_thread(workspace.sweep)
        if deleted:
            log("swept", files=deleted)


class Guard:
    """Adds the headers to each answer, keeps Gradio's unused parts closed, and limits the size of a request."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        # Scripts and styles may be cached, what belongs to a visitor not.
        kept = {"cache-control": "no-store"} if scope["path"].startswith("/gradio_api") else {}
        headers = Headers(scope=scope)
        if scope["path"].startswith(CLOSED_PATHS):
            answer: ASGIApp = JSONResponse({"detail": "not found"}, 404)
        elif "transfer-encoding" in headers or int(headers.get("content-length", 0)) > MAX_REQUEST_BYTES:
            answer = JSONResponse({"detail": f"send at most {MAX_REQUEST_BYTES:,} bytes, and say how many"}, 413)
        else:
            answer = self.app
        await answer(scope, receive, with_headers(send, {**HEADERS, **kept}))


class Server(uvicorn.Server):
    """A server that ends a decoding when it is told to stop, rather than waiting for it."""

    def __init__(self, config: uvicorn.Config, decoder: Decoder) -> None:
        """Serve with `config`; `decoder` is closed first when a signal comes."""
        super().__init__(config)
        self.decoder = decoder

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        log("stopping", signal=int(sig), busy=self.decoder.is_busy)
        self.decoder.close()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: Any = None) -> None:  # noqa: ANN401 -- as in uvicorn
        """Open the port and say so."""
        await super().startup(sockets)
        if self.started:
            log("ready", host=self.config.host, port=self.servers[0].sockets[0].getsockname()[1])


def serve(app: FastAPI, decoder: Decoder, host: str, port: int) -> bool:
    """Serve until SIGINT or SIGTERM; return whether the port could be opened at all."""
    # Addresses of visitors would be in the access log.
    config = uvicorn.Config(app, host, port, log_config=None, access_log=False, server_header=False,
                            timeout_graceful_shutdown=GRACE_SECONDS)
    server = Server(config, decoder)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # uvicorn repeats the signal once it has stopped
        server.run()
    log("stopped")
    return server.started
