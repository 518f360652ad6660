"""Recipes: stages that are trained one after another, such as a base, heads on it, and heads on its
own pictures."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState

from superres.checkpoint import (
    TRAINING,
    load_checkpoint,
    read_task_files,
    read_training,
    weights_digest,
)
from superres.config import BeamConfig, DecodeConfig, file_name, reader_of, require
from superres.errors import ConfigError, shown
from superres.nn.model import EncoderDecoder
from superres.pipeline.choose import fastest_exact, pick_device
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.json_files import read_json
from superres.system.output import check_folder, write_result
from superres.system.threads import usable_cores
from superres.tasks import translation
from superres.tasks.face_data import mixed_inputs, read_drawn, read_faces
from superres.training.construction import build_model
from superres.training.corpora import (
    CORPORA,
    Corpus,
    changed_preset,
    check_data,
    check_paths,
    checkpoint_of,
    find_network,
    network_of,
)
from superres.training.derived import model_card, source_name
from superres.training.distillation import decode_own_faces, translate_pairs
from superres.training.stage import GPU_DEFAULTS, Report, Stage, Stop
from superres.training.trainer import Origin, Trainer

TEXTS = ("translated_by", "reverse", "back_translated_by", "back_translations", "copies")
"""Settings of a stage that say what text it reads."""
BACK_TRANSLATION = DecodeConfig(block_size=1, temperature=0.9, nucleus=0.9)
"""How back-translations are sampled: varied, and seldom ungrammatical."""

Recipe = tuple[Stage, ...]
"""Stages in the order of training."""


def stage_of(settings: Mapping[str, Any]) -> Stage:
    """Return the stage with `settings`; a GPU has other defaults. Raise ConfigError for a setting
    that is not valid."""
    on_gpu = pick_device(settings.get("device", Stage.device)) == "cuda"
    stage = Stage.from_dict({**(GPU_DEFAULTS if on_gpu else {}), **settings})
    require((stage.threads or 1) <= usable_cores(), f"threads must be at most {usable_cores()}, "
            f"the usable cores, not {stage.threads}")
    return stage


def read_recipe(path: Path, **common: Any) -> Recipe:  # noqa: ANN401 -- settings of stages
    """Read a recipe from a JSON file: `stages`, and beside it the settings that all stages have in
    common.

    `common` are such settings from elsewhere, such as paths, which take precedence over the file's.

    Raises:
        ConfigError: the file is missing or damaged, or a stage does not match the stages before it.
        CheckpointError: there is no checkpoint of that name to start from or to learn from.
    """
    return read_json(path, functools.partial(_parse_recipe, **common), ConfigError,
                     "see the examples in scripts/train/recipes")


def _parse_recipe(document: object, **common: Any) -> Recipe:  # noqa: ANN401 -- settings of stages
    shared = dict(reader_of(dict[str, Any])("a recipe", document))
    entries = reader_of(list[dict[str, Any]])("stages", shared.pop("stages", None))
    require(bool(entries), "a recipe needs stages; add one")
    stages: dict[str, Stage] = {}
    for entry in entries:
        where = f"stage {shown(entry.get('name'))}"
        try:
            stage = stage_of({**shared, **common, **entry})
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        _check_stage(stage, stages, where)
        stages[stage.name] = stage
    return tuple(stages.values())


def _check_stage(stage: Stage, earlier: dict[str, Stage], where: str) -> None:
    """Raise ConfigError, whose message begins with `where`, unless a stage goes together with the
    earlier ones."""
    file_name(stage.name, "the name of a stage")
    changed_preset(stage.preset, {**stage.network, "prediction_heads": stage.prediction_heads or 1})
    for name in (stage.start, stage.teacher):
        if name is not None and name not in earlier:
            find_network(name)  # a missing one is refused now, not after hours of training
    # some systems ignore the case of names
    names = {name.casefold() for name in (TRAINING, *earlier)}
    require(stage.name.casefold() not in names, f"{where}: another stage or file is called "
            f"{stage.name!r}; rename it")
    require((stage.stage == "distil") == (stage.own_images > 0),
            f"{where}: own_images must be positive in the distil stage, and only there")
    _check_texts(stage, earlier, where)


def _check_texts(stage: Stage, earlier: dict[str, Stage], where: str) -> None:
    """Raise ConfigError unless the translations that a stage reads can be made."""
    back = stage.back_translated_by
    backward = {name for name, one in earlier.items() if one.reverse}
    require(stage.translated_by in earlier or stage.translated_by is None,
            f"{where} is translated by {stage.translated_by!r}, which is not an earlier stage")
    require(back is None or back in backward,
            f"{where} is translated back by {back!r}, which is not an earlier stage with reverse")
    require((stage.back_translations > 0) == (back is not None)
            and (back is None or stage.copies > 0),
            f"{where}: back_translated_by, back_translations and copies belong together")
    require(stage.translated_by not in backward and not (stage.reverse and back),
            f"{where} and its teacher must not translate in opposite directions")


def train_recipe(
    recipe: Sequence[Stage], stop: Stop, report: Callable[[str, dict[str, float]], None],
) -> bool:
    """Train the stages of a recipe, each in the folder of its name in its `output`; skip finished
    stages.

    A `training.jsonl` there gets a row per finished stage with a name. `report` is called with the
    name of a stage and each record of its history. With several processes (`accelerate launch`),
    the first decodes the training data while the others wait.

    Returns:
        Whether all stages are finished.

    Raises:
        SuperresError: data, settings or an earlier run in the folder do not match.
    """
    given, network = recipe[0], network_of(recipe[0])
    require(any(stage.reads_more for stage in recipe) == bool(given.more), "the recipe reads "
            "further text; give it with --more" if not given.more else
            "no stage of the recipe reads further text; leave out --more "
            f"{', '.join(map(str, given.more))}")
    if given.name:
        check_data(network, given.data, given.dev, given.crops, *given.more, *given.drawn)
        check_folder(given.output)
    processes = PartialState(cpu=pick_device(given.device) == "cpu")
    backward = {stage.name for stage in recipe if stage.reverse}
    rows, trained = list[dict[str, Any]](), dict[str, Path]()
    for stage in recipe:
        changes: dict[str, Any] = {
            "output": stage.output / stage.name, "more": stage.more if stage.reads_more else (),
            "earlier": trained, "reverse": stage.reverse != (stage.start in backward)}
        for name, unset in (("precision", "auto"), ("threads", None)):
            # stages of a recipe differ in nothing that it does not say
            if rows and getattr(stage, name) == unset:
                changes[name] = rows[0]["settings"].get(name, unset)
        if rows and network.task == translation.name:  # all stages have the vocabulary of the first
            changes["vocabulary"] = next(iter(trained.values())) / translation.VOCABULARY_FILE
        own_report = functools.partial(report, stage.name)
        with processes.main_process_first():
            ready = _with_decoded(dataclasses.replace(stage, **changes), stop, own_report)
        if ready is None or not train_stage(ready, stop, own_report):
            return False
        trained = {**trained, stage.name: ready.output / "checkpoint"}
        rows.append({"name": stage.name, "start": None if stage.start is None
                     else Path(stage.start).name, **read_training(ready.output / "checkpoint")[-1],
                     **{name: value for name in TEXTS if (value := getattr(stage, name))}})
        if stage.name:
            write_result(stage.output / TRAINING,
                         "".join(json.dumps(row) + "\n" for row in rows).encode())
    return True


def train_stage(stage: Stage, stop: Stop, report: Report) -> bool:
    """Train a stage to its end or until `stop()`, called after every step, is true; the state is
    saved either way.

    Returns:
        Whether the schedule was completed; then `stage.output / "checkpoint"` holds the result.

    Raises:
        SuperresError: as for `build_trainer`.
    """
    return build_trainer(stage).run(stop, report)


def build_trainer(stage: Stage) -> Trainer:
    """Read the data of a stage and prepare its run, which is resumed if its folder holds a state.

    Raises:
        SuperresError: data, settings, the warm start or an earlier run in the folder do not match.
    """
    network = network_of(stage)
    check_paths(stage, network)
    corpus = CORPORA[network.task](stage, network)
    teacher = load_teacher(checkpoint_of(stage, stage.teacher),
                           corpus) if stage.teacher is not None else None
    start = None if stage.start is None else checkpoint_of(stage, stage.start)
    model = build_model(corpus.network, stage, start)
    earlier, digest = ([], None) if start is None else (read_training(start), weights_digest(start))
    card = model_card({source_name(name): checkpoint_of(stage, name)
                       for name in (stage.start, stage.teacher) if name})
    return Trainer(model, stage, corpus, Origin(digest, earlier, card), teacher)


def load_teacher(folder: Path, corpus: Corpus) -> EncoderDecoder:
    """Load the checkpoint that p1 learns from; raise ConfigError if its tokens differ from those of
    `corpus`."""
    teacher = load_checkpoint(folder)
    for what in ("task", "languages", "vocabulary", "source_shape", "target_shape"):
        there, here = getattr(teacher.config, what), getattr(corpus.network, what)
        require(there == here, f"the teacher {folder} has {what} {there}, the network to train "
                f"{here}; choose another --teacher or --preset")
    for name, content in read_task_files(folder, teacher.config.task).items():
        require(content == corpus.files.get(name), f"the teacher {folder} has another {name} than "
                "the network to train, so their tokens differ; leave --vocabulary out")
    return teacher


def _with_decoded(stage: Stage, stop: Stop, report: Report) -> Stage | None:
    """Return `stage` with the data that earlier stages decode for it; None if `stop()` returned
    true."""
    if stage.own_images and stage.start is not None:
        upscaler = Upscaler.load(checkpoint_of(stage, stage.start), stage.device)
        pairs = read_faces(stage.data, upscaler.face_task, "train", stage.own_images)
        pairs = mixed_inputs(pairs, [read_drawn(path, pairs) for path in stage.drawn])
        exact = fastest_exact(upscaler.scoring.adaptive, upscaler.model_config,
                              upscaler.scoring.prediction_heads)
        folder = stage.output / "own"
        done = decode_own_faces(upscaler, pairs, folder, exact, stage.decode_batch, stop, report)
        return dataclasses.replace(stage, own=folder / "faces.npz") if done else None

    def translated(
        by: str, jobs: list[tuple[Path, str, BeamConfig | DecodeConfig]],
    ) -> list[Path] | None:
        """Translate texts by an earlier stage; a job is text, name of a folder, and settings."""
        translator = Translator.load(stage.earlier[by], stage.device)
        folder = stage.earlier[by].parent
        for text, name, search in jobs:
            pairs = translation.read_pairs(text, translator.languages)
            if not translate_pairs(translator, pairs, folder / name, search, stage.decode_batch,
                                   stop, report):
                return None
        return [folder / name / "pairs" for _, name, _ in jobs]

    # further text: as given, or the targets translated back
    more: list[Path] | None = list(stage.more)
    if stage.back_translated_by is not None:
        more = translated(stage.back_translated_by, [
            (stage.data, f"back-{seed}", dataclasses.replace(BACK_TRANSLATION, seed=seed))
            for seed in range(1, stage.back_translations + 1)])
    if more is None or stage.translated_by is None:
        return None if more is None else dataclasses.replace(stage, more=tuple(more))

    # all of it, as the teacher translates it
    is_back = stage.back_translated_by is not None
    further = [(path, f"translated-{f'back-{number}' if is_back else 'more'}", BeamConfig())
               for number, path in enumerate(more, 1)]
    found = translated(stage.translated_by, [(stage.data, "translated", BeamConfig()), *further])
    return None if found is None else dataclasses.replace(stage, data=found[0],
                                                          more=tuple(found[1:]))
