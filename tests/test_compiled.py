"""The compiled code is kept in the user's cache, and only loaded from a file that is whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from fakes import SMALL, random_model, random_tokens

from superres.config import DecodeConfig
from superres.decoding.decode import decode
from superres.nn.engines import step_model
from superres.nn.engines.native import build
from superres.nn.engines.native.session import NativeModel

QUICK = {"SUPERRES_NATIVE_FLAGS": "-O0"}
"""A build in two seconds instead of ten."""

CONFIG = replace(SMALL, width=32, filter_size=64, attention_heads=2, head_filter_size=32)

pytestmark = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")


def step() -> None:
    """Decode with the code in the cache; what the process that `run` starts does."""
    model = step_model(random_model(CONFIG, dtype=torch.float32))
    decode(model, random_tokens(CONFIG, 1)[0], DecodeConfig())
    sys.stdout.write(f"{isinstance(model, NativeModel)}\n")


def run(cache: Path, *before: str, flags=QUICK):
    """Step in a new process, which a broken file may end."""
    paths = [str(Path(__file__).parent), str(Path(build.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [*before, sys.executable, "-c", "import test_compiled; test_compiled.step()"], check=False,
        capture_output=True, text=True,
        env={**os.environ, **flags, "XDG_CACHE_HOME": str(cache), "PYTHONPATH": os.pathsep.join(paths)})


def steps(cache: Path, *before: str) -> None:
    done = run(cache, *before)
    assert (done.returncode, done.stdout.split()) == (0, ["True"]), done.stderr


def built(cache: Path) -> list[Path]:
    return sorted((cache / "superres").iterdir())


def is_whole(path: Path) -> bool:
    return sha256(path.read_bytes()).hexdigest() in path.name


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    steps(cache)
    return cache


@pytest.fixture
def cache(filled, tmp_path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "cache"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), len(content) // 50):
        content[place] ^= 0xFF
    path.write_bytes(content)


DAMAGE = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "flipped": flip,
    "no hash": lambda path: path.rename(path.with_name(path.name[:-68] + ".so")),
    "garbage for a hash": lambda path: path.rename(path.with_name(path.name[:-67] + "garbage.so")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_not_what_was_built_is_built_anew(cache, damage):
    path, = built(cache)
    DAMAGE[damage](path)
    steps(cache)
    assert is_whole(path)


def test_a_whole_file_is_loaded_from_a_folder_that_cannot_be_written(cache):
    path, = built(cache)
    stamp = path.stat().st_mtime_ns
    steps(cache, *read_only(cache))
    assert path.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("damage", ["half", None])
def test_where_nothing_can_be_kept_the_plain_step_serves_and_says_why(cache, tmp_path, damage):
    if damage:
        DAMAGE[damage](built(cache)[0])
    else:
        cache = tmp_path / "new"
        cache.mkdir()
    done = run(cache, *read_only(cache))
    assert (done.returncode, done.stdout.split()) == (0, ["False"]), done.stderr
    assert "decoding with the plain step, which is slower: cannot build or load" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_processes_that_build_at_once_leave_one_whole_file(tmp_path):
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(run, 2 * [tmp_path]))
    assert [(done.returncode, done.stdout) for done in results] == 2 * [(0, "True\n")]
    assert [is_whole(path) for path in built(tmp_path)] == [True]


def test_other_flags_have_a_file_of_their_own(cache):
    assert run(cache, flags={"SUPERRES_NATIVE_FLAGS": "-O0 -fno-inline"}).stdout == "True\n"
    assert [is_whole(path) for path in built(cache)] == [True, True]
    done = run(cache, flags={"SUPERRES_NATIVE_FLAGS": "-O0 --no-such-flag"})
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert "cannot compile native.cpp" in done.stderr
    assert len(built(cache)) == 2


def read_only(folder: Path) -> list[str]:
    """Make a folder read-only, and return what a command needs before it so as not to be root, who may write anyway."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o222)
    if os.geteuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere")
    return ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-all"]
