"""Options that commands share: those of `DecodeConfig`, which are made from its fields, and the others."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast

import typer
from typer.core import TyperCommand

from superres.batch.image_files import FORMATS
from superres.batch.plan import METADATA, ON_EXISTING
from superres.config import (
    DECODING,
    ENGINE_NAMES,
    EXPERTS,
    FACES,
    SAMPLING,
    TRANSLATION,
    BeamConfig,
    DecodeConfig,
    Setting,
    require,
    require_choice,
)
from superres.pipeline.options import SETTINGS, as_option, choices_for
from superres.tasks.faces import SOURCES, SPLITS, is_celeba
from superres.tasks.translation import parse_languages

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

DEFAULTS = DecodeConfig()
DEVICES = ("auto", "cpu", "cuda")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

FILES = "Many files"
"""Section of the help for options of long runs."""

Command = TypeVar("Command", bound=Callable[..., None])


def choices(names: Sequence[str]) -> str:
    """Return `names` as help shows them."""
    return f"[{'|'.join(names)}]"


class DecodingCommand(TyperCommand):
    """A command with decoding options, whose help has a section for each panel of options."""

    task: ClassVar[str] = FACES

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- their types move with typer
        """Write the sections of arguments and options."""
        titles = ("Arguments", "Options", FILES, DECODING, SAMPLING, EXPERTS)
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in titles}
        for parameter in self.get_params(ctx):
            name = str(parameter.name)
            if name in SETTINGS and SETTINGS[name].choices:
                parameter.metavar = choices(choices_for(name, self.task))
            if (record := parameter.get_help_record(ctx)) is not None:
                plain = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections[getattr(parameter, "rich_help_panel", None) or plain].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class TextDecodingCommand(DecodingCommand):
    """A `DecodingCommand` for text."""

    task = TRANSLATION


def decoding_command(app: typer.Typer, task: str, *names: str) -> Callable[[Command], Command]:
    """Return a decorator that registers a command with options for decoding settings beside its own parameters.

    The command reads these options by `decode_config`.

    Args:
        app: where it is registered.
        task: the task that it decodes for.
        names: its settings; all that serve the task if there are none.
    """
    offered = {name: about for name, about in SETTINGS.items() if task in about.tasks and name in (names or SETTINGS)}

    def register(function: Command) -> Command:
        @functools.wraps(function)
        def command(**values: Any) -> None:  # noqa: ANN401 -- of the command's options
            function(**{name: value for name, value in values.items() if name not in offered})

        signature = inspect.signature(function, eval_str=True)
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in signature.parameters.values()]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*own, *(option_of(name, about) for name, about in offered.items())])
        app.command(cls=DecodingCommand if task == FACES else TextDecodingCommand)(command)
        return function

    return register


def option_of(name: str, about: Setting) -> inspect.Parameter:
    """Return the option of a decoding setting, as the parameter of a command."""
    default, kind = getattr(DEFAULTS, name), about.kind
    unset = f" [default: {about.unset}]" if about.unset else ""
    if about.parse is not None:
        kind, default = str, str(default)
    option = typer.Option(default, as_option(name, ""), metavar=about.metavar, help=about.help + unset,
                          show_default=default is not None and kind is not bool, rich_help_panel=about.panel)
    annotation = kind if default is not None else kind | None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)


Inputs = Annotated[list[str], typer.Argument(metavar="INPUT...", help="Images, folders of images, archives (.zip, "
                                             ".tar, .tar.gz, .npz ...), and patterns such as 'photos/**/*.jpg'.",
                                             show_default=False)]
InputList = Annotated[str | None, typer.Option("--list", metavar="FILE", help="Read more inputs from FILE, one per "
                                               "line; '-' reads standard input.", show_default=False,
                                               rich_help_panel=FILES)]
Output = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results, DIR/<name of the input>.png.")]
Format = Annotated[str, typer.Option("--format", metavar=choices(list(FORMATS)), help="Format of the results.")]
Suffix = Annotated[str, typer.Option(metavar="TEXT", help="Text added to the name of each result, before its ending.",
                                     show_default=False, rich_help_panel=FILES)]
KeepTree = Annotated[bool, typer.Option("--keep-tree", help="Write results into sub-folders named as those of the "
                                        "inputs.", rich_help_panel=FILES)]
Alpha = Annotated[str, typer.Option(metavar="keep|COLOUR", help="Keep transparency, or put COLOUR behind it.")]
Metadata = Annotated[str, typer.Option(metavar=choices(METADATA), help="Remove or keep EXIF, XMP and the colour "
                                       "profile; colours are converted to sRGB either way.")]
Images = Annotated[str, typer.Option("--batch-size", metavar="N", help="Images decoded together, 1 or more; auto picks "
                                     "a useful number that fits into memory.", rich_help_panel=FILES)]
RayAddress = Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help="Decode on a Ray cluster (extra ray): "
                                                "its address, auto for one that runs on this machine, or local to "
                                                "start one here.", show_default=False, rich_help_panel=FILES)]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Ray actors, each with a copy of the model. [default: "
                                             "one per GPU, or one per two CPUs]", show_default=False,
                                             rich_help_panel=FILES)]
Checkpoint = Annotated[str, typer.Option(metavar="NAME|DIR", help="Bundled checkpoint, folder or hub id.")]
Samples = Annotated[int, typer.Option(metavar="N", help="Pictures per input, named <name>-1.png and so on if more "
                                      "than 1; several need a temperature above 0.")]
Draws = Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Samples per input; several are scored "
                                    "together.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Images decoded together, 1 or more.")]
Device = Annotated[str, typer.Option(metavar=choices(DEVICES), help="Device to compute on; auto takes a GPU if there "
                                     "is one.")]
Engine = Annotated[str, typer.Option(metavar=choices(ENGINE_NAMES), help="How the decoding step is computed: plain by "
                                     "torch, native by code compiled for this CPU on first use, graph by CUDA graphs; "
                                     "bf16 rounds the weights.", rich_help_panel=EXPERTS)]
Recursive = Annotated[bool, typer.Option("--recursive", help="Descend into sub-folders of input folders.",
                                         rich_help_panel=FILES)]
Source = Annotated[str, typer.Option(metavar=choices(SOURCES), help="lowres takes inputs as 8x8 images; photo crops "
                                     "and reduces them; auto decides by their size.")]
OnExisting = Annotated[str, typer.Option(metavar=choices(ON_EXISTING), help="What to do with an output that exists.",
                                         rich_help_panel=FILES)]
Shard = Annotated[str, typer.Option(metavar="I/N", help="Decode only part I of N equal parts of the inputs, I from 0 "
                                    "to N-1.", rich_help_panel=FILES)]
Manifest = Annotated[Path | None, typer.Option(metavar="FILE", help="Manifest, one JSON line per output, from which a "
                                               "later run continues. [default: DIR/manifest.jsonl]",
                                               show_default=False, rich_help_panel=FILES)]
Data = Annotated[Path, typer.Option(metavar="PATH", help="A prepared .npz, a folder of images, or a CelebA root.")]
Split = Annotated[str, typer.Option(metavar=choices(SPLITS), help="Part of a CelebA root.")]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Score the first N inputs only. [default: all]",
                                           show_default=False)]
Greedy = Annotated[bool, typer.Option("--greedy/--no-greedy", help="Compare with greedy decoding, block size 1.")]
Sheet = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a contact sheet of the first images.")]
MinPsnr = Annotated[float | None, typer.Option(metavar="DB", help="Bound: least PSNR to the greedy images, in dB (try "
                                               "40).", show_default=False)]
MaxBits = Annotated[float | None, typer.Option(metavar="BITS", help="Bound: most bits/dim under p1 above that of the "
                                               "greedy images.", show_default=False)]
Save = Annotated[bool, typer.Option("--save/--no-save", help="Save the fastest settings as the checkpoint's default.")]
Languages = Annotated[str | None, typer.Option(metavar="SOURCE-TARGET", help="Languages of the text, such as en-de. "
                                               "[default: those of the checkpoint]", show_default=False)]
Beam = Annotated[int | None, typer.Option("--beam", metavar="N", help="Decode by beam search with N hypotheses per "
                                          "sentence instead of in blocks.", show_default=False,
                                          rich_help_panel=DECODING)]
LengthPenalty = Annotated[float, typer.Option(metavar="A", help="Exponent of beam search's length penalty: hypotheses "
                                              "are ranked by log p / ((5 + length) / 6)**A.",
                                              rich_help_panel=DECODING)]
Sentences = Annotated[int, typer.Option("--batch-size", metavar="N", help="Sentences decoded together, 1 or more.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")]


def decode_config(context: typer.Context) -> DecodeConfig:
    """Return the decoding settings of a command that has options for them; those without one have their default.

    Raises:
        ConfigError: a setting is out of range, or two contradict one another.
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
    """Tell whether an option stands on the command line, whatever its value."""
    source = context.get_parameter_source(name)
    # The type of a source moves with typer, its name does not.
    return source is not None and source.name == "COMMANDLINE"


