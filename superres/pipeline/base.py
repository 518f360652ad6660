"""What the pipelines of all tasks share: a checkpoint on a device, ready to decode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from superres.checkpoint import find_checkpoint, load_checkpoint, read_decode_default, weights_digest
from superres.config import DecodeConfig
from superres.decoding.decode import check_options
from superres.errors import CheckpointError, ConfigError
from superres.nn.engines import step_model
from superres.nn.model import EncoderDecoder
from superres.pipeline.block_sizes import BlockSizes
from superres.pipeline.resources import Proposers

PipelineT = TypeVar("PipelineT", bound="Pipeline")
LoopT = TypeVar("LoopT", bound="Loop")


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


def paced(
    loops: Iterator[LoopT], interval: float, clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[LoopT, float]]:
    """Drive a loop that is handed out again and again, and pass it on now and then.

    Args:
        loops: hands out one and the same loop, first before its first step and last when it is done.
        interval: seconds of its work between two looks, at the least.
        clock: returns seconds.

    Yields:
        The loop and the seconds that it has worked, last when it is done; what is done with it in between does not
        count.
    """
    started = clock()
    due = interval
    for number, loop in enumerate(loops):
        seconds = clock() - started
        # The last look, too, comes before the loop is asked for more, which gives it back.
        if loop.done() or (number and seconds >= due):
            yield loop, seconds
            started = clock() - seconds
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
        engine: how its step is computed, a name in `superres.config.ENGINE_NAMES` other than "auto".
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
            engine: how the decoding step is computed, a name in `superres.config.ENGINE_NAMES`.

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
