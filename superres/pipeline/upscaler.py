"""The join of network, decoder and task: load a checkpoint once, then call it on inputs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch

from superres.checkpoint import find_checkpoint, load_checkpoint, read_decode_default, weights_digest
from superres.config import DEFAULT_CHECKPOINT, DecodeConfig
from superres.decoding.batching import RefilledDecoder, Waiting
from superres.decoding.decode import check_options, decode, iterations
from superres.decoding.loop import Decoded, decoding_type
from superres.decoding.noise import noise_keys
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import accompany
from superres.decoding.trace import RowTrace
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.nn.engines import step_model
from superres.nn.likelihood import bits_per_dim
from superres.nn.model import EncoderDecoder
from superres.pipeline.block_sizes import BlockSizes
from superres.pipeline.resources import Proposers
from superres.system.machine import free_bytes
from superres.tasks import faces

PipelineT = TypeVar("PipelineT", bound="Pipeline")
LoopT = TypeVar("LoopT", bound="Loop")
USEFUL_ROWS = {"cpu": 16, "cuda": 512}
"""Images decoded together beyond which a device hardly gets faster."""


@dataclass(frozen=True)
class Upscaled:
    """Result of upscaling a batch, or what there is of it so far.

    Attributes:
        images: uint8 [N, 32, 32, 3], RGB; 0 where there is no token yet.
        traces: one a image: what was accepted when.
        seconds: wall clock of the whole batch.
    """

    images: np.ndarray
    traces: list[RowTrace]
    seconds: float

    @property
    def filled(self) -> np.ndarray:
        """Which tokens are decoded: bool [N, 32, 32, 3], all of them in a result."""
        tokens = np.array([trace.tokens for trace in self.traces], np.int64)
        size = int(np.prod(self.images.shape[1:]))
        filled: np.ndarray = (np.arange(size) < tokens[:, None]).reshape(self.images.shape)
        return filled

    @property
    def is_complete(self) -> bool:
        """Whether every image has all its tokens."""
        return bool(self.filled.all())


class Keyed(Protocol):
    """An image that waits to be upscaled."""

    @property
    def source(self) -> np.ndarray:
        """Its pixels, uint8 [8, 8, 3]."""

    @property
    def key(self) -> int:
        """Key of its sampling noise, in [0, 2**63)."""


KeyedT = TypeVar("KeyedT", bound=Keyed)


class ImageFeed(Protocol[KeyedT]):
    """Hands out images to upscale, as `superres.decoding.batching.Feed` hands out sequences."""

    def take(self, most: int, wait: bool) -> list[KeyedT] | None:
        """See `superres.decoding.batching.Feed.take`."""


@dataclass(frozen=True, eq=False)
class Drawn(Generic[KeyedT]):
    """An image of a stream that is complete.

    Attributes:
        item: what the feed handed out.
        image: uint8 [32, 32, 3], RGB.
        trace: what was accepted when.
        seconds: its share of the decoding time.
    """

    item: KeyedT
    image: np.ndarray
    trace: RowTrace
    seconds: float


class Refilled(Generic[KeyedT]):
    """The upscaling of a stream of images, see `Upscaler.refilled`."""

    def __init__(self, upscaler: Upscaler, feed: ImageFeed[KeyedT], options: DecodeConfig, rows: int) -> None:
        """Prepare; nothing is decoded yet."""
        self._feed, self._upscaler = feed, upscaler
        self._decoder = RefilledDecoder(
            upscaler.scoring, self, options, rows, lambda sources: upscaler.block_sizes.get(options, sources),
            upscaler.proposers.get(options))

    @property
    def under_way(self) -> list[KeyedT]:
        """The images being decoded; lost when decoding fails."""
        return [waiting.tag for waiting in self._decoder.under_way]

    @property
    def images_under_way(self) -> float:
        """How much of these is decoded, in images."""
        return self._decoder.tokens_under_way / self._upscaler.model_config.target_length

    def take(self, most: int, wait: bool) -> list[Waiting] | None:
        """See `superres.decoding.batching.Feed.take`."""
        items = self._feed.take(most, wait)
        if not items:
            return None if items is None else []
        sources, keys = np.stack([item.source for item in items]), [item.key for item in items]
        tokens, _ = self._upscaler._prepare(sources, DecodeConfig(block_size=1), keys)
        return [Waiting(source, item.key, item) for source, item in zip(tokens, items, strict=True)]

    def __iter__(self) -> Iterator[list[Drawn[KeyedT]]]:
        """Decode, and yield what is complete now and then."""
        for finished in self._decoder.run():
            yield [Drawn(one.tag, faces.decode(one.tokens[None].numpy())[0], one.trace, one.seconds)
                   for one in finished]


def pick_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda".

    Raises:
        ConfigError: the device is unknown or absent.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda asked for, but torch finds no GPU; choose cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


class Loop(Protocol):
    """A decoding or a search that goes on step by step."""

    def done(self) -> bool:
        """Tell whether every row is complete."""


def paced(loops: Iterator[LoopT], interval: float) -> Iterator[tuple[LoopT, float]]:
    """Drive a loop that is handed out again and again, and pass it on now and then.

    Args:
        loops: hands out one and the same loop, first before its first step and last when it is done.
        interval: seconds of its work between two looks, at the least.

    Yields:
        The loop and the seconds that it has worked, last when it is done; what is done with it in between does not
        count.
    """
    started = time.perf_counter()
    due = interval
    for number, loop in enumerate(loops):
        seconds = time.perf_counter() - started
        # The last look, too, comes before the loop is asked for more, which gives it back.
        if loop.done() or (number and seconds >= due):
            yield loop, seconds
            started = time.perf_counter() - seconds
            due = seconds + interval


class Pipeline:
    """A checkpoint on a device, ready to decode: what all tasks share.

    Attributes:
        task: name of the task that it serves.
        bundled: the bundled checkpoint for that task.
        end_token: token that ends a target early, or None where targets have a fixed length.
        name: the checkpoint's name.
        revision: first digits of its weights' SHA-256.
        model_config: settings of the network.
        default: decoding settings of a call without options.
        block_sizes: what chooses block sizes where they are adaptive.
        proposers: where proposals come from, by decoding settings.
        scoring: the network as the decoder drives it.
        engine: how its step is computed, a name in `superres.config.ENGINES` other than "auto".
    """

    task: ClassVar[str]
    bundled: ClassVar[str]
    end_token: ClassVar[int | None] = None

    def __init__(
        self, model: EncoderDecoder, name: str, revision: str = "", device: str = "auto",
        default: DecodeConfig | None = None, engine: str = "auto",
    ) -> None:
        """Wrap a network.

        Args:
            model: the network.
            name: what to call it.
            revision: of its weights.
            device: "auto", "cpu" or "cuda".
            default: decoding settings of a call without options; exact blocks of all heads if None.
            engine: how the decoding step is computed, a name in `superres.config.ENGINES`.

        Raises:
            ConfigError: the device is absent, or the engine cannot serve there.
            CheckpointError: the network serves another task.
        """
        if model.config.task != self.task:
            raise CheckpointError(f"checkpoint {name} serves the task {model.config.task!r}, not {self.task}")
        self.name, self.revision, self.model_config = name, revision, model.config
        self.device, self.default = pick_device(device), default or DecodeConfig()
        self.model = model.to(self.device).eval()
        self.scoring = step_model(self.model, self.end_token, engine)
        self.engine: str = self.scoring.engine
        self.block_sizes = BlockSizes(self.scoring, revision, self.engine, self.device)
        self.proposers = Proposers(model.config, self.end_token, self.device, engine)

    @classmethod
    def load(
        cls: type[PipelineT], name_or_dir: str | Path | None = None, device: str = "auto", engine: str = "auto",
    ) -> PipelineT:
        """Load a checkpoint.

        Args:
            name_or_dir: a bundled checkpoint's name, a folder, or a Hugging Face hub id; `bundled` if None.
            device: "auto", "cpu" or "cuda".
            engine: see `Pipeline`.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or for another task.
            ConfigError: the device is absent, or the engine cannot serve there.
        """
        folder = find_checkpoint(cls.bundled if name_or_dir is None else name_or_dir)
        default = read_decode_default(folder, pick_device(device).type)
        model, name = load_checkpoint(folder), folder.resolve().name
        made = cls(model, name, weights_digest(folder), device, default, engine, **cls._of_task(folder, model))
        made.proposers.folder = folder
        return made

    @classmethod
    def _of_task(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        """Read what else of the checkpoint's folder the task needs, as arguments of the constructor."""
        return {}

    def block_size(self, options: DecodeConfig) -> int:
        """Return the block size that `options` ask for.

        Raises:
            ConfigError: options do not fit the checkpoint.
        """
        return check_options(options, self.model_config.prediction_heads, self.model_config.target_length)


