"""The result of upscaling, of a batch and of all stages."""

from __future__ import annotations

import io
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from superres.config import require
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import shown
from superres.pipeline.display import images_html, images_png
from superres.system.output import counted, write_result
from superres.tasks.image_files import DrawnImage
from superres.tasks.photos import Crop

LOSSLESS = {".png": "PNG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}
"""Pillow's names of formats that keep every pixel and can hold the mark, by the endings of their files."""


@dataclass(frozen=True)
class Upscaled:
    """Result of upscaling a batch, possibly of an unfinished decode; a notebook shows the images of every stage.

    Attributes:
        images: uint8 [N, target, target, 3], RGB; 0 where no token is decoded yet.
        traces: acceptance trace of each image.
        seconds: wall-clock seconds of the whole batch.
        sources: the pictures that the model saw, uint8 [N, source, source, 3].
        crops: the square of its picture that each source is reduced from; empty if an array of inputs was given.
        inputs: number of each image's picture, from 0; a photo with several faces gives several images.
        notes: one line per photo: which squares are used, and how little the model sees of them.
        earlier: result of the stage before, in a cascade.
        record: checkpoint and decoding settings, which files of the images hold.
    """

    images: np.ndarray
    traces: list[RowTrace]
    seconds: float
    sources: np.ndarray | None = None
    crops: list[Crop] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    earlier: Upscaled | None = None
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def stages(self) -> list[Upscaled]:
        """The results of all stages of a cascade, the first stage first; otherwise this result alone."""
        return [*([] if self.earlier is None else self.earlier.stages), self]

    @property
    def filled(self) -> np.ndarray:
        """Whether each token is decoded, bool [N, target, target, 3]."""
        tokens = np.array([trace.tokens for trace in self.traces], np.int64)
        size = int(np.prod(self.images.shape[1:]))
        filled: np.ndarray = (np.arange(size) < tokens[:, None]).reshape(self.images.shape)
        return filled

    @property
    def share(self) -> np.ndarray:
        """Share of the tokens of all stages that are decoded, float64 [N] in [0, 1]."""
        done = sum(stage.filled.reshape(len(stage.images), -1).sum(1) for stage in self.stages)
        return np.asarray(done / sum(math.prod(stage.images.shape[1:]) for stage in self.stages))

    def stage_traces(self, row: int) -> list[RowTrace]:
        """Return the acceptance traces of image `row`, one per stage."""
        return [stage.traces[row] for stage in self.stages]

    @property
    def is_complete(self) -> bool:
        """Whether every image has all its tokens."""
        return bool(self.filled.all())

    @property
    def pictures(self) -> list[DrawnImage]:
        """The images as Pillow images; files that they and their copies are saved to say that a model drew them."""
        return [DrawnImage.of(image, self.record) for image in self.images]

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the images as files with `record` and the mark, and return their paths.

        Args:
            path: file whose ending is that of a format without loss: .png, .webp, .tif or .tiff. If there are several
                images, its name gets -1, -2 and so on.

        Raises:
            ConfigError: the ending is not that of a lossless format.
            OutputError: a file cannot be written.
        """
        require(isinstance(path, str | os.PathLike), f"path must be that of a file, not {shown(path)}")
        path, several = Path(path), len(self.images) != 1
        require(path.suffix.lower() in LOSSLESS, f"{path.name} must end in {', '.join(LOSSLESS)}; other formats would "
                                                 "change pixels, or cannot say that a model drew them")
        paths = [path.with_stem(f"{path.stem}-{number}") if several else path
                 for number in range(1, len(self.images) + 1)]
        for file, picture in zip(paths, self.pictures, strict=True):
            buffer = io.BytesIO()
            picture.save(buffer, LOSSLESS[path.suffix.lower()], lossless=True)
            write_result(file, buffer.getvalue(), "path")
        return paths

    @property
    def _lines(self) -> list[str]:
        sizes = [f"{mean_accepted_block_size(stage.traces):.2f}" for stage in self.stages]
        summary = f"{counted(len(self.images), 'image')}, {self.seconds:.2f} s, {' and '.join(sizes)} tokens per step"
        return [summary, *self.notes]

    def __repr__(self) -> str:
        """Return the number of images, the statistics and the notes, without pixels."""
        summary, *notes = self._lines
        return "\n".join([f"Upscaled({summary})", *notes])

    def _repr_png_(self) -> bytes | None:
        return images_png(self.images)

    def _repr_html_(self) -> str:
        return images_html([stage.images for stage in self.stages], self._lines)
