"""Options that commands share, and what they mean: decoding settings, and the checkpoint on a device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from superres.batch.image_files import FORMATS
from superres.batch.plan import METADATA, ON_EXISTING
from superres.config import (
    ENGINES,
    LEAST_TEMPERATURE,
    SAMPLINGS,
    BeamConfig,
    DecodeConfig,
    parse_epsilon,
    parse_temperature,
    require,
    require_choice,
)
from superres.pipeline.options import as_option
from superres.tasks.faces import SOURCES, SPLITS, is_celeba
from superres.tasks.translation import parse_languages

if TYPE_CHECKING:
    from superres.pipeline.translator import Translator
    from superres.pipeline.upscaler import Upscaler

DEFAULTS = DecodeConfig()
DEVICES = ("auto", "cpu", "cuda")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def choices(names: Sequence[str]) -> str:
    """Return `names` as help shows them."""
    return f"[{'|'.join(names)}]"


class DecodingCommand(TyperCommand):
    """A command with decoding options: its help lists the registered names, which are imported only then."""

    text = False

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- their types move with typer
        """Write the help."""
        registered = registered_names(self.text)
        for parameter in self.params:
            if parameter.name in registered:
                parameter.metavar = choices(registered[parameter.name])
        super().format_help(ctx, formatter)


class TextDecodingCommand(DecodingCommand):
    """A `DecodingCommand` for text."""

    text = True


def registered_names(text: bool = False) -> dict[str, list[str]]:
    """Return the names that may be given for each decoding option that takes one, for images or for `text`."""
    from superres.decoding.acceptance import CRITERIA, UNORDERED
    from superres.decoding.noise import NOISES
    from superres.decoding.proposers import PROPOSERS

    if text:
        proposers = [name for name, proposer in PROPOSERS.items() if not proposer.raster]
        return {"accept": list(UNORDERED), "proposer": proposers}
    return {"accept": list(CRITERIA), "proposer": list(PROPOSERS), "noise": list(NOISES)}


Inputs = Annotated[list[str], typer.Argument(metavar="INPUT...", help="Images, folders of images, archives (.zip, "
                                             ".tar, .tar.gz, .npz ...), and patterns such as 'photos/**/*.jpg'.",
                                             show_default=False)]
InputList = Annotated[str | None, typer.Option("--list", metavar="FILE", help="Take inputs from FILE, too, one a line; "
                                               "- is standard input.", show_default=False)]
Output = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results, DIR/<name of the input>.png.")]
Format = Annotated[str, typer.Option("--format", metavar=choices(list(FORMATS)), help="Format of the results.")]
Suffix = Annotated[str, typer.Option(metavar="TEXT", help="Added to the names of the results.", show_default=False)]
KeepTree = Annotated[bool, typer.Option("--keep-tree", help="Put results into sub-folders named as the inputs'.")]
Alpha = Annotated[str, typer.Option(metavar="keep|COLOUR", help="Keep transparency, or lay COLOUR under it.")]
Metadata = Annotated[str, typer.Option(metavar=choices(METADATA), help="What becomes of EXIF, XMP and the colour "
                                       "profile; colours are converted to sRGB either way.")]
Images = Annotated[str, typer.Option("--batch-size", metavar="N", help="Images decoded together; auto: what is useful "
                                     "and fits into the memory.")]
RayAddress = Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help="Decode on a Ray cluster (extra ray): "
                                                "its address, auto for one that runs on this machine, or local to "
                                                "start one here.", show_default=False)]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Ray actors, each with a copy of the model. [default: "
                                             "one a GPU, or one for two CPUs]", show_default=False)]
Checkpoint = Annotated[str, typer.Option(metavar="NAME|DIR", help="Bundled checkpoint, folder or hub id.")]
BlockSize = Annotated[int | None, typer.Option(metavar="K", help="Tokens proposed a step; 1 is greedy. "
                                               "[default: all prediction heads]", show_default=False)]
Accept = Annotated[str, typer.Option(metavar="CRITERION", help="When a proposal is accepted.")]
Epsilon = Annotated[str, typer.Option(metavar="E[,E...]", help="Largest difference accepted, in grey levels: one for "
                                      "distance and drift-budget, one an offset (the last repeats) for "
                                      "distance-by-offset, and red,green,blue for distance-by-channel.")]
Budget = Annotated[int, typer.Option(metavar="N", help="drift-budget: largest sum of differences along a block.")]
Proposer = Annotated[str, typer.Option(metavar="NAME", help="Where proposals come from.")]
Draft = Annotated[str | None, typer.Option(metavar="NAME|DIR", help="Checkpoint of the proposer draft. [default: "
                                           "NAME-draft beside --checkpoint NAME, if it is there]", show_default=False)]
Ngrams = Annotated[str | None, typer.Option(metavar="FILE", help="Counts for the proposer ngram, from 'train ngrams'. "
                                            "[default: ngrams.safetensors of the checkpoint, if it is there]",
                                            show_default=False)]
Window = Annotated[int, typer.Option(metavar="W", help="lookahead: tokens that each stage of its Jacobi iteration "
                                     "looks ahead. Its n-grams have the block size.")]
Candidates = Annotated[int, typer.Option(metavar="G", help="lookahead: n-grams verified in a step, at most.")]
Sampling = Annotated[str, typer.Option(metavar=choices(SAMPLINGS), help="coupled: the sample that one token at a time "
                                       "would give; speculative: accept with min(1, p/q), another sample of the same "
                                       "distribution.")]
SampleTopK = Annotated[int | None, typer.Option("--sample-top-k", metavar="N", help="Sample from the N likeliest "
                                                "tokens.", show_default=False)]
Nucleus = Annotated[float, typer.Option(metavar="P", help="Sample from the likeliest tokens that make up P together.")]
Noise = Annotated[str, typer.Option(metavar="NAME", help="How samples are drawn; quantile keeps proposals close.")]
TopK = Annotated[int, typer.Option(metavar="N", help="top-k: rank within which a proposal is accepted.")]
Adaptive = Annotated[bool, typer.Option("--adaptive", help="Choose the block size while decoding, up to --block-size, "
                                        "as is fastest here.")]
MinBlock = Annotated[int, typer.Option(metavar="L", help="Tokens accepted a step at the least.")]
Samples = Annotated[int, typer.Option(metavar="N", help="Pictures an input; <name>-1.png and so on if more than 1.")]
Draws = Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Samples an input; several are scored "
                                    "together.")]
Temperature = Annotated[str, typer.Option(metavar="T|R,G,B", help="0 is greedy (smooth); from "
                                          f"{LEAST_TEMPERATURE:g} on, samples (try 0.9). Three numbers: one a colour.")]
Seed = Annotated[int, typer.Option(metavar="S", help="Seed of the sampling noise.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Images decoded together.")]
Device = Annotated[str, typer.Option(metavar=choices(DEVICES), help="Where to compute.")]
Engine = Annotated[str, typer.Option(metavar=choices(ENGINES), help="How decoding is computed: by torch, by code "
                                     "compiled for this CPU on first use, or as CUDA graphs; bf16 rounds weights.")]
Recursive = Annotated[bool, typer.Option("--recursive", help="Descend into sub-folders of input folders.")]
Source = Annotated[str, typer.Option(metavar=choices(SOURCES), help="Take inputs as 8x8 images, or as photos to crop "
                                     "and reduce; auto goes by their size.")]
OnExisting = Annotated[str, typer.Option(metavar=choices(ON_EXISTING), help="What to do with an output that exists.")]
Shard = Annotated[str, typer.Option(metavar="I/N", help="Do only part I of N equal parts, I from 0 to N-1.")]
Manifest = Annotated[Path | None, typer.Option(metavar="FILE", help="Where the manifest is, a JSON line an output, by "
                                            "which a later run continues. [default: DIR/manifest.jsonl]",
                                            show_default=False)]
Data = Annotated[Path, typer.Option(metavar="PATH", help="A prepared .npz, a folder of images, or a CelebA root.")]
Split = Annotated[str, typer.Option(metavar=choices(SPLITS), help="Part of a CelebA root.")]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Score the first N only.", show_default=False)]
Greedy = Annotated[bool, typer.Option("--greedy/--no-greedy", help="Compare with block size 1.")]
Sheet = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a contact sheet of the first images.")]
MinPsnr = Annotated[float | None, typer.Option(metavar="DB", help="Bound: PSNR to the greedy images, in dB (try 40).",
                                               show_default=False)]
MaxBits = Annotated[float | None, typer.Option(metavar="BITS", help="Bound: bits/dim under p1 above that of the "
                                               "greedy images.", show_default=False)]
Save = Annotated[bool, typer.Option("--save/--no-save", help="Save the fastest settings as the checkpoint's default.")]
Languages = Annotated[str | None, typer.Option(metavar="SOURCE-TARGET", help="Languages of the text, such as en-de. "
                                               "[default: those of the checkpoint]", show_default=False)]
Beam = Annotated[int | None, typer.Option("--beam", metavar="N", help="Beam search with N hypotheses, without blocks.",
                                          show_default=False)]
LengthPenalty = Annotated[float, typer.Option(metavar="A", help="Beam search ranks by log p / ((5 + length) / 6)**A.")]
Sentences = Annotated[int, typer.Option("--batch-size", metavar="N", help="Sentences decoded together.")]
TextTemperature = Annotated[str, typer.Option("--temperature", metavar="T",
                                              help=f"0 is greedy; from {LEAST_TEMPERATURE:g} on, samples.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")]


def decode_config(context: typer.Context) -> DecodeConfig:
    """Return the decoding settings of a command that has options for them; those without one have their default.

    Raises:
        ConfigError: a setting is out of range, or two contradict one another.
    """
    values = {name: context.params[name] for name in DEFAULTS.to_dict() if name in context.params}
    if "epsilon" in values:
        values["epsilon"] = parse_epsilon(values["epsilon"])
    values["temperature"] = parse_temperature(values["temperature"])
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


def load_upscaler(checkpoint: str, device: str, decode: DecodeConfig, engine: str = "auto") -> Upscaler:
    """Check the names of device, engine, criterion, proposer and noise, and load the checkpoint.

    Raises:
        ConfigError: an unknown name, or a device that this machine lacks, or an engine that cannot serve there.
        CheckpointError: the checkpoint is missing or damaged.
    """
    _check_names(device, engine, decode, registered_names())
    from superres.pipeline.upscaler import Upscaler

    return Upscaler.load(checkpoint, device, engine)


def load_translator(
    checkpoint: str, device: str, decode: DecodeConfig, languages: str | None = None, engine: str = "auto",
) -> Translator:
    """Check names as `load_upscaler` does, load the checkpoint, and check that it translates `languages` ("en-de").

    Raises:
        ConfigError: as for `load_upscaler`, or the checkpoint translates other languages.
        CheckpointError: the checkpoint is missing or damaged.
    """
    _check_names(device, engine, decode, registered_names(text=True))
    wanted = None if languages is None else parse_languages(languages)
    from superres.pipeline.translator import Translator

    translator = Translator.load(checkpoint, device, engine)
    require(wanted in (None, translator.languages), f"checkpoint {translator.name} translates "
            f"{'-'.join(translator.languages)}, not {languages}; choose another --checkpoint")
    return translator


def _check_names(device: str, engine: str, decode: DecodeConfig, registered: dict[str, list[str]]) -> None:
    require_choice("--device", device, DEVICES)
    require_choice("--engine", engine, ENGINES)
    for option, names in registered.items():
        require_choice(f"--{option}", getattr(decode, option), names)


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
