"""The join of network, decoder and task: load a checkpoint once, then call it on inputs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch

from superres.checkpoint import fetch_from_hub, load_checkpoint, read_config, read_decode_default, weights_digest
from superres.config import DEFAULT_CHECKPOINT, DEFAULT_TRANSLATOR, BeamConfig, DecodeConfig, require
from superres.decoding.acceptance import UNORDERED
from superres.decoding.beam import beam_search
from superres.decoding.blockwise import Decoded, check_options, decode, iterations
from superres.decoding.trace import RowTrace
from superres.errors import CheckpointError, ConfigError, InvalidInputError
from superres.nn.model import EncoderDecoder
from superres.nn.native import step_model
from superres.nn.scores import bits_per_dim
from superres.tasks import faces, translation

PipelineT = TypeVar("PipelineT", bound="Pipeline")


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


@dataclass(frozen=True)
class Translated:
    """Result of translating lines.

    Attributes:
        texts: a translation a line, "" for an empty line.
        traces: of each line's segments, what was accepted when: one where the line fits the model, none where it is
            empty, or was translated by beam search.
        cut: whether a line's translation was ended by the model's largest length rather than by itself.
        tokens: generated tokens of each line, end tokens counted.
        model_calls: of the whole, each for a batch.
        seconds: wall clock of the whole.
    """

    texts: list[str]
    traces: list[list[RowTrace]]
    cut: list[bool]
    tokens: list[int]
    model_calls: int
    seconds: float


def bundled_folder() -> Path:
    """Return the folder of the bundled checkpoints: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent
    installed = package / "_checkpoints"
    return installed if installed.is_dir() else package.parent / "checkpoints"


def bundled_checkpoints() -> list[str]:
    """Return the names of the bundled checkpoints."""
    return sorted(path.parent.name for path in bundled_folder().glob("*/config.json"))


