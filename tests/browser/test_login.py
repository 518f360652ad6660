"""The web demo with a password, in Chromium."""

from __future__ import annotations

from web_demo import running


def test_a_password_opens_the_page(browser, demo, screenshots):
    with running(demo.decoder.upscaler, auth=[("eve", "secret")]) as served, browser.new_context() as context:
        context.set_default_timeout(60_000)
        page, failed = context.new_page(), []
        page.on("pageerror", lambda error: failed.append(str(error)))
        for password, seen in (("wrong", "text=Incorrect credentials"), ("secret", "#preview figure")):
            page.goto(served.url)
            page.get_by_label("username").fill("eve")
            page.get_by_label("password").fill(password)
            page.get_by_role("button", name="Login").click()
            page.wait_for_selector(seen)
            page.screenshot(path=screenshots / f"login-{password}.png")
        assert failed == []
