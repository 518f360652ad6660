"""The variants of the compiled code: the probe, the choice, the self-test, what is refused, and the
shared header."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import platform
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
import torch
from fakes import NATIVE, SMALL, random_model, without_compilers

from superres.cli.main import run
from superres.errors import ConfigError
from superres.native import abi, build, diagnosis, variants
from superres.native.build import NativeUnavailable
from superres.native.diagnosis import report
from superres.native.variants import BY_NAME, WASM, for_machine
from superres.nn.weights import network_of
from superres.pipeline.choose import engine_of
from tests.native.helpers import compiled, packaged, printed, small_source

SCRIPTS = Path(__file__).parents[2] / "scripts"
LINUX = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")

pytestmark = [compiled, pytest.mark.slow]

OLD = frozenset(BY_NAME["x86-64-v2"].features)
HASWELL = frozenset(BY_NAME["x86-64-v3"].features)
SKYLAKE_X = HASWELL | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
ICE_LAKE = SKYLAKE_X | {"avx512vnni"}
"""Features that processors report, by kind."""


@pytest.fixture(autouse=True)
def _choose_anew(monkeypatch):
    """Each test chooses for itself, and the next file's tests have the library that they had."""
    monkeypatch.delenv("SUPERRES_NATIVE", raising=False)
    build.search.cache_clear()
    found = build.processor
    yield
    build.search.cache_clear()
    found.cache_clear()


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A file for C++ that compiles in no time; its libraries go to a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cpp"
    folder.mkdir()
    (folder / "native.cpp").write_text(small_source())
    return folder / "native.cpp"


