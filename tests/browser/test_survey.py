"""The survey in real Chromium: a study from the bundled checkpoint, voted on by keyboard and by mouse."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from skimage import data
from survey_tools import add_study, wait_for_pair

from simulations.serving import serving
from superres.cli.main import run
from superres.survey.credentials import link_key
from superres.survey.rate_limit import EnrolmentLimit
from superres.survey.records import read_votes
from superres.survey.store import Store

PATIENCE_MS = 120_000


def watch_for_errors(page, errors):
    """Collect errors of scripts and of the console, but not the browser's own lines about refused requests."""
    def told(message):
        if message.type == "error" and "Failed to load resource" not in message.text:
            errors.append(message.text)

    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", told)


@pytest.fixture
def page(browser):
    """A page of a fresh profile that has asked no other host than this one for anything."""
    context = browser.new_context(viewport={"width": 1000, "height": 800}, device_scale_factor=1)
    context.set_default_timeout(PATIENCE_MS)
    opened = context.new_page()
    asked, errors = [], []
    opened.on("request", lambda request: asked.append(request.url))
    watch_for_errors(opened, errors)
    yield opened
    context.close()
    assert all(url.startswith(("http://127.0.0.1:", "data:", "blob:")) for url in asked)
    assert errors == []


def agree(page):
    page.check("#agree")
    page.click("#begin")


def start(page, address, rater="me"):
    page.goto(address)
    page.fill("#rater", rater)
    agree(page)


def choices(store, study):
    return [(record["choice"], record["input"]) for record in read_votes(store, study)]


def test_votes_by_keyboard_and_by_mouse_and_held_keys_are_one_vote(page, sqlite):
    study, _ = add_study(sqlite, trials=6, gold=0, repeats=0, practice=1, allow_unsure=True, completion_code="C0DE")
    with serving(sqlite, study) as address:
        start(page, address)
        ways = [lambda: page.keyboard.press("ArrowLeft"), lambda: page.keyboard.press("f"),
                lambda: [page.keyboard.down("j") for _ in range(5)], lambda: page.keyboard.press("ArrowRight"),
                lambda: page.dblclick("#left"), lambda: page.click("#right-picture"),
                lambda: page.keyboard.press("Space")]
        for position, way in enumerate(ways, 1):
            wait_for_pair(page, position)
            way()
        page.wait_for_selector("#done:not([hidden])")
        assert page.inner_text("#code") == "C0DE"
    assert choices(sqlite, study) == [("left", "key"), ("left", "key"), ("right", "key"), ("right", "key"),
                                    ("left", "pointer"), ("right", "pointer"), ("unsure", "key")]
    for record in read_votes(sqlite, study):
        assert record["display_px"] == 32  # 16 pixels, twice as wide
        assert record["pixel_ratio"] == 1
        assert (record["viewport_width"], record["viewport_height"]) == (1000, 800)
        assert record["response_ms"] > 0


def test_a_closed_tab_resumes_where_it_was_and_someone_else_starts_anew(page, sqlite):
    study, _ = add_study(sqlite)
    with serving(sqlite, study, "/lab") as address:
        start(page, address)
        for position in (1, 2):
            wait_for_pair(page, position)
            page.keyboard.press("f")
        wait_for_pair(page, 3)
        page.goto("about:blank")
        page.goto(address)
        page.click("#continue")
        wait_for_pair(page, 3)
        page.goto(address)
        page.click("#other")
        page.fill("#rater", "another")
        agree(page)
        wait_for_pair(page, 1)
    assert len(choices(sqlite, study)) == 2


def test_a_personal_link_resumes_in_another_browser_and_the_id_alone_does_not(page, browser, sqlite):
    study, _ = add_study(sqlite)
    link = f"?participant=me&link_key={link_key(study.salt, 'me')}"
    with serving(sqlite, study) as address:
        page.goto(f"{address}?PROLIFIC_PID=me&STUDY_ID=x")
        page.wait_for_selector("#agree")
        assert not page.is_visible("#rater")
        agree(page)
        wait_for_pair(page, 1)
        page.keyboard.press("f")
        wait_for_pair(page, 2)
        page.reload()
        wait_for_pair(page, 2)  # resumes by itself
        elsewhere = browser.new_context(viewport={"width": 1000, "height": 800})
        other = elsewhere.new_page()
        for query in ("?participant=me", link):
            other.goto(address + query)
            agree(other)
            if query != link:
                other.wait_for_selector("#message >> text=started already")
        wait_for_pair(other, 2)
        assert [vote["panel"] for vote in read_votes(sqlite, study)] == ['{"STUDY_ID": "x"}']
        elsewhere.close()
        page.keyboard.press("f")
        page.wait_for_selector("#message >> text=opened elsewhere")
    assert len(choices(sqlite, study)) == 1


def test_a_page_that_is_asked_to_wait_goes_on_by_itself(page, sqlite):
    study, _ = add_study(sqlite)
    limit = EnrolmentLimit(per_address=600)
    while not limit.take("127.0.0.1"):
        pass
    with serving(sqlite, study, limit=limit) as address:
        start(page, address)
        wait_for_pair(page, 1)


PHONE = {"viewport": {"width": 390, "height": 664}, "device_scale_factor": 3, "is_mobile": True, "has_touch": True}


