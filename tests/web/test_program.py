"""The command of the web demo: a survey beside the page, who may do what there, and how the process
starts and stops."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import httpx
import psutil
import pytest
import typer
from textual import write_checkpoint

from superres.cli import app
from superres.errors import ConfigError, StoreError
from superres.survey.records import read_votes
from superres.survey.server import study_app
from superres.survey.store import Store
from superres.system.serving import listen
from tests.pictures.helpers import many_scans
from tests.survey.helpers import SIGHT, add_study
from tests.web.helpers import FACES, FILE, HTTP, ROOT, running, wait


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
    page = app.build_app(demo.decoding, 2, True, root_path)
    held = [block.value for block in page.blocks.values() if "sr-survey"
            in str(getattr(block, "value", ""))]
    assert [f'src="{address}"' in held[0], f'src="{address}results/"' in held[1]] == [True, True]
    tabs = [block.label for block in page.blocks.values() if block.get_block_name() == "tabitem"]
    assert tabs == ["Upscale", "You are the drafter", "Batch", "Survey", "Results"]


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


@pytest.mark.parametrize(("given", "most"), [({}, 3), ({"OMP_NUM_THREADS": "4"}, 4)])
def test_decodes_leave_the_page_a_core_unless_the_user_gives_a_number(given, most):
    code = ("from superres.cli import app; from superres.system import threads; "
            "threads.usable_cores = app.usable_cores = threads.physical_cores = lambda *_: 4; "
            "app.set_environment(); print(threads.most_threads())")
    others = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env={**others, **given}).stdout
    assert int(shown) == most


# The process


@pytest.mark.parametrize("pairs", [["name"], ["name:"], [":password"]])
def test_a_password_that_is_missing_is_refused(pairs):
    with pytest.raises(ConfigError, match="--auth must be USER:PASSWORD"):
        app.parse_auth(pairs)


def test_a_port_in_use_is_refused():
    with (socket.create_server(("127.0.0.1", 0)) as taken,
          pytest.raises(ConfigError, match="choose another --port")):
        listen("127.0.0.1", taken.getsockname()[1])


def check_lines(process, store):
    """Check what a process says of its pages, and that they are there; return its address."""
    page, raters, results = (process.stdout.readline() for _ in range(3))
    address = page.split()[2]
    assert re.fullmatch(r"superres: open http://127\.0\.0\.1:\d+/demo/ \(Ctrl-C stops it; "
                        r"other .*\)\n", page)
    assert raters == f"superres: raters vote at {address}survey/\n"
    assert f"results are at {address}survey/results/ " in results
    assert results.endswith(f"superres survey token study --store '{store.location}'\n")
    for path, text in (("", "gradio_config"), ("survey/", "<title>Survey<"),
                       ("survey/results/", "Survey results"),
                       ("config", "/demo/survey/results/"), ("health", '"status":"ok"')):
        # a proxy may remove its own path
        for url in (address + path, address.replace("/demo", "") + path):
            assert text in HTTP.get(url).text
    assert HTTP.get(address.removesuffix("/"), follow_redirects=True).url == address
    return address


def read_and_decode(process, address):
    """Let a process read one picture and decode another, and return the event of the latter."""
    path = HTTP.post(f"{address}gradio_api/upload",
                     files={"files": ("private.png", FACES[0].read_bytes())}).json()
    files = {"files": ("heavy.jpg", many_scans(3400, 100_000))}
    heavy = HTTP.post(f"{address}gradio_api/upload", files=files).json()
    body = {"image": {"path": heavy[0], "meta": FILE}}
    assert HTTP.post(f"{address}gradio_api/call/v2/upscale", json=body).status_code == 200
    wait(lambda: any(one.cpu_times().user > 2
                     for one in psutil.Process(process.pid).children()))
    body = {"image": {"path": path[0], "meta": FILE}, "block_size": 1, "temperature": 0.9,
            "samples": 16}
    return HTTP.post(f"{address}gradio_api/call/v2/upscale", json=body).json()["event_id"]


def test_the_program_says_where_its_pages_are_and_stops_while_it_reads_and_decodes(tmp_path):
    store, temporary = Store(tmp_path / "my votes.db", create=True), tmp_path / "temporary"
    add_study(store)
    temporary.mkdir()
    command = [sys.executable, str(ROOT / "app.py"), "--port", "0", "--device", "cpu",
               "--host", "0.0.0.0", "--root-path", "/demo", "--survey", "study",  # noqa: S104
               "--store", store.location, "--translation-checkpoint",
               str(write_checkpoint(tmp_path / "toy"))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)})
    try:
        address = check_lines(process, store)
        event = read_and_decode(process, address)
        with HTTP.stream("GET", f"{address}gradio_api/call/upscale/{event}") as answers:
            received = answers.iter_lines()
            assert next(received) == "event: generating"
            reading = psutil.Process(process.pid).children()
            process.send_signal(signal.SIGTERM)
            assert any("server is stopping" in line for line in received)
        assert process.wait(timeout=300) == 0
        assert not psutil.wait_procs(reading, 300)[1]
        log = process.stderr.read()
    finally:
        process.kill()
        store.close()
    loading, *warm_up, last = [line.split(": ")[1].split()[0] for line in log.splitlines()
                               if ": " in line]
    assert (loading, last) == ("loading", "StoppedError")
    assert "done" in warm_up
    assert "private" not in log
    assert "127.0.0.1" not in log
    assert [path.name for path in temporary.iterdir()] == []


OPENED = """
import sys
from superres.cli import app
from superres.pipeline.upscaler import Upscaler
from superres.web.decoding import VisitorDecoding
from superres.web.files import temporary_files

upscaler = Upscaler.load("celeba-8to64", "cpu")
with temporary_files() as folder:
    decoding = VisitorDecoding(upscaler, translator=app.load_translator(None, "cpu", upscaler))
    app.warm_up(decoding)
    app.build_demo(decoding, folder)
    assert decoding.example is not None
    loaded = {"scipy", "skimage.data._fetchers", "skimage.feature", "sentencepiece"}
    loaded &= sys.modules.keys()
    assert not loaded, loaded
"""


@pytest.mark.slow
def test_the_page_opens_without_what_finds_faces_and_what_translates():
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr
