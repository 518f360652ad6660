"""The compiled code is kept in the user's cache, and only loaded from a file that is whole."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest
import torch
from fakes import NATIVE, VARIANTS, random_model, random_tokens, small_source

from superres.nn.engines.native import build
from superres.nn.engines.native.build import NativeUnavailable
from superres.nn.engines.native.session import NativeModel

FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cpp") / "native.cpp"
    path.write_text(small_source())
    return path


def loading(source: Path, cache: Path, flags: str = "-O0", privileged: bool = True) -> Callable[[], str]:
    """Start to load the code in a process of its own, which a broken file may end.

    The returned function waits for the end, and returns why the code is not available, or "".
    """
    receiver, sender = FORK.Pipe(duplex=False)

    def child() -> None:
        os.environ.update(SUPERRES_NATIVE_FLAGS=flags, XDG_CACHE_HOME=str(cache))
        if not privileged:
            drop_capabilities()
        build.chosen.cache_clear()
        try:
            assert build.library(source).superres_propose_room(None, 0) == 0
            sender.send("")
        except NativeUnavailable as error:
            sender.send(str(error))

    process = FORK.Process(target=child)
    process.start()

    def result() -> str:
        process.join()
        assert process.exitcode == 0
        return receiver.recv()

    return result


def scores() -> str:
    """Return a digest of the scores of steps by the chosen variant of the compiled code."""
    found = sha256()
    for kind, precision in product(("sequential heads", "text"), ("float32", "int8")):
        config = replace(VARIANTS[kind], **NATIVE)
        source, target = random_tokens(config, 2)
        model = NativeModel(random_model(config, dtype=torch.float32), precision=precision, threads=1)
        output = model.session(source, 5).step(target[:, :5], torch.zeros(2, dtype=torch.int64))
        for part in (output.scores, output.state[0]):
            found.update(part.numpy().tobytes())
    return found.hexdigest()


def test_every_variant_that_runs_here_gives_the_same_bits(monkeypatch):
    """Their intrinsics differ. They are compiled without optimisation, which takes a quarter of the time."""
    found = {scores()}
    monkeypatch.setenv("SUPERRES_NATIVE_FLAGS", "-O0")
    names = [variant.name for variant in build.candidates(None, build.processor())]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build.built_file, names))
    for name in names:
        monkeypatch.setenv("SUPERRES_NATIVE", name)
        build.chosen.cache_clear()
        assert build.chosen().variant.name == name
        found.add(scores())
    build.chosen.cache_clear()
    assert len(found) == 1


def drop_capabilities() -> None:
    """Take from root what lets it write to a folder that is read-only."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(header, sets):
        raise OSError("capset")


def built(cache: Path) -> list[Path]:
    return sorted((cache / "superres").glob("native-*"))


def is_whole(path: Path) -> bool:
    return sha256(path.read_bytes()).hexdigest() in path.name


@pytest.fixture
def cache(source, tmp_path) -> Path:
    assert loading(source, tmp_path)() == ""
    return tmp_path


DAMAGE = (
    lambda path: os.truncate(path, path.stat().st_size // 2), lambda path: os.truncate(path, 0),
    lambda path: path.write_bytes(path.read_bytes()[:99] + bytes(9) + path.read_bytes()[108:]),
    lambda path: path.rename(path.with_name(path.name[:-67] + "garbage.so")),
)


def test_a_file_that_is_not_what_was_built_is_built_anew(source, cache):
    path, = built(cache)
    for damage in DAMAGE:
        damage(path)
        assert loading(source, cache)() == ""
        assert is_whole(path)


@pytest.mark.skipif(not sys.platform.startswith("linux") and not os.geteuid(), reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_serves_a_whole_file_and_else_the_reason_is_one_line(source, cache):
    path, = built(cache)
    stamp = path.stat().st_mtime_ns
    for damaged in (False, True):
        if damaged:
            path.chmod(0o644)
            DAMAGE[0](path)
        for part in (cache, *cache.rglob("*")):
            part.chmod(part.stat().st_mode & ~0o222)
        reason = loading(source, cache, privileged=False)()
        assert reason.startswith("cannot build") if damaged else (reason, path.stat().st_mtime_ns) == ("", stamp)
        assert "\n" not in reason


def test_processes_that_build_at_once_leave_one_whole_file(source, tmp_path):
    results = [loading(source, tmp_path) for _ in range(4)]
    assert [result() for result in results] == 4 * [""]
    assert [is_whole(path) for path in built(tmp_path)] == [True]


def test_other_flags_have_a_file_of_their_own(source, cache):
    assert loading(source, cache, "-O0 -fno-inline")() == ""
    assert [is_whole(path) for path in built(cache)] == [True, True]
    assert "cannot compile native.cpp" in loading(source, cache, "-O0 --no-such-flag")()
    assert len(built(cache)) == 2
