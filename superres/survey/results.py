"""The owner's page, protected by the owner's token: the report of a running study, and its export."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Response
from fastapi.responses import RedirectResponse

from superres.survey.export import export_study
from superres.survey.limits import EnrolmentLimit
from superres.survey.presentation import report_markdown, report_plot, sections
from superres.survey.report import study_report
from superres.survey.server import add_pages, guarded_app, survey_app
from superres.survey.store import Store
from superres.survey.study import Study
from superres.survey.voting import RefusedError

Owner = Annotated[str, Header(alias="X-Owner", max_length=100)]


def study_app(store: Store, study: Study, root_path: str = "", limit: EnrolmentLimit | None = None) -> FastAPI:
    """Return the application of a study: the voting page, and the owner's page under `results/`.

    `root_path` is the path of the requests that a proxy passes on, such as "/survey". A proxy that removes its path
    from requests needs none, since all links are relative. `limit` is by default `EnrolmentLimit()`.

    Raises:
        StoreError: the study was imported without its pictures.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    root = root_path.strip("/") and f"/{root_path.strip('/')}"
    app.get(f"{root}/results")(lambda: RedirectResponse("results/"))
    app.mount(f"{root}/results", results_app(store, study))
    app.mount(root, survey_app(store, study, limit))
    return app


def results_app(store: Store, study: Study | str) -> FastAPI:
    """Return the application that shows the current results of a study, given itself or its name, to its owner.

    It works under any path, like `superres.survey.server.survey_app`. The page asks for the owner's token, which
    `superres survey create` printed. The caller closes the store.

    Raises:
        StoreError: the store has no study of that name.
    """
    study = store.study(study) if isinstance(study, str) else study
    app = guarded_app("superres survey results")
    add_pages(app, "results.html", "results.js", "survey.css")

    def check(owner: str) -> None:
        if not store.is_owner(study, owner):
            raise RefusedError(401, "that is not the token of this study's owner; the command for a new one is in "
                                    "the terminal that serves the survey")

    @app.get("/api/report")
    def get_report(owner: Owner = "") -> dict[str, Any]:
        check(owner)
        report = study_report(store, study)
        result = report["result"]
        return {"study": study.name, "votes": result["votes"], "raters": result["raters"],
                "question": study.settings.question, **report["findings"],
                "sections": [asdict(section) for section in sections(report)]}

    @app.get("/api/plot.png")
    def get_plot(owner: Owner = "", narrow: bool = False) -> Response:
        check(owner)
        return Response(report_plot(study_report(store, study), narrow), media_type="image/png")

    @app.get("/api/report.md")
    def get_markdown(owner: Owner = "") -> Response:
        check(owner)
        return Response(report_markdown(study_report(store, study)), media_type="text/markdown; charset=utf-8")

    @app.get("/api/votes.{file_format}")
    def get_votes(file_format: Literal["csv", "jsonl"], owner: Owner = "") -> Response:
        check(owner)
        with tempfile.TemporaryDirectory() as folder:
            data = export_study(store, study, Path(folder, "votes"), file_format)[0].read_bytes()
        return Response(data, media_type="text/plain; charset=utf-8")

    return app
