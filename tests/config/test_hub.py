"""Checkpoints of the hub: fetched, read from the cache without it, and one quick line where neither
is possible."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import threading

import pytest
from fakes import SMALL, random_model
from ports import own_port
from stores import web_server

from superres.checkpoint import (
    bundled_checkpoints,
    fetch_from_hub,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from tests.config.helpers import refusal

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/model"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoints") / "random"
    save_checkpoint(random_model(SMALL), path)
    return path


@pytest.fixture
def silent():
    """A server that accepts connections, says nothing, and records who asks for a model's file; its
    address and the record."""
    listening, asked, kept = socket.create_server(("127.0.0.1", 0)), [], []

    def listen():
        while True:
            kept.append(listening.accept()[0])
            line = kept[-1].makefile("rb").readline().decode().strip()
            if "/resolve/" in line:
                asked.append(line)

    threading.Thread(target=listen, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}", asked


@pytest.fixture
def served(folder):
    """Serve the files of one model as the hub does; another is not found."""
    def answer(path):
        file = folder / path.rsplit("/", 1)[1]
        if not (path.startswith(f"/{NAME}/resolve/") and file.is_file()):
            return 404, {"X-Repo-Commit": COMMIT, "X-Error-Code": "RepoNotFound"}, b""
        content = file.read_bytes()
        return (200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'},
                content)

    with web_server(answer) as found:
        yield found


@pytest.fixture
def at(monkeypatch, tmp_path):
    """Have the hub at an address, and its cache in a folder of its own."""
    def go(endpoint, **constants):
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        constants |= {"ENDPOINT": endpoint, "HUGGINGFACE_CO_URL_TEMPLATE": template,
                      "HF_HUB_CACHE": str(tmp_path / "cache")}
        for name, value in constants.items():
            monkeypatch.setattr("huggingface_hub.constants." + name, value)

    monkeypatch.chdir(tmp_path)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    return go


def nobody():
    """Return an address where nobody listens."""
    return f"http://127.0.0.1:{own_port()}"


@pytest.mark.parametrize("name", ["no-such-model", "/none/of/this", "./none", "a/b/c"])
def test_a_name_that_cannot_be_on_the_hub_is_refused_without_it(at, name):
    at(nobody())
    said = refusal(find_checkpoint, name)
    assert repr(name) in said
    assert "cannot be reached" not in said


def refused(name=NAME):
    """Return why the hub gives no checkpoint of a name."""
    said = refusal(find_checkpoint, name)
    assert repr(name) in said
    assert all(bundled in said for bundled in bundled_checkpoints())
    assert "give a local folder" in said
    return said


@pytest.mark.parametrize(("endpoint", "reason", "more"), [
    (nobody(), "cannot be reached: .*refused", {}),
    (nobody(), "offline mode", {"HF_HUB_OFFLINE": True}),
    ("http://no-such-host.invalid", "host.invalid cannot be reached", {}),
], ids=["refused", "offline", "no name"])
def test_a_hub_that_cannot_be_reached_is_one_line(endpoint, reason, more, at):
    at(endpoint, **more)
    assert re.search(reason, refused())


def test_a_model_that_the_hub_does_not_have_is_one_line(served, at):
    at(served[0])
    assert "has no such model" in refused("someone/else")
    assert [request.split()[0] for request in served[1] if "/resolve/" in request] == ["HEAD"]


def test_a_hub_that_never_answers_is_asked_once(silent, at):
    at(silent[0], HF_HUB_ETAG_TIMEOUT=0.3)
    assert f"{silent[0]} cannot be reached" in refused()
    assert silent[1] == [f"HEAD /{NAME}/resolve/main/config.json HTTP/1.1"]


def test_a_checkpoint_is_fetched_and_then_read_from_the_cache(served, silent, folder, at):
    at(served[0])
    fetched = find_checkpoint(NAME)
    for name in ("config.json", "model.safetensors"):
        assert (fetched / name).read_bytes() == (folder / name).read_bytes()
    for endpoint in (nobody(), silent[0], "http://no-such-host.invalid"):
        at(endpoint, HF_HUB_ETAG_TIMEOUT=0.3)
        assert find_checkpoint(NAME) == fetched
    load_checkpoint(fetched)


def test_a_checkpoint_of_which_a_part_is_cached_is_refused_without_the_hub(served, at):
    at(served[0])
    fetched = fetch_from_hub(NAME)
    (fetched / "model.safetensors").unlink()
    at(nobody())
    assert "cannot be reached" in refused()
    shutil.rmtree(fetched)
    assert "cannot be reached" in refused()
