"""The command `superres export ctranslate2`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from superres.system.progress import say

Checkpoint = Annotated[str, Argument(metavar="NAME|DIR", help="Text checkpoint: a bundled one, or a folder.")]
Folder = Annotated[Path, Argument(metavar="DIR", help="New or empty folder for the model.")]

export_app = typer.Typer(help="Convert a checkpoint for another engine.", rich_markup_mode=None)


@export_app.callback()
def export() -> None:
    """Convert a checkpoint for another engine."""


@export_app.command()
def ctranslate2(checkpoint: Checkpoint, folder: Folder) -> None:
    """Write a text checkpoint as a CTranslate2 model: the base network, without its prediction heads.

    In float32, CTranslate2 then gives the tokens of greedy decoding (extra `peers`).
    """
    from superres.pipeline.export import export_ctranslate2

    export_ctranslate2(checkpoint, folder)
    say(f"written: {folder}")
