"""The base class of the pipelines of all tasks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, overload

from superres.checkpoint import Checkpoint, load_network, open_checkpoint
from superres.config import (
    BeamConfig,
    CostTable,
    DecodeConfig,
    ModelConfig,
    is_number,
    require,
)
from superres.config.tables import slot_count
from superres.decoding.algorithm import Algorithm
from superres.decoding.batching import Feed, ItemT, Result, Source, Stream
from superres.decoding.block_size import check_options
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.limits import Limits
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.draft import DraftProposer
from superres.errors import CheckpointError, ConfigError, shown
from superres.interfaces import Bool, Engine, Int64, Network
from superres.pipeline.cascade import CascadeStream
from superres.pipeline.choose import (
    BlockSizes,
    engine_of,
    fastest_device,
    fastest_exact,
    module_on,
    pick_device,
    use_costs,
)
from superres.pipeline.recorded_costs import read_costs
from superres.pipeline.resolved_options import SETTINGS, as_setting, combined
from superres.pipeline.resources import Proposers

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from superres.config import DecodeOptions
    from superres.nn.model import EncoderDecoder

PipelineT = TypeVar("PipelineT", bound="Pipeline")
T = TypeVar("T")

ALIGNED = 32
"""Slots of a cache, or positions of a source, by which an engine makes it longer at most."""

Steps: TypeAlias = Iterator[tuple[bool, Callable[[], T]]]
"""The progress of a decode: whether it is complete, and a function that returns its result so
far."""


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
    if value is not None and not callable(value):
        raise ConfigError(f"{name} must be a function or None, not {shown(value)}")


class Pipeline:
    """A checkpoint on a device, ready to decode.

    Attributes:
        bundled: name of the bundled checkpoint for the task.
        end_token: token that ends a target early; None if targets have a fixed length.
        stages: number of networks that decode one after another, more than 1 in a cascade.
        network: the network as data.
        revision: first digits of the SHA-256 of the weights.
        device: "cpu" or "cuda".
        default: decoding settings of a call without options.
        scoring: the engine that decodes with the network.
        engine: its name in `superres.config.ENGINE_NAMES`, other than "auto".
        costs: the recorded costs of the checkpoint, for all engines and variants.
        origin: arguments of `load` (the checkpoint's folder, device and engine); None if it was not
            loaded.
    """

    task: ClassVar[str]
    bundled: ClassVar[str]
    end_token: ClassVar[int | None] = None
    stages: int = 1
    limits: Limits | None = None  # on the tokens of outputs that are consistent with their input
    costs: CostTable = {}  # noqa: RUF012 -- replaced as a whole
    origin: tuple[str, str, str] | None = None

    def __init__(
        self, network: Network | EncoderDecoder, name: str, revision: str = "",
        device: str = "auto", default: DecodeConfig | None = None, engine: str = "auto",
    ) -> None:
        """Make a pipeline for a network as data or on torch; arguments as for `load`, and
        `default`, that of `fastest_exact` if None.

        Raises ConfigError if the device is not available, or does not support the engine, and
        CheckpointError if the network is for another task.
        """
        self._check_task(network.config, name)
        if not isinstance(network, Network):
            from superres.nn.weights import network_of

            network = network_of(network.eval(), revision)
        self.network, self.model_config = network, network.config
        self.name, self.revision, self.device = name, revision, pick_device(device)
        self.scoring: Engine = engine_of(network, self.end_token, self.device, engine)
        self.engine = self.scoring.name
        self.default = default or fastest_exact(self.scoring.adaptive, network.config,
                                                self.scoring.prediction_heads)
        self.block_sizes = BlockSizes(self.scoring)
        self.proposers = Proposers(network.config, self.end_token, self.device, engine)

    @cached_property
    def model(self) -> EncoderDecoder:
        """The network as a torch module on the device, in evaluation mode."""
        model: EncoderDecoder = (module_on(self.network, self.device) if self.device == "cpu"
                                 else self.scoring.on_torch().model)
        return model

    @classmethod
    def load(
        cls: type[PipelineT], name_or_dir: str | Path | Checkpoint | None = None,
        device: str = "auto", engine: str = "auto",
    ) -> PipelineT:
        """Load a checkpoint.

        Args:
            name_or_dir: a bundled checkpoint's name, a folder, or a Hugging Face hub id; `bundled`
                if None.
            device: "auto", "cpu" or "cuda".
            engine: a name in `superres.config.ENGINE_NAMES`. If both are "auto" and there is a GPU,
                the device is the faster one by a measurement: see
                `superres.pipeline.choose.fastest_device`.

        Raises:
            CheckpointError: the checkpoint is missing, damaged or for another task.
            ConfigError: the device is not available, or does not support the engine.
        """
        checkpoint = open_checkpoint(cls.bundled if name_or_dir is None else name_or_dir)
        folder, where = checkpoint.folder, pick_device(device)
        # what may be damaged, before anything takes time
        confidence, costs = checkpoint.confidence, read_costs(folder)
        network, name = load_network(checkpoint), folder.resolve().name
        cls._check_task(network.config, name)
        arguments = cls._task_arguments(folder, network.config)
        if where != "cpu" and device == engine == "auto":
            where = fastest_device(network, cls.end_token)
        default = checkpoint.decode_default(where)
        pipeline = cls(network, name, network.revision, where, default, engine, **arguments)
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
    def _task_arguments(cls, folder: Path, network: ModelConfig) -> dict[str, Any]:
        """Check the network, read the task's files in the checkpoint's folder, and return further
        arguments."""
        return {}

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

    @overload
    def given(self, options: BeamConfig, settings: DecodeOptions) -> BeamConfig: ...
    @overload
    def given(self, options: DecodeConfig | None, settings: DecodeOptions) -> DecodeConfig: ...
    def given(self, options: DecodeConfig | BeamConfig | None,
              settings: DecodeOptions) -> DecodeConfig | BeamConfig:
        """Return the settings of a call that was given `options`, single `settings`, or neither."""
        if not settings:
            return self.default if options is None else options
        chosen = self.options(**settings)
        require(options is None, "give either options or single settings such as "
                f"{next(iter(settings))}, not both")
        return chosen

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
        self, options: DecodeConfig, source: Int64, padding: Bool | None = None,
    ) -> int | ConfidentBlockSize | None:
        """Return what chooses the block size of `options` for source tokens [B, S]: see
        `BlockSizes.get`."""
        # Limits cost hardly any time, so costs are those without them.
        return self.block_sizes.get(options, source, padding, self.proposers.get(options))

    def row_bytes(self, options: DecodeConfig) -> int:
        """Return the bytes that a row of a decode with `options` needs at most, by the shapes of
        its tensors."""
        width, proposer = self.block_size(options), self.proposers.get(options)
        if PROPOSERS[options.proposer].proposes_tree:
            width = max(1, (width - 1) * (options.window + options.candidates))
        numbers = _session_numbers(self.model_config, width)
        if isinstance(proposer, DraftProposer):
            numbers += _session_numbers(proposer.draft.network.config, 1)
        # of float32
        return 4 * numbers + self.scoring.row_bytes(width, options.proposer == "heads")

    def _stream(
        self, engine: Engine, feed: Feed[ItemT], sources: Callable[[Sequence[ItemT]], Source],
        options: DecodeConfig, rows: int, *, batch: bool = False, group: int | None = None,
        width: int | None = None,
    ) -> Stream[ItemT]:
        """Return the stream of a feed, or of a batch: the only way from a pipeline to blockwise
        decoding.

        `engine` is `scoring`, or one of its `side_by_side`; see `Stream` for the other arguments.
        Raises ConfigError if the checkpoint does not support `options`, or the width does not fit
        them.
        """
        limits = self.limits if options.consistent else None
        algorithm = Algorithm(engine, options, self.proposers.limited(options, limits),
                              limits=limits, width=width,
                              adaptive=partial(self.adaptive_size, options))
        return Stream(algorithm, feed, sources, rows, group=group, batch=batch)


def _session_numbers(network: ModelConfig, width: int) -> int:
    """Return how many numbers a row of a session for steps of `width` holds at most."""
    # the keys and values of the cache, whose slots engines align
    vectors = 2 * network.decoder_layers * (slot_count(network, width) + ALIGNED)
    vectors += 2 * network.target_length  # the tables of positions, for the network and its heads
    if network.cross_attention:  # also of recurrent heads: states, keys and values of the source
        vectors += (2 * network.decoder_layers + 3) * (network.source_length + ALIGNED)
    # per token: estimates, deviations, limits and sums, some of 8 bytes
    return network.width * vectors + 16 * network.target_length


def _reloaded(kind: type[Pipeline], origin: tuple[str, str, str], revision: str) -> Pipeline:
    """Load a pickled pipeline's checkpoint; raise CheckpointError if it is missing or has other
    weights."""
    pipeline = kind.load(*origin)
    if pipeline.revision != revision:
        raise CheckpointError(f"{origin[0]} has other weights ({pipeline.revision}) than when it "
                              f"was pickled ({revision}); restore them, or load the checkpoint "
                              "anew")
    return pipeline
