"""The page, with its tabs, and its server: routes, limits, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse, RedirectResponse, Response
from gradio import processing_utils
from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Lifespan, Receive, Scope, Send

from superres.pictures.read import Pixels
from superres.system import serving
from superres.system.asgi import with_headers, without_root_path
from superres.system.serving import GRACE_SECONDS, server_config
from superres.web.batch_tab import batch_tab
from superres.web.content import TITLE, face_styles
from superres.web.controls import INSTANT, shown_to_visitor
from superres.web.crops import stop_reading
from superres.web.decoding import VisitorDecoding
from superres.web.draft import DRAFT, OPEN_DRAFT, draft_tab, is_offered
from superres.web.draft_view import TAB
from superres.web.files import MAX_FILE_BYTES, files_below, sweep
from superres.web.head import CARD_PATH, Preview, with_preview
from superres.web.translate_tab import translate_tab
from superres.web.turns import GONE, VISITOR, FairQueue, StoppedError, Visitor
from superres.web.upscale_tab import upscale_tab

# Gradio's own colours do not have the contrast that WCAG AA asks for.
THEME = gr.themes.Default(font=["system-ui", "sans-serif"],
                          font_mono=["ui-monospace", "monospace"]).set(
                              block_info_text_color="*neutral_600",
                              block_info_text_color_dark="*neutral_300",
                              body_text_color_subdued="*neutral_600",
                              body_text_color_subdued_dark="*neutral_300",
                              link_text_color_dark="*secondary_400",
                              button_primary_background_fill="*primary_700",
                              button_primary_background_fill_hover="*primary_800",
                              button_primary_background_fill_dark="*primary_700",
                              button_primary_background_fill_hover_dark="*primary_800",
                              button_cancel_background_fill="#b91c1c",
                              button_cancel_background_fill_hover="#991b1b",
                              button_cancel_background_fill_dark="#b91c1c",
                              button_cancel_background_fill_hover_dark="#991b1b",
                              button_cancel_text_color="white",
                              button_cancel_text_color_dark="white")
STATIC = Path(__file__).with_name("static")  # the page's scripts and styles, all of which it loads
SURVEY_PATH = "/survey"  # of the voting page
MAX_UPLOAD_BYTES = 200_000_000  # of an upload request, which may have many files
MAX_REQUEST_BYTES = 1_000_000  # of other requests, which have settings, names of files, or text
SWEEP_SECONDS = 30
# of files whose addresses have a hash of their content
HASHED_CACHE = "public, max-age=31536000, immutable"
CARD_CACHE = "public, max-age=3600"  # a new checkpoint draws another card
# The page loads nothing from other hosts. Some of Gradio's scripts and styles are inline. Sites
# that may embed the page are added to the policy.
HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self' 'unsafe-inline' "
    "'unsafe-eval'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' "
    "blob:; font-src 'self' data:; connect-src 'self'; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
# Parts of Gradio that the page does not use; some of them store or send visitors' input, or fetch
# from other hosts.
CLOSED_PATHS = (
    *(f"/gradio_api/{name}" for name in (
        "deep_link", "process_recording", "proxy=", "runs", "run-history", "component_server",
        "vibe", "dev", "stream", "file/", "file=http://", "file=https://")), "/monitoring")


class DemoBlocks(gr.Blocks):
    """The page, which turns errors into messages for the visitor."""

    async def process_api(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:  # noqa: ANN401 -- Gradio's
        """Handle an event from the queue or a direct request."""
        VISITOR.set(Visitor.of(keywords.get("request")))
        gone = threading.Event()
        GONE.set(gone)
        try:
            handled: dict[str, Any] = await super().process_api(*arguments, **keywords)
            return handled
        except asyncio.CancelledError:
            gone.set()  # the request is stopped, and its thread may wait for a turn
            raise
        except gr.Error:
            raise
        except Exception as error:
            raise shown_to_visitor(error) from None


def build_page(
    decoding: VisitorDecoding, examples: Sequence[Path], max_queue: int, with_survey: bool = False,
    root_path: str = "",
) -> gr.Blocks:
    """Build the page, under the path `root_path` of a proxy, with a queue of at most `max_queue`
    waiting requests.

    The examples are pictures in Gradio's folder of temporary files; the first one is chosen
    initially.
    """
    page = DemoBlocks(title=TITLE, analytics_enabled=False, fill_width=True)
    with page:
        gr.Markdown("# superres", elem_id="head")
        with gr.Tabs() as tabs:
            with gr.Tab("Upscale"):
                upscale_tab(decoding, examples)
            if is_offered(decoding.upscaler):
                with gr.Tab(TAB, id=DRAFT):
                    draft_tab(decoding, examples)
            with gr.Tab("Batch"):
                batch_tab(decoding)
            if decoding.translator is not None:
                with gr.Tab("Translate"):
                    translate_tab(decoding, decoding.translator)
            if with_survey:
                address = f"{root_path.rstrip('/')}{SURVEY_PATH}"
                survey_tab("Survey", f"{address}/", "To vote by keyboard, click into the frame or "
                           "move to it with Tab.")
                survey_tab("Results", f"{address}/results/",
                           "The results are for the study's owner, and need the owner's token.")
        opened = gr.HTML("", html_template="", js_on_load=OPEN_DRAFT, visible="hidden")
        opened.input(lambda: gr.Tabs(selected=DRAFT), None, tabs, **INSTANT)
    # Only events that decode are queued, so the limit counts only them.
    # A call of `queue` would make Gradio's application once more.
    page._queue.max_size, page.api_open = max_queue, False
    page._queue.__class__ = FairQueue
    return page


def survey_tab(name: str, address: str, note: str) -> None:
    """Lay out a tab that loads a page of the survey when it is first opened."""
    with gr.Tab(name):
        gr.HTML(f'<p class="sr-hint">{escape(note)} <a href="{escape(address)}" target="_blank" '
                'rel="noopener">' "Open in a separate window</a></p>"
                f'<iframe class="sr-survey" src="{escape(address)}" title="{name}" '
                'loading="lazy"></iframe>',
                elem_id=name.lower())


def guarded(app: ASGIApp, embedders: Sequence[str] = ()) -> ASGIApp:
    """Return `app` with headers, but without large requests and the parts that the page does not
    use.

    `embedders` are origins, such as "https://example.org", whose pages may embed this one.
    """
    always = {**HEADERS,
              "content-security-policy": " ".join([HEADERS["content-security-policy"], *embedders])}

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        path, given, headers, answer = scope["path"], Headers(scope=scope), always, app
        most = MAX_UPLOAD_BYTES if path == "/gradio_api/upload" else MAX_REQUEST_BYTES
        if path.startswith(CLOSED_PATHS):
            answer = JSONResponse({"detail": "not found"}, 404)
        elif "transfer-encoding" in given or int(given.get("content-length", 0)) > most:
            answer = JSONResponse({"detail": f"send at most {most:,} bytes, with a content-length "
                                   "header"}, 413)
        if path.startswith("/gradio_api"):  # visitors' data
            headers = {**headers, "cache-control": "no-store"}
        found = None
        # scripts and styles, whose names have hashes; the policy is for pages
        if path.startswith("/assets/"):
            headers, found = {"x-content-type-options": "nosniff"}, {"cache-control": HASHED_CACHE}
        await answer(scope, receive, with_headers(send, headers, found))

    return handle


def build_server(
    page: gr.Blocks, decoding: VisitorDecoding, folder: Path, pictured: Pixels,
    auth: list[tuple[str, str]] | None = None, root_path: str = "", survey: ASGIApp | None = None,
    embedders: Sequence[str] = (),
) -> FastAPI:
    """Return the server of a page, under the path `root_path` of a proxy, which `embedders` may
    embed: see `guarded`.

    `folder` is Gradio's folder of temporary files; those in it at the start of the server stay.
    `pictured`, uint8 [source, source, 3], is the input on the card of link previews. `auth` has
    names and passwords, or None for no login. The card and the application of a survey need none:
    the survey's results need the owner's token.
    """
    server = FastAPI(lifespan=sweeping(folder), docs_url=None, redoc_url=None, openapi_url=None)
    preview = Preview(decoding, pictured)
    add_routes(server, page, decoding, preview, survey)
    scripts = "".join(f"<script>{path.read_text(encoding='utf-8')}</script>"
                      for path in sorted(STATIC.glob("*.js")))
    # The page handles all other paths.
    gr.mount_gradio_app(
        server, page, path="/", auth=auth, root_path=root_path or None,
        max_file_size=MAX_FILE_BYTES, theme=THEME, css_paths=sorted(STATIC.glob("*.css")),
        head=f"<style>{face_styles(decoding.upscaler.face_task.target)}</style>{scripts}",
        footer_links=[], run_history=False, enable_monitoring=False, ssr_mode=False, pwa=False,
        mcp_server=False, show_error=True)
    # Gradio regards a mounted page as not launched. It would then accept files that were not
    # uploaded, and would send no heartbeats, by which it notices that a visitor has left.
    page.has_launched = page.is_running = True
    processing_utils.async_ssrf_protected_download = _refuse_download
    server.add_middleware(with_preview, preview=preview, root_path=root_path)
    # It leaves event streams and pictures as they are. Gradio compresses its own scripts and styles
    # with Brotli.
    server.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=6)
    server.add_middleware(guarded, embedders=embedders)
    if root_path:
        server.add_middleware(without_root_path, root_path=root_path)
    return server


def sweeping(folder: Path) -> Lifespan[FastAPI]:
    """Return what sweeps a folder while a server runs; the files at its start stay."""
    @contextlib.asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        kept = set(files_below(folder))

        async def sweep_forever() -> None:
            while True:
                await asyncio.sleep(SWEEP_SECONDS)
                await asyncio.to_thread(sweep, folder, kept)

        task = asyncio.create_task(sweep_forever())
        yield
        task.cancel()

    return running


def add_routes(
    server: FastAPI, page: gr.Blocks, decoding: VisitorDecoding, preview: Preview,
    survey: ASGIApp | None,
) -> None:
    """Let a server say how it is, and give the card of link previews and the pages of a survey."""
    @server.get("/health")
    def health() -> JSONResponse:
        return JSONResponse({
            "status": "stopping" if decoding.is_closing else "ok", "busy": decoding.is_busy,
            "waiting": len(page._queue), "max_queue": page._queue.max_size,
            "checkpoint": decoding.upscaler.name, "revision": decoding.upscaler.revision,
            "device": decoding.upscaler.device,
        }, 503 if decoding.is_closing else 200)

    @server.get(CARD_PATH)
    async def card() -> Response:
        try:
            return Response(await preview.png(), media_type="image/png",
                            headers={"cache-control": CARD_CACHE})
        except StoppedError as error:
            return JSONResponse({"detail": str(error)}, 503)

    if survey is not None:
        # relative: see root_path
        server.get(SURVEY_PATH)(lambda: RedirectResponse(f"{SURVEY_PATH[1:]}/"))
        server.mount(SURVEY_PATH, survey)


async def _refuse_download(url: str, cache_dir: str) -> str:
    """Replace Gradio's download of files from URLs: this server sends no requests to other
    hosts."""
    raise gr.Error("give a file, not a URL", print_exception=False)


def configure(app: FastAPI, grace_seconds: int = GRACE_SECONDS) -> uvicorn.Config:
    """Return the server's configuration: no log of requests, and a limited number of connections.

    Proxies are those of this machine, or of the environment variable FORWARDED_ALLOW_IPS.
    """
    return server_config(app, log_config=None, timeout_graceful_shutdown=grace_seconds,
                         proxy_headers=True, forwarded_allow_ips=None)


def serve(app: FastAPI, decoding: VisitorDecoding, listening: socket.socket, folder: Path) -> None:
    """Serve on a listening socket until SIGINT or SIGTERM, which also stop what is being read and
    decoded.

    `folder` is the folder of temporary files, which is removed if the process ends at once.
    """
    def stop() -> None:
        logging.getLogger(__name__).info("stopping")
        decoding.close()
        stop_reading()

    # uvicorn raises the signal again after stopping
    with contextlib.suppress(KeyboardInterrupt, SystemExit):
        serving.serve(configure(app), listening, stop,
                             functools.partial(shutil.rmtree, folder, ignore_errors=True))
