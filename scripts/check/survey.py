"""Check that a survey's server loses no vote when it is killed.

    python scripts/check/survey.py crashes --votes 5000 --raters 64 --kills 10 [--store URL]

The study of random pictures is made in a new SQLite file, unless --store is given.
"""

from __future__ import annotations

import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from sqlalchemy import select

from simulations.client import RaterClient
from simulations.model import random_study
from superres.errors import SuperresError
from superres.survey import schema
from superres.survey.credentials import digest
from superres.survey.store import Store

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.callback()(lambda: None)  # the command keeps its name

SAVED, USED, BUSY = 200, 409, 503


def start_server(address: str, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a process of `superres survey serve` and wait until it responds at `address`."""
    code = "from superres.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, "survey", "serve", *words],
                               stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            if httpx.get(f"{address}api/study").status_code == SAVED:
                return process
        except httpx.HTTPError:
            time.sleep(0.05)
    raise RuntimeError("the server does not start")


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process without warning."""
    process.kill()
    process.wait()


class Rater(threading.Thread):
    """Votes at random on all trials, and repeats every request until it gets a response."""

    def __init__(self, address: str, number: int) -> None:
        super().__init__(daemon=True, name=f"rater-{number}")
        self.client, self.rng = RaterClient(address), np.random.default_rng(number)
        self.saved: list[tuple[str, str]] = []  # votes with the response "saved"
        # votes whose response was lost, but which the server had stored
        self.kept: list[tuple[str, str]] = []
        self.unexpected: list[httpx.Response] = []

    def persist(self, ask: Callable[[], httpx.Response]) -> tuple[httpx.Response, bool]:
        """Repeat a request until it gets a response; return it, and whether an earlier response was
        lost."""
        lost = False
        while True:
            try:
                answer = ask()
                if answer.status_code != BUSY:
                    return answer, lost
            except httpx.HTTPError:
                lost = True
            time.sleep(0.05)

    def run(self) -> None:
        """Vote on all trials."""
        self.persist(lambda: self.client.enrol(self.name))
        while not (trial := self.persist(self.client.trial)[0].json()).get("done", False):
            token, choice = trial["token"], ("left", "right")[self.rng.integers(2)]
            answer, lost = self.persist(lambda token=token, choice=choice: self.client.vote(token,
                                                                                            choice))
            if answer.status_code == SAVED:
                self.saved.append((digest(token), choice))
            elif answer.status_code == USED and lost:
                self.kept.append((digest(token), choice))
            else:
                self.unexpected.append(answer)


@app.command()
def crashes(
    votes: int = 5000, raters: int = 64, kills: int = 10,
    store: Annotated[str | None, typer.Option(metavar="FILE|URL", help="[default: a new SQLite "
                                              "file]")] = None,
) -> None:
    """Kill the server while raters vote; exactly the votes with the response "saved" must be
    stored, once each."""
    trials = -(-votes // raters)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    with tempfile.TemporaryDirectory() as folder:
        place = store or str(Path(folder, "survey.db"))
        kept = Store(place, create=True)
        study = random_study(kept, f"check-{secrets.token_hex(4)}", trials, trials)
        words = [study.name, "--store", place, "--port", str(port), "--enrolments=0",
                 "--enrolments-per-address=0"]
        server = start_server(address, words)
        crowd = [Rater(address, number) for number in range(raters)]
        started = time.perf_counter()
        for rater in crowd:
            rater.start()
        for number in range(1, kills + 1):
            while sum(len(rater.saved) for rater in crowd) < number * votes // (kills + 1):
                time.sleep(0.02)
            kill(server)
            server = start_server(address, words)
        for rater in crowd:
            rater.join()
        seconds = time.perf_counter() - started
        kill(server)
        query = select(schema.trial.c.token_hash, schema.vote.c.choice) \
            .select_from(schema.vote.join(schema.trial).join(schema.pair)).where(schema.pair.c.study_id == study.id)
        with kept.reading() as connection:
            found = Counter((token, choice) for token, choice in connection.execute(query))
        kept.close()
    answered, unanswered = (Counter(entry for rater in crowd for entry in getattr(rater, name))
                            for name in ("saved", "kept"))
    unexpected = sum(len(rater.unexpected) for rater in crowd)
    print(f"{raters} raters, {kills} times SIGKILL, {seconds:.0f} s: {answered.total()} votes with "
          f"the response \"saved\", {unanswered.total()} stored with a lost response, "
          f"{found.total()} in the store, {(answered - found).total()} lost, "
          f"{(found - answered - unanswered).total()} unexpected, "
          f"{sum(count > 1 for count in found.values())} duplicate, {unexpected} unexpected "
          "responses")
    if (found != answered + unanswered or max(found.values()) > 1 or unexpected or found.total()
        != trials * raters):
        sys.exit("survey: votes and responses differ")


if __name__ == "__main__":
    try:
        app()
    except SuperresError as error:
        sys.exit(f"survey: {error}")
