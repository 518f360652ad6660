"""The training data of each task: batches, scores on development data, and the task's files in a checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from superres.checkpoint import find_checkpoint, read_config
from superres.config import PRESETS, ModelConfig, require
from superres.errors import InvalidInputError
from superres.evaluation.text import bleu
from superres.nn.likelihood import bits_per_dim, bits_per_token
from superres.nn.model import EncoderDecoder
from superres.pipeline.translator import Translator
from superres.system.output import check_folder, prepare_folder, write_result
from superres.system.progress import say
from superres.tasks import translation
from superres.tasks.face_data import PREPARE, FacePairs, read_drawn, read_faces, require_faces
from superres.tasks.faces import FaceTask, encode
from superres.tasks.translation import VOCABULARY_FILE, Codec, TextPairs
from superres.training.data import Batches, DistilBatches, ImageBatches, TextBatches
from superres.training.settings import TrainConfig

PREDICTION_HEADS = 10
"""Default number of prediction heads, K."""
CROP_SHARE = 0.5
"""Default share of random crops, for faces with larger pictures."""
DEV_IMAGES = 64
DEV_PAIRS = 256
"""Number of development sentences that are scored during training, the first."""

Score = Callable[[EncoderDecoder], dict[str, float]]


def changed_preset(name: str, changes: Mapping[str, object]) -> ModelConfig:
    """Return the preset `name` with other values of the fields `changes`; ConfigError if they do not fit together."""
    return ModelConfig.from_dict({**PRESETS[name].to_dict(), **changes})


def check_data(network: ModelConfig, *paths: Path | None) -> None:
    """Raise InvalidInputError unless there is data for the task of `network` at every path that is not None."""
    for path in filter(None, paths):
        if network.task == translation.name:
            translation.pair_paths(path, network.languages)
        else:
            require_faces(path)


@dataclass(frozen=True)
class Stage:
    """A stage of training, as given on the command line: training data, and the folder of the run, which is resumed.

    The network, of `start` (required to train heads) or else of the `preset`, determines the task. `dev` has data for
    scores during training.

    Attributes:
        changes: fields of the network that differ from the preset's.
        prediction_heads: K; None keeps the heads of `start`, or makes PREDICTION_HEADS heads if heads are trained. The
            stage "base" trains no heads: 1 leaves those of `start` out.
        limit: number of examples of `data` to use, from the first on; all if None.
        own: faces, stage "distil": images that `start` decoded (`decode_own_faces`).
        crops: faces with larger pictures, for random crops; None uses those of `data` if it has any.
        drawn: faces: pictures that an earlier stage of a cascade drew for the first images of `data`, for conditioning
            augmentation: see `ImageBatches`.
        head_layer: kind of new heads, a name in HEAD_LAYERS; as in `start` if None.
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
    changes: Mapping[str, object] = field(default_factory=dict)
    limit: int | None = None
    own: Path | None = None
    crops: Path | None = None
    drawn: tuple[Path, ...] = ()
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
        network = self._new_network() if self.start is None else self._network_of(self.start)
        return dataclasses.replace(network, languages=network.languages[::-1]) if self.reverse else network

    def _network_of(self, start: Path) -> ModelConfig:
        layer = {} if self.head_layer is None else {"head_layer": self.head_layer}
        network = ModelConfig.from_dict({**read_config(start)["model"], **layer})
        require(self.languages in (None, network.languages), f"{start} translates "
                f"{'-'.join(network.languages) or 'nothing'}, not {'-'.join(self.languages or ())}; "
                "leave --languages out")
        new = self.settings.trains_heads and network.prediction_heads == 1
        heads = self.prediction_heads or (PREDICTION_HEADS if new else network.prediction_heads)
        return dataclasses.replace(network, prediction_heads=heads)

    def _new_network(self) -> ModelConfig:
        require(not self.settings.trains_heads,
                f"stage {self.settings.stage} needs a trained base; name its folder with --start")
        require(self.preset in PRESETS, f"unknown preset {self.preset!r}; choose one of {', '.join(PRESETS)}")
        network = changed_preset(self.preset, self.changes)
        if not network.identity_p1:
            # p1's part of the head layer is added together with the other heads, after the base is trained.
            network = dataclasses.replace(network, one_head_layer=False)
        require(self.languages is None or network.task == translation.name, f"preset {self.preset} has no languages; "
                "leave --languages out, or choose a preset for translation")
        return dataclasses.replace(network, languages=self.languages or network.languages)

    def check_paths(self, network: ModelConfig) -> None:
        """Raise a SuperresError unless all that the stage reads exists, and its folder can be written."""
        check_data(network, self.data, self.dev, self.own, self.crops, *self.drawn, *self.more)
        if self.vocabulary is not None:
            translation.read_vocabulary(self.vocabulary)
        if self.teacher is not None:
            read_config(self.teacher)
        check_folder(self.output)

    @property
    def teacher(self) -> Path | None:
        """Folder of the checkpoint that p1 learns from, or None; CheckpointError if there is no such checkpoint."""
        name = self.settings.teacher
        return None if name is None else self.stages.get(name) or find_checkpoint(name)


