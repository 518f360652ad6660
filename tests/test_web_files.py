"""Whose files a visitor of the web demo can name: own uploads and the page's examples, in whatever form of request."""

from __future__ import annotations

import io
import os
import socket
import stat
import zipfile
from pathlib import Path

import httpx
import pytest
from web_demo import FACES, FAST, HTTP, events, running, stress_demo

from superres.web.files import NOT_UPLOADED

FILE_DATA = {"_type": "gradio.FileData"}
REFUSAL = f"the file {NOT_UPLOADED}"


@pytest.fixture(scope="module")
def demo(upscaler):
    with running(upscaler) as served:
        yield served


@pytest.fixture(scope="module")
def page(demo):
    return HTTP.get(f"{demo.url}/config").json()


@pytest.fixture
def secret(tmp_path):
    """A picture of the server outside of every visitor's folder, last used long ago."""
    path = tmp_path / "secret.png"
    path.write_bytes(FACES[0].read_bytes())
    os.utime(path, (5, 5))
    yield path
    status = path.stat()
    assert (status.st_atime, status.st_mtime) == (5, 5)


def visitor(demo):
    """Return the client of a new visitor, who has opened the page."""
    client = httpx.Client(base_url=demo.url, timeout=300)
    client.get("/config")
    return client


def upload(client, name="face.png", content=FACES[0].read_bytes()):  # noqa: B008
    return client.post("/gradio_api/upload", files={"files": (name, content)}).json()[0]


def handlers(page):
    """Return each handler that takes a file: its description, and the place of the file among its inputs."""
    kinds = {component["id"]: component["type"] for component in page["components"]}
    found = [(handler, place) for handler in page["dependencies"] for place, block in enumerate(handler["inputs"])
             if kinds[block] in ("image", "file")]
    assert {handler["api_name"] for handler, _ in found} >= {"upscale", "upscale_batch", "offer_crop", "show_crop"}
    return found


def inputs_of(page, handler, place, file):
    """Return inputs of a handler: what the page shows at first, but settings that need few calls, and `file`."""
    fast = {"Acceptance": FAST["accept"], "Epsilon, grey levels": FAST["epsilon"]}
    values = {component["id"]: fast.get(component["props"].get("label"), component["props"].get("value"))
              for component in page["components"]}
    data = [values[block] for block in handler["inputs"]]
    kinds = {component["id"]: component["type"] for component in page["components"]}
    data[place] = [file] if kinds[handler["inputs"][place]] == "file" else file
    return data


def answers(client, page, handler, place, file):
    """Send a file in every form of request there is, and yield each form with what came back, as text."""
    data = inputs_of(page, handler, place, file)
    body = {"data": data, "fn_index": handler["id"], "session_hash": f"session{handler['id']}"}
    client.post("/gradio_api/queue/join", json=body).raise_for_status()
    cookies = dict(client.cookies)
    done = next(message for message in events(str(client.base_url).rstrip("/"), body["session_hash"], cookies)
                if message["msg"] == "process_completed")
    yield "queue", str(done["output"])
    if not handler["queue"]:
        for form in ("run/predict", "api/predict", "run/x/", "api/x/"):
            yield form, client.post(f"/gradio_api/{form}", json=body).text
    if handler["api_visibility"] == "public":
        event = client.post(f"/gradio_api/call/{handler['api_name']}", json={"data": data}).json()["event_id"]
        yield "call", client.get(f"/gradio_api/call/{handler['api_name']}/{event}").text
        info = client.get("/gradio_api/info").json()["named_endpoints"][f"/{handler['api_name']}"]["parameters"]
        named = {parameter["parameter_name"]: value for parameter, value in zip(info, data, strict=True)}
        event = client.post(f"/gradio_api/call/v2/{handler['api_name']}", json=named).json()["event_id"]
        yield "call/v2", client.get(f"/gradio_api/call/v2/{handler['api_name']}/{event}").text


@pytest.mark.parametrize("shape", [
    lambda path: {"path": path}, lambda path: {"path": path, "meta": None}, lambda path: path,
    lambda path: {"path": path, "meta": FILE_DATA}, lambda path: {"path": path, "meta": {"_type": "x"}},
], ids=["bare", "empty meta", "text", "meta", "other meta"])
def test_no_form_of_request_reads_a_picture_of_the_server(demo, page, secret, shape):
    client = visitor(demo)
    for handler, place in handlers(page):
        for form, answer in answers(client, page, handler, place, shape(str(secret))):
            assert REFUSAL in answer, (handler["api_name"], form)
            assert "base64" not in answer
            assert str(secret) not in answer


