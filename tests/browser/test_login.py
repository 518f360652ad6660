"""The web demo with a password, in Chromium."""

from __future__ import annotations

import pytest
from web_demo import FACES, running


@pytest.fixture
def closed(browser, demo):
    with running(demo.decoder.upscaler, auth=[("eve", "secret")]) as served:
        context = browser.new_context()
        context.set_default_timeout(180_000)
        page = context.new_page()
        yield served, page
        context.close()


def test_a_password_opens_the_page_and_logging_out_closes_it(closed, screenshots):
    demo, page = closed
    asked, failed = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.goto(demo.url)
    assert asked == [f"{demo.url}/"]
    page.screenshot(path=screenshots / "login.png")
    page.get_by_label("User name").fill("eve")
    for _ in range(5):
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("The name or the password is wrong.").wait_for()
    page.get_by_role("button", name="Log in").click()
    page.get_by_text("too many wrong passwords; try again in").wait_for()
    elsewhere = {"x-forwarded-for": "10.0.0.1"}
    page.route("**/login", lambda route: route.continue_(headers={**route.request.headers, **elsewhere}))
    page.get_by_label("Password").fill("secret")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_selector("#preview figure")
    page.set_input_files("#photo input[type=file]", FACES[1])
    page.click("#run")
    page.wait_for_selector("#results .sr-compare")
    page.goto(f"{demo.url}/logout")
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("User name").wait_for()
    assert page.evaluate("fetch('/config').then(answer => answer.status)") == 401
    assert failed == []
