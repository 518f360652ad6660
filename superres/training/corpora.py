"""The training data of each task: batches, scores on development data, and the task's files in a
checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from superres.checkpoint import open_checkpoint, read_checkpoint
from superres.config import PRESETS, ModelConfig, require
from superres.errors import InvalidInputError
from superres.evaluation.text import bleu
from superres.nn.likelihood import bits_per_dim, bits_per_token
from superres.nn.model import EncoderDecoder
from superres.pipeline.translator import Translator
from superres.system.output import check_folder, prepare_folder, write_result
from superres.system.progress import say, track
from superres.tasks import translation
from superres.tasks.aligner import upright_errors
from superres.tasks.face_data import CHUNK, PREPARE, FacePairs, read_drawn, read_faces
from superres.tasks.face_paths import require_faces
from superres.tasks.faces import FaceTask, encode
from superres.tasks.translation import VOCABULARY_FILE, Codec, TextPairs, parse_languages
from superres.training.construction import training_device
from superres.training.data import (
    AS_THEY_ARE,
    Batches,
    Changes,
    DistilBatches,
    ImageBatches,
    TextBatches,
)
from superres.training.stage import Stage

PREDICTION_HEADS = 10
"""Default number of prediction heads, K."""
SIZES = ("source_shape", "target_shape", "attention_block_length", "attention_keys")
"""Settings of a network that a warm start may change; the shapes of its weights depend on the
enlargement alone."""
CROP_SHARE = 0.5
"""Default share of random crops, for faces with larger pictures."""
DEV_IMAGES = 64
DEV_PAIRS = 256
"""Number of development sentences that are scored during training, the first."""

Score = Callable[[EncoderDecoder], dict[str, float]]


def changed_preset(name: str, changes: Mapping[str, object]) -> ModelConfig:
    """Return the preset `name` with other values of the fields `changes`; ConfigError if they do
    not fit together."""
    return ModelConfig.from_dict({**PRESETS[name].to_dict(), **changes})


def check_data(network: ModelConfig, *paths: Path | None) -> None:
    """Raise InvalidInputError unless there is data for the task of `network` at every path that is
    not None."""
    for path in filter(None, paths):
        if network.task == translation.name:
            translation.pair_paths(path, network.languages)
        else:
            require_faces(path)


def network_of(stage: Stage) -> ModelConfig:
    """Return the settings of the network to train, which determine the task.

    Raises:
        CheckpointError: `stage.start` cannot be read.
        ConfigError: the heads have nothing to start from.
    """
    network = _new_network(stage) if stage.start is None else _continued_network(stage, stage.start)
    return (dataclasses.replace(network, languages=network.languages[::-1]) if stage.reverse
            else network)


def _continued_network(stage: Stage, start: str) -> ModelConfig:
    layer = {} if stage.head_layer is None else {"head_layer": stage.head_layer}
    changes = {name: value for name, value in stage.network.items() if name in SIZES}
    known = read_checkpoint(checkpoint_of(stage, start)).config["model"]
    network = ModelConfig.from_dict({**known, **changes, **layer})
    languages = None if stage.languages is None else parse_languages(stage.languages)
    require(languages in (None, network.languages), f"{start} translates "
            f"{'-'.join(network.languages) or 'nothing'}, not {stage.languages}; leave --languages "
            "out")
    if stage.trains_heads:
        known = None if network.prediction_heads == 1 else network.prediction_heads
        return dataclasses.replace(network, prediction_heads=stage.prediction_heads or known
                                   or PREDICTION_HEADS)
    return network if stage.keep_heads else dataclasses.replace(network, prediction_heads=1)


def _new_network(stage: Stage) -> ModelConfig:
    require(not stage.trains_heads, f"stage {stage.stage} needs a trained base; name its folder "
            "with --start")
    network = changed_preset(stage.preset, stage.network)
    if not network.identity_p1:
        # p1's part of the head layer is added together with the other heads, after the base is
        # trained.
        network = dataclasses.replace(network, one_head_layer=False)
    if stage.languages is None:
        return network
    require(network.task == translation.name, f"preset {stage.preset} has no languages; leave "
            "--languages out, or choose a preset for translation")
    return dataclasses.replace(network, languages=parse_languages(stage.languages))


def checkpoint_of(stage: Stage, name: str) -> Path:
    """Return the folder of an earlier stage's checkpoint, or of another one; errors as for
    `find_network`."""
    return stage.earlier.get(name) or find_network(name)


def find_network(name: str) -> Path:
    """Return the folder of the checkpoint of one network, which can be trained or teach.

    Raises:
        CheckpointError: there is no checkpoint `name`.
        ConfigError: it is a cascade of several networks.
    """
    checkpoint = open_checkpoint(name)
    stages = [stage.folder.name for stage in checkpoint.stages]
    require(not stages, f"{name} has {len(stages)} stages, which are trained one at a time; name "
            f"{' or '.join(stages)}")
    return checkpoint.folder


def check_paths(stage: Stage, network: ModelConfig) -> None:
    """Raise a SuperresError unless all that the stage reads exists, and its folder can be
    written."""
    check_data(network, stage.data, stage.dev, stage.own, stage.crops, *stage.drawn, *stage.more)
    if stage.vocabulary is not None:
        translation.read_vocabulary(stage.vocabulary)
    if stage.teacher is not None:
        read_checkpoint(checkpoint_of(stage, stage.teacher))
    check_folder(stage.output)


@dataclass(frozen=True)
class Corpus:
    """The data of a stage: the network's settings for it, training pairs, the score on development
    data, and files.

    `evaluate` is None without development data. `files` has the contents of the task's files in the
    checkpoint by name.
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
    require((stage.stage == "distil") == (stage.own is not None), "the distil stage, and no other, "
            "needs the model's own pictures (--own); make them with 'superres train decode'")
    require(not stage.more, "faces do not use further text; leave out --more "
            f"{', '.join(map(str, stage.more))}")
    task = FaceTask.of(network)
    dev = None if stage.dev is None else read_faces(stage.dev, task, "valid", DEV_IMAGES)
    evaluate = None if dev is None else face_score(dev)

    # the pictures, and those to cut crops from
    pairs = read_faces(stage.data, task, "train", stage.limit)
    large = pairs.large if stage.crops is None else None
    crops = None if stage.crops is None else read_faces(stage.crops, task, "train").large
    default = 0.0 if large is None and stage.crops is None else CROP_SHARE
    share = default if stage.crop_share is None else stage.crop_share
    require(not share or large is not None or crops is not None, f"--crop-share {share} needs "
            f"larger pictures than {stage.crops or stage.data} has; prepare them with {PREPARE} "
            f"and --size {2 * task.target}, and name them with --crops")

    # the batches; in the distil stage, half of each is the model's own pictures
    device = training_device(stage)
    size = stage.batch_size if stage.own is None else stage.batch_size // 2
    changes = Changes(stage.flip, large, share, crops, stage.turned_share,
                      [read_drawn(path, pairs) for path in stage.drawn], stage.input_noise)
    true = ImageBatches(pairs.lr, pairs.hr, size, stage.seed, changes,
                        hard_faces(pairs, stage.doubled_share), device)
    if stage.own is None:
        return Corpus(network, true, evaluate)
    own = read_faces(stage.own, task)
    own_batches = ImageBatches(own.lr, own.hr, size, stage.seed, AS_THEY_ARE, device=device)
    return Corpus(network, DistilBatches(true, own_batches), evaluate)