def test_every_refusal_is_the_same_message(demo, page, secret, tmp_path):
    client = visitor(demo)
    own = Path(upload(client))
    (own.parent / "link.png").symlink_to(secret)
    (own.parent / "loop.png").symlink_to(own.parent / "loop.png")
    (own.parent / "away").symlink_to(tmp_path, target_is_directory=True)
    unreadable = tmp_path / "unreadable.png"
    unreadable.write_bytes(b"x")
    unreadable.chmod(0)
    up = "/".join([".."] * 20)
    named = [secret, tmp_path / "missing.png", tmp_path, unreadable, "/dev/zero", "/etc/passwd", "face.png", "", "/",
             ".", own.parent / "link.png", own.parent / "loop.png", own.parent / "away" / "secret.png",
             f"{own.parent}/{up}{secret}", f"{own}/../../../../secret.png", own.parents[1], own.parents[2],
             f"{own}\0", f"{own.parent}/{'x' * 300}.png", "https://example.com/face.png", "file:///etc/passwd",
             own.parent / "missing.png", own.parent, None, 5, ["x"], {"path": str(secret)}]
    offer_crop = next((handler, place) for handler, place in handlers(page) if handler["api_name"] == "offer_crop")
    for path in named:
        file = {"path": path if not isinstance(path, Path) else str(path), "meta": FILE_DATA}
        arguments = {"image": file, **FAST}
        event = client.post("/gradio_api/call/v2/upscale", json=arguments).json()["event_id"]
        answer = client.get(f"/gradio_api/call/upscale/{event}").text
        assert f'"error": "{REFUSAL}"' in answer, path
        assert all(REFUSAL in answer for _, answer in answers(client, page, *offer_crop, file)), path


def test_own_uploads_and_examples_are_read_in_every_form(demo, page):
    client = visitor(demo)
    example = next(component["props"]["value"]["path"] for component in page["components"]
                   if component["type"] == "image" and component["props"].get("value"))
    for path in (upload(client), example):
        for handler, place in handlers(page):
            for form, answer in answers(client, page, handler, place, {"path": path, "meta": FILE_DATA}):
                assert "error" not in answer.replace("'error': None", "").replace('"error": null', ""), (handler, form)


def test_no_visitor_reaches_the_files_of_another(demo, page, tmp_path):
    owner, other, stranger = visitor(demo), visitor(demo), httpx.Client(base_url=demo.url, timeout=300)
    path = upload(owner)
    event = owner.post("/gradio_api/call/v2/upscale", json={"image": {"path": path}, **FAST}).json()["event_id"]
    result = stress_demo().outcome(owner.get(f"/gradio_api/call/upscale/{event}").iter_lines())[0][0][0]["path"]
    for file in (path, result):
        assert owner.get(f"/gradio_api/file={file}").headers["content-type"] == "image/png"
        for thief in (other, stranger):
            assert thief.get(f"/gradio_api/file={file}").status_code == 403
            assert thief.head(f"/gradio_api/file={file}").status_code == 403
    for thief in (other, stranger):
        for handler, place in handlers(page):
            for form, answer in answers(thief, page, handler, place, {"path": path}):
                assert REFUSAL in answer, (handler["api_name"], form)
    same = upload(other)  # equal content does not lead to the other visitor's file
    assert same != path
    assert owner.get(f"/gradio_api/file={same}").status_code == 403


def test_members_of_a_zip_file_lead_nowhere(demo, secret, tmp_path):
    client = visitor(demo)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        link = zipfile.ZipInfo("link.png")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(secret))
        folder = zipfile.ZipInfo("folder.png")
        folder.create_system, folder.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(folder, str(tmp_path))
        for name in (str(secret), f"../../../../../..{secret}", f"folder.png/{secret.name}", "..", "/"):
            archive.writestr(name, b"overwritten")
    files = [{"path": upload(client, "faces.zip", buffer.getvalue())}]
    event = client.post("/gradio_api/call/v2/upscale_batch", json={"files": files, **FAST}).json()["event_id"]
    report = stress_demo().outcome(client.get(f"/gradio_api/call/upscale_batch/{event}").iter_lines())[0][1]
    assert {row["status"] for row in report["rows"]} == {"failed"}
    assert all("is not an image" in row["error"] for row in report["rows"])
    assert secret.read_bytes() == FACES[0].read_bytes()
    os.utime(secret, (5, 5))  # after the look of the line above


def files_below(folder):
    """Return the files in `folder`, whatever is deleted meanwhile."""
    return {Path(parent, name) for parent, _, names in os.walk(folder) for name in names}


def test_uploads_keep_their_names_and_an_upload_that_ends_early_leaves_nothing(demo):
    client = visitor(demo)
    files = [("files", (name, b"x")) for name in ("a.png", "a.png", "../../b.png", "..", ".", "x" * 300 + ".png")]
    paths = [Path(path) for path in client.post("/gradio_api/upload", files=files).json()]
    assert [path.name for path in paths[:3]] == ["a.png", "a.png", "b.png"]
    assert len({path.parent for path in paths}) == 6
    assert all(path.is_file() and demo.workspace.folder in path.parents for path in paths)
    before = files_below(demo.workspace.folder)
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    address = httpx.URL(demo.url)
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(b"POST /gradio_api/upload HTTP/1.1\r\nHost: demo\r\nContent-Length: 1000000\r\n"
                           b"Content-Type: multipart/form-data; boundary=b\r\n\r\n" + head + bytes(100_000))
        demo.wait(lambda: files_below(demo.workspace.folder) - before)
    demo.wait(lambda: not files_below(demo.workspace.folder) - before)
