"""Options and checks that several commands share; the options of `DecodeConfig` are made from its
fields."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer
from typer import Option
from typer.core import TyperCommand

from superres.config import (
    DECODING,
    DEVICES,
    ENGINE_NAMES,
    EXPERTS,
    FACES,
    SAMPLING,
    DecodeConfig,
    Setting,
    require,
    require_choice,
)
from superres.errors import ConfigError
from superres.pipeline.resolved_options import SETTINGS, as_option, choices_for

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

DEFAULTS = DecodeConfig()
FACE_DATA = "A prepared .npz, a folder of images, or a CelebA root."
TEXT_DATA = "Parallel text PATH.en and PATH.de, or the name of a test set of sacrebleu."
FILES = "Many files"  # section of the help for the options of long runs

Command = TypeVar("Command", bound=Callable[..., None])


def choices(names: Sequence[str]) -> str:
    """Return `names` as the help lists alternatives: [a|b|c]."""
    return f"[{'|'.join(names)}]"


class HelpfulCommand(TyperCommand):
    """A command whose help has a section per panel, and no types of Python.

    The `obj` of its context is the task of its decoding options, if it has some.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- their types depend on typer's version
        """Write the sections of arguments and options."""
        titles = ("Arguments", "Options", FILES, DECODING, SAMPLING, EXPERTS)
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
        for parameter in self.get_params(ctx):
            name = str(parameter.name)
            if ctx.obj and name in SETTINGS and SETTINGS[name].choices:
                parameter.metavar = choices(choices_for(name, ctx.obj))
            if (record := parameter.get_help_record(ctx)) is not None:
                section = "Arguments" if parameter.param_type_name == "argument" else "Options"
                shown = re.sub(r" <[\w\[\]]+>$", "", record[0])
                panel = getattr(parameter, "rich_help_panel", None) or section
                sections.setdefault(panel, []).append((shown, record[1]))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def decoding_command(app: typer.Typer, task: str, *names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds a command to `app`, with options for the decoding settings of a
    task.

    The command reads the options with `decode_config`. `names` are the settings that get one; all
    by default.
    """
    def register(function: Command) -> Command:
        options = [option_of(name, about, getattr(DEFAULTS, name), task) for name,
                   about in SETTINGS.items()
                   if task in about.tasks and name in (names or SETTINGS)]
        app.command(cls=HelpfulCommand, context_settings={"obj": task})(with_options(function,
                                                                                     options))
        return function

    return register


def with_options(function: Command, options: Sequence[inspect.Parameter]) -> Command:
    """Return a function with further options, whose values only its context has."""
    names = {option.name for option in options}

    @functools.wraps(function)
    def command(**values: Any) -> None:  # noqa: ANN401 -- the values of the command's options
        function(**{name: value for name, value in values.items() if name not in names})

    signature = inspect.signature(function, eval_str=True)
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
           for parameter in signature.parameters.values()]
    command.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return cast(Command, command)


def option_of(
    name: str, about: Setting, default: Any, task: str | None = None,  # noqa: ANN401 -- the type of the setting
) -> inspect.Parameter:
    """Return the option of a setting as the parameter of a command, with the help for the command's
    task, if any.

    An option with the default `...` is required.
    """
    kind = about.kind
    unset = (about.unset if default in (None, ()) else "the checkpoint's" if about.by_checkpoint
             else None)
    parts = [about.help, about.faces if task == FACES else "",
             f"[default: {unset}]" if unset else ""]
    if about.parse is not None:
        kind, default = str, None if default is None else str(default)
    # A checkpoint's default may set a switch, so it can be turned off, too.
    spelled = as_option(name, "") + (f"/{as_option(name, 'False')}" if kind is bool else "")
    option = Option(default, spelled,
                    metavar=about.metavar or (choices(about.choices) if about.choices else None),
                    help=" ".join(filter(None, parts)), show_default=kind is not bool and not unset
                    and default != (), rich_help_panel=about.panel)
    annotation = list[kind] if default == () else kind if default is not None else kind | None  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option,
                             annotation=annotation)


Checkpoint = Annotated[str, Option(metavar="NAME|DIR", help="Bundled checkpoint, folder or hub "
                                   "id.")]
Device = Annotated[str, Option(metavar=choices(DEVICES), help="Device to compute on; auto is a GPU "
                               "if it is faster.")]
Engine = Annotated[str, Option(metavar=choices(ENGINE_NAMES), rich_help_panel=EXPERTS, help="How "
                               "the decoding step is computed: plain by torch, native by code "
                               "compiled for this CPU on first use, triton by one kernel for GPUs; "
                               "int8 and bf16 round the weights. auto is native-int8 on a CPU.")]
BatchSize = Annotated[int, Option(metavar="N", help="Images decoded together, 1 or more.")]
LengthPenalty = Annotated[float, Option(metavar="A", rich_help_panel=DECODING, help="Exponent of "
                                        "beam search's length penalty: hypotheses are ranked by "
                                        "log p / ((5 + length) / 6)**A.")]
AsJson = Annotated[bool, Option("--json", help="Print the report as JSON on standard output.")]


def decode_config(context: typer.Context) -> DecodeConfig:
    """Return the decoding settings of a command, or raise ConfigError; those without an option have
    their default."""
    values = {name: context.params[name] for name in SETTINGS if name in context.params}
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = SETTINGS[name].read(name, value)
        if SETTINGS[name].choices:
            require_choice(as_option(name, ""), value, choices_for(name, context.obj))
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
    """Raise ConfigError if an option, by its parameter's name, was given without effect.

    `reason` ends the message: why the option has no effect, and the remedy.
    """
    for name in names:
        if is_given(context, name):
            value = context.params[name]
            spelled = as_option(name, "" if value is True else str(value))
            raise ConfigError(f"{spelled} has no effect {reason}")


def check_pairs(checkpoint: str, data: Path) -> None:
    """Raise an error if there is no checkpoint, or no parallel text in its languages, before
    anything is loaded."""
    from superres.checkpoint import open_checkpoint
    from superres.tasks.translation import pair_paths

    network = open_checkpoint(checkpoint).network
    if network.languages:  # a checkpoint for another task is refused when it is loaded
        pair_paths(data, network.languages)


def check_device(device: str, engine: str = "auto") -> None:
    """Raise ConfigError for an unknown device or engine."""
    require_choice("--device", device, DEVICES)
    require_choice("--engine", engine, ENGINE_NAMES)


def load_upscaler(checkpoint: str, device: str, engine: str = "auto", size: int | None = None,
                  start: int | None = None) -> Upscaler:
    """Load a checkpoint for faces: see `Upscaler.load`; unknown names of device and engine are
    refused before."""
    check_device(device, engine)
    from superres.pipeline.upscaler import Upscaler

    return Upscaler.load(checkpoint, device, engine, size, start)


def load_translator(checkpoint: str, device: str, languages: str | None = None,
                    engine: str = "auto") -> Translator:
    """Load a checkpoint for translation as `load_upscaler` does; raise ConfigError unless it is for
    `languages`."""
    check_device(device, engine)
    from superres.tasks.translation import parse_languages

    wanted = None if languages is None else parse_languages(languages)
    from superres.pipeline.translator import Translator

    translator = Translator.load(checkpoint, device, engine)
    require(wanted in (None, translator.languages), f"checkpoint {translator.name} translates "
            f"{'-'.join(translator.languages)}, not {languages}; choose another --checkpoint")
    return translator
