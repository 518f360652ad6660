"""Convert inputs of a batch: from a file to the network's input, and from decoded pixels to a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from superres.batch.image_files import FORMATS
from superres.batch.inputs import Job, open_jobs
from superres.batch.plan import KEEP_ALPHA, BatchOptions
from superres.errors import InvalidInputError, SuperresError
from superres.tasks.faces import FaceTask, Source, image_key
from superres.tasks.photos import Crop, choose_crops, crop_note
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
        crop: the square of the input as the manifest records it; None unless the input was cropped.
    """

    number: int
    sample: int
    input: str
    output: str
    picture: Picture
    crop: dict[str, Any] | None = None

    @property
    def source(self) -> Pixels:
        """The input of the network, uint8 [source, source, 3]."""
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


@dataclass(frozen=True)
class Photo:
    """A photo that was cropped: the line that says how, and the number of outputs that its further faces add."""

    line: str
    more: int


@dataclass(frozen=True, eq=False)
class Loaded:
    """An input that was read.

    Attributes:
        pictures: its crops, reduced to the network's input; `Item` describes the contents.
        crops: the squares; one of the whole picture if it is small.
        line: the line about a photo; None for other pictures.
    """

    pictures: list[Picture]
    crops: list[Crop]
    line: str | None


@dataclass
class Reader:
    """Reads inputs.

    Attributes:
        options: determine the crops, the reduction and the metadata that is kept.
        count: number of the outputs in the run's plan. The output n of face f has the number n + f * count.
        task: the sizes of the network's input and output.
    """

    options: BatchOptions
    count: int
    task: FaceTask

    def read(self, wanted: Iterable[tuple[int, Job, list[int]]]) -> Iterator[Item | Photo | Failure]:
        """Yield the samples of each of an input's crops, or a failure per sample if an input cannot be read.

        A photo is followed by its items.

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
            if isinstance(loaded, str):
                for sample in samples:
                    yield Failure(first + sample - 1, loaded)
                continue
            if loaded.line is not None:
                yield Photo(loaded.line, (len(loaded.crops) - 1) * len(samples))
            for crop, picture in zip(loaded.crops, loaded.pictures, strict=True):
                outputs, record = self.options.outputs(job, crop.face), asdict(crop) if loaded.line else None
                for sample in samples:
                    number = first + sample - 1 + crop.face * self.count
                    yield Item(number, sample, job.input, outputs[sample - 1], picture, record)

    def _load(self, job: Job, content: Any) -> Loaded | str:  # noqa: ANN401 -- Content of superres.batch.inputs, or an error
        """Return the reduced crops, or an error message; the transparency has the output's size."""
        try:
            if isinstance(content, InvalidInputError):
                raise content
            keeps = self.options.alpha == KEEP_ALPHA
            if isinstance(content, np.ndarray):
                picture = Picture(content)
            else:
                picture = read_picture(content, job.input, background="white" if keeps else self.options.alpha,
                                       least=self.task.source)
            if self.options.source == "lowres":
                self.task.to_source(picture.rgb, cast(Source, self.options.source))  # refuses other sizes
            crops = choose_crops(picture.rgb, self.task, self.options.crop)
            pictures = [self._reduced(picture, crop, keeps) for crop in crops]
        except (SuperresError, OSError, ValueError, MemoryError) as error:
            message = " ".join(str(error).split()) or type(error).__name__
            return message if job.input in message else f"{job.input}: {message}"
        return Loaded(pictures, crops, crop_note(job.input, picture.rgb, crops, self.task))

    def _reduced(self, picture: Picture, crop: Crop, keeps_alpha: bool) -> Picture:
        source, alpha = self.task.source_of(crop.take(picture.rgb)), None
        if keeps_alpha and picture.alpha is not None:
            low = self.task.source_of(crop.take(picture.alpha[:, :, None]))
            large = self.task.enlarge(np.repeat(low[None], 3, axis=3), "bicubic")
            source, alpha = unblend(source, low), large[0, :, :, 0]
        if self.options.metadata == "strip":
            return Picture(source, alpha)
        return replace(picture, rgb=source, alpha=alpha)


def unblend(pixels: Pixels, alpha: Pixels) -> Pixels:
    """Return the colours that blend to `pixels` [H, W, 3] with `alpha` [H, W, 1] over white; white where alpha is 0."""
    weight = np.maximum(alpha.astype(np.float64), 1) / 255
    colour = (pixels - 255 * (1 - weight)) / weight
    return np.where(alpha == 0, 255, colour.round().clip(0, 255)).astype(np.uint8)


def encode(item: Item, image: Pixels, record: dict[str, Any], options: BatchOptions) -> bytes:
    """Return the bytes of the file of a finished image, uint8 [target, target, 3]."""
    return FORMATS[options.format].encode(replace(item.picture, rgb=image), {**record, "sample": item.sample})