def hard_faces(pairs: FacePairs, share: float) -> npt.NDArray[np.int64] | None:
    """Return the numbers, rising, of the `share` of the faces that the aligner would move farthest;
    None for 0.

    They are measured on the larger pictures where there are some. In pictures of 16x16, the aligner
    sees little.
    """
    if not share:
        return None
    pictures = pairs.hr if pairs.large is None else pairs.large
    errors = np.concatenate([upright_errors(pictures[start : start + CHUNK]) for start in track(
        range(0, len(pairs), CHUNK), "measuring how faces are aligned", "parts")])
    return np.sort(np.argsort(-errors, kind="stable")[: round(share * len(pairs))])


def face_score(pairs: FacePairs) -> Score:
    """Return a function that measures the bits per dimension of `pairs` under a network."""
    source, target = (torch.from_numpy(encode(images)) for images in (pairs.lr, pairs.hr))

    def score(model: EncoderDecoder) -> dict[str, float]:
        return {"bits_per_dim": float(bits_per_dim(model, source, target).mean()),
                "dev_images": len(pairs)}

    return score


def text_corpus(stage: Stage, network: ModelConfig) -> Corpus:
    """Read the parallel text of a stage, and read or train its vocabulary, whose size becomes the
    network's.

    Pairs with a side that is empty or too long for the network are left out; a line reports their
    number.

    Raises:
        SuperresError: the text or the vocabulary cannot be used, or the stage is "distil", which
            supports only faces.
    """
    require(stage.stage != "distil", "the distil stage mixes own pictures with true ones; for "
            "text, let a teacher translate the training text with 'superres train decode' and "
            "train base or heads on that")
    require(stage.crop_share is None and stage.crops is None,
            "text has no crops; leave --crops and --crop-share out")
    require(not (stage.drawn or stage.input_noise or stage.turned_share or stage.doubled_share),
            "text has no pictures; leave --drawn, --input-noise, --turned-share and "
            "--doubled-share out")
    languages = network.languages[0], network.languages[1]
    pairs = translation.read_pairs(stage.data, languages, stage.limit)
    require(not stage.compiled, "compiled layers need batches of one shape, and sentences differ "
            "in length; leave --compiled out")
    codec = _vocabulary(stage, pairs, network)
    network = dataclasses.replace(network, vocabulary=codec.size)
    dev = None if stage.dev is None else translation.read_pairs(stage.dev, languages)
    evaluate = None if dev is None else text_score(dev, codec)

    # the pairs that are short enough, from all texts
    texts = [pairs] * (stage.copies or 1) + [translation.read_pairs(path, languages)
                                             for path in stage.more]
    sides = ([line for text in texts for line in text.source],
             [line for text in texts for line in text.target])
    rows = list(zip(*map(codec.split, sides), strict=True))
    most = network.source_length, network.target_length
    kept = [pair for pair in rows
            if all(1 < len(row) <= limit for row, limit in zip(pair, most, strict=True))]
    if len(kept) < len(rows):
        say(f"{stage.data}: {len(rows) - len(kept)} of {len(rows)} pairs are left out: a side is "
            f"empty or has more than {min(most)} tokens")
    if not kept:
        raise InvalidInputError(f"{stage.data} holds no pair that can be trained on; use other "
                                "text")
    sources, targets = (list(map(np.array, side)) for side in zip(*kept, strict=True))
    batches = TextBatches(sources, targets, stage.batch_size, stage.seed, translation.PADDING)
    return Corpus(network, batches, evaluate, {VOCABULARY_FILE: codec.model})


