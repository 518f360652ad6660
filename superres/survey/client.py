"""A rater without a browser: sends the requests of the voting page to `superres.survey.server`, for checks."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from superres.survey.credentials import new_token

SIGHT: dict[str, Any] = {
    "display_px": 256.0, "pixel_ratio": 1.0, "viewport_width": 1280, "viewport_height": 800, "input": "key",
}
"""Values that a page on a typical screen reports with each choice."""


@dataclass(frozen=True)
class Answer:
    """An HTTP response: status, headers in the order received, body, and response time."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    seconds: float

    def json(self) -> Any:  # noqa: ANN401 -- any JSON value
        """Return the parsed body."""
        return json.loads(self.body)


@dataclass
class RaterClient:
    """One rater's connection.

    Attributes:
        address: URL of the voting page, such as "http://127.0.0.1:8000/".
        session: session token of the rater, generated for the first enrolment, which can be repeated with it.
    """

    address: str
    session: str = ""
    _connection: http.client.HTTPConnection | None = field(default=None, repr=False)

    def ask(self, path: str, body: Any = None, data: bytes | None = None, session: str | None = None) -> Answer:  # noqa: ANN401
        """Send a GET request, or a POST request with `body` as JSON or with `data`.

        Raises:
            OSError, http.client.HTTPException: no complete response was received; the server may have got the request.
        """
        url = urlsplit(self.address)
        if self._connection is None:
            self._connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=60)
        if body is not None:
            data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "X-Session": self.session if session is None else session}
        started = time.perf_counter()
        try:
            target = f"{url.path.rstrip('/')}/{path}"
            self._connection.request("GET" if data is None else "POST", target, data, headers)
            answer = self._connection.getresponse()
            received = answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise
        return Answer(answer.status, answer.getheaders(), received, time.perf_counter() - started)

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def enrol(self, rater_id: str, key: str = "") -> Answer:
        """Agree to the consent text as `rater_id`; `key` is the key of a personal link."""
        version = self.ask("api/study").json()["consent_version"]
        self.session = self.session or new_token()
        answer = self.ask("api/raters", {"rater": rater_id, "consent": version, "key": key})
        if answer.status == 200:
            self.session = answer.json()["session"]
        return answer

    def trial(self) -> Answer:
        """Request the next trial."""
        return self.ask("api/trial")

    def picture(self, token: str, side: str) -> Answer:
        """Request the picture on a side ("left" or "right") of a trial."""
        return self.ask(f"pictures/{token}/{side}")

    def vote(self, token: str, choice: str, response_ms: float = 1000.0) -> Answer:
        """Send a vote."""
        return self.ask("api/votes", ballot(token, choice, response_ms))


def ballot(token: str, choice: str, response_ms: float = 1000.0) -> dict[str, Any]:
    """Return the request body of a vote."""
    return {"token": token, "choice": choice, "response_ms": response_ms, **SIGHT}
