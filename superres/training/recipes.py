"""Stages of training, and the ladder that climbs them: base, heads on a frozen base, fine-tuned, distilled."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState

from superres.checkpoint import load_checkpoint, read_task_files, read_training
from superres.config import PRESETS, BeamConfig, Config, DecodeConfig, require
from superres.errors import ConfigError
from superres.nn.model import EncoderDecoder
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.system.output import write_result
from superres.tasks import faces, translation
from superres.training.corpora import CORPORA, Corpus, Stage
from superres.training.distillation import decode_own_faces, translate_pairs
from superres.training.settings import TrainConfig
from superres.training.trainer import Trainer, build_model

Stop = Callable[[], bool]
Report = Callable[[dict[str, float]], None]


def train_stage(stage: Stage, stop: Stop, report: Report) -> bool:
    """Run a stage to its end or until `stop()` is true.

    Args:
        stage: what to do.
        stop: asked after every step; the state is saved before returning.
        report: called with each record of the history.

    Returns:
        Whether the schedule ended, so that `stage.output / "checkpoint"` holds the result.

    Raises:
        SuperresError: data, settings, warm start or an earlier run in the folder do not fit.
    """
    network = stage.network()
    corpus = CORPORA[network.task](stage, network)
    teacher = load_teacher(stage.teacher, corpus) if stage.teacher is not None else None
    model = build_model(corpus.network, stage.settings, stage.start)
    earlier = [] if stage.start is None else read_training(stage.start)
    trainer = Trainer(model, stage.settings, corpus.batches, stage.output, corpus.evaluate, earlier=earlier,
                      files=corpus.files, teacher=teacher)
    return trainer.run(stop, report)


def load_teacher(folder: Path, corpus: Corpus) -> EncoderDecoder:
    """Load the checkpoint that p1 is to learn from.

    Raises:
        CheckpointError: it cannot be read.
        ConfigError: its tokens are not those of `corpus`.
    """
    teacher = load_checkpoint(folder)
    for what in ("task", "languages", "vocabulary", "source_shape", "target_shape"):
        there, here = getattr(teacher.config, what), getattr(corpus.network, what)
        require(there == here, f"the teacher {folder} has {what} {there}, the network to train {here}; choose another "
                               "--teacher or --preset")
    for name, content in read_task_files(folder, teacher.config.task).items():
        require(content == corpus.files.get(name), f"the teacher {folder} has another {name} than the network to "
                                                   "train, so its tokens mean other things; leave --vocabulary out")
    return teacher


@dataclass(frozen=True)
class Rung(Config):
    """One step of a ladder.

    Attributes:
        name: names its folder.
        settings: how to train, the fields of `TrainConfig` that differ from its defaults.
        start: the earlier rung to start from; None for the first.
        own_images: stage "distil": how many training inputs `start` decodes itself.
        translated_by: text: an earlier rung, the teacher, on whose translations of the training text to train.
        copies: text: how many copies of the training text to read beside the further text; 0 leaves that out.
    """

    name: str
    settings: dict[str, Any]
    start: str | None = None
    own_images: int = 0
    translated_by: str | None = None
    copies: int = 0

    def train_config(self) -> TrainConfig:
        """Return the settings, checked.

        Raises:
            ConfigError: a field is unknown or out of range.
        """
        return TrainConfig.from_dict(self.settings)


@dataclass(frozen=True)
class Ladder:
    """A recipe for the checkpoints of Table 1 or 2 and beyond.

    Attributes:
        preset: the network.
        prediction_heads: K.
        decode_batch: images decoded together for own pictures, or sentences translated together.
        rungs: in the order of training.
    """

    preset: str
    prediction_heads: int
    decode_batch: int
    rungs: list[Rung]

    @classmethod
    def read(cls, path: Path) -> Ladder:
        """Read a recipe from a JSON file.

        Raises:
            ConfigError: the file is missing or damaged, or a rung does not fit the ones before it.
        """
        try:
            document = json.loads(path.read_text())
            rungs = [Rung.from_dict(rung) for rung in document.pop("rungs")]
            ladder = cls(rungs=rungs, **document)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{path} is not a ladder's recipe ({error!r}); see scripts/recipes") from error
        earlier: set[str] = set()
        for rung in ladder.rungs:
            settings = rung.train_config()
            require(rung.name not in earlier, f"{path}: two rungs are called {rung.name!r}; rename one")
            require(rung.start in earlier or rung.start is None,
                    f"{path}: rung {rung.name!r} starts from {rung.start!r}, which is not an earlier rung")
            require(rung.translated_by in earlier or rung.translated_by is None,
                    f"{path}: rung {rung.name!r} is translated by {rung.translated_by!r}, which is not an earlier rung")
            require((settings.stage == "distil") == (rung.own_images > 0),
                    f"{path}: rung {rung.name!r}: own_images must be positive in the stage distil, and only there")
            require(rung.copies == 0 or (rung.copies > 0 and rung.translated_by is None),
                    f"{path}: rung {rung.name!r}: copies must be 0 or more, and 0 beside translated_by")
            earlier.add(rung.name)
        return ladder


def climb(
    ladder: Ladder, data: Path, output: Path, dev: Path | None, stop: Stop,
    report: Callable[[str, dict[str, float]], None], more: Path | None = None,
) -> bool:
    """Train all rungs of a ladder, each in `output / <its name>`; finished ones are left as they are.

    Of several processes (`accelerate launch`) the first decodes for the training of others, which wait.

    Args:
        ladder: the recipe.
        data: training data.
        output: folder of the ladder's runs; `training.jsonl` there gets a row a finished rung.
        dev: development data for scores on the way, or None.
        stop: asked after every step; the state is saved before returning.
        report: called with the rung's name and each record of its history.
        more: further text for the rungs that read some (`Rung.copies`).

    Returns:
        Whether all rungs are finished.

    Raises:
        SuperresError: data, settings or an earlier run in the folder do not fit.
    """
    reading = any(rung.copies for rung in ladder.rungs)
    require(reading == (more is not None), "the recipe reads further text; give it with --more" if reading else
            f"no rung of the recipe reads further text; leave out --more {more}")
    processes = PartialState(cpu=not torch.cuda.is_available())
    rows = []
    for rung in ladder.rungs:
        told = functools.partial(report, rung.name)
        start = None if rung.start is None else output / rung.start / "checkpoint"
        stage = Stage(rung.train_config(), data, output / rung.name, dev, start, ladder.preset, ladder.prediction_heads,
                      vocabulary=_shared_vocabulary(ladder, rung, output),
                      more=more if rung.copies else None, copies=rung.copies or 1)
        with processes.main_process_first():
            ready = _with_decoded(stage, rung, output, ladder.decode_batch, stop, told)
        if ready is None or not train_stage(ready, stop, told):
            return False
        row = {"rung": rung.name, "start": rung.start, **read_training(stage.output / "checkpoint")[-1]}
        texts = {"translated_by": rung.translated_by, "copies": rung.copies}
        rows.append({**row, **{name: value for name, value in texts.items() if value}})
        write_result(output / "training.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return True


def _shared_vocabulary(ladder: Ladder, rung: Rung, output: Path) -> Path | None:
    """Return the vocabulary that the first rung trained, for a later one that starts afresh."""
    first = ladder.rungs[0]
    text = PRESETS[ladder.preset].task == translation.name if ladder.preset in PRESETS else False
    return output / first.name / "checkpoint" / translation.VOCABULARY_FILE if text and rung is not first else None


def _with_decoded(
    stage: Stage, rung: Rung, output: Path, batch_size: int, stop: Stop, report: Report
) -> Stage | None:
    """Let earlier rungs decode what `rung` trains on, and return its stage with that; None if `stop()` was true."""
    if rung.own_images and stage.start is not None:
        pairs = faces.read_faces(stage.data, "train", rung.own_images)
        own = stage.output / "own"
        done = decode_own_faces(Upscaler.load(stage.start), pairs, own, DecodeConfig(), batch_size, stop, report)
        return dataclasses.replace(stage, own=own / "faces.npz") if done else None
    if rung.translated_by is not None:
        teacher = Translator.load(output / rung.translated_by / "checkpoint")
        text, folder = translation.read_pairs(stage.data, teacher.languages), output / rung.translated_by / "translated"
        done = translate_pairs(teacher, text, folder, BeamConfig(), batch_size, stop, report)
        return dataclasses.replace(stage, data=folder / "pairs") if done else None
    return stage
