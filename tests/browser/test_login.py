"""The web demo with a password, in Chromium."""

from __future__ import annotations

import pytest
from browser_tools import check_wcag
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
    page.wait_for_selector("#results superres-viewer img")
    page.goto(f"{demo.url}/logout")
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("User name").wait_for()
    assert page.evaluate("fetch('/config').then(answer => answer.status)") == 401
    assert failed == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_login_and_logout_meet_wcag_aa(closed, browser, width, scheme, screenshots):
    demo, _ = closed
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    page, failed = context.new_page(), []
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("console", lambda message: failed.append(message.text) if message.type == "error"
            and "Failed to load resource" not in message.text else None)  # a wrong password is refused on purpose

    def check(name):
        page.screenshot(path=screenshots / f"{name}-{width}-{scheme}.png")
        check_wcag(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("[...document.querySelectorAll('input, button')].every("
                             "element => element.getBoundingClientRect().height >= 44)")

    page.goto(demo.url)
    assert page.evaluate("document.activeElement.name") == "username"
    page.keyboard.type("eve")
    page.keyboard.press("Tab")
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The name or the password is wrong.").wait_for()
    check("login")
    page.get_by_label("Password").fill("secret")
    page.keyboard.press("Enter")
    page.get_by_role("tab", name="Upscale").wait_for()
    page.goto(f"{demo.url}/logout")
    page.get_by_role("button", name="Log out").wait_for()
    check("logout")
    context.close()
    assert failed == []
