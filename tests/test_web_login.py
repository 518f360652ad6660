"""The web demo with passwords: what is closed to strangers, how often passwords may be guessed, how a session ends."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Mount
from web_demo import FACES, HTTP, running

from superres.web.passwords import IN_ALL, PER_VISITOR, WINDOW_SECONDS, Passwords
from superres.web.visitors import current

RIGHT = {"username": "eve", "password": "secret"}
WRONG = {"username": "eve", "password": "wrong"}


@pytest.fixture(scope="module")
def demo(upscaler):
    with running(upscaler, auth=[("eve", "secret"), ("bob", "other")]) as served:
        yield served


def client(demo, address="10.0.0.1"):
    """Return the client of a new visitor behind a proxy on this machine, which tells the visitor's address."""
    return httpx.Client(base_url=demo.url, timeout=300, headers={"x-forwarded-for": address})


def routes(app, prefix=""):
    """Yield path and method of each route of an application and of those mounted in it."""
    for route in app.routes:
        included = getattr(route, "original_router", None)  # newer versions of FastAPI keep included routers apart
        if included is not None:
            yield from routes(included, prefix)
            continue
        path = prefix + re.sub(r"\{[^}]*\}", "x", route.path)
        if isinstance(route, Mount):
            yield from routes(route.app, path)
        else:
            yield from ((path, method) for method in {*(route.methods or ()), "GET", "POST", "OPTIONS"})


# What strangers get


def test_every_route_is_closed_to_strangers_but_for_those_that_it_takes_to_log_in(demo):
    stranger = client(demo)
    found = {*routes(demo.app), ("/openapi.json", "GET"), ("/docs", "GET"), ("/gradio_api/heartbeat/x", "GET"),
             ("/gradio_api/file=/etc/passwd", "GET"), ("/nothing", "GET"), ("/survey/", "GET")}
    assert len({path for path, _ in found}) > 50
    opened = set()
    for path, method in found:
        answer = stranger.request(method, path)
        assert "upscale" not in answer.text, path
        if answer.status_code != 401:
            opened.add((path, method))
    assert opened == {("/", "GET"), ("/", "HEAD"), ("/login", "POST"), ("/login/", "POST"),
                      ("/health", "GET"), ("/health", "POST"), ("/health", "OPTIONS")}


def test_strangers_learn_from_health_only_that_the_server_runs(demo):
    assert client(demo).get("/health").json() == {"status": "ok"}
    user = client(demo)
    user.post("/login", data=RIGHT)
    assert user.get("/health").json()["checkpoint"] == "tiny"


def test_whoever_has_entered_gets_the_page_and_its_endpoints(demo):
    user = client(demo)
    assert 'action="/login"' in user.get("/").text
    assert user.post("/login", data=RIGHT).json() == {"success": True}
    assert "upscale_batch" in user.get("/").text
    assert user.get("/gradio_api/info").json()["named_endpoints"].keys() >= {"/upscale", "/upscale_batch"}
    path = user.post("/gradio_api/upload", files={"files": ("a.png", FACES[0].read_bytes())}).json()[0]
    assert user.get(f"/gradio_api/file={path}").content == FACES[0].read_bytes()


# Guesses


def test_guesses_of_one_address_are_limited_and_others_still_enter(demo):
    guesser = client(demo, "10.0.1.1")
    statuses = [guesser.post("/login", data=WRONG).status_code for _ in range(PER_VISITOR + 5)]
    assert statuses == [400] * PER_VISITOR + [429] * 5
    refused = guesser.post("/login", data=RIGHT)  # not looked at
    assert refused.status_code == 429
    assert re.fullmatch(r"too many wrong passwords; try again in \d+ seconds", refused.json()["detail"])
    assert 0 < int(refused.headers["retry-after"]) <= WINDOW_SECONDS
    assert client(demo, "10.0.1.2").post("/login", data=RIGHT).status_code == 200


def test_guesses_at_once_are_limited_like_those_one_by_one(demo):
    with ThreadPoolExecutor(20) as pool, client(demo, "10.0.2.1") as guesser:
        answers = list(pool.map(lambda _: guesser.post("/login", data=WRONG).status_code, range(60)))
    assert answers.count(400) == PER_VISITOR
    assert answers.count(429) == 60 - PER_VISITOR


