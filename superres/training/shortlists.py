"""Shortlists of a text checkpoint's heads, learned from parallel text."""

from __future__ import annotations

from pathlib import Path

from superres.checkpoint import open_checkpoint
from superres.config import require
from superres.tasks import translation
from superres.tasks.shortlist import Shortlists, make_shortlists


def learn_shortlists(checkpoint: str, data: str | Path, limit: int | None = None,
                     domain: str = "") -> Shortlists:
    """Learn shortlists from parallel text (the first `limit` pairs), best the text that the heads
    were trained on.

    `domain` says in messages what the text is.

    Raises:
        CheckpointError: the checkpoint cannot be read.
        InvalidInputError: the data cannot be used.
        ConfigError: the checkpoint is for another task.
    """
    opened = open_checkpoint(checkpoint)
    network = opened.network
    require(network.task == translation.name, f"checkpoint {checkpoint} is for {network.task}; "
            "shortlists are for text")
    codec = translation.Codec.read(opened.folder)
    pairs = translation.read_pairs(data, (network.languages[0], network.languages[1]), limit)
    return make_shortlists(codec.split(pairs.source), codec.split(pairs.target), network.vocabulary,
                           domain=domain)
