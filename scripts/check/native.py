"""Run the tests of the native engine with sanitizers: invalid memory accesses, undefined behaviour,
data races.

    python scripts/check/native.py                           # AddressSanitizer and
    UndefinedBehaviorSanitizer python scripts/check/native.py --thread                  #
    ThreadSanitizer: data races python scripts/check/native.py tests/proofs/test_native.py -k recurrent  #
        arguments of pytest; files replace the defaults

The library with sanitizers is built in the user's cache (`SUPERRES_NATIVE_FLAGS`). The first error
is printed with file and line and ends the run with exit code 1. This needs g++ with its sanitizers
and takes minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from superres.native.build import EXTRA_FLAGS, compiler

ROOT = Path(__file__).resolve().parents[2]

TESTS = [f"tests/test_{name}.py" for name in (
    "native", "adaptive", "all_settings", "beam", "contracts", "lookahead", "refill", "rollback",
    "speculative", "translator")]
"""Tests that decode with the native engine."""

FLAGS = "-O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all"
# Python does not free all memory at exit, which is not a leak.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1",
           "TSAN_OPTIONS": "halt_on_error=1"}


def library(name: str) -> str:
    """Return the path of a library of the compiler, or exit if there is none."""
    words = [compiler() or sys.exit("no C++ compiler is installed"), f"-print-file-name={name}"]
    path = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).is_absolute() else sys.exit(f"{words[0]} has no {name}; g++'s "
                                                          "sanitizers are needed")


def main() -> None:
    """Run the tests; a sanitizer prints errors."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thread", action="store_true", help="look for data races")
    arguments, others = parser.parse_known_args()
    # `undefined` does not include float-cast-overflow, such as NaN to an integer.
    kinds, first = ("thread", "libtsan.so") if arguments.thread else (
        "address,undefined,float-cast-overflow", "libasan.so")
    # The sanitizer must be loaded first, and needs the C++ library to intercept exceptions.
    environment = {
        **os.environ, **OPTIONS, EXTRA_FLAGS: f"{FLAGS} -fsanitize={kinds}", "OMP_NUM_THREADS": "1",
        "LD_PRELOAD": f"{library(first)} {library('libstdc++.so.6')}",
    }
    tests = [] if any(Path(word.split("::")[0]).exists() for word in others) else TESTS
    # Without --capture=no, pytest would buffer the report and lose it when the process ends.
    words = [sys.executable, "-m", "pytest", "-q", "--capture=no", "-p", "no:cacheprovider",
             *others, *tests]
    sys.exit(subprocess.run(words, cwd=ROOT, env=environment, check=False).returncode != 0)


if __name__ == "__main__":
    main()
