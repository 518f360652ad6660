"""The pages of a study as FastAPI applications, served by themselves or mounted under any path.

Raters vote on one page. A browser receives the page, its texts, opaque tokens and pictures of equal
length; the names of methods stay on the server. A session token in a header, never a cookie,
identifies the rater. A rater returns by this token, which the browser stores, or by a personal link
with a key. The other page shows the report of the running study, and its export, to whoever has the
owner's token.
"""

from __future__ import annotations

import logging
from functools import partial
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superres.errors import StoreError
from superres.survey import voting
from superres.survey.credentials import digest
from superres.survey.export import export_study
from superres.survey.presentation import report_markdown, report_plot, sections
from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.report import study_report
from superres.survey.store import Store
from superres.survey.study import Study, StudySettings
from superres.survey.voting import Enrolment, RefusedError, Vote
from superres.system.asgi import with_headers
from superres.system.output import scratch_folder

MAX_BODY_BYTES = 16_384

HEADERS = {
    "cache-control": "no-store", "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer", "content-security-policy": "default-src 'none'; script-src "
    "'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
}
"""Headers of every response."""

MEDIA_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8",
               "css": "text/css; charset=utf-8"}

Session = Annotated[str, Header(alias="X-Session", max_length=100)]
Owner = Annotated[str, Header(alias="X-Owner", max_length=100)]


def guard(app: ASGIApp) -> ASGIApp:
    """ASGI middleware that adds `HEADERS` to every response and refuses bodies over
    `MAX_BODY_BYTES`."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        send = with_headers(send, HEADERS)
        body, more = b"", True
        while more and len(body) <= MAX_BODY_BYTES:
            message = await receive()
            body += message.get("body", b"")
            more = message["type"] == "http.request" and message.get("more_body", False)
        if len(body) > MAX_BODY_BYTES:
            await JSONResponse({"error": "the request is too long"}, 413)(scope, receive, send)
            return
        buffered = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_buffered() -> Message:
            return buffered.pop() if buffered else await receive()

        await app(scope, receive_buffered, send)

    return handle


def page(name: str) -> Response:
    """Return the response with a file of `superres/survey/pages`."""
    text = resources.files("superres.survey").joinpath("pages").joinpath(name).read_text(
        encoding="utf-8")
    return Response(text, media_type=MEDIA_TYPES[name.rsplit(".", 1)[1]])


def _guarded_app(index: str, *others: str) -> FastAPI:
    """Return an application that serves a page and its files, and answers every error as JSON
    `{"error": one line}`."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(guard)

    @app.exception_handler(RefusedError)
    def refuse(_: Request, error: RefusedError) -> JSONResponse:
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return JSONResponse({"error": str(error)}, error.status, headers)

    @app.exception_handler(StoreError)
    def unavailable(_: Request, error: StoreError) -> JSONResponse:
        # Raters do not see the location of the store; the message goes to the server's log.
        logging.getLogger("uvicorn.error").error("superres: %s", error)
        return JSONResponse({"error": "the vote cannot be saved at the moment; please wait and try "
                             "again"}, 503)

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        places = sorted({".".join(str(part) for part in issue["loc"][1:])[:60] or "body"
                         for issue in error.errors()})
        return JSONResponse({"error": f"the request cannot be read: {', '.join(places)}"}, 422)

    @app.exception_handler(HTTPException)
    def not_found(request: Request, error: HTTPException) -> Response:
        if error.status_code != 404 or "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        # Relative, as all links: a proxy may serve the pages under another path.
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        root = ("../" * (path.count("/") - 1) or "./").encode()
        return Response(bytes(page("missing.html").body).replace(b"ROOT/", root), 404,
                        media_type=MEDIA_TYPES["html"])

    app.get("/")(partial(page, index))
    for name in others:
        app.get(f"/{name}")(partial(page, name))
    return app


