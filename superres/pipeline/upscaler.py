"""Upscaling of faces: load a checkpoint once, then call it on pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from superres.config import DEFAULT_CHECKPOINT, DecodeConfig
from superres.decoding.batching import Feed, RefilledDecoder, Result, Source, feed_of
from superres.decoding.loop import decoding_type
from superres.decoding.noise import noise_keys
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import with_proposer_state
from superres.decoding.sum_limits import LimitedModel, Limits
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.interfaces import ScoringModel
from superres.nn.likelihood import bits_per_dim
from superres.nn.model import EncoderDecoder
from superres.pipeline.base import Pipeline, Steps, at_intervals, batch_steps
from superres.pipeline.display import counted, images_html, images_png
from superres.system.machine import free_bytes
from superres.tasks.faces import INTENSITIES, FaceTask, encode
from superres.tasks.photos import DEFAULT_CROP, Crop, PhotoSources, PictureLike, read_sources

USEFUL_ROWS = {"cpu": 16, "cuda": 512}  # batch size beyond which a device hardly gets faster, by kind of device


@dataclass(frozen=True)
class Upscaled:
    """Result of upscaling a batch, possibly of an unfinished decode; a notebook shows the images.

    Attributes:
        images: uint8 [N, target, target, 3], RGB; 0 where no token is decoded yet.
        traces: acceptance trace of each image.
        seconds: wall-clock seconds of the whole batch.
        sources: the pictures that the model saw, uint8 [N, source, source, 3].
        crops: the square of its picture that each source is reduced from; empty if an array of inputs was given.
        inputs: number of each image's picture, from 0; a photo with several faces gives several images.
        notes: one line per photo: which squares are used, and how little the model sees of them.
    """

    images: np.ndarray
    traces: list[RowTrace]
    seconds: float
    sources: np.ndarray | None = None
    crops: list[Crop] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def filled(self) -> np.ndarray:
        """Whether each token is decoded, bool [N, target, target, 3]."""
        tokens = np.array([trace.tokens for trace in self.traces], np.int64)
        size = int(np.prod(self.images.shape[1:]))
        filled: np.ndarray = (np.arange(size) < tokens[:, None]).reshape(self.images.shape)
        return filled

    @property
    def is_complete(self) -> bool:
        """Whether every image has all its tokens."""
        return bool(self.filled.all())

    @property
    def _lines(self) -> list[str]:
        size = mean_accepted_block_size(self.traces)
        summary = f"{counted(len(self.images), 'image')}, {self.seconds:.2f} s, {size:.2f} tokens per step"
        return [summary, *self.notes]

    def __repr__(self) -> str:
        """Return the number of images, the statistics and the notes, without pixels."""
        summary, *notes = self._lines
        return "\n".join([f"Upscaled({summary})", *notes])

    def _repr_png_(self) -> bytes | None:
        return images_png(self.images)

    def _repr_html_(self) -> str:
        return images_html(self.images, self._lines)


class Face(NamedTuple):
    """An image to upscale: its pixels, uint8 [source, source, 3], and the key of its sampling noise."""

    source: np.ndarray
    key: int


Pictures: TypeAlias = PictureLike | Iterable[PictureLike]
"""One picture (a path, a Pillow image or uint8 [H, W, 3]), several, or an array uint8 [N, H, W, 3]."""


class Upscaler(Pipeline):
    """Upscales faces with a checkpoint, whose network has the sides `face_task.source` and `face_task.target`."""

    task = FaceTask.name
    bundled = DEFAULT_CHECKPOINT

    @classmethod
    def _task_arguments(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        if model.config.vocabulary < INTENSITIES:
            raise CheckpointError(f"checkpoint {folder} has {model.config.vocabulary} intensities, but pictures have "
                                  f"{INTENSITIES}; choose another")
        try:
            FaceTask.of(model.config)
        except ConfigError as error:
            raise CheckpointError(f"checkpoint {folder}: {error}") from error
        return {}

    @cached_property
    def face_task(self) -> FaceTask:
        """The sizes of the network's input and output."""
        return FaceTask.of(self.model_config)

    @cached_property
    def limits(self) -> Limits:
        """Limits on intensities under which a picture reduces to exactly its source."""
        return Limits.of(self.face_task.limits(self.model_config.vocabulary), self.device)

    def limited(self, model: ScoringModel) -> ScoringModel:
        """See `Pipeline.limited`."""
        return LimitedModel(model, self.limits)

    def __call__(
        self, sources: Pictures, options: DecodeConfig | None = None, *, crop: str = DEFAULT_CROP,
        keys: Sequence[int] | None = None, width: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Upscaled:
        """Upscale a picture or a batch.

        A picture of the size of the model's input is upscaled as it is. A larger one is cropped and reduced first.

        Args:
            sources: a path, a Pillow image, uint8 [H, W, 3], several of them, or an array uint8 [N, H, W, 3]; RGB, at
                least as large as the model's input.
            options: block size, acceptance and sampling. If None, the checkpoint's default for the kind of device,
                which `superres tune` saves, or else `superres.pipeline.base.fastest_exact`.
            crop: the squares of a photo that are upscaled: "face" for every face that is found, or the centre if there
                is none; "centre"; or "X,Y,SIZE" in pixels from the top left corner. See
                `superres.tasks.photos.choose_crops`.
            keys: key of each image's sampling noise, in [0, 2**63); the image's number in the result if None.
            width: step width, at least the block size; see `superres.decoding.decode.decode`.
            progress: called repeatedly with (decoded tokens of the slowest image, tokens per image).

        Raises:
            InvalidInputError: a picture cannot be read or used, or there is not one valid key per image.
            ConfigError: the checkpoint does not support `options`, or the crop is unknown.
        """
        options = options or self.default_of_width(width)
        given, faces = self._prepare(sources, crop, options, keys)
        if not faces:
            return Upscaled(np.zeros((0, *self.model_config.target_shape), np.uint8), [], 0.0, given.images)
        # This may measure costs, which are no part of the decoding time.
        self.block_sizes.get(options, self.source_tokens(given.images))
        started = time.perf_counter()
        for _, results in self._steps(faces, options, width):
            if progress is not None:
                progress(min(one.trace.tokens for one in results()), self.model_config.target_length)
        return self._upscaled(results(), time.perf_counter() - started, given)

    def stream(
        self, sources: Pictures, options: DecodeConfig | None = None, *, crop: str = DEFAULT_CROP,
        keys: Sequence[int] | None = None, interval: float = 0.125,
    ) -> Iterator[Upscaled]:
        """Upscale a batch, and yield intermediate results; closing the iterator stops the decoding.

        Arguments and errors are as for a call; there must be a picture. There are at least `interval` seconds of
        decoding between two results.

        Yields:
            Intermediate results, and last the complete result, which equals that of a call. `seconds` excludes the time
            that the caller takes between two results.
        """
        options = options or self.default
        given, faces = self._prepare(sources, crop, options, keys)
        if not faces:
            raise InvalidInputError("there are no images to upscale; give at least one")
        for results, seconds, _ in at_intervals(self._steps(faces, options), interval):
            yield self._upscaled(results, seconds, given)

    def refilled(self, feed: Feed[Any], options: DecodeConfig | None, rows: int) -> RefilledDecoder[Any]:
        """Upscale a stream of images, `rows` at a time; the next image takes the place of a complete one in the batch.

        An image's result does not depend on the other images in the batch. `feed` provides objects with the attributes
        of `Face`, and `face_task.decode` converts the decoder's tokens to images. `options` are as for a call; raises
        ConfigError if the checkpoint does not support them.
        """
        options = options or self.default
        return self._decoder(self.scoring_for(options), feed, self._sources, options, rows)

    def _steps(self, faces: list[Face], options: DecodeConfig, width: int | None = None) -> Steps[list[Result[Face]]]:
        """Upscale a batch: a stream that ends, whose images all begin together."""
        decoder = self._decoder(self.scoring_for(options), feed_of(faces), self._sources, options, len(faces),
                                batch=True, width=width)
        return batch_steps(decoder)

    def _sources(self, faces: Sequence[Face]) -> Source:
        return self.source_tokens(np.stack([face.source for face in faces])), None

    def fitting_rows(self, options: DecodeConfig | None = None) -> int:
        """Return the batch size that is useful on this device and needs at most half of its free memory."""
        options = options or self.default
        block_size, proposer = self.block_size(options), self.proposers.get(options)
        proposer = proposer or PROPOSERS[options.proposer]()
        model, kind = with_proposer_state(self.scoring_for(options), proposer), decoding_type(proposer, block_size)
        source = torch.zeros(1, math.prod(self.model_config.source_shape), dtype=torch.int64, device=self.device)
        with torch.inference_mode():
            session = kind.open_session(model, source, options, block_size)
        size = sum(tensor.numel() * tensor.element_size() for tensor in session.row_state())
        # A row also needs the scores and the sampling noise of every column, and intermediate results.
        size += 16 * 8 * session.width * self.model_config.vocabulary
        return max(1, min(USEFUL_ROWS[self.device.type], free_bytes(self.device) // (2 * size)))

    def _prepare(
        self, sources: Pictures, crop: str, options: DecodeConfig, keys: Sequence[int] | None,
    ) -> tuple[PhotoSources, list[Face]]:
        """Check the arguments of a call, and return the inputs."""
        self.block_size(options)
        shape = self.model_config.source_shape
        if isinstance(sources, np.ndarray) and sources.ndim == 4 and sources.shape[1:] == shape:
            given = PhotoSources(sources, [], list(range(len(sources))), [])
            self.source_tokens(sources)  # refuses other types
        else:
            given = read_sources(sources, self.face_task, crop)
        return given, list(map(Face, given.images, noise_keys(keys, len(given.images), torch.device("cpu")).tolist()))

    def source_tokens(self, sources: np.ndarray) -> torch.Tensor:
        """Return the tokens [N, S] of uint8 images [N, source, source, 3]; other arrays raise InvalidInputError."""
        return torch.from_numpy(self.face_task.encode(sources)).to(self.device)

    def bits_per_dim(self, sources: np.ndarray, targets: np.ndarray, batch_size: int = 8) -> np.ndarray:
        """Return the bits per token that p1 needs for each target image, float64 [N].

        Sources are uint8 [N, source, source, 3], targets [N, target, target, 3]. A GPU scores `batch_size` together.
        """
        source, target = (torch.from_numpy(encode(images)) for images in (sources, targets))
        values: np.ndarray = bits_per_dim(self.model, source, target, batch_size).numpy()
        return values

    def _upscaled(self, results: list[Result[Face]], seconds: float, given: PhotoSources) -> Upscaled:
        images = self.face_task.decode(torch.stack([one.tokens for one in results]).numpy())
        return Upscaled(images, [one.trace for one in results], seconds, given.images, given.crops, given.inputs,
                        given.notes)
