"""The result of upscaling, of a batch and of all stages."""

from __future__ import annotations

import dataclasses
import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast, overload

import numpy as np

from superres.config import Reliability, require
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import shown
from superres.pictures.write import DrawnImage
from superres.pipeline.display import images_html, images_png
from superres.pipeline.judging import Judged, Stages, judge
from superres.system.output import counted, write_result
from superres.tasks.crops import Crop
from superres.tasks.faces import enlarge

LOSSLESS = {".png": "PNG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF"}
"""Pillow's names of formats that keep every pixel and can hold the mark, by the endings of their
files."""


@dataclass(frozen=True, eq=False)
class UpscaledPicture:
    """One picture of a result.

    Attributes:
        image: uint8 [target, target, 3], RGB.
        traces: the acceptance traces of all decodes that it needed: of a cascade one per stage, of
            a finished picture more.
        record: checkpoint and decoding settings, which the picture's file holds.
    """

    image: np.ndarray
    traces: list[RowTrace]
    record: dict[str, Any]

    @property
    def steps(self) -> int:
        """Steps of decoding, of all stages."""
        return sum(trace.iterations for trace in self.traces)

    @property
    def tokens_per_step(self) -> float:
        """Mean number of tokens that a step accepted."""
        return mean_accepted_block_size(self.traces)

    @property
    def picture(self) -> DrawnImage:
        """The image as a Pillow image, whose files say that a model drew it."""
        return DrawnImage.of(self.image, self.record)

    def _repr_png_(self) -> bytes | None:
        return images_png(self.image[None])


