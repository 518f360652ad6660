"""Build the C++ of the folder cpp on first use, cache the library, and declare its structures and functions for ctypes.

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
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int64, c_void_p
from pathlib import Path
from typing import Any

from superres.errors import ConfigError
from superres.system.output import cache_folder

SOURCE = Path(__file__).parent / "cpp" / "native.cpp"
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
COMPILERS = ("c++", "g++", "clang++")

EXTRA_FLAGS = "SUPERRES_NATIVE_FLAGS"
"""Environment variable with extra compiler flags, separated by spaces, for example sanitizers. The cache holds one
library per set of flags."""

LANES = 16
"""Floats per vector in the C++."""

PANEL = 2 * LANES
"""Outputs that are adjacent in a packed weight."""

MAX_SIZE = 256
"""Largest size of an attention head whose keys and values are bytes."""

NEAR, FAR = 5, 9
"""The finite points of Winograd's convolution besides 0, in eighths and with either sign."""


class CLinear(Structure):
    """`Linear` of cpp/abi.h."""

    _fields_ = [*((name, c_int64) for name in ("inputs", "panels", "format")),
                *((name, c_void_p) for name in ("weight", "bias", "scale"))]


class CInt8Filter(Structure):
    """`Int8Filter` of cpp/abi.h."""

    _fields_ = [("product", CLinear), ("norm", c_void_p), ("rounding", c_float)]


class CCache(Structure):
    """`Cache` of cpp/abi.h."""

    _fields_ = [(name, c_void_p) for name in ("key", "value", "key_scale", "value_scale")]


class CSampling(Structure):
    """`Sampling` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("kind", "seed", "channels", "top_k")), ("nucleus", c_double),
        *((name, c_void_p) for name in ("keys", "temperature", "q", "q_total")),
    ]


class CProposer(Structure):
    """`Proposer` of cpp/abi.h."""

    _fields_ = [
        ("kind", c_int64),
        *((name, c_void_p) for name in (
            "draft", "tokens", "place", "best_tokens", "hidden", "scores", "keys", "known")),
        *((name, c_int64) for name in ("entries", "order", "channels")), ("source", c_void_p),
        ("source_length", c_int64),
    ]


class CWidths(Structure):
    """`Widths` of cpp/abi.h."""

    _fields_ = [
        ("count", c_int64), *((name, c_void_p) for name in ("costs", "sizes", "pace")),
        *((name, c_float) for name in ("offset", "exponent", "reach")),
    ]


class CLimits(Structure):
    """`Limits` of cpp/abi.h."""

    _fields_ = [("count", c_int64), ("earlier", c_void_p), ("bounds", c_void_p)]


class CLookahead(Structure):
    """`Lookahead` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("size", "columns", "candidates", "cells", "capacity")),
        *((name, c_void_p) for name in (
            "paths", "guesses", "stage", "column", "window", "grams", "oldest", "found")),
    ]


class CLoop(Structure):
    """`Loop` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("block_size", "room", "stride", "minimum", "best", "bound", "end_token")),
        *((name, c_void_p) for name in (
            "position", "limit", "store", "proposals", "tokens", "place", "index", "first", "next", "best_tokens",
            "hidden", "scores", "scratch")),
        ("sampling", POINTER(CSampling)), ("proposer", CProposer), ("widths", CWidths),
        ("limits", CLimits), ("lookahead", CLookahead),
    ]


class CLayer(Structure):
    """`Layer` of cpp/abi.h."""

    _fields_ = [
        *((name, CLinear) for name in (
            "projection", "output", "expand", "contract", "cross_query", "cross_output", "cross_source")),
        ("norm_weight", c_void_p * 3), ("norm_bias", c_void_p * 3), ("self", CCache), ("cross", CCache),
        ("columns", c_void_p),
    ]


class CTree(Structure):
    """`Tree` of cpp/abi.h."""

    _fields_ = [("scored", c_int64), ("longest", c_int64), ("depth", c_void_p), ("ancestors", c_void_p)]


class CShortlist(Structure):
    """`Shortlist` of cpp/abi.h."""

    _fields_ = [("count", c_int64), *((name, c_void_p) for name in ("tokens", "known", "weight", "bias", "scale"))]


class CHeads(Structure):
    """`Heads` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in ("count", "size", "dense", "adaptive", "earlier", "recurrent")),
        ("expand", CLinear), ("adapt", CLinear), ("contract", POINTER(CLinear)),
        *((name, c_void_p) for name in ("bias", "norm_weight", "norm_bias", "conditioning", "direct")),
        ("cross_query", CLinear), ("cross_output", CLinear), ("cross_source", CLinear), ("cross", CCache),
        ("shortlist", CShortlist),
    ]


