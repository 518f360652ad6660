"""A server keeps its connections, its files and its log within bounds, whatever its clients send or
leave out."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import httpx
import pytest
from web_demo import wait

from superres.survey.store import Store
from tests.survey.helpers import add_study

pytestmark = pytest.mark.slow

SERVE = """
import resource, sys
from superres.system import bounded_server
bounded_server.REQUEST_SECONDS = 2.0
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
from superres.cli.main import main
sys.argv[1:] = ["survey", "serve", "study", "--port", "0", *sys.argv[2:]]
main()
"""


@pytest.fixture
def served(tmp_path):
    """Start the server with a limit of open files; returns its port, its process and its log."""
    with ExitStack() as stack:
        def start(files, *more):
            store = Store(str(tmp_path / "survey.db"), create=True)
            add_study(store, "study")
            log = tmp_path / "log"
            process = stack.enter_context(subprocess.Popen(
                [sys.executable, "-c", SERVE, str(files), "--store", str(tmp_path / "survey.db"),
                 *more],
                stderr=stack.enter_context(open(log, "w")), cwd=tmp_path))
            stack.callback(process.kill)
            wait(lambda: "open http://" in log.read_text())
            return int(log.read_text().partition("127.0.0.1:")[2].partition("/")[0]), process, log

        yield start


def connect(port, content=b""):
    one = socket.create_connection(("127.0.0.1", port), timeout=20)
    one.sendall(content)
    return one


def answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", timeout=30).status_code == 200
    except httpx.HTTPError:  # it has too many connections
        return False


def test_half_requests_end_and_leave_the_log_small(served):
    port, process, log = served(400)
    for content in (b"", b"GET / HTTP/1.1\r\nHost: a\r\n",
                    b"POST /api/raters HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhalf"):
        with ExitStack() as stack:
            for _ in range(600):
                try:
                    stack.enter_context(connect(port, content))
                except OSError:
                    continue
            wait(lambda: answers(port))
    assert process.poll() is None
    assert len(log.read_bytes()) < 20_000
    assert log.read_text().count("out of system resource") <= 2


def test_a_request_that_comes_in_time_is_answered_and_a_slow_one_is_not(served):
    port, _, _ = served(1024)
    with connect(port, b"GET / HTTP/1.1\r\nHost: a\r\n") as one:
        time.sleep(0.5)
        one.sendall(b"\r\n")
        assert one.recv(100).startswith(b"HTTP/1.1 200")
    with connect(port, b"GET / HTTP/1.1\r\nHost: a\r\n") as one:
        started, closed = time.monotonic(), False
        while not closed and time.monotonic() - started < 30:
            try:
                one.sendall(b"X")  # a header that never ends
                one.settimeout(0.2)
                closed = one.recv(10) == b""
            except TimeoutError:
                pass
            except OSError:
                closed = True
        assert closed


@pytest.mark.parametrize(("proxy", "believed"), [([], False), (["--proxy", "127.0.0.1"], True)])
def test_a_proxys_header_is_believed_only_if_the_owner_names_it(served, proxy, believed):
    port, _, _ = served(1024, "--enrolments-per-address", "2", *proxy)
    codes = []
    consent = None
    for number in range(4):
        page = httpx.get(f"http://127.0.0.1:{port}/api/study", timeout=30)
        consent = page.json()["consent_version"] if page.status_code == 200 else consent
        answer = httpx.post(f"http://127.0.0.1:{port}/api/raters",
                            json={"rater": f"r{number}", "consent": consent},
                            headers={"X-Forwarded-For": f"10.0.0.{number}"}, timeout=30)
        codes.append(answer.status_code)
    assert codes == ([200] * 4 if believed else [200, 200, 429, 429])


def test_the_limit_follows_the_files_that_may_be_open(monkeypatch):
    from superres.system.bounded_server import MOST_CONNECTIONS, most_connections

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
    assert 8 <= most_connections() <= 128
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100_000, 100_000))
    assert most_connections() == MOST_CONNECTIONS


STUCK = """
import asyncio, signal, socket, sys, time
from superres.system import bounded_server

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as app.py does

async def app(scope, receive, send):
    if scope["type"] == "http":
        print("asked", flush=True)
        await asyncio.to_thread(time.sleep, 10_000)

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
config = bounded_server.server_config(app, timeout_graceful_shutdown=1)
bounded_server.serve(config, listening, lambda: print("stop", flush=True), lambda: print("clean", flush=True))
"""


def test_a_server_ends_although_a_request_does_not():
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE,
                          text=True) as process:
        with connect(int(process.stdout.readline()), b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"):
            assert process.stdout.readline() == "asked\n"
            process.terminate()
            assert process.stdout.read() == "stop\nclean\n"
        assert process.wait(300) == 1
