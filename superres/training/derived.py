"""Checkpoints that are made from others: their model cards, with licence and origin, and cascades
of them."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from superres.checkpoint import (
    CONFIG,
    bundled_checkpoints,
    open_checkpoint,
    replaced_folder,
    weights_digest,
)
from superres.config import FORMAT_VERSION, require
from superres.errors import plain
from superres.pipeline.upscaler import Upscaler
from superres.system.folders import bundled_folder
from superres.system.progress import say

CARD = "README.md"
"""The model card in a checkpoint's folder. It begins with a block of metadata between two lines
"---"."""
MOST_CARD = 2**16
"""Number of bytes of a model card that are read."""


def model_card(sources: Mapping[str, Path]) -> dict[str, bytes]:
    """Return the model card of weights that derive from checkpoints, given their folders by name,
    as a file by name.

    It has the metadata of the first checkpoint with a card, among them the licence, and the origin
    of all of them. Without such a card, the licence is unknown, and there is no card.
    """
    cards = [text for folder in sources.values() if (text := _card(folder))]
    heads = [found[0] for text in cards if (found := re.match(r"---\n.*?\n---\n", text, re.DOTALL))]
    if not heads:
        return {}
    lines = [f"- {plain(name)}, SHA-256 of the weights {weights_digest(folder)}..."
             for name, folder in sources.items()]
    earlier = re.compile(r"^- .*, SHA-256 of the weights \w+\.\.\.$", re.MULTILINE)
    lines += [line for text in cards for line in earlier.findall(text)]
    origin = "\n".join(dict.fromkeys(lines))
    return {CARD: f"{heads[0]}\nThese weights derive from the checkpoints below and inherit their "
                  f"licence, which the block above names.\n\n{origin}\n".encode()}


def source_name(name: str) -> str:
    """Return how a model card names a checkpoint: a folder by its own name, or by that of the run
    that wrote it."""
    path = Path(name)
    if not path.is_dir():
        return name
    path = path.resolve()
    return path.parent.name if path.name == "checkpoint" else path.name


def join(names: list[str], folder: Path) -> None:
    """Write a cascade of checkpoints, each of which enlarges the pictures of the one before, and
    load it once.

    Bundled checkpoints are named in its config.json; others are copied into `folder`, which must be
    new. The stages of a cascade among `names` take its place.

    Raises:
        ConfigError: `folder` exists, or there are not at least two stages.
        CheckpointError: a checkpoint is missing or damaged, is not for faces, or the sizes of two
            stages do not fit.
        OutputError: the folder cannot be written.
    """
    require(not folder.exists(), f"{folder} exists; choose a new folder")
    bundled = {(bundled_folder() / name).resolve(): name for name in bundled_checkpoints()}
    stages = [stage.folder for one in map(open_checkpoint, names) for stage in one.networks]
    require(len(stages) > 1, "a cascade has at least two stages; name the first one first")
    loaded = [Upscaler.load(stage, "cpu") for stage in stages]
    whole = functools.reduce(lambda first, last: last.after(first, folder.name), loaded)
    entries = [bundled.get(stage.resolve(), f"{one.face_task.source}to{one.face_task.target}")
               for stage, one in zip(stages, loaded, strict=True)]
    with replaced_folder(folder) as fresh:
        for stage, entry in zip(stages, entries, strict=True):
            if stage.resolve() not in bundled:
                shutil.copytree(stage, fresh / entry)
        (fresh / CONFIG).write_text(json.dumps({"format_version": FORMAT_VERSION,
                                                "stages": entries}, indent=2) + "\n")
        for name, content in model_card({source_name(str(stage)): stage
                                         for stage in stages}).items():
            (fresh / name).write_bytes(content)
    task = whole.face_task
    say(f"{folder}: {' and '.join(entries)}, from {task.source_size} to {task.target_size}")


def _card(folder: Path) -> str:
    """Return the text of a checkpoint's model card; "" without one."""
    path = folder / CARD
    return path.open("rb").read(MOST_CARD).decode("utf-8", "replace") if path.is_file() else ""
