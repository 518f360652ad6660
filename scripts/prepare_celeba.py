"""Prepare faces for training: convert a folder of pictures or a torchvision CelebA root to one .npz."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from superres.errors import SuperresError
from superres.tasks.faces import read_faces, write_npz


def main(
    source: Annotated[
        Path, typer.Argument(help="Folder of images, or a CelebA root (contains celeba/img_align_celeba).")
    ],
    output: Annotated[Path, typer.Argument(help="The .npz to write (keys hr, lr, ids).")],
    split: Annotated[
        Literal["train", "valid", "test"], typer.Option(help="Split of CelebA's official partition.")
    ] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first N images.")] = None,
) -> None:
    """Crop each image, reduce it to 32x32 and 8x8 by exact averages, and write all images to one .npz."""
    try:
        if output.suffix != ".npz":
            raise typer.BadParameter(f"{output} must end in .npz", param_hint="OUTPUT")
        pairs = read_faces(source, split=split, limit=limit)
        write_npz(pairs, output)
    except SuperresError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from error
    print(f"{len(pairs)} faces written to {output}")


if __name__ == "__main__":
    typer.run(main)
