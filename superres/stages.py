"""Stages of training faces, and the ladder that climbs them: base, heads on a frozen base, fine-tuned, distilled."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState

from superres.batch import image_key
from superres.checkpoint import read_config, read_training
from superres.config import PRESETS, Config, DecodeConfig, ModelConfig, TrainConfig, require
from superres.data import Batches, DistilBatches, ImageBatches
from superres.errors import ConfigError
from superres.nn.model import EncoderDecoder
from superres.nn.scores import bits_per_dim
from superres.output import prepare_folder, write_result
from superres.pipeline import Upscaler
from superres.tasks import faces
from superres.tasks.faces import FacePairs
from superres.training import Trainer, build_model

DEV_IMAGES = 64
"""Development images whose bits/dim is followed during training."""

PREDICTION_HEADS = 10
"""K of new prediction heads, unless asked otherwise."""

Stop = Callable[[], bool]
Report = Callable[[dict[str, float]], None]


@dataclass(frozen=True)
class Stage:
    """A stage of training faces, as the command line asks for it.

    Attributes:
        settings: how to train.
        data: training faces, for `superres.tasks.faces.read_faces`.
        output: the run's folder; a run found there is resumed.
        dev: development faces for bits/dim, or None.
        start: checkpoint to start from; needed where heads are trained.
        preset: network of the stage "base", a name in PRESETS, unless `start` gives one.
        prediction_heads: K where heads are trained; None keeps those of `start`, or makes PREDICTION_HEADS.
        head_layer: of new heads, a name in HEAD_LAYERS; as in `start` if None.
        limit: use the first images of `data` only.
        own: pictures that `start` decoded itself (`decode_own_faces`), for the stage "distil".
    """

    settings: TrainConfig
    data: Path
    output: Path
    dev: Path | None = None
    start: Path | None = None
    preset: str = "base"
    prediction_heads: int | None = None
    limit: int | None = None
    own: Path | None = None
    head_layer: str | None = None

    def network(self) -> ModelConfig:
        """Return the settings of the network to train.

        Raises:
            CheckpointError: `start` cannot be read.
            ConfigError: the preset is unknown, or the heads have nothing to start from.
        """
        if self.start is not None:
            values: dict[str, Any] = read_config(self.start)["model"]
            layer = {} if self.head_layer is None else {"head_layer": self.head_layer}
            network = ModelConfig.from_dict({**values, **layer})
            return dataclasses.replace(network, prediction_heads=self._heads(network))
        if self.settings.trains_heads:
            raise ConfigError(f"stage {self.settings.stage} needs a trained base; name its folder with --start")
        if self.preset not in PRESETS:
            raise ConfigError(f"unknown preset {self.preset!r}; choose one of {', '.join(PRESETS)}")
        return PRESETS[self.preset]

    def _heads(self, start: ModelConfig) -> int:
        if not self.settings.trains_heads:
            return 1
        return self.prediction_heads or (start.prediction_heads if start.prediction_heads > 1 else PREDICTION_HEADS)

    def batches(self) -> Batches:
        """Read the training faces.

        Raises:
            InvalidInputError: they cannot be used.
            ConfigError: the stage "distil" without own pictures, or another stage with them.
        """
        settings = self.settings
        require((settings.stage == "distil") == (self.own is not None), "the stage distil, and no other, needs the "
                "model's own pictures (--own); make them with 'superres train decode'")
        pairs = faces.read_faces(self.data, "train", self.limit)
        if self.own is None:
            return ImageBatches(pairs.lr, pairs.hr, settings.batch_size, settings.seed, settings.flip)
        own = faces.read_faces(self.own)
        half = settings.batch_size // 2
        true = ImageBatches(pairs.lr, pairs.hr, half, settings.seed, settings.flip)
        return DistilBatches(true, ImageBatches(own.lr, own.hr, half, settings.seed))


def dev_score(path: Path) -> Callable[[EncoderDecoder], dict[str, float]]:
    """Return a function that scores a network on the first DEV_IMAGES faces of `path`.

    Raises:
        InvalidInputError: there are no such faces.
    """
    pairs = faces.read_faces(path, "valid", DEV_IMAGES)
    source, target = (torch.from_numpy(faces.encode(images)) for images in (pairs.lr, pairs.hr))

    def score(model: EncoderDecoder) -> dict[str, float]:
        return {"bits_per_dim": float(bits_per_dim(model, source, target).mean()), "dev_images": len(pairs)}

    return score


def train_faces(stage: Stage, stop: Stop, report: Report) -> bool:
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
    evaluate = None if stage.dev is None else dev_score(stage.dev)
    batches = stage.batches()
    model = build_model(network, stage.settings, stage.start)
    earlier = [] if stage.start is None else read_training(stage.start)
    return Trainer(model, stage.settings, batches, stage.output, evaluate, earlier=earlier).run(stop, report)


def decode_own_faces(
    upscaler: Upscaler, pairs: FacePairs, output: Path, decode: DecodeConfig, batch_size: int, stop: Stop,
    report: Report,
) -> bool:
    """Let a model decode the inputs of training faces, as targets for its own prediction heads (self-distillation).

    Args:
        upscaler: the model.
        pairs: training faces, of which only the inputs are used.
        output: folder for `faces.npz`; batches that an earlier call left there are not decoded again.
        decode: settings of the decoding; exact ones give p1's own greedy pictures.
        batch_size: images decoded together.
        stop: asked after every batch.
        report: called with the number of images done.

    Returns:
        Whether all are decoded, so that `output / "faces.npz"` holds them.

    Raises:
        ConfigError: `output` holds pictures of another model, other data or other settings.
        OutputError: the folder cannot be written.
    """
    digest = hashlib.sha256(pairs.lr.tobytes()).hexdigest()[:12]
    settings = {"checkpoint": f"{upscaler.name}@{upscaler.revision}", "data": digest, "decode": decode.to_dict(),
                "batch_size": batch_size}
    _claim(output, settings)
    parts = [output / f"part-{start:08d}.npz" for start in range(0, len(pairs), batch_size)]
    if (output / "faces.npz").exists():
        return True
    for number, part in enumerate(parts):
        if stop():
            return False
        rows = slice(number * batch_size, (number + 1) * batch_size)
        sources, ids = pairs.lr[rows], pairs.ids[rows]
        if not part.exists():
            keys = [image_key(source, 1) for source in sources]
            faces.write_npz(FacePairs(upscaler(sources, decode, keys=keys).images, sources, ids), part)
        report({"images": min((number + 1) * batch_size, len(pairs))})
    decoded = [faces.read_faces(part).hr for part in parts]
    faces.write_npz(FacePairs(np.concatenate(decoded), pairs.lr, pairs.ids), output / "faces.npz")
    for part in parts:
        part.unlink()
    return True


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    """Write `settings` into `folder`, or check that they are the ones it was started with."""
    prepare_folder(folder)
    path = folder / "settings.json"
    text = json.dumps(settings, indent=1) + "\n"
    if not path.exists():
        write_result(path, text.encode())
    require(path.read_text() == text, f"{folder} was started with other settings (see settings.json there); "
            "repeat those or choose a new folder")


@dataclass(frozen=True)
class Rung(Config):
    """One step of a ladder.

    Attributes:
        name: names its folder.
        settings: how to train, the fields of `TrainConfig` that differ from its defaults.
        start: the earlier rung to start from; None for the first.
        own_images: stage "distil": how many training inputs `start` decodes itself.
    """

    name: str
    settings: dict[str, Any]
    start: str | None = None
    own_images: int = 0

    def train_config(self) -> TrainConfig:
        """Return the settings, checked.

        Raises:
            ConfigError: a field is unknown or out of range.
        """
        return TrainConfig.from_dict(self.settings)


@dataclass(frozen=True)
class Ladder:
    """A recipe for the checkpoints of Table 2 and beyond.

    Attributes:
        preset: the network.
        prediction_heads: K.
        decode_batch: images decoded together for own pictures.
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
            require((settings.stage == "distil") == (rung.own_images > 0),
                    f"{path}: rung {rung.name!r}: own_images must be positive in the stage distil, and only there")
            earlier.add(rung.name)
        return ladder


