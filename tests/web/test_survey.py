"""The web demo with a survey beside it: who may do what, and what the tabs hold."""

from __future__ import annotations

import httpx
import pytest
import typer
from web_demo import HTTP, running

from superres.cli import app
from superres.errors import ConfigError, StoreError
from superres.survey.records import read_votes
from superres.survey.server import study_app
from superres.survey.store import Store
from tests.survey.helpers import SIGHT, add_study


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("survey") / "survey.db", create=True)
    yield store, *add_study(store)
    store.close()


@pytest.fixture(scope="module")
def demo(upscaler, kept):
    store, study, _ = kept
    with running(upscaler, auth=[("eve", "secret")], survey=study_app(store, study)) as served:
        yield served


def test_raters_vote_without_the_page_s_password(demo, kept):
    store, study, _ = kept
    assert HTTP.get(f"{demo.url}/config").status_code == 401
    consent = HTTP.get(f"{demo.url}/survey/api/study").json()["consent_version"]
    enrolled = HTTP.post(f"{demo.url}/survey/api/raters", json={"rater": "me", "consent": consent})
    session = {"X-Session": enrolled.json()["session"]}
    trial = HTTP.get(f"{demo.url}/survey/api/trial", headers=session).json()
    picture = HTTP.get(f"{demo.url}/survey/pictures/{trial['token']}/left")
    assert picture.headers["content-type"] == "image/png"
    ballot = {"token": trial["token"], "choice": "left", "response_ms": 900.0, **SIGHT}
    assert HTTP.post(f"{demo.url}/survey/api/votes", json=ballot, headers=session).json()["saved"]
    assert [vote["choice"] for vote in read_votes(store, study)] == ["left"]


def test_results_are_the_owner_s_even_for_those_with_the_page_s_password(demo, kept):
    *_, token = kept
    with httpx.Client(timeout=300) as visitor:
        visitor.post(f"{demo.url}/login", data={"username": "eve", "password": "secret"})
        assert visitor.get(f"{demo.url}/config").status_code == 200
        for headers in ({}, {"X-Owner": "wrong"}):
            for path in ("report", "plot.png", "votes.csv", "report.md"):
                answer = visitor.get(f"{demo.url}/survey/results/api/{path}", headers=headers)
                assert answer.status_code == 401
    report = HTTP.get(f"{demo.url}/survey/results/api/report", headers={"X-Owner": token}).json()
    assert report["study"] == "study"


@pytest.mark.parametrize(("path", "home"),
                         [("/survey", "/survey/"), ("/survey/results", "/survey/results/")])
def test_a_path_without_its_slash_leads_to_the_page(demo, path, home):
    answer = HTTP.get(demo.url + path, follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, home)
    # the survey's own, which is stricter
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("root_path", "address"), [("", "/survey/"), ("/demo/", "/demo/survey/")])
def test_the_tabs_hold_the_pages_under_the_proxy_s_path(demo, root_path, address, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(demo.folder))
    page = app.build_app(demo.decoder, 2, True, root_path)
    held = [block.value for block in page.blocks.values() if "sr-survey"
            in str(getattr(block, "value", ""))]
    assert [f'src="{address}"' in held[0], f'src="{address}results/"' in held[1]] == [True, True]
    tabs = [block.label for block in page.blocks.values() if block.get_block_name() == "tabitem"]
    assert tabs == ["Upscale", "Batch", "Survey", "Results"]


def test_a_study_or_store_that_is_missing_is_told_in_one_line(tmp_path, kept):
    store, *_ = kept
    with pytest.raises(StoreError, match=r"no survey store .*nowhere\.db; make one with"):
        app.open_survey("study", str(tmp_path / "nowhere.db"))
    with pytest.raises(StoreError, match="'other'"):
        app.open_survey("other", store.location)
    opened, _ = app.open_survey("study", store.location)
    opened.close()


def test_a_store_without_a_study_is_refused():
    command = typer.Typer()
    command.command()(app.serve_demo)
    with pytest.raises(ConfigError, match=r"--store mine\.db needs a survey; name its study with "
                       r"--survey"):
        command(["--store", "mine.db"], standalone_mode=False)