class CSession(Structure):
    """`Session` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in (
            "batch", "width", "length", "size_d", "attention_heads", "filter", "layers", "vocabulary", "channels",
            "outputs", "slots", "block_length", "cross_slots", "pre", "threads", "patient", "stride", "together")),
        ("layer", POINTER(CLayer)), ("final_weight", c_void_p), ("final_bias", c_void_p), ("project", CLinear),
        ("int8_filter", CInt8Filter), ("token_table", c_void_p), ("position_table", c_void_p), ("conditioned", c_int64),
        ("cross_mask", c_void_p),
        *((name, c_int64) for name in ("features", "near", "cell_size", "ordinal")),
        *((name, c_void_p) for name in ("near_table", "cell", "cell_positions", "estimate", "residual_sum")),
        ("source_length", c_int64), ("deviation", c_void_p), ("first", CLinear), ("second", CLinear),
        ("channel_bias", c_void_p), ("direct", c_void_p), ("residual_scale", c_float), ("initial_sharpness", c_float),
        ("heads", CHeads), ("tree", CTree), ("not_finite", c_void_p), ("seconds", c_void_p), ("groups", c_int64),
        *((name, c_void_p) for name in ("x", "parts", "wide", "attended", "weights", "gathered", "projected")),
    ]


class CEncoder(Structure):
    """`Encoder` of cpp/abi.h."""

    _fields_ = [
        *((name, c_int64) for name in (
            "source_length", "length", "size_d", "attention_heads", "filter", "layers", "vocabulary", "channels",
            "pre")),
        ("layer", POINTER(CLayer)),
        *((name, c_void_p) for name in ("final_weight", "final_bias", "token_table", "source_signal")),
        *((name, c_int64) for name in ("rows", "columns", "height", "width", "maps", "blocks")),
        ("row_weights", c_void_p), ("column_weights", c_void_p), ("shuffle", CLinear), ("products", POINTER(CLinear)),
        ("biases", c_void_p), ("refinement", CLinear), ("refinement_bias", c_void_p), ("vectors", CLinear),
        ("head_vectors", CLinear), ("signal", c_void_p), ("residual_scale", c_float),
    ]


class CEncoded(Structure):
    """`Encoded` of cpp/abi.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("states", "position_table", "head_table", "estimate", "residual_sum")),
        ("stride", c_int64), ("positions", c_int64), ("lengths", c_void_p),
    ]


STRUCTURES = (CLinear, CInt8Filter, CCache, CLayer, CTree, CShortlist, CHeads, CSampling, CProposer, CWidths, CLimits,
              CLookahead, CLoop, CSession, CEncoder, CEncoded)

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


def layout() -> str:
    """Return the constants, the sizes of the structures and the offsets of their fields, as `superres_layout` does."""
    lines = [f"LANES={LANES} PANEL={PANEL} NEAR={NEAR} FAR={FAR} SIZE={MAX_SIZE}\n"]
    for kind in STRUCTURES:
        fields = [f"{name}={getattr(kind, name).offset}" for name, *_ in kind._fields_]
        lines.append(" ".join([f"{kind.__name__[1:]}:{ctypes.sizeof(kind)}", *fields]) + "\n")
    return "".join(lines)


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
        words = [command, *flags, "-o", str(built), str(source)]
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
    files = [path.read_bytes() for path in sorted(source.parent.iterdir())]
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
