"""The web demo as programs meet it: its endpoints, what it refuses, its queue, and how it stops."""

from __future__ import annotations

import io
import json
import re
import socket
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from gradio_client import Client, handle_file
from PIL import Image

from superres.config import DecodeConfig
from superres.pictures.mark import DRAWN
from superres.pictures.untrusted import READER
from superres.system.serving import MOST_CONNECTIONS
from superres.tasks.crops import parse_crop
from superres.tasks.faces import FaceTask, area_reduce, image_key
from superres.web import crops
from superres.web.files import files_below, sweep
from tests.pictures.helpers import many_scans
from tests.web.helpers import (
    FACES,
    FAST,
    HTTP,
    ROOT,
    Blocked,
    encoded,
    events,
    huge_png,
    running,
    toy,
    wait,
)

TASK = FaceTask(8, 16)
SLOW = {"block_size": 1}


@pytest.fixture(scope="module")
def upscaler():
    return toy()


@pytest.fixture(scope="module")
def demo(upscaler):
    with running(upscaler, frame_seconds=0) as served:
        yield served


@pytest.fixture(scope="module")
def client(demo):
    return Client(demo.url, verbose=False)


# The endpoints


def test_upscale_gives_what_the_upscaler_gives(client, upscaler, rng, tmp_path):
    photo = rng.integers(0, 256, (100, 80, 3), np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    files, report = client.predict(
        handle_file(tmp_path / "photo.png"), crop="4,50,40", temperature=0.8, samples=2, seed=3,
        **FAST, api_name="/upscale")
    source = area_reduce(photo[50:90, 4:44], 8, 8)
    options = DecodeConfig(block_size=8, accept="distance", epsilon=255, temperature=0.8, seed=3)
    keys = [image_key(source, 1), image_key(source, 2)]
    expected = upscaler.decode(np.stack([source] * 2), options, keys=keys).images
    for file, image in zip(files, expected, strict=True):
        picture = Image.open(file)
        assert picture.format == "PNG"
        np.testing.assert_array_equal(np.asarray(picture), image)
        assert json.loads(picture.text["superres"])["config"]["seed"] == 3
        assert DRAWN in picture.text["XML:com.adobe.xmp"]
    assert report["complete"]
    assert report["crops"] == ["4,50,40"]
    turned = "-4,50,40,20"
    _, other = client.predict(handle_file(tmp_path / "photo.png"), crop=turned, **FAST,
                              api_name="/upscale")
    assert other["crops"] == [turned]
    assert other["samples"][0]["key"] == image_key(area_reduce(parse_crop(turned).take(photo), 8,
                                                               8), 1)
    assert [entry["key"] for entry in report["samples"]] == keys
    assert all(entry["psnr"] > 0 and -1 <= entry["ssim"] <= 1 for entry in report["samples"])


@pytest.mark.parametrize("given", [
    {"finish": "mean"}, {"finish": "sharp"},
    {"keep": "likeliest", "samples": 3, "temperature": 0.8}], ids=str)
def test_the_endpoints_finish_what_they_draw_or_keep_the_likeliest(given, client, upscaler,
                                                                   tmp_path):
    source = np.random.default_rng(5).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(source).save(tmp_path / "input.png")
    handle = handle_file(tmp_path / "input.png")
    call = {name: value for name, value in given.items() if name != "temperature"}
    expected = upscaler(source[None], DecodeConfig(8, temperature=given.get("temperature", 0.0),
                                                   **FAST), **call)
    (file,), report = client.predict(handle, **given, **FAST, api_name="/upscale")
    (entry,), files = report["samples"], [Image.open(file)]
    if "keep" in given:
        assert Path(file).name == f"face-{expected.samples[0]}.png"
        assert entry["sample"] == expected.samples[0]
        assert entry["bits_per_dim"] == pytest.approx(float(expected.bits_per_dim[0]))
    else:
        archive, batch = client.predict([handle], **given, **FAST, api_name="/upscale_batch")
        (row,), tokens = batch["rows"], sum(trace.tokens for trace in expected.all_traces(0))
        assert (row["options"]["finish"], row["tokens"]) == (given["finish"], tokens)
        assert entry["tokens"] == tokens
        with zipfile.ZipFile(archive) as packed, packed.open("input.png") as member:
            files.append(Image.open(io.BytesIO(member.read())))
        assert {json.loads(one.text["superres"])["finish"] for one in files} == {given["finish"]}
    for one in files:
        np.testing.assert_array_equal(np.asarray(one), expected.images[0])


def test_the_documented_example_runs_and_streams_frames(demo, tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/web-demo.md").read_text(), re.S)
    example = next(block for block in blocks if "gradio_client" in block)
    assert "http://127.0.0.1:7860" in example
    face = FACES[0].read_bytes()
    (tmp_path / "face.png").write_bytes(face)
    with zipfile.ZipFile(tmp_path / "more.zip", "w") as archive:
        archive.writestr("other.png", face)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(example.replace("http://127.0.0.1:7860", demo.url), names)  # noqa: S102 -- our own page
    assert [row["input"] for row in names["batch"]["rows"]] == ["face.png", "more.zip/other.png"]
    frames = [line.split() for line in capsys.readouterr().out.splitlines()
              if line.startswith(("True ", "False "))]
    tokens = [int(frame[1]) for frame in frames]
    assert tokens == sorted(tokens)
    assert len(set(tokens)) > 2
    assert frames[-1][:2] == ["True", "768"]


@pytest.mark.parametrize(("arguments", "message"), [
    ({"block_size": 99}, "more than the 8 prediction heads; use 8 or less"),
    ({"accept": "nothing"}, "accept must be one of exact, "),
    ({"samples": 2}, "add temperature 0.9"),
    ({"keep": "likeliest"}, "keep likeliest has no effect on one sample"),
    ({"keep": "best", "samples": 2, "temperature": 0.9}, "keep must be one of likeliest, not"),
    ({"finish": "mean", "temperature": 0.9}, "finish mean draws at temperatures of its own"),
    ({"finish": "mean", "keep": "likeliest", "samples": 2}, "give only one of both"),
    ({"finish": ["x"]}, "finish must be one of none, mean, sharp, not"),
    ({"crop": "left"}, "crop must be face, centre, X,Y,SIZE"),
    ({"crop": "0,0,999"}, "crop 0,0,999 has its centre at (499.5, 499.5) and a side of 999"),
    ({"image": None}, "there is no image yet; upload one"),
    ({"accept": "<b>"}, "&lt;b&gt;"),
])
def test_bad_arguments_come_back_as_one_clear_message(demo, arguments, message):
    image = demo.upload("face.png", FACES[0].read_bytes())
    outputs, error = demo.call("upscale", **{"image": image, **arguments})
    assert outputs == []
    assert message in error
    assert "\n" not in error


SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


@pytest.mark.parametrize(("name", "content", "message"), [
    ("face.png", SVG, "is not an image that can be read"),
    ("<img src=x onerror=alert(1)>.png", b"nothing", "is not an image"),
    ("huge.png", huge_png(100_000), "10,000,000,000 pixels"),
    ("dot.png", encoded(Image.new("RGB", (1, 1)), "PNG"), "is too small"),
    ("../../../../tmp/superres-traversal.png", FACES[0].read_bytes(), ""),
], ids=["SVG", "HTML", "huge", "dot", "path"])
def test_a_hostile_upload_ends_in_a_clear_message_or_a_right_result(demo, name, content, message):
    outputs, error = demo.call("upscale", image=demo.upload(name, content), **FAST)
    assert message in error
    assert bool(outputs) == (not error)
    # a reason and a remedy, no path of the server, and no markup
    assert not error or (";" in error and "superres-web-" not in error and "<" not in error)


# What nobody may have or do


@pytest.mark.parametrize("path",
                         ["/gradio_api/runs", "/monitoring", "/gradio_api/deep_link?session_hash=x",
                          "/gradio_api/proxy=https://a.hf.space/", "/gradio_api/component_server"])
def test_what_the_page_does_not_use_is_closed(demo, path):
    assert HTTP.get(demo.url + path).status_code == 404
    assert HTTP.post(demo.url + path, json={}).status_code == 404


def test_a_decoding_cannot_get_around_the_queue(demo):
    for name in ("upscale", "upscale_batch"):
        answer = HTTP.post(f"{demo.url}/gradio_api/run/{name}", json={"data": []})
        assert answer.status_code in (404, 500)
        assert "data" not in answer.json()


def test_a_file_over_the_limit_is_refused_and_leaves_nothing(demo):
    before = files_below(demo.folder).keys()
    answer = HTTP.post(f"{demo.url}/gradio_api/upload",
                       files={"files": ("a.png", bytes(11_000_000))})
    assert answer.status_code == 413
    assert files_below(demo.folder).keys() == before


@pytest.mark.parametrize("header", ["Content-Length: 200000001", "Transfer-Encoding: chunked"])
def test_a_request_over_the_limit_or_of_unknown_size_is_refused(demo, header):
    address = ("127.0.0.1", int(demo.url.rpartition(":")[2]))
    with socket.create_connection(address, timeout=300) as connection:
        connection.sendall("POST /gradio_api/upload HTTP/1.1\r\nHost: "
                           f"demo\r\n{header}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_answers_forbid_other_hosts_and_keeping_what_belongs_to_a_visitor(demo):
    page = HTTP.get(demo.url)
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    assert HTTP.get(f"{demo.url}/gradio_api/info").headers["cache-control"] == "no-store"


def test_all_files_of_visitors_are_in_the_folder_that_is_swept(demo):
    image, started = demo.upload("face.png", FACES[0].read_bytes()), files_below(demo.folder)
    assert demo.call("upscale", image=image, **FAST)[1] == ""
    made = files_below(demo.folder).keys() - started.keys()
    assert {path.name for path in made} == {"face-1.png"}
    sweep(demo.folder, started.keys() - {Path(image["path"])}, age=-1)
    assert files_below(demo.folder).keys() == started.keys() - {Path(image["path"])}
    assert "deleted; upload it again" in demo.call("upscale", image=image)[1]


def test_a_page_with_passwords_is_closed_to_strangers(upscaler):
    with running(upscaler, auth=[("eve", "secret"), ("bob", "other")], example=True) as demo:
        closed = [("GET", "config"), ("GET", "gradio_api/info"), ("GET", "gradio_api/openapi.json"),
                  ("POST", "gradio_api/upload"), ("GET", "gradio_api/file=/etc/passwd"),
                  ("POST", "gradio_api/queue/join"),
                  ("GET", "gradio_api/queue/data?session_hash=x"),
                  ("POST", "gradio_api/call/upscale"), ("POST", "gradio_api/call/v2/upscale"),
                  ("GET", "gradio_api/call/upscale/x"), ("POST", "gradio_api/run/offer_crop"),
                  ("POST", "gradio_api/api/offer_crop")]
        statuses = [HTTP.request(method, f"{demo.url}/{path}").status_code for method,
                    path in closed]
        assert statuses == [401] * len(closed)
        assert '"auth_required":true' in HTTP.get(demo.url).text
        assert 'id="first"' not in HTTP.get(demo.url).text
        assert demo.health()["status"] == "ok"
        with httpx.Client(base_url=demo.url, timeout=300) as user:
            for name, password in (("eve", "wrong"), ("eve", "other"), ("eva", ""), ("", "")):
                assert user.post("/login",
                                 data={"username": name, "password": password}).status_code >= 400
                assert user.get("/config").status_code == 401
            assert (user.post("/login", data={"username": "eve", "password": "secret"}).json()
                    == {"success": True})
            assert 'id="first"' in user.get("/").text
            path = user.post("/gradio_api/upload",
                             files={"files": ("a.png", FACES[0].read_bytes())}).json()[0]
            assert user.get(f"/gradio_api/file={path}").content == FACES[0].read_bytes()
            user.get("/logout")
            assert user.get("/config").status_code == 401
        assert Client(demo.url, auth=("bob", "other"), verbose=False).endpoints


def test_a_server_with_too_many_connections_says_so(demo):
    with ExitStack() as stack:
        for _ in range(MOST_CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1",
                                                          int(demo.url.rpartition(":")[2]))))
        wait(lambda: httpx.get(f"{demo.url}/health", timeout=300).status_code == 503)
    wait(lambda: httpx.get(f"{demo.url}/health", timeout=300).status_code == 200)


# The queue


def test_a_full_queue_says_busy_and_the_page_still_answers(upscaler):
    blocked = Blocked(upscaler)
    with running(blocked, max_queue=2) as demo:
        try:
            assert demo.join("first", **FAST).status_code == 200
            wait(lambda: demo.decoding.is_busy)
            answers = [demo.join(f"other{number}", **FAST) for number in range(4)]
            assert [answer.status_code for answer in answers] == [200, 200, 503, 503]
            assert "full" in answers[-1].json()["detail"]
            assert demo.health() == {**demo.health(), "status": "ok", "busy": True, "waiting": 2,
                                     "max_queue": 2}
            assert HTTP.get(demo.url).status_code == 200
            assert blocked.streams == 1
        finally:
            blocked.go.set()
        wait(lambda: blocked.streams == 3 and not demo.decoding.is_busy)


def test_a_visitor_is_answered_while_another_s_picture_is_read(demo, upscaler, tmp_path,
                                                               monkeypatch):
    monkeypatch.setattr(crops, "MOST_SECONDS", 600)
    face = FACES[0].read_bytes()
    with zipfile.ZipFile(tmp_path / "heavy.zip", "w") as archive:
        archive.writestr("heavy.jpg", many_scans(3400, 100_000))  # ten minutes
        archive.writestr("face.png", face)
    heavy = demo.upload("heavy.zip", (tmp_path / "heavy.zip").read_bytes())
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(demo.call, "upscale_batch", files=[heavy], **FAST)
        wait(lambda: READER._busy)
        image = demo.upload("face.png", face)
        assert demo.call("upscale", image=image, **FAST)[0][1]["complete"]
        config = HTTP.get(f"{demo.url}/config").json()
        index = next(one["id"] for one in config["dependencies"] if one["api_name"] == "offer_crop")
        body = {"data": [image, 8], "fn_index": index, "session_hash": "another"}
        assert "the model&#x27;s input" in HTTP.post(f"{demo.url}/gradio_api/run/predict",
                                                     json=body).text
        assert not other.done()
        READER.close()
        outputs, error = other.result(300)
    assert error == ""
    assert [row["status"] for row in outputs[1]["rows"]] == ["failed", "ok"]
    assert "heavy.jpg cannot be decoded: its process ended" in outputs[1]["rows"][0]["error"]


def test_the_time_limit_of_a_request_includes_reading(upscaler):
    with running(upscaler, time_limit=1.0) as demo:
        image = demo.upload("heavy.jpg", many_scans(3400, 100_000))
        told = demo.call("upscale", image=image, **FAST)[1]
        assert "takes over 1 seconds of processor time; reduce it" in told


def test_a_visitor_who_leaves_frees_the_decoder(demo, caplog):
    caplog.set_level("INFO", "superres.web")
    demo.join("gone", **SLOW, temperature=0.9, samples=16)
    for message in events(demo.url, "gone"):
        if message["msg"] == "process_generating":
            break  # and the connection closes
    wait(lambda: caplog.records)
    assert [record.message.split()[:2] for record in caplog.records] == [["upscale:", "stopped"]]
