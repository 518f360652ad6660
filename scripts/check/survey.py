"""Check a survey's server over HTTP: durability of votes, and blinding.

    python scripts/check/survey.py crashes --votes 5000 --raters 64 --kills 10 [--store URL]
    python scripts/check/survey.py blinding STUDY --store survey.db

`crashes` creates a study of random pictures, in a new SQLite file unless --store is given. `blinding` adds the votes of
its own raters to the given study, so use a copy of the store.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import httpx
import numpy as np
import typer
from scipy import stats
from sqlalchemy import select

from simulations.client import RaterClient
from simulations.model import random_study
from simulations.serving import serving
from superres.errors import SuperresError
from superres.survey import schema
from superres.survey.credentials import digest
from superres.survey.records import chosen_picture
from superres.survey.server import page
from superres.survey.store import Store
from superres.survey.study import Study

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

SAVED, USED, BUSY = 200, 409, 503

Shown = tuple[str, str, httpx.Response]
"""Token of a trial, side, and the response with the picture there."""

PAGES = {"": "survey.html", "survey.js": "survey.js", "survey.css": "survey.css", "results/": "results.html",
         "results/results.js": "results.js"}
"""Files by the path under which they are served."""


def start_server(address: str, words: list[str]) -> subprocess.Popen[bytes]:
    """Start a process of `superres survey serve` and wait until it responds at `address`."""
    code = "from superres.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, "survey", "serve", *words], stderr=subprocess.DEVNULL)
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
        self.kept: list[tuple[str, str]] = []  # votes whose response was lost, but which the server had stored
        self.unexpected: list[httpx.Response] = []

    def persist(self, ask: Callable[[], httpx.Response]) -> tuple[httpx.Response, bool]:
        """Repeat a request until it gets a response; return it, and whether an earlier response was lost."""
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
            answer, lost = self.persist(lambda token=token, choice=choice: self.client.vote(token, choice))
            if answer.status_code == SAVED:
                self.saved.append((digest(token), choice))
            elif answer.status_code == USED and lost:
                self.kept.append((digest(token), choice))
            else:
                self.unexpected.append(answer)


@app.command()
def crashes(
    votes: int = 5000, raters: int = 64, kills: int = 10,
    store: Annotated[str | None, typer.Option(metavar="FILE|URL", help="[default: a new SQLite file]")] = None,
) -> None:
    """Kill the server while raters vote; exactly the votes with the response "saved" must be stored, once each."""
    trials = -(-votes // raters)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    address = f"http://127.0.0.1:{port}/"
    with tempfile.TemporaryDirectory() as folder:
        place = store or str(Path(folder, "survey.db"))
        kept = Store(place, create=True)
        study = random_study(kept, f"check-{secrets.token_hex(4)}", trials, trials)
        words = [study.name, "--store", place, "--port", str(port), "--enrolments=0", "--enrolments-per-address=0"]
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
    print(f"{raters} raters, {kills} times SIGKILL, {seconds:.0f} s: {answered.total()} votes with the response "
          f"\"saved\", {unanswered.total()} stored with a lost response, {found.total()} in the store, "
          f"{(answered - found).total()} lost, {(found - answered - unanswered).total()} unexpected, "
          f"{sum(count > 1 for count in found.values())} duplicate, {unexpected} unexpected responses")
    if found != answered + unanswered or max(found.values()) > 1 or unexpected or found.total() != trials * raters:
        sys.exit("survey: votes and responses differ")


@app.command()
def blinding(
    study: str, store: Annotated[str, typer.Option(metavar="FILE|URL")], raters: int = 10,
) -> None:
    """Read everything that browsers receive, and search it for information about a picture's method."""
    kept = Store(store)
    found = kept.study(study)
    answers: list[tuple[str, httpx.Response]] = []
    shown: list[Shown] = []
    with serving(kept, found) as address:
        for number in range(raters):
            client = RaterClient(address)
            client.enrol(f"blinding-{os.getpid()}-{number}")
            answers.extend((path, client.ask(path)) for path in (*PAGES, "api/study", "nowhere"))
            while not (trial := client.trial()).json()["done"]:
                token = trial.json()["token"]
                shown.extend((token, side, client.picture(token, side)) for side in ("left", "right"))
                answers += [("api/trial", trial), ("api/votes", client.vote(token, "left"))]
            answers.append(("api/trial", trial))
            client.close()
    faults = [*secret_words(found, kept, answers, shown), *differences(shown), *statistical_leaks(found, kept, shown)]
    print(f"{len(answers) + len(shown)} responses, {len(shown)} of them pictures: "
          f"{'; '.join(faults) or 'nothing reveals a method'}")
    if faults:
        sys.exit("survey: the study is not blind")


