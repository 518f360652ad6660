"""What the tests of the native engine share: a compiler, C++ that compiles in no time, and models
that run in compiled code."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest
import torch
from fakes import NATIVE, VARIANTS, on_native, random_model

from superres.native import build, variants
from superres.native.abi import DIGEST, FUNCTIONS

compiled = pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")

KNOWN = {name: replace(config, **NATIVE) for name, config in VARIANTS.items()}
"""Small networks that the compiled code knows, by what is special about them."""


def native_model(config, **options):
    """Return a native engine of random weights on torch; options as for `NativeEngine`."""
    return on_native(random_model(config, dtype=torch.float32), **options)


def small_source(digest=DIGEST, self_test=variants.SELF_TEST):
    """Return C++ that compiles in no time and returns these results of `superres_abi` and
    `superres_self_test`."""
    names = sorted(FUNCTIONS.keys() - {"superres_abi"})
    results = dict.fromkeys(names, 0) | {"superres_self_test": self_test}
    functions = " ".join(f"long long {name}() {{ return {result}; }}"
                         for name, result in results.items())
    return f'extern "C" {{ const char* superres_abi() {{ return "{digest}"; }} {functions} }}'


def packaged(source, name, code):
    """Compile `code` as the library of a variant that a wheel has beside the folder of `source`;
    without code, write a file that is none."""
    path = source.parent.with_name("lib") / f"{name}{variants.SUFFIX}"
    path.parent.mkdir(exist_ok=True)
    if code is None:
        path.write_bytes(b"\x7fELF")
        return path
    words = [build.compiler(), *variants.FLAGS, *variants.LIBRARY_FLAGS, "-O0", "-x", "c++", "-"]
    subprocess.run([*words, "-o", path], input=code, text=True, check=True)
    return path


def printed(*words, **options):
    """Return what a command prints."""
    return subprocess.run([*map(str, words)], check=True, capture_output=True, text=True,
                          **options).stdout
