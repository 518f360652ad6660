"""The compiled code is kept in the user's cache, and only loaded from a file that is whole."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from fakes import small_source

from superres.nn.engines.native import build
from superres.nn.engines.native.build import NativeUnavailable

FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cpp") / "native.cpp"
    path.write_text(small_source())
    return path


def loading(source: Path, cache: Path, flags: str = "-O0", privileged: bool = True) -> Callable[[], str]:
    """Start to load the code in a process of its own, which a broken file may end.

    Returns:
        waits for the end, and returns why the code is not available, or "".
    """
    receiver, sender = FORK.Pipe(duplex=False)

    def child() -> None:
        os.environ.update(SUPERRES_NATIVE_FLAGS=flags, XDG_CACHE_HOME=str(cache))
        if not privileged:
            drop_capabilities()
        build.chosen.cache_clear()
        try:
            assert build.library(source).superres_busy() == 0
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


SCORES = """
from dataclasses import replace
from hashlib import sha256
from itertools import product
import torch
from fakes import NATIVE, VARIANTS, random_model, random_tokens
from superres.nn.engines.native.session import NativeModel

torch.set_num_threads(1)
found = sha256()
for kind, precision in product(("sequential heads", "text"), ("float32", "int8")):
    config = replace(VARIANTS[kind], **NATIVE)
    source, target = random_tokens(config, 2)
    model = NativeModel(random_model(config, dtype=torch.float32), precision=precision, threads=1)
    output = model.session(source, 5).step(target[:, :5], torch.zeros(2, dtype=torch.int64))
    for part in (output.scores, output.state.hidden):
        found.update(part.numpy().tobytes())
print(found.hexdigest())
"""


def scores(variant: str) -> str:
    """Return a digest of the scores of steps by a variant of the compiled code."""
    environment = {**os.environ, "SUPERRES_NATIVE": variant}
    return subprocess.run([sys.executable, "-c", SCORES], cwd=Path(__file__).parent, env=environment, check=True,
                          capture_output=True, text=True).stdout


def test_every_variant_that_runs_here_gives_the_same_bits():
    assert len({scores(variant.name) for variant in build.candidates(None, build.processor())}) == 1


def load(*arguments, **options) -> str:
    return loading(*arguments, **options)()


def drop_capabilities() -> None:
    """Take from root what lets it write to a folder that is read-only."""
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None).capset(header, sets):
        raise OSError("capset")


def built(cache: Path) -> list[Path]:
    return sorted((cache / "superres").glob("native-*"))


def is_whole(path: Path) -> bool:
    return sha256(path.read_bytes()).hexdigest() in path.name


@pytest.fixture(scope="module")
def filled(source, tmp_path_factory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    assert load(source, cache) == ""
    return cache


@pytest.fixture
def cache(filled, tmp_path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), len(content) // 50):
        content[place] ^= 0xFF
    path.write_bytes(content)


read_only_binds = pytest.mark.skipif(
    not sys.platform.startswith("linux") and not os.geteuid(), reason="root may write everywhere")

DAMAGE = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "flipped": flip,
    "no hash": lambda path: path.rename(path.with_name(path.name[:-68] + ".so")),
    "garbage for a hash": lambda path: path.rename(path.with_name(path.name[:-67] + "garbage.so")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_what_was_built_is_built_anew(source, cache, damage):
    path, = built(cache)
    DAMAGE[damage](path)
    assert load(source, cache) == ""
    assert is_whole(path)


@read_only_binds
def test_a_whole_file_is_loaded_from_a_folder_that_cannot_be_written(source, cache):
    path, = built(cache)
    stamp = path.stat().st_mtime_ns
    make_read_only(cache)
    assert load(source, cache, privileged=False) == ""
    assert path.stat().st_mtime_ns == stamp


@read_only_binds
@pytest.mark.parametrize("damage", ["half", None])
def test_where_nothing_can_be_kept_the_reason_is_one_line(source, cache, tmp_path, damage):
    if damage:
        DAMAGE[damage](built(cache)[0])
    else:
        cache = tmp_path / "new"
        cache.mkdir()
    make_read_only(cache)
    reason = load(source, cache, privileged=False)
    assert reason.startswith("cannot build")
    assert "\n" not in reason


def test_processes_that_build_at_once_leave_one_whole_file(source, tmp_path):
    results = [loading(source, tmp_path) for _ in range(4)]
    assert [result() for result in results] == 4 * [""]
    assert [is_whole(path) for path in built(tmp_path)] == [True]


def test_other_flags_have_a_file_of_their_own(source, cache):
    assert load(source, cache, "-O0 -fno-inline") == ""
    assert [is_whole(path) for path in built(cache)] == [True, True]
    assert "cannot compile native.cpp" in load(source, cache, "-O0 --no-such-flag")
    assert len(built(cache)) == 2


def make_read_only(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
