"""The base class of the pipelines of all tasks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from superres.checkpoint import (
    find_checkpoint,
    load_checkpoint,
    read_confidence,
    read_decode_default,
    weights_digest,
)
from superres.config import DecodeConfig, ModelConfig, require
from superres.decoding.decode import check_options
from superres.errors import CheckpointError, ConfigError
from superres.interfaces import ScoringModel
from superres.nn.engines import step_model
from superres.nn.model import EncoderDecoder
from superres.pipeline.block_sizes import BlockSizes
from superres.pipeline.options import SETTINGS, as_setting, combined
from superres.pipeline.resources import Proposers

PipelineT = TypeVar("PipelineT", bound="Pipeline")
LoopT = TypeVar("LoopT", bound="Loop")


def pick_device(name: str) -> torch.device:
    """Return the device for "auto", "cpu" or "cuda".

    Raises:
        ConfigError: the device is unknown or not available.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"unknown device {name!r}; choose auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device cuda is not available: torch finds no GPU; choose cpu or auto")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def fastest_exact(width_invariant: bool, network: ModelConfig) -> DecodeConfig:
    """Return the settings of a checkpoint without a saved default: exact acceptance, in the fastest block sizes.

    In compiled code for CPUs, every further proposal costs time, and sums have one order at every block size
    (`width_invariant`). There the block size is adaptive. Elsewhere all heads propose: further proposals cost little,
    or tokens could depend on the block size. Consistent pictures and the nucleus of samples are as the network's
    settings ask.
    """
    adaptive = width_invariant and network.prediction_heads > 1
    return DecodeConfig(adaptive=adaptive, consistent=network.consistent, nucleus=network.nucleus)


class Loop(Protocol):
    """A decode or a beam search that runs in steps."""

    def done(self) -> bool:
        """Return whether every row is complete."""


def at_intervals(
    loops: Iterator[LoopT], interval: float, clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[LoopT, float]]:
    """Run a loop, and yield it after at least `interval` seconds of its work, and when it is done.

    Args:
        loops: yields the same loop each time, first before its first step and last when it is done.
        interval: seconds.
        clock: returns the time in seconds.

    Yields:
        The loop, and the seconds that it has worked, without the time that the caller took between two yields.
    """
    started = clock()
    due = interval
    for number, loop in enumerate(loops):
        seconds = clock() - started
        # A finished loop is yielded before `loops` is advanced, since the loop then serves the next decode.
        if loop.done() or (number and seconds >= due):
            yield loop, seconds
            started = clock() - seconds
            due = seconds + interval


class Pipeline:
    """A checkpoint on a device, ready to decode.

    Attributes:
        task: name of the task.
        bundled: name of the bundled checkpoint for the task.
        end_token: token that ends a target early; None if targets have a fixed length.
        name: the checkpoint's name.
        revision: first digits of the SHA-256 of the weights.
        model_config: settings of the network.
        default: decoding settings of a call without options.
        block_sizes: the adaptive block sizes.
        proposers: the proposers, by decoding settings.
        scoring: the network in the form that the decoder uses.
        engine: name of the engine in `superres.config.ENGINE_NAMES`, other than "auto".
    """

    task: ClassVar[str]
    bundled: ClassVar[str]
    end_token: ClassVar[int | None] = None

    def __init__(
        self, model: EncoderDecoder, name: str, revision: str = "", device: str = "auto",
        default: DecodeConfig | None = None, engine: str = "auto",
    ) -> None:
        """Make a pipeline for a network.

        Args:
            model: the network.
            name: the checkpoint's name.
            revision: revision of the weights.
            device: "auto", "cpu" or "cuda".
            default: decoding settings of a call without options; those of `fastest_exact` if None.
            engine: name of the engine in `superres.config.ENGINE_NAMES`.

        Raises:
            ConfigError: the device is not available, or does not support the engine.
            CheckpointError: the network is for another task.
        """
        if model.config.task != self.task:
            raise CheckpointError(f"checkpoint {name} is for the task {model.config.task!r}, not {self.task}")
        self.name, self.revision, self.model_config = name, revision, model.config
        self.device = pick_device(device)
        self.model = model.to(self.device).eval()
        self.scoring = step_model(self.model, self.end_token, engine)
        self.engine: str = self.scoring.engine
        self.default = default or fastest_exact(self.scoring.width_invariant, model.config)
        self.block_sizes = BlockSizes(self.scoring, revision, self.scoring.code, self.device)
        self.proposers = Proposers(model.config, self.end_token, self.device, engine, self.limited)

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
            ConfigError: the device is not available, or does not support the engine.
        """
        folder = find_checkpoint(cls.bundled if name_or_dir is None else name_or_dir)
        default, confidence = read_decode_default(folder, pick_device(device).type), read_confidence(folder)
        model, name = load_checkpoint(folder), folder.resolve().name
        arguments = cls._task_arguments(folder, model)
        pipeline = cls(model, name, weights_digest(folder), device, default, engine, **arguments)
        pipeline.proposers.folder, pipeline.block_sizes.confidence = folder, confidence
        return pipeline

    @classmethod
    def _task_arguments(cls, folder: Path, model: EncoderDecoder) -> dict[str, Any]:
        """Read the task's files in the checkpoint's folder, and return further arguments of the constructor."""
        return {}

    def limited(self, model: ScoringModel) -> ScoringModel:
        """Return `model`, or a draft model, limited to outputs that are consistent with their input."""
        return model

    def scoring_for(self, options: DecodeConfig) -> ScoringModel:
        """Return the network in the form that the decoder uses, limited if `options` ask for consistent outputs."""
        return self.limited(self.scoring) if options.consistent else self.scoring

    def options(self, **settings: bool | float | str | tuple[float, ...] | None) -> DecodeConfig:
        """Return the settings of a call without options, changed by `settings` as by options of a command.

        Args:
            settings: values of settings of `DecodeConfig`; the others that they contradict return to their defaults.

        Raises:
            ConfigError: a setting is unknown or without effect, two contradict each other, or the checkpoint does not
                support them.
        """
        unknown = ", ".join(set(settings) - set(SETTINGS))
        require(not unknown, f"unknown setting {unknown}; the settings are {', '.join(SETTINGS)}")
        return combined(self.default, settings, self.model_config.prediction_heads, as_setting)

    def default_of_width(self, width: int | None) -> DecodeConfig:
        """Return the settings of a call without options; an adaptive block size has no fixed step width."""
        return dataclasses.replace(self.default, adaptive=self.default.adaptive and width is None)

    def block_size(self, options: DecodeConfig) -> int:
        """Return the block size of `options`.

        Raises:
            ConfigError: the checkpoint does not support `options`.
        """
        return check_options(options, self.model_config.prediction_heads, self.model_config.target_length)
