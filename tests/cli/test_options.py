"""Every option that a text of the project names is an option of the command that the text is
about."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import sys
from functools import cache
from pathlib import Path

import pytest
import typer

from superres.cli.main import app, run

ROOT = Path(__file__).parents[2]
TEXTS = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("checkpoints/*/*.md"),
                *ROOT.glob(".github/*.md")} - {ROOT / "CHANGELOG.md"})  # which names what left
MODULES = sorted(path for path in (ROOT / "superres").rglob("*.py") if "web" not in path.parts)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPTS = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("scripts/**/*.py") if "__main__"
           in path.read_text()]
FOREIGN = {"--nproc_per_node", "--strict", "--group", "--no-deps", "--upgrade", "--export"}
"""Options of torchrun, mypy, pip and the linker of WebAssembly."""

PROGRAM = re.compile(r"(^|/)superres$|^app\.py$|^scripts/[\w/]+\.py$")


def walk(command, name=""):
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from walk(below, f"{name} {word}".strip())


COMMANDS = dict(walk(typer.main.get_command(app)))


def spellings(command):
    return {"--help"} | {name for parameter in command.params
                         for name in (*parameter.opts, *parameter.secondary_opts)}


@cache
def options_of(command):
    """Return the options of a command and of all below it: "upscale", "app.py" or
    "scripts/benchmark/speed.py"."""
    command = "app" if command == "app.py" else command
    if not command.endswith(".py"):
        return set().union(*(spellings(found) for name, found in COMMANDS.items()
                             if name == command or name.startswith(f"{command} ") or not command))
    spec = importlib.util.spec_from_file_location(f"options_{Path(command).stem}", ROOT / command)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str((ROOT / command).parent))  # scripts import modules beside them
        spec.loader.exec_module(module)
    if hasattr(module, "argparse"):
        return set(re.findall(r'"(--[a-z][\w-]*)"', (ROOT / command).read_text()))
    parser = getattr(module, "app", None)
    if not isinstance(parser, typer.Typer):
        parser = typer.Typer()
        parser.command()(module.main)
    return set().union(*(spellings(found) for _, found in walk(typer.main.get_command(parser))))


def command_lines(text):
    """Return the words of each command line of superres in Markdown: in a block, or between
    backticks."""
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n",
                                                                             " ").splitlines()]
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]
    for line in (*lines, *spans):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # an apostrophe in what is no command line
            continue
        ours = [place for place, word in enumerate(words) if PROGRAM.search(word)]
        if ours:
            yield words[ours[0]:]


def command_of(words):
    """Return the name of the command that a command line calls; of "benchmark images|text", that of
    both."""
    if words[0].endswith(".py"):
        return words[0]
    name = ""
    for word in words[1:]:
        if (longer := f"{name} {word}".strip()) not in COMMANDS:
            break
        name = longer
    return name


LINES = [(str(path.relative_to(ROOT)), words) for path in TEXTS
         for words in command_lines(path.read_text())]


@pytest.mark.slow
def test_a_command_line_gives_options_that_its_command_has():
    named = [(text, words, {match[0] for word in words if (match := OPTION.match(word))}) for text,
             words in LINES]
    assert [found for found in named
            if found[-1] and not found[-1] <= options_of(command_of(found[1]))] == []


@pytest.mark.slow
def test_every_option_in_a_text_or_a_message_exists():
    known = FOREIGN.union(*map(options_of, ["", "app.py", *SCRIPTS]))
    named = [(path, option) for path in TEXTS for option in OPTION.findall(path.read_text())]
    for path in MODULES:
        named += [(path, option) for node in ast.walk(ast.parse(path.read_text()))
                  if isinstance(node, ast.Constant)
                  and isinstance(node.value, str) for option in OPTION.findall(node.value)]
    assert [found for found in named if found[1] not in known] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_of_the_command_and_no_other_in_words_of_its_own(name, capsys):
    assert run([*name.split(), "--help"]) == run([*name.split(), "-h"]) == 0
    first, second = capsys.readouterr().out.split("Usage: ")[1:]
    assert first == second
    assert set(OPTION.findall(first)) <= options_of(name)
    listed = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", first, re.MULTILINE)
    options = {one.opts[0] for one in COMMANDS[name].params if one.param_type_name == "option"}
    assert sorted(listed) == sorted(options | {"--help"})
    shown = " ".join(first.split())
    assert not re.search(r"<(str|int|float|path|list|bool)", shown)
    assert not re.search(r"\[default: [^\]]*\] +\[default", shown)  # two defaults
    assert "[default: 1.0]" not in shown or "--nucleus" not in shown  # checkpoints have their own


def test_help_is_about_the_task(capsys):
    assert run(["translate", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for word in ("grey", "picture", "colour"):
        assert word not in shown


def test_a_usage_error_names_the_command_whose_help_helps(capsys):
    for words, command in ((["upscale", "--what"], "superres upscale"), (["what"], "superres"),
                           (["survey", "report"], "superres survey report")):
        assert run(words) == 2
        assert capsys.readouterr().err.endswith(f"; see {command} --help\n")
