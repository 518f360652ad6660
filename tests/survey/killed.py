"""A crowd of raters who vote while the process that serves their study is killed."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
from sqlalchemy import select
from survey_tools import add_study

from superres.survey import schema
from superres.survey.credentials import digest
from superres.survey.store import Store
from tests.survey.over_http import RaterClient

SAVED, USED, BUSY = 200, 409, 503
Votes = Counter[tuple[str, str]]
"""How often a choice is known for a trial, by the digest of its token and the choice."""


def start_server(address: str, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a process of `superres survey serve` and wait until it responds at `address`."""
    process = subprocess.Popen([sys.executable, "-m", "superres", "survey", "serve", *words],
                               stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            if httpx.get(f"{address}api/study").status_code == SAVED:
                return process
        except httpx.HTTPError:
            time.sleep(0.05)
    raise RuntimeError("the server does not start")


class Rater(threading.Thread):
    """Votes at random on all trials, and repeats every request until it gets a response.

    `saved` are votes with the response "saved", `kept` those whose response was lost but which the
    server had stored.
    """

    def __init__(self, address: str, number: int) -> None:
        super().__init__(daemon=True, name=f"rater-{number}")
        self.client, self.rng = RaterClient(address), np.random.default_rng(number)
        self.saved, self.kept = Votes(), Votes()
        self.unexpected = list[httpx.Response]()

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
                self.saved[digest(token), choice] += 1
            elif answer.status_code == USED and lost:
                self.kept[digest(token), choice] += 1
            else:
                self.unexpected.append(answer)


def votes_beside_kills(place: Path, votes: int, raters: int, kills: int
                       ) -> tuple[Votes, Votes, Votes, list[httpx.Response]]:
    """Kill the server `kills` times while `raters` vote; return the votes in the store, those with
    the response "saved", those with a lost one, and unexpected responses."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    address, store = f"http://127.0.0.1:{port}/", Store(place, create=True)
    study, _ = add_study(store, count=votes // raters, trials=votes // raters, gold=0, repeats=0,
                         practice=0)
    words = [study.name, "--store", str(place), "--port", str(port), "--enrolments=0",
             "--enrolments-per-address=0"]

    server = start_server(address, words)
    crowd = [Rater(address, number) for number in range(raters)]
    for rater in crowd:
        rater.start()
    for number in range(1, kills + 1):
        while sum(rater.saved.total() for rater in crowd) < number * votes // (kills + 1):
            time.sleep(0.02)
        server.kill()
        server.wait()
        server = start_server(address, words)
    for rater in crowd:
        rater.join()
    server.kill()
    server.wait()

    query = select(schema.trial.c.token_hash, schema.vote.c.choice).select_from(
        schema.vote.join(schema.trial).join(schema.pair)).where(schema.pair.c.study_id == study.id)
    with store.reading() as connection:
        stored = Votes((token, choice) for token, choice in connection.execute(query))
    store.close()
    saved, kept = (sum((getattr(rater, name) for rater in crowd), Votes())
                   for name in ("saved", "kept"))
    return stored, saved, kept, [answer for rater in crowd for answer in rater.unexpected]