def study_app(store: Store, study: Study, root_path: str = "",
              limit: EnrolmentLimit | None = None) -> FastAPI:
    """Return the application of a study: the voting page, and the owner's page under `results/`.

    `root_path` is the path of the requests that a proxy passes on, such as "/survey". A proxy that
    removes its path from requests needs none, since all links are relative. `limit` is by default
    `EnrolmentLimit()`. The caller closes the store.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    root = root_path.strip("/") and f"/{root_path.strip('/')}"
    app.get(f"{root}/results")(lambda: RedirectResponse("results/"))
    app.mount(f"{root}/results", results_app(store, study))
    app.mount(root, survey_app(store, study, limit))
    return app


def survey_app(store: Store, study: Study, limit: EnrolmentLimit | None = None) -> FastAPI:
    """Return the application with which raters vote in a study; see `study_app`.

    It serves the page at its root, and works under any path that ends in a slash.
    """
    app, settings = _guarded_app("survey.html", "survey.js", "survey.css"), study.settings
    enrolments = limit or EnrolmentLimit()

    @app.get("/api/study")
    def get_study(request: Request) -> dict[str, Any]:
        voting.check_link(settings, request.query_params)  # which the page passes on
        stored = digest(study.created + study.name)[:16]  # the browser's session for this study
        return {**_shown(settings), "key": f"superres-survey-{stored}"}

    @app.post("/api/raters")
    def post_rater(request: Request, enrolment: Enrolment, session: Session = "") -> dict[str, Any]:
        seconds = enrolments.take(request.client.host if request.client else "")
        if seconds:
            raise RefusedError(429, "many people are starting this survey at the moment; please "
                               f"try again in {seconds} s", seconds)
        session, resumed = voting.enrol(store, study, enrolment, session)
        return {"session": session, "resumed": resumed}

    @app.get("/api/trial")
    def get_trial(session: Session = "") -> dict[str, Any]:
        trial = voting.next_trial(store, study, session)
        if trial is None:
            shown = "thanks", "completion_code", "completion_url"
            return {"done": True, **{name: getattr(settings, name) for name in shown}}
        return {"done": False, **trial}

    @app.get("/pictures/{token}/{side}")
    def get_picture(token: str, side: Literal["left", "right"]) -> Response:
        return Response(voting.shown_picture(store, study, token, side), media_type="image/png")

    @app.post("/api/votes")
    def post_vote(vote: Vote, session: Session = "") -> dict[str, Any]:
        return {"saved": True, "correct": voting.save_vote(store, study, session, vote)}

    return app


def _shown(settings: StudySettings) -> dict[str, Any]:
    """Return what the voting page needs of the settings.

    Its scale is the number of pixels of the page per pixel of a picture, kept whole by the page; 1
    if pictures may be reduced smoothly.
    """
    names = ("title", "question", "consent", "consent_version", "judge", "allow_unsure", "fill",
             "minimum_viewport", "id_params", "panel_params")
    return {**{name: getattr(settings, name) for name in names},
            "scale": settings.scale if settings.interpolation == "nearest" else 1}


def results_app(store: Store, study: Study) -> FastAPI:
    """Return the application that shows a study's current results to whoever has its owner's
    token."""
    app = _guarded_app("results.html", "results.js", "survey.css")

    def check(owner: Owner = "") -> None:
        if not store.is_owner(study, owner):
            raise RefusedError(401, "that is not the token of this study's owner; the command for "
                               "a new one is in the terminal that serves the survey")

    api = APIRouter(prefix="/api", dependencies=[Depends(check)])

    @api.get("/report")
    def get_report() -> dict[str, Any]:
        report = study_report(store, study)
        return {"study": study.name, "votes": report["result"]["votes"],
                "raters": report["result"]["raters"], "question": study.settings.question,
                **report["findings"], "sections": sections(report)}

    @api.get("/plot.png")
    def get_plot(narrow: bool = False) -> Response:
        return Response(report_plot(study_report(store, study), narrow), media_type="image/png")

    @api.get("/report.md")
    def get_markdown() -> Response:
        return Response(report_markdown(study_report(store, study)), media_type="text/markdown; "
                        "charset=utf-8")

    @api.get("/votes.{file_format}")
    def get_votes(file_format: Literal["csv", "jsonl"]) -> Response:
        with scratch_folder() as folder:
            data = export_study(store, study, folder / f"votes.{file_format}")[0].read_bytes()
        return Response(data, media_type="text/plain; charset=utf-8")

    app.include_router(api)
    return app