class Door:
    """Passwords as visitors meet them, and the time."""

    def __init__(self):
        self.now = 0.0
        self.passwords = Passwords([("eve", "secret"), ("bob", "other")], lambda: self.now)

    def try_one(self, name, password, address, cookie=None):
        """Return whether a password is right, or None if it is not looked at."""
        token = current.set((*(("cookie " + cookie,) if cookie else ()), "address " + address))
        try:
            return self.passwords(name, password)
        except HTTPException as error:
            return None if error.status_code == 429 else error
        finally:
            current.reset(token)


def test_guesses_of_many_addresses_are_limited_in_all_but_not_for_a_browser_that_has_entered_before():
    door = Door()
    assert door.try_one("eve", "secret", "1.1.1.1", "eves")
    answers = [door.try_one("eve", "guess", f"2.0.{number}.1") for number in range(2 * IN_ALL)]
    assert answers == [False] * IN_ALL + [None] * IN_ALL
    assert door.try_one("eve", "secret", "3.3.3.3") is None
    assert door.try_one("eve", "secret", "2.0.0.1", "eves")
    assert door.try_one("bob", "other", "2.0.0.1", "eves") is None  # the browser is known for its own user only
    door.now += WINDOW_SECONDS + 1
    assert door.try_one("eve", "secret", "3.3.3.3")


def test_the_right_password_of_another_user_gives_no_further_guesses():
    door = Door()
    answers = []
    for number in range(20):
        answers.append(door.try_one("eve", f"guess{number}", "1.1.1.1", "bobs"))
        door.try_one("bob", "other", "1.1.1.1", "bobs")
    assert answers == [False] * PER_VISITOR + [None] * (20 - PER_VISITOR)


def test_all_addresses_of_an_ipv6_network_count_as_one():
    door = Door()
    answers = [door.try_one("eve", "guess", f"2001:db8:1:2::{number}") for number in range(10)]
    assert answers.count(False) == PER_VISITOR
    assert door.try_one("eve", "secret", "2001:db8:1:3::1")
    assert door.try_one("eve", "secret", "testclient")


@pytest.mark.parametrize(("name", "password", "right"), [
    ("eve", "secret", True), ("eve", "other", False), ("eve", "", False), ("eva", "", False), ("", "", False),
    ("eve", "sécret", False),
])
def test_a_password_belongs_to_its_name(name, password, right):
    assert Door().try_one(name, password, "1.1.1.1") is right


# Leaving


def entered(demo):
    user = client(demo, "10.0.9.1")
    user.post("/login", data=RIGHT)
    assert user.get("/config").status_code == 200
    return user


def test_a_picture_of_another_site_ends_no_session(demo):
    user = entered(demo)
    for path in ("/logout", "/logout/", "/logout?all_session=true"):
        for headers in ({}, {"sec-fetch-site": "cross-site"}):
            asked = user.get(path, headers=headers)
            assert 'method="post"' in asked.text
    assert user.get("/config").status_code == 200


@pytest.mark.parametrize("headers", [
    {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "https://evil.example"},
    {"origin": "null"}, {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
], ids=str)
def test_a_form_of_another_site_ends_and_begins_no_session(demo, headers):
    user = entered(demo)
    assert user.post("/logout", headers=headers).status_code == 403
    assert user.post("/login", data=RIGHT, headers=headers).status_code == 403
    assert user.get("/config").status_code == 200


@pytest.mark.parametrize("headers", [
    {}, {"sec-fetch-site": "same-origin", "origin": "null"}, {"origin": "own"},
], ids=str)
def test_the_page_s_own_form_ends_the_session(demo, headers):
    user = entered(demo)
    headers = {name: demo.url if value == "own" else value for name, value in headers.items()}
    assert user.post("/logout", headers=headers).status_code == 302
    assert user.get("/config").status_code == 401
    assert HTTP.post(f"{demo.url}/logout").status_code == 401
