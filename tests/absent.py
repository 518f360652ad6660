"""Processes in which some packages are not installed, the processes that they start included."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
ABSENT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: (
    None if name.partition(".")[0] in {names!r} else find(name, *rest))
"""
"""What Python runs at its start, a module sitecustomize: packages that no search finds."""


@contextmanager
def environment_without(*names: str) -> Iterator[dict[str, str]]:
    """Give the environment variables of processes in which packages are not installed."""
    with TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(ABSENT.format(names=names))
        yield {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(ROOT)])}


def python_without(names, code, *arguments):
    """Run Python code in a process of its own, in which packages are not installed."""
    with environment_without(*names) as environment:
        return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True,
                              text=True, check=False, env=environment)


def superres_without(names, *commands):
    """Run command lines, lists of words, in one such process; its exit code is the largest."""
    code = ("import json, sys; from superres.cli.main import run; "
            "sys.exit(max([run(words) for words in json.loads(sys.argv[1])]))")
    return python_without(names, code, json.dumps(commands))
