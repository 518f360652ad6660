"""The training data of each task: batches, scores on development data, and the task's files in a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from superres.checkpoint import find_checkpoint, read_config
from superres.config import PRESETS, ModelConfig, require
from superres.errors import ConfigError, InvalidInputError
from superres.evaluation.text import bleu
from superres.nn.likelihood import bits_per_dim, bits_per_token
from superres.nn.model import EncoderDecoder
from superres.pipeline.translator import Translator
from superres.system.output import prepare_folder, write_result
from superres.system.progress import say
from superres.tasks import translation
from superres.tasks.face_data import PREPARE, read_faces
from superres.tasks.faces import FaceTask, encode
from superres.tasks.translation import VOCABULARY_FILE, Codec, TextPairs
from superres.training.data import Batches, DistilBatches, ImageBatches, TextBatches
from superres.training.settings import TrainConfig

PREDICTION_HEADS = 10
"""Default number of prediction heads, K."""

CROP_SHARE = 0.5
"""Default share of random crops, for faces with larger pictures."""

DEV_IMAGES = 64
"""Number of development images whose bits per dimension are measured during training."""

DEV_PAIRS = 256
"""Number of development sentences whose bits per token and BLEU are measured during training."""

Score = Callable[[EncoderDecoder], dict[str, float]]


@dataclass(frozen=True)
class Stage:
    """A stage of training, as given on the command line. The network determines the task.

    Attributes:
        settings: how to train.
        data: training data; faces for `superres.tasks.face_data.read_faces`, text for
            `superres.tasks.translation.read_pairs`.
        output: folder of the run; an earlier run there is resumed.
        dev: development data for scores during training, or None.
        start: checkpoint to start from; required to train heads.
        preset: network of the stage "base", a name in PRESETS; ignored if `start` is given.
        prediction_heads: K; None keeps the heads of `start`, or makes PREDICTION_HEADS heads if heads are trained. The
            stage "base" trains no heads: 1 leaves those of `start` out.
        head_layer: kind of new heads, a name in HEAD_LAYERS; as in `start` if None.
        limit: number of examples of `data` to use, from the first on; all if None.
        own: faces, stage "distil": images that `start` decoded (`decode_own_faces`).
        crops: faces with larger pictures, for random crops; None uses those of `data` if it has any.
        languages: text: source and target language; as in the preset or `start` if None.
        vocabulary: text: file of a SentencePiece model; None uses the vocabulary of `start` or of the teacher, or
            trains one on `data`.
        more: text: further parallel texts, read beside `copies` copies of `data`.
        copies: text: weight of `data` relative to each of `more`, at least 1; 1 without `more`.
        reverse: text: translate in the direction opposite to the preset's or `start`'s.
        stages: checkpoints of the earlier stages of a recipe by name, which `settings.teacher` may name.
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
    crops: Path | None = None
    head_layer: str | None = None
    languages: tuple[str, str] | None = None
    vocabulary: Path | None = None
    more: tuple[Path, ...] = ()
    copies: int = 1
    reverse: bool = False
    stages: Mapping[str, Path] = field(default_factory=dict)

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
            require(self.languages in (None, network.languages), f"{self.start} translates "
                    f"{'-'.join(network.languages) or 'nothing'}, not {'-'.join(self.languages or ())}; "
                    "leave --languages out")
            network = dataclasses.replace(network, prediction_heads=self._heads(network))
            return self._directed(network)
        if self.settings.trains_heads:
            raise ConfigError(f"stage {self.settings.stage} needs a trained base; name its folder with --start")
        if self.preset not in PRESETS:
            raise ConfigError(f"unknown preset {self.preset!r}; choose one of {', '.join(PRESETS)}")
        network = PRESETS[self.preset]
        if not network.identity_p1:
            # p1's part of the head layer is added together with the other heads, after the base is trained.
            network = dataclasses.replace(network, one_head_layer=False)
        if self.languages is None:
            return self._directed(network)
        require(network.task == translation.name, f"preset {self.preset} has no languages; leave --languages out, or "
                                                  "choose a preset for translation")
        return self._directed(dataclasses.replace(network, languages=self.languages))

    def _directed(self, network: ModelConfig) -> ModelConfig:
        return dataclasses.replace(network, languages=network.languages[::-1]) if self.reverse else network

    @property
    def teacher(self) -> Path | None:
        """Folder of the checkpoint that p1 learns from, or None.

        Raises:
            CheckpointError: there is no such checkpoint.
        """
        name = self.settings.teacher
        return None if name is None else self.stages.get(name) or find_checkpoint(name)

    def _heads(self, start: ModelConfig) -> int:
        if not self.settings.trains_heads:
            return self.prediction_heads or start.prediction_heads
        return self.prediction_heads or (start.prediction_heads if start.prediction_heads > 1 else PREDICTION_HEADS)


@dataclass(frozen=True)
class Corpus:
    """The data of a stage.

    Attributes:
        network: settings of the network for the data.
        batches: training pairs.
        evaluate: scores a network on the development data; None without development data.
        files: contents of the task's files in the checkpoint, by name.
    """

    network: ModelConfig
    batches: Batches
    evaluate: Score | None
    files: dict[str, bytes] = field(default_factory=dict)


