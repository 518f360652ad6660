"""Count the n-grams of training data in the tokens of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from superres.checkpoint import find_checkpoint, read_network
from superres.config import require_whole
from superres.decoding.proposers.ngrams import NgramTable, Numbering, count_ngrams
from superres.errors import InvalidInputError
from superres.tasks import translation
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask, encode


def count_targets(
    checkpoint: str, data: str | Path, order: int, limit: int | None = None, least: int = 2, most: int = 200_000,
) -> NgramTable:
    """Count the n-grams of training targets.

    Args:
        checkpoint: bundled name, folder or hub id, whose task and vocabulary define the tokens.
        data: faces or parallel text, as for training.
        order: largest number of tokens in an n-gram.
        limit: number of examples to use, from the first on; all if None.
        least: smallest count of a context that is kept.
        most: largest number of contexts that are kept; the most frequent ones.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        InvalidInputError: the data cannot be used.
        ConfigError: a number is out of range.
    """
    folder = find_checkpoint(checkpoint)
    network = read_network(folder)
    numbering = Numbering(order, network.vocabulary, network.channels)
    require_whole("--least", least)
    require_whole("--most", most)
    if network.task == translation.name:
        languages = network.languages[0], network.languages[1]
        codec = translation.Codec.read(folder)
        rows = [np.array(row) for row in codec.split(translation.read_pairs(data, languages, limit).target)]
    else:
        rows = list(encode(read_faces(data, FaceTask.of(network), "train", limit).hr))
    if not rows:
        raise InvalidInputError(f"{data} holds no examples to count; use other data")
    return count_ngrams(rows, numbering, least, most)
