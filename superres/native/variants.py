"""The variants of the compiled code, one per class of processors, and the flags that compile each.

All variants come from one translation unit and give the same bits; a wider one takes less time. This module imports
only the standard library: `scripts/build_hook.py` reads it while nothing is installed yet.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

_ABI_DIGEST = hashlib.sha256((Path(__file__).parent / "cpp" / "abi.h").read_bytes()).hexdigest()

FLAGS = (
    "-std=c++17", "-O3", f'-DSUPERRES_ABI="{_ABI_DIGEST}"', "-ffp-contract=off", "-fno-math-errno", "-shared", "-fPIC",
    "-pthread",
)
"""Compiler flags of every variant. A library carries the digest of the abi.h that it was compiled with."""

PROBE_FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC")
"""Compiler flags of cpp/probe.cpp, for every processor."""

SUFFIX = ".dll" if sys.platform == "win32" else ".so"
"""Ending of a library's file name."""

SELF_TEST = 0x7C0657348439FF97
"""Result of `superres_self_test` (cpp/self_test.h) in every correct library, of any variant, compiler and system."""


@dataclass(frozen=True)
class Variant:
    """A way to compile the native code for a machine, "x86_64" or "aarch64"; SUPERRES_NATIVE takes its name.

    `features` are what the processor must have, as cpp/probe.cpp names it; `flags` are in addition to FLAGS.
    """

    name: str
    machine: str
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()

    def missing(self, features: Collection[str]) -> list[str]:
        """Return what a processor with these `features` lacks to run this variant."""
        return [name for name in self.features if name not in features]


def _x86(name: str, *features: str) -> Variant:
    """Return a variant whose flags are its features: GCC before 11 does not know the levels, such as x86-64-v3."""
    return Variant(name, "x86_64", features, tuple(f"-m{feature}" for feature in features))


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
)
"""All variants; of a machine's, the later ones are faster."""

BY_NAME = {variant.name: variant for variant in VARIANTS}

_ZIG_FLAGS = {"-march=armv8-a": "-mcpu=generic", "-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod"}


def flags_of_ziglang(flags: Iterable[str]) -> list[str]:
    """Return `flags` as ziglang's Clang names them."""
    return [_ZIG_FLAGS.get(flag, flag) for flag in flags]


_MACHINES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def for_machine(machine: str | None = None) -> list[Variant]:
    """Return the variants of a machine, as `platform.machine` names it (by default this one), the fastest first."""
    kind = _MACHINES.get((platform.machine() if machine is None else machine).lower())
    return [variant for variant in reversed(VARIANTS) if variant.machine == kind]
