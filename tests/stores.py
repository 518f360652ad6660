"""An S3 store on loopback that fails, and web servers, for tests of places."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

from superres.system import stores

SCRIPT = Path(__file__).resolve().parent / "batch" / "store_with_faults.py"


@contextmanager
def faulty_store(monkeypatch, errors=0.05, cuts=0.05):
    """Serve a store in a process of its own and point the environment at it; yields the URL of its
    bucket."""
    with subprocess.Popen([sys.executable, str(SCRIPT), str(errors), str(cuts)],
                          stdout=subprocess.PIPE, text=True) as process:
        endpoint = json.loads(process.stdout.readline())["endpoint"]
        for name, value in (("AWS_ENDPOINT_URL", endpoint), ("AWS_ACCESS_KEY_ID", "k"),
                            ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_DEFAULT_REGION", "us-east-1"),
                            ("AWS_EC2_METADATA_DISABLED", "true")):
            monkeypatch.setenv(name, value)
        stores.system_of.cache_clear()  # its connections are to the store of an earlier test
        try:
            yield "s3://faces"
        finally:
            stores.system_of.cache_clear()
            process.terminate()


@contextmanager
def web_server(answer):
    """Serve `answer(path)`, which returns status, headers and body; yields its address and the
    requests ("GET /a")."""
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            asked.append(f"{self.command} {self.path}")
            status, headers, body = answer(self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

        def handle(self):
            with suppress(ConnectionError):  # of a client that has enough
                super().handle()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
