"""Upscaling of faces: load a checkpoint once, then call it on pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch

from superres.config import DEFAULT_CHECKPOINT, DecodeConfig
from superres.decoding.batching import Feed, Item, RefilledDecoder
from superres.decoding.decode import decode, iterations
from superres.decoding.limits import LimitedModel, Limits
from superres.decoding.loop import Decoded, decoding_type
from superres.decoding.noise import noise_keys
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import with_proposer_state
from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.interfaces import ScoringModel
from superres.nn.likelihood import bits_per_dim
from superres.nn.model import EncoderDecoder
from superres.pipeline.base import Pipeline, at_intervals
from superres.pipeline.display import counted, images_html, images_png
from superres.system.machine import free_bytes
from superres.tasks.faces import INTENSITIES, FaceTask, encode
from superres.tasks.photos import DEFAULT_CROP, Crop, PhotoSources, PictureLike, read_sources

USEFUL_ROWS = {"cpu": 16, "cuda": 512}
"""Batch size beyond which a device hardly gets faster, by kind of device."""


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

    def __repr__(self) -> str:
        """Return the number of images, the statistics and the notes, without pixels."""
        return "\n".join([f"Upscaled({self._summary})", *self.notes])

    @property
    def _summary(self) -> str:
        size = mean_accepted_block_size(self.traces)
        return f"{counted(len(self.images), 'image')}, {self.seconds:.2f} s, {size:.2f} tokens per step"

    def _repr_png_(self) -> bytes | None:
        return images_png(self.images)

    def _repr_html_(self) -> str:
        return images_html(self.images, [self._summary, *self.notes])


class Face(Item, Protocol):
    """An image to upscale."""

    @property
    def source(self) -> np.ndarray:
        """The pixels, uint8 [source, source, 3]."""


FaceT = TypeVar("FaceT", bound=Face)


Pictures: TypeAlias = PictureLike | Iterable[PictureLike]
"""One picture (a path, a Pillow image or uint8 [H, W, 3]), several, or an array uint8 [N, H, W, 3]."""


class Upscaler(Pipeline):
    """Upscales faces with a checkpoint, whose network has the sides `face_task.source` and `face_task.target`."""

    task = FaceTask.name
    bundled = DEFAULT_CHECKPOINT

    @classmethod
    def _task_arguments(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        if model.config.task != cls.task:  # which the constructor refuses by name
            return {}
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

        Returns:
            Images, traces and time.

        Raises:
            InvalidInputError: a picture cannot be read or used, or there is not one valid key per image.
            ConfigError: the checkpoint does not support `options`, or the crop is unknown.
        """
        options = options or self.default_of_width(width)
        given, tokens, keyed = self._prepare(sources, crop, options, keys)
        adaptive = self.block_sizes.get(options, tokens)  # may measure costs, which is no part of the decoding time
        started = time.perf_counter()
        if not len(given.images):
            return Upscaled(np.zeros((0, *self.model_config.target_shape), np.uint8), [], 0.0, given.images)
        decoded = decode(self.scoring_for(options), tokens, options, keys=keyed, width=width, progress=progress,
                         proposer=self.proposers.get(options), adaptive=adaptive)
        return self._upscaled(decoded, time.perf_counter() - started, given)

    def stream(
        self, sources: Pictures, options: DecodeConfig | None = None, *, crop: str = DEFAULT_CROP,
        keys: Sequence[int] | None = None, interval: float = 0.125,
    ) -> Iterator[Upscaled]:
        """Upscale a batch, and yield intermediate results; closing the iterator stops the decoding.

        Args:
            sources: as for a call; at least one picture.
            options: as for a call.
            crop: as for a call.
            keys: as for a call.
            interval: smallest number of seconds of decoding between two results.

        Yields:
            Intermediate results, and last the complete result, which equals that of a call. `seconds` excludes the time
            that the caller takes between two results.

        Raises:
            InvalidInputError: a picture cannot be read or used, there is none, or there is not one valid key per image.
            ConfigError: the checkpoint does not support `options`, or the crop is unknown.
        """
        options = options or self.default
        given, tokens, keyed = self._prepare(sources, crop, options, keys)
        if not len(given.images):
            raise InvalidInputError("there are no images to upscale; give at least one")
        loops = iterations(self.scoring_for(options), tokens, options, keys=keyed,
                           proposer=self.proposers.get(options), adaptive=self.block_sizes.get(options, tokens))
        for loop, seconds in at_intervals(loops, interval):
            yield self._upscaled(loop.result(), seconds, given)

    def refilled(self, feed: Feed[FaceT], options: DecodeConfig | None, rows: int) -> RefilledDecoder[FaceT]:
        """Upscale a stream of images, `rows` at a time; the next image takes the place of a complete one in the batch.

        An image's result does not depend on the other images in the batch.

        Args:
            feed: provides the images.
            options: as for a call.
            rows: largest number of images decoded together.

        Returns:
            A decoder; `face_task.decode` converts its tokens to images.

        Raises:
            ConfigError: the checkpoint does not support `options`.
        """
        options = options or self.default

        def sources(faces: Sequence[FaceT]) -> tuple[torch.Tensor, None]:
            return self.source_tokens(np.stack([face.source for face in faces])), None

        return RefilledDecoder(
            self.scoring_for(options), feed, sources, options, rows, proposer=self.proposers.get(options),
            adaptive=lambda source, padding: self.block_sizes.get(options, source, padding))

    def fitting_rows(self, options: DecodeConfig | None = None) -> int:
        """Return the batch size that is useful on this device and needs at most half of its free memory.

        Args:
            options: as for a call.
        """
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
    ) -> tuple[PhotoSources, torch.Tensor, torch.Tensor]:
        """Check the arguments of a call; return the inputs, and their tokens [N, S] and keys [N] on the device."""
        self.block_size(options)
        shape = self.model_config.source_shape
        if isinstance(sources, np.ndarray) and sources.ndim == 4 and sources.shape[1:] == shape:
            given = PhotoSources(sources, [], list(range(len(sources))), [])  # checked by `source_tokens`
        else:
            given = read_sources(sources, self.face_task, crop)
        return given, self.source_tokens(given.images), noise_keys(keys, len(given.images), self.device)

    def source_tokens(self, sources: np.ndarray) -> torch.Tensor:
        """Return the tokens [N, S] of uint8 images [N, source, source, 3], on the device.

        Raises:
            InvalidInputError: `sources` has another shape or type.
        """
        return torch.from_numpy(self.face_task.encode(sources)).to(self.device)

    def bits_per_dim(self, sources: np.ndarray, targets: np.ndarray, batch_size: int = 8) -> np.ndarray:
        """Return the bits per token that p1 needs for each target image.

        Args:
            sources: uint8 [N, source, source, 3].
            targets: uint8 [N, target, target, 3].
            batch_size: number of images scored together on a GPU.

        Returns:
            float64 [N].
        """
        source, target = (torch.from_numpy(encode(images)) for images in (sources, targets))
        values: np.ndarray = bits_per_dim(self.model, source, target, batch_size).numpy()
        return values

    def _upscaled(self, decoded: Decoded, seconds: float, given: PhotoSources) -> Upscaled:
        images = self.face_task.decode(decoded.tokens.cpu().numpy())
        return Upscaled(images, decoded.traces, seconds, given.images, given.crops, given.inputs, given.notes)
