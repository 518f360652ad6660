"""Serve a study from a thread of this process."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.server import study_app
from superres.survey.store import Store
from superres.survey.study import Study


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
