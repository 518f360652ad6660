"""Upscaling of faces: load a checkpoint once, then call it on pictures."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from superres.checkpoint import Checkpoint, open_checkpoint
from superres.config import (
    DEFAULT_CHECKPOINT,
    DecodeConfig,
    ModelConfig,
    Reliability,
    require,
    require_whole,
)
from superres.decoding.batching import Feed, Result, Source, Stream, feed_of
from superres.decoding.limits import Limits
from superres.decoding.noise import noise_keys
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.interfaces import Int64
from superres.pipeline.cascade import CascadeStream, PictureStream, needed_stages, stage_traces
from superres.pipeline.finish import finished, finishing_stream
from superres.pipeline.judging import JudgingStream, bits_of_targets
from superres.pipeline.pipeline import Pipeline, Steps, at_intervals, batch_steps, check_callable
from superres.pipeline.resolved_options import FINISHES, check_keep, check_samples
from superres.pipeline.upscaled import Upscaled
from superres.system.machine import free_bytes
from superres.tasks.crops import DEFAULT_CROP
from superres.tasks.faces import CHANNELS, INTENSITIES, FaceTask, encode, image_key
from superres.tasks.photos import PhotoSources, PictureLike, read_sources

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from superres.config import DecodeOptions

OF_A_STAGE = ("face_task", "stages", "tokens_per_image", "limits")
"""Properties that are computed once, and are others of a cascade than of its last stage."""

# batch size beyond which a device hardly gets faster, by kind of device
USEFUL_ROWS = {"cpu": 16, "cuda": 1024}


class Face(NamedTuple):
    """An image to upscale: its pixels, uint8 [source, source, 3], and the key of its sampling
    noise."""

    source: np.ndarray
    key: int


Pictures: TypeAlias = PictureLike | Iterable[PictureLike]
"""One picture (a path, a Pillow image or uint8 [H, W, 3]), several, or an array uint8 [N, H, W,
3]."""


class Upscaler(Pipeline):
    """Upscales faces with a checkpoint, from the side `face_task.source` to the side
    `face_task.target`.

    A cascade is the upscaler of its last stage, with the upscaler of the stages before as `first`.
    Decoding settings apply to every stage; a stage with fewer prediction heads proposes as many
    tokens as it can.

    Attributes:
        first: draws the inputs of this upscaler's network, in a cascade.
        last: the last stage alone, in a cascade.
        reliability: which uncertainty a reliable pixel has at most; None unless `superres
            calibrate` has found it.
    """

    task = FaceTask.name
    bundled = DEFAULT_CHECKPOINT
    first: Upscaler | None = None
    last: Upscaler | None = None
    reliability: Reliability | None = None

    @classmethod
    def load(
        cls, name_or_dir: str | Path | Checkpoint | None = None, device: str = "auto",
        engine: str = "auto", size: int | None = None, start: int | None = None,
    ) -> Upscaler:
        """See `Pipeline.load`; of the stages of a cascade, which are checkpoints, only those of
        `at_size(size)` and `from_size(start)` are read."""
        checkpoint = open_checkpoint(cls.bundled if name_or_dir is None else name_or_dir)
        upscaler, *following = (super(Upscaler, cls).load(stage, device, engine)
                                for stage in needed_stages(checkpoint.networks, size, start))
        for stage in following:
            upscaler = stage.after(upscaler, checkpoint.folder.resolve().name)
        reliability = checkpoint.reliability
        if reliability is not None and reliability.revision == upscaler.revision:
            upscaler.reliability = reliability
        upscaler = upscaler if size is None else upscaler.at_size(size)
        return upscaler if start is None else upscaler.from_size(start)

    def __reduce__(self) -> tuple[Any, ...]:
        """See `Pipeline.__reduce__`; a cascade consists of its stages."""
        if self.last is None or self.first is None:
            return super().__reduce__()
        return Upscaler.after, (self.last, self.first, self.name), {
            "default": self.default, "reliability": self.reliability}

    def after(self, first: Upscaler, name: str) -> Upscaler:
        """Return the cascade `name` of `first` and of this upscaler, with which it shares the
        network."""
        if first.face_task.target != self.face_task.source:
            raise CheckpointError(f"the stages of {name} do not fit: {(first.last or first).name} "
                                  f"draws {first.face_task.target_size}, {self.name} enlarges "
                                  f"{self.face_task.source_size}")
        cascade = copy.copy(self)
        for name_of_own in OF_A_STAGE:  # those of a cascade are others
            vars(cascade).pop(name_of_own, None)
        cascade.first, cascade.last, cascade.name, cascade.reliability = first, self, name, None
        cascade.revision = f"{first.revision}+{self.revision}"
        return cascade

    @classmethod
    def _task_arguments(cls, folder: Path, network: ModelConfig) -> dict[str, Any]:
        if network.vocabulary < INTENSITIES:
            raise CheckpointError(f"checkpoint {folder} has {network.vocabulary} intensities, but "
                                  f"pictures have {INTENSITIES}; choose another")
        try:
            FaceTask.of(network)
        except ConfigError as error:
            raise CheckpointError(f"checkpoint {folder}: {error}") from error
        return {}

    @cached_property
    def network_task(self) -> FaceTask:
        """The sizes of the network's input and output."""
        return FaceTask.of(self.model_config)

    @cached_property
    def face_task(self) -> FaceTask:
        """The sizes of the first stage's input and of the last stage's output."""
        own = self.network_task
        if self.first is None:
            return own
        first = self.first.face_task
        return FaceTask(first.source, own.target, (*first.between, own.source))

    def at_size(self, side: int) -> Upscaler:
        """Return the upscaler of the stages up to outputs of `side` pixels; ConfigError if none."""
        require_whole("size", side)
        stages: list[Upscaler] = [self]
        while stages[0].first is not None:
            stages.insert(0, stages[0].first)
        sides = {stage.face_task.target: stage for stage in stages}
        require(side in sides, f"{self.name} draws pictures of {' or '.join(map(str, sides))} "
                f"pixels, not {side}; choose another --size or --checkpoint")
        return sides[side]

    def from_size(self, side: int) -> Upscaler:
        """Return the upscaler of the stages from the one whose inputs have `side` pixels;
        ConfigError if none has."""
        require_whole("start", side)
        self.face_task.from_size(side)  # refuses other sides
        if self.first is None or self.last is None or side == self.face_task.source:
            return self
        if side == self.network_task.source:
            return self.last
        return self.last.after(self.first.from_size(side), self.name)

    @cached_property
    def stages(self) -> int:  # type: ignore[override]
        """Number of stages, 1 unless this is a cascade."""
        return 1 + (0 if self.first is None else self.first.stages)

    def of_last(self, options: DecodeConfig) -> DecodeConfig:
        """Return the settings by which the last stage, this upscaler's own network, decodes."""
        return options.of_stage(self.stages - 1)

    @cached_property
    def tokens_per_image(self) -> int:
        """Number of tokens that all stages decode for an image."""
        return self.model_config.target_length + (0 if self.first is None
                                                  else self.first.tokens_per_image)

    @cached_property
    def limits(self) -> Limits:  # type: ignore[override]
        """Limits on intensities under which a picture reduces to exactly its source, and to that of
        a cascade."""
        first = None if self.first is None else self.first.face_task
        return Limits.of(self.network_task.limits(self.model_config.vocabulary, first))

    def __call__(
        self, sources: Pictures, options: DecodeConfig | None = None, *, crop: str = DEFAULT_CROP,
        samples: int = 1, keep: str | None = None, finish: str = FINISHES[0],
        progress: Callable[[int, int], None] | None = None, **settings: Unpack[DecodeOptions],
    ) -> Upscaled:
        """Upscale a picture or a batch.

        A picture of the size of the model's input is upscaled as it is. A larger one is cropped and
        reduced first.

        Args:
            sources: a path, a Pillow image, uint8 [H, W, 3], several of them, or an array uint8 [N,
                H, W, 3]; RGB, at least as large as the model's input.
            options: block size, acceptance and sampling. If None, the checkpoint's default for the
                kind of device, which `superres tune` saves, or else
                `superres.pipeline.choose.fastest_exact`.
            crop: the squares of a photo that are upscaled: "face" for every face that is found, or
                the centre if there is none; "centre"; or "X,Y,SIZE[,TURN]", pixels from the top
                left corner and degrees. See `superres.tasks.photos.choose_crops`.
            samples: pictures per image; several need a temperature above 0, and have the noise of
                the command's samples of the image (`superres.tasks.faces.image_key`).
            keep: "likeliest" returns only the sample of each image with the smallest
                `Upscaled.bits_per_dim`.
            finish: "mean" averages the exact pictures of the input and of its mirrored copy,
                "sharp" three samples at temperature 0.7; both then sharpen. See
                `superres.pipeline.finish`.
            progress: called repeatedly with (decoded tokens of the slowest image, with `finish` the
                mean; their total).
            **settings: single settings such as `accept="distance", epsilon=2` in place of
                `options`: see `Pipeline.options`.

        Raises:
            InvalidInputError: a picture cannot be read or used.
            ConfigError: the checkpoint does not support the settings, the crop is unknown, or
                samples would be equal.
        """
        options = self.given(options, settings)
        require_whole("samples", samples)
        if finish == FINISHES[0] and samples == 1 and keep is None:
            return self.decode(sources, options, crop=crop, progress=progress)
        check_keep(keep, samples, finish)
        check_samples(options, samples, finish)
        check_callable("progress", progress)
        given, faces = self._prepare(sources, crop, options, None)
        if not faces:
            return self._none(given)
        if finish != FINISHES[0]:
            return finished(self, given, faces, options, finish, progress)
        # several samples of each input, side by side, each with noise of its own
        numbers = [number for _ in faces for number in range(1, samples + 1)]
        faces = [Face(face.source, image_key(face.source, number)) for face in faces
                 for number in range(1, samples + 1)]
        drawn = dataclasses.replace(
            self._batch(given.repeat(samples), faces, options, None, progress), samples=numbers)
        return drawn if keep is None else drawn.by_likelihood(samples).of_rows(
            range(0, len(numbers), samples))

    def decode(
        self, sources: Pictures, options: DecodeConfig | None = None, *, crop: str = DEFAULT_CROP,
        keys: Sequence[int] | None = None, width: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Upscaled:
        """Upscale pictures as a call does, with noise and steps of the caller's.

        `keys` are those of the images' sampling noise, in [0, 2**63); the image's number in the
        result if None. `width` is the step width, at least the block size: see
        `superres.decoding.batching.Stream`. Other arguments and errors are as for a call; raises
        InvalidInputError, too, if there is not one valid key per image.
        """
        options = self.default_of_width(width) if options is None else options
        check_callable("progress", progress)
        given, faces = self._prepare(sources, crop, options, keys)
        return (self._batch(given, faces, options, width, progress) if faces
                else self._none(given))

    def _none(self, given: PhotoSources) -> Upscaled:
        """Return the result of no pictures."""
        return Upscaled(np.zeros((0, *self.model_config.target_shape), np.uint8), [], 0.0,
                        given.images)

    def _batch(
        self, given: PhotoSources, faces: list[Face], options: DecodeConfig, width: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> Upscaled:
        """Upscale a batch by all stages; arguments as for a call."""
        total, started = self.tokens_per_image, time.perf_counter()
        for _, results in self._steps(faces, options, width):
            if progress is not None:  # the results of a step take longer than the step
                progress(min(sum(trace.tokens for trace in stage_traces(one))
                             for one in results()), total)
        return self.upscaled(results(), given, options, time.perf_counter() - started)

    def options_of_first(self, options: DecodeConfig) -> DecodeConfig:
        """Return the settings of the first stage: its own default for the default, or `options`
        within its heads."""
        first = self.first
        if first is None or options == self.default:
            return options if first is None else first.default
        heads = first.model_config.prediction_heads
        if options.block_size is None or options.block_size <= heads:
            return options
        size = heads
        return dataclasses.replace(options, block_size=size, min_block=min(options.min_block, size))

    def stream(
        self, sources: Pictures, options: DecodeConfig | None = None, *, crop: str = DEFAULT_CROP,
        interval: float = 0.125, **settings: Unpack[DecodeOptions],
    ) -> Iterator[Upscaled]:
        """Upscale a batch, and yield intermediate results; closing the iterator stops the decoding.

        Arguments and errors are as for a call; there must be a picture. There are at least
        `interval` seconds of decoding between two results.

        Yields:
            Intermediate results, and last the complete result, which equals that of a call.
            `seconds` excludes the time that the caller takes between two results.
        """
        return self.decode_stream(sources, self.given(options, settings), crop=crop,
                                  interval=interval)

    def decode_stream(
        self, sources: Pictures, options: DecodeConfig, *, crop: str = DEFAULT_CROP,
        keys: Sequence[int] | None = None, interval: float = 0.125,
    ) -> Iterator[Upscaled]:
        """Yield what `stream` does, with the `keys` of `decode`."""
        given, faces = self._prepare(sources, crop, options, keys)
        if not faces:
            raise InvalidInputError("there are no images to upscale; give at least one")
        for results, seconds, _ in at_intervals(self._steps(faces, options), interval):
            yield self.upscaled(results, given, options, seconds)

    def refilled(
        self, feed: Feed[Any], options: DecodeConfig | None, rows: int, samples: int = 1,
        judged: bool = False, finish: str = FINISHES[0],
    ) -> PictureStream:
        """Upscale a stream of images, `rows` at a time; the next image takes the place of a
        complete one in the batch.

        An image's result does not depend on the other images in the batch. `feed` provides objects
        with the attributes of `Face`, and `face_task.decode` converts the decoder's tokens to
        images. The stages of a cascade take turns, and it also takes images of the size of a later
        stage's input. Of several `samples` per image, the likeliest one is kept; with them, or if
        `judged`, the results are of type `superres.pipeline.judging.JudgedResult`. `options` and
        `finish` are as for a call; raises ConfigError if the checkpoint does not support them.
        """
        options = self.default if options is None else options
        if finish != FINISHES[0]:
            return finishing_stream(self, feed, options, rows, finish)
        if samples > 1 or judged:
            return JudgingStream(self, feed, lambda drawn: self.refilled(drawn, options, rows),
                                 samples)
        return self.staged(feed, options, rows)

    def staged(
        self, feed: Feed[Any], options: DecodeConfig, rows: int,
        small: Callable[[Feed[Any]], PictureStream] | None = None, *, batch: bool = False,
        width: int | None = None,
    ) -> Stream[Any] | CascadeStream:
        """Return the stream of `refilled`: the one loop over the stages.

        `small` makes the stream of the inputs of a cascade's last stage, if given. `batch` and
        `width` are those of every stage's `superres.decoding.batching.Stream`.
        """
        own, first = self.of_last(options), self.first

        def stream(sources: Feed[Any]) -> Stream[Any]:
            return self._stream(self.scoring, sources, self._sources, own, rows,
                                batch=batch, width=width)

        if first is None:
            return stream(feed)
        drawn = small or (lambda inputs: first.staged(inputs, self.options_of_first(options), rows,
                                                      batch=batch, width=width))
        return CascadeStream(feed, drawn, stream, first.face_task, rows, self.stages - 1)

    def _steps(self, faces: list[Face], options: DecodeConfig,
               width: int | None = None) -> Steps[list[Result[Face]]]:
        """Upscale a batch by all stages: a stream that ends, whose images all begin together."""
        return batch_steps(self.staged(feed_of(faces), options, len(faces), batch=True,
                                       width=width))

    def _sources(self, faces: Sequence[Face]) -> Source:
        return self.source_tokens(np.stack([face.source for face in faces])), None

    def fitting_rows(self, options: DecodeConfig | None = None) -> int:
        """Return the batch size that is useful on this device and needs at most half of its free
        memory."""
        options = self.default if options is None else options
        size = self.row_bytes(self.of_last(options))
        rows = max(1, min(USEFUL_ROWS[self.device], free_bytes(self.device) // (2 * size)))
        return rows if self.first is None else min(
            rows, self.first.fitting_rows(self.options_of_first(options))
        )

    def _prepare(
        self, sources: Pictures, crop: str, options: DecodeConfig, keys: Sequence[int] | None,
    ) -> tuple[PhotoSources, list[Face]]:
        """Check the arguments of a call, and return the inputs."""
        self.block_size(options)
        shapes = [(side, side, CHANNELS) for side in self.face_task.starts]
        if isinstance(sources, np.ndarray) and sources.ndim == 4 and sources.shape[1:] in shapes:
            given = PhotoSources(sources, [], list(range(len(sources))), [])
            encode(sources)  # refuses other types
        else:
            given = read_sources(sources, self.face_task, crop)
        return given, list(map(Face, given.images, noise_keys(keys, len(given.images)).tolist()))

    def source_tokens(self, sources: np.ndarray) -> Int64:
        """Return the tokens [N, S] of uint8 images [N, source, source, 3]; other arrays raise
        InvalidInputError."""
        return self.network_task.encode(sources)

    def bits_per_dim(self, sources: np.ndarray, targets: np.ndarray,
                     batch_size: int = 8) -> np.ndarray:
        """Return the bits per token of the target, its code length under p1, for each target image,
        float64 [N]: see `superres.pipeline.judging.bits_of_targets`."""
        return bits_of_targets(self, sources, targets, batch_size)

    def record(self, options: DecodeConfig, finish: str = FINISHES[0]) -> dict[str, Any]:
        """Return how pictures are drawn with `options` and finished, as their files hold it."""
        how = {"checkpoint": f"{self.name}@{self.revision}", "config": options.to_dict()}
        return how if finish == FINISHES[0] else {**how, "finish": finish}

    def upscaled(
        self, results: Sequence[Result[Any]], given: PhotoSources,
        options: DecodeConfig | None = None, seconds: float | None = None,
    ) -> Upscaled:
        """Return the pictures of a batch, possibly of an unfinished one, with those of the stages
        before.

        Without `options`, they are those that a finished picture is made of. `seconds` are the sum
        of the pictures' own if None.
        """
        before = [one.earlier for one in results if one.earlier is not None]
        earlier = None
        if before and self.first is not None:
            earlier = self.first.upscaled(
                before, given, None if options is None else self.options_of_first(options))
        images = self.face_task.decode(np.stack([one.tokens for one in results]))
        made = Upscaled(
            images, [one.trace for one in results],
            sum(one.seconds for one in results) if seconds is None else seconds,
            np.stack([one.item.source for one in results]), given.crops, given.inputs,
            earlier=earlier)
        return made if options is None else dataclasses.replace(
            made, notes=given.notes, record=self.record(options), scorer=self)
