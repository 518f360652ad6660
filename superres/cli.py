"""The command line `superres`: options, and one line for every error. The work is done by the modules below it.

A new command is a function with `@app.command()`, a new group a Typer of its own with `app.add_typer`. What is slow to
import (torch) is imported inside the commands, so that help and usage errors come at once.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer
from typer.core import TyperCommand

from superres.batch_plan import ON_EXISTING, BatchOptions, parse_shard, plan, require_choice
from superres.config import (
    HEAD_LAYERS,
    HEAD_LOSSES,
    HEAD_TARGETS,
    PRESETS,
    DecodeConfig,
    QualityBound,
    TrainConfig,
    parse_epsilon,
    parse_temperature,
)
from superres.errors import SuperresError
from superres.tasks.faces import SOURCES, SPLITS
from superres.tasks.faces import Split as SplitName

if TYPE_CHECKING:
    from tqdm import tqdm

    from superres.pipeline import Upscaler

DEFAULTS = DecodeConfig()
TRAINING = TrainConfig(steps=1)
DEFAULT_CHECKPOINT = "celeba-8to32"
DEVICES = ("auto", "cpu", "cuda")
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

# The parser's own errors have no public base class, and live in click or in typer by typer's version.
USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]


def choices(names: Sequence[str]) -> str:
    """Return `names` as help shows them."""
    return f"[{'|'.join(names)}]"


class DecodingCommand(TyperCommand):
    """A command with decoding options: its help lists the registered names, which are imported only then."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 -- their types move with typer
        """Write the help."""
        registered = registered_names()
        for parameter in self.params:
            if parameter.name in registered:
                parameter.metavar = choices(registered[parameter.name])
        super().format_help(ctx, formatter)


def registered_names() -> dict[str, list[str]]:
    """Return the names that may be given for each decoding option that takes one."""
    from superres.decoding.acceptance import CRITERIA
    from superres.decoding.noise import NOISES
    from superres.decoding.proposal import PROPOSERS

    return {"accept": list(CRITERIA), "proposer": list(PROPOSERS), "noise": list(NOISES)}


Inputs = Annotated[list[Path], typer.Argument(metavar="INPUT...", help="Images, and folders of images.")]
Output = Annotated[Path, typer.Option(metavar="DIR", help="Folder for the results, DIR/<name of the input>.png.")]
Checkpoint = Annotated[str, typer.Option(metavar="NAME|DIR", help="Bundled checkpoint, folder or hub id.")]
BlockSize = Annotated[int | None, typer.Option(metavar="K", help="Tokens proposed a step; 1 is greedy. "
                                               "[default: all prediction heads]", show_default=False)]
Accept = Annotated[str, typer.Option(metavar="CRITERION", help="When a proposal is accepted.")]
Epsilon = Annotated[str, typer.Option(metavar="E[,E...]", help="Largest difference accepted, in grey levels: one for "
                                      "distance and drift-budget, one an offset (the last repeats) for "
                                      "distance-by-offset, and red,green,blue for distance-by-channel.")]
Budget = Annotated[int, typer.Option(metavar="N", help="drift-budget: largest sum of differences along a block.")]
Proposer = Annotated[str, typer.Option(metavar="NAME", help="Where proposals come from.")]
Noise = Annotated[str, typer.Option(metavar="NAME", help="How samples are drawn; quantile keeps proposals close.")]
TopK = Annotated[int, typer.Option(metavar="N", help="top-k: rank within which a proposal is accepted.")]
MinBlock = Annotated[int, typer.Option(metavar="L", help="Tokens accepted a step at the least.")]
Samples = Annotated[int, typer.Option(metavar="N", help="Pictures an input; <name>-1.png and so on if more than 1.")]
Draws = Annotated[int, typer.Option("--samples", min=1, metavar="N", help="Samples an input; several are scored "
                                    "together.")]
Temperature = Annotated[str, typer.Option(metavar="T|R,G,B", help="0 is greedy (smooth); above, samples (try 0.9). "
                                          "Three numbers: one a colour.")]
Seed = Annotated[int, typer.Option(metavar="S", help="Seed of the sampling noise.")]
BatchSize = Annotated[int, typer.Option(metavar="N", help="Images decoded together.")]
Device = Annotated[str, typer.Option(metavar=choices(DEVICES), help="Where to compute.")]
Recursive = Annotated[bool, typer.Option("--recursive", help="Descend into sub-folders of input folders.")]
Source = Annotated[str, typer.Option(metavar=choices(SOURCES), help="Take inputs as 8x8 images, or as photos to crop "
                                     "and reduce; auto goes by their size.")]
