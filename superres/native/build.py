"""Load the compiled code of the folder cpp: choose the variant, build and cache it if needed,
declare its functions.

ctypes needs only a C++ compiler, where nanobind and pybind11 also need their own headers and
Python's. One shared library then serves every version of Python and of torch. A wheel has the
libraries of all variants in the folder lib; elsewhere, the first use compiles the chosen variant.
The WebAssembly modules are found and compiled in the same way.

A compiled probe (cpp/probe.cpp) says what the processor can do, since only compiled code can ask it
on every system: /proc/cpuinfo exists on Linux alone. It is a library of its own, so that a machine
compiles one variant, not two.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from superres.errors import ConfigError
from superres.native import variants
from superres.native.abi import DIGEST, FUNCTIONS
from superres.native.variants import Variant, for_machine
from superres.system.output import cache_folder, lock_file, scratch_folder
from superres.system.progress import Progress

LOG = logging.getLogger(__name__)
SOURCE = Path(__file__).parent / "cpp" / "native.cpp"
PROBE = SOURCE.with_name("probe.cpp")
COMPILERS = ("c++", "g++", "clang++")

POLL_SECONDS = 0.1

EXTRA_FLAGS = "SUPERRES_NATIVE_FLAGS"
"""Environment variable with extra compiler flags, separated by spaces, for example sanitizers. The
cache holds one library per set of flags; libraries of the package are not used."""

FORCED_VARIANT = "SUPERRES_NATIVE"
"""Environment variable with the name of the variant to use, for tests and comparisons."""


class NativeUnavailable(ConfigError):
    """The native engine is not available; the message says why."""


@dataclass(frozen=True)
class Library:
    """A loaded library of native.cpp, with its functions `code`.

    `identity` is the variant and the first digits of the SHA-256 of the file, by which measured
    times are kept; `refused` says why faster libraries that this processor could run are not used,
    a line for each.
    """

    variant: Variant
    path: Path
    identity: str
    code: ctypes.CDLL
    refused: tuple[str, ...]


def library(source: Path = SOURCE) -> ctypes.CDLL:
    """Return the compiled code of `source`; see `chosen`."""
    return chosen(source).code


def chosen(source: Path = SOURCE) -> Library:
    """Load the fastest variant of `source` that runs on this processor, or the one that
    SUPERRES_NATIVE names.

    A variant that cannot be compiled or loaded, or that fails its self-test, is left out, and a
    warning says so. Raises ConfigError if SUPERRES_NATIVE names no variant, or one that does not
    run on this processor. Raises NativeUnavailable if no variant can be used; the message says why.
    """
    found = search(source)
    if isinstance(found, NativeUnavailable):
        raise found.with_traceback(None)
    return found


@functools.cache
def search(source: Path) -> Library | NativeUnavailable:
    """Return the library of `chosen`, or why there is none: to try again would take minutes."""
    refused: list[str] = []
    try:
        usable = candidates(forced_variant(), processor())
    except NativeUnavailable as error:
        return error
    for variant in usable:
        for find in (packaged_file, built_file):
            try:
                if (path := find(variant.name, source)) is not None:
                    code, digest = _declared(path), _sha256(path)[:12]
                    return Library(variant, path, f"{variant.name}-{digest}", code, tuple(refused))
            except NativeUnavailable as error:
                refused.append(str(error))
                LOG.warning("the native variant %s is not used: %s", variant.name, error)
    return NativeUnavailable(refused[-1] if refused else "no variant runs on this processor "
                             f"({platform.machine()})")


def forced_variant() -> Variant | None:
    """Return the variant that the environment names, or None; raise ConfigError if this machine has
    no such one."""
    name = os.environ.get(FORCED_VARIANT)
    known = [variant.name for variant in for_machine()]
    if name and name not in known:
        raise ConfigError(f"{FORCED_VARIANT}={name} is no variant of this machine; choose "
                          f"{' or '.join(known)}, or unset it")
    return variants.BY_NAME[name] if name else None


def candidates(forced: Variant | None, features: frozenset[str]) -> list[Variant]:
    """Return the variants that a processor with these `features` may use, the fastest first; only
    `forced`, if given.

    Raises ConfigError if the processor cannot run `forced`.
    """
    runnable = [variant for variant in for_machine() if not variant.missing(features)]
    if forced is None:
        return runnable
    if forced not in runnable:
        raise ConfigError(f"{FORCED_VARIANT}={forced.name} needs "
                          f"{', '.join(forced.missing(features))}, which this processor lacks; "
                          f"choose {' or '.join(variant.name for variant in runnable)}, or unset "
                          "it")
    return [forced]


@functools.cache
def processor() -> frozenset[str]:
    """Return the features of this processor, as cpp/probe.cpp names them, or raise
    NativeUnavailable."""
    code = _open(packaged_file(PROBE.stem) or _built(PROBE, variants.PROBE_FLAGS))
    code.superres_processor.restype = ctypes.c_char_p
    return frozenset(code.superres_processor().decode().split())


def packaged_file(name: str, source: Path = SOURCE, suffix: str = variants.SUFFIX) -> Path | None:
    """Return the library of that name in a wheel's folder `lib`, beside the folder of `source`;
    None without one.

    Libraries of a wheel are not compiled with the extra flags that the environment may ask for.
    """
    path = source.parent.with_name("lib") / f"{name}{suffix}"
    return path if path.is_file() and not os.environ.get(EXTRA_FLAGS) else None


def built_file(name: str, source: Path = SOURCE) -> Path:
    """Return the library of the variant `name` in the user's cache; compile it if it is missing."""
    return _built(source, (*variants.BY_NAME[name].library_flags,
                           *os.environ.get(EXTRA_FLAGS, "").split()))