def climb(
    ladder: Ladder, data: Path, output: Path, dev: Path | None, stop: Stop,
    report: Callable[[str, dict[str, float]], None],
) -> bool:
    """Train all rungs of a ladder, each in `output / <its name>`; finished ones are left as they are.

    Of several processes (`accelerate launch`) the first decodes own pictures while the others wait.

    Args:
        ladder: the recipe.
        data: training faces.
        output: folder of the ladder's runs; `training.jsonl` there gets a row a finished rung.
        dev: development faces for bits/dim, or None.
        stop: asked after every step; the state is saved before returning.
        report: called with the rung's name and each record of its history.

    Returns:
        Whether all rungs are finished.

    Raises:
        SuperresError: data, settings or an earlier run in the folder do not fit.
    """
    processes = PartialState(cpu=not torch.cuda.is_available())
    rows = []
    for rung in ladder.rungs:
        folder, told = output / rung.name, functools.partial(report, rung.name)
        start = None if rung.start is None else output / rung.start / "checkpoint"
        stage = Stage(rung.train_config(), data, folder, dev, start, ladder.preset, ladder.prediction_heads)
        if rung.own_images and start is not None:
            stage = dataclasses.replace(stage, own=folder / "own" / "faces.npz")
            pairs = faces.read_faces(data, "train", rung.own_images)
            with processes.main_process_first():
                done = decode_own_faces(
                    Upscaler.load(start), pairs, folder / "own", DecodeConfig(), ladder.decode_batch, stop, told,
                )
            if not done:
                return False
        if not train_faces(stage, stop, told):
            return False
        rows.append({"rung": rung.name, "start": rung.start, **read_training(folder / "checkpoint")[-1]})
        write_result(output / "training.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    return True
