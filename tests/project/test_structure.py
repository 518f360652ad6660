"""The rules for the packages, beside the layers that import-linter checks."""

from __future__ import annotations

import ast
import inspect
import json
import re
from pathlib import Path

import grimp
import pytest
import torch

from superres.decoding.plain.blockwise import PlainDecoder
from superres.decoding.plain.state import DecodeState

PACKAGE = Path(__file__).parents[2] / "superres"
APART = ("nn", "decoding", "tasks", "survey")
ROOT = PACKAGE.parent
GUIDES = {"scripts/benchmark/proposers.py": "docs/proposers.md",
          "scripts/check_transformers.py": "docs/api.md",
          "scripts/device/run.sh": "docs/engines.md",
          "scripts/train/prepare_celeba.py": "docs/data.md",
          **{path.relative_to(ROOT).as_posix(): "docs/rules.md"
             for path in (ROOT / "scripts" / "rules").glob("*.py")
             if "RULES = " in path.read_text()}}
"""Scripts that a user runs by a guide; every rule is in the guide of rules."""


@pytest.fixture(scope="module")
def imports():
    """Which modules each module imports, those that only type checkers see included."""
    graph = grimp.build_graph("superres", cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def test_few_modules_lie_directly_in_the_package():
    assert len([path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]) <= 8


def test_no_files_import_each_other_in_a_circle(imports):
    left = dict(imports)
    while ends := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in ends:
            del left[name]
    assert not left


@pytest.mark.parametrize("package", APART)
def test_network_decoder_tasks_and_survey_do_not_import_one_another(package, imports):
    others = tuple(f"superres.{other}" for other in APART if other != package)
    for name, imported in imports.items():
        if name.startswith(f"superres.{package}"):
            assert not [one for one in imported if one.startswith(others)], name


def test_no_test_sets_the_clock_of_the_process():
    """Servers of other tests run in threads of the same process, and wait by it: `fakes.changed`
    has another clock."""
    setting = re.compile(r"""setattr\(\s*(\w+\.)*time,|setattr\(\s*"[\w.]*\btime\.""")
    assert [path for path in Path(__file__).parents[1].rglob("*.py")
            if setting.search(path.read_text("utf-8"))] == []


def test_the_network_reads_no_decoding_option():
    for path in (PACKAGE / "nn").rglob("*.py"):
        assert "DecodeConfig" not in path.read_text(), path


@pytest.mark.slow
def test_a_public_method_without_docstring_has_the_name_of_one_that_is_described():
    texts = [path.read_text() for path in PACKAGE.rglob("*.py")]
    methods = [(kind.name, node.name, ast.get_docstring(node)) for text in texts
               for kind in ast.parse(text).body
               if isinstance(kind, ast.ClassDef) and kind.name[0] != "_"
               for node in kind.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
    described = {method for _, method, docstring in methods if docstring}
    assert [found for found in methods if found[1] not in described] == []


def test_the_algorithm_is_on_one_screen():
    steps = PlainDecoder.iterate, PlainDecoder.verify, PlainDecoder.propose
    assert sum(len(inspect.getsource(step).splitlines()) for step in steps) <= 45
    state = vars(DecodeState(2, 12, 3, 3, 0, torch.device("cpu")))
    assert sum(isinstance(value, torch.Tensor) for value in state.values()) <= 12


def test_a_script_lives_only_while_something_alive_names_it():
    """The Makefile, CI and the tables whose values are kept do, and the guides of GUIDES; and a
    script that lives, what it imports or starts. A table that is printed needs no script."""
    scripts = {path.relative_to(ROOT).as_posix(): path.read_text()
               for path in (ROOT / "scripts").rglob("*.*") if path.suffix in (".py", ".sh", ".mjs")}
    texts = [(ROOT / name).read_text()
             for name in ("Makefile", ".ci/run", "pyproject.toml", "mkdocs.yml")]
    for path in (ROOT / "docs" / "measurements").glob("*.json"):
        document = json.loads(path.read_text())
        if "printed" not in document:
            texts += [document["command"], f"import {document['table']}\n"]
    living = {name for name in scripts if any(name in text for text in texts)}
    for name, guide in GUIDES.items():
        assert name in (ROOT / guide).read_text(), guide
        living.add(name)
    texts += [scripts[name] for name in living]
    while texts:
        text = texts.pop()
        named = {name for name in scripts.keys() - living
                 if re.search(rf"^\s*(import|from) {Path(name).stem}\b|\b{Path(name).name}\b",
                              text, re.MULTILINE)}
        living |= named
        texts += [scripts[name] for name in named]
    assert scripts.keys() - living == set()