def _vocabulary(stage: Stage, pairs: TextPairs, network: ModelConfig) -> Codec:
    """Read the vocabulary that the stage names, or train one and save it in the run's folder."""
    given = stage.start or stage.teacher
    path = (stage.vocabulary or (checkpoint_of(stage, given) if given else stage.output)
            / VOCABULARY_FILE)
    if stage.vocabulary is None and given is None and not path.exists():
        say(f"training a vocabulary of {network.vocabulary} pieces on {stage.data}")
        prepare_folder(stage.output)
        write_result(path, translation.train_vocabulary([*pairs.source, *pairs.target],
                                                        network.vocabulary))
    return Codec(translation.read_vocabulary(path), str(path), network.source_length)


def text_score(pairs: TextPairs, codec: Codec) -> Score:
    """Return a function that scores a network on the first DEV_PAIRS of `pairs`: bits per token,
    and greedy BLEU.

    The bits are measured on the pairs that are short enough for the network.
    """
    source, target = pairs.source[:DEV_PAIRS], pairs.target[:DEV_PAIRS]
    rows = list(zip(codec.split(source), codec.split(target), strict=True))

    def score(model: EncoderDecoder) -> dict[str, float]:
        translator = Translator(model, "dev", device=model.signal.device.type, codec=codec)
        fitting = [(s, t) for s, t in rows
                   if len(s) <= model.config.source_length and len(t) <= model.config.target_length]
        bits = bits_per_token(model, [s for s, _ in fitting], [t for _, t in fitting],
                              translation.PADDING)
        return {"bits_per_token": bits, "bleu": bleu(translator(source).texts, target)["score"],
                "dev_pairs": len(source)}

    return score


CORPORA: dict[str, Callable[[Stage, ModelConfig], Corpus]] = {
    FaceTask.name: face_corpus, translation.name: text_corpus}
"""Function that reads the data of a stage, by task."""