OnExisting = Annotated[str, typer.Option(metavar=choices(ON_EXISTING), help="What to do with an output that exists.")]
Shard = Annotated[str, typer.Option(metavar="I/N", help="Do only part I of N equal parts, I from 0 to N-1.")]
Manifest = Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JSON line an output to FILE (replaced).")]
Data = Annotated[Path, typer.Option(metavar="PATH", help="A prepared .npz, a folder of images, or a CelebA root.")]
Split = Annotated[str, typer.Option(metavar=choices(SPLITS), help="Part of a CelebA root.")]
Limit = Annotated[int | None, typer.Option(metavar="N", help="Score the first N images only.", show_default=False)]
Greedy = Annotated[bool, typer.Option("--greedy/--no-greedy", help="Compare with block size 1.")]
Sheet = Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw a contact sheet of the first images.")]
MinPsnr = Annotated[float | None, typer.Option(metavar="DB", help="Bound: PSNR to the greedy images, in dB (try 40).",
                                               show_default=False)]
MaxBits = Annotated[float | None, typer.Option(metavar="BITS", help="Bound: bits/dim under p1 above that of the "
                                               "greedy images.", show_default=False)]
Save = Annotated[bool, typer.Option("--save/--no-save", help="Save the fastest settings as the checkpoint's default.")]
TrainData = Annotated[Path, typer.Option("--data", metavar="PATH", help="Faces to train on: .npz, folder or CelebA.")]
RunFolder = Annotated[Path, typer.Option("--output", metavar="DIR", help="The run's folder; a run in it is resumed.")]
Dev = Annotated[Path | None, typer.Option(metavar="PATH", help="Faces for bits/dim on the way.", show_default=False)]
Start = Annotated[Path | None, typer.Option(metavar="DIR", help="Checkpoint folder to start from.",
                                            show_default=False)]
Preset = Annotated[str, typer.Option(metavar=choices(list(PRESETS)), help="The network, unless --start gives one.")]
Heads = Annotated[int | None, typer.Option(metavar="K", help="Prediction heads p1..pk. [default: those of --start, or "
                                           "10]", show_default=False)]
Own = Annotated[Path, typer.Option(metavar="PATH", help="Pictures that the model decoded itself, from 'train decode'.")]
Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="JSON file of stages; see scripts/recipes.")]
Piece = Annotated[float | None, typer.Option("--piece-minutes", metavar="M", help="Save and stop after M minutes; the "
                                             "same command goes on.", show_default=False)]
Freeze = Annotated[bool, typer.Option("--freeze-base", help="Train the new heads alone; p1 stays the base.")]
HeadLoss = Annotated[str, typer.Option(metavar=choices(HEAD_LOSSES), help="All heads on some positions, or one "
                                       "random head a minibatch as in the paper.")]
HeadTarget = Annotated[str, typer.Option(metavar=choices(HEAD_TARGETS), help="What heads learn: p1's own "
                                         "distribution at their target, or the true token as in the paper.")]
HeadDecay = Annotated[float, typer.Option(metavar="D", help="Head i counts D**(i - 2) in the loss of the heads.")]
HeadLayer = Annotated[str | None, typer.Option(metavar=choices(HEAD_LAYERS), help="Layer that makes the heads. "
                                               "[default: that of --start]", show_default=False)]
Minutes = Annotated[float | None, typer.Option(metavar="M", help="Length in minutes of training, over all resumes.",
                                               show_default=False)]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Length in steps.", show_default=False)]
TrainBatch = Annotated[int, typer.Option("--batch-size", metavar="N", help="Images a step over all processes.")]
Rate = Annotated[float, typer.Option("--learning-rate", metavar="R", help="Peak learning rate.")]
Recompute = Annotated[bool, typer.Option("--gradient-checkpointing", help="Less memory for more computation.")]
Precision = Annotated[str, typer.Option(metavar="[bf16|no]", help="Autocast to bf16, or not.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the report as JSON on standard output.")]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
                  help="Upscale 8x8 faces to 32x32 by blockwise parallel decoding of an Image Transformer.")
evaluate_app = typer.Typer(help="Score a checkpoint.", rich_markup_mode=None)
train_app = typer.Typer(help="Train a checkpoint in stages.", rich_markup_mode=None)
app.add_typer(evaluate_app, name="evaluate")
app.add_typer(train_app, name="train")


@app.callback()
def superres() -> None:
    """Upscale 8x8 faces to 32x32 by blockwise parallel decoding of an Image Transformer."""


