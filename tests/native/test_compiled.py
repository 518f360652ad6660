"""The compiled code is kept in the user's cache, and only loaded from a file that is whole."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from itertools import product
from pathlib import Path

import pytest
import torch
from fakes import NATIVE, VARIANTS, random_model, random_tokens, small_source

from superres.native import build
from superres.native.build import NativeUnavailable
from superres.native.model import NativeModel
from superres.system.output import scratch_folder

FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


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
        model = NativeModel(random_model(config, dtype=torch.float32), precision=precision,
                            threads=1)
        output = model.session(source, 5).step(target[:, :5], torch.zeros(2, dtype=torch.int64))
        for part in (output.scores, output.state[0]):
            found.update(part.numpy().tobytes())
    return found.hexdigest()


def test_every_variant_that_runs_here_gives_the_same_bits(monkeypatch):
    """Their intrinsics differ. They are compiled without optimisation, which takes a quarter of the
    time."""
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


@pytest.mark.skipif(not sys.platform.startswith("linux") and not os.geteuid(), reason="root may "
                    "write everywhere")
def test_a_folder_that_cannot_be_written_serves_a_whole_file_and_else_the_reason_is_one_line(source,
                                                                                             cache):
    path, = built(cache)
    stamp = path.stat().st_mtime_ns
    for damaged in (False, True):
        if damaged:
            path.chmod(0o644)
            DAMAGE[0](path)
        for part in (cache, *cache.rglob("*")):
            part.chmod(part.stat().st_mode & ~0o222)
        reason = loading(source, cache, privileged=False)()
        assert (reason.startswith("cannot build") if damaged else (reason, path.stat().st_mtime_ns)
                == ("", stamp))
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


COMPILER = """#!/bin/sh
echo "$@" >> {log}
{before}
exec {compiler} "$@"
"""


@pytest.fixture
def shim(tmp_path, monkeypatch):
    """Put a compiler before the system's that writes what it compiles; return a function that gives
    it something first.

    The function returns the file of lines.
    """
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    real = build.compiler()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def write(before: str = "") -> Path:
        (folder / "c++").write_text(COMPILER.format(log=log, before=before, compiler=real))
        (folder / "c++").chmod(0o755)
        log.write_text("")
        return log

    return write


def test_processes_that_first_use_it_at_once_compile_it_once(source, tmp_path, shim):
    log = shim("sleep 0.5")
    results = [loading(source, tmp_path) for _ in range(4)]
    assert [result() for result in results] == 4 * [""]
    compiled = [line.rpartition("/")[2] for line in log.read_text().splitlines()]
    assert compiled in (["native.cpp"], ["probe.cpp", "native.cpp"])
    assert {path.suffix for path in (tmp_path / "superres").iterdir()} == {".so"}


def test_a_library_that_does_not_load_is_removed_and_compiled_again(source, cache):
    path, = built(cache)
    path.unlink()
    wrong = b"\x7fELF of another system"
    left = path.with_name(f"{path.name[:-67]}{sha256(wrong).hexdigest()}.so")
    left.write_bytes(wrong)
    assert loading(source, cache)() == ""
    assert built(cache) == [path]


FULL = """
import subprocess, sys
from pathlib import Path
from superres.native import build
build.processor()
try:
    (build.cache_folder() / "other").write_bytes(bytes(10**6))
except OSError:
    pass
for _ in range(2):
    try:
        build.library(Path(sys.argv[1]))
    except build.NativeUnavailable as error:
        print(error)
"""
SMALL_DISC = ["unshare", "--map-root-user", "--mount", "sh", "-c",
              'mount -t tmpfs -o size=500k tmpfs "$0" && exec "$@"']


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the small disc is Linux's")
def test_a_full_disc_ends_the_search_at_once_and_is_remembered(source, tmp_path, shim):
    log, disc = shim(), [*SMALL_DISC, str(tmp_path / "disc")]
    (tmp_path / "disc").mkdir()
    if subprocess.run([*disc, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a disc")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "disc")}
    done = subprocess.run([*disc, sys.executable, "-c", FULL, str(source)], env=environment,
                          capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == second
    assert "No space left on device" in first
    assert done.stderr.count("is not used") == 1
    assert len([line for line in log.read_text().splitlines() if line.endswith(str(source))]) <= 1


def test_what_a_killed_compilation_leaves_is_removed_by_the_next(source, tmp_path, shim):
    # so that it is the source that is compiled, with other flags than those of `loading`
    build.processor()
    log, folder = shim(f"echo $$ >> {tmp_path}/pid; sleep 100"), tmp_path / "superres"
    process = FORK.Process(target=lambda: (
        os.environ.update(XDG_CACHE_HOME=str(tmp_path)), build.chosen.cache_clear(),
        build.library(source)))
    process.start()
    while not log.read_text():
        time.sleep(0.02)
    process.kill()
    process.join()
    assert list(folder.glob("superres-*"))
    shim()
    assert loading(source, tmp_path)() == ""
    assert {path.suffix for path in folder.iterdir()} == {".so"}
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


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
