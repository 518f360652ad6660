"""Coverage-guided fuzzing of readers with atheris: python tests/proofs/fuzz/fuzz.py image
[-max_total_time=600 ...].

Several targets, with commas between them, are fuzzed one after the other. The other words are
libFuzzer's. A finding is left as crash-* in the current folder.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import warnings
from pathlib import Path

import atheris

sys.path[:0] = map(str, (Path(__file__).parent, Path(__file__).parents[2],
                         Path(__file__).parents[3] / "scripts"))

with atheris.instrument_imports(include=["PIL", "json", "safetensors", "superres", "targets",
                                         "zipfile", "tarfile"]):
    import targets


MORE_BYTES = 2 << 30  # address space that a target may take: too much memory is a finding


def limit_memory() -> None:
    """Limit the address space to what is in use and `MORE_BYTES`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MORE_BYTES, used + MORE_BYTES))


def main() -> None:
    """Fuzz the targets that the command line names, each in a process of its own: the imports take
    most of the time."""
    names, *words = sys.argv[1:]
    warnings.simplefilter("ignore")
    failed = []
    for name in names.split(","):
        child = os.fork()
        if not child:
            fuzz(name, words)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def fuzz(name: str, words: list[str]) -> None:
    """Fuzz a target until its time is over; libFuzzer may end the process."""
    target = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.seeds(name)):
            (Path(corpus) / str(number)).write_bytes(seed)
        limit_memory()
        atheris.Setup([sys.argv[0], *words, corpus], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