@app.command(cls=DecodingCommand)
def upscale(
    context: typer.Context, inputs: Inputs, output: Output, checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    block_size: BlockSize = DEFAULTS.block_size, accept: Accept = DEFAULTS.accept,
    epsilon: Epsilon = str(DEFAULTS.epsilon), budget: Budget = DEFAULTS.budget,
    top_k: TopK = DEFAULTS.top_k, min_block: MinBlock = DEFAULTS.min_block, samples: Samples = 1,
    temperature: Temperature = str(DEFAULTS.temperature), seed: Seed = DEFAULTS.seed, batch_size: BatchSize = 16,
    device: Device = "auto", recursive: Recursive = False, source: Source = "auto", on_existing: OnExisting = "skip",
    shard: Shard = "0/1", manifest: Manifest = None, proposer: Proposer = DEFAULTS.proposer,
    noise: Noise = DEFAULTS.noise,
) -> None:
    """Upscale images and folders of images: each becomes a 32x32 PNG.

    A decoding option that is not given is the checkpoint's own default where `superres tune` saved one.

    Exit code 0: all succeeded; 1: some failed, the rest are done; 2: bad usage, nothing was decoded.
    """
    decode = decode_config(context)
    options = BatchOptions(output, batch_size, samples, source, recursive, on_existing, parse_shard(shard), manifest)

    from superres.batch import check_samples, say, upscale_files

    check_samples(decode, samples)
    jobs = plan(inputs, options)
    upscaler = load_upscaler(checkpoint, device, decode)
    decode = upscaler.default.changed(given_options(context, decode))
    summary = upscale_files(jobs, upscaler, options, decode)
    say(summary.line())
    raise typer.Exit(summary.exit_code)


@evaluate_app.callback()
def evaluate() -> None:
    """Score a checkpoint."""


@evaluate_app.command(cls=DecodingCommand)
def images(
    context: typer.Context, data: Data, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, split: Split = "valid",
    limit: Limit = None, block_size: BlockSize = DEFAULTS.block_size, accept: Accept = DEFAULTS.accept,
    epsilon: Epsilon = str(DEFAULTS.epsilon), budget: Budget = DEFAULTS.budget,
    top_k: TopK = DEFAULTS.top_k, min_block: MinBlock = DEFAULTS.min_block, samples: Draws = 1,
    temperature: Temperature = str(DEFAULTS.temperature), seed: Seed = DEFAULTS.seed, batch_size: BatchSize = 16,
    device: Device = "auto", greedy: Greedy = True, sheet: Sheet = None, as_json: AsJson = False,
    proposer: Proposer = DEFAULTS.proposer, noise: Noise = DEFAULTS.noise,
) -> None:
    """Score decoding next to nearest, bicubic and greedy on the same images: quality, bits/dim, block size, speed."""
    decode = decode_config(context)
    require_choice("--split", split, SPLITS)

    from superres.batch import check_samples, encode_png, prepare_folder, write_result
    from superres.evaluation import contact_sheet, evaluate_images, report_table
    from superres.sampling import evaluate_samples, samples_table
    from superres.tasks.faces import read_faces

    check_samples(decode, samples)
    pairs = read_faces(data, cast(SplitName, split), limit)
    upscaler = load_upscaler(checkpoint, device, decode)
    if sheet is not None:
        prepare_folder(sheet.parent, "--sheet")
    report, pictures = evaluate_images(pairs, upscaler, decode, batch_size, greedy)
    if samples > 1:
        report["sampling"] = evaluate_samples(pairs, upscaler, decode, samples, batch_size, pictures["blockwise"])
    if sheet is not None:
        columns = {"input": pictures.pop("nearest"), **pictures, "truth": pairs.hr}
        write_result(sheet, encode_png(contact_sheet(columns), {"checkpoint": report["checkpoint"]}), "--sheet")
    report["device"] = device
    if as_json:
        typer.echo(json.dumps(report))
    else:
        typer.echo(report_table(report), err=True)
        if samples > 1:
            typer.echo(samples_table(report["sampling"]), err=True)


