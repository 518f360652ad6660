"""What link previews and search engines read of the web demo: its tags, each once, and the card."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from html.parser import HTMLParser

import httpx
import numpy as np
import pytest
from PIL import Image
from web_demo import HTTP, running, toy

from superres.cli import app
from superres.pictures.mark import DRAWN
from superres.pictures.write import read_origin
from superres.web.card import MOST_OTHERS, SIZE, card
from superres.web.head import tagged

PROPERTIES = ("title", "description", "type", "site_name", "url", "image", "image:type",
              "image:width", "image:height", "image:alt")
TWITTER = ("card", "title", "description", "image", "image:alt")
EXPECTED = {"<title>", "description", "canonical", "icon", *(f"og:{name}" for name in PROPERTIES),
            *(f"twitter:{name}" for name in TWITTER)}


class Head(HTMLParser):
    """The tags of a page's head that name it, by name, each with all its values."""

    def __init__(self, page):
        super().__init__()
        self.found, self.is_title = [], False
        self.feed(page.partition("</head>")[0])
        self.count = Counter(name for name, _ in self.found)
        self.values = dict(self.found)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.is_title = tag == "title"
        name = given.get("property") or given.get("name", "")
        if tag == "meta" and re.match("og:|twitter:|description", name):
            self.found.append((name, given["content"]))
        if tag == "link" and given["rel"] in ("canonical", "icon", "manifest"):
            self.found.append((given["rel"], given["href"]))

    def handle_data(self, data):
        if self.is_title:
            self.found.append(("<title>", data))
            self.is_title = False


@pytest.fixture(scope="module")
def demo():
    with running(toy()) as served:
        yield served


@pytest.fixture(scope="module")
def below():
    with running(toy(), root_path="/demo") as served:
        yield served


def head_of(url, **headers):
    answer = HTTP.get(url, headers=headers)
    assert answer.status_code == 200
    return Head(answer.text)


def check_card(content, source, target):
    """Check that a file is a card: its size, the mark, and the input's colours."""
    image = Image.open(io.BytesIO(content))
    assert (image.format, image.size) == ("PNG", SIZE)
    assert read_origin(io.BytesIO(content), "card")["mark"] == DRAWN
    colours = {tuple(pixel) for pixel in np.asarray(image.convert("RGB")).reshape(-1, 3)}
    assert {tuple(pixel) for pixel in source.reshape(-1, 3)} <= colours
    assert len(content) < 600_000  # some programs show no larger picture


def test_each_tag_is_there_once_and_none_names_another_program(demo):
    head = head_of(f"{demo.url}/")
    assert head.count == dict.fromkeys(EXPECTED, 1)
    assert "gradio" not in json.dumps(head.found).lower()
    assert head.values["og:url"] == head.values["canonical"] == f"{demo.url}/"
    assert head.values["og:title"] == head.values["twitter:title"] == head.values["<title>"]
    assert head.values["twitter:card"] == "summary_large_image"
    assert "64 colours" in head.values["og:description"]
    assert "16x16" in head.values["og:image:alt"]


def test_the_picture_is_a_card_of_its_size_with_the_mark(demo):
    values = head_of(f"{demo.url}/").values
    assert values["og:image"] == values["twitter:image"] == f"{demo.url}/card.png"
    answer = HTTP.get(values["og:image"])
    assert answer.headers["content-type"] == values["og:image:type"] == "image/png"
    assert (int(values["og:image:width"]), int(values["og:image:height"])) == SIZE
    check_card(answer.content, app.pictured(demo.decoder.upscaler.face_task), 16)
    assert HTTP.get(values["og:image"]).content == answer.content


@pytest.mark.parametrize(("path", "headers", "address"), [
    ("/demo/", {}, "http://demo.example.org/demo/"), ("/", {}, "http://demo.example.org/demo/"),
    ("/", {"x-forwarded-proto": "https"}, "https://demo.example.org/demo/")])
def test_addresses_are_those_that_visitors_of_a_proxy_know(below, path, headers, address):
    values = head_of(below.url + path, host="demo.example.org", **headers).values
    assert values["og:url"] == address
    assert values["og:image"] == f"{address}card.png"
    for reached in ("/demo/card.png", "/card.png"):
        assert HTTP.get(below.url + reached).headers["content-type"] == "image/png"


def test_a_host_that_is_markup_stays_text(demo):
    host = '"><script>alert(1)</script>'
    page = HTTP.get(f"{demo.url}/", headers={"host": host}).text
    assert host not in page
    assert Head(page).count == dict.fromkeys(EXPECTED, 1)


def test_strangers_see_the_tags_and_the_card_of_a_page_with_passwords_but_nothing_else():
    with running(toy(), auth=[("eve", "secret")]) as demo:
        page = HTTP.get(f"{demo.url}/").text
        assert Head(page).count == dict.fromkeys(EXPECTED, 1)
        assert '"components":[]' in page
        check_card(HTTP.get(f"{demo.url}/card.png").content,
                   app.pictured(demo.decoder.upscaler.face_task), 16)


def test_a_server_that_stops_draws_no_card():
    with running(toy()) as demo:
        demo.decoder.close()
        answer = HTTP.get(f"{demo.url}/card.png")
        assert answer.status_code == 503
        assert "stopping" in answer.json()["detail"]


def test_head_requests_and_other_paths_are_answered_as_before(demo):
    plain = {"accept-encoding": "identity"}
    answer, page = httpx.head(f"{demo.url}/", headers=plain, timeout=300), HTTP.get(f"{demo.url}/",
                                                                                    headers=plain)
    assert (answer.status_code, int(answer.headers["content-length"])) == (200, len(page.content))
    assert "og:" not in HTTP.get(f"{demo.url}/health").text


def test_scripts_that_name_tags_are_left_as_they_are():
    script = b'<script>const text = `<meta property="og:title" content="x">`;</script>'
    page = (b'<head><meta charset="utf-8" /><meta property="og:title" content="x" />' + script
            + b"</head>")
    assert tagged(page, "<title>ours</title>") == (
        b'<head><meta charset="utf-8" /><title>ours</title>' + script + b"</head>")


def test_a_card_has_up_to_four_other_faces_and_an_address(rng):
    source, faces = rng.integers(0, 256, (8, 8, 3), np.uint8), rng.integers(0, 256, (6, 64, 64, 3),
                                                                            np.uint8)
    alone = np.asarray(card(source, faces[0]))
    for count in range(1, MOST_OTHERS + 1):
        drawn = card(source, faces[0], list(faces[1:count + 1]), "https://example.org/" + 200 * "x")
        assert drawn.size == SIZE
        assert (np.asarray(drawn) != alone).any()
        edges = np.asarray(drawn)[:, [0, -1]]
        assert (edges == edges[0, 0]).all()  # nothing is cut off
    with pytest.raises(ValueError, match="at most 4 other faces, not 5"):
        card(source, faces[0], list(faces[1:]))
