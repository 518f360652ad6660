"""Sample the input faces of the demo: faces of people who do not exist, which the project can publish.

Each face is a blend of a training input with the one most like it, upscaled by sampling with the checkpoint and reduced
again. Without --keep, all candidates are written, to choose from.

    python scripts/draw_faces.py --data faces.npz --output scripts/faces --keep 0,11,16,35,51,69,70
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from superres import DecodeConfig, Upscaler
from superres.tasks.face_data import read_faces
from superres.tasks.image_files import encode_png
from superres.tasks.pictures import Picture, Pixels


def blends(inputs: Pixels, count: int, seed: int) -> Pixels:
    """Return the means of `count` random inputs, of uint8 [N, h, w, 3], and the nearest other input of each."""
    chosen = np.random.default_rng(seed).choice(len(inputs), count, replace=False)
    vectors = inputs.reshape(len(inputs), -1).astype(np.float32)
    distances = (vectors**2).sum(1) - 2 * vectors[chosen] @ vectors.T  # [count, N], but for a constant per row
    distances[np.arange(count), chosen] = np.inf
    nearest = inputs[distances.argmin(1)]
    return ((inputs[chosen].astype(np.uint16) + nearest) // 2).astype(np.uint8)


def main(
    data: Annotated[Path, typer.Option(help="Prepared training faces, .npz.")],
    output: Annotated[Path, typer.Option(help="Folder for face-1.png and so on.")],
    count: Annotated[int, typer.Option(help="Number of candidates.")] = 100,
    keep: Annotated[str, typer.Option(help="Numbers of the candidates to write, from 0; all by default.")] = "",
    checkpoint: Annotated[str, typer.Option(help="Checkpoint name or folder.")] = "celeba-8to32",
    seed: Annotated[int, typer.Option(help="Seed of the choice of inputs and of sampling.")] = 1,
) -> None:
    """Sample faces, and write their reductions."""
    upscaler = Upscaler.load(checkpoint)
    task = upscaler.face_task
    sources = blends(read_faces(data, task, "train").lr, count, seed)
    numbers = [int(number) for number in keep.split(",") if number] or list(range(count))
    # A consistent sample would reduce to the blend itself.
    options = DecodeConfig(temperature=0.7, seed=seed, consistent=False)
    drawn = upscaler(sources[numbers], options, keys=numbers).images
    output.mkdir(parents=True, exist_ok=True)
    for number, face in enumerate(task.source_of(drawn), 1):
        (output / f"face-{number}.png").write_bytes(encode_png(Picture(face), upscaler.record(options)))


if __name__ == "__main__":
    typer.run(main)
