"""Build and run the C++ tests of the native engine, or its benchmark, for every variant that runs
here.

    python scripts/native_kernels.py test                    # make native-test
    python scripts/native_kernels.py bench                   # make native-bench
    python scripts/native_kernels.py step                    # of one step, as JSON, for `bench`
    python scripts/native_kernels.py test x86-64-v3 aarch64  # these variants only
    python scripts/native_kernels.py test --sanitize thread  # the decodes' threads, for data races
    python scripts/native_kernels.py test --sanitize address # memory, and undefined behaviour

Each variant is compiled by $CXX (c++ by default), and by clang++ if it is installed. The variants
of aarch64 are compiled by a cross compiler and run by qemu-aarch64 if both are installed, and those
of WebAssembly by the package ziglang and Node.js: their tests, not their benchmark. Python's
standard library suffices otherwise, except for the roofline that ends the benchmark: the least time
in which one core can read the bytes of a step and do its multiplications, and the share of the
step's time that this is. It takes superres.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from superres.config import ModelConfig
    from superres.pipeline.pipeline import Pipeline

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "superres" / "native"
CPP = NATIVE / "cpp"
BUILD = ROOT / "build" / "native"
VARIANTS = runpy.run_path(str(NATIVE / "variants.py"))

CHECKPOINT = "celeba-8to32"
"""The network whose steps the roofline is of."""
NUMBER_BYTES = {"native": (2, 4), "native-int8": (1, 1)}
"""Bytes of a weight, and of a key's, a value's or an input's number, by engine."""

CROSS, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
# Processors that the emulator imitates: the Cortex-A72 has no dot products.
EMULATED = {"aarch64": "cortex-a72", "aarch64-dotprod": "max"}

SANITIZE = {"thread": ("-fsanitize=thread", "-g", "-O1", "-fno-builtin-memcpy"),
            "address": ("-fsanitize=address,undefined,float-cast-overflow", "-g", "-O1",
                        "-fno-sanitize-recover=all")}
"""Flags by sanitizer. ThreadSanitizer sees no access of more than 16 bytes but calls of memcpy,
which vectors use."""

NODE_VERSION = 22
"""The first version of Node.js with relaxed SIMD."""


class Target(NamedTuple):
    """One way to compile the sources: a variant, its compiler, and the command that runs the
    result."""

    variant: Any
    compiler: tuple[str, ...]
    runner: tuple[str, ...] = ()
    sanitizer: str | None = None

    @property
    def label(self) -> str:
        """The compiler, in a word."""
        return "ziglang" if "ziglang" in self.compiler else Path(self.compiler[0]).name

    def file(self, name: str) -> Path:
        """Return the path of a file that is made for this target."""
        return (BUILD / "-".join(filter(None, (self.variant.name, self.label, self.sanitizer)))
                / name)

    def compile(self, source: Path) -> Path:
        """Return the object file of `source`; compile it if it or a header has changed."""
        target = self.file(f"{source.parent.name}-{source.stem}.o")
        needed = [source, NATIVE / "variants.py", Path(__file__), *CPP.rglob("*.h")]
        if not target.exists() or target.stat().st_mtime < max(path.stat().st_mtime
                                                               for path in needed):
            target.parent.mkdir(parents=True, exist_ok=True)
            # GCC notes that other compilers pass wide vectors in another way; none is passed
            # between files.
            flags = [*VARIANTS["FLAGS"], *self.variant.flags,
                     f"-DSELF_TEST={VARIANTS['SELF_TEST']:#x}u", "-Wall", "-Wextra", "-Wno-psabi",
                     "-Wno-unused-local-typedefs", *SANITIZE.get(self.sanitizer, ())]
            execute(*self.compiler, *flags, f"-I{CPP}", "-c", "-o", f"{target}.part", str(source))
            Path(f"{target}.part").replace(target)
        return target


