"""The command `superres space`, which writes a folder that runs as a Hugging Face Space."""

from __future__ import annotations

import shutil
from pathlib import Path
from string import Template
from typing import Annotated

from typer import Argument, Option

from superres import __version__
from superres.config import DEFAULT_CASCADE, require
from superres.system.output import prepare_folder, write_result
from superres.system.progress import say

PAGE = "https://huggingface.co"
"""Site that shows the page of a Space in a frame."""
PORT, MAX_QUEUE, TIME_LIMIT = 7860, 8, 60
"""Port of the page, and the limits for two cores: waiting requests, and seconds per request."""
FILES = ("app.py", "LICENSE", "scripts/photos/Grace-Hopper.jpg",
         *(f"scripts/faces/face-{number}.png" for number in range(1, 8)))
"""Files of the page beside the package, which the Space has as they are."""

SpaceFolder = Annotated[Path, Argument(metavar="DIR", help="New or empty folder for the Space.")]
Wheel = Annotated[Path, Option(metavar="FILE", help="Wheel of superres for x86-64 Linux, with the "
                               "compiled engine; 'make wheels' builds it.")]

def space(folder: SpaceFolder, wheel: Wheel) -> None:
    """Write a folder that runs as a Hugging Face Space: the web demo on its free machine.

    The folder has the page, its examples, the wheel, a Dockerfile, and a README with limits and
    licences. Push it to a new Space. To try it here, install the wheel with the ui and text extras,
    and run the Dockerfile's last line.
    """
    require(wheel.is_file() and wheel.suffix == ".whl", f"--wheel {wheel} is no wheel; build one "
            "with 'make wheels'")
    require(wheel.name.endswith("linux_x86_64.whl"), f"--wheel {wheel} has no compiled engine for "
            "x86-64 Linux, and a Space has no compiler; build one with 'make wheels "
            "PLATFORMS=linux_x86_64'")
    require(not folder.exists() or not any(folder.iterdir()), f"{folder} is not empty; choose a "
            "new folder")
    prepare_folder(folder)
    for name in FILES:
        prepare_folder((folder / name).parent)
        shutil.copyfile(page_folder() / name, folder / name)
    shutil.copyfile(wheel, folder / wheel.name)
    values = {"wheel": wheel.name, "version": __version__, "port": PORT, "max_queue": MAX_QUEUE,
              "time_limit": TIME_LIMIT, "words": ", ".join(f'"{word}"' for word in launch_words())}
    for template in Path(__file__).with_name("space_files").iterdir():
        write_result(folder / template.name,
                     Template(template.read_text()).substitute(values).encode())
    say(f"{folder}: {len(FILES) + 3} files; create a Space of the kind Docker, and push the folder "
        "to it")


def launch_words() -> list[str]:
    """Return the options with which a Space starts the page."""
    return ["--host", "0.0.0.0",  # noqa: S104 -- all that reaches the container
            "--port", str(PORT), "--checkpoint", DEFAULT_CASCADE, "--max-queue", str(MAX_QUEUE), "--time-limit",
            str(TIME_LIMIT), "--embed-in", PAGE]


def page_folder() -> Path:
    """Return the folder of the page's files: the checkout, or a folder inside an installed
    package."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_page"
    return installed if installed.is_dir() else package.parent
