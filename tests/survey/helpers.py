"""What the tests of the survey share: small studies, raters in this process and over HTTP, a
server on a free port, and PostgreSQL from Debian's packages."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import uvicorn
from ports import own_port
from sqlalchemy import select, update

from superres.survey import schema
from superres.survey.credentials import digest, new_token
from superres.survey.pairs import Method, compare_methods, judge_methods, make_pairs
from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.server import study_app
from superres.survey.study import JUDGING, StudySettings
from superres.survey.voting import Enrolment, Vote, enrol, next_trial, save_vote
from superres.system.serving import listen

SMALL = {"trials": 6, "gold": 1, "repeats": 1, "practice": 1, "scale": 2, "seed": 3}
PLAIN = {"gold": 0, "repeats": 0, "practice": 0}
"""Settings of a study of main pairs alone."""
SIGHT = {"display_px": 64.0, "pixel_ratio": 1.0, "viewport_width": 1280, "viewport_height": 800,
         "input": "key"}


def pictures(count=6, seed=0, size=16):
    """Return `count` pictures by name, uint8 [size, size, 3]."""
    values = np.random.default_rng(seed).integers(0, 256, (count, size, size, 3)).astype(np.uint8)
    return {f"face{number}": picture for number, picture in enumerate(values)}


def add_study(store, name="study", methods=("k6", "greedy"), count=6, obvious=None, **settings):
    """Store a study of methods with random pictures, each but the last compared with the last, or
    judged singly.

    Raters' pseudonyms, and so their pairs and sides, are the same in every run: the study's salt is
    its name.
    """
    made = [Method(method, pictures(count, seed), {"config": method})
            for seed, method in enumerate(methods)]
    judged = settings.get("judge", False)
    compared = judge_methods(made) if judged else compare_methods(made[:-1], made[-1:])
    options = StudySettings(**{**(JUDGING if judged else {}), **SMALL, **settings})
    _, token = store.create_study(name, options, [comparison for comparison, *_ in compared],
                                  {method.name: method.record for method in made},
                                  make_pairs(compared, options, obvious))
    table = schema.study
    with store.writing() as connection:
        connection.execute(update(table).where(table.c.name == name).values(salt=digest(name)))
    return store.study(name), token


def enter(store, study, rater="me", session="", **proof):
    """Enrol a rater; return the session's token, and whether the rater had enrolled before."""
    agreed = Enrolment(rater=rater, consent=study.settings.consent_version, **proof)
    return enrol(store, study, agreed, session)


def ballot(token, choice="left", **changes):
    """Return a vote as a page on a typical screen sends it."""
    return {"token": token, "choice": choice, "response_ms": 900.0, **SIGHT, **changes}


def vote_on(store, study, session, token, choice="left", **changes):
    """Vote on a trial."""
    return save_vote(store, study, session, Vote(**ballot(token, choice, **changes)))


def choosing(store, wanted):
    """Return a chooser for `vote_through`: `wanted(trial, comparison)` gives the picture, a or b,
    or "" for unsure.

    `trial` also has the name of the image.
    """
    def choose(trial, _):
        query = select(schema.trial, schema.pair.c.comparison, schema.pair.c.image) \
            .select_from(schema.trial.join(schema.pair)) \
            .where(schema.trial.c.token_hash == digest(trial["token"]))
        with store.reading() as connection:
            row = connection.execute(query).one()
        picture = wanted(row, row.comparison)
        return "unsure" if not picture else "left" if picture == row.left_side else "right"

    return choose


def vote_through(store, study, rater="me", choose=lambda *_: "left"):
    """Let a rater vote on everything: `choose(trial, number)` returns a side. Return the number of
    votes."""
    session, _ = enter(store, study, rater)
    number = 0
    while (trial := next_trial(store, study, session)) is not None:
        vote_on(store, study, session, trial["token"], choose(trial, number),
                response_ms=1000.0 + number)
        number += 1
    return number


class RaterClient:
    """One rater's connection to the voting page at an address, which sends the page's requests.

    `session` is the rater's token, generated for the first enrolment, which can be repeated with
    it.
    """

    def __init__(self, address):
        self.session = ""
        self._client = httpx.Client(base_url=address, timeout=60, trust_env=False)
        self.close = self._client.close

    def ask(self, path, body=None):
        """Send a GET request, or a POST request with `body` as JSON."""
        return self._client.request("GET" if body is None else "POST", path, json=body,
                                    headers={"X-Session": self.session})

    def enrol(self, rater, **more):
        """Agree to the consent text."""
        version = self.ask("api/study").json()["consent_version"]
        self.session = self.session or new_token()
        answer = self.ask("api/raters", {"rater": rater, "consent": version, **more})
        if answer.status_code == 200:
            self.session = answer.json()["session"]
        return answer

    def trial(self):
        """Request the next trial."""
        return self.ask("api/trial")

    def picture(self, token, side):
        """Request the picture on a side of a trial."""
        return self.ask(f"pictures/{token}/{side}")

    def vote(self, token, choice):
        """Send a vote."""
        return self.ask("api/votes", ballot(token, choice))


@contextmanager
def serving(store, study, root_path="", limit=None):
    """Serve a study on a free port of this machine, by default without a limit of enrolments;
    gives its address."""
    app = study_app(store, study, root_path, limit or EnrolmentLimit(0, 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}{root_path}/"
        finally:
            server.should_exit = True
            thread.join(timeout=30)


def wait_for_pair(page, position):
    """Wait until a rater's page takes a vote on the pair at a position."""
    page.wait_for_function(
        "position => trial !== null && "
        "document.getElementById('count').textContent.startsWith(`${position} of`)",
        arg=position)


def postgres_programs():
    """Return the folder of PostgreSQL's server programs, or None."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = folders[-1] if folders else shutil.which("initdb")
    return Path(found).parent if found else None


@contextmanager
def postgres():
    """Run a PostgreSQL server that does not wait for the disk, as the user postgres if this is
    root; gives its URL."""
    programs = postgres_programs()
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    as_user = ["runuser", "-u", user, "--"] if os.geteuid() == 0 else []
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path must be short
    if as_user:
        shutil.chown(folder, user)
    port = own_port()

    def call(program, *words, check=True):
        command = [*as_user, str(programs / program), "-D", str(folder / "data"), *words]
        subprocess.run(command, check=check, capture_output=True, cwd="/")

    try:
        call("initdb", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8")
        call("pg_ctl", "-w", "-l", str(folder / "log"), "-o",
             f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off", "start")
        yield f"postgresql://{user}@127.0.0.1:{port}/postgres"
    finally:
        call("pg_ctl", "-m", "immediate", "stop", check=False)
        shutil.rmtree(folder, ignore_errors=True)
