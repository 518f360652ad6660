"""The README and docs/: their code runs, their command lines parse, and the files and names that
they give exist."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import superres
from superres.cli.options import DEFAULTS, decode_config, given_options
from superres.decoding import reference
from superres.decoding.acceptance import CRITERIA
from superres.decoding.proposers import PROPOSERS
from superres.native.variants import BY_NAME
from superres.pipeline.choose import ENGINES
from superres.pipeline.resolved_options import combined
from tests.cli.test_options import BLOCK, COMMANDS, command_lines, command_of

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS = [*sorted(ROOT.glob("docs/*.ipynb")), *sorted(ROOT.glob(".github/*.md")),
          ROOT / "SECURITY.md", *sorted(ROOT.glob("checkpoints/*/*.md"))]
MARK = re.compile(r"<!-- not run: (\w[^\n]*) -->\n(?=```python\n)")
PYTHON = re.compile(rf"(?:{MARK.pattern})?```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HREF = re.compile(r'href="?([^">\s]+)')
ID = re.compile(r'id="?([^">\s]+)')
NAME = re.compile(r"\bx86-64[\w-]*|(?<=`)(?:native|triton)(?:-\w+)?(?=[`,])")
FILE = re.compile(r"`((?:superres|scripts|tests|checkpoints|docs)/[\w./-]+)`")


def name(path):
    return str(path.relative_to(ROOT))


def prose(path):
    return BLOCK.sub("", path.read_text())


EXAMPLES = [pytest.param(code, id=f"{name(path)}-{number}") for path in PAGES
            for number, (reason, code) in enumerate(PYTHON.findall(path.read_text())) if not reason]
LINES = [pytest.param(words[1:], id=f"{name(path)}: {' '.join(words[1:])}") for path in PAGES
         for language, block in FENCED.findall(path.read_text()) if language != "python"
         for words in command_lines(f"```\n{block}```\n") if Path(words[0]).name == "superres"]


@pytest.mark.parametrize("code", EXAMPLES)
def test_a_python_block_runs(code, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "scripts" / "faces", tmp_path / "scripts" / "faces")
    shutil.copy(ROOT / "scripts" / "faces" / "face-1.png", tmp_path / "face8x8.png")
    monkeypatch.chdir(tmp_path)
    before = {*PROPOSERS, *CRITERIA, *ENGINES}
    try:
        exec(code, {})  # noqa: S102 -- our own page
    finally:
        for registry in (PROPOSERS, CRITERIA, ENGINES):
            for registered in registry.keys() - before:
                del registry[registered]


@pytest.mark.parametrize("words", LINES)
def test_a_command_line_in_a_block_is_taken(words, monkeypatch):
    monkeypatch.chdir(ROOT)
    command = command_of(["superres", *words])
    assert not hasattr(COMMANDS[command], "commands"), f"no command: {words}"
    context = COMMANDS[command].make_context(command, words[len(command.split()):])
    if context.obj:  # it has decoding options
        combined(DEFAULTS, given_options(context, decode_config(context)), 10)


def test_the_pages_quote_the_algorithm_and_its_example_which_runs():
    assert doctest.testmod(reference) == (0, 2)
    [example] = doctest.DocTestFinder().find(reference, "reference", globs={})[:1]
    for page in ("README.md", "docs/acceptance.md"):
        assert example.examples[-1].want in (ROOT / page).read_text()
    body = inspect.getsource(reference.blockwise).partition('iterations."""\n')[2]
    assert textwrap.dedent(body) in (ROOT / "docs" / "architecture.md").read_text()


def test_the_readme_is_one_page():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def anchors(path):
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    titles = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def leads(path, link):
    """Return whether a page's link leads to a file, and to a heading if it names one."""
    place, _, anchor = link.partition("#")
    target = path.parent / place if place else path
    return "://" in link or (target.exists() and (not anchor or anchor in anchors(target)))


def test_links_lead_to_files_and_headings_and_named_files_exist():
    pages = {name(path): (path, prose(path)) for path in (*PAGES, *OTHERS)}
    assert [(page, file) for page, (_, text) in pages.items() for file in FILE.findall(text)
            if not (ROOT / file).exists()] == []
    assert [(page, link) for page, (path, text) in pages.items() for link in LINK.findall(text)
            if not leads(path, link)] == []


def test_the_engines_and_variants_that_the_pages_name_exist():
    names = {found for path in (*PAGES, *OTHERS) for found in NAME.findall(prose(path))}
    assert names <= {"x86-64", *BY_NAME, *ENGINES}, names
    assert {"x86-64-v2", "x86-64-v4", "native", "native-int8", "triton-bf16"} <= names


def test_the_names_on_the_page_of_the_api_exist():
    names = re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE)
    assert ({f"superres.{public}" for public in superres.__all__ if public != "__version__"}
            <= set(names))
    for full in names:
        module, _, attribute = full.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), full


def test_the_architecture_has_the_layers_that_are_checked():
    layers = re.search(r"^layers = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(),
                       re.DOTALL | re.MULTILINE)[1]
    checked = [(str(number), package) for number, layer in enumerate(layers.splitlines(), 1)
               for package in re.findall(r"\w+", layer)]
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text(),
                      flags=re.MULTILINE)
    assert rows == checked


def test_the_citation_names_this_version():
    assert f"\nversion: {superres.__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.extended
def test_the_site_builds_its_links_lead_to_its_pages_and_it_loads_nothing_from_other_hosts(
    tmp_path):
    pytest.importorskip("material", reason="the docs extra is not installed")
    built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir",
                            tmp_path / "site"],
                           cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = sorted((tmp_path / "site").glob("*.html"))
    assert {page.stem for page in pages} >= {path.stem for path in PAGES[1:]}
    texts = {page.name: page.read_text() for page in pages}
    for page, text in texts.items():
        assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?(?:https?:)?//[^\s>]*",
                          text) == []
        links = {link for link in HREF.findall(text) if "://" not in link
                 and not link.startswith("/")}
        links -= {"try/index.html"}  # of `make site`
        for place, _, anchor in (link.partition("#") for link in links):
            assert (tmp_path / "site" / place).exists(), f"{page} links to {place}"
            assert not anchor or anchor in ID.findall(
                texts[place or page]
            ), f"{page} links to {place}#{anchor}"