def secret_words(
    study: Study, store: Store, answers: list[tuple[str, httpx.Response]], shown: list[Shown],
) -> Iterator[str]:
    """Search bodies and headers for names of methods, comparisons, images and kinds, for settings and digests."""
    with store.reading() as connection:
        rows = connection.execute(select(schema.picture.c.method, schema.picture.c.image, schema.picture.c.sha256)
                                  .where(schema.picture.c.study_id == study.id)).all()
    secret = {study.name, "gold", "repeat", *(str(value) for row in rows for value in row)}
    secret |= {comparison.name for comparison in study.comparisons}
    secret |= {str(record[key]) for record in study.methods.values() for key in ("folder", "checkpoint", "revision")
               if key in record}
    words = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in secret))
    tokens = {token for token, _, _ in shown}
    wording = [study.settings.title, study.settings.question, study.settings.consent, study.settings.thanks]
    for path, answer in answers:
        text = answer.text
        if path in PAGES:
            if answer.content != page(PAGES[path]).body:
                yield f"the page {path!r} is not the common file of all studies"
            text = ""
        # The owner's texts may contain "camera", and random tokens may contain any word.
        for own in (*wording, *tokens):
            text = text.replace(json.dumps(own, ensure_ascii=False), "")
        for word in set(words.findall(f"{answer.headers.multi_items()} {text}")):
            yield f"{word!r} in the response to {path!r}"
    for _, side, answer in shown:
        if words.search(str(answer.headers.multi_items())):
            yield f"a name in the headers of a {side} picture"


def differences(shown: list[Shown]) -> Iterator[str]:
    """Compare the headers, lengths and PNG chunks of the pictures, and the lengths of their tokens."""
    headers = {tuple(entry for entry in answer.headers.multi_items() if entry[0] != "date") for _, _, answer in shown}
    if len(headers) > 1:
        yield f"pictures have {len(headers)} different sets of headers"
    if len({len(answer.content) for _, _, answer in shown}) > 1:
        yield "pictures differ in length"
    if len({tuple(chunks(answer.content)) for _, _, answer in shown}) > 1:
        yield "pictures differ in PNG chunks"
    if {name for _, _, answer in shown for name, _ in chunks(answer.content)} - {b"IHDR", b"IDAT", b"IEND"}:
        yield "pictures have metadata"
    if {len(token) for token, _, _ in shown} != {32} or len({token for token, _, _ in shown}) * 2 != len(shown):
        yield "tokens have different lengths or are not unique"


def chunks(png: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the names and lengths of a PNG's chunks."""
    start = 8
    while start < len(png):
        length = int.from_bytes(png[start:start + 4], "big")
        yield png[start + 4:start + 8], length
        start += 12 + length


def statistical_leaks(study: Study, store: Store, shown: list[Shown]) -> Iterator[str]:
    """Test whether the response time or the side correlates with the method."""
    query = select(schema.trial.c.token_hash, schema.trial.c.left_side).select_from(schema.trial.join(schema.pair)) \
        .where(schema.pair.c.study_id == study.id)
    with store.reading() as connection:
        sides = {row.token_hash: row.left_side for row in connection.execute(query)}
    times: dict[str, list[float]] = {"a": [], "b": []}
    for token, side, answer in shown:
        times[chosen_picture(side, sides[digest(token)])].append(answer.elapsed.total_seconds())
    left = sum(sides[digest(token)] == "a" for token, side, _ in shown if side == "left")
    total = len(shown) // 2
    p_time = float(stats.mannwhitneyu(times["a"], times["b"]).pvalue)
    p_side = float(stats.binomtest(left, total).pvalue)
    medians = " and ".join(f"{1000 * np.median(times[picture]):.2f} ms for {picture}" for picture in "ab")
    print(f"response time of a picture: median {medians} (Mann-Whitney p = {p_time:.2f}); "
          f"method a on the left {left} of {total} times (p = {p_side:.2f})")
    if min(p_time, p_side) < 1e-4:
        yield "the response time or the side reveals the method"


if __name__ == "__main__":
    try:
        app()
    except SuperresError as error:
        sys.exit(f"survey: {error}")
