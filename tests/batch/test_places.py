"""Places: what is read and written whole in a store that fails, and what is never asked."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from stores import faulty_store, web_server

from superres.batch.rows import latest_rows, merge
from superres.errors import ConfigError, InvalidInputError, OutputError, PlaceError
from superres.system import paths, places, stores
from superres.system.places import known_place, open_place, public
from superres.tasks.faces import FaceTask
from superres.tasks.photos import read_sources

pytest.importorskip("s3fs", reason="the cloud extra is not installed")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def store():
    with pytest.MonkeyPatch.context() as patch, faulty_store(patch) as bucket:
        yield bucket


@pytest.fixture(params=["store", "folder", "memory"])
def place(request, tmp_path, monkeypatch):
    """A folder of a failing S3 store, of this machine, and of another store of fsspec."""
    if request.param == "folder":
        return str(tmp_path / "there")
    if request.param == "memory":
        import fsspec

        monkeypatch.setitem(stores.PACKAGES, "memory", "fsspec")
        fsspec.filesystem("memory").store.clear()
        return "memory://there/below"
    return f"{request.getfixturevalue('store')}/{request.node.name}"


def test_what_is_written_is_read_listed_and_removed(place):
    content = {f"{number % 3}/{number:02d}.bin": os.urandom(1000 * number) for number in range(12)}
    for name, data in content.items():
        known_place(f"{place}/{name}").write(data)
    assert {name: known_place(f"{place}/{name}").read(20_000) for name in content} == content
    assert [found.name for found in known_place(place).files(recursive=True)] == sorted(content)
    inside = known_place(f"{place}/1")
    assert [found.name for found in inside.files("0")] == ["01.bin", "04.bin", "07.bin"]
    assert [found.name for found in known_place(place).files()] == []
    assert [found.name for found in known_place(f"{place}/nowhere").files()] == []
    inside.join("01.bin").remove()
    inside.join("01.bin").remove()
    assert [found.name for found in inside.files()] == ["04.bin", "07.bin", "10.bin"]


def test_a_file_moves_there_and_a_copy_is_read_here(place, tmp_path):
    content = os.urandom(11_000_000)  # more than a part of a multipart upload
    (tmp_path / "file").write_bytes(content)
    known_place(f"{place}/deep/file").take(str(tmp_path / "file"))
    assert not (tmp_path / "file").exists()
    with known_place(f"{place}/deep/file").fetched() as path, open(path, "rb") as file:
        assert file.read() == content
    assert os.path.exists(path) == known_place(place).renames


def test_what_is_missing_or_too_large_is_one_line(place):
    known_place(f"{place}/large").write(bytes(3_000_000))
    with pytest.raises(InvalidInputError, match=r"is over 2 MB|more than 2000000 bytes"):
        known_place(f"{place}/large").read(2_000_000)
    with pytest.raises(InvalidInputError, match=r"does not exist|No such file") as caught:
        known_place(f"{place}/nothing").read(10)
    assert "\n" not in str(caught.value)


def test_a_copy_that_would_fill_the_disc_is_given_up_while_it_arrives(store, monkeypatch):
    known_place(f"{store}/large").write(bytes(3_000_000))
    free = SimpleNamespace(free=paths.FREE_BYTES + 1_000_000)
    monkeypatch.setattr(places.shutil, "disk_usage", lambda folder: free)
    with (pytest.raises(InvalidInputError, match="over 1 MB"),
          known_place(f"{store}/large").fetched()):
        pass


def test_pages_of_a_listing_are_joined():
    class System:
        def call_s3(self, name, **request):
            number = int(request.get("ContinuationToken", 0))
            found = [{"Key": f"in/{number}{letter}.png"} for letter in "ab"]
            more = ({"IsTruncated": True, "NextContinuationToken": str(number + 1)} if number < 2
                    else {})
            return {"Contents": [{"Key": "in/"}, *found], **more}

    found = list(stores.s3_files(System(), "bucket/in", "s3://bucket/in", "", True, False))
    assert [one.name for one in found] == ["0a.png", "0b.png", "1a.png", "1b.png", "2a.png",
                                           "2b.png"]


@pytest.mark.parametrize(("url", "message"), [
    *((url, "has the scheme .*s3, gs, az, hf, http, https") for url in (
        "ftp://host/a.png", "file:///etc/passwd", "simplecache::s3://faces/a", "memory://a/b",
        "://a")),
    *((url, "would be recorded") for url in (
        "https://user:secret@host/a.png", "https://host/a.png?X-Amz-Signature=secret",
        "https://host/a#secret", "s3://key:secret@bucket/a")),
    ("s3:///a", "names no host or bucket"),
])
def test_other_schemes_secrets_and_no_host_are_refused_and_secrets_not_shown(url, message):
    with pytest.raises(ConfigError, match=message) as caught:
        open_place(url)
    assert "secret" not in str(caught.value) + public(url)


def test_a_store_that_does_not_answer_is_told_apart_from_a_missing_file(store, monkeypatch):
    monkeypatch.setattr(stores, "ATTEMPTS", 1)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    stores.system_of.cache_clear()
    try:
        with pytest.raises(PlaceError, match="cannot read s3://faces/a at present"):
            known_place("s3://faces/a").read(10)
    finally:
        stores.system_of.cache_clear()


def test_web_servers_are_read_and_not_written_or_listed():
    def answer(path):
        if path == "/cut":
            return 200, {"Content-Length": "100", "Connection": "close"}, b"short"
        return (200, {}, b"content") if path == "/a.png" else (404, {}, b"")

    with web_server(answer) as (address, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "ATTEMPTS", 2)
        patch.setattr(stores, "FIRST_WAIT", 0.01)
        assert known_place(f"{address}/a.png").read(100) == b"content"
        with pytest.raises(InvalidInputError, match="does not exist"):
            known_place(f"{address}/b.png").read(100)
        with pytest.raises(PlaceError, match="at present"):
            known_place(f"{address}/cut").read(100)
        with pytest.raises(OutputError, match="web servers are only read"):
            known_place(f"{address}/c.png").write(b"")
        with pytest.raises(InvalidInputError, match="web servers have no folders"):
            list(known_place(address).files())


def test_a_redirect_to_another_host_is_not_followed():
    with web_server(lambda path: (200, {}, b"private")) as (private, asked):
        def answer(path):
            target = {"/out": f"{private}/secret", "/port": f"{private}/secret",
                      "/same": "/a.png"}.get(path)
            return (302, {"Location": target}, b"") if target else (200, {}, b"content")

        with web_server(answer) as (address, _):
            assert known_place(f"{address}/same").read(100) == b"content"
            with pytest.raises(InvalidInputError, match="which was not named"):
                known_place(f"{address}/out").read(100)
    assert asked == []


def test_a_store_that_redirects_is_not_followed(monkeypatch):
    with web_server(lambda path: (200, {}, b"private")) as (private, asked):
        def answer(path):
            body = (b"<Error><Code>TemporaryRedirect</Code><Endpoint>"
                    + private.split("//")[1].encode()
                    + b"</Endpoint><Message>moved</Message></Error>")
            return 307, {"Location": f"{private}/faces/a", "Content-Type": "application/xml"}, body

        with web_server(answer) as (address, _):
            monkeypatch.setattr(stores, "ATTEMPTS", 2)
            monkeypatch.setattr(stores, "FIRST_WAIT", 0.01)
            for name, value in (("AWS_ENDPOINT_URL", address), ("AWS_ACCESS_KEY_ID", "k"),
                                ("AWS_DEFAULT_REGION", "r"), ("AWS_SECRET_ACCESS_KEY", "s")):
                monkeypatch.setenv(name, value)
            stores.system_of.cache_clear()
            try:
                with pytest.raises(InvalidInputError, match="which was not named"):
                    known_place("s3://faces/a").read(100)
            finally:
                stores.system_of.cache_clear()
    assert asked == []


def test_without_the_extra_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    stores.system_of.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'superres\[cloud\]'"):
        known_place("s3://faces/a").read(10)


def test_no_credential_is_printed(tmp_path):
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "AKIDENTITY",
                   "AWS_SECRET_ACCESS_KEY": "topsecret", "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
                   "AWS_MAX_ATTEMPTS": "1"}
    code = ("from superres.system import stores; stores.ATTEMPTS = 1\n"
            "from superres.cli.main import main; main()")
    done = subprocess.run([sys.executable, "-c", code, "manifest", "summary", "s3://faces/m.jsonl"],
                          env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "topsecret" not in done.stderr + done.stdout
    assert "AKIDENTITY" not in done.stderr + done.stdout


def test_a_picture_at_a_url_is_read_as_that_of_a_path(place, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    known_place(f"{place}/a.png").write((tmp_path / "a.png").read_bytes())
    sources = read_sources([f"{place}/a.png", tmp_path / "a.png"], FaceTask(8, 32))
    assert np.array_equal(sources.images, [pixels, pixels])
    with pytest.raises(InvalidInputError, match=r"none\.png"):
        read_sources(f"{place}/none.png", FaceTask(8, 32))


@pytest.mark.parametrize("read", [
    lambda url: read_sources(url, FaceTask(8, 32)), lambda url: list(latest_rows(url)),
    lambda url: merge([url], "out"),
])
def test_a_url_with_a_secret_is_refused_without_it_wherever_it_is_typed(read):
    with pytest.raises(ConfigError) as refused:
        read("s3://faces/a?signature=hidden")
    assert "hidden" not in str(refused.value)
