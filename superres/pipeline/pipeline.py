"""The base class of the pipelines of all tasks."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar

import torch

from superres.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    read_confidence,
    read_decode_default,
    weights_digest,
)
from superres.config import (
    DEVICES,
    CostTable,
    DecodeConfig,
    ModelConfig,
    is_number,
    require,
    require_choice,
)
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import Feed, ItemT, Result, Source, Stream
from superres.decoding.block_size import check_options
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.loop import decoding_type
from superres.errors import CheckpointError, ConfigError, shown
from superres.interfaces import ScoringModel
from superres.nn.model import EncoderDecoder
from superres.pipeline.block_sizes import BlockSizes
from superres.pipeline.cascade import CascadeStream
from superres.pipeline.engines import step_model
from superres.pipeline.fastest_device import fastest_device
from superres.pipeline.recorded_costs import read_costs, use_costs
from superres.pipeline.resolved_options import SETTINGS, as_setting, combined
from superres.pipeline.resources import Proposers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from superres.config import DecodeOptions

PipelineT = TypeVar("PipelineT", bound="Pipeline")
T = TypeVar("T")

Steps: TypeAlias = Iterator[tuple[bool, Callable[[], T]]]
"""The progress of a decode: whether it is complete, and a function that returns its result so
far."""


def pick_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda". Raises ConfigError if the device is unknown or
    not available."""
    require_choice("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda is not available: torch finds no GPU; choose cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def fastest_exact(adaptive: bool, network: ModelConfig, heads: int | None = None) -> DecodeConfig:
    """Return the settings of a checkpoint without a saved default: exact acceptance, in the fastest
    block sizes.

    Where every further proposal costs time (`StepModel.adaptive`), the block size is adaptive.
    Elsewhere all heads propose, or as many `heads` as the engine has room for. Consistent pictures
    and the nucleus of samples are as the network's settings ask.
    """
    most = network.prediction_heads
    return DecodeConfig(heads if heads and heads < most else None, adaptive=adaptive and most > 1,
                        consistent=network.consistent, nucleus=network.nucleus)


def batch_steps(stream: Stream[Any] | CascadeStream) -> Steps[list[Result[Any]]]:
    """Decode a batch; the results have the order of the stream's feed."""
    for finished in stream.run():
        yield bool(finished), lambda: finished or stream.so_far()  # noqa: B023 -- called before the next step


def at_intervals(
    steps: Steps[T], interval: float, clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[T, float, bool]]:
    """Yield the result of a decode after at least `interval` seconds of its work, and when it is
    complete.

    With each result come the seconds of work without those that the caller took between two
    results, and whether the decode is complete.
    """
    require(is_number(interval, 0), f"interval must be a number of seconds, not {shown(interval)}")
    started = clock()
    due = interval
    for number, (is_complete, result) in enumerate(steps):
        seconds = clock() - started
        if is_complete or (number and seconds >= due):
            yield result(), seconds, is_complete
            started = clock() - seconds
            due = seconds + interval


def check_callable(name: str, value: object) -> None:
    """Raise ConfigError unless the argument `name` is a function or None."""
    require(value is None or callable(value), f"{name} must be a function or None, not "
            f"{shown(value)}")


class Pipeline:
    """A checkpoint on a device, ready to decode.

    Attributes:
        bundled: name of the bundled checkpoint for the task.
        end_token: token that ends a target early; None if targets have a fixed length.
        stages: number of networks that decode one after another, more than 1 in a cascade.
        revision: first digits of the SHA-256 of the weights.
        default: decoding settings of a call without options.
        scoring: the network in the form that the decoder uses.
        engine: name of the engine in `superres.config.ENGINE_NAMES`, other than "auto".
        costs: the recorded costs of the checkpoint, for all engines and variants.
        origin: arguments of `load` (the checkpoint's folder, device and engine); None if it was not
            loaded.
    """

    task: ClassVar[str]
    bundled: ClassVar[str]
    end_token: ClassVar[int | None] = None
    stages: int = 1
    costs: CostTable = {}  # noqa: RUF012 -- replaced as a whole
    origin: tuple[str, str, str] | None = None

    def __init__(
        self, model: EncoderDecoder, name: str, revision: str = "", device: str = "auto",
        default: DecodeConfig | None = None, engine: str = "auto",
    ) -> None:
        """Make a pipeline for a network; arguments as for `load`, and `default`, that of
        `fastest_exact` if None.

        Raises ConfigError if the device is not available, or does not support the engine, and
        CheckpointError if the network is for another task.
        """
        self._check_task(model.config, name)
        self.name, self.revision, self.model_config = name, revision, model.config
        self.device = pick_device(device)
        self.model = model.to(self.device).eval()
        self.scoring = step_model(self.model, self.end_token, engine)
        self.engine: str = self.scoring.engine
        self.default = default or fastest_exact(self.scoring.adaptive, model.config,
                                                self.scoring.prediction_heads)
        self.block_sizes = BlockSizes(self.scoring)
        self.proposers = Proposers(model.config, self.end_token, self.device, engine, self.limited)

    @classmethod
    def load(
        cls: type[PipelineT], name_or_dir: str | Path | None = None, device: str = "auto",
        engine: str = "auto",
    ) -> PipelineT:
        """Load a checkpoint.

        Args:
            name_or_dir: a bundled checkpoint's name, a folder, or a Hugging Face hub id; `bundled`
                if None.
            device: "auto", "cpu" or "cuda".
            engine: a name in `superres.config.ENGINE_NAMES`. If both are "auto" and there is a GPU,
                the device is the faster one by a measurement: see
                `superres.pipeline.fastest_device`.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or for another task.
            ConfigError: the device is not available, or does not support the engine.
        """
        folder = find_checkpoint(cls.bundled if name_or_dir is None else name_or_dir)
        where, confidence, costs = pick_device(device), read_confidence(folder), read_costs(folder)
        model, name, revision = (load_checkpoint(folder), folder.resolve().name,
                                 weights_digest(folder))
        cls._check_task(model.config, name)
        arguments = cls._task_arguments(folder, model)
        if where.type != "cpu" and device == engine == "auto":
            where = fastest_device(model, cls.end_token, revision, where)
        pipeline = cls(model, name, revision, where.type, read_decode_default(folder, where.type),
                       engine, **arguments)
        pipeline.proposers.folder, pipeline.block_sizes.confidence, pipeline.costs = (
            folder, confidence, costs)
        use_costs(pipeline.scoring, costs)
        pipeline.origin = str(folder.resolve()), device, engine
        return pipeline

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the checkpoint's place, device, engine and default settings; unpickling loads the
        checkpoint."""
        require(self.origin is not None, f"{self.name} cannot be pickled, since it was not loaded "
                "from a checkpoint; save it with superres.checkpoint.save_checkpoint, and load "
                "that")
        return _reloaded, (type(self), self.origin, self.revision), {"default": self.default}

    def __copy__(self: PipelineT) -> PipelineT:
        """Return a pipeline that shares the network, where pickling would load it again."""
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    @classmethod
    def _check_task(cls, network: ModelConfig, name: str) -> None:
        if network.task != cls.task:
            raise CheckpointError(f"checkpoint {name} is for the task {network.task!r}, not "
                                  f"{cls.task}")

    @classmethod
    def _task_arguments(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        """Check the network, read the task's files in the checkpoint's folder, and return further
        arguments."""
        return {}

    def limited(self, model: ScoringModel) -> ScoringModel:
        """Return `model`, or a draft model, limited to outputs that are consistent with their
        input."""
        return model

    def scoring_for(self, options: DecodeConfig) -> ScoringModel:
        """Return the network in the form that the decoder uses, limited if `options` ask for
        consistent outputs."""
        return self.limited(self.scoring) if options.consistent else self.scoring

    def options(self, **settings: Unpack[DecodeOptions]) -> DecodeConfig:
        """Return the settings of a call without options, changed by `settings` as by options of a
        command.

        Settings that `settings` contradict return to their defaults. Raises ConfigError if a
        setting is unknown or without effect, two contradict each other, or the checkpoint does not
        support them.
        """
        unknown = ", ".join(sorted(set(settings) - set(SETTINGS)))
        require(not unknown, f"unknown setting {unknown}; the settings are {', '.join(SETTINGS)}")
        return combined(self.default, dict(settings), self.model_config.prediction_heads,
                        as_setting, self.stages)

    def default_of_width(self, width: int | None) -> DecodeConfig:
        """Return the settings of a call without options; an adaptive block size has no fixed step
        width."""
        return self.default if width is None else dataclasses.replace(self.default, adaptive=False)

    def block_size(self, options: DecodeConfig) -> int:
        """Return the block size of `options`. Raises ConfigError if the checkpoint does not support
        `options`."""
        if not isinstance(options, DecodeConfig):
            raise ConfigError("options must be a DecodeConfig, such as that of "
                              f"{type(self).__name__.lower()}.options(block_size=4), not "
                              f"{shown(options)}")
        return check_options(options, self.model_config.prediction_heads,
                             self.model_config.target_length)

    def adaptive_size(
        self, options: DecodeConfig, source: torch.Tensor, padding: torch.Tensor | None = None,
    ) -> int | ConfidentBlockSize | None:
        """Return what chooses the block size of `options` for source tokens [B, S]: see
        `BlockSizes.get`."""
        # Limits cost hardly any time, so costs are those without them.
        unlimited = (dataclasses.replace(options, consistent=False) if options.consistent
                     else options)
        return self.block_sizes.get(options, source, padding, self.proposers.get(unlimited))

    def row_bytes(self, options: DecodeConfig) -> int:
        """Return the bytes of a session's row with `options`."""
        size = self.block_size(options)
        algorithm = Algorithm(self.scoring_for(options), options, self.proposers.get(options))
        source = torch.zeros(1, math.prod(self.model_config.source_shape), dtype=torch.int64,
                             device=self.device)
        with torch.inference_mode():
            session = decoding_type(algorithm, size).open_session(algorithm, source, size)
        state = sum(tensor.numel() * tensor.element_size() for tensor in session.row_state())
        return state + self.scoring.row_bytes(session.width, options.proposer == "heads")

    def _stream(
        self, model: ScoringModel, feed: Feed[ItemT], sources: Callable[[Sequence[ItemT]], Source],
        options: DecodeConfig, rows: int, *, batch: bool = False, group: int | None = None,
        width: int | None = None,
    ) -> Stream[ItemT]:
        """Return the stream of a feed, or of a batch: the only way from a pipeline to blockwise
        decoding.

        `model` is `scoring_for(options)`, or a copy for another thread; see `Stream` for the
        other arguments. Raises ConfigError if the checkpoint does not support `options`, or the
        width does not fit them.
        """
        algorithm = Algorithm(model, options, self.proposers.get(options), width=width,
                              adaptive=partial(self.adaptive_size, options))
        return Stream(algorithm, feed, sources, rows, group=group, batch=batch)


def _reloaded(kind: type[Pipeline], origin: tuple[str, str, str], revision: str) -> Pipeline:
    """Load a pickled pipeline's checkpoint; raise CheckpointError if it is missing or has other
    weights."""
    pipeline = kind.load(*origin)
    if pipeline.revision != revision:
        raise CheckpointError(f"{origin[0]} has other weights ({pipeline.revision}) than when it "
                              f"was pickled ({revision}); restore them, or load the checkpoint "
                              "anew")
    return pipeline