@pytest.mark.parametrize(("features", "name"), [
    (ICE_LAKE | {"avxvnni"}, "x86-64-v4"), (SKYLAKE_X, "x86-64-v3"),
    (HASWELL | {"avxvnni"}, "x86-64-v3-vnni"), (HASWELL - {"fma"}, "x86-64-v2"), (OLD, "x86-64-v2"),
])
def test_a_processor_gets_the_fastest_variant_that_it_can_run(features, name, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    assert build.candidates(None, features)[0].name == name


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the system lists no features")
def test_the_probe_finds_what_the_system_lists():
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    listed = next(line for line in lines if line.startswith(("flags", "Features"))).split()
    other = {"sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm",
             "dotprod": "asimddp", "avxvnni": "avx_vnni", "avx512vnni": "avx512_vnni"}
    known = {feature for variant in for_machine() for feature in variant.features}
    assert build.processor() == {name for name in known if other.get(name, name) in listed}


def test_the_probe_runs_on_the_oldest_processor():
    """It must say what is missing, not end with an illegal instruction."""
    words = build.compiler(), *variants.PROBE_FLAGS, "-S", "-o", "-", build.PROBE
    assert "ymm" not in printed(*words)


@pytest.mark.parametrize(("name", "message"), [
    ("haswell", "=haswell is no variant of this machine; choose x86-64-v4 or .*"),
    ("x86-64-v4", "=x86-64-v4 needs avx512f, .*, which this processor lacks; choose x86-64-v3 or "
     "x86-64-v2"),
])
def test_a_variant_that_cannot_run_is_refused_in_one_line(name, message, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(build, "processor", lambda: HASWELL)
    monkeypatch.setenv("SUPERRES_NATIVE", name)
    # No plain step in its place: who names a variant wants that one.
    with pytest.raises(ConfigError, match=f"SUPERRES_NATIVE{message}") as error:
        engine_of(network_of(random_model(replace(SMALL, **NATIVE), dtype=torch.float32)))
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, NativeUnavailable)


def test_a_compiler_that_does_not_know_a_processor_gets_the_next_lower_variant(source, monkeypatch,
                                                                               caplog):
    known = for_machine()[-1]
    unknown = replace(known, name="newest", flags=("-mno-such-instructions",))
    monkeypatch.setattr(build, "for_machine", lambda: [unknown, known])
    monkeypatch.setitem(BY_NAME, "newest", unknown)
    assert build.chosen(source).variant == known
    (line,) = caplog.messages
    assert line.startswith("the native variant newest is not used: ")
    assert "cannot compile native.cpp: " in line


def test_a_library_of_the_package_is_used_and_needs_no_compiler(source, monkeypatch):
    name = for_machine()[-1].name
    monkeypatch.setenv("SUPERRES_NATIVE", name)
    path = packaged(source, name, small_source())
    build.processor()
    without_compilers(monkeypatch)
    assert build.chosen(source).path == path
    assert build.chosen(source).identity.startswith(f"{name}-")
    build.search.cache_clear()
    monkeypatch.setenv("SUPERRES_NATIVE_FLAGS", "-fsanitize=address")
    # the package has none with these flags
    with pytest.raises(NativeUnavailable, match="no C\\+\\+ compiler"):
        build.chosen(source)


ZIGLANG = """
import os, subprocess, sys
command, *words = sys.argv[1:]
assert command == "c++"
if "-target" in words:
    at = words.index("-target")
    del words[at : at + 2]
print(*sys.argv[1:], file=open({log!r}, "a"))
environment = {{**os.environ, "PATH": os.defpath}}
sys.exit(subprocess.run([{compiler!r}, *words], env=environment).returncode)
"""
"""A package ziglang, by the system's compiler: the real one takes a minute for its C++ library."""


def test_without_a_compiler_of_the_system_ziglang_compiles(source, tmp_path, monkeypatch, caplog):
    log, package = tmp_path / "log", tmp_path / "packages" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(ZIGLANG.format(log=str(log), compiler=build.compiler()))
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setenv("PATH", "")
    chosen = build.chosen(source)
    assert chosen.path.parent == build.cache_folder()
    with monkeypatch.context() as patch:
        patch.setattr(build, "chosen", lambda: chosen)
        assert report()["compiler"] == "the package ziglang"
    assert "compiling native.cpp with ziglang" in caplog.text
    (command,) = [line for line in log.read_text().splitlines() if line.endswith(str(source))]
    if LINUX:
        assert f"-target {platform.machine()}-linux-gnu" in command
    build.search.cache_clear()
    caplog.clear()
    assert build.chosen(source).path == chosen.path
    assert not caplog.records  # nothing was compiled again


def test_a_module_exports_all_functions_and_is_offered_to_no_processor():
    assert set(variants.EXPORTS) == {*abi.FUNCTIONS, "malloc", "free"}
    assert [variant.name for variant in WASM] == ["wasm32", "wasm32-relaxed"]
    machines = "x86_64", "AMD64", "aarch64", "arm64", "wasm32"
    assert not {variant for machine in machines for variant in for_machine(machine)} & {*WASM}


def test_a_module_is_that_of_the_package_or_compiled_by_ziglang_alone(source, monkeypatch):
    without_compilers(monkeypatch)
    with pytest.raises(NativeUnavailable, match=r'pip install "superres\[compiler\]"'):
        build.wasm_file("wasm32", source)
    path = source.parent.with_name("lib") / "wasm32.wasm"
    path.parent.mkdir()
    path.touch()
    assert build.wasm_file("wasm32", source) == path


@pytest.mark.parametrize(("code", "reason"), [
    (small_source(self_test=1), "fails its self-test"), (small_source("0" * 64), "another abi.h"),
    ("int nothing;", "has no superres_"), (None, "cannot load"),
])
def test_a_library_of_the_package_that_is_wrong_is_replaced_by_a_compiled_one(source, code, reason,
                                                                              caplog):
    name = build.candidates(None, build.processor())[0].name
    path = packaged(source, name, code)
    chosen = build.chosen(source)
    assert (chosen.variant.name, chosen.path.parent) == (name, build.cache_folder())
    (line,) = caplog.messages
    assert reason in line
    assert str(path) in chosen.refused[0]


def test_info_says_what_is_used_and_why(capsys, monkeypatch):
    assert run(["info", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["native"].startswith(build.chosen().variant.name)
    assert (found["self-test"], found["engine"]) == ("passed", "native-int8")
    assert len(found["variants"]) == len(for_machine())
    assert run(["info"]) == 0
    text = capsys.readouterr().out
    assert all(line in text for line in [found["native"], found["library"], *found["variants"]])

    monkeypatch.setenv("SUPERRES_NATIVE", "z80")
    build.search.cache_clear()
    assert report()["native"].startswith("none: SUPERRES_NATIVE=z80 is no variant")
    build.processor.cache_clear()
    without_compilers(monkeypatch)
    found = report()
    assert found["native"].startswith("none: no C++ compiler")
    assert (found["engine"], found["torch"]) == ("plain", metadata.version("torch"))
    monkeypatch.setattr(diagnosis, "torch_version", lambda: None)
    monkeypatch.setattr(diagnosis, "gpu_present", lambda: True)
    found = report()
    assert (found["engine"], found["torch"]) == ("none", "none")
    assert found["gpu"].endswith("needs torch: pip install 'superres[torch]'")


@pytest.fixture
def builder(source, monkeypatch):
    """The script that compiles the libraries of wheels, from sources that compile in no time."""
    spec = importlib.util.spec_from_file_location("build_native", SCRIPTS / "build_native.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    native = source.parents[1]
    for path in (variants.__file__, build.PROBE, build.PROBE.with_name("abi.h")):
        target = native / Path(path).relative_to(module.NATIVE)
        target.write_bytes(Path(path).read_bytes())
    monkeypatch.setattr(module, "NATIVE", native)
    return module


@pytest.mark.skipif(not LINUX, reason="glibc is that of Linux")
def test_a_library_that_needs_a_newer_system_than_the_wheel_promises_is_refused(
    builder, source, tmp_path, monkeypatch
):
    with source.open("a") as code:
        code.write('asm(".section .dynstr; .asciz \\"GLIBC_2.99\\""); ')
    monkeypatch.setattr(builder, "command", lambda _: [build.compiler()])
    monkeypatch.setitem(builder.PLATFORMS, "manylinux_2_28_test", (platform.machine(), ""))
    slowest = for_machine()[-1].name
    with pytest.raises(SystemExit, match=r"needs glibc 2\.99, but manylinux_2_28_test promises "
                       r"2\.28"):
        builder.build("manylinux_2_28_test", tmp_path / "libraries", [slowest])


def test_a_platform_without_a_compiler_is_refused_in_one_line(builder, monkeypatch):
    with pytest.raises(SystemExit, match="unknown platform 'amiga'; choose manylinux_2_28_x86_64 "
                       "or "):
        builder.command("amiga")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="on Debian: apt-get install"):
        builder.command("linux_aarch64")


def test_the_compiler_lays_out_every_field_as_python_does(tmp_path):
    # Every number that Python reads from the header, by the C++ expression of the same value.
    found = dict(abi.CONSTANTS)
    for names in abi.ENUMS.values():
        found |= {name: number for number, name in enumerate(names)}
    for name, structure in abi.STRUCTURES.items():
        found[f"sizeof({name})"] = ctypes.sizeof(structure)
        for field, *_ in structure._fields_:
            found[f"offsetof({name}, {field})"] = getattr(structure, field).offset
            found[f"sizeof({name}::{field})"] = getattr(structure, field).size
    assert len(found) > 300
    lines = [f'printf("%lld\\n", (long long)({expression}));' for expression in found]
    includes = "#include <cstddef>", "#include <cstdio>", f'#include "{abi.HEADER}"'
    program = tmp_path / "layout"
    printed(build.compiler(), "-std=c++17", "-o", program, "-x", "c++", "-",
            input="\n".join([*includes, "int main() {", *lines, "}"]))
    assert dict(zip(found, map(int, printed(program).split()), strict=True)) == found