def wasm_file(name: str, source: Path = SOURCE) -> Path:
    """Return the WebAssembly module of the variant `name`, "wasm32" or "wasm32-relaxed".

    It is a wheel's, or the user's cache has it; ziglang compiles it if it is missing. Raises
    NativeUnavailable if it cannot be compiled.
    """
    if (path := packaged_file(name, source, variants.WASM_SUFFIX)) is not None:
        return path
    command = ziglang(variants.WASM_TARGET)
    if command is None:
        raise NativeUnavailable(f'only ziglang compiles {name}; install it by pip install '
                                '"superres[compiler]"')
    return _cached([*command, *variants.BY_NAME[name].library_flags], source, variants.WASM_SUFFIX)


def compiler() -> str | None:
    """Return the path of the system's C++ compiler, or None."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def ziglang(target: str = "") -> list[str] | None:
    """Return the command of the compiler in the package ziglang for a `target`, by default this
    machine, or None."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    # Without a target, it would compile every variant for all that this processor can do.
    return variants.ziglang(target or (f"{platform.machine()}-linux-gnu" if sys.platform == "linux"
                                       else ""))


def _built(source: Path, flags: Iterable[str]) -> Path:
    """Return the cached library of `source` for this machine; compile it if there is none of these
    files and flags."""
    if (system := compiler()) is not None:
        return _cached([system, *flags], source)
    if (command := ziglang()) is not None:
        return _cached([*command, *variants.flags_of_ziglang(flags)], source)
    raise NativeUnavailable(f"no C++ compiler ({', '.join(COMPILERS)}) is installed; apt-get "
                            "install g++ installs one on Debian and Ubuntu, pip install ziglang on "
                            "any system, and a wheel of your platform needs none")


def _cached(command: list[str], source: Path, suffix: str = ".so") -> Path:
    """Return the library that `command` makes of `source`; compile it if the cache has no intact
    one."""
    files = [source, *sorted(path for path in source.parent.rglob("*.h")
                             if path.parent.name != "test")]
    # The key includes the machine: several kinds of machines may share a home folder.
    key = [*(path.read_bytes() for path in files),
           *(word.encode() for word in (*command, platform.machine()))]
    stem = cache_folder() / f"{source.stem}-{hashlib.sha256(bytes(1).join(key)).hexdigest()[:16]}"
    try:
        if (path := _intact(stem, suffix)) is not None:
            return path
        stem.parent.mkdir(parents=True, exist_ok=True)
        with _only_compiler(stem.parent):
            # another process may have compiled it meanwhile
            return _intact(stem, suffix) or _compile(command, source, stem, suffix)
    except OSError as error:
        raise NativeUnavailable(f"cannot build {stem}: {error}") from error


def _intact(stem: Path, suffix: str) -> Path | None:
    """Return the intact library of `_compile`, if there is one; loading a damaged one would crash
    the process."""
    return next((path for path in sorted(stem.parent.glob(f"{stem.name}-*{suffix}"))
                 if path.name == f"{stem.name}-{_sha256(path)}{suffix}"), None)


@contextmanager
def _only_compiler(folder: Path) -> Iterator[None]:
    """Wait until no other process compiles for `folder`, if its file system has locks."""
    with open(folder / ".compile.lock", "ab") as file:
        is_told = False
        while True:
            try:
                lock_file(file)
            except BlockingIOError:
                if not is_told:
                    LOG.warning("waiting for another process, which compiles the native engine")
                is_told = True
                time.sleep(POLL_SECONDS)
                continue
            except OSError:
                pass  # a file system without locks
            break
        yield


def _compile(command: list[str], source: Path, stem: Path, suffix: str) -> Path:
    """Compile `source` atomically and return the library: `stem`, a hyphen, the SHA-256 of its
    bytes, and `suffix`.

    The name is the hash of the content, so a file that a power cut left incomplete is not used.
    """
    if "ziglang" in command:
        LOG.warning("compiling %s with ziglang; the first time, this takes a minute or two",
                    source.name)
    with scratch_folder(stem.parent) as folder:
        built = folder / f"native{suffix}"
        words = [*command, f"-I{source.parent}", "-o", str(built), str(source)]
        with Progress(f"compiling {source.name}"):
            result = subprocess.run(  # noqa: S603
                words, capture_output=True, text=True, check=False,
                env={**os.environ, "TMPDIR": str(folder), "LC_ALL": "C"})
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["no message"]
            reason = next((line for line in lines if "error" in line), lines[0])
            name = "ziglang" if "ziglang" in command else command[0]
            raise NativeUnavailable(f"{name} cannot compile {source.name}: {reason}")
        return built.replace(stem.with_name(f"{stem.name}-{_sha256(built)}{suffix}"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"cannot load {path}: {error}; delete it") from error


def _declared(path: Path) -> ctypes.CDLL:
    """Open a library of native.cpp, if it is of this release and passes its self-test, and declare
    its functions."""
    code = _open(path)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(code, name, None)
        if function is None:
            raise NativeUnavailable(f"{path} has no {name}; install this release again")
        function.restype, function.argtypes = result, arguments
    if code.superres_abi().decode() != DIGEST:
        raise NativeUnavailable(f"{path} was compiled with another abi.h than this release has; "
                                "install it again")
    if code.superres_self_test() != variants.SELF_TEST:
        raise NativeUnavailable(f"{path} fails its self-test: it computes other numbers than it "
                                "should")
    return code
