"""The voting page as a FastAPI application, served by itself or mounted under any path.

A browser receives the page, its texts, opaque tokens and pictures of equal length; the names of methods stay on the
server. A session token in a header, never a cookie, identifies the rater. A rater returns by this token, which the
browser stores, or by a personal link with a key.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial
from importlib import resources
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from superres.errors import StoreError
from superres.survey import voting
from superres.survey.credentials import TOKEN_LENGTH, digest
from superres.survey.limits import EnrolmentLimit
from superres.survey.store import Store
from superres.survey.study import Study
from superres.survey.voting import RefusedError, RequestBody, Vote
from superres.system.asgi import with_headers

MAX_BODY_BYTES = 16_384

HEADERS = {
    "cache-control": "no-store", "x-content-type-options": "nosniff", "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
}
"""Headers of every response."""

MEDIA_TYPES = {"html": "text/html; charset=utf-8", "js": "text/javascript; charset=utf-8",
               "css": "text/css; charset=utf-8"}

Session = Annotated[str, Header(alias="X-Session", max_length=100)]


class Enrolment(RequestBody):
    """A rater's agreement to a version of the consent text; `key` is the key of a personal link."""

    rater: str = Field(max_length=200)
    consent: str = Field(max_length=64)
    key: str = Field("", max_length=64)


class Ballot(Vote):
    """A vote on the trial with this token."""

    token: str = Field(min_length=TOKEN_LENGTH, max_length=TOKEN_LENGTH)


class Guard:
    """ASGI middleware that adds `HEADERS` to every response and refuses bodies over `MAX_BODY_BYTES`."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        send = with_headers(send, HEADERS)
        body = b""
        more = True
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

        await self.app(scope, receive_buffered, send)


def guarded_app(title: str) -> FastAPI:
    """Return an application without routes that answers every error as JSON `{"error": one line}`."""
    app = FastAPI(title=title, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard)

    @app.exception_handler(RefusedError)
    def refuse(_: Request, error: RefusedError) -> JSONResponse:
        headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
        return JSONResponse({"error": str(error)}, error.status, headers)

    @app.exception_handler(StoreError)
    def unavailable(_: Request, error: StoreError) -> JSONResponse:
        # Raters do not see the location of the store; the message goes to the server's log.
        logging.getLogger("uvicorn.error").error("superres: %s", error)
        return JSONResponse({"error": "the vote cannot be saved at the moment; please wait and try again"}, 503)

    @app.exception_handler(RequestValidationError)
    def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        places = sorted({".".join(str(part) for part in issue["loc"][1:])[:60] or "body" for issue in error.errors()})
        return JSONResponse({"error": f"the request cannot be read: {', '.join(places)}"}, 422)

    @app.exception_handler(HTTPException)
    def not_found(request: Request, error: HTTPException) -> Response:
        if error.status_code != 404 or "text/html" not in request.headers.get("accept", ""):
            return JSONResponse({"error": error.detail}, error.status_code, error.headers)
        # Relative, as all links: a proxy may serve the pages under another path.
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        root = "../" * (path.count("/") - 1) or "./"
        return Response(_text("missing.html").replace("ROOT/", root), 404, media_type=MEDIA_TYPES["html"])

    return app


def page(name: str) -> Response:
    """Return the response with a file of `superres/survey/pages`."""
    return Response(_text(name), media_type=MEDIA_TYPES[name.rsplit(".", 1)[1]])


def _text(name: str) -> str:
    return resources.files("superres.survey").joinpath("pages").joinpath(name).read_text(encoding="utf-8")


def add_pages(app: FastAPI, index: str, *others: str) -> None:
    """Make `app` serve the file `index` at its root and the files `others` under their names."""
    app.get("/")(partial(page, index))
    for name in others:
        app.get(f"/{name}")(partial(page, name))


def survey_app(store: Store, study: Study | str, limit: EnrolmentLimit | None = None) -> FastAPI:
    """Return the application with which raters vote in a study.

    It serves the page at its root. All links are relative, so it works under any path that ends in a slash: mounted by
    `parent.mount("/survey", survey_app(...))`, or behind a proxy. `study` may be its name, and `limit` is by default
    `EnrolmentLimit()`. The caller closes the store.

    Raises:
        StoreError: the store has no study of that name, or the study was imported without its pictures.
    """
    study = store.study(study) if isinstance(study, str) else study
    if not study.has_pictures:
        raise StoreError(f"the study {study.name!r} was imported without its pictures; it can be reported, not served")
    app = guarded_app("superres survey")
    add_pages(app, "survey.html", "survey.js", "survey.css")
    enrolments = limit or EnrolmentLimit()

    @app.get("/api/study")
    def get_study() -> dict[str, Any]:
        return _page_texts(study)

    @app.post("/api/raters")
    def post_rater(request: Request, enrolment: Enrolment, session: Session = "") -> dict[str, Any]:
        seconds = enrolments.take(request.client.host if request.client else "")
        if seconds:
            raise RefusedError(429, "many people are starting this survey at the moment; please try again in "
                                    f"{seconds} s", seconds)
        session, resumed = voting.enrol(store, study, enrolment.rater, enrolment.consent, session, enrolment.key)
        return {"session": session, "resumed": resumed}

    @app.get("/api/trial")
    def get_trial(session: Session = "") -> dict[str, Any]:
        trial = voting.next_trial(store, study, session)
        if trial is None:
            settings = study.settings
            return {"done": True, "thanks": settings.thanks, "completion_code": settings.completion_code,
                    "completion_url": settings.completion_url}
        return {"done": False, **asdict(trial)}

    @app.get("/pictures/{token}/{side}")
    def get_picture(token: str, side: Literal["left", "right"]) -> Response:
        return Response(voting.shown_picture(store, study, token, side), media_type="image/png")

    @app.post("/api/votes")
    def post_vote(ballot: Ballot, session: Session = "") -> dict[str, Any]:
        return {"saved": True, "correct": voting.save_vote(store, study, session, ballot.token, ballot)}

    return app


def _page_texts(study: Study) -> dict[str, Any]:
    """Return the texts and settings that the page shows, without the names of methods."""
    settings = study.settings
    return {
        "title": settings.title, "question": settings.question, "consent": settings.consent,
        "consent_version": settings.consent_version, "allow_unsure": settings.allow_unsure,
        "minimum_viewport": settings.minimum_viewport,
        # Pixels of the page per pixel of a picture, which the page keeps whole; 1 if pictures may be reduced smoothly.
        "scale": settings.scale if settings.interpolation == "nearest" else 1, "id_params": settings.id_params,
        # Name of the browser's stored session for this study.
        "key": f"superres-survey-{digest(study.created + study.name)[:16]}",
    }