def face_corpus(stage: Stage, network: ModelConfig) -> Corpus:
    """Read the faces of a stage.

    Raises:
        InvalidInputError: the faces cannot be used.
        ConfigError: the stage "distil" has no own images, or another stage has them.
    """
    settings = stage.settings
    require((settings.stage == "distil") == (stage.own is not None), "the stage distil, and no other, needs the "
            "model's own pictures (--own); make them with 'superres train decode'")
    require(not stage.more, f"faces do not use further text; leave out --more {', '.join(map(str, stage.more))}")
    task = FaceTask.of(network)
    evaluate = None if stage.dev is None else face_score(stage.dev, task)
    pairs = read_faces(stage.data, task, "train", stage.limit)
    large = pairs.large if stage.crops is None else read_faces(stage.crops, task, "train").large
    share = settings.crop_share
    if share is None:
        share = 0.0 if large is None and stage.crops is None else CROP_SHARE
    require(not share or large is not None, f"--crop-share {share} needs larger pictures than "
            f"{stage.crops or stage.data} has; prepare them with {PREPARE} and --size {2 * task.target}, and name them "
            "with --crops")
    size = settings.batch_size if stage.own is None else settings.batch_size // 2
    true = ImageBatches(pairs.lr, pairs.hr, size, settings.seed, settings.flip, large, share)
    if stage.own is None:
        return Corpus(network, true, evaluate)
    own = read_faces(stage.own, task)
    return Corpus(network, DistilBatches(true, ImageBatches(own.lr, own.hr, size, settings.seed)), evaluate)


def face_score(path: Path, task: FaceTask) -> Score:
    """Return a function that scores a network on the first DEV_IMAGES faces of `path`.

    Raises:
        InvalidInputError: there are no such faces.
    """
    pairs = read_faces(path, task, "valid", DEV_IMAGES)
    source, target = (torch.from_numpy(encode(images)) for images in (pairs.lr, pairs.hr))

    def score(model: EncoderDecoder) -> dict[str, float]:
        return {"bits_per_dim": float(bits_per_dim(model, source, target).mean()), "dev_images": len(pairs)}

    return score


def text_corpus(stage: Stage, network: ModelConfig) -> Corpus:
    """Read the parallel text of a stage, and read or train its vocabulary, whose size becomes the network's.

    Pairs with a side that is empty or too long for the network are left out; a line reports their number.

    Raises:
        InvalidInputError: the text cannot be used.
        CheckpointError: the vocabulary cannot be used.
        ConfigError: the stage is "distil", which supports only faces.
    """
    settings = stage.settings
    if settings.stage == "distil":
        raise ConfigError("the stage distil mixes own pictures with true ones; for text, let a teacher translate the "
                          "training text with 'superres train decode' and train base or heads on that")
    require(settings.crop_share is None and stage.crops is None,
            "text has no crops; leave --crops and --crop-share out")
    languages = network.languages[0], network.languages[1]
    pairs = translation.read_pairs(stage.data, languages, stage.limit)
    codec = _vocabulary(stage, pairs, network)
    network = dataclasses.replace(network, vocabulary=codec.size)
    evaluate = None if stage.dev is None else text_score(translation.read_pairs(stage.dev, languages), codec)
    texts = [pairs] * stage.copies + [translation.read_pairs(path, languages) for path in stage.more]
    pairs = TextPairs(
        [line for text in texts for line in text.source], [line for text in texts for line in text.target])
    rows = [codec.split(lines) for lines in (pairs.source, pairs.target)]
    most = network.source_length, network.target_length
    kept = [place for place, both in enumerate(zip(*rows, strict=True))
            if all(1 < len(row) <= limit for row, limit in zip(both, most, strict=True))]
    if len(kept) < len(pairs):
        say(f"{stage.data}: {len(pairs) - len(kept)} of {len(pairs)} pairs are left out: a side is empty or has more "
            f"than {min(most)} tokens")
    if not kept:
        raise InvalidInputError(f"{stage.data} holds no pair that can be trained on; use other text")
    sources, targets = ([np.array(side[place]) for place in kept] for side in rows)
    batches = TextBatches(sources, targets, settings.batch_size, settings.seed, translation.PADDING)
    return Corpus(network, batches, evaluate, {VOCABULARY_FILE: codec.model})


def _vocabulary(stage: Stage, pairs: TextPairs, network: ModelConfig) -> Codec:
    """Read the vocabulary that the stage names, or train one and save it in the run's folder."""
    given = stage.start or stage.teacher
    path = stage.vocabulary or (given or stage.output) / VOCABULARY_FILE
    if stage.vocabulary is None and given is None and not path.exists():
        say(f"training a vocabulary of {network.vocabulary} pieces on {stage.data}")
        prepare_folder(stage.output)
        write_result(path, translation.train_vocabulary([*pairs.source, *pairs.target], network.vocabulary))
    return Codec(translation.read_vocabulary(path), str(path), network.source_length)


def text_score(pairs: TextPairs, codec: Codec) -> Score:
    """Return a function that scores a network on the first DEV_PAIRS of `pairs`: bits per token, and greedy BLEU.

    The bits are measured on the pairs that are short enough for the network.
    """
    source, target = pairs.source[:DEV_PAIRS], pairs.target[:DEV_PAIRS]
    rows = list(zip(codec.split(source), codec.split(target), strict=True))

    def score(model: EncoderDecoder) -> dict[str, float]:
        translator = Translator(model, "dev", device=model.signal.device.type, codec=codec)
        most = model.config.source_length, model.config.target_length
        fitting = [(s, t) for s, t in rows if len(s) <= most[0] and len(t) <= most[1]]
        bits = bits_per_token(model, [s for s, _ in fitting], [t for _, t in fitting], translation.PADDING)
        return {"bits_per_token": bits, "bleu": bleu(translator(source).texts, target)["score"],
                "dev_pairs": len(source)}

    return score


CORPORA: dict[str, Callable[[Stage, ModelConfig], Corpus]] = {
    FaceTask.name: face_corpus, translation.name: text_corpus,
}
"""Function that reads the data of a stage, by task."""
