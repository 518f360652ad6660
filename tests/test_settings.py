"""One option, one place: the field of a decoding setting is all that the command line, surveys and the demo need."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from test_cli_options import COMMANDS

from superres.cli.main import run
from superres.cli.options import DecodingCommand, decode_config
from superres.config import FACES, TRANSLATION, DecodeConfig, setting, settings_of
from superres.decoding.acceptance import CRITERIA, Exact
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.heads import HeadProposer
from superres.errors import ConfigError
from superres.pipeline.options import combined, dependent_on

ROOT = Path(__file__).parent.parent
REGISTRIES = {"accept": CRITERIA, "proposer": PROPOSERS}

TOY = '''
from __future__ import annotations

from dataclasses import dataclass

import superres.config
import superres.config.decoding
from superres.config import FACES, DecodeConfig, setting


@dataclass(frozen=True)
class Toy(DecodeConfig):
    """The settings with one more."""

    patience: int = setting(3, "Steps to wait, 0 or more.", "P", least=0, tasks=(FACES,))


superres.config.DecodeConfig = superres.config.decoding.DecodeConfig = Toy

import sys

import typer

from superres.cli.main import app, run
from superres.cli.options import decode_config
from superres.evaluation.survey_methods import parse_spec

for words in (["upscale"], ["evaluate", "images"], ["translate"]):
    print("##", *words, flush=True)
    assert run([*words, "--help"]) == 0
print("##", flush=True)
upscale = typer.main.get_command(app).commands["upscale"]
print(decode_config(upscale.make_context("upscale", ["a.png", "--output", "out", "--patience", "7"])))
print(parse_spec("name=slow,patience=5").settings)
run(["upscale", "a.png", "--output", "out", "--patience", "long"])
run(["upscale", "a.png", "--output", "out", "--patience", "-1"])
assert "torch" not in sys.modules
'''
"""A setting added in a module of its own, and how the command line and surveys offer it."""


@dataclass(frozen=True)
class Toy(DecodeConfig):
    """The settings with three more, which the demo offers."""

    patience: int = setting(3, "Steps to wait.", least=1)
    careful: bool = setting(False, "Look twice.")
    fan: int = setting(4, "Ways to go on.", depends_on="accept")


@pytest.mark.slow
def test_a_new_field_is_an_option_with_its_help_and_a_key_of_a_survey(tmp_path):
    (tmp_path / "toy.py").write_text(TOY)
    made = subprocess.run([sys.executable, tmp_path / "toy.py"], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=False,
                          capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    upscale, images, translate, rest = re.split(r"^##.*\n", made.stdout, flags=re.MULTILINE)[1:]
    for text in (upscale, images):
        assert re.search(r"--patience P +Steps to wait, 0 or more\.\s+\[default: 3\]", text)
    assert "--patience" not in translate
    assert "patience=7" in rest
    assert "{'patience': 5}" in rest
    assert "Invalid value for '--patience'" in made.stderr
    assert "patience must be at least 0, not -1" in made.stderr


def test_a_new_field_with_a_control_is_on_the_page_and_in_its_interface(monkeypatch):
    gr = pytest.importorskip("gradio")
    from superres.web.controls import CONTROLS, Control, decoding_controls, named, offered, options_of

    monkeypatch.setitem(CONTROLS, "patience", Control("Patience", 9))
    monkeypatch.setitem(CONTROLS, "careful", Control("Careful", tasks=(FACES, TRANSLATION)))
    monkeypatch.setitem(CONTROLS, "fan", Control("Fan"))
    with gr.Blocks():
        *_, patience, careful, fan = decoding_controls(Toy(), 10)
        text = decoding_controls(Toy(), 10, TRANSLATION)
    assert (type(patience), type(careful), type(fan)) == (gr.Slider, gr.Checkbox, gr.Number)
    assert (patience.label, patience.info, patience.value) == ("Patience", "Steps to wait.", 3)
    assert (patience.minimum, patience.maximum) == (1, 9)
    assert patience.visible
    assert not fan.visible  # no criterion reads it
    assert [control.label for control in text] == ["Block size", "Acceptance", "Top k", "Careful"]
    values = [control.value for control in text]
    assert options_of(Toy(), [*values[:-1], True], TRANSLATION) == Toy(careful=True)
    with pytest.raises(ConfigError, match="careful must be true or false, not 'yes'"):
        options_of(Toy(), [*values[:-1], "yes"], TRANSLATION)

    handler = named(lambda lines, *values: [lines, *values], *offered(Toy(), TRANSLATION))
    assert [name for name, *_ in gr.utils.get_function_params(handler)] == [
        "lines", "block_size", "accept", "top_k", "careful"]
    assert handler("a", 1, "exact", 2, True) == ["a", 1, "exact", 2, True]


def test_what_depends_on_a_criterion_or_a_proposer_is_what_they_read():
    read = {name for criterion in CRITERIA.values() for name in criterion.settings}
    assert read == set(dependent_on("accept"))
    read = {name for kind in PROPOSERS.values() for name in (*kind.settings, kind.resource) if name}
    assert read == set(dependent_on("proposer"))


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
def test_a_switch_is_written_as_true_or_false(text, value):
    adaptive = settings_of(DecodeConfig)["adaptive"]
    assert adaptive.read("adaptive", text) is value
    with pytest.raises(ConfigError, match="adaptive must be one of true, false, not 'yes'"):
        adaptive.read("adaptive", "yes")


# Names


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_registered_name_is_known_until_it_is_removed(name, capsys):
    registry = REGISTRIES[name]
    registry["toy"] = {"accept": Exact, "proposer": HeadProposer}[name]
    try:
        options = {name: "toy", "temperature": 0.9}
        assert getattr(combined(DecodeConfig(), options, 10), name) == "toy"
        words = ["a.png", "--output", "out", f"--{name}", "toy"]
        assert getattr(decode_config(COMMANDS["upscale"].make_context("upscale", words)), name) == "toy"
        assert run(["upscale", "--help"]) == 0
        assert f"[{'|'.join(registry)}]" in capsys.readouterr().out
    finally:
        registry.pop("toy")
    with pytest.raises(ConfigError, match="not 'toy'"):
        DecodeConfig(**{name: "toy"})


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_h_is_help(name, capsys):
    assert run([*name.split(), "--help"]) == run([*name.split(), "-h"]) == 0
    first, second = capsys.readouterr().out.split("Usage: ")[1:]
    assert first == second
    assert "-h, --help" in first


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if isinstance(command, DecodingCommand)])
def test_the_sections_hold_every_option(name, capsys):
    assert run([*name.split(), "--help"]) == 0
    listed = re.findall(r"^  (?:-h, )?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert sorted(listed) == sorted({parameter.opts[0] for parameter in COMMANDS[name].params
                                     if parameter.param_type_name == "option"} | {"--help"})
