"""The commands of `superres train`: stages of training, which show their progress and resume after
an interruption."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from superres.cli import options as opt
from superres.config import (
    DECODING,
    DEFAULT_CHECKPOINT,
    DEFAULT_TRANSLATOR,
    FACES,
    BeamConfig,
    settings_of,
)
from superres.system import signals
from superres.system.output import check_folder
from superres.system.progress import Progress, say
from superres.training.stage import Stage

BEAM = BeamConfig()
# Settings of training that get an option: in all stages, and in those that train heads.
STAGE = ("data", "output", "dev", "start", "limit", "crops", "drawn", "minutes", "steps",
         "batch_size", "learning_rate", "optimizer", "precision", "threads", "device", "compiled",
         "seed", "gradient_checkpointing", "crop_share", "turned_share", "doubled_share",
         "input_noise", "warmup_steps", "schedule")
HEADS = ("head_layer", "freeze_base", "head_positions", "head_target")
REQUIRED = ("data", "own", "output")
UNITS = {"steps": "step", "s": "seconds", "images": "images", "pairs": "pairs"}
"""Entries of a record by the unit of the progress."""
SHOWN = ("step", "loss", "images", "pairs", "p1", "heads", "rate", "bits_per_dim", "bits_per_token",
         "bleu")
"""Entries of a record that are shown beside the progress."""

TrainData = Annotated[Path, Option(metavar="PATH", help="Training faces (.npz, folder or CelebA "
                                   "root), or parallel text PATH.en and PATH.de.")]
RunFolder = Annotated[Path, Option(metavar="DIR", help="Folder of the run; a run in it is "
                                   "resumed.")]
Limit = Annotated[int | None, Option(metavar="N", help="Use only the first N images or sentence "
                                     "pairs of --data.")]
RecipeFile = Annotated[Path, Argument(metavar="RECIPE", help="JSON file of stages; see "
                                      "scripts/train/recipes.")]
PieceMinutes = Annotated[float | None, Option(metavar="M", help="Save and stop after M minutes; "
                                              "the same command continues.")]
TeacherBeam = Annotated[int, Option(metavar="N", rich_help_panel=DECODING, help="Text: hypotheses "
                                    "of beam search per sentence.")]
ShortlistFile = Annotated[Path, Option(metavar="FILE", help="File for the shortlists. "
                                       "shortlist.safetensors in the checkpoint's folder is read "
                                       "without an option.")]
Domain = Annotated[str, Option(metavar="WORDS", help="What the text is, for messages about other "
                               "text, such as 'captions of photographs'.")]
NgramFile = Annotated[Path, Option(metavar="FILE", help="File for the counts. ngrams.safetensors "
                                   "in the checkpoint's folder is found automatically.")]
Order = Annotated[int, Option(metavar="N", help="Largest number of tokens in an n-gram.")]
Least = Annotated[int, Option(metavar="N", help="Leave out contexts with fewer occurrences.")]
Most = Annotated[int, Option(metavar="N", help="Keep the N most frequent contexts.")]

Stages = Annotated[list[str], Argument(metavar="NAME|DIR...", help="Checkpoints, the first stage "
                                       "first.")]
CascadeFolder = Annotated[Path, Option(metavar="DIR", help="New folder for the cascade.")]
AlignedFaces = Annotated[Path, Option(metavar="PATH", help="Aligned faces of 64x64 pixels or more "
                                      "(.npz or CelebA root).")]
AlignerFolder = Annotated[Path, Option(metavar="DIR", help="Folder for the weights.")]
DevFaces = Annotated[Path | None, Option(metavar="PATH", help="Other aligned faces, to measure the "
                                         "errors.")]
AlignerSteps = Annotated[int, Option(metavar="N", help="Steps of training; 24,000 take about half "
                                     "an hour.")]
Seed = Annotated[int, Option(metavar="S", help="Seed of every random choice.")]

train_app = typer.Typer(help="Train checkpoints in stages, each of which can be resumed.",
                        rich_markup_mode=None)


def training_command(*names: str) -> Callable[[opt.Command], opt.Command]:
    """Return a decorator that registers a command with options for the settings `names` of `Stage`.

    The command reads these options with `given_settings`.
    """
    about = settings_of(Stage)

    def register(function: opt.Command) -> opt.Command:
        options = [opt.option_of(name, replace(about[name], panel="Options"),
                                 ... if name in REQUIRED else None if about[name].unset
                                 else getattr(Stage, name))
                   for name in names]
        options.sort(key=lambda option: option.name not in REQUIRED)
        train_app.command(cls=opt.HelpfulCommand)(opt.with_options(function, options))
        return function

    return register


def given_settings(context: typer.Context) -> dict[str, Any]:
    """Return the settings of `Stage` whose option is on the command line."""
    return {name: context.params[name] for name in settings_of(Stage)
            if opt.is_given(context, name)}


@training_command(*STAGE, "preset", "languages", "vocabulary", "label_smoothing", "teacher")
def base(context: typer.Context) -> None:
    """Train the base model p1 by teacher forcing.

    The result is DIR/checkpoint. The text preset learns to translate.
    """
    _train(context)


@training_command(*STAGE, "prediction_heads", *HEADS, "head_loss", "label_smoothing")
def heads(context: typer.Context) -> None:
    """Train prediction heads on a trained base model.

    The base model is fine-tuned or frozen. The result is DIR/checkpoint.
    """
    _train(context)


@training_command(*STAGE, "own", *HEADS, "teacher")
def distil(context: typer.Context) -> None:
    """Train prediction heads on pictures of the model itself.

    This is self-distillation. With --teacher, usually the checkpoint that drew the pictures, p1
    keeps the teacher's distributions on them. The result is DIR/checkpoint.
    """
    _train(context)


@opt.decoding_command(train_app, FACES, "block_size", "temperature")
def decode(
    context: typer.Context, data: TrainData, output: RunFolder,
    checkpoint: opt.Checkpoint = DEFAULT_CHECKPOINT, limit: Limit = None,
    batch_size: opt.BatchSize = 64, device: opt.Device = "auto", beam: TeacherBeam = BEAM.size,
    length_penalty: opt.LengthPenalty = BEAM.length_penalty,
) -> None:
    """Decode training inputs with a checkpoint, for distillation.

    Faces are decoded into DIR/faces.npz: greedily for the distil stage, or as the inputs that the
    next stage of a cascade will see. A translation checkpoint (the teacher) translates by beam
    search into the parallel text DIR/pairs, which is the --data of a student.
    """
    options, search = opt.decode_config(context), BeamConfig(beam, length_penalty)

    from superres.pipeline.auto import checkpoint_task
    from superres.pipeline.choose import fastest_exact
    from superres.tasks import translation
    from superres.tasks.face_data import read_faces
    from superres.tasks.face_paths import require_faces
    from superres.training.distillation import decode_own_faces, translate_pairs

    check_folder(output)
    if checkpoint_task(checkpoint) == translation.name:
        opt.refuse_ineffective(context, "on beam search, by which text is translated; leave it out",
                               "block_size", "temperature")
        opt.check_pairs(checkpoint, data)
        translator = opt.load_translator(checkpoint, device)
        text = translation.read_pairs(data, translator.languages, limit)
        with Training({"translating": (len(text), "pairs")}) as shown:
            done = translate_pairs(translator, text, output, search, batch_size, signals.stopping,
                                   shown.show)
    else:
        require_faces(data)
        upscaler = opt.load_upscaler(checkpoint, device)
        pairs = read_faces(data, upscaler.face_task, "train", limit)
        # Not the checkpoint's saved default, which need not be exact.
        default = fastest_exact(upscaler.scoring.adaptive, upscaler.model_config,
                                upscaler.scoring.prediction_heads)
        options = default.changed(opt.given_options(context, options))
        with Training({"decoding": (len(pairs), "images")}) as shown:
            done = decode_own_faces(upscaler, pairs, output, options, batch_size, signals.stopping,
                                    shown.show)
    _finish(output, done)


@train_app.command(cls=opt.HelpfulCommand)
def ngrams(
    data: TrainData, output: NgramFile, checkpoint: opt.Checkpoint = DEFAULT_CHECKPOINT,
    order: Order = 3, limit: Limit = None, least: Least = 2, most: Most = 200_000,
) -> None:
    """Count n-grams of training targets, for the ngram proposer.

    The n-grams are in the tokens of --checkpoint.
    """
    from superres.system.output import prepare_folder, write_result
    from superres.training.ngram_counts import count_targets

    prepare_folder(output.parent)
    table = count_targets(checkpoint, data, order, limit, least, most)
    write_result(output, table.to_bytes())
    say(f"{output}: {len(table.keys):,} contexts of up to {order - 1} tokens")


@train_app.command(cls=opt.HelpfulCommand)
def shortlist(
    data: TrainData, output: ShortlistFile, checkpoint: opt.Checkpoint = DEFAULT_TRANSLATOR,
    limit: Limit = None, domain: Domain = "",
) -> None:
    """Learn the shortlists from which the heads of a text checkpoint choose, from parallel text.

    They change no translation: a head's proposal costs less, and some words are no longer proposed.
    They also tell which sentences are unlike the text.
    """
    from superres.system.output import prepare_folder, write_result
    from superres.training.shortlists import learn_shortlists

    prepare_folder(output.parent)
    lists = learn_shortlists(checkpoint, data, limit, domain)
    write_result(output, lists.to_bytes())
    say(f"{output}: {len(lists.common)} common tokens, and translations of "
        f"{int((lists.likely >= 0).any(1).sum()):,} source tokens")


@train_app.command(cls=opt.HelpfulCommand)
def join(stages: Stages, output: CascadeFolder) -> None:
    """Join checkpoints to a cascade, each of which enlarges the pictures of the one before.

    Bundled checkpoints are named in the cascade's config.json; others are copied into DIR, so that
    it can be moved.
    """
    from superres.training.derived import join as join_stages

    join_stages(stages, output)


@train_app.command(cls=opt.HelpfulCommand)
def aligner(
    data: AlignedFaces, output: AlignerFolder, dev: DevFaces = None, steps: AlignerSteps = 24_000,
    limit: Limit = None, seed: Seed = 0,
) -> None:
    """Train the network that aligns the faces of photos.

    DIR gets model.safetensors and training.jsonl. An interrupted run begins again.
    """
    from superres.training.alignment import train_aligner

    with Training({"": (steps, "steps")}) as shown:
        lines = train_aligner(data, output, dev, steps, seed, limit, shown.show)
    for line in [*lines, f"{output}: finished"]:
        say(line)


@training_command("data", "output", "dev", "more", "start", "crops", "drawn", "threads", "device",
                  "compiled")
def ladder(context: typer.Context, recipe: RecipeFile, piece_minutes: PieceMinutes = None) -> None:
    """Train all stages of a recipe.

    Each stage has its own folder in DIR. DIR/training.jsonl records all stages. Stages that start
    from nothing start from --start, without its heads.
    """
    from superres.training.recipes import read_recipe

    end = time.monotonic() + 60 * piece_minutes if piece_minutes is not None else math.inf
    stages = read_recipe(recipe, **given_settings(context))
    _train_recipe(stages, {stage.name: _length(stage) for stage in stages}, end)


def _train(context: typer.Context) -> None:
    """Train the stage that has the name of the command."""
    from superres.training.recipes import stage_of

    name = str(context.info_name)
    stage = stage_of({"stage": name, "keep_heads": True, **given_settings(context)})
    _train_recipe((stage,), {"": _length(stage)})


def _train_recipe(
    stages: Sequence[Stage], lengths: Mapping[str, tuple[float | None, str]],
    end: float = math.inf,
) -> None:
    """Train stages until the time `end`, and show their progress."""
    import matplotlib  # noqa: F401 -- draws the curves; without it, nothing is read

    from superres.training.recipes import train_recipe

    output = stages[0].output
    signals.will_keep(f"the same command continues in {output}")
    with Training(lengths) as shown:
        done = train_recipe(stages, lambda: signals.stopping() or time.monotonic() > end,
                            lambda stage, record: shown.show(record, stage))
    _finish(output, done)


class Training:
    """Shows the records of training with the latest losses, learning rate and scores, one phase per
    stage.

    A context manager. `lengths` has the length of each stage and its unit, by name.
    """

    def __init__(self, lengths: Mapping[str, tuple[float | None, str]]) -> None:
        """Begin with the first record."""
        self.lengths, self.stack = lengths, ExitStack()
        self.stage: str | None = None

    def __enter__(self) -> Training:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the phase."""
        self.stack.close()

    def show(self, record: Mapping[str, float], stage: str = "") -> None:
        """Show a record of a stage (by default the only one): of its history, its latest step, or
        what is decoded."""
        stage = stage or next(iter(self.lengths))
        total, unit = self.lengths[stage]
        done = record.get(UNITS[unit], 0)
        if stage != self.stage:
            self.stack.close()
            self.stage, self.values = stage, dict[str, float]()
            self.phase = self.stack.enter_context(Progress(stage or "training", total, unit))
            self.phase.resume(done)
        self.values |= {name: record[name] for name in SHOWN if name in record
                        and name != UNITS[unit]}
        self.phase.to(done, ", ".join(f"{name} {value:.4g}" for name, value in self.values.items()))


def _length(stage: Stage) -> tuple[float | None, str]:
    """Return the length of a stage and its unit."""
    if stage.steps is not None:
        return stage.steps, "steps"
    return (None if stage.minutes is None else round(60 * stage.minutes)), "s"


def _finish(output: Path, done: bool) -> None:
    """Report that a run is finished, or end as after an interruption."""
    if not done:
        signals.will_keep(f"{output}: saved; the same command resumes it")
        raise KeyboardInterrupt
    say(f"{output}: finished")