def execute(*words: str) -> None:
    """Run a command, and exit if it fails."""
    if subprocess.run(words, check=False).returncode:
        raise SystemExit(f"failed: {' '.join(words)}")


def features(compiler: str) -> frozenset[str]:
    """Return what this processor can do, as cpp/probe.cpp names it."""
    probe = BUILD / "probe.so"
    BUILD.mkdir(parents=True, exist_ok=True)
    execute(compiler, *VARIANTS["PROBE_FLAGS"], "-o", str(probe), str(CPP / "probe.cpp"))
    code = ctypes.CDLL(str(probe))
    code.superres_processor.restype = ctypes.c_char_p
    return frozenset(code.superres_processor().decode().split())


def targets(emulate: bool) -> Iterator[Target]:
    """Return the targets that run here, emulated ones too if `emulate`, and print which do not
    run."""
    compiler = os.environ.get("CXX", "c++")
    compilers = [name for name in dict.fromkeys((compiler, "clang++")) if shutil.which(name)]
    if not compilers:
        raise SystemExit(f"no C++ compiler ({compiler}, clang++) is installed")
    available = features(compilers[0])
    for variant in reversed(VARIANTS["for_machine"]()):
        if missing := variant.missing(available):
            print(f"{variant.name}: not run, because this processor lacks {', '.join(missing)}")
        else:
            yield from (Target(variant, (name,)) for name in compilers)
    if emulate:
        yield from wasm_targets()
    if not emulate or platform.machine() in ("aarch64", "arm64"):
        return
    if lacking := [name for name in (CROSS, EMULATOR) if not shutil.which(name)]:
        print(f"aarch64: not run, because {' and '.join(lacking)} is missing (on Debian: apt-get "
              "install g++-aarch64-linux-gnu qemu-user)")
        return
    for name, processor in EMULATED.items():
        yield Target(VARIANTS["BY_NAME"][name], (CROSS,), (EMULATOR, "-L", "/usr/aarch64-linux-gnu",
                                                           "-cpu", processor))


def package(name: str) -> Path | None:
    """Return the folder of an installed package, or None."""
    found = importlib.util.find_spec(name)
    return Path(found.origin).parent if found is not None and found.origin else None


def node() -> str | None:
    """Return the path of a Node.js that has relaxed SIMD: the system's, or that of the package
    playwright; or None."""
    driver = package("playwright")
    for path in (shutil.which("node"), driver and str(driver / "driver" / "node")):
        if path and shutil.which(path):
            text = subprocess.run([path, "--version"], capture_output=True, text=True,
                                  check=False).stdout
            if (version := re.match(r"v(\d+)", text)) and int(version[1]) >= NODE_VERSION:
                return path
    return None


def wasm_targets() -> Iterator[Target]:
    """Return the targets of WebAssembly, or print what is missing."""
    runner = node()
    missing = ["the package ziglang"] * (package("ziglang") is None)
    if missing := missing + [f"Node.js {NODE_VERSION} or newer"] * (runner is None):
        print(f"wasm32: not run, because {' and '.join(missing)} is missing (make wasm-test "
              "installs both)")
        return
    compiler = tuple(VARIANTS["ziglang"](VARIANTS["WASM_TARGET"]))
    for variant in VARIANTS["WASM"]:
        yield Target(variant, compiler,
                     (str(runner), "--no-warnings", str(ROOT / "scripts" / "run_wasi.mjs")))


