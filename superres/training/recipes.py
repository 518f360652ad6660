"""Stages of training, and recipes that chain them: base, heads on a frozen base, fine-tuned, distilled."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from superres.checkpoint import (
    TRAINING,
    find_checkpoint,
    load_checkpoint,
    read_task_files,
    read_training,
    weights_digest,
)
from superres.config import (
    HEAD_LAYERS,
    PRESETS,
    REQUIRED,
    BeamConfig,
    Config,
    DecodeConfig,
    file_name,
    require,
    setting,
)
from superres.errors import ConfigError
from superres.nn.model import EncoderDecoder
from superres.pipeline.base import fastest_exact
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.json_files import read_json
from superres.system.output import check_folder, write_result
from superres.system.progress import Budget, budget
from superres.tasks import translation
from superres.tasks.face_data import mixed_inputs, read_drawn, read_faces
from superres.training.corpora import CORPORA, Corpus, Stage, changed_preset, check_data
from superres.training.distillation import Report, Stop, decode_own_faces, translate_pairs
from superres.training.settings import TrainConfig
from superres.training.trainer import Trainer, build_model

TEXTS = ("translated_by", "reverse", "back_translated_by", "back_translations", "copies")
"""Fields of `RecipeStage` that say what text a stage reads."""

BACK_TRANSLATION = DecodeConfig(block_size=1, temperature=0.9, nucleus=0.9)
"""How back-translations are sampled: varied, and seldom ungrammatical."""


def train_stage(stage: Stage, stop: Stop, report: Report, limit: Budget | None = None) -> bool:
    """Run a stage to its end or until `stop()`, called after every step, is true; the state is saved either way.

    The minutes of the stage begin with `limit`, or with this call.

    Returns:
        Whether the schedule was completed; then `stage.output / "checkpoint"` holds the result.

    Raises:
        SuperresError: as for `build_trainer`, or the minutes are over before the first step.
    """
    minutes = stage.settings.minutes
    if minutes and limit is None:
        limit = Budget(60 * minutes, f"{minutes:g} minutes")
    is_new = not (stage.output / "state").is_dir()  # the time that a resumed run has left is in its state
    with budget(limit if is_new else None):
        trainer = build_trainer(stage, limit)
    return trainer.run(stop, report)


def build_trainer(stage: Stage, limit: Budget | None = None) -> Trainer:
    """Read the data of a stage and prepare its run, which is resumed if its folder holds a state.

    Raises:
        SuperresError: data, settings, the warm start or an earlier run in the folder do not match.
    """
    network = stage.network()
    stage.check_paths(network)
    corpus = CORPORA[network.task](stage, network)
    teacher = load_teacher(stage.teacher, corpus) if stage.teacher is not None else None
    model = build_model(corpus.network, stage.settings, stage.start)
    earlier, start = ([], None) if stage.start is None else (read_training(stage.start), weights_digest(stage.start))
    return Trainer(model, stage.settings, corpus.batches, stage.output, corpus.evaluate, earlier=earlier,
                   files=corpus.files, teacher=teacher, start=start, limit=limit)


def load_teacher(folder: Path, corpus: Corpus) -> EncoderDecoder:
    """Load the checkpoint that p1 learns from; raise ConfigError if its tokens differ from those of `corpus`."""
    teacher = load_checkpoint(folder)
    for what in ("task", "languages", "vocabulary", "source_shape", "target_shape"):
        there, here = getattr(teacher.config, what), getattr(corpus.network, what)
        require(there == here, f"the teacher {folder} has {what} {there}, the network to train {here}; choose another "
                               "--teacher or --preset")
    for name, content in read_task_files(folder, teacher.config.task).items():
        require(content == corpus.files.get(name), f"the teacher {folder} has another {name} than the network to "
                                                   "train, so their tokens differ; leave --vocabulary out")
    return teacher


@dataclass(frozen=True)
class RecipeStage(Config):
    """One stage of a recipe, called a rung in the recipe file.

    Attributes:
        settings: the fields of `TrainConfig` that differ from its defaults. `teacher` may also name an earlier stage.
        start: name of the earlier stage to start from; None to start from random weights, or from a given checkpoint.
        head_layer: kind of new heads, a name in HEAD_LAYERS; as in the stage to start from if None.
        own_images: stage "distil": number of training inputs that `start` decodes itself.
        translated_by: text: name of an earlier stage, the teacher, on whose translations of all texts of this stage to
            train, by beam search.
        reverse: text: learn to translate the target language into the source language.
        back_translated_by: text: name of an earlier stage with `reverse`, which translates the target sentences back.
            Its translations are read as further sources of these targets (Sennrich et al. 2016, "Improving Neural
            Machine Translation Models with Monolingual Data").
        back_translations: text: number of different back-translations of every target sentence, which are sampled
            (Edunov et al. 2018, "Understanding Back-Translation at Scale").
        copies: text: copies of the training text to read beside back-translations or else the further text; 0 reads
            neither.
    """

    name: str
    settings: dict[str, Any]
    start: str | None = None
    head_layer: str | None = None
    own_images: int = setting(0, least=0)
    translated_by: str | None = None
    reverse: bool = False
    back_translated_by: str | None = None
    back_translations: int = setting(0, least=0, most=100)
    copies: int = setting(0, least=0, most=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        file_name(self.name, "the name of a rung")

    @property
    def reads_more(self) -> bool:
        """Whether the stage reads the further text."""
        return self.copies > 0 and self.back_translated_by is None

    def train_config(self) -> TrainConfig:
        """Return the validated settings; raise ConfigError for an unknown field or a value out of range."""
        return TrainConfig.from_dict(self.settings)


@dataclass(frozen=True)
class Recipe(Config):
    """A recipe for the checkpoints of Table 1 or 2 and beyond: `rungs` are the stages in the order of training.

    `decode_batch` is the number of images that a model decodes together for self-distillation, or of sentences
    translated together. With `keep_heads`, stages "base" keep the heads of a given checkpoint, untrained, for later
    stages to go on with. `network` has the fields of `ModelConfig` that differ from the preset's.
    """

    rungs: tuple[RecipeStage, ...]
    preset: str = setting(REQUIRED, choices=tuple(PRESETS))
    prediction_heads: int = setting(REQUIRED, least=1, most=2**10)
    decode_batch: int = setting(REQUIRED, least=1, most=2**16)
    keep_heads: bool = False
    network: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.rungs), "a recipe needs rungs; add one")
        changed_preset(self.preset, {**self.network, "prediction_heads": self.prediction_heads})
        for number, entry in enumerate(self.rungs):
            _check_stage(entry, {one.name: one for one in self.rungs[:number]}, f"rung {entry.name!r}")

    @classmethod
    def read(cls, path: Path) -> Recipe:
        """Read a recipe from a JSON file.

        Raises:
            ConfigError: the file is missing or damaged, or a stage does not match the stages before it.
            CheckpointError: there is no checkpoint of a teacher's name.
        """
        return read_json(path, cls.from_dict, ConfigError, "see the examples in scripts/train/recipes")


def _check_stage(entry: RecipeStage, earlier: dict[str, RecipeStage], rung: str) -> None:
    """Raise ConfigError, whose message begins with `rung`, unless a stage goes together with the earlier ones."""
    try:
        settings, back = entry.train_config(), entry.back_translated_by
    except ConfigError as error:
        raise ConfigError(f"{rung}: {error}") from error
    backward = {name for name, one in earlier.items() if one.reverse}
    if settings.teacher is not None and settings.teacher not in earlier:
        find_checkpoint(settings.teacher)  # a missing one is refused now, not after hours of training
    names = {name.casefold() for name in (TRAINING, *earlier)}  # some systems ignore the case of names
    require(entry.name.casefold() not in names, f"{rung}: another rung or file is called {entry.name!r}; rename it")
    require(entry.start in earlier or entry.start is None,
            f"{rung} starts from {entry.start!r}, which is not an earlier rung")
    require(entry.translated_by in earlier or entry.translated_by is None,
            f"{rung} is translated by {entry.translated_by!r}, which is not an earlier rung")
    require((settings.stage == "distil") == (entry.own_images > 0),
            f"{rung}: own_images must be positive in the distil stage, and only there")
    require(entry.head_layer is None or (entry.head_layer in HEAD_LAYERS and settings.trains_heads), f"{rung}: "
            f"head_layer {entry.head_layer!r} must be one of {', '.join(HEAD_LAYERS)}, in a rung that trains heads")
    require(back is None or back in backward,
            f"{rung} is translated back by {back!r}, which is not an earlier rung with reverse")
    require((entry.back_translations > 0) == (back is not None) and (back is None or entry.copies > 0),
            f"{rung}: back_translated_by, back_translations and copies belong together")
    require(entry.translated_by not in backward and not (entry.reverse and back),
            f"{rung} and its teacher must not translate in opposite directions")


def train_recipe(
    recipe: Recipe, data: Path, output: Path, dev: Path | None, stop: Stop,
    report: Callable[[str, dict[str, float]], None], more: Path | None = None, start: Path | None = None,
    crops: Path | None = None, drawn: tuple[Path, ...] = (),
) -> bool:
    """Train all stages of a recipe, each in the folder `output / <name of the stage>`; skip finished stages.

    `output / "training.jsonl"` gets a row per finished stage. `report` is called with the name of a stage and each
    record of its history; the other arguments are as in `Stage`. `more` is for the stages where
    `RecipeStage.reads_more`. `start` takes the place of random weights; stages "base" leave its heads out, unless
    `Recipe.keep_heads`. With several processes (`accelerate launch`), the first decodes the training data while the
    others wait.

    Returns:
        Whether all stages are finished.

    Raises:
        SuperresError: data, settings or an earlier run in the folder do not match.
    """
    reading = any(entry.reads_more for entry in recipe.rungs)
    require(reading == (more is not None), "the recipe reads further text; give it with --more" if reading else
            f"no rung of the recipe reads further text; leave out --more {more}")
    check_data(PRESETS[recipe.preset], data, dev, more, crops, *drawn)
    check_folder(output)
    processes = PartialState(cpu=not torch.cuda.is_available())
    backward = {entry.name for entry in recipe.rungs if entry.reverse}
    is_text = PRESETS[recipe.preset].task == translation.name
    rows, trained = list[dict[str, Any]](), dict[str, Path]()
    for entry in recipe.rungs:
        entry_report = functools.partial(report, entry.name)
        settings = entry.train_config()
        if settings.precision == "auto" and rows:  # the stages of a recipe differ in nothing that it does not say
            settings = dataclasses.replace(settings, precision=rows[0]["settings"]["precision"])
        heads = recipe.prediction_heads if settings.trains_heads else None if recipe.keep_heads else 1
        # All stages of text have the vocabulary of the first.
        vocabulary = next(iter(trained.values())) / translation.VOCABULARY_FILE if is_text and trained else None
        stage = Stage(settings, data, output / entry.name, dev,
                      start if entry.start is None else output / entry.start / "checkpoint", recipe.preset, heads,
                      changes=recipe.network, head_layer=entry.head_layer, vocabulary=vocabulary,
                      more=(more,) if more is not None and entry.reads_more else (), copies=entry.copies or 1,
                      reverse=entry.reverse != (entry.start in backward), crops=crops, drawn=drawn,
                      stages=dict(trained))
        with processes.main_process_first():
            ready = _with_decoded(stage, entry, output, recipe.decode_batch, stop, entry_report)
        if ready is None or not train_stage(ready, stop, entry_report):
            return False
        trained[entry.name] = stage.output / "checkpoint"
        row = {"rung": entry.name, "start": entry.start or (None if start is None else start.name),
               **read_training(stage.output / "checkpoint")[-1]}
        rows.append(row | {name: value for name in TEXTS if (value := getattr(entry, name))})
        write_result(output / TRAINING, "".join(json.dumps(row) + "\n" for row in rows).encode())
    return True


def _with_decoded(
    stage: Stage, entry: RecipeStage, output: Path, batch_size: int, stop: Stop, report: Report
) -> Stage | None:
    """Return `stage` with the data that earlier stages decode for `entry`; None if `stop()` returned true."""
    if entry.own_images and stage.start is not None:
        own = stage.output / "own"
        upscaler = Upscaler.load(stage.start)
        pairs = read_faces(stage.data, upscaler.face_task, "train", entry.own_images)
        pairs = mixed_inputs(pairs, [read_drawn(path, pairs) for path in stage.drawn])
        exact = fastest_exact(upscaler.scoring.width_invariant, upscaler.model_config)
        done = decode_own_faces(upscaler, pairs, own, exact, batch_size, stop, report)
        return dataclasses.replace(stage, own=own / "faces.npz") if done else None

    def translated(by: Path, jobs: list[tuple[Path, str, BeamConfig | DecodeConfig]]) -> list[Path] | None:
        """Translate texts with the stage in the folder `by`; a job has the text, the result's folder and settings."""
        translator = Translator.load(by / "checkpoint")
        for text, name, search in jobs:
            pairs = translation.read_pairs(text, translator.languages)
            if not translate_pairs(translator, pairs, by / name, search, batch_size, stop, report):
                return None
        return [by / name / "pairs" for _, name, _ in jobs]

    back = entry.back_translated_by
    if back is not None:
        found = translated(output / back, [
            (stage.data, f"back-{seed}", dataclasses.replace(BACK_TRANSLATION, seed=seed))
            for seed in range(1, entry.back_translations + 1)])
        if found is None:
            return None
        stage = dataclasses.replace(stage, more=tuple(found))
    if entry.translated_by is not None:
        further = [(path, f"translated-{'more' if back is None else f'back-{number}'}", BeamConfig())
                   for number, path in enumerate(stage.more, 1)]
        found = translated(output / entry.translated_by, [(stage.data, "translated", BeamConfig()), *further])
        if found is None:
            return None
        stage = dataclasses.replace(stage, data=found[0], more=tuple(found[1:]))
    return stage
