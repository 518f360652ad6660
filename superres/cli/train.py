"""The commands of `superres train`: stages of training, each with a progress bar and safe to interrupt."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from superres.cli.options import (
    INTERRUPTED,
    BatchSize,
    Checkpoint,
    Device,
    LengthPenalty,
    choices,
    decode_config,
    decoding_command,
    load_translator,
    load_upscaler,
)
from superres.config import DECODING, DEFAULT_CHECKPOINT, FACES, HEAD_LAYERS, PRESETS, BeamConfig
from superres.system.terminal import echo, printable
from superres.tasks.translation import parse_languages
from superres.training.settings import HEAD_LOSSES, HEAD_TARGETS, TrainConfig

if TYPE_CHECKING:
    from tqdm import tqdm

TRAINING = TrainConfig(steps=1)
BEAM = BeamConfig()

TrainData = Annotated[Path, typer.Option("--data", metavar="PATH", help="Faces to train on: .npz, folder or CelebA; "
                                          "or parallel text PATH.en and PATH.de.")]
RunFolder = Annotated[Path, typer.Option("--output", metavar="DIR", help="The run's folder; a run in it is resumed.")]
Dev = Annotated[Path | None, typer.Option(metavar="PATH", help="Faces or text for scores on the way.",
                                          show_default=False)]
Start = Annotated[Path | None, typer.Option(metavar="DIR", help="Checkpoint folder to start from.",
                                            show_default=False)]
Preset = Annotated[str, typer.Option(metavar=choices(list(PRESETS)), help="The network, unless --start gives one.")]
Heads = Annotated[int | None, typer.Option(metavar="K", help="Prediction heads p1..pk. [default: those of --start, or "
                                           "10]", show_default=False)]
Own = Annotated[Path, typer.Option(metavar="PATH", help="Pictures that the model decoded itself, from 'train decode'.")]
RecipeFile = Annotated[Path, typer.Argument(metavar="RECIPE", help="JSON file of stages; see scripts/recipes.")]
More = Annotated[Path | None, typer.Option(metavar="PATH", help="Text: further pairs PATH.en and PATH.de, for the "
                                           "rungs that read some.", show_default=False)]
Piece = Annotated[float | None, typer.Option("--piece-minutes", metavar="M", help="Save and stop after M minutes; the "
                                             "same command goes on.", show_default=False)]
Freeze = Annotated[bool, typer.Option("--freeze-base", help="Train the head layer alone. p1 stays the base's, "
                                      "except in the preset paper, where p1 goes through the layer.")]
HeadLoss = Annotated[str, typer.Option(metavar=choices(HEAD_LOSSES), help="Loss of a minibatch: p1's plus the mean of "
                                       "all heads at some positions; that of one random head of p1..pk, as in the "
                                       "paper; or p1's plus that of one random head of p2..pk.")]
HeadTarget = Annotated[str, typer.Option(metavar=choices(HEAD_TARGETS), help="What heads learn: p1's own "
                                         "distribution at their target, or the true token as in the paper.")]
HeadDecay = Annotated[float, typer.Option(metavar="D", help="Head i counts D**(i - 2) in the loss of the heads.")]
HeadLayer = Annotated[str | None, typer.Option(metavar=choices(HEAD_LAYERS), help="Layer that makes the heads. "
                                               "[default: that of --start]", show_default=False)]
Minutes = Annotated[float | None, typer.Option(metavar="M", help="Length in minutes of training, over all resumes.",
                                               show_default=False)]
Steps = Annotated[int | None, typer.Option(metavar="N", help="Length in steps.", show_default=False)]
TrainBatch = Annotated[int, typer.Option("--batch-size", metavar="N", help="Images, or pairs of sentences, a step over "
                                         "all processes.")]
Rate = Annotated[float, typer.Option("--learning-rate", metavar="R", help="Peak learning rate.")]
Recompute = Annotated[bool, typer.Option("--gradient-checkpointing", help="Less memory for more computation.")]
TrainLimit = Annotated[int | None, typer.Option("--limit", metavar="N", help="Use the first N images, or pairs of "
                                                "sentences, of --data only.", show_default=False)]
TrainSeed = Annotated[int, typer.Option("--seed", metavar="S", help="Of the weights and the order of the data.")]
Smoothing = Annotated[float, typer.Option("--label-smoothing", metavar="S", help="Share of p1's target that is spread "
                                          "over all tokens; try 0.1 for text.")]
Warmup = Annotated[int, typer.Option("--warmup-steps", metavar="N", help="Steps of linear warm-up.")]
Positions = Annotated[int, typer.Option("--head-positions", metavar="N", help="Positions of a target on which the "
                                        "heads are trained in a step.")]
Vocabulary = Annotated[Path | None, typer.Option(metavar="FILE", help="Text: a SentencePiece model to use instead of "
                                                 "training one.", show_default=False)]
TrainLanguages = Annotated[str | None, typer.Option("--languages", metavar="SOURCE-TARGET", help="Text: its languages, "
                                                    "such as en-de, which is the preset's.", show_default=False)]
Teacher = Annotated[str | None, typer.Option(metavar="NAME|DIR", help="Learn the distributions of this checkpoint's "
                                             "p1, not the true tokens; so is a draft model made.", show_default=False)]
TeacherBeam = Annotated[int, typer.Option("--beam", metavar="N", help="Text: hypotheses of beam search per sentence.",
                                          rich_help_panel=DECODING)]
Precision = Annotated[str, typer.Option(metavar="[bf16|no]", help="Autocast to bf16, or not.")]

NgramFile = Annotated[Path, typer.Option("--output", metavar="FILE", help="Where to write the counts; named "
                                         "ngrams.safetensors in the checkpoint's folder they are found by themselves.")]
Order = Annotated[int, typer.Option(metavar="N", help="Most tokens of an n-gram.")]
Least = Annotated[int, typer.Option(metavar="N", help="Leave out contexts that were seen less often.")]
Most = Annotated[int, typer.Option(metavar="N", help="Keep so many contexts, the most frequent.")]

train_app = typer.Typer(help="Train a checkpoint in stages.", rich_markup_mode=None)


@train_app.callback()
def train() -> None:
    """Train a checkpoint in stages; a stage that is killed or interrupted resumes where it was."""


@train_app.command()
def base(
    context: typer.Context, data: TrainData, output: RunFolder, dev: Dev = None, start: Start = None,
    preset: Preset = "base", minutes: Minutes = None, steps: Steps = None,
    batch_size: TrainBatch = TRAINING.batch_size, learning_rate: Rate = TRAINING.learning_rate,
    precision: Precision = TRAINING.precision, seed: TrainSeed = 0, limit: TrainLimit = None,
    gradient_checkpointing: Recompute = False, label_smoothing: Smoothing = TRAINING.label_smoothing,
    warmup_steps: Warmup = TRAINING.warmup_steps, languages: TrainLanguages = None, vocabulary: Vocabulary = None,
    teacher: Teacher = None,
) -> None:
    """Train the base model p1 by teacher forcing; writes DIR/checkpoint. The preset text learns to translate."""
    _train(train_config(context, "base"), data=data, output=output, dev=dev, start=start, preset=preset, limit=limit,
           languages=None if languages is None else parse_languages(languages), vocabulary=vocabulary)


@train_app.command()
def heads(
    context: typer.Context, data: TrainData, output: RunFolder, start: Start = None, dev: Dev = None,
    prediction_heads: Heads = None, freeze_base: Freeze = False, head_loss: HeadLoss = TRAINING.head_loss,
    minutes: Minutes = None, steps: Steps = None, batch_size: TrainBatch = TRAINING.batch_size,
    learning_rate: Rate = TRAINING.learning_rate, precision: Precision = TRAINING.precision, seed: TrainSeed = 0,
    limit: TrainLimit = None, gradient_checkpointing: Recompute = False, head_decay: HeadDecay = TRAINING.head_decay,
    head_layer: HeadLayer = None, head_target: HeadTarget = TRAINING.head_target,
    label_smoothing: Smoothing = TRAINING.label_smoothing, warmup_steps: Warmup = TRAINING.warmup_steps,
    head_positions: Positions = TRAINING.head_positions,
) -> None:
    """Train prediction heads on a trained base, which is fine-tuned or frozen; writes DIR/checkpoint."""
    _train(train_config(context, "heads"), data=data, output=output, dev=dev, start=start, limit=limit,
           prediction_heads=prediction_heads, head_layer=head_layer)


@decoding_command(train_app, FACES, "block_size")
def decode(
    context: typer.Context, data: TrainData, output: RunFolder, checkpoint: Checkpoint = DEFAULT_CHECKPOINT,
    limit: TrainLimit = None, batch_size: BatchSize = 64, device: Device = "auto",
    beam: TeacherBeam = BEAM.size, length_penalty: LengthPenalty = BEAM.length_penalty,
) -> None:
    """Let a checkpoint decode training inputs, to train on what it makes of them.

    Faces are decoded greedily, for the stage distil, into DIR/faces.npz. A translation checkpoint, the teacher,
    translates by beam search into the parallel text DIR/pairs, which is --data for training a student.
    """
    options, search = decode_config(context), BeamConfig(beam, length_penalty)

    from superres.checkpoint import find_checkpoint
    from superres.pipeline.auto import checkpoint_task
    from superres.tasks import faces, translation
    from superres.training.distillation import decode_own_faces, translate_pairs

    if checkpoint_task(find_checkpoint(checkpoint)) == translation.name:
        translator = load_translator(checkpoint, device)
        text = translation.read_pairs(data, translator.languages, limit)
        with _counting_bar(len(text), "pair") as (report, stop):
            done = translate_pairs(translator, text, output, search, batch_size, stop, report)
    else:
        pairs = faces.read_faces(data, "train", limit)
        upscaler = load_upscaler(checkpoint, device)
        with _counting_bar(len(pairs), "image") as (report, stop):
            done = decode_own_faces(upscaler, pairs, output, options, batch_size, stop, report)
    _finish(output, done)


@train_app.command()
def distil(
    context: typer.Context, data: TrainData, own: Own, output: RunFolder, start: Start = None, dev: Dev = None,
    freeze_base: Freeze = False, minutes: Minutes = None, steps: Steps = None,
    batch_size: TrainBatch = TRAINING.batch_size, learning_rate: Rate = TRAINING.learning_rate,
    precision: Precision = TRAINING.precision, seed: TrainSeed = 0, limit: TrainLimit = None,
    gradient_checkpointing: Recompute = False, head_layer: HeadLayer = None,
    head_target: HeadTarget = TRAINING.head_target,
) -> None:
    """Train prediction heads on pictures that the model decoded itself (self-distillation); writes DIR/checkpoint."""
    _train(train_config(context, "distil"), data=data, own=own, output=output, dev=dev, start=start, limit=limit,
           head_layer=head_layer)


@train_app.command()
def ngrams(
    data: TrainData, output: NgramFile, checkpoint: Checkpoint = DEFAULT_CHECKPOINT, order: Order = 3,
    limit: TrainLimit = None, least: Least = 2, most: Most = 200_000,
) -> None:
    """Count n-grams of the targets of training data, in the tokens of a checkpoint, for the proposer ngram."""
    from superres.system.output import write_result
    from superres.training.ngram_counts import count_targets

    table = count_targets(checkpoint, data, order, limit, least, most)
    write_result(output, table.to_bytes())
    echo(f"superres: {output}: {len(table.keys):,} contexts of up to {order - 1} tokens", err=True)


@train_app.command()
def ladder(
    recipe: RecipeFile, data: TrainData, output: RunFolder, dev: Dev = None, more: More = None, piece: Piece = None
) -> None:
    """Train every stage of a recipe in turn; each rung has its folder in DIR, training.jsonl there tells of all."""
    from superres.training.recipes import Recipe, train_recipe

    rungs = Recipe.read(recipe)
    end = time.monotonic() + 60 * piece if piece is not None else None
    with _training_bar(None, "s") as (bar, stop):

        def report(rung: str, record: dict[str, float]) -> None:
            bar.set_description_str(printable(rung), refresh=False)
            _show(bar, record)

        done = train_recipe(
            rungs, data, output, dev, lambda: stop() or (end is not None and time.monotonic() > end), report, more)
    _finish(output, done)


def train_config(context: typer.Context, stage: str) -> TrainConfig:
    """Return the settings of a stage from a command with options for some of them; the others have their defaults.

    Raises:
        ConfigError: a setting is out of range, or two contradict one another.
    """
    given = {name: context.params[name] for name in TRAINING.to_dict() if name in context.params}
    return TrainConfig.from_dict({"stage": stage, **given})


def _train(settings: TrainConfig, **stage_options: Any) -> None:  # noqa: ANN401 -- those of superres.training.recipes.Stage
    """Run a stage with a progress bar."""
    from superres.training.corpora import Stage
    from superres.training.recipes import train_stage

    stage = Stage(settings, **stage_options)
    total = settings.steps or round(60 * (settings.minutes or 0))
    with _training_bar(total, "step" if settings.steps else "s") as (bar, stop):

        def report(record: dict[str, float]) -> None:
            done = record["step"] if settings.steps else record["seconds"]
            bar.update(min(done, total) - bar.n)
            _show(bar, record)

        done = train_stage(stage, stop, report)
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


@contextmanager
def _counting_bar(total: int, unit: str) -> Iterator[tuple[Callable[[dict[str, float]], None], Callable[[], bool]]]:
    """Show a bar of decoded examples; give what moves it, and what tells that it is to stop."""
    with _training_bar(total, unit) as (bar, stop):

        def report(record: dict[str, float]) -> None:
            bar.update(record[f"{unit}s"] - bar.n)

        yield report, stop


def _show(bar: tqdm[NoReturn], record: dict[str, float]) -> None:
    shown = ("images", "pairs", "p1", "heads", "bits_per_dim", "bits_per_token", "bleu")
    bar.set_postfix_str(", ".join(f"{name} {record[name]:.4g}" for name in shown if name in record))


def _finish(output: Path, done: bool) -> None:
    """Say whether a run is finished, and exit."""
    state = "finished" if done else "stopped and saved; the same command resumes it"
    echo(f"superres: {output}: {state}", err=True)
    raise typer.Exit(0 if done else INTERRUPTED)