@dataclass(frozen=True)
class Upscaled:
    """Result of upscaling a batch, a sequence of `UpscaledPicture`s, possibly of an unfinished
    decode; a notebook shows the images of every stage.

    Attributes:
        images: uint8 [N, target, target, 3], RGB; 0 where no token is decoded yet.
        traces: acceptance trace of each image.
        seconds: wall-clock seconds of the whole batch.
        sources: the pictures that the model saw, uint8 [N, source, source, 3].
        crops: the square of its picture that each source is reduced from; empty if an array of
            inputs was given.
        inputs: number of each image's picture, from 0; a photo with several faces gives several
            images.
        notes: one line per photo: which squares are used, and how little the model sees of them.
        earlier: result of the stage before, in a cascade.
        record: checkpoint and decoding settings, which files of the images hold.
        samples: number of each image among the samples of its input, from 1; empty if one sample of
            each was drawn.
        scorer: the upscaler, which judges the images when that is first asked for; a pickled result
            has none, nor has a finished one.
        drawn: of finished images, those that the last network drew, to which `traces` belong,
            before they were averaged (without an earlier stage) and sharpened; uint8 [N, target,
            target, 3]. None for images as they were drawn.
        averaged: the pictures that finished images are the mean of, as they were drawn: those of
            each input, and then those of the mirrored inputs, or of further samples. The first one
            is also `earlier`, in a cascade.
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
    samples: list[int] = field(default_factory=list)
    scorer: Stages | None = field(default=None, repr=False)
    drawn: np.ndarray | None = None
    averaged: list[Upscaled] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[UpscaledPicture]:
        return (self[number] for number in range(len(self)))

    @overload
    def __getitem__(self, number: int) -> UpscaledPicture: ...
    @overload
    def __getitem__(self, number: slice) -> Upscaled: ...
    def __getitem__(self, number: int | slice) -> UpscaledPicture | Upscaled:
        if isinstance(number, slice):
            return self.of_rows(range(len(self))[number])
        return UpscaledPicture(self.images[number], self.all_traces(number), self.record)

    @property
    def stages(self) -> list[Upscaled]:
        """The results of all stages of a cascade, the first stage first; otherwise this result
        alone."""
        return [*([] if self.earlier is None else self.earlier.stages), self]

    @property
    def as_drawn(self) -> np.ndarray:
        """The images as the network drew them, before finishing."""
        return self.images if self.drawn is None else self.drawn

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

    @cached_property
    def _judged(self) -> Judged:
        require(self.scorer is not None and self.is_complete,
                "p1 judges complete results, as an upscaler draws them; judge them before they are "
                "pickled, and without finish")
        inputs = cast(np.ndarray, self.sources)
        return judge(cast(Stages, self.scorer), [inputs, *(stage.images for stage in self.stages)])

    @property
    def bits_per_dim(self) -> np.ndarray:
        """Bits per token of each image under p1, summed over all stages, float64 [N]: see
        `pipeline.judging.judge`.

        The first read of this or of `uncertainty` takes about twice the time of decoding.
        """
        return self._judged.bits_per_dim

    @property
    def uncertainty(self) -> np.ndarray:
        """How unsure p1 is of each pixel, in grey levels, float32 [N, target, target]: see
        `pipeline.judging.judge`."""
        return self._judged.uncertainty

    @property
    def reliability(self) -> Reliability | None:
        """What the mask of reliable pixels means; None without a calibration of it."""
        return None if self.scorer is None else self.scorer.reliability

    @property
    def reliable(self) -> np.ndarray | None:
        """The mask of the pixels that one can rely on, bool [N, target, target]; None without a
        calibration of it.

        `reliability` says what that means; `superres calibrate` finds it for a checkpoint.
        """
        found = self.reliability
        return None if found is None else self.uncertainty <= found.threshold

    def of_rows(self, rows: Sequence[int]) -> Upscaled:
        """Return the result of the images `rows` alone, in their order."""
        def chosen(values: list[Any]) -> list[Any]:
            return [values[row] for row in rows] if values else values

        part = dataclasses.replace(
            self, images=self.images[rows], traces=chosen(self.traces),
            sources=None if self.sources is None else self.sources[rows], crops=chosen(self.crops),
            inputs=chosen(self.inputs), samples=chosen(self.samples),
            earlier=None if self.earlier is None else self.earlier.of_rows(rows),
            drawn=None if self.drawn is None else self.drawn[rows],
            averaged=[one.of_rows(rows) for one in self.averaged])
        if "_judged" in vars(self):
            vars(part)["_judged"] = Judged(self.bits_per_dim[rows], self.uncertainty[rows])
        return part

    def by_likelihood(self, count: int) -> Upscaled:
        """Return the same images, of which each `count` neighbours are samples of an input, the
        likeliest one first."""
        order = self.bits_per_dim.reshape(-1, count).argsort(axis=1, kind="stable")
        first = np.arange(0, len(self), count)[:, None]  # of each input, [inputs, 1]
        return self.of_rows((order + first).ravel().tolist())

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the network, which is large."""
        return {**vars(self), "scorer": None}

    def stage_traces(self, row: int) -> list[RowTrace]:
        """Return the acceptance traces of image `row`, one per stage."""
        return [stage.traces[row] for stage in self.stages]

    def all_traces(self, row: int) -> list[RowTrace]:
        """Return the acceptance traces of all decodes that image `row` needed; of a finished one,
        more than stages."""
        if not self.averaged:
            return self.stage_traces(row)
        last = [] if self.earlier is None else [self.traces[row]]
        return [*(trace for one in self.averaged for trace in one.stage_traces(row)), *last]

    def ends(self, row: int) -> np.ndarray:
        """Return the number of tokens of all stages after each step of image `row`, int64
        [steps]."""
        counts = [count for trace in self.stage_traces(row) for count in trace.accepted]
        ends: np.ndarray = np.cumsum(counts, dtype=np.int64)
        return ends

    def after(self, row: int, step: int) -> np.ndarray:
        """Return image `row` after a step, uint8 [target, target, 3]: each stage's tokens over the
        picture before."""
        ends = self.ends(row)
        picture: np.ndarray = cast(np.ndarray, self.sources)[row]
        left = int(ends[min(step, len(ends)) - 1]) if step else 0
        for image in (stage.as_drawn[row] for stage in self.stages):
            picture = enlarge(picture[None], "nearest", len(image))[0]
            picture.reshape(-1)[:left] = image.reshape(-1)[:left]
            left = max(left - image.size, 0)
        return picture

    @property
    def is_complete(self) -> bool:
        """Whether every image has all its tokens."""
        return bool(self.filled.all())

    @property
    def pictures(self) -> list[DrawnImage]:
        """The images as Pillow images; files that they and their copies are saved to say that a
        model drew them."""
        return [DrawnImage.of(image, self.record) for image in self.images]

    def save(self, path: str | os.PathLike[str]) -> list[Path]:
        """Write the images as files with `record` and the mark, and return their paths.

        Args:
            path: file whose ending is that of a format without loss: .png, .webp, .tif or .tiff. If
                there are several images, its name gets -1, -2 and so on.

        Raises:
            ConfigError: the ending is not that of a lossless format.
            OutputError: a file cannot be written.
        """
        require(isinstance(path, str | os.PathLike), "path must be that of a file, not "
                f"{shown(path)}")
        path, several = Path(path), len(self.images) != 1
        require(path.suffix.lower() in LOSSLESS, f"{path.name} must end in {', '.join(LOSSLESS)}; "
                "other formats would change pixels, or cannot say that a model drew them")
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
        summary = (f"{counted(len(self.images), 'image')}, {self.seconds:.2f} s, "
                   f"{' and '.join(sizes)} tokens per step")
        if self.averaged:
            summary += f", finished from {len(self.averaged)} pictures each"
        return [summary, *self.notes]

    def __repr__(self) -> str:
        """Return the number of images, the statistics and the notes, without pixels."""
        summary, *notes = self._lines
        return "\n".join([f"Upscaled({summary})", *notes])

    def _repr_png_(self) -> bytes | None:
        return images_png(self.images)

    def _repr_html_(self) -> str:
        return images_html([stage.images for stage in self.stages], self._lines)
