"""The command `superres export web`: a checkpoint for the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from superres.cli import options as opt
from superres.config import DEFAULT_CASCADE, require
from superres.system.folders import page_folder
from superres.system.progress import say

SiteFolder = Annotated[Path, Argument(metavar="DIR", help="New or empty folder for the page.")]

export_app = typer.Typer(help="Convert a checkpoint for the browser.", rich_markup_mode=None)


@export_app.command(cls=opt.HelpfulCommand)
def web(folder: SiteFolder, checkpoint: opt.Checkpoint = DEFAULT_CASCADE) -> None:
    """Write a page that draws faces in the visitor's browser, without a server: files for any
    static host.

    The folder has the page, the compiled engine as WebAssembly, and the weights in int8; the
    pictures are those of the engine native-int8. Photos never leave the browser. To try it, run
    'python -m http.server' in the folder. As it is, the folder is a static Space of Hugging Face.
    Pages of your own draw faces with its element.js.
    """
    from superres.checkpoint import find_checkpoint, replaced_folder
    from superres.pipeline.browser_export import write_engine
    from superres.pipeline.upscaler import Upscaler
    from superres.web.content import examples_of
    from superres.web.site import first_faces, write_page

    require(not folder.exists() or (folder.is_dir() and not any(folder.iterdir())),
            f"{folder} exists and is not an empty folder; choose another one")
    say(f"loading {checkpoint}")
    upscaler = Upscaler.load(checkpoint, "cpu", "native-int8")
    task = upscaler.face_task
    with replaced_folder(folder) as fresh:
        size = write_engine(fresh, upscaler)
        say("writing the page and its examples")
        heads = upscaler.at_size((*task.between, task.target)[0]).model_config.prediction_heads
        examples = examples_of(page_folder(), task)
        write_page(fresh, task, upscaler.stages, heads, find_checkpoint(checkpoint), examples,
                   first_faces(upscaler, next(iter(examples.values()))))
    say(f"written: {folder}, of which a visitor loads {size / 1e6:.1f} MB")
