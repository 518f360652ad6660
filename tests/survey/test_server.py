"""The pages over HTTP: what they answer, what they refuse, and what they keep to themselves."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter

import httpx
from sqlalchemy import select
from starlette.testclient import TestClient

from superres.survey import schema
from superres.survey.credentials import digest
from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.records import read_votes
from superres.survey.server import HEADERS, MAX_BODY_BYTES, study_app, survey_app
from superres.survey.store import Store
from tests.survey.helpers import PLAIN, RaterClient, add_study, ballot, serving, vote_through


def join(client, study, rater="me"):
    answer = client.post("api/raters",
                         json={"rater": rater, "consent": study.settings.consent_version})
    assert answer.status_code == 200
    return {"X-Session": answer.json()["session"]}


def test_a_rater_votes_through_a_study_over_http_under_a_path(sqlite):
    study, _ = add_study(sqlite, completion_code="C0DE", completion_url="https://example.org/done")
    with serving(sqlite, study, "/lab/survey") as address:
        client = RaterClient(address)
        page = client.ask("").text
        assert 'src="survey.js"' in page
        assert not any(link in page for link in ('href="/', 'src="/'))
        for path in ("survey.js", "survey.css", "results/", "results/results.js",
                     "results/survey.css"):
            assert client.ask(path).status_code == 200, path
        assert client.ask("results").headers["location"] == "results/"
        assert client.enrol("me").json()["resumed"] is False
        for position in range(1, 10):
            trial = client.trial().json()
            token = trial.pop("token")
            assert trial == {"done": False, "position": position, "total": 9,
                             "practice": position == 1}
            for side in ("left", "right"):
                assert client.picture(token, side).content.startswith(b"\x89PNG")
            assert client.vote(token, "right").json()["saved"] is True
        assert client.trial().json() == {"done": True, "thanks": study.settings.thanks,
                                         "completion_code": "C0DE",
                                         "completion_url": "https://example.org/done"}
        client.close()
    assert len(read_votes(sqlite, study)) == 9


def test_every_answer_has_the_same_guarding_headers(sqlite):
    with TestClient(study_app(sqlite, add_study(sqlite)[0])) as client:
        for path in ("/", "/survey.js", "/api/study", "/api/trial", "/pictures/x/left", "/nowhere",
                     "/results/", "/results/api/report"):
            answer = client.get(path)
            assert HEADERS.items() <= dict(answer.headers).items(), path
            assert "etag" not in answer.headers


def test_refusals_are_one_line_of_json_and_store_nothing(sqlite):
    study, _ = add_study(sqlite)
    with TestClient(survey_app(sqlite, study)) as client:
        mine, theirs = join(client, study), join(client, study, "them")
        token = client.get("/api/trial", headers=mine).json()["token"]
        good = ballot(token, "left")

        def post(body, headers=mine):
            sent = {"json": body} if isinstance(body, dict) else {"content": body}
            return client.post("/api/votes", headers=headers, **sent)

        def agree(rater, consent=study.settings.consent_version):
            return client.post("/api/raters", json={"rater": rater, "consent": consent})

        wrong = ({"choice": "a"}, {"choice": "unsure"}, {"method": "k6"}, {"response_ms": -1},
                 {"viewport_width": "800"}, {"display_px": 0}, {"input": "voice"})
        cases = [
            *((422, post({**good, **change})) for change in wrong),
            *((403, post(good, headers)) for headers in ({"X-Session": token}, {}, theirs)),
            (403, post({**good, "token": "x" * 32})), (422, post(b"{")),
            (422, post(json.dumps(good).replace("900.0", "NaN"))),
            (413, post(b"x" * (MAX_BODY_BYTES + 1))),
            (413, post(iter([b"x" * MAX_BODY_BYTES, b"x"]))),
            (405, client.get(f"/api/votes?token={token}&choice=left", headers=mine)),
            (401, client.get("/api/trial")),
            (401, client.get("/api/trial", headers={"X-Session": "x"})),
            (422, agree("")), (409, agree("me", "other")),
            (404, client.get("/pictures/unknown/left")),
            (422, client.get(f"/pictures/{token}/middle")),
        ]
        for status, answer in cases:
            assert answer.status_code == status, answer.text
            assert "\n" not in answer.json()["error"]
            assert "k6" not in answer.text
        assert read_votes(sqlite, study) == []
        assert post(good).json()["saved"] is True
        for choice in ("left", "right"):
            assert post({**good, "choice": choice}).status_code == 409
        assert len(read_votes(sqlite, study)) == 1


def test_a_store_in_trouble_is_no_saved_vote_and_is_not_described_to_raters(memory_folder):
    store = Store(f"sqlite:///{memory_folder / 'survey.db'}?timeout=0.1", create=True)
    study, _ = add_study(store)
    with TestClient(survey_app(store, study)) as client:
        session = join(client, study)
        token = client.get("/api/trial", headers=session).json()["token"]
        other = sqlite3.connect(memory_folder / "survey.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answer = client.post("/api/votes", json=ballot(token, "left"), headers=session)
        assert answer.status_code == 503
        assert answer.json() == {"error": "the vote cannot be saved at the moment; please wait and "
                                 "try again"}
        other.execute("ROLLBACK")
        assert client.post("/api/votes", json=ballot(token, "left"),
                           headers=session).status_code == 200
    assert len(read_votes(store, study)) == 1


def test_enrolment_is_limited_per_address_and_in_all(sqlite):
    study, _ = add_study(sqlite)
    limit = EnrolmentLimit(per_address=3, total=5, clock=lambda: 0.0)
    with (serving(sqlite, study, limit=limit) as address,
          httpx.Client(base_url=address, timeout=60) as client):
        def enrol(number, source):
            body = {"rater": f"rater{number}", "consent": study.settings.consent_version}
            # as a local proxy sends
            return client.post("api/raters", json=body, headers={"X-Forwarded-For": source})

        assert [enrol(n, "192.0.2.1").status_code for n in range(4)] == [200, 200, 200, 429]
        assert [enrol(n, "2001:db8::1").status_code for n in range(4, 6)] == [200, 200]
        answer = enrol(6, "192.0.2.2")
        assert (answer.status_code, answer.headers["Retry-After"]) == (429, "120")
        assert answer.json()["error"] == ("many people are starting this survey at the moment; "
                                          "please try again in 120 s")
        assert enrol(1, "192.0.2.3").status_code == 429  # nor does a known id get past it


def test_a_limit_lets_a_whole_group_start_at_once_and_fills_again():
    now = [0.0]
    limit = EnrolmentLimit(per_address=120, total=600, clock=lambda: now[0])
    assert [limit.take("192.0.2.1") for _ in range(121)] == [0] * 120 + [5]
    assert limit.take("::ffff:192.0.2.1") == 5  # the same address
    now[0] += 5
    assert [limit.take("192.0.2.1") for _ in range(2)] == [0, 5]
    assert [limit.take("2001:db8::1") for _ in range(60)] == [0] * 60
    assert [limit.take("2001:db8::2") for _ in range(61)] == [0] * 60 + [5]  # the same network
    assert [limit.take("2001:db8:0:1::1") for _ in range(2)] == [0, 0]
    now[0] += 600
    assert [limit.take(f"192.0.2.{n % 250}") for n in range(601)] == [0] * 600 + [1]
    now[0] += 600
    assert limit.take("192.0.2.1") == 0
    assert len(limit._full_at) == 2  # the address and the total: the others are forgotten
    unlimited = EnrolmentLimit(0, 0, lambda: now[0])
    assert {unlimited.take("") for _ in range(5000)} == {0}


def test_results_are_the_owners_alone_and_live(sqlite):
    study, token = add_study(sqlite)
    with TestClient(study_app(sqlite, study), base_url="http://test/results/") as client:
        assert client.get("").status_code == 200
        for path in ("api/report", "api/plot.png", "api/report.md", "api/votes.csv"):
            for headers in ({}, {"X-Owner": "wrong"}, {"X-Owner": digest(token)}):
                assert client.get(path, headers=headers).status_code == 401
        client.headers["X-Owner"] = token
        assert client.get("api/report").json()["votes"] == 0
        vote_through(sqlite, study)
        report = client.get("api/report").json()
        assert (report["votes"], report["raters"]) == (6, 1)
        assert report["sections"][0]["rows"][0][0] == "k6 vs greedy"
        assert client.get("api/plot.png").content.startswith(b"\x89PNG")
        assert client.get("api/report.md").text.startswith("# study")
        assert client.get("api/votes.csv").text.count("\n") == 10
        assert client.get("api/votes.exe").status_code == 422


UNFILLED = ("{{%PROLIFIC_PID%}}", "%7B%7B%25PROLIFIC_PID%25%7D%7D", "${PROLIFIC_PID}",
            "${e://Field/PROLIFIC_PID}", "%PROLIFIC_PID%", "%%RID%%", "[%MID%]", "{id}", "<id>",
            "$PROLIFIC_PID", "undefined", "null", "NULL", "(null)", "None", "NaN",
            "[object Object]", " undefined ", "id-{{%PROLIFIC_PID%}}")
FILLED = ("5f3c9a1b2d4e6f7a8b9c0d1e", "A1B2C3D4E5F6G7", "anna", "Nanette", "nullius", "Nan",
          "no one", "a<b", "100%", "o'brien", "anna@example.org", "x_1-2.3", "Zoë [2]",
          "none of us")


def test_a_link_that_the_panel_did_not_fill_in_is_refused_with_a_word_to_rater_and_owner(sqlite):
    study, _ = add_study(sqlite, panel_params=("SESSION_ID",))
    with TestClient(survey_app(sqlite, study, EnrolmentLimit(0, 0)),
                    base_url="http://test/") as client:
        def agree(rater, panel):
            return client.post("api/raters", json={
                "rater": rater, "consent": study.settings.consent_version, "panel": panel})

        for value in UNFILLED:
            for name in ("PROLIFIC_PID", "SESSION_ID"):
                # as the page loads
                answer = client.get("api/study", params={"OTHER": value, name: value})
                assert answer.status_code == 422
                assert (f"this link has {value.strip()} where the value of {name} "
                        "belongs" in answer.json()["error"])
            for rater, panel, what in ((value, {}, "a participant id"),
                                       ("me", {"SESSION_ID": value}, "the value of SESSION_ID")):
                answer = agree(rater, panel)
                assert answer.status_code == 422
                error = answer.json()["error"]
                assert error.startswith(f"this link has {value.strip()} where {what} belongs")
                assert "It is not your fault; please tell the people who sent you" in error
                assert "docs/survey.md" in error
        for rater in FILLED:
            read = client.get("api/study", params={"PROLIFIC_PID": rater, "OTHER": "undefined"})
            joined = agree(rater, {"SESSION_ID": rater, "OTHER": "undefined"})
            assert (read.status_code, joined.status_code) == (200, 200), rater
    with sqlite.reading() as connection:
        assert len(list(connection.scalars(select(schema.rater.c.pseudonym)))) == len(FILLED)


class Persistent(threading.Thread):
    """A rater who votes on all trials, and repeats every request until it is answered.

    `saved` are votes whose answer was "saved", and `kept` those whose answer was lost, but which
    the server had stored.
    """

    def __init__(self, address, number):
        super().__init__(daemon=True)
        self.client, self.number = RaterClient(address), number
        self.saved, self.kept, self.unexpected = [], [], []

    def persist(self, ask, *words):
        """Return the answer to a request, and whether an earlier answer was lost."""
        lost = False
        while True:
            try:
                answer = ask(*words)
                if answer.status_code != 503:
                    return answer, lost
            except httpx.HTTPError:
                lost = True
            time.sleep(0.05)

    def run(self):
        self.persist(self.client.enrol, f"rater{self.number}")
        while not (trial := self.persist(self.client.trial)[0].json())["done"]:
            token, choice = trial["token"], ("left", "right")[len(self.saved) % 2]
            answer, lost = self.persist(self.client.vote, token, choice)
            place = (self.saved if answer.status_code == 200 else
                     self.kept if answer.status_code == 409 and lost else self.unexpected)
            place.append((digest(token), choice))


def serve(store, study, port):
    """Start a process that serves a study, and wait until it answers."""
    process = subprocess.Popen(
        [sys.executable, "-m", "superres", "survey", "serve", study.name, "--store", store.location,
         "--port", str(port), "--enrolments=0", "--enrolments-per-address=0"],
        stderr=subprocess.DEVNULL)
    while process.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/api/study").status_code == 200:
                return process
        except httpx.HTTPError:
            time.sleep(0.05)
    raise AssertionError("the server does not start")


def test_votes_survive_a_server_that_is_killed(sqlite):
    """Exactly the votes that were answered "saved" are stored, once each, and those whose answer
    was lost."""
    study, _ = add_study(sqlite, count=4, trials=4, **PLAIN)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = serve(sqlite, study, port)
    crowd = [Persistent(f"http://127.0.0.1:{port}/", number) for number in range(6)]
    for rater in crowd:
        rater.start()
    while sum(len(rater.saved) for rater in crowd) < 8:
        time.sleep(0.01)
    server.kill()
    server.wait()
    server = serve(sqlite, study, port)
    for rater in crowd:
        rater.join(timeout=60)
    server.kill()
    server.wait()
    query = select(schema.trial.c.token_hash, schema.vote.c.choice) \
        .select_from(schema.vote.join(schema.trial))
    with sqlite.reading() as connection:
        stored = Counter(tuple(row) for row in connection.execute(query))
    assert stored == Counter(vote for rater in crowd for vote in (*rater.saved, *rater.kept))
    assert (stored.total(), max(stored.values())) == (24, 1)
    assert not any(rater.unexpected for rater in crowd)
