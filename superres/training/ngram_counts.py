"""Counts of n-grams in training targets, in the tokens of a checkpoint, for the ngram proposer."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from superres.checkpoint import open_checkpoint
from superres.config import require_whole
from superres.decoding.proposers.ngram_table import NgramTable, count_ngrams
from superres.errors import InvalidInputError
from superres.tasks import translation
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask, encode


def count_targets(
    checkpoint: str, data: str | Path, order: int, limit: int | None = None, least: int = 2,
    most: int = 200_000,
) -> NgramTable:
    """Count the n-grams of up to `order` tokens in training targets (the first `limit` examples).

    Of the contexts that occur at least `least` times, the `most` most frequent ones are kept.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        InvalidInputError: the data cannot be used.
        ConfigError: a number is out of range, or the checkpoint is for another task.
    """
    opened = open_checkpoint(checkpoint)
    network = opened.network
    table = NgramTable(order, network.vocabulary, network.channels)
    require_whole("--least", least)
    require_whole("--most", most)
    if network.task == translation.name:
        languages = network.languages[0], network.languages[1]
        pairs = translation.read_pairs(data, languages, limit)
        rows = [np.array(row) for row in translation.Codec.read(opened.folder).split(pairs.target)]
    else:
        rows = list(encode(read_faces(data, FaceTask.of(network), "train", limit).hr))
    if not rows:
        raise InvalidInputError(f"{data} holds no examples to count; use other data")
    return count_ngrams(rows, table, least, most)