@dataclass(frozen=True)
class Corpus:
    """The data of a stage: the network's settings for it, training pairs, the score on development data, and files.

    `evaluate` is None without development data. `files` has the contents of the task's files in the checkpoint by name.
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
    require((settings.stage == "distil") == (stage.own is not None), "the distil stage, and no other, needs the "
            "model's own pictures (--own); make them with 'superres train decode'")
    require(not stage.more, f"faces do not use further text; leave out --more {', '.join(map(str, stage.more))}")
    task = FaceTask.of(network)
    evaluate = None if stage.dev is None else face_score(read_faces(stage.dev, task, "valid", DEV_IMAGES))
    pairs = read_faces(stage.data, task, "train", stage.limit)
    large = pairs.large if stage.crops is None else read_faces(stage.crops, task, "train").large
    default = 0.0 if large is None and stage.crops is None else CROP_SHARE
    share = default if settings.crop_share is None else settings.crop_share
    require(not share or large is not None, f"--crop-share {share} needs larger pictures than "
            f"{stage.crops or stage.data} has; prepare them with {PREPARE} and --size {2 * task.target}, and name them "
            "with --crops")
    size = settings.batch_size if stage.own is None else settings.batch_size // 2
    drawn = [read_drawn(path, pairs) for path in stage.drawn]
    true = ImageBatches(pairs.lr, pairs.hr, size, settings.seed, settings.flip, large, share, drawn,
                        settings.input_noise)
    if stage.own is None:
        return Corpus(network, true, evaluate)
    own = read_faces(stage.own, task)
    return Corpus(network, DistilBatches(true, ImageBatches(own.lr, own.hr, size, settings.seed)), evaluate)


def face_score(pairs: FacePairs) -> Score:
    """Return a function that measures the bits per dimension of `pairs` under a network."""
    source, target = (torch.from_numpy(encode(images)) for images in (pairs.lr, pairs.hr))

    def score(model: EncoderDecoder) -> dict[str, float]:
        return {"bits_per_dim": float(bits_per_dim(model, source, target).mean()), "dev_images": len(pairs)}

    return score


def text_corpus(stage: Stage, network: ModelConfig) -> Corpus:
    """Read the parallel text of a stage, and read or train its vocabulary, whose size becomes the network's.

    Pairs with a side that is empty or too long for the network are left out; a line reports their number.

    Raises:
        SuperresError: the text or the vocabulary cannot be used, or the stage is "distil", which supports only faces.
    """
    settings = stage.settings
    require(settings.stage != "distil", "the distil stage mixes own pictures with true ones; for text, let a teacher "
            "translate the training text with 'superres train decode' and train base or heads on that")
    require(settings.crop_share is None and stage.crops is None,
            "text has no crops; leave --crops and --crop-share out")
    require(not stage.drawn and not settings.input_noise, "text has no pictures as inputs; leave --drawn and "
            "--input-noise out")
    languages = network.languages[0], network.languages[1]
    pairs = translation.read_pairs(stage.data, languages, stage.limit)
    codec = _vocabulary(stage, pairs, network)
    network = dataclasses.replace(network, vocabulary=codec.size)
    evaluate = None if stage.dev is None else text_score(translation.read_pairs(stage.dev, languages), codec)
    texts = [pairs] * stage.copies + [translation.read_pairs(path, languages) for path in stage.more]
    sides = ([line for text in texts for line in text.source], [line for text in texts for line in text.target])
    rows = list(zip(*map(codec.split, sides), strict=True))
    most = network.source_length, network.target_length
    kept = [pair for pair in rows if all(1 < len(row) <= limit for row, limit in zip(pair, most, strict=True))]
    if len(kept) < len(rows):
        say(f"{stage.data}: {len(rows) - len(kept)} of {len(rows)} pairs are left out: a side is empty or has more "
            f"than {min(most)} tokens")
    if not kept:
        raise InvalidInputError(f"{stage.data} holds no pair that can be trained on; use other text")
    sources, targets = (list(map(np.array, side)) for side in zip(*kept, strict=True))
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
        fitting = [(s, t) for s, t in rows
                   if len(s) <= model.config.source_length and len(t) <= model.config.target_length]
        bits = bits_per_token(model, [s for s, _ in fitting], [t for _, t in fitting], translation.PADDING)
        return {"bits_per_token": bits, "bleu": bleu(translator(source).texts, target)["score"],
                "dev_pairs": len(source)}

    return score


CORPORA: dict[str, Callable[[Stage, ModelConfig], Corpus]] = {
    FaceTask.name: face_corpus, translation.name: text_corpus}
"""Function that reads the data of a stage, by task."""
