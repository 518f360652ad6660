"""Prepare faces for training: convert a folder of pictures or a torchvision CelebA root to one
.npz.

    python scripts/train/prepare_celeba.py img_align_celeba/ train.npz
    python scripts/train/prepare_celeba.py img_align_celeba/ train64.npz --size 64
    python scripts/train/prepare_celeba.py img_align_celeba/ train-64.npz --source 32 --target 64
    python scripts/train/prepare_celeba.py dev64.npz off-centre.npz --random-crops
    python scripts/train/prepare_celeba.py dev64.npz turned.npz --turned 4

The sides of the network's input and output are --source and --target. With --size 64, each picture
is stored at 64x64, and training cuts random crops from it (`--crop-share`). With --random-crops,
each picture becomes one random crop of itself, and with --turned, it is turned about its centre,
for scores on faces that are not framed as CelebA's are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import typer

sys.path.append(str(Path(__file__).resolve().parents[1]))

from measurements import run
from superres.config import ModelConfig
from superres.errors import InvalidInputError
from superres.tasks.face_data import CHUNK, FacePairs, read_faces, write_npz
from superres.tasks.faces import FaceTask
from superres.training.picture_operations import turned, turns_of

DEFAULT = FaceTask.of(ModelConfig())


def random_crops(pairs: FacePairs, seed: int) -> FacePairs:
    """Return one `FaceTask.random_crop` of each picture, determined by the seed and the picture's
    place."""
    task = pairs.task
    if pairs.large is None:
        raise InvalidInputError("random crops need pictures of at least "
                                f"{task.large}x{task.large}; give --size {2 * task.target} when "
                                "you prepare them")
    crops = [task.random_crop(picture, np.random.default_rng((seed, place)))
             for place, picture in enumerate(pairs.large)]
    high, low = (np.stack(images) for images in zip(*crops, strict=True))
    return FacePairs(high, low, pairs.ids)


def turned_pairs(pairs: FacePairs, degrees: float) -> FacePairs:
    """Return the pictures turned about their centres by `degrees`, every second one to the other
    side."""
    pictures = torch.from_numpy(pairs.hr if pairs.large is None else pairs.large)
    turns = torch.from_numpy(turns_of(np.where(np.arange(len(pairs)) % 2, -degrees, degrees)))
    parts = [pairs.task.both_sizes(turned(some, its).round_().clamp_(0, 255).byte().numpy())
             for some, its in zip(pictures.split(CHUNK), turns.split(CHUNK, 1), strict=True)]
    high, low = (np.concatenate(images) for images in zip(*parts, strict=True))
    return FacePairs(high, low, pairs.ids)


def main(
    data: Annotated[
        Path, typer.Argument(help="Folder of images, a CelebA root (contains "
                             "celeba/img_align_celeba), or an .npz.")
    ],
    output: Annotated[Path, typer.Argument(help="The .npz to write (keys hr, lr, ids).")],
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option(help="Split of CelebA's official "
                                                        "partition.")
    ] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first N images.")] = None,
    source: Annotated[int, typer.Option(metavar="S", help="Side of the network's "
                                        "input.")] = DEFAULT.source,
    target: Annotated[int, typer.Option(metavar="T", help="Side of the network's "
                                        "output.")] = DEFAULT.target,
    size: Annotated[int | None, typer.Option(metavar="N", show_default=False, help="Side of the "
                                             "stored pictures, 5/4 T or more for random crops. "
                                             "[default: T; with --random-crops 2 T]")] = None,
    crops: Annotated[bool, typer.Option("--random-crops", help="Write a random crop of each "
                                        "picture instead, of 80 % to 100 % of its side.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of --random-crops.")] = 0,
    turn: Annotated[float, typer.Option("--turned", metavar="DEGREES", help="Turn each picture "
                                        "about its centre, every second one to the other "
                                        "side.")] = 0.0,
) -> None:
    """Crop each image, reduce it to both sizes by exact averages, and write all images to one
    .npz."""
    if output.suffix != ".npz":
        raise typer.BadParameter(f"{output} must end in .npz", param_hint="OUTPUT")
    if crops and turn:
        raise typer.BadParameter("a picture is either cropped or turned; leave --random-crops or "
                                 "--turned out")
    task = FaceTask(source, target)
    if crops and size is None:
        size = 2 * target
    pairs = read_faces(data, task, split, limit, None if size == target else size)
    pairs = random_crops(pairs, seed) if crops else turned_pairs(pairs, turn) if turn else pairs
    write_npz(pairs, output)
    print(f"{len(pairs)} faces written to {output}")


if __name__ == "__main__":
    run(main)
