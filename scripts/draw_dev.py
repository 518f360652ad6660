"""Draw 72 faces with a checkpoint, to try the documented commands with: `make dev.npz`.

    python scripts/draw_dev.py dev.npz

The inputs are those of `scripts/demo.py`. The pictures are samples, so scores on them say nothing
about real faces.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from demo import read_inputs
from measurements import Checkpoint, Device, run
from superres import DecodeConfig, Upscaler
from superres.system.progress import Progress, say
from superres.tasks.face_data import FacePairs, write_npz

SAMPLES = 8
"""Number of faces per input."""


def main(
    output: Annotated[Path, typer.Argument(help="The .npz to write.")],
    checkpoint: Checkpoint = "celeba-8to32",
    device: Device = "auto",
) -> None:
    """Sample the pictures, and write them with their reductions as
    `superres.tasks.face_data.read_faces` reads them."""
    say(f"loading {checkpoint}; the first use compiles the engine")
    upscaler = Upscaler.load(checkpoint, device)
    task = upscaler.face_task
    sources = np.repeat(np.stack(list(read_inputs(task).values())), SAMPLES, axis=0)
    say(f"drawing {len(sources)} faces")
    with Progress("drawing"):
        pictures = upscaler(sources, DecodeConfig(temperature=0.7)).images
    reduced = np.stack([task.source_of(picture) for picture in pictures])
    write_npz(FacePairs(pictures, reduced, np.arange(len(pictures), dtype=np.int32)), output)
    print(f"{output}: {len(pictures)} faces that {checkpoint} has drawn. Scores on them say "
          "nothing about real faces.")


if __name__ == "__main__":
    run(main)
