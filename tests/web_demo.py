"""The web demo as the tests meet it: a real server on a free port of the loopback."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported

import gradio as gr
import httpx
import uvicorn
from fastapi import FastAPI

import app
from superres.web.connections import Connection
from superres.web.decoding import FRAME_SECONDS, Decoder
from superres.web.files import Workspace
from superres.web.serving import build_server, configure

HTTP = httpx.Client(timeout=300)
"""Patient: a busy machine is slow, and time is not what is tested."""


ROOT = Path(__file__).parents[1]
FACES = sorted((ROOT / "scripts" / "faces").glob("*.png"))
FAST = {"accept": "distance", "epsilon": 255}
"""Settings that accept everything: few calls."""


def stress_demo():
    """Return the script that stresses a running demo, as a module."""
    spec = importlib.util.spec_from_file_location("stress_demo", ROOT / "scripts" / "stress_demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Demo:
    url: str
    decoder: Decoder
    workspace: Workspace
    page: gr.Blocks
    app: FastAPI

    def health(self):
        return HTTP.get(f"{self.url}/health").json()

    def upload(self, name, content):
        """Upload a file as a program without cookies, and return what stands for it in a request from this machine."""
        response = httpx.post(f"{self.url}/gradio_api/upload", files={"files": (name, content)}, timeout=300)
        response.raise_for_status()
        return {"path": response.json()[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}

    def join(self, session, **arguments):
        """Ask for a decoding of a face, and do not wait for it."""
        body = {"image": self.upload("face.png", FACES[0].read_bytes()), **arguments}
        config = HTTP.get(f"{self.url}/config").json()
        index = next(d["id"] for d in config["dependencies"] if d["api_name"] == "upscale")
        parameters = HTTP.get(f"{self.url}/gradio_api/info").json()["named_endpoints"]["/upscale"]["parameters"]
        data = [body.get(p["parameter_name"], p["parameter_default"]) for p in parameters]
        return HTTP.post(f"{self.url}/gradio_api/queue/join",
                         json={"data": data, "fn_index": index, "session_hash": session})

    def wait(self, condition, seconds=300):
        wait(condition, seconds)


def wait(condition, seconds=300):
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@contextmanager
def running(upscaler, max_queue=16, time_limit=600.0, auth=None, translator=None, survey=None,
            connection=Connection, frame_seconds=FRAME_SECONDS):
    """Serve the demo around `upscaler`, a `translator` and a `survey`'s application, and stop it at the end."""
    with Workspace() as workspace:
        decoder = Decoder(upscaler, time_limit, translator, frame_seconds)
        page = app.build_app(decoder, workspace, max_queue, survey is not None)
        built = build_server(page, decoder, workspace, auth, survey=survey)
        server = uvicorn.Server(configure(built, "127.0.0.1", 0, grace_seconds=1, connection=connection))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait(lambda: server.started or not thread.is_alive())
            port = server.servers[0].sockets[0].getsockname()[1]
            yield Demo(f"http://127.0.0.1:{port}", decoder, workspace, page, built)
        finally:
            decoder.close()
            server.should_exit = True
            thread.join()


def start(*words, **environment):
    """Start app.py as a process of its own, on a free port; `stderr` has its log, `stdout` its lines for people."""
    command = [sys.executable, str(ROOT / "app.py"), "--port", "0", "--device", "cpu", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
                            env={**os.environ, "PYTHONPATH": str(ROOT), **environment})


def read_log(process, event, lines):
    """Read the log of app.py up to the line of `event`, which is returned; all lines are added to `lines`."""
    for line in process.stderr:
        lines.append(json.loads(line))
        if lines[-1]["event"] == event:
            return lines[-1]
    raise AssertionError(lines)


def events(url, session, cookies=None):
    """Yield the messages that the server sends to a session."""
    headers = {"cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())} if cookies else {}
    address = f"{url}/gradio_api/queue/data"
    with HTTP.stream("GET", address, params={"session_hash": session}, headers=headers) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                yield json.loads(line[5:])


class Blocked:
    """An upscaler that decodes nothing until it is told to."""

    def __init__(self, upscaler):
        self._upscaler, self.go, self.streams = upscaler, threading.Event(), 0

    def __getattr__(self, name):
        return getattr(self._upscaler, name)

    def stream(self, *arguments, **keywords):
        self.streams += 1
        self.go.wait(300)
        yield from self._upscaler.stream(*arguments, **keywords)
