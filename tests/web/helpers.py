"""What the tests of the page share: a real server on a free port of the loopback, requests to it,
and files to send."""

import functools
import io
import json
import os
import struct
import threading
import time
import zipfile
import zlib
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
from superres.system.serving import listen
from superres.web.content import FIRST, NAMES, label_of
from superres.web.decoding import FRAME_SECONDS, VisitorDecoding
from superres.web.files import temporary_files
from superres.web.serving import configure

HTTP = httpx.Client(timeout=300)
ROOT = Path(__file__).parents[2]
_FILES = dict(zip(NAMES, sorted((ROOT / "scripts" / "faces").glob("*.png")), strict=True))
_NAMES = sorted(NAMES, key=lambda name: name != FIRST)
FACES = [_FILES[name] for name in _NAMES]
"""The drawn examples, in the order of the page."""
LABELS = [label_of(name) for name in _NAMES]
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
    decoding: VisitorDecoding
    folder: Path

    def health(self):
        return HTTP.get(f"{self.url}/health").json()

    def upload(self, name, content):
        """Upload a file, and return what stands for it in a request."""
        response = HTTP.post(f"{self.url}/gradio_api/upload", files={"files": (name, content)})
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

    def call(self, endpoint, **arguments):
        """Call an endpoint and return its last outputs and an empty error, or no outputs and the
        error."""
        called = f"{self.url}/gradio_api/call"
        started = HTTP.post(f"{called}/v2/{endpoint}", json=arguments)
        started.raise_for_status()
        kind = ""
        with HTTP.stream("GET", f"{called}/{endpoint}/{started.json()['event_id']}") as answers:
            for line in answers.iter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: ") and kind == "complete":
                    return json.loads(line.removeprefix("data: ")), ""
                elif line.startswith("data: ") and kind == "error":
                    return [], json.loads(line.removeprefix("data: "))["error"]
        return [], "the response is incomplete"


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
        decoding = VisitorDecoding(upscaler, time_limit, translator, frame_seconds)
        if example:
            app.warm_up(decoding)
        served = app.build_demo(decoding, folder, max_queue, auth, root_path, survey)
        server = uvicorn.Server(configure(served, grace_seconds=1))
        listening = listen("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, args=[[listening]])
        thread.start()
        try:
            wait(lambda: server.started or not thread.is_alive())
            yield Demo(f"http://127.0.0.1:{listening.getsockname()[1]}", decoding, folder)
        finally:
            decoding.close()
            server.should_exit = True
            thread.join()


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
    """A semaphore without which the decoding gives no frame: each release allows as many frames."""

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


def encoded(image, kind, **options):
    """Return the content of an image file."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def huge_png(side):
    """Return a PNG whose header declares `side` x `side` pixels."""
    def chunk(kind, data):
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
            + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b""))


def zipped(members):
    """Return a zip file of contents by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()
