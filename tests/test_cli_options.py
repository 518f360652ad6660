"""Every option that a text of the project names is an option of the command that the text is about."""

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

ROOT = Path(__file__).parent.parent
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("checkpoints/*/*.md"),
                *ROOT.glob(".github/*.md")])
MODULES = sorted(path for path in (ROOT / "superres").rglob("*.py") if "web" not in path.parts)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
SCRIPTS = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("scripts/**/*.py") if "__main__" in path.read_text()]
FOREIGN = {"--nproc_per_node", "--strict", "--group", "--no-deps", "--upgrade"}
"""Options of torchrun, mypy and pip."""

PROGRAM = re.compile(r"(^|/)superres$|^app\.py$|^scripts/[\w/]+\.py$")

PAGES = {
    "docs/acceptance.md": ["upscale", "tune"], "docs/engines.md": ["upscale"],
    "docs/many-images.md": ["upscale", "manifest"],
    "docs/web-demo.md": ["app.py"], "docs/translation.md": ["translate", "evaluate text", "train"],
    "docs/training.md": ["train", "evaluate images"], "docs/survey.md": ["survey", "app.py"],
}
"""What pages are about, beside the commands whose lines they have; other texts may name the options of all."""

SUBJECTS = {"batch/text": ["translate"], "batch": ["upscale"], "survey": ["survey"],
            "tasks/face_data": ["scripts/train/prepare_celeba.py"],
            "cli/space": ["space", "app.py"], "training": ["train", "scripts/train/prepare_celeba.py"]}
"""What modules with options in their messages are about, by the beginning of their path."""


def walk(command, name=""):
    yield name, command
    for word, below in getattr(command, "commands", {}).items():
        yield from walk(below, f"{name} {word}".strip())


COMMANDS = dict(walk(typer.main.get_command(app)))


def spellings(command):
    return {"--help"} | {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


@cache
def options_of(command):
    """Return the options of a command and of all below it: "upscale", "app.py" or "scripts/benchmark/engines.py"."""
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


def options_of_all(commands):
    return set().union(*map(options_of, commands))


def command_lines(text):
    """Return the words of each command line of superres in Markdown: in a block, or between backticks."""
    lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
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
    """Return the name of the command that a command line calls; of "benchmark images|text", that of both."""
    if words[0].endswith(".py"):
        return words[0]
    name = ""
    for word in words[1:]:
        if (longer := f"{name} {word}".strip()) not in COMMANDS:
            break
        name = longer
    return name


LINES = [(str(path.relative_to(ROOT)), words) for path in TEXTS for words in command_lines(path.read_text())]


@pytest.mark.parametrize(("text", "words"), LINES, ids=str)
def test_a_command_line_gives_options_that_its_command_has(text, words):
    named = {match[0] for word in words if (match := OPTION.match(word))}
    assert named <= options_of(command_of(words))


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_option_in_a_text_is_one_of_what_its_section_is_about(path):
    parts = re.split(r"^## (.*)\n", path.read_text(), flags=re.MULTILINE)
    everything = ["", "app.py", *SCRIPTS]
    for heading, body in zip(["", *parts[1::2]], parts[::2], strict=True):
        named = set(OPTION.findall(body)) - FOREIGN
        about = PAGES.get(path.relative_to(ROOT).as_posix(), everything)
        assert named <= options_of_all([*about, *map(command_of, command_lines(body))]), heading


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_option_in_a_message_is_one_of_what_its_module_is_about(path):
    where = path.relative_to(ROOT / "superres").as_posix()
    about = next((commands for start, commands in SUBJECTS.items() if where.startswith(start)), [""])
    texts = [node.value for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert {option for text in texts for option in OPTION.findall(text)} <= options_of_all(about)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option_of_the_command_and_no_other(name, capsys):
    assert run([*name.split(), "--help"]) == run([*name.split(), "-h"]) == 0
    first, second = capsys.readouterr().out.split("Usage: ")[1:]
    assert first == second
    assert set(OPTION.findall(first)) <= options_of(name)
    listed = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", first, re.MULTILINE)
    options = {one.opts[0] for one in COMMANDS[name].params if one.param_type_name == "option"}
    assert sorted(listed) == sorted(options | {"--help"})


@pytest.mark.parametrize("command", [name for name, found in COMMANDS.items() if not hasattr(found, "commands")])
def test_help_shows_words_of_the_command_and_not_of_python(command, capsys):
    assert run([*command.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
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
