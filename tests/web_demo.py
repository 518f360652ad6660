"""The web demo as the tests meet it: a real server on a free port of the loopback."""

import json
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before Gradio is imported

import gradio as gr
import httpx
import uvicorn

import app
from superres.web.decoding import Decoder
from superres.web.files import Workspace
from superres.web.serving import build_server


@dataclass
class Demo:
    url: str
    decoder: Decoder
    workspace: Workspace
    page: gr.Blocks

    def health(self):
        return httpx.get(f"{self.url}/health").json()

    def upload(self, name, content):
        """Upload a file as the page does, and return what stands for it in a request."""
        response = httpx.post(f"{self.url}/gradio_api/upload", files={"files": (name, content)}, timeout=60)
        response.raise_for_status()
        return {"path": response.json()[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}

    def wait(self, condition, seconds=60):
        wait(condition, seconds)


def wait(condition, seconds=60):
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


@contextmanager
def running(upscaler, max_queue=16, time_limit=600.0, auth=None):
    """Serve the demo around `upscaler` and stop it at the end."""
    with Workspace() as workspace:
        decoder = Decoder(upscaler, time_limit)
        page = app.build_app(decoder, workspace, max_queue)
        config = uvicorn.Config(build_server(page, decoder, workspace, auth), "127.0.0.1", 0, log_level="error",
                                timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait(lambda: server.started or not thread.is_alive())
            port = server.servers[0].sockets[0].getsockname()[1]
            yield Demo(f"http://127.0.0.1:{port}", decoder, workspace, page)
        finally:
            decoder.close()
            server.should_exit = True
            thread.join()


def events(url, session):
    """Yield the messages that the server sends to a session."""
    with httpx.stream("GET", f"{url}/gradio_api/queue/data", params={"session_hash": session}, timeout=120) as stream:
        for line in stream.iter_lines():
            if line.startswith("data:"):
                yield json.loads(line[5:])