def given_options(context: typer.Context, decode: DecodeConfig) -> dict[str, Any]:
    """Return those of the settings `decode` that stand on the command line, rather than being an option's default."""
    return {name: getattr(decode, name) for name in decode.to_dict() if is_given(context, name)}


def refuse_idle(context: typer.Context, reason: str, *names: str) -> None:
    """Refuse the options `names`, which have no effect for a `reason` that tells the remedy, too.

    Raises:
        ConfigError: one of them was given.
    """
    for name in names:
        value = context.params[name]
        shown = as_option(name, "" if value is True else str(value))
        require(not is_given(context, name), f"{shown} has no effect {reason}")


def refuse_idle_split(context: typer.Context, data: Path) -> None:
    """Check --split: its name, and that the data has parts.

    Raises:
        ConfigError: the name is unknown, or it was given for data that is taken whole.
    """
    require_choice("--split", context.params["split"], SPLITS)
    if data.exists() and not is_celeba(data):
        refuse_idle(context, f"on {data}, which is no CelebA root and is taken whole; leave it out", "split")


def load_upscaler(checkpoint: str, device: str, engine: str = "auto") -> Upscaler:
    """Check the names of device and engine, and load the checkpoint.

    Raises:
        ConfigError: an unknown name, or a device that this machine lacks, or an engine that cannot serve there.
        CheckpointError: the checkpoint is missing or damaged.
    """
    require_choice("--device", device, DEVICES)
    require_choice("--engine", engine, ENGINE_NAMES)
    from superres.pipeline.upscaler import Upscaler

    return Upscaler.load(checkpoint, device, engine)


