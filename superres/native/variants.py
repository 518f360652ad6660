"""The variants of the compiled code, one per class of processors, and the flags that compile each.

All variants come from one translation unit and give the same bits; a wider one takes less time.
This module imports only the standard library: `scripts/build_hook.py` reads it while nothing is
installed yet.
"""

from __future__ import annotations

import hashlib
import platform
import re
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

_ABI = (Path(__file__).parent / "cpp" / "abi.h").read_bytes()

FLAGS = (
    "-std=c++17", "-O3", f'-DSUPERRES_ABI="{hashlib.sha256(_ABI).hexdigest()}"',
    "-ffp-contract=off", "-fno-math-errno",
)
"""Compiler flags of every variant. A library carries the digest of the abi.h that it was compiled
with."""

LIBRARY_FLAGS = ("-fPIC", "-pthread", "-shared")
"""Further flags of a library for a processor."""

EXPORTS = (*re.findall(r'^extern "C" .*?(\w+)\(', _ABI.decode(), re.MULTILINE), "malloc", "free")
"""The functions that a WebAssembly module exports."""

WASM_FLAGS = ("-mexec-model=reactor", "-s", *(f"-Wl,--export={name}" for name in EXPORTS))
"""Further flags of a WebAssembly module: it has no main function, and is initialised by
`_initialize`."""

WASM_TARGET = "wasm32-wasi"
"""The target of ziglang for WebAssembly, which the compilers of most systems cannot compile for."""

PROBE_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC")
"""Compiler flags of cpp/probe.cpp, for every processor."""

SUFFIX = ".dll" if sys.platform == "win32" else ".so"
"""Ending of a library's file name."""

WASM_SUFFIX = ".wasm"
"""Ending of a WebAssembly module's file name."""

SELF_TEST = 0x3072BE948305EFD9
"""Result of `superres_self_test` (cpp/self_test.h) in every correct library, of any variant,
compiler and system."""


@dataclass(frozen=True)
class Variant:
    """A way to compile the native code for a machine, "x86_64" or "aarch64"; SUPERRES_NATIVE takes
    its name.

    The machine "wasm32" stands for WebAssembly, which browsers run. `features` are what the
    processor or browser must have, as cpp/probe.cpp or WebAssembly names it; `flags` are in
    addition to FLAGS.
    """

    name: str
    machine: str
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    @property
    def link_flags(self) -> tuple[str, ...]:
        """The flags that make compiled code a library, or a WebAssembly module."""
        return WASM_FLAGS if self in WASM else LIBRARY_FLAGS

    @property
    def library_flags(self) -> tuple[str, ...]:
        """All flags that make native.cpp a library, or a WebAssembly module."""
        return (*FLAGS, *self.flags, *self.link_flags)

    def missing(self, features: Collection[str]) -> list[str]:
        """Return what a processor with these `features` lacks to run this variant."""
        return [name for name in self.features if name not in features]


def _x86(name: str, *features: str) -> Variant:
    """Return a variant whose flags are its features: GCC before 11 does not know the levels, such
    as x86-64-v3."""
    return Variant(name, "x86_64", features, tuple(f"-m{feature}" for feature in features))


def _wasm(name: str, *features: str) -> Variant:
    """Return a variant for WebAssembly; with -mcpu, ziglang would compile its C++ library for each
    variant."""
    words = [word for feature in features
             for word in ("-Xclang", "-target-feature", "-Xclang", f"+{feature}")]
    return Variant(name, "wasm32", features, ("-fno-exceptions", "-fno-rtti", *words))


_V2 = "cx16", "popcnt", "ssse3", "sse4.1", "sse4.2"
_V3 = *_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"
_V4 = *_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"

VARIANTS = (
    _x86("x86-64-v2", *_V2),
    _x86("x86-64-v3", *_V3),
    _x86("x86-64-v3-vnni", *_V3, "avxvnni"),
    _x86("x86-64-v4", *_V4),
    Variant("aarch64", "aarch64", (), ("-march=armv8-a",)),
    Variant("aarch64-dotprod", "aarch64", ("dotprod",), ("-march=armv8.2-a+dotprod",)),
    _wasm("wasm32", "simd128"),
    _wasm("wasm32-relaxed", "simd128", "relaxed-simd"),
)
"""All variants; of a machine's, the later ones are faster."""

WASM = tuple(variant for variant in VARIANTS if variant.machine == "wasm32")
"""The variants for WebAssembly."""

BY_NAME = {variant.name: variant for variant in VARIANTS}

NEIGHBOURS = {
    "x86-64-v2": ("x86-64-v3", "x86-64-v3-vnni", "x86-64-v4"),
    "x86-64-v3": ("x86-64-v3-vnni", "x86-64-v4", "x86-64-v2"),
    "x86-64-v3-vnni": ("x86-64-v4", "x86-64-v3", "x86-64-v2"),
    "x86-64-v4": ("x86-64-v3-vnni", "x86-64-v3", "x86-64-v2"),
    "aarch64": ("aarch64-dotprod", "x86-64-v2", "x86-64-v3"),
    "aarch64-dotprod": ("aarch64", "x86-64-v3-vnni", "x86-64-v3"),
    "wasm32": ("wasm32-relaxed", "x86-64-v2", "x86-64-v3"),
    "wasm32-relaxed": ("wasm32", "x86-64-v2", "x86-64-v3"),
}
"""The variants whose costs are most like those of a variant, the nearest first."""

_ZIG_FLAGS = {"-march=armv8-a": "-mcpu=generic",
              "-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod"}


def ziglang(target: str = "") -> list[str]:
    """Return the command of the compiler in the package ziglang for a `target`, by default this
    machine."""
    return [sys.executable, "-m", "ziglang", "c++", *(["-target", target] if target else [])]


def flags_of_ziglang(flags: Iterable[str]) -> list[str]:
    """Return `flags` as ziglang's Clang names them."""
    return [_ZIG_FLAGS.get(flag, flag) for flag in flags]


_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def for_machine(machine: str | None = None) -> list[Variant]:
    """Return the variants of a machine, as `platform.machine` names it (by default this one), the
    fastest first."""
    kind = _MACHINES.get((platform.machine() if machine is None else machine).lower())
    return [variant for variant in reversed(VARIANTS) if variant.machine == kind]