def find_checkpoint(name_or_folder: str | Path) -> Path:
    """Return the folder of a checkpoint.

    Args:
        name_or_folder: a bundled checkpoint's name, a folder, or a Hugging Face hub id ("owner/name").

    Raises:
        CheckpointError: nothing is found.
    """
    text = str(name_or_folder)
    if text and Path(name_or_folder).is_dir():
        return Path(name_or_folder)
    if text in bundled_checkpoints():
        return bundled_folder() / text
    if text.count("/") == 1 and not text.startswith((".", "/")) and not text.endswith("/"):
        return fetch_from_hub(text)
    known = ", ".join(bundled_checkpoints()) or "none"
    raise CheckpointError(f"no checkpoint {text!r}; give a folder, a hub id owner/name, or a bundled name ({known})")


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
        self._scoring = step_model(self.model, self.end_token, engine)

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
        return cls(model, name, weights_digest(folder), device, default, engine, **cls._of_task(folder, model))

    @classmethod
    def _of_task(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        """Read what else of the checkpoint's folder the task needs, as arguments of the constructor."""
        return {}


class Upscaler(Pipeline):
    """Upscales 8x8 faces to 32x32 with a checkpoint."""

    task = faces.name
    bundled = DEFAULT_CHECKPOINT

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
            width: step width, at least the block size; see `superres.decoding.blockwise.decode`.
            progress: called now and then with (tokens of the slowest image, tokens of an image).

        Returns:
            Images, traces and time.

        Raises:
            InvalidInputError: `sources` has another shape or type.
            ConfigError: options do not fit the checkpoint.
        """
        options = options or self.default
        tokens, keyed = self._prepare(sources, options, keys)
        started = time.perf_counter()
        if not len(sources):
            return Upscaled(np.zeros((0, *self.model_config.target_shape), np.uint8), [], 0.0)
        decoded = decode(self._scoring, tokens, options, keys=keyed, width=width, progress=progress)
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
            InvalidInputError: `sources` has another shape or type, or is empty.
            ConfigError: options do not fit the checkpoint.
        """
        options = options or self.default
        tokens, keyed = self._prepare(sources, options, keys)
        if not len(sources):
            raise InvalidInputError("there is no source to decode; give at least one")
        started = time.perf_counter()
        due = interval
        for number, loop in enumerate(iterations(self._scoring, tokens, options, keys=keyed)):
            seconds = time.perf_counter() - started
            if number and seconds >= due and not loop.done():
                shown = _upscaled(loop.result(), seconds)
                suspended = time.perf_counter()
                yield shown
                started += time.perf_counter() - suspended
                due = time.perf_counter() - started + interval
        yield _upscaled(loop.result(), time.perf_counter() - started)

    def _prepare(
        self, sources: np.ndarray, options: DecodeConfig, keys: Sequence[int] | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Check the arguments of a call, and return source tokens [N, 192] and keys [N] on the device."""
        check_options(options, self.model_config.prediction_heads)
        expected = self.model_config.source_shape
        if sources.dtype != np.uint8 or sources.shape[1:] != expected:
            raise InvalidInputError(f"sources are {sources.dtype} {sources.shape}; give uint8 (N, *{expected})")
        tokens = torch.from_numpy(faces.encode(sources)).to(self.device)
        return tokens, None if keys is None else torch.tensor(list(keys), dtype=torch.int64, device=self.device)

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


class Translator(Pipeline):
    """Translates lines of text with a checkpoint.

    Attributes:
        codec: text to tokens and back.
        languages: of source and target, such as ("en", "de").
    """

    task = translation.name
    bundled = DEFAULT_TRANSLATOR
    end_token = translation.END

    def __init__(
        self, model: EncoderDecoder, name: str, revision: str = "", device: str = "auto",
        default: DecodeConfig | None = None, engine: str = "auto", *, codec: translation.Codec,
    ) -> None:
        """Wrap a network for translation and its `codec`; see `Pipeline`.

        Raises:
            ConfigError: the device is absent, or the engine cannot serve there.
            CheckpointError: the network serves another task, or its vocabulary is not the codec's.
        """
        super().__init__(model, name, revision, device, default, engine)
        if codec.size != model.config.vocabulary:
            raise CheckpointError(f"checkpoint {name} has {model.config.vocabulary} tokens, its "
                                  f"{translation.VOCABULARY_FILE} {codec.size}; they do not belong together")
        source, target = model.config.languages
        self.codec, self.languages = codec, (source, target)

    @classmethod
    def _of_task(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        if model.config.task != cls.task:
            return {"codec": None}  # the constructor refuses the network
        return {"codec": translation.Codec.read(folder, model.config.source_length)}

    def __call__(
        self, lines: Sequence[str], options: DecodeConfig | BeamConfig | None = None, *, batch_size: int = 64,
        width: int | None = None, progress: Callable[[int, int], None] | None = None,
    ) -> Translated:
        """Translate lines, in batches of like length.

        An empty line stays empty. A line that is longer than the model reads is cut between sentences, or else
        between words, and its parts are translated separately.

        Args:
            lines: text, a line each; at a temperature, the noise is keyed by a line's number.
            options: blockwise decoding, or beam search; if None as for `Upscaler`.
            batch_size: segments decoded together.
            width: step width of blockwise decoding; see `superres.decoding.blockwise.decode`.
            progress: called after every batch with (segments done, segments).

        Raises:
            InvalidInputError: a word is too long for the model.
            ConfigError: options do not fit the checkpoint or text.
        """
        options = options or self.default
        self.check(options)
        require(batch_size >= 1, f"batch-size must be at least 1, not {batch_size}")
        started = time.perf_counter()
        segments = [(number, text) for number, line in enumerate(lines) for text in self._segments(number, line)]
        rows = self.codec.split([text for _, text in segments])
        done: dict[int, _Segment] = {}
        calls = 0
        order = sorted(range(len(rows)), key=lambda place: (len(rows[place]), place))
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            made, steps = self._decode([rows[p] for p in batch], [segments[p][0] for p in batch], options, width)
            done.update(zip(batch, made, strict=True))
            calls += steps
            if progress is not None:
                progress(len(done), len(rows))
        by_line: list[list[_Segment]] = [[] for _ in lines]
        for place, (number, _) in enumerate(segments):
            by_line[number].append(done[place])
        return Translated(
            [" ".join(part.text for part in parts) for parts in by_line],
            [[part.trace for part in parts if part.trace is not None] for parts in by_line],
            [any(part.cut for part in parts) for parts in by_line],
            [sum(part.tokens for part in parts) for parts in by_line], calls, time.perf_counter() - started,
        )

    def check(self, options: DecodeConfig | BeamConfig) -> None:
        """Raise ConfigError where `options` do not fit the checkpoint, or measure tokens as if they were grey levels.

        Raises:
            ConfigError: see above.
        """
        if isinstance(options, BeamConfig):
            return
        check_options(options, self.model_config.prediction_heads)
        require(options.accept in UNORDERED, f"{options.accept} accepts by grey levels, which text has not; "
                f"choose one of {', '.join(UNORDERED)}")
        require(len(options.temperatures) == 1 and options.noise == "gumbel",
                "text has no colours and no order of its tokens; give one temperature, and noise gumbel")

    def _segments(self, number: int, line: str) -> list[str]:
        try:
            return self.codec.segments(line)
        except InvalidInputError as error:
            raise InvalidInputError(f"line {number + 1}: {error}") from error

    def _decode(
        self, rows: list[list[int]], keys: list[int], options: DecodeConfig | BeamConfig, width: int | None,
    ) -> tuple[list[_Segment], int]:
        """Decode one batch of source tokens; return its segments and the number of model calls."""
        source = torch.from_numpy(translation.pad(rows)).to(self.device)
        padding = source == translation.PADDING
        hidden = padding if bool(padding.any()) else None
        traces: Sequence[RowTrace | None] = [None] * len(rows)
        if isinstance(options, BeamConfig):
            beams = beam_search(self._scoring, source, options, padding=hidden)
            tokens, lengths, calls = beams.tokens, beams.lengths, beams.model_calls
        else:
            keyed = torch.tensor(keys, dtype=torch.int64, device=self.device)
            decoded = decode(self._scoring, source, options, padding=hidden, keys=keyed, width=width)
            tokens, lengths, traces = decoded.tokens, decoded.lengths, decoded.traces
            calls = max(trace.model_calls for trace in decoded.traces)
        texts, cut = self.codec.decode(tokens.cpu().numpy()), (tokens != translation.END).all(1).tolist()
        return [_Segment(*parts) for parts in zip(texts, traces, cut, lengths.tolist(), strict=True)], calls


@dataclass(frozen=True)
class _Segment:
    """What became of a line, or of a part of one that is too long."""

    text: str
    trace: RowTrace | None
    cut: bool
    tokens: int


PIPELINES: dict[str, type[Pipeline]] = {pipeline.task: pipeline for pipeline in (Upscaler, Translator)}
"""Pipelines by their task."""


def checkpoint_task(folder: Path) -> str:
    """Return the task of the checkpoint in `folder`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or its task is unknown.
    """
    task = read_config(folder)["model"].get("task", faces.name)
    if task not in PIPELINES:
        raise CheckpointError(f"{folder} serves the task {task!r}, which this release does not know "
                              f"({', '.join(PIPELINES)}); update superres")
    return str(task)


def load(name_or_dir: str | Path = DEFAULT_CHECKPOINT, device: str = "auto") -> Any:  # noqa: ANN401 -- by the task
    """Load a checkpoint for its task: `load("celeba-8to32")`, a folder, or a Hugging Face hub id ("owner/name").

    Returns:
        An `Upscaler` or a `Translator`.

    Raises:
        CheckpointError: the checkpoint is missing, damaged, or its task is unknown.
        ConfigError: the device is absent.
    """
    folder = find_checkpoint(name_or_dir)
    return PIPELINES[checkpoint_task(folder)].load(folder, device)
