"""Convert inputs of a batch: from a file to the network's input, and from decoded pixels to a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from superres.batch.image_files import FORMATS
from superres.batch.inputs import Job, open_jobs
from superres.batch.plan import KEEP_ALPHA, BatchOptions
from superres.errors import InvalidInputError, SuperresError
from superres.tasks.faces import Source, enlarge, image_key, to_source
from superres.tasks.pictures import Picture, Pixels, read_picture


@dataclass(frozen=True, eq=False)
class Item:
    """A sample of an input, ready to be decoded.

    Attributes:
        number: number of the output in the run's plan.
        sample: number of the sample, from 1.
        input: name of the input in the manifest.
        output: absolute path of the output.
        picture: the reduced input, with the transparency and the metadata that the output copies.
    """

    number: int
    sample: int
    input: str
    output: str
    picture: Picture

    @property
    def source(self) -> Pixels:
        """The input of the network, uint8 [8, 8, 3]."""
        return self.picture.rgb

    @property
    def key(self) -> int:
        """Key of the sampling noise."""
        return image_key(self.source, self.sample)


@dataclass(frozen=True)
class Failure:
    """An output that cannot be made: its number in the run's plan, and the reason."""

    number: int
    message: str


@dataclass
class Reader:
    """Reads inputs; `options` determine the reduction to 8x8 and the metadata that is kept."""

    options: BatchOptions

    def read(self, wanted: Iterable[tuple[int, Job, list[int]]]) -> Iterator[Item | Failure]:
        """Yield the samples of inputs, or a failure per sample if an input cannot be read.

        Args:
            wanted: the number of the first sample's output, the input, and the numbers (from 1) of its samples to make;
                in the order of the plan.
        """
        pending: list[tuple[int, list[int]]] = []

        def jobs() -> Iterator[Job]:
            for first, job, samples in wanted:
                pending.append((first, samples))
                yield job

        for job, content in open_jobs(jobs()):
            first, samples = pending.pop(0)
            loaded = self._load(job, content)
            outputs = self.options.outputs(job)
            for sample in samples:
                number = first + sample - 1
                if isinstance(loaded, str):
                    yield Failure(number, loaded)
                else:
                    yield Item(number, sample, job.input, outputs[sample - 1], loaded)

    def _load(self, job: Job, content: Any) -> Picture | str:  # noqa: ANN401 -- Content of superres.batch.inputs, or an error
        """Return the picture reduced to 8x8, or an error message; the transparency has the output's size."""
        try:
            if isinstance(content, InvalidInputError):
                raise content
            keeps = self.options.alpha == KEEP_ALPHA
            if isinstance(content, np.ndarray):
                picture = Picture(content)
            else:
                picture = read_picture(content, job.input, background="white" if keeps else self.options.alpha)
            source, alpha = to_source(picture.rgb, cast(Source, self.options.source)), None
            if keeps and picture.alpha is not None:
                low = to_source(np.repeat(picture.alpha[:, :, None], 3, axis=2), cast(Source, self.options.source))
                source, alpha = unblend(source, low[:, :, :1]), enlarge(low[None], "bicubic")[0, :, :, 0]
        except (SuperresError, OSError, ValueError, MemoryError) as error:
            message = " ".join(str(error).split()) or type(error).__name__
            return message if job.input in message else f"{job.input}: {message}"
        if self.options.metadata == "strip":
            return Picture(source, alpha)
        return replace(picture, rgb=source, alpha=alpha)


def unblend(pixels: Pixels, alpha: Pixels) -> Pixels:
    """Return the colours that blend to `pixels` [H, W, 3] with `alpha` [H, W, 1] over white; white where alpha is 0."""
    weight = np.maximum(alpha.astype(np.float64), 1) / 255
    colour = (pixels - 255 * (1 - weight)) / weight
    return np.where(alpha == 0, 255, colour.round().clip(0, 255)).astype(np.uint8)


def encode(item: Item, image: Pixels, record: dict[str, Any], options: BatchOptions) -> bytes:
    """Return the bytes of the file of a finished image, uint8 [32, 32, 3]."""
    return FORMATS[options.format].encode(replace(item.picture, rgb=image), {**record, "sample": item.sample})
