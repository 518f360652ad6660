"""The server of the page: its routes, its health check, its log, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, RedirectResponse
from gradio import processing_utils
from starlette.requests import Request
from starlette.routing import Mount
from starlette.types import ASGIApp

from superres.system.asgi import WithoutRootPath
from superres.web.connections import Connection
from superres.web.decoding import Decoder
from superres.web.files import Workspace
from superres.web.guard import Guard
from superres.web.login import Login
from superres.web.logs import log
from superres.web.page import STATIC, SURVEY_PATH, THEME, face_widths
from superres.web.passwords import Passwords
from superres.web.uploads import MAX_FILE_BYTES, UPLOAD_PATH, receive_uploads

SWEEP_SECONDS = 30
GRACE_SECONDS = 5
"""Time that open connections have to end when the server stops."""


def build_server(
    page: gr.Blocks, decoder: Decoder, workspace: Workspace, auth: list[tuple[str, str]] | None = None,
    root_path: str = "", survey: ASGIApp | None = None,
) -> FastAPI:
    """Return the server of a page.

    Args:
        page: the page.
        decoder: decodes for the page.
        workspace: folder of temporary files.
        auth: names and passwords of users; None for a page without login. The survey needs no login: raters vote
            without it, and the results need the owner's token.
        root_path: path under which a proxy serves the page.
        survey: application of a survey for SURVEY_PATH, or None.
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
    def health(request: Request) -> JSONResponse:
        report: dict[str, Any] = {"status": "stopping" if decoder.is_closing else "ok"}
        if login is None or login.is_logged_in(request.scope):
            report |= {
                "busy": decoder.is_busy, "waiting": len(page._queue), "max_queue": page._queue.max_size,
                "checkpoint": decoder.upscaler.name, "revision": decoder.upscaler.revision,
                "device": str(decoder.upscaler.device)}
        return JSONResponse(report, 503 if decoder.is_closing else 200)

    if survey is not None:
        server.get(SURVEY_PATH)(lambda: RedirectResponse(f"{SURVEY_PATH[1:]}/"))  # relative: see root_path
        server.mount(SURVEY_PATH, survey)
    server.post(UPLOAD_PATH)(receive_uploads(workspace))
    # The page handles all other paths.
    gr.mount_gradio_app(
        server, page, path="/", auth=Passwords(auth) if auth else None, root_path=root_path or None,
        max_file_size=MAX_FILE_BYTES, theme=THEME, css_paths=sorted(STATIC.glob("*.css")),
        head=face_widths(decoder.upscaler.face_task) + "".join(
            f"<script>{path.read_text(encoding='utf-8')}</script>" for path in sorted(STATIC.glob("*.js"))),
        footer_links=[], run_history=False,
        enable_monitoring=False, ssr_mode=False, pwa=False, mcp_server=False, show_error=True,
    )
    # Gradio regards a mounted page as not launched. It would then accept files that were not uploaded, and would send
    # no heartbeats, by which it notices that a visitor has left.
    page.has_launched = page.is_running = True
    processing_utils.async_ssrf_protected_download = _refuse_download
    mounted = next(route.app for route in server.routes
                   if isinstance(route, Mount) and isinstance(route.app, gr.routes.App))
    login = Login(mounted, root_path, (SURVEY_PATH,) if survey is not None else ()) if auth else None
    server.add_middleware(Guard, workspace=workspace, login=login)
    if root_path:
        server.add_middleware(WithoutRootPath, root_path=root_path)
    return server


async def _refuse_download(url: str, cache_dir: str) -> str:
    """Replace Gradio's download of files from URLs: this server sends no requests to other hosts."""
    raise gr.Error("give a file, not a URL", print_exception=False)


async def _sweep_forever(workspace: Workspace) -> None:
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        deleted = await asyncio.to_thread(workspace.sweep)
        if deleted:
            log("swept", files=deleted)


class Server(uvicorn.Server):
    """A server that stops the running decoding when it receives a signal."""

    def __init__(self, config: uvicorn.Config, decoder: Decoder, announce: Callable[[int], None]) -> None:
        """Create a server; a signal closes `decoder` first. `announce` is called with the port when it is open."""
        super().__init__(config)
        self.decoder, self.announce = decoder, announce

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        log("stopping", signal=int(sig), busy=self.decoder.is_busy)
        self.decoder.close()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: Any = None) -> None:  # noqa: ANN401 -- as in uvicorn
        """Open the port, log it, and announce it."""
        await super().startup(sockets)
        if self.started:
            port = self.servers[0].sockets[0].getsockname()[1]
            log("ready", host=self.config.host, port=port)
            self.announce(port)


def configure(
    app: FastAPI, host: str, port: int, grace_seconds: int = GRACE_SECONDS, connection: type[Connection] = Connection,
) -> uvicorn.Config:
    """Return the server's configuration: no log of visitors' addresses, and limits on connections."""
    return uvicorn.Config(app, host, port, http=connection, ws="none", log_config=None, access_log=False,
                          server_header=False, timeout_graceful_shutdown=grace_seconds)


def serve(app: FastAPI, decoder: Decoder, host: str, port: int, announce: Callable[[int], None]) -> bool:
    """Serve until SIGINT or SIGTERM; return whether the port could be opened. `announce` is called with the port."""
    server = Server(configure(app, host, port), decoder, announce)
    with contextlib.suppress(KeyboardInterrupt, SystemExit):  # uvicorn raises the signal again after stopping
        server.run()
    log("stopped")
    return server.started
