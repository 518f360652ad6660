"""The compiled code is kept in the user's cache, and only loaded from a file that is whole."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from superres.native import build
from superres.native.build import NativeUnavailable
from superres.system.output import scratch_folder
from tests.native.helpers import compiled, small_source

FORK = multiprocessing.get_context("fork")

pytestmark = [compiled, pytest.mark.slow]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cpp") / "native.cpp"
    path.write_text(small_source())
    return path


def loading(source: Path, cache: Path, flags: str = "-O0",
            privileged: bool = True) -> Callable[[], str]:
    """Start to load the code in a process of its own, which a broken file may end.

    The returned function waits for the end, and returns why the code is not available, or "".
    """
    receiver, sender = FORK.Pipe(duplex=False)

    def child() -> None:
        os.environ.update(SUPERRES_NATIVE_FLAGS=flags, XDG_CACHE_HOME=str(cache))
        if not privileged:
            drop_capabilities()
        build.search.cache_clear()
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


@pytest.mark.skipif(not sys.platform.startswith("linux") and not os.geteuid(),
                    reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_serves_a_whole_file_and_else_the_reason_is_one_line(
    source, cache,
):
    path, = built(cache)
    stamp = path.stat().st_mtime_ns
    for damaged in (False, True):
        if damaged:
            path.chmod(0o644)
            DAMAGE[0](path)
        for part in (cache, *cache.rglob("*")):
            part.chmod(part.stat().st_mode & ~0o222)
        reason = loading(source, cache, privileged=False)()
        if damaged:
            assert reason.startswith("cannot build")
            assert "\n" not in reason
        else:
            assert (reason, path.stat().st_mtime_ns) == ("", stamp)


def test_other_flags_have_a_file_of_their_own(source, cache):
    assert loading(source, cache, "-O0 -fno-inline")() == ""
    assert [is_whole(path) for path in built(cache)] == [True, True]
    assert "cannot compile native.cpp" in loading(source, cache, "-O0 --no-such-flag")()
    assert len(built(cache)) == 2


COMPILER = """#!/bin/sh
echo "$@" >> {log}
sleep 0.5
exec {compiler} "$@"
"""


def test_processes_that_first_use_it_at_once_compile_it_once(source, tmp_path, monkeypatch):
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    (folder / "c++").write_text(COMPILER.format(log=log, compiler=build.compiler()))
    (folder / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    results = [loading(source, tmp_path) for _ in range(4)]
    assert [result() for result in results] == 4 * [""]
    words = [line.rpartition("/")[2] for line in log.read_text().splitlines()]
    assert words in (["native.cpp"], ["probe.cpp", "native.cpp"])
    assert [is_whole(path) for path in built(tmp_path)] == [True]
    left = {path.name for path in (tmp_path / "superres").iterdir() if path.suffix != ".so"}
    assert left == {".compile.lock"}


def test_a_compiler_that_fails_is_asked_once_for_each_variant(source, tmp_path, monkeypatch,
                                                              caplog):
    """As on a full disc: each stage of a cascade asks for the library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SUPERRES_NATIVE_FLAGS", "--no-such-flag")
    build.search.cache_clear()
    for _ in range(2):
        with pytest.raises(NativeUnavailable, match=r"cannot compile native\.cpp: .*no-such-flag"):
            build.library(source)
    assert len(caplog.records) == len(build.candidates(None, build.processor()))
    build.search.cache_clear()


def test_scratch_folders_of_killed_processes_are_removed_and_no_others(tmp_path):
    (tmp_path / "superres-1-mine").mkdir()
    receiver, sender = FORK.Pipe(duplex=False)

    def hold():
        with scratch_folder(tmp_path) as folder:
            (folder / "copy").write_bytes(bytes(9))
            sender.send(folder)
            time.sleep(100)

    process = FORK.Process(target=hold)
    process.start()
    held = receiver.recv()
    with scratch_folder(tmp_path) as own:
        assert own.is_dir()
        assert (held / "copy").exists()
    assert not own.exists()
    process.kill()
    process.join()
    assert held.exists()
    with scratch_folder(tmp_path):
        assert not held.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["superres-1-mine"]
