"""A web demo for tests: a real server on a free port of the loopback."""

import functools
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported

import httpx
import torch
import uvicorn
from fakes import TINY, random_model

from superres.cli import app
from superres.pipeline.upscaler import Upscaler
from superres.web.content import NAMES, examples_of, label_of
from superres.web.crops import subjects
from superres.web.decoding import FRAME_SECONDS, Decoder
from superres.web.files import temporary_files
from superres.web.serving import build_server, configure

HTTP = httpx.Client(timeout=300)
ROOT = Path(__file__).parents[1]
FACES = sorted((ROOT / "scripts" / "faces").glob("*.png"))
LABELS = [label_of(name) for name in NAMES]
"""The page's buttons of FACES."""
FILE = {"_type": "gradio.FileData"}
"""What marks a file in a request."""
FAST = {"accept": "distance", "epsilon": 255}
"""Settings that accept everything: few calls."""


@functools.cache
def toy():
    """Return an untrained network for faces of 16x16 pixels."""
    model = random_model(replace(TINY, target_shape=(16, 16, 3)), dtype=torch.float32)
    return Upscaler(model, "tiny", device="cpu")


@dataclass
class Demo:
    url: str
    decoder: Decoder
    folder: Path

    def health(self):
        return HTTP.get(f"{self.url}/health").json()

    def upload(self, name, content):
        """Upload a file, and return what stands for it in a request."""
        response = httpx.post(f"{self.url}/gradio_api/upload", files={"files": (name, content)},
                              timeout=300)
        response.raise_for_status()
        return {"path": response.json()[0], "orig_name": name, "meta": FILE}

    def join(self, session, **arguments):
        """Ask for a decoding of a face, and do not wait for it."""
        body = {"image": self.upload("face.png", FACES[0].read_bytes()), **arguments}
        config = HTTP.get(f"{self.url}/config").json()
        index = next(d["id"] for d in config["dependencies"] if d["api_name"] == "upscale")
        parameters = HTTP.get(f"{self.url}/gradio_api/info").json()["named_endpoints"]["/upscale"][
            "parameters"]
        data = [body.get(p["parameter_name"], p["parameter_default"]) for p in parameters]
        return HTTP.post(f"{self.url}/gradio_api/queue/join",
                         json={"data": data, "fn_index": index, "session_hash": session})

def wait(condition, seconds=300):
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@contextmanager
def running(upscaler, max_queue=16, time_limit=600.0, auth=None, translator=None, survey=None,
            frame_seconds=FRAME_SECONDS, example=False, root_path=""):
    """Serve the demo around `upscaler`, a `translator` and a `survey`'s application, and stop it at
    the end.

    With `example`, the page begins with a decode of its first example, as that of app.py does.
    """
    with temporary_files() as folder:
        decoder = Decoder(upscaler, time_limit, translator, frame_seconds)
        if example:
            first, *_ = examples_of(app.page_folder(), upscaler.face_task).values()
            decoder.warm_up(subjects(first, upscaler.face_task)[0].source)
        page = app.build_app(decoder, max_queue, survey is not None, root_path)
        pictured = app.pictured(upscaler.face_task)
        served = build_server(page, decoder, folder, pictured, auth, root_path, survey)
        server = uvicorn.Server(configure(served, grace_seconds=1))
        listening = socket.create_server(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            wait(lambda: server.started or not thread.is_alive())
            yield Demo(f"http://127.0.0.1:{listening.getsockname()[1]}", decoder, folder)
        finally:
            decoder.close()
            server.should_exit = True
            thread.join()


def start(*words, **environment):
    """Start app.py as a process of its own, on a free port; `stderr` has its log, `stdout` where it
    is."""
    command = [sys.executable, str(ROOT / "app.py"), "--port", "0", "--device", "cpu", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment})


def opened(process):
    """Return the address that app.py prints when it is ready."""
    return re.search(r"open (\S+)/ ", process.stdout.readline())[1]


def events(url, session):
    """Yield the messages that the server sends to a session."""
    with HTTP.stream("GET", f"{url}/gradio_api/queue/data",
                     params={"session_hash": session}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                yield json.loads(line[5:])


class Blocked:
    """An upscaler that decodes nothing until it is told to."""

    def __init__(self, upscaler):
        self._upscaler, self.go, self.streams = upscaler, threading.Event(), 0

    def __getattr__(self, name):
        return getattr(self._upscaler, name)

    def from_size(self, side):
        return self

    def decode_stream(self, *arguments, **keywords):
        self.streams += 1
        self.go.wait(300)
        yield from self._upscaler.decode_stream(*arguments, **keywords)


ALL = 10_000
"""More frames than a decode has."""


class Frames(threading.Semaphore):
    """A semaphore without which the decoder gives no frame: each release allows as many frames."""

    def hold(self):
        while self.acquire(blocking=False):
            pass

    def of(self, stream):
        """Return `stream` with a wait before each frame."""
        def one_by_one(*arguments, **settings):
            for frame in stream(*arguments, **settings):
                self.acquire()
                yield frame

        return one_by_one
