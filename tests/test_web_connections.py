"""Slow and countless connections to the web demo: those that keep it waiting end, and the others go on."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

import httpx
import pytest
from web_demo import FACES, HTTP, Blocked, events, running, wait

from superres.web.connections import Connection

HEAD = (b"POST /gradio_api/upload HTTP/1.1\r\nHost: demo\r\nContent-Length: %d\r\n"
        b"Content-Type: multipart/form-data; boundary=b\r\n\r\n")
PART = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'


class Impatient(Connection):
    request_seconds = 1.0


class Slow(Impatient):
    bytes_per_second = 1  # every byte gives a second more


class Few(Connection):
    most, request_seconds = 20, 300.0


@pytest.fixture(scope="module")
def demo(upscaler):
    with running(upscaler, connection=Impatient) as served:
        yield served


@pytest.fixture(scope="module")
def small_demo(upscaler):
    with running(upscaler, connection=Few) as served:
        yield served


def connect(demo):
    url = httpx.URL(demo.url)
    return socket.create_connection((url.host, url.port), timeout=300)


def is_closed(connection):
    """Tell whether the server has closed a connection; what it sent before is read."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def drip(connections, piece):
    """Send `piece` on all connections that are open, and return whether there is none."""
    left = [each for each in connections if not is_closed(each)]
    for each in left:
        try:
            each.send(piece)
        except OSError:
            return False
    time.sleep(0.05)
    return not left


def uploads_in(demo):
    return [path for path in demo.workspace.folder.rglob("*") if path not in demo.workspace._kept and path.is_file()]


@pytest.mark.parametrize(("start", "piece"), [
    (b"", b""), (b"GET / HT", b""), (b"GET / HTTP/1.1\r\n", b"X: x\r\n"), (b"GET /", b"x"), (HEAD % 10**6 + PART, b""),
    (HEAD % 10**6, b"x"), (b"GET /health HTTP/1.1\r\nHost: demo\r\n\r\nGET ", b"/"),
    (b"POST /gradio_api/queue/join HTTP/1.1\r\nHost: demo\r\nContent-Length: 100000000\r\n\r\n", b"x"),
], ids=["silent", "line", "headers", "target", "silent body", "body", "second request", "refused body"])
def test_connections_that_keep_the_server_waiting_are_closed(demo, start, piece):
    with ExitStack() as opened:
        slow = [opened.enter_context(connect(demo)) for _ in range(20)]
        for each in slow:
            each.sendall(start)
        wait(lambda: drip(slow, piece))
    wait(lambda: not uploads_in(demo))
    assert HTTP.get(f"{demo.url}/health").json()["status"] == "ok"


def test_a_slow_upload_that_goes_on_arrives(upscaler):
    body = PART + FACES[0].read_bytes() + b"\r\n--b--\r\n"
    with running(upscaler, connection=Slow) as demo, connect(demo) as connection:
        connection.sendall(HEAD % len(body))
        started = time.monotonic()
        while time.monotonic() < started + 2.5:
            connection.sendall(body[:10])
            body = body[10:]
            time.sleep(0.1)
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")


def test_an_answer_may_take_its_time(upscaler):
    blocked = Blocked(upscaler)
    with running(blocked, connection=Impatient) as demo:
        demo.join("patient", block_size=8, accept="distance", epsilon=255)
        messages = events(demo.url, "patient")
        assert next(messages)["msg"] == "estimation"
        demo.wait(lambda: demo.decoder.is_busy)
        time.sleep(2 * Impatient.request_seconds)
        blocked.go.set()
        assert any(message["msg"] == "process_completed" and message["success"] for message in messages)


def test_countless_connections_make_room_for_the_next_one(small_demo):
    demo = small_demo
    with ExitStack() as opened:
        many = [opened.enter_context(connect(demo)) for _ in range(60)]
        for each in many:
            each.sendall(b"GET / HTTP/1.1\r\n")
        wait(lambda: sum(is_closed(each) for each in many) == 40)
        with httpx.Client(timeout=300) as visitor:
            assert visitor.get(f"{demo.url}/health").json()["status"] == "ok"


def test_a_server_whose_connections_are_all_at_work_says_so(small_demo):
    demo = small_demo
    with ExitStack() as opened:
        for number in range(Few.most):
            client = opened.enter_context(httpx.Client(timeout=300))
            stream = opened.enter_context(client.stream("GET", f"{demo.url}/gradio_api/heartbeat/{number}"))
            assert stream.status_code == 200
        with httpx.Client(timeout=300) as visitor:
            assert visitor.get(f"{demo.url}/health").status_code == 503
    wait(lambda: httpx.get(f"{demo.url}/health", timeout=300).status_code == 200)
