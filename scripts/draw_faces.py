"""Sample the input faces of the demo: faces of people who do not exist, which the project can publish.

Each face is a blend of two training inputs, upscaled by sampling with the checkpoint and reduced again.

    python scripts/draw_faces.py --data faces.npz --output scripts/faces
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from superres import DecodeConfig, Upscaler
from superres.tasks.face_data import read_faces


def main(
    data: Annotated[Path, typer.Option(help="Prepared training faces, .npz.")],
    output: Annotated[Path, typer.Option(help="Folder for face-1.png and so on.")],
    count: Annotated[int, typer.Option(help="Number of faces.")] = 7,
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name or folder.")] = "celeba-8to32",
    seed: Annotated[int, typer.Option(help="Seed of the choice of inputs and of sampling.")] = 1,
) -> None:
    """Sample `count` faces."""
    upscaler = Upscaler.load(checkpoint)
    task = upscaler.face_task
    inputs = read_faces(data, task, "train").lr
    pairs = np.random.default_rng(seed).choice(len(inputs), (count, 2), replace=False)
    blends = inputs[pairs].astype(np.uint16).mean(axis=1).astype(np.uint8)
    drawn = upscaler(blends, DecodeConfig(temperature=0.7, seed=seed)).images
    output.mkdir(parents=True, exist_ok=True)
    for number, face in enumerate(task.source_of(drawn), 1):
        Image.fromarray(face).save(output / f"face-{number}.png")


if __name__ == "__main__":
    typer.run(main)