@app.command()
def tune(
    data: Data, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, split: Split = "valid", limit: Limit = 64,
    min_psnr_to_greedy: MinPsnr = None, max_bits_loss: MaxBits = None, batch_size: BatchSize = 16,
    device: Device = "auto", save: Save = True, as_json: AsJson = False,
) -> None:
    """Find the fastest decoding settings within a bound on quality, and make them the checkpoint's default.

    They hold for this machine's kind of device (cpu or cuda), and are the fastest for batches of the same size.
    """
    bound = QualityBound(min_psnr_to_greedy, max_bits_loss)
    require_choice("--split", split, SPLITS)

    from superres.batch import prepare_folder
    from superres.comparison import label
    from superres.pipeline import find_checkpoint
    from superres.tasks.faces import read_faces
    from superres.tuning import save_default
    from superres.tuning import tune as search

    pairs = read_faces(data, cast(SplitName, split), limit)
    folder = find_checkpoint(checkpoint)
    if save:
        prepare_folder(folder, "--checkpoint, or give --no-save")
    upscaler = load_upscaler(checkpoint, device, DEFAULTS)
    report, table, fastest = search(pairs, upscaler, bound, batch_size)
    if save:
        save_default(folder, upscaler.device.type, fastest)
    report["device"] = upscaler.device.type
    report["saved"] = str(folder) if save else None
    if as_json:
        typer.echo(json.dumps(report))
    else:
        typer.echo(table, err=True)
        outcome = f"saved as its default on {upscaler.device.type} in {folder}" if save else "not saved"
        typer.echo(f"superres: fastest for {report['checkpoint']}: {label(fastest)}; {outcome}", err=True)


@train_app.callback()
def train() -> None:
    """Train a checkpoint in stages; a stage that is killed or interrupted resumes where it was."""


@train_app.command()
def base(
    context: typer.Context, data: TrainData, output: RunFolder, dev: Dev = None, start: Start = None,
    preset: Preset = "base", minutes: Minutes = None, steps: Steps = None,
    batch_size: TrainBatch = TRAINING.batch_size, learning_rate: Rate = TRAINING.learning_rate,
    precision: Precision = TRAINING.precision, seed: Seed = 0, limit: Limit = None,
    gradient_checkpointing: Recompute = False,
) -> None:
    """Train the base model p1 by teacher forcing; writes DIR/checkpoint."""
    _train(train_config(context, "base"), data=data, output=output, dev=dev, start=start, preset=preset, limit=limit)


@train_app.command()
def heads(
    context: typer.Context, data: TrainData, output: RunFolder, start: Start = None, dev: Dev = None,
    prediction_heads: Heads = None, freeze_base: Freeze = False, head_loss: HeadLoss = TRAINING.head_loss,
    minutes: Minutes = None, steps: Steps = None, batch_size: TrainBatch = TRAINING.batch_size,
    learning_rate: Rate = TRAINING.learning_rate, precision: Precision = TRAINING.precision, seed: Seed = 0,
    limit: Limit = None, gradient_checkpointing: Recompute = False, head_decay: HeadDecay = TRAINING.head_decay,
    head_layer: HeadLayer = None, head_target: HeadTarget = TRAINING.head_target,
) -> None:
    """Train prediction heads on a trained base, which is fine-tuned or frozen; writes DIR/checkpoint."""
    _train(train_config(context, "heads"), data=data, output=output, dev=dev, start=start, limit=limit,
           prediction_heads=prediction_heads, head_layer=head_layer)


@train_app.command()
def decode(
    data: TrainData, output: RunFolder, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, limit: Limit = None,
    block_size: BlockSize = DEFAULTS.block_size, batch_size: BatchSize = 64, device: Device = "auto",
) -> None:
    """Let a checkpoint decode training inputs greedily, for the stage distil; writes DIR/faces.npz."""
    options = DecodeConfig(block_size)

    from superres.stages import decode_own_faces
    from superres.tasks.faces import read_faces

    pairs = read_faces(data, "train", limit)
    upscaler = load_upscaler(checkpoint, device, options)
    with _training_bar(len(pairs), "image") as (bar, stop):

        def report(record: dict[str, float]) -> None:
            bar.update(record["images"] - bar.n)

        done = decode_own_faces(upscaler, pairs, output, options, batch_size, stop, report)
    _finish(output, done)


@train_app.command()
def distil(
    context: typer.Context, data: TrainData, own: Own, output: RunFolder, start: Start = None, dev: Dev = None,
    freeze_base: Freeze = False, minutes: Minutes = None, steps: Steps = None,
    batch_size: TrainBatch = TRAINING.batch_size, learning_rate: Rate = TRAINING.learning_rate,
    precision: Precision = TRAINING.precision, seed: Seed = 0, limit: Limit = None,
    gradient_checkpointing: Recompute = False, head_layer: HeadLayer = None,
    head_target: HeadTarget = TRAINING.head_target,
) -> None:
    """Train prediction heads on pictures that the model decoded itself (self-distillation); writes DIR/checkpoint."""
    _train(train_config(context, "distil"), data=data, own=own, output=output, dev=dev, start=start, limit=limit,
           head_layer=head_layer)


