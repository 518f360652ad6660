"""Which files a visitor of the web demo can name: uploads and the page's examples, in whatever form
of request."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import httpx
import pytest

from superres.web.files import NOT_UPLOADED
from tests.web.helpers import FACES, FAST, FILE, HTTP, events, running, toy


@pytest.fixture(scope="module")
def demo():
    with running(toy()) as served:
        yield served


@pytest.fixture(scope="module")
def page(demo):
    return HTTP.get(f"{demo.url}/config").json()


@pytest.fixture
def secret(tmp_path):
    """A picture of the server that is no upload, last used long ago."""
    path = tmp_path / "secret.png"
    path.write_bytes(FACES[0].read_bytes())
    os.utime(path, (5, 5))
    yield path
    assert (path.stat().st_atime, path.stat().st_mtime) == (5, 5)


def handlers(page):
    """Return each handler that takes a file: its description, and the place of the file among its
    inputs."""
    kinds = {component["id"]: component["type"] for component in page["components"]}
    found = [(handler, place) for handler in page["dependencies"] for place,
             block in enumerate(handler["inputs"])
             if kinds[block] in ("image", "file")]
    assert {handler["api_name"] for handler, _ in found} >= {"upscale", "upscale_batch",
                                                             "offer_crop", "show_crop"}
    return found


def inputs_of(page, handler, place, file):
    """Return inputs of a handler: what the page shows at first, but settings that need few calls,
    and `file`."""
    fast = {"Acceptance": FAST["accept"], "Epsilon, grey levels": FAST["epsilon"]}
    values = {component["id"]: fast.get(component["props"].get("label"),
                                        component["props"].get("value"))
              for component in page["components"]}
    counts = {component["id"]: component["props"].get("file_count")
              for component in page["components"]}
    data = [values[block] for block in handler["inputs"]]
    data[place] = [file] if counts[handler["inputs"][place]] == "multiple" else file
    return data


def answers(demo, page, handler, place, file):
    """Send a file in every form of request there is, and yield each form with what came back, as
    text."""
    data = inputs_of(page, handler, place, file)
    body = {"data": data, "fn_index": handler["id"], "session_hash": f"session{handler['id']}"}
    api = f"{demo.url}/gradio_api"
    HTTP.post(f"{api}/queue/join", json=body).raise_for_status()
    yield "queue", str(next(message for message in events(demo.url, body["session_hash"])
                            if message["msg"] == "process_completed")["output"])
    if not handler["queue"]:
        for form in ("run/predict", "api/predict", "run/x/", "api/x/"):
            yield form, HTTP.post(f"{api}/{form}", json=body).text
    if handler["api_visibility"] == "public":
        name = handler["api_name"]
        parameters = HTTP.get(f"{api}/info").json()["named_endpoints"][f"/{name}"]["parameters"]
        named = {parameter["parameter_name"]: value for parameter,
                 value in zip(parameters, data, strict=True)}
        for form, call in ((f"call/{name}", {"data": data}), (f"call/v2/{name}", named)):
            event = HTTP.post(f"{api}/{form}", json=call).json()["event_id"]
            yield form, HTTP.get(f"{api}/call/{name}/{event}").text


@pytest.mark.parametrize("shape", [
    lambda path: {"path": path}, lambda path: {"path": path, "meta": None}, lambda path: path,
    lambda path: {"path": path, "meta": FILE}, lambda path: {"path": path, "meta": {"_type": "x"}},
], ids=["bare", "empty meta", "text", "meta", "other meta"])
def test_no_form_of_request_reads_a_picture_of_the_server(demo, page, secret, shape):
    for handler, place in handlers(page):
        for form, answer in answers(demo, page, handler, place, shape(str(secret))):
            assert "base64" not in answer, (handler["api_name"], form)
            assert "error" in answer or NOT_UPLOADED in answer, (handler["api_name"], form)
            assert str(secret) not in answer


def test_uploads_and_examples_are_read_in_every_form(demo, page):
    example = next(component["props"]["value"] for component in page["components"]
                   if component["props"].get("elem_id") == "photo")
    for file in (demo.upload("face.png", FACES[0].read_bytes()),
                 {"path": example["path"], "meta": FILE}):
        for handler, place in handlers(page):
            for form, answer in answers(demo, page, handler, place, file):
                assert "error" not in answer.replace(
                    "'error': None", ""
                ).replace('"error": null', ""), (handler, form)


def test_every_refusal_is_the_same_message(demo, secret, tmp_path):
    own = demo.upload("face.png", FACES[0].read_bytes())["path"]
    for path in (secret, tmp_path / "missing.png", tmp_path, "/dev/zero", "/etc/passwd", "face.png",
                 "/", ".", f"{own}/../../../../../../../..{secret}",
                 f"{Path(own).parent}/missing.png", f"{Path(own).parent}/{'x' * 300}.png",
                 "file:///etc/passwd"):
        outputs, error = demo.call("upscale", image={"path": str(path), "meta": FILE})
        assert (outputs, error) == ([], f"the file {NOT_UPLOADED}"), path


@pytest.mark.parametrize("url", ["https://example.com/face.png", "http://127.0.0.1:1/face.png"])
def test_the_server_fetches_nothing_from_other_hosts(demo, url):
    outputs, error = demo.call("upscale", image={"path": url, "meta": FILE})
    assert (outputs, error) == ([], "give a file, not a URL")
    assert HTTP.get(f"{demo.url}/gradio_api/file={url}").status_code == 404


def test_files_are_served_only_to_those_who_know_paths_that_cannot_be_guessed(demo, secret):
    face = FACES[0].read_bytes()
    upload = demo.upload("face.png", face)
    results = [demo.call("upscale", image=upload, **FAST)[0][0][0]["path"]
               for _ in range(2)]
    assert hashlib.sha256(face).hexdigest() not in upload["path"]
    assert results[0] != results[1]
    for path in (upload["path"], *results):
        assert Path(path).is_relative_to(demo.folder)
        assert HTTP.get(f"{demo.url}/gradio_api/file={path}").headers["content-type"] == "image/png"
        assert HTTP.get(f"{demo.url}/gradio_api/file={Path(path).parent}").status_code == 403
    for path in (secret, "/etc/passwd", demo.folder):
        assert HTTP.get(f"{demo.url}/gradio_api/file={path}").status_code == 403


def test_an_upload_keeps_its_name_and_no_folder(demo):
    files = [("files", (name, b"x")) for name in ("a.png", "../../b.png", "x" * 300 + ".png")]
    response = httpx.post(f"{demo.url}/gradio_api/upload", files=files, timeout=300)
    paths = [Path(path) for path in response.json()]
    assert [path.name for path in paths[:2]] == ["a.png", "b.png"]
    assert all(path.is_file() and path.is_relative_to(demo.folder) for path in paths)