def build(chosen: list[Target], what: str) -> None:
    """Make the program `what` of each target, from the sources in the folder of that name and
    native.cpp."""
    sources = [CPP / "native.cpp"] * (what == "test") + sorted((CPP / what).glob("*.cpp"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # The longest compilations first.
        jobs = {(target, source): pool.submit(target.compile, source) for source in sources
                for target in chosen}
        for target in chosen:
            objects = [str(jobs[target, source].result()) for source in sources]
            flags = [*SANITIZE.get(target.sanitizer, ()),
                     *["-pthread"] * (target.variant not in VARIANTS["WASM"])]
            execute(*target.compiler, "-O3", *flags, "-o", str(target.file(what)), *objects)


def run_tests(chosen: list[Target]) -> bool:
    """Run the tests of every target at once, print the results and their sum, and return whether
    all passed."""
    passed = failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda target: subprocess.run(
            [*target.runner, str(target.file("test")),
             *["decoding"] * (target.sanitizer == "thread")],
            capture_output=True, text=True, check=False), chosen))
    for target, result in zip(chosen, results, strict=True):
        last = (result.stdout.splitlines() or [""])[-1]
        words = last.split()
        if len(words) == 4 and words[1::2] == ["passed,", "failed"]:
            passed, failed = passed + int(words[0]), failed + int(words[2])
        if result.returncode:
            print(result.stdout + result.stderr, end="")
            if words[2:3] in ([], ["0"]):
                failed += 1  # it ended before its last line
        print(f"{target.variant.name}, {target.label}: "
              f"{last or f'exit status {result.returncode}'}", flush=True)
    print(f"{passed} passed, {failed} failed")
    return passed > 0 and failed == 0


def step() -> None:
    """Print the work of a step of CHECKPOINT by engine and columns, and the seconds that it takes
    on one thread."""
    import numpy as np

    import superres

    found = []
    for name in ("native", "native-int8"):
        upscaler = superres.load(CHECKPOINT, device="cpu", engine=name)
        engine: Any = upscaler.scoring
        engine.threads, config = 1, upscaler.model_config
        block = config.attention_block_length
        # it sees as many positions as the mean
        position = config.target_length // 2 // block * block + block // 2
        work = step_work(upscaler, position)
        for columns in (1, 10):
            source = np.full((1, config.source_length), 128)
            session = engine.session(engine.encode(source), columns)
            tokens = np.full((1, columns), 128), np.full(1, position)
            took = min(float(session.part_seconds(*tokens, 1).sum()) for _ in range(500))
            found.append({"engine": name, "columns": columns, "seconds": took, **work})
    print(json.dumps(found))


def step_work(pipeline: Pipeline, position: int) -> dict[str, int]:
    """Return the least work of a step at a decoder position, without prediction heads and
    embeddings.

    "weights" and "cache" are the weights that it reads, and the numbers of keys and values, which
    have "weight_bytes" and "number_bytes" each.
    """
    model, config = pipeline.model, pipeline.model_config
    parts = [model.decoder, *([] if model.neighbourhood is None else [model.neighbourhood])]
    weights = sum(weight.numel() for part in parts for weight in part.parameters())
    weight_bytes, number_bytes = NUMBER_BYTES[pipeline.engine]
    return {"weights": weights + model.project.weight.numel(),
            "cache": config.decoder_layers * 2 * config.width * window(config, position),
            "weight_bytes": weight_bytes, "number_bytes": number_bytes}


def window(config: ModelConfig, position: int) -> int:
    """Return the number of visible keys: all up to `position`, or from the previous attention block
    (section 6.2)."""
    if config.attention == "causal":
        return position + 1
    last, block = position // config.key_distance, config.attention_block_length
    return min(last + 1, block + last % block + 1)


def steps_of(variant: str) -> list[dict[str, Any]]:
    """Return what `step` prints with a variant of the compiled code; nothing, and a line, where
    superres is missing."""
    environment = {**os.environ, "SUPERRES_NATIVE": variant, "PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, __file__, "step"], cwd=ROOT, env=environment,
                            capture_output=True, text=True, check=False)
    if result.returncode:
        print(f"no roofline: {(result.stderr.splitlines() or ['a step failed'])[-1]}")
        return []
    steps: list[dict[str, Any]] = json.loads(result.stdout)
    return steps


def step_bytes(step: dict[str, Any]) -> int:
    """Return how many bytes of weights, keys and values a step reads."""
    return int(step["weights"] * step["weight_bytes"] + step["cache"] * step["number_bytes"])