@train_app.command()
def ladder(recipe: Recipe, data: TrainData, output: RunFolder, dev: Dev = None, piece: Piece = None) -> None:
    """Train every stage of a recipe in turn; each rung has its folder in DIR, training.jsonl there tells of all."""
    from superres.stages import Ladder, climb

    rungs = Ladder.read(recipe)
    end = time.monotonic() + 60 * piece if piece is not None else None
    with _training_bar(None, "s") as (bar, stop):

        def report(rung: str, record: dict[str, float]) -> None:
            bar.set_description_str(rung, refresh=False)
            _show(bar, record)

        done = climb(rungs, data, output, dev, lambda: stop() or (end is not None and time.monotonic() > end), report)
    _finish(output, done)


def train_config(context: typer.Context, stage: str) -> TrainConfig:
    """Return the settings of a stage from a command with options for some of them; the others have their defaults.

    Raises:
        ConfigError: a setting is out of range, or two contradict one another.
    """
    given = {name: context.params[name] for name in TRAINING.to_dict() if name in context.params}
    return TrainConfig.from_dict({"stage": stage, **given})


def _train(settings: TrainConfig, **stage_options: Any) -> None:  # noqa: ANN401 -- those of superres.stages.Stage
    """Run a stage with a progress bar."""
    from superres.stages import Stage, train_faces

    stage = Stage(settings, **stage_options)
    total = settings.steps or round(60 * (settings.minutes or 0))
    with _training_bar(total, "step" if settings.steps else "s") as (bar, stop):

        def report(record: dict[str, float]) -> None:
            done = record["step"] if settings.steps else record["seconds"]
            bar.update(min(done, total) - bar.n)
            _show(bar, record)

        done = train_faces(stage, stop, report)
    _finish(stage.output, done)


@contextmanager
def _training_bar(total: float | None, unit: str) -> Iterator[tuple[tqdm[NoReturn], Callable[[], bool]]]:
    """Show a progress bar; SIGTERM and Ctrl-C meanwhile make the function beside it return True."""
    from tqdm import tqdm

    stopping: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: stopping.append(received))
    with tqdm(total=total, unit=unit, disable=None) as bar:
        yield bar, lambda: bool(stopping)


def _show(bar: tqdm[NoReturn], record: dict[str, float]) -> None:
    shown = ("images", "p1", "heads", "bits_per_dim")
    bar.set_postfix_str(", ".join(f"{name} {record[name]:.4g}" for name in shown if name in record))


def _finish(output: Path, done: bool) -> None:
    """Say whether a run is finished, and exit."""
    state = "finished" if done else "stopped and saved; the same command resumes it"
    typer.echo(f"superres: {output}: {state}", err=True)
    raise typer.Exit(0 if done else INTERRUPTED)


def decode_config(context: typer.Context) -> DecodeConfig:
    """Return the decoding settings of a command that has an option for each.

    Raises:
        ConfigError: a setting is out of range, or two contradict one another.
    """
    values = {name: context.params[name] for name in DEFAULTS.to_dict()}
    values["epsilon"] = parse_epsilon(values["epsilon"])
    values["temperature"] = parse_temperature(values["temperature"])
    return DecodeConfig(**values)


def given_options(context: typer.Context, decode: DecodeConfig) -> dict[str, Any]:
    """Return those of the settings `decode` that stand on the command line, rather than being an option's default."""
    sources = {name: context.get_parameter_source(name) for name in decode.to_dict()}
    # The type of a source moves with typer, its name does not.
    return {name: getattr(decode, name) for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def load_upscaler(checkpoint: str, device: str, decode: DecodeConfig) -> Upscaler:
    """Check the names of the device, the criterion, the proposer and the noise, and load the checkpoint.

    Raises:
        ConfigError: an unknown name, or a device that this machine lacks.
        CheckpointError: the checkpoint is missing or damaged.
    """
    require_choice("--device", device, DEVICES)
    for option, names in registered_names().items():
        require_choice(f"--{option}", getattr(decode, option), names)
    from superres.pipeline import Upscaler

    return Upscaler.load(checkpoint, device)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors of the user's making become one line on standard error.

    Args:
        arguments: words after the program's name; those of the process by default.
    """
    try:
        words = sys.argv[1:] if arguments is None else list(arguments)
        code = app(args=words, prog_name="superres", standalone_mode=False)
    except USAGE_ERROR as error:
        return _refuse(f"{str(error.format_message()).rstrip('.')}; see superres --help")  # type: ignore[attr-defined]
    except SuperresError as error:
        return _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # newer releases of typer turn the interrupt into this code themselves
        _refuse("interrupted; what is finished is kept")
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    typer.echo(f"superres: {' '.join(message.split())}", err=True)
    return 2


def main() -> None:
    """Run the command line of this process and exit."""
    sys.exit(run())
