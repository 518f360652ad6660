"""Options and checks that several commands share; the options of `DecodeConfig` are made from its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

import typer
from typer import Option
from typer.core import TyperCommand

from superres.config import (
    DECODING,
    ENGINE_NAMES,
    EXPERTS,
    FACES,
    SAMPLING,
    TRANSLATION,
    DecodeConfig,
    Setting,
    require,
    require_choice,
)
from superres.pipeline.options import SETTINGS, as_option, choices_for
from superres.tasks.translation import parse_languages

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

DEFAULTS = DecodeConfig()
DEVICES = ("auto", "cpu", "cuda")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells use it."""

FILES = "Many files"
"""Section of the help for the options of long runs."""

Command = TypeVar("Command", bound=Callable[..., None])


def choices(names: Sequence[str]) -> str:
    """Return `names` as the help lists alternatives: [a|b|c]."""
    return f"[{'|'.join(names)}]"


class DecodingCommand(TyperCommand):
    """A command with decoding options; its help has one section per panel of options."""

    task: ClassVar[str] = FACES

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- their types depend on typer's version
        """Write the sections of arguments and options."""
        titles = ("Arguments", "Options", FILES, DECODING, SAMPLING, EXPERTS)
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
        for parameter in self.get_params(ctx):
            name = str(parameter.name)
            if name in SETTINGS and SETTINGS[name].choices:
                parameter.metavar = choices(choices_for(name, self.task))
            if (record := parameter.get_help_record(ctx)) is not None:
                section = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[getattr(parameter, "rich_help_panel", None) or section].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class TextDecodingCommand(DecodingCommand):
    """A `DecodingCommand` for text."""

    task = TRANSLATION


def decoding_command(app: typer.Typer, task: str, *names: str) -> Callable[[Command], Command]:
    """Return a decorator that registers a command and adds options for decoding settings to its own parameters.

    The command reads these options with `decode_config`.

    Args:
        app: application that the command is added to.
        task: task that the command decodes for.
        names: settings that get an option; all settings of the task by default.
    """
    offered = {name: about for name, about in SETTINGS.items() if task in about.tasks and name in (names or SETTINGS)}

    def register(function: Command) -> Command:
        options = [option_of(name, about, getattr(DEFAULTS, name)) for name, about in offered.items()]
        app.command(cls=DecodingCommand if task == FACES else TextDecodingCommand)(with_options(function, options))
        return function

    return register


def with_options(function: Command, options: Sequence[inspect.Parameter]) -> Command:
    """Return a function with further options, whose values only its context has."""
    names = {option.name for option in options}

    @functools.wraps(function)
    def command(**values: Any) -> None:  # noqa: ANN401 -- the values of the command's options
        function(**{name: value for name, value in values.items() if name not in names})

    signature = inspect.signature(function, eval_str=True)
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
    command.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return cast(Command, command)


def option_of(name: str, about: Setting, default: Any) -> inspect.Parameter:  # noqa: ANN401 -- the type of the setting
    """Return the option of a setting as the parameter of a command."""
    kind = about.kind
    unset = f" [default: {about.unset}]" if about.unset and default is None else ""
    if about.parse is not None:
        kind, default = str, str(default)
    # A checkpoint's default may set a switch, so it can be turned off, too.
    spelled = as_option(name, "") + (f"/{as_option(name, 'False')}" if kind is bool else "")
    option = Option(default, spelled, metavar=about.metavar or (choices(about.choices) if about.choices else None),
                    help=about.help + unset, show_default=kind is not bool, rich_help_panel=about.panel)
    annotation = kind if default is not None else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


Checkpoint = Annotated[str, Option(metavar="NAME|DIR", help="Bundled checkpoint, folder or hub id.")]
Device = Annotated[str, Option(metavar=choices(DEVICES), help="Device to compute on; auto uses a GPU if there is one.")]
Engine = Annotated[str, Option(metavar=choices(ENGINE_NAMES), rich_help_panel=EXPERTS, help="How the decoding step is "
                               "computed: plain by torch, native by code compiled for this CPU on first use, graph by "
                               "CUDA graphs; bf16 rounds the weights.")]
BatchSize = Annotated[int, Option(metavar="N", help="Images decoded together, 1 or more.")]
LengthPenalty = Annotated[float, Option(metavar="A", rich_help_panel=DECODING, help="Exponent of beam search's length "
                                        "penalty: hypotheses are ranked by log p / ((5 + length) / 6)**A.")]
AsJson = Annotated[bool, Option("--json", help="Print the report as JSON on standard output.")]


def decode_config(context: typer.Context) -> DecodeConfig:
    """Return the decoding settings of a command; settings without an option have their default.

    Raises:
        ConfigError: a setting is out of range, or two settings contradict each other.
    """
    task = cast(DecodingCommand, context.command).task
    values = {name: context.params[name] for name in SETTINGS if name in context.params}
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = SETTINGS[name].read(name, value)
        if SETTINGS[name].choices:
            require_choice(as_option(name, ""), value, choices_for(name, task))
    return DecodeConfig(**values)


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line, whatever its value."""
    source = context.get_parameter_source(name)
    # The type of a source depends on typer's version, its name does not.
    return source is not None and source.name == "COMMANDLINE"


def given_options(context: typer.Context, decode: DecodeConfig) -> dict[str, Any]:
    """Return the settings in `decode` whose option is on the command line."""
    return {name: getattr(decode, name) for name in decode.to_dict() if is_given(context, name)}


def refuse_ineffective(context: typer.Context, reason: str, *names: str) -> None:
    """Refuse options that have no effect.

    Args:
        context: context of the command.
        reason: why the options have no effect, and the remedy.
        names: names of the options' parameters.

    Raises:
        ConfigError: one of the options is on the command line.
    """
    for name in names:
        value = context.params[name]
        shown = as_option(name, "" if value is True else str(value))
        require(not is_given(context, name), f"{shown} has no effect {reason}")


def load_upscaler(checkpoint: str, device: str, engine: str = "auto") -> Upscaler:
    """Check the names of device and engine, and load a checkpoint for faces.

    Raises:
        ConfigError: a name is unknown, this machine lacks the device, or the engine does not support it.
        CheckpointError: the checkpoint is missing, damaged or for another task.
    """
    require_choice("--device", device, DEVICES)
    require_choice("--engine", engine, ENGINE_NAMES)
    from superres.pipeline.upscaler import Upscaler

    return Upscaler.load(checkpoint, device, engine)


def load_translator(
    checkpoint: str, device: str, languages: str | None = None, engine: str = "auto",
) -> Translator:
    """Check the names of device and engine, load a checkpoint for translation, and check its languages.

    Args:
        checkpoint: name, folder or hub id.
        device: one of DEVICES.
        languages: languages that the checkpoint must translate, such as "en-de"; any if None.
        engine: one of ENGINE_NAMES.

    Raises:
        ConfigError: as for `load_upscaler`, or the checkpoint translates other languages.
        CheckpointError: the checkpoint is missing, damaged or for another task.
    """
    require_choice("--device", device, DEVICES)
    require_choice("--engine", engine, ENGINE_NAMES)
    wanted = None if languages is None else parse_languages(languages)
    from superres.pipeline.translator import Translator

    translator = Translator.load(checkpoint, device, engine)
    require(wanted in (None, translator.languages), f"checkpoint {translator.name} translates "
            f"{'-'.join(translator.languages)}, not {languages}; choose another --checkpoint")
    return translator
