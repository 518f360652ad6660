"""Coverage-guided fuzzing of a reader with atheris: python tests/fuzz/fuzz.py image [-max_total_time=600 ...].

The words after the target's name are libFuzzer's. A finding is left as crash-* in the current folder.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["PIL", "json", "safetensors", "superres", "targets", "zipfile", "tarfile"]):
    import targets


def main() -> None:
    """Fuzz the target that the command line names."""
    name, *words = sys.argv[1:]
    warnings.simplefilter("ignore")
    target = targets.TARGETS[name]
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.seeds(name)):
            (Path(corpus) / str(number)).write_bytes(seed)
        atheris.Setup([sys.argv[0], *words, corpus], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
