"""How little the web demo sends: compressed pages, small pictures, files that browsers keep, and
streams at once."""

from __future__ import annotations

import base64
import io
import json
import re

import httpx
import numpy as np
import pytest
from PIL import Image
from skimage import data
from web_demo import FAST, HTTP, Blocked, running, toy, wait

from superres.web.content import ICON_SIZE, icon_of
from superres.web.crops import PHOTO_SIZE, crop_of
from superres.web.site import notice_of

MOST_BYTES = 130_000  # of the page as it is sent, without its scripts and photos


@pytest.fixture(scope="module")
def demo():
    with running(toy(), example=True) as served:
        yield served


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