def layout(page):
    """Boxes of both pictures, what the whole page needs, and which labels are seen."""
    return page.evaluate("""() => {
        const [a, b] = ['left', 'right'].map((side) => {
            const box = document.getElementById(`${side}-picture`).getBoundingClientRect();
            return {x: box.x, y: box.y, width: box.width, height: box.height};
        });
        return {a, b, page: [document.documentElement.scrollWidth, document.documentElement.scrollHeight],
                window: [innerWidth, innerHeight],
                labels: document.getElementById('left').innerText + '|' + document.getElementById('right').innerText};
    }""")


def test_on_a_phone_the_pictures_stack_and_every_vote_is_accepted(browser, sqlite, screenshots):
    study, _ = add_study(sqlite, scale=16, trials=4, gold=0, repeats=0, practice=1, allow_unsure=True)  # 256 pixels
    context = browser.new_context(**PHONE)
    context.set_default_timeout(PATIENCE_MS)
    page, errors = context.new_page(), []
    watch_for_errors(page, errors)
    with serving(sqlite, study) as address:
        page.goto(address)
        page.wait_for_selector("#agree")
        page.screenshot(path=screenshots / "survey-start-390.png")
        page.fill("#rater", "phone")
        page.check("#agree")
        page.tap("#begin")
        for position, side in enumerate(("left-picture", "right-picture", "left", "unsure", "right"), 1):
            wait_for_pair(page, position)
            shown = layout(page)
            assert shown["a"]["y"] + shown["a"]["height"] < shown["b"]["y"]  # stacked
            assert shown["a"]["width"] == shown["b"]["width"] >= 160
            assert shown["a"]["x"] == shown["b"]["x"]
            assert shown["a"]["width"] % 16 == 0  # whole pixels
            assert shown["page"][0] <= shown["window"][0]
            assert shown["page"][1] <= shown["window"][1]  # both pictures are seen at once
            assert shown["labels"] == "Upper|Lower"  # no keys on a phone
            page.screenshot(path=screenshots / "survey-trial-390.png")
            page.tap(f"#{side}")
        page.wait_for_selector("#done:not([hidden])")
        page.screenshot(path=screenshots / "survey-done-390.png")
    context.close()
    assert errors == []
    assert choices(sqlite, study) == [(side, "pointer") for side in ("left", "right", "left", "unsure", "right")]
    assert {record["display_px"] for record in read_votes(sqlite, study)} == {shown["a"]["width"]}


@pytest.mark.parametrize(("size", "fill", "widths"), [
    ((1400, 900), False, [256]), ((1400, 900), True, range(512, 700, 16)), ((320, 320), True, [112])])
def test_pictures_are_as_large_as_the_window_allows_pixel_by_pixel(page, sqlite, size, fill, widths, screenshots):
    study, _ = add_study(sqlite, scale=16, practice=0, fill=fill)
    with serving(sqlite, study) as address:
        page.set_viewport_size(dict(zip(("width", "height"), size, strict=True)))
        start(page, address)
        wait_for_pair(page, 1)
        shown = layout(page)
        page.screenshot(path=screenshots / f"survey-trial-{size[0]}.png")
        pixels = page.evaluate("""() => {
            const image = document.getElementById('left-picture');
            const canvas = document.createElement('canvas');
            [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0);
            return [getComputedStyle(image).imageRendering, ...context.getImageData(0, 0, 256, 256).data];
        }""")
    assert shown["a"]["y"] == shown["b"]["y"]
    assert shown["a"]["width"] == shown["b"]["width"]
    assert shown["a"]["width"] in widths
    assert shown["page"][0] <= size[0]
    assert shown["page"][1] <= size[1] or size[1] < 400
    assert pixels[0] == "pixelated"
    received = np.array(pixels[1:]).reshape(256, 256, 4)
    assert np.array_equal(received, received[::16, ::16].repeat(16, 0).repeat(16, 1))


def test_a_study_of_the_bundled_checkpoint_from_creation_to_export(page, memory_folder, tmp_path, capsys):
    picture, store = data.astronaut(), memory_folder / "survey.db"
    for number in range(8):
        Image.fromarray(picture[number:number + 200, 130:330]).save(tmp_path / f"{number}.png")
    words = ["survey", "create", "whole", "--store", store, "--images", tmp_path, "--trials", 4, "--practice", 1,
             "--gold", 1, "--repeats", 1, "--method-a", "name=k10,accept=distance,epsilon=2", "--method-a", "bicubic",
             "--method-b", "camera"]
    assert run([str(word) for word in words]) == 0
    opened = Store(store)
    study = opened.study("whole")
    with serving(opened, study) as address:
        start(page, address)
        for position in range(1, 8):
            wait_for_pair(page, position)
            page.keyboard.press("ArrowRight")
        page.wait_for_selector("#done:not([hidden])")
    assert choices(opened, study) == [("right", "key")] * 7
    opened.close()
    capsys.readouterr()
    assert run(["survey", "report", "whole", "--store", str(store), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["result"]["votes"] == 4
    assert report["methods"]["k10"]["config"]["block_size"] == 10
    assert report["methods"]["k10"]["mean_accepted_block_size"] > 5
    assert run(["survey", "export", "whole", "--store", str(store), "--output", str(tmp_path / "votes.csv")]) == 0
    assert (tmp_path / "votes.csv").read_text().count("\n") == 8
