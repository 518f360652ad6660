"""Where data sets of faces are: what commands check before they import what reads them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, get_args

from superres.errors import InvalidInputError

Split = Literal["train", "valid", "test"]
SPLITS: tuple[str, ...] = get_args(Split)


def is_celeba(path: Path) -> bool:
    """Return whether a folder is a CelebA root in torchvision's layout; only such a root has
    splits."""
    return (path / "celeba" / "img_align_celeba").is_dir()


def require_faces(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInputError if there is no data set at `path`, before a command does any other
    work."""
    if not os.path.exists(path):
        raise InvalidInputError(f"{path} does not exist; give an .npz, a folder of images or a "
                                "CelebA root")
