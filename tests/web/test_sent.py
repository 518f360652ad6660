"""What the page sends: tags and a card for link previews, each once, compressed pages, small
pictures, and files that browsers keep."""

from __future__ import annotations

import base64
import io
import json
import re
from collections import Counter
from html.parser import HTMLParser

import httpx
import numpy as np
import pytest
from PIL import Image
from skimage import data

from superres.cli import app
from superres.pictures.mark import DRAWN
from superres.pictures.write import read_origin
from superres.web.card import MOST_OTHERS, SIZE, card, headline
from superres.web.content import ICON_SIZE, icon_of
from superres.web.crops import PHOTO_SIZE, crop_of
from superres.web.head import tagged
from superres.web.site import notice_of
from tests.web.helpers import FAST, HTTP, Blocked, running, toy, wait

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
    with running(toy(), example=True) as served:
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
    check_card(answer.content, app.pictured(demo.decoding.upscaler.face_task), 16)
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
                   app.pictured(demo.decoding.upscaler.face_task), 16)


def test_a_server_that_stops_draws_no_card():
    with running(toy()) as demo:
        demo.decoding.close()
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


def test_a_card_speaks_of_people_where_a_face_is_found():
    picture = data.astronaut()[:190, 140:330]
    astronaut = np.asarray(Image.fromarray(picture).resize((64, 64), Image.Resampling.BOX))
    source, sky = astronaut[::8, ::8], np.full_like(astronaut, (159, 198, 232))

    def title(face, *others):
        return np.asarray(card(source, face, others))[30:95]

    assert (title(astronaut) != title(astronaut, sky)).any()  # a person, and people
    assert (title(sky) != title(astronaut)).any()
    np.testing.assert_array_equal(title(sky), title(sky, astronaut))
    assert headline(64, 0) == "64 colours in, and what a model makes of them"
    assert headline(64, 1) == "64 colours in, a person who never existed"
    assert headline(64, 2) == "64 colours in, people who never existed"


# How little


MOST_BYTES = 130_000  # of the page as it is sent, without its scripts and photos


def config_of(page):
    return json.JSONDecoder().raw_decode(page.partition("window.gradio_config = ")[2])[0]


def picture(content):
    return Image.open(io.BytesIO(content))


def test_the_page_is_compressed_for_browsers_that_take_it(demo):
    with HTTP.stream("GET", demo.url, headers={"accept-encoding": "gzip"}) as answer:
        sent = b"".join(answer.iter_raw())
    assert answer.headers["content-encoding"] == "gzip"
    assert int(answer.headers["content-length"]) == len(sent) < MOST_BYTES
    plain = HTTP.get(demo.url, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert config_of(plain.text)["title"] == config_of(HTTP.get(demo.url).text)["title"]


def test_only_what_has_a_hash_in_its_address_is_kept_and_only_if_it_is_there(demo):
    script = re.search(r'src="\./(assets/[\w.-]+\.js)"', HTTP.get(demo.url).text)[1]
    answer = HTTP.get(f"{demo.url}/{script}")
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["x-content-type-options"] == "nosniff"
    missing = HTTP.get(f"{demo.url}/assets/Index-00000000.js")
    assert missing.status_code >= 400
    assert "cache-control" not in missing.headers
    assert "immutable" not in HTTP.get(demo.url).headers.get("cache-control", "")


def test_messages_of_a_decode_arrive_while_it_goes_on_though_the_browser_takes_gzip():
    blocked = Blocked(toy())
    with running(blocked) as demo:
        try:
            assert demo.join("one", **FAST).status_code == 200
            wait(lambda: demo.decoding.is_busy)
            with httpx.stream("GET", f"{demo.url}/gradio_api/queue/data",
                              params={"session_hash": "one"}, timeout=300,
                              headers={"accept-encoding": "gzip"}) as answer:
                lines = (json.loads(line[5:])["msg"] for line in answer.iter_lines()
                         if line.startswith("data:"))
                assert "content-encoding" not in answer.headers
                assert next(lines) in ("estimation", "process_starts")
                blocked.go.set()
                assert "process_completed" in lines
        finally:
            blocked.go.set()


def test_a_visitor_s_photo_is_in_the_answer_and_not_in_a_file_that_others_could_find(demo, tmp_path,
                                                                                     monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(demo.folder))
    Image.fromarray(data.astronaut()).resize((1600, 1600)).save(tmp_path / "photo.png")
    before = set(demo.folder.rglob("*"))
    element, *_ = crop_of(str(tmp_path / "photo.png"), demo.decoding.upscaler.face_task, 8)
    (content,) = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', element)
    assert picture(base64.b64decode(content)).size == (PHOTO_SIZE, PHOTO_SIZE)
    assert set(demo.folder.rglob("*")) == before


def test_icons_are_small_copies_and_inputs_are_their_own():
    for side, kind in ((ICON_SIZE, "PNG"), (ICON_SIZE + 1, "JPEG")):
        icon = picture(
            base64.b64decode(icon_of(np.zeros((side, side, 3), np.uint8)).partition(",")[2]))
        assert (icon.format, icon.size) == (kind, (ICON_SIZE, ICON_SIZE))


@pytest.mark.parametrize(("card", "notice"), [
    ("---\nlicense: other\nlicense_name: celeba-non-commercial-research\n---\n",
     "The weights (own): trained on CelebA, for non-commercial research only."),
    ("---\nlicense: cc-by-4.0\n---\n", "The weights (own): licence cc-by-4.0."),
    (None, "The weights (own): licence unknown; ask whoever trained them."),
])
def test_the_static_page_tells_the_licence_of_its_weights(tmp_path, card, notice):
    folder = tmp_path / "own"
    folder.mkdir()
    if card:
        (folder / "README.md").write_text(card)
    assert notice_of(folder) == notice