def load_translator(
    checkpoint: str, device: str, languages: str | None = None, engine: str = "auto",
) -> Translator:
    """Check names as `load_upscaler` does, load the checkpoint, and check that it translates `languages` ("en-de").

    Raises:
        ConfigError: as for `load_upscaler`, or the checkpoint translates other languages.
        CheckpointError: the checkpoint is missing or damaged.
    """
    require_choice("--device", device, DEVICES)
    require_choice("--engine", engine, ENGINE_NAMES)
    wanted = None if languages is None else parse_languages(languages)
    from superres.pipeline.translator import Translator

    translator = Translator.load(checkpoint, device, engine)
    require(wanted in (None, translator.languages), f"checkpoint {translator.name} translates "
            f"{'-'.join(translator.languages)}, not {languages}; choose another --checkpoint")
    return translator


def beam_config(context: typer.Context, beam: int | None, length_penalty: float) -> BeamConfig | None:
    """Return the settings of the beam search that a command is asked for, if it is.

    Raises:
        ConfigError: they are out of range, or stand beside options of blockwise decoding.
    """
    if beam is None:
        refuse_idle(context, "without beam search; leave it out, or give --beam 4", "length_penalty")
        return None
    given = [as_option(name, str(context.params[name])) for name in given_options(context, DEFAULTS) if name != "seed"]
    require(not given, f"--beam searches without blocks; leave out {', '.join(given)}")
    return BeamConfig(beam, length_penalty)