class Upscaler(Pipeline):
    """Upscales 8x8 faces to 32x32 with a checkpoint."""

    task = faces.name
    bundled = DEFAULT_CHECKPOINT

    @classmethod
    def _of_task(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        if model.config.vocabulary < faces.INTENSITIES:
            raise CheckpointError(f"checkpoint {folder} knows {model.config.vocabulary} intensities, pictures have "
                                  f"{faces.INTENSITIES}; choose another")
        return {}

    def __call__(
        self, sources: np.ndarray, options: DecodeConfig | None = None, *, keys: Sequence[int] | None = None,
        width: int | None = None, progress: Callable[[int, int], None] | None = None,
    ) -> Upscaled:
        """Upscale a batch.

        Args:
            sources: uint8 [N, 8, 8, 3], RGB.
            options: block size, acceptance and sampling; if None the checkpoint's default for the kind of device, as
                `superres tune` saves it, or exact greedy blocks of all heads.
            keys: a number an image in [0, 2**63) that keys its sampling noise; its place in the batch if None.
            width: step width, at least the block size; see `superres.decoding.decode.decode`.
            progress: called now and then with (tokens of the slowest image, tokens of an image).

        Returns:
            Images, traces and time.

        Raises:
            InvalidInputError: `sources` has another shape or type; there is not one key in range per image.
            ConfigError: options do not fit the checkpoint.
        """
        options = options or self.default
        tokens, keyed = self._prepare(sources, options, keys)
        started = time.perf_counter()
        if not len(sources):
            return Upscaled(np.zeros((0, *self.model_config.target_shape), np.uint8), [], 0.0)
        decoded = decode(self.scoring, tokens, options, keys=keyed, width=width, progress=progress,
                         proposer=self.proposers.get(options), adaptive=self.block_sizes.get(options, tokens))
        return _upscaled(decoded, time.perf_counter() - started)

    def stream(
        self, sources: np.ndarray, options: DecodeConfig | None = None, *, keys: Sequence[int] | None = None,
        interval: float = 0.125,
    ) -> Iterator[Upscaled]:
        """Upscale a batch and show how far it is, now and then; the decoding stops when nobody asks for more.

        Args:
            sources: uint8 [N, 8, 8, 3], RGB, at least one.
            options: as for a call.
            keys: as for a call.
            interval: seconds of decoding between two looks, at the least.

        Yields:
            What there is so far, and last the complete result, which equals that of a call. `seconds` leaves out the
            time between two requests.

        Raises:
            InvalidInputError: `sources` has another shape or type, or is empty; there is not one key in range per
                image.
            ConfigError: options do not fit the checkpoint.
        """
        options = options or self.default
        tokens, keyed = self._prepare(sources, options, keys)
        if not len(sources):
            raise InvalidInputError("there is no source to decode; give at least one")
        loops = iterations(self.scoring, tokens, options, keys=keyed, proposer=self.proposers.get(options),
                           adaptive=self.block_sizes.get(options, tokens))
        for loop, seconds in paced(loops, interval):
            yield _upscaled(loop.result(), seconds)

    def refilled(self, feed: ImageFeed[KeyedT], options: DecodeConfig | None, rows: int) -> Refilled[KeyedT]:
        """Upscale a stream of images, `rows` at a time: when one is complete, the next takes its place in the batch.

        An image's result does not depend on which others are decoded beside it.

        Args:
            feed: hands out the images.
            options: as for a call.
            rows: images decoded together, at the most.

        Raises:
            ConfigError: options do not fit the checkpoint.
        """
        options = options or self.default
        self.block_size(options)
        return Refilled(self, feed, options, rows)

    def fitting_rows(self, options: DecodeConfig | None = None) -> int:
        """Return how many images to decode together: what is useful on this device and fits into half its memory.

        Args:
            options: as for a call.
        """
        options = options or self.default
        block_size, proposer = self.block_size(options), self.proposers.get(options)
        proposer = proposer or PROPOSERS[options.proposer]()
        model, kind = accompany(self.scoring, proposer), decoding_type(proposer, block_size)
        source = torch.zeros(1, math.prod(self.model_config.source_shape), dtype=torch.int64, device=self.device)
        with torch.inference_mode():
            session = kind.open_session(model, source, options, block_size)
        size = sum(tensor.numel() * tensor.element_size() for tensor in session.row_state())
        # Besides its state, a row has scores and sampling noise of every column, and what is computed from them.
        size += 16 * 8 * session.width * self.model_config.vocabulary
        return max(1, min(USEFUL_ROWS[self.device.type], free_bytes(self.device) // (2 * size)))

    def _prepare(
        self, sources: np.ndarray, options: DecodeConfig, keys: Sequence[int] | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Check the arguments of a call, and return source tokens [N, 192] and keys [N] on the device."""
        self.block_size(options)
        expected = self.model_config.source_shape
        if sources.dtype != np.uint8 or sources.shape[1:] != expected:
            raise InvalidInputError(f"sources are {sources.dtype} {sources.shape}; give uint8 (N, *{expected})")
        tokens = torch.from_numpy(faces.encode(sources)).to(self.device)
        return tokens, noise_keys(keys, len(sources), self.device)

    def bits_per_dim(self, sources: np.ndarray, targets: np.ndarray, batch_size: int = 8) -> np.ndarray:
        """Return the bits a token that p1 needs for each target image.

        Args:
            sources: uint8 [N, 8, 8, 3].
            targets: uint8 [N, 32, 32, 3].
            batch_size: images at a time.

        Returns:
            float64 [N].
        """
        source, target = (torch.from_numpy(faces.encode(images)) for images in (sources, targets))
        with torch.inference_mode():
            values: np.ndarray = bits_per_dim(self.model, source, target, batch_size).numpy()
        return values


def _upscaled(decoded: Decoded, seconds: float) -> Upscaled:
    return Upscaled(faces.decode(decoded.tokens.cpu().numpy()), decoded.traces, seconds)
