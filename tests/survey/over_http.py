"""A study served from a thread of this process, and raters without a browser, who send the voting
page's requests."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from superres.survey.credentials import new_token
from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.server import study_app
from superres.survey.store import Store
from superres.survey.study import Study

SIGHT: dict[str, Any] = {
    "display_px": 256.0, "pixel_ratio": 1.0, "viewport_width": 1280, "viewport_height": 800,
    "input": "key",
}
"""Values that a page on a typical screen reports with each choice."""


class RaterClient:
    """One rater's connection to the voting page at `address`, such as "http://127.0.0.1:8000/".

    `session` is the session token of the rater, generated for the first enrolment, which can be
    repeated with it. All methods raise httpx.HTTPError if no complete response was received; the
    server may have got the request.
    """

    def __init__(self, address: str) -> None:
        self.session = ""
        self._client = httpx.Client(base_url=address, timeout=60, verify=False, trust_env=False)  # noqa: S501 -- local
        self.close = self._client.close

    def ask(self, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Send a GET request, or a POST request with `body` as JSON."""
        headers = {"X-Session": self.session}
        return self._client.request("GET" if body is None else "POST", path, headers=headers,
                                    json=body)

    def enrol(self, rater_id: str, key: str = "") -> httpx.Response:
        """Agree to the consent text as `rater_id`; `key` is the key of a personal link."""
        version = self.ask("api/study").json()["consent_version"]
        self.session = self.session or new_token()
        answer = self.ask("api/raters", {"rater": rater_id, "consent": version, "key": key})
        if answer.status_code == 200:
            self.session = answer.json()["session"]
        return answer

    def trial(self) -> httpx.Response:
        """Request the next trial."""
        return self.ask("api/trial")

    def picture(self, token: str, side: str) -> httpx.Response:
        """Request the picture on a side ("left" or "right") of a trial."""
        return self.ask(f"pictures/{token}/{side}")

    def vote(self, token: str, choice: str, response_ms: float = 1000.0) -> httpx.Response:
        """Send a vote."""
        return self.ask("api/votes", ballot(token, choice, response_ms))


def ballot(token: str, choice: str, response_ms: float = 1000.0) -> dict[str, Any]:
    """Return the request body of a vote."""
    return {"token": token, "choice": choice, "response_ms": response_ms, **SIGHT}


@contextmanager
def serving(store: Store, study: Study, root_path: str = "",
            limit: EnrolmentLimit | None = None) -> Iterator[str]:
    """Serve a study on a free port of this machine, by default without a limit of enrolments; yield
    its address."""
    app = study_app(store, study, root_path, limit or EnrolmentLimit(0, 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}{root_path}/"
        finally:
            server.should_exit = True
            thread.join(timeout=30)
