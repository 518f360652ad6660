"""Servers: whose headers they believe, and that they end although a request does not."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack

import httpx
import pytest

from superres.survey.store import Store
from tests.survey.helpers import add_study
from tests.web.helpers import wait

pytestmark = pytest.mark.slow


@pytest.fixture
def served(tmp_path):
    """Start a survey's server, and return its port."""
    with ExitStack() as stack:
        def start(*more):
            store = Store(str(tmp_path / "survey.db"), create=True)
            add_study(store, "study")
            log = tmp_path / "log"
            process = stack.enter_context(subprocess.Popen(
                [sys.executable, "-m", "superres", "survey", "serve", "study", "--port", "0",
                 "--store", str(tmp_path / "survey.db"), *more],
                stderr=stack.enter_context(open(log, "w")), cwd=tmp_path))
            stack.callback(process.kill)
            wait(lambda: "open http://" in log.read_text())
            return int(log.read_text().partition("127.0.0.1:")[2].partition("/")[0])

        yield start


def connect(port, content=b""):
    one = socket.create_connection(("127.0.0.1", port), timeout=20)
    one.sendall(content)
    return one


@pytest.mark.parametrize(("proxy", "believed"), [([], False), (["--proxy", "127.0.0.1"], True)])
def test_a_proxys_header_is_believed_only_if_the_owner_names_it(served, proxy, believed):
    port = served("--enrolments-per-address", "2", *proxy)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/", timeout=30) as client:
        consent = client.get("study").json()["consent_version"]
        codes = [client.post("raters", json={"rater": f"r{number}", "consent": consent},
                             headers={"X-Forwarded-For": f"10.0.0.{number}"}).status_code
                 for number in range(4)]
    assert codes == ([200] * 4 if believed else [200, 200, 429, 429])


STUCK = """
import asyncio, signal, socket, sys, time
from superres.system import serving

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as app.py does

async def app(scope, receive, send):
    if scope["type"] == "http":
        print("asked", flush=True)
        await asyncio.to_thread(time.sleep, 10_000)

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
config = serving.server_config(app, timeout_graceful_shutdown=1)
serving.serve(config, listening, lambda: print("stop", flush=True),
              lambda: print("clean", flush=True))
"""


def test_a_server_ends_although_a_request_does_not():
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE,
                          text=True) as process:
        with connect(int(process.stdout.readline()), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"):
            assert process.stdout.readline() == "asked\n"
            process.terminate()
            assert process.stdout.read() == "stop\nclean\n"
        assert process.wait(300) == 1
