"""Python reads what it shares with the compiled code from abi.h, as the compiler reads it."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess

import pytest
from fakes import small_source

from superres.nn.engines.native import abi, build
from superres.nn.engines.native.build import NativeUnavailable

HEADER = build.SOURCE.parent / "abi.h"


def layout() -> dict[str, int]:
    """Return every number that Python reads from the header, by the C++ expression of the same value."""
    found = dict(abi.DECLARATIONS.constants)
    for names in abi.DECLARATIONS.enums.values():
        found |= {name: number for number, name in enumerate(names)}
    for name, structure in abi.DECLARATIONS.structures.items():
        found[f"sizeof({name})"] = ctypes.sizeof(structure)
        for field, *_ in structure._fields_:
            found[f"offsetof({name}, {field})"] = getattr(structure, field).offset
            found[f"sizeof({name}::{field})"] = getattr(structure, field).size
    return found


@pytest.mark.slow
@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
def test_the_compiler_lays_out_every_field_as_python_does(tmp_path):
    known = layout()
    assert len(known) > 300
    lines = [f'printf("%lld\\n", (long long)({expression}));' for expression in known]
    source, program = tmp_path / "layout.cpp", tmp_path / "layout"
    includes = "#include <cstddef>", "#include <cstdio>", f'#include "{HEADER}"'
    source.write_text("\n".join([*includes, "int main() {", *lines, "}"]))
    subprocess.run([build.compiler(), "-std=c++17", "-o", program, source], check=True)
    values = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    assert dict(zip(known, map(int, values), strict=True)) == known


@pytest.mark.slow
@pytest.mark.parametrize("change", [
    ("{ FLOAT32, BFLOAT16, INT8 }", "{ BFLOAT16, FLOAT32, INT8 }"),
    ("{ GUMBEL, SPECULATIVE }", "{ SPECULATIVE, GUMBEL }"), ("{ HEADS, JACOBI,", "{ JACOBI, HEADS,"),
    ("PANEL = 32", "PANEL = 64"), ("batch, width,", "width, batch,"),
])
@pytest.mark.skipif(build.compiler() is None, reason="no C++ compiler on this machine")
def test_a_library_of_another_header_is_refused(change, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "chosen", build.chosen.__wrapped__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = HEADER.read_text()
    assert change[0] in text
    source = tmp_path / "native.cpp"
    source.write_text(small_source(hashlib.sha256(text.replace(*change).encode()).hexdigest()))
    with pytest.raises(NativeUnavailable, match=r"another abi\.h"):
        build.library(source)
    source.write_text(small_source())
    build.library(source)


@pytest.mark.parametrize("text", [
    "struct A { long a; };", "struct A { B b; };", "struct A { int64_t a = 1; };",
    "struct A { int64_t& a; };", "struct A { void a; };", "enum A { B };", "enum A : int64_t { B = 1 };",
    "constexpr float A = 1;",
    "constexpr int A = 1 + 1;", "typedef int64_t A;", "#define A 1", "class A {};", 'extern "C" float f();',
    "struct A { int64_t **a; };", "int64_t a;",
])
def test_what_is_not_in_the_subset_is_refused(text):
    with pytest.raises(ValueError, match=r"abi\.h"):
        abi.parse(text)