def memory_sizes() -> list[int]:
    """Return sizes in bytes: half of each cache of this processor, and one that fits none."""
    texts = [path.read_text()
             for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
             if path.with_name("type").read_text().strip() != "Instruction"]
    caches = [int(text.strip().rstrip("K")) * 1024 for text in texts] or [32 * 1024, 512 * 1024]
    return [*(size // 2 for size in caches), max(64 * 2**20, 4 * caches[-1])]


def roofline(steps: list[dict[str, Any]], printed: str) -> Iterator[str]:
    """Return the lines of a table of steps, from the speed of reading and the peaks that the
    benchmark printed."""
    read = {int(size): float(speed) for size, speed in re.findall(r"read: (\d+) bytes ([\d.]+)",
                                                                  printed)}
    peak = dict(re.findall(r"(float32|bfloat16|int8) ([\d.]+)(?: GMAC/s)?[,;]", printed))
    number, widened, byte = (float(peak[name]) for name in ("float32", "bfloat16", "int8"))
    yield (f"a step of {CHECKPOINT} on one core; its limit is the larger of the times to read and "
           "to compute")
    yield f"{'engine':12} columns  MB read   GB/s  M mul.  read us  compute us  step us  share"
    for item in steps:
        size, columns, weights, cache = (step_bytes(item), item["columns"], item["weights"],
                                         item["cache"])
        millions = columns * (weights + cache) / 1e6
        reading = size / read[size] / 1e3
        # A weight of bfloat16 is widened at least once.
        computing = (columns * (weights + cache) / byte if item["number_bytes"] == 1
                     else max(weights / widened, columns * weights / number) + columns * cache
                     / number) / 1e3
        took = 1e6 * item["seconds"]
        yield (f"{item['engine']:12} {columns:7} {size / 1e6:8.2f} {read[size]:6.1f} "
               f"{millions:7.2f} {reading:8.1f} {computing:11.1f} {took:8.1f} "
               f"{max(reading, computing) / took:6.2f}")


def run_benchmark(target: Target) -> None:
    """Print the speed of the kernels of a target, and the roofline of a step."""
    steps = steps_of(target.variant.name)
    sizes = sorted({*memory_sizes(), *map(step_bytes, steps)})
    result = subprocess.run([*target.runner, str(target.file("bench")), *map(str, sizes)],
                            check=False, stdout=subprocess.PIPE, text=True)
    print(result.stdout, end="", flush=True)
    if result.returncode:
        raise SystemExit(f"failed: {target.file('bench')}")
    for line in roofline(steps, result.stdout) if steps else ():
        print(line, flush=True)


def main() -> None:
    """Build and run."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("test", "bench", "step"))
    parser.add_argument("variants", nargs="*", metavar="variant", help="the variants; all by "
                        "default")
    parser.add_argument("--sanitize", choices=SANITIZE, help="test the fastest variant, or those "
                        "named")
    arguments = parser.parse_args()
    if unknown := set(arguments.variants) - set(VARIANTS["BY_NAME"]):
        raise SystemExit(f"unknown variant {', '.join(unknown)}; choose "
                         f"{' or '.join(VARIANTS['BY_NAME'])}")
    if arguments.what == "step":
        step()
        return
    chosen = [target for target in targets(arguments.what == "test" and not arguments.sanitize)
              if not arguments.variants or target.variant.name in arguments.variants]
    if arguments.sanitize:
        fastest = chosen if arguments.variants else chosen[-1:]
        chosen = [target._replace(sanitizer=arguments.sanitize) for target in fastest]
    build(chosen, arguments.what)
    if arguments.what == "test":
        sys.exit(not run_tests(chosen))
    for target in chosen:
        print(f"\n{target.variant.name}, {target.label}", flush=True)
        run_benchmark(target)


if __name__ == "__main__":
    main()
