"""Compile the native variants of a platform, as `make wheels` and the tests under emulation need
them.

    python scripts/build_native.py manylinux_2_28_x86_64 build/native
    python scripts/build_native.py linux_aarch64 build/native aarch64-dotprod   # one variant

The platforms of wheels that anybody may install are compiled with ziglang, a Clang with the C++
libraries of all of them. `linux_x86_64` and `linux_aarch64` are compiled with g++: quickly, for
systems as new as this one. The WebAssembly modules are made for every platform, if ziglang is
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform as system
import re
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

NATIVE = Path(__file__).resolve().parent.parent / "superres" / "native"

PLATFORMS = {
    "manylinux_2_28_x86_64": ("x86_64", "x86_64-linux-gnu.2.28"),
    "manylinux_2_28_aarch64": ("aarch64", "aarch64-linux-gnu.2.28"),
    "macosx_11_0_arm64": ("arm64", "aarch64-macos.11.0"),
    "win_amd64": ("AMD64", "x86_64-windows-gnu"),
    "linux_x86_64": ("x86_64", ""),
    "linux_aarch64": ("aarch64", ""),
}
"""Machine and target of ziglang by the tag of the platform; without a target, g++ compiles."""

GLIBC = 28
"""The last part of the newest glibc, 2.28, that libraries of manylinux_2_28 may need."""


def load_variants() -> dict[str, Any]:
    """Return the names in variants.py: the package and its dependencies need not be installed."""
    return runpy.run_path(str(NATIVE / "variants.py"))


def command(platform: str) -> list[str]:
    """Return the compiler of a platform, with the flags that make its libraries need no C++
    library, or exit."""
    if platform not in PLATFORMS:
        raise SystemExit(f"unknown platform {platform!r}; choose {' or '.join(PLATFORMS)}")
    machine, target = PLATFORMS[platform]
    if target:
        command: list[str] = load_variants()["ziglang"](target)
        return command
    name = "g++" if machine == system.machine() else f"{machine}-linux-gnu-g++"
    if shutil.which(name) is None:
        raise SystemExit(f"{platform} needs {name}; on Debian: apt-get install "
                         f"g++-{machine}-linux-gnu")
    return [name, "-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-s"]


def compile_library(job: tuple[list[str], Path, str, tuple[str, ...], tuple[str, ...]]) -> Path:
    """Compile a library, and return its path. The job: compiler, path, source, all flags, flags to
    link."""
    compiler, path, source, flags, link = job
    if "ziglang" in compiler:
        flags = tuple(load_variants()["flags_of_ziglang"](flags))
    with TemporaryDirectory() as scratch:
        # Linked without the flags of the processor, or ziglang would compile its C++ library for
        # each variant.
        compiled = f"{scratch}/native.o"
        for words in ([*flags, "-c", f"-I{NATIVE / 'cpp'}", "-o", compiled,
                       str(NATIVE / "cpp" / source)],
                      [*link, "-O3", "-o", f"{scratch}/library", compiled]):
            result = subprocess.run([*compiler, *words], capture_output=True, text=True,
                                    check=False)
            if result.returncode:
                raise SystemExit(f"{' '.join([*compiler, *words])}\n{result.stderr}")
        shutil.move(f"{scratch}/library", path)
    return path


def build(platform: str, folder: Path, only: list[str] | None = None) -> list[Path]:
    """Compile the probe and the variants (or `only` those named) of a platform, and return their
    files in `folder`.

    Variants of a platform are those of its machine and, if ziglang is installed, of WebAssembly.

    Raises:
        SystemExit: the compiler fails, or a library needs a newer system than the platform
            promises.
    """
    table, compiler = load_variants(), command(platform)
    suffix = ".dll" if platform.startswith("win") else ".so"
    kinds = [(compiler, suffix, table["for_machine"](PLATFORMS[platform][0]))]
    if importlib.util.find_spec("ziglang"):
        kinds.append((table["ziglang"](table["WASM_TARGET"]), table["WASM_SUFFIX"], table["WASM"]))
    jobs = [(compiler, folder / f"probe{suffix}", "probe.cpp", table["PROBE_FLAGS"],
             table["LIBRARY_FLAGS"])]
    jobs += [(words, folder / f"{variant.name}{ending}", "native.cpp", variant.library_flags,
              variant.link_flags)
             for words, ending, variants in kinds for variant in variants if only is None
             or variant.name in only]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in pool.map(compile_library, jobs):
            paths.append(path)
            print(f"compiled {path.name}, {len(paths)} of {len(jobs)}", file=sys.stderr, flush=True)
    for path in paths:
        newest = max((int(version) for version in re.findall(rb"\0GLIBC_2\.(\d+)",
                                                             path.read_bytes())), default=0)
        if platform.startswith("manylinux") and newest > GLIBC:
            raise SystemExit(f"{path} needs glibc 2.{newest}, but {platform} promises 2.{GLIBC}")
    return paths


def main() -> None:
    """Compile, and print the files."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform", choices=PLATFORMS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("variants", nargs="*", help="the variants to compile; all by default")
    arguments = parser.parse_args()
    for path in build(arguments.platform, arguments.folder, arguments.variants or None):
        print(path)


if __name__ == "__main__":
    main()
