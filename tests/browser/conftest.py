"""A real browser, Debian's Chromium, in front of a real server with the bundled checkpoint."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from survey_tools import add_study
from textual import learned
from web_demo import running

from superres.config import DecodeConfig
from superres.pipeline.upscaler import Upscaler
from superres.survey.server import study_app
from superres.survey.store import Store

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]
PATIENCE = 180_000
"""Milliseconds until a step of the browser fails: no test measures time, and a busy machine is slow."""


def is_failure(message):
    """Return whether a message of the console is an error; that the server refuses a request is tested on purpose."""
    return message.type == "error" and not message.text.startswith("Failed to load resource")


@pytest.fixture(scope="package")
def browser():
    """Chromium without a window, one for all tests of a browser: Playwright runs once in a process."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install -e '.[dev]'")
    with playwright.sync_playwright() as running_playwright:
        chromium = running_playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def kept(tmp_path_factory):
    """A store with a study; the study, and its owner's token."""
    store = Store(tmp_path_factory.mktemp("survey") / "survey.db", create=True)
    yield store, *add_study(store, scale=8)
    store.close()


@pytest.fixture(scope="package")
def demo(browser, kept):
    """The demo with the bundled checkpoint for faces, a toy one for text, and a survey."""
    store, study, _ = kept
    translator = copy.copy(learned()[torch.float32])
    translator.default = DecodeConfig(block_size=4)  # as that of the bundled checkpoint
    with running(Upscaler.load(device="cpu"), translator=translator, survey=study_app(store, study)) as served:
        served.decoder.warm_up()
        yield served


@pytest.fixture
def visit(browser, demo, screenshots, request):
    """Open the page as a new visitor; at the end none of them has asked another host, and no script has failed."""
    contexts, asked, failed, homes = [], [], [], set()
    usual = demo

    def open_page(path="/", demo=usual, **settings):
        context = browser.new_context(viewport=settings.pop("viewport", {"width": 1280, "height": 900}), **settings)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("console", lambda message: failed.append(message.text) if is_failure(message) else None)
        homes.add(urlsplit(demo.url).netloc)
        page.goto(demo.url + path)
        page.wait_for_selector("#run")
        page.wait_for_selector("#preview figure")
        return page

    yield open_page
    for number, context in enumerate(contexts):
        if "SUPERRES_SCREENSHOTS" in os.environ:
            context.pages[0].screenshot(path=screenshots / f"{request.node.name}-{number}.png", full_page=True)
        context.close()
    assert asked
    assert [url for url in asked if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc not in homes] == []
    assert failed == []


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory):
    """Return where screenshots go: the folder in SUPERRES_SCREENSHOTS, or a temporary one."""
    folder = os.environ.get("SUPERRES_SCREENSHOTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path
