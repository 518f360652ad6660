"""One option, one place: the field of a decoding setting is all that the command line, surveys and
the demo need."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
import typer

from superres.cli import options
from superres.cli.main import run
from superres.config import FACES, TRANSLATION, DecodeConfig, setting, settings_of
from superres.decoding.acceptance import CRITERIA, Exact
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.verifier import HeadProposer
from superres.errors import ConfigError
from superres.evaluation import survey_methods
from superres.pipeline.resolved_options import combined, dependent_on
from tests.cli.test_options import COMMANDS

REGISTRIES = {"accept": CRITERIA, "proposer": PROPOSERS}


@dataclass(frozen=True)
class Toy(DecodeConfig):
    """The settings with three more, which the demo offers."""

    patience: int = setting(3, "Steps to wait.", "P", least=1, tasks=(FACES,))
    careful: bool = setting(False, "Look twice.")
    fan: int = setting(4, "Ways to go on.", depends_on="accept")


def test_a_new_field_is_an_option_with_its_help_and_a_key_of_a_survey(monkeypatch, capsys):
    for module in (options, survey_methods):
        monkeypatch.setattr(module, "SETTINGS", settings_of(Toy))
        monkeypatch.setattr(module, "DecodeConfig", Toy)
    monkeypatch.setattr(options, "DEFAULTS", Toy())
    decoded = []

    def decode(context: typer.Context) -> None:
        decoded.append(options.decode_config(context))

    def call(task, *words):
        app = typer.Typer(rich_markup_mode=None)
        options.decoding_command(app, task)(decode)
        typer.main.get_command(app).main(list(words), standalone_mode=False)
        return capsys.readouterr().out

    assert re.search(r"--patience P +Steps to wait\.\s+\[default: 3\]", call(FACES, "--help"))
    assert "--patience" not in call(TRANSLATION, "--help")
    call(FACES, "--patience", "7", "--careful")
    assert decoded == [Toy(patience=7, careful=True)]
    assert survey_methods.parse_spec("name=slow,patience=5").settings == {"patience": 5}
    with pytest.raises(ConfigError, match="patience must be at least 1, not 0"):
        call(FACES, "--patience", "0")
    with pytest.raises(typer.BadParameter):
        call(FACES, "--patience", "long")


@pytest.mark.slow
def test_a_new_field_with_a_control_is_on_the_page_and_in_its_interface(monkeypatch):
    gr = pytest.importorskip("gradio")
    from superres.web import controls as page

    monkeypatch.setitem(page.CONTROLS, "patience", page.Control("Patience", 9))
    monkeypatch.setitem(page.CONTROLS, "careful",
                        page.Control("Careful", tasks=(FACES, TRANSLATION)))
    monkeypatch.setitem(page.CONTROLS, "fan", page.Control("Fan"))
    with gr.Blocks():
        *_, patience, careful, fan = page.decoding_controls(Toy(), 10)
        text = page.decoding_controls(Toy(), 10, TRANSLATION)
    assert (type(patience), type(careful), type(fan)) == (gr.Slider, gr.Checkbox, gr.Number)
    assert (patience.label, patience.info, patience.value) == ("Patience", "Steps to wait.", 3)
    assert (patience.minimum, patience.maximum) == (1, 9)
    assert patience.visible
    assert not fan.visible  # no criterion reads it
    assert [control.label for control in text] == ["Block size", "Acceptance", "Top k", "Careful"]
    values = [control.value for control in text]
    assert page.options_of(Toy(), [*values[:-1], True], TRANSLATION) == Toy(careful=True)
    with pytest.raises(ConfigError, match="careful must be true or false, not 'yes'"):
        page.options_of(Toy(), [*values[:-1], "yes"], TRANSLATION)
    handler = page.named(lambda lines, *values: [lines, *values], *page.offered(Toy(), TRANSLATION))
    assert handler("a", 1, "exact", 2, True) == ["a", 1, "exact", 2, True]


def test_what_depends_on_a_criterion_or_a_proposer_is_what_they_read():
    read = {name for criterion in CRITERIA.values() for name in criterion.settings}
    assert read == set(dependent_on("accept"))
    read = {name for kind in PROPOSERS.values() for name in (*kind.settings, kind.resource) if name}
    assert read == set(dependent_on("proposer"))


def test_a_switch_is_written_as_true_or_false():
    adaptive = settings_of(DecodeConfig)["adaptive"]
    assert [adaptive.read("adaptive", text) for text in ("true", "false")] == [True, False]
    with pytest.raises(ConfigError, match="adaptive must be one of true, false, not 'yes'"):
        adaptive.read("adaptive", "yes")


@pytest.mark.parametrize("name", REGISTRIES)
def test_a_registered_name_is_known_until_it_is_removed(name, capsys):
    registry = REGISTRIES[name]
    registry["toy"] = {"accept": Exact, "proposer": HeadProposer}[name]
    try:
        assert getattr(combined(DecodeConfig(), {name: "toy", "temperature": 0.9}, 10),
                       name) == "toy"
        words = ["a.png", "--output", "out", f"--{name}", "toy"]
        assert getattr(options.decode_config(COMMANDS["upscale"].make_context("upscale", words)),
                       name) == "toy"
        assert run(["upscale", "--help"]) == 0
        assert f"[{'|'.join(registry)}]" in capsys.readouterr().out
    finally:
        registry.pop("toy")
    with pytest.raises(ConfigError, match="not 'toy'"):
        DecodeConfig(**{name: "toy"})
