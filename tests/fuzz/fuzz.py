"""Coverage-guided fuzzing of a reader with atheris: python tests/fuzz/fuzz.py image [-max_total_time=600 ...].

The words after the target's name are libFuzzer's. A finding is left as crash-* in the current folder.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

with atheris.instrument_imports(include=["PIL", "json", "safetensors", "superres", "targets", "zipfile", "tarfile"]):
    import targets


MORE_BYTES = 2 << 30  # address space that a target may take: too much memory is a finding


def limit_memory() -> None:
    """Limit the address space to what is in use and `MORE_BYTES`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, used + MORE_BYTES))


def main() -> None:
    """Fuzz the target that the command line names."""
    name, *words = sys.argv[1:]
    warnings.simplefilter("ignore")
    target = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.seeds(name)):
            (Path(corpus) / str(number)).write_bytes(seed)
        limit_memory()
        atheris.Setup([sys.argv[0], *words, corpus], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
