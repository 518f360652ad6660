"""A real browser, Debian's Chromium, in front of a real server with small networks."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from browser_tools import PATIENCE, is_failure
from fakes import TINY, random_model
from textual import learned
from web_demo import ALL, Frames, running

from superres.checkpoint import save_checkpoint
from superres.config import DecodeConfig
from superres.pipeline.upscaler import Upscaler
from superres.survey.server import study_app
from superres.survey.store import Store
from tests.survey.helpers import add_study

CHROMIUM = (shutil.which("chromium") or shutil.which("chromium-browser")
            or shutil.which("google-chrome"))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]


@pytest.fixture(scope="package")
def browser():
    """Chromium without a window, one for all tests of a browser: Playwright runs once in a
    process."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip "
                                     "install -e '.[dev]'")
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
def checkpoints(tmp_path_factory):
    """A folder with untrained networks: 8to32, 32to64, and both as the cascade 8to64."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, source, target in (("8to32", 8, 32), ("32to64", 32, 64)):
        network = replace(TINY, source_shape=(source, source, 3), target_shape=(target, target, 3),
                          consistent=True, encoder_layers=0, prediction_heads=10)
        save_checkpoint(random_model(network, dtype=torch.float32), folder / name)
    (folder / "8to64").mkdir()
    (folder / "8to64" / "config.json").write_text(json.dumps({"format_version": 1,
                                                              "stages": ["8to32", "32to64"]}))
    return folder


@pytest.fixture(scope="package")
def demo(browser, kept, checkpoints):
    """The demo with toy checkpoints for faces and text, and a survey."""
    store, study, _ = kept
    translator = copy.copy(learned()[torch.float32])
    translator.default = DecodeConfig(block_size=4)  # as that of the bundled checkpoint
    upscaler = Upscaler.load(checkpoints / "8to32", "cpu")
    with running(upscaler, translator=translator, survey=study_app(store, study)) as served:
        served.decoder.warm_up()
        yield served


@pytest.fixture(scope="package")
def context_of(browser):
    """Return a function that gives the browser's context with these settings.

    Tests share contexts, since a context keeps the page's compiled scripts: a new one loads for
    twice as long.
    """
    @functools.cache
    def context(settings):
        made = browser.new_context(**json.loads(settings))
        made.set_default_timeout(PATIENCE)
        return made

    return lambda **settings: context(json.dumps(settings))


@pytest.fixture
def visit(context_of, demo, screenshots, request):
    """Open the page as a new visitor; at the end none of them has asked another host, and no script
    has failed."""
    pages, asked, failed, homes = [], [], [], set()
    usual = demo

    def open_page(path="/", demo=usual, **settings):
        page = context_of(**{"viewport": {"width": 1280, "height": 900}, **settings}).new_page()
        pages.append(page)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: failed.append(str(error)))
        page.on("console", lambda message: failed.append(message.text) if is_failure(message)
                else None)
        homes.add(urlsplit(demo.url).netloc)
        page.goto(demo.url + path)
        page.wait_for_selector("#run")
        page.wait_for_selector("#preview figure", state="attached")
        return page

    yield open_page
    for number, page in enumerate(pages):
        if "SUPERRES_SCREENSHOTS" in os.environ:
            page.screenshot(path=screenshots / f"{request.node.name}-{number}.png", full_page=True)
        page.evaluate("localStorage.clear()")  # the next visitor is another one
        page.context.clear_cookies()
        page.close()
    assert asked
    assert [url for url in asked if not url.startswith(("data:", "blob:")) and urlsplit(url).netloc
            not in homes] == []
    assert failed == []


@pytest.fixture
def frames(demo, monkeypatch):
    """What allows the frames of faces and translations one by one."""
    allowed, decoder = Frames(0), demo.decoder
    for one in (decoder.upscaler, decoder.translator):
        monkeypatch.setattr(one, "decode_stream", allowed.of(one.decode_stream))
    monkeypatch.setattr(decoder, "frame_seconds", 0.0)
    yield allowed
    allowed.release(ALL)


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory):
    """Return where screenshots go: the folder in SUPERRES_SCREENSHOTS, or a temporary one."""
    folder = os.environ.get("SUPERRES_SCREENSHOTS")
    path = Path(folder) if folder else tmp_path_factory.mktemp("screenshots")
    path.mkdir(parents=True, exist_ok=True)
    return path
