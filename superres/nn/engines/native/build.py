"""Build the C++ of the folder cpp on first use, cache the library, and declare its functions for ctypes.

ctypes needs only a C++ compiler, where nanobind and pybind11 also need their own headers and Python's. One shared
library, built at first use, then serves every version of Python and of torch.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from ctypes import POINTER, c_char_p, c_int64, c_void_p
from pathlib import Path
from typing import Any

from superres.errors import ConfigError
from superres.nn.engines.native.abi import CEncoded, CEncoder, CLoop, CSession, layout
from superres.system.output import cache_folder

SOURCE = Path(__file__).parent / "cpp" / "native.cpp"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
COMPILERS = ("c++", "g++", "clang++")

EXTRA_FLAGS = "SUPERRES_NATIVE_FLAGS"
"""Environment variable with extra compiler flags, separated by spaces, for example sanitizers. The cache holds one
library per set of flags."""

SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "superres_layout": (c_char_p, []),
    "superres_busy": (c_int64, []),
    "superres_encode": (None, [POINTER(CEncoder), POINTER(CEncoded), c_int64, c_int64, c_void_p]),
    "superres_remember": (None, [POINTER(CSession), c_void_p]),
    "superres_step": (None, [POINTER(CSession), *[c_void_p] * 4]),
    "superres_keep": (None, [POINTER(CSession), c_void_p, c_int64, c_void_p]),
    "superres_propose_room": (c_int64, [POINTER(CSession), c_int64]),
    "superres_propose": (None, [POINTER(CSession), *[c_void_p] * 3, c_int64, *[c_void_p] * 5]),
    "superres_iterate": (c_int64, [POINTER(CSession), POINTER(CLoop), c_int64, c_int64, c_void_p]),
}
"""Result and arguments of every function in native.cpp."""


class NativeUnavailable(ConfigError):
    """The native engine is not available; the message says why."""


def _compile(command: str, flags: list[str], source: Path, stem: Path) -> Path:
    """Compile `source` atomically and return the library: `stem`, a hyphen, the SHA-256 of its bytes, and .so.

    The name is the hash of the content, so processes that build at the same time do not disturb each other.

    Raises:
        NativeUnavailable: the compiler fails.
    """
    stem.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=stem.parent) as folder:
        built = Path(folder) / "native.so"
        words = [command, *flags, f"-I{source.parent}", "-o", str(built), str(source)]
        result = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
        if result.returncode:
            message = (result.stderr.strip().splitlines() or ["no message"])[0]
            raise NativeUnavailable(f"{command} cannot compile {source.name}: {message}")
        target = stem.with_name(f"{stem.name}-{_sha256(built)}.so")
        # Synchronise the content before the rename: a power cut could otherwise leave an empty file of that name.
        _sync(built)
        built.replace(target)
        _sync(target.parent)
        return target


def _sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _cached(stem: Path) -> Path | None:
    """Return the cached library for `stem` if its hash is right; loading a damaged one would crash the process."""
    files = sorted(stem.parent.glob(f"{stem.name}-*.so"))
    return next((path for path in files if path.name == f"{stem.name}-{_sha256(path)}.so"), None)


def compiler() -> str | None:
    """Return the path of a C++ compiler, or None."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


@functools.cache
def library(source: Path = SOURCE) -> ctypes.CDLL:
    """Return the compiled library of `source`; build it if the cache has no intact one of this version and machine.

    Raises:
        NativeUnavailable: there is no compiler, it fails, or the library cannot be loaded.
    """
    found = compiler()
    if found is None:
        raise NativeUnavailable(f"no C++ compiler ({', '.join(COMPILERS)}) is installed")
    flags = [*FLAGS, *os.environ.get(EXTRA_FLAGS, "").split()]
    # The key includes the processor: several kinds of machines may share a home folder.
    files = [path.read_bytes() for path in sorted(source.parent.rglob("*")) if path.is_file()]
    key = [*files, " ".join(flags).encode(), found.encode(), _processor().encode()]
    digest = hashlib.sha256(b"\0".join(key)).hexdigest()[:16]
    stem = cache_folder() / f"native-{digest}"
    try:
        code = ctypes.CDLL(str(_cached(stem) or _compile(found, flags, source, stem)))
    except OSError as error:
        raise NativeUnavailable(f"cannot build or load {stem}: {error}") from error
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(code, name)
        function.restype, function.argtypes = result, arguments
    if code.superres_layout().decode() != layout():
        raise NativeUnavailable(f"{source.name} has other structures than this release; install it again")
    return code


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
