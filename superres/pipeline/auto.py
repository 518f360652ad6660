"""Load any checkpoint; its task determines the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, overload

from superres.checkpoint import Checkpoint, open_checkpoint
from superres.config import DEFAULT_CHECKPOINT
from superres.errors import CheckpointError, ConfigError
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.tasks.faces import FaceTask

PIPELINES: dict[str, type[Upscaler] | type[Translator]] = {Upscaler.task: Upscaler,
                                                           Translator.task: Translator}
"""Pipelines by task."""


def checkpoint_task(name_or_dir: str | Path | Checkpoint) -> str:
    """Return the task of a checkpoint; raise CheckpointError if it is missing or damaged, or its
    task is unknown."""
    checkpoint = open_checkpoint(name_or_dir)
    if checkpoint.stages:
        return FaceTask.name
    task = checkpoint.config["model"].get("task", FaceTask.name)
    if task not in PIPELINES:
        raise CheckpointError(f"{checkpoint.folder} is for the task {task!r}, which this release "
                              f"does not support ({', '.join(PIPELINES)}); update superres")
    return str(task)


def face_task(name_or_dir: str | Path) -> FaceTask:
    """Return the sizes of a checkpoint for faces without reading its weights, or raise
    CheckpointError."""
    checkpoint = open_checkpoint(name_or_dir)
    task = checkpoint_task(checkpoint)
    if task != FaceTask.name:
        raise CheckpointError(f"checkpoint {name_or_dir} is for the task {task!r}, not "
                              f"{FaceTask.name}")
    try:
        stages = [FaceTask.of(one.network) for one in checkpoint.networks]
        return FaceTask(stages[0].source, stages[-1].target,
                        tuple(stage.source for stage in stages[1:]))
    except ConfigError as error:
        raise CheckpointError(f"checkpoint {checkpoint.folder}: {error}") from error


@overload
def load(
    name_or_dir: Literal["celeba-8to32", "celeba-32to64", "celeba-8to64"] = ..., device: str = ...,
    engine: str = ...,
) -> Upscaler: ...
@overload
def load(name_or_dir: Literal["multi30k-en-de"], device: str = ...,
         engine: str = ...) -> Translator: ...
@overload
def load(name_or_dir: str | Path, device: str = ..., engine: str = ...) -> Any: ...  # noqa: ANN401 -- by the task
def load(
    name_or_dir: str | Path = DEFAULT_CHECKPOINT, device: str = "auto", engine: str = "auto",
) -> Upscaler | Translator:
    """Load a checkpoint: an `Upscaler` or a `Translator`, by its task.

    Args:
        name_or_dir: a bundled checkpoint's name such as "celeba-8to32", a folder, or a Hugging Face
            hub id ("owner/name").
        device: "auto", "cpu" or "cuda".
        engine: how the decoding step is computed, a name in `superres.config.ENGINE_NAMES`; "auto"
            takes "native-int8" on a CPU, and "triton" on a GPU.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or its task is unknown.
        ConfigError: the device is not available, or does not support the engine.
    """
    checkpoint = open_checkpoint(name_or_dir)
    return PIPELINES[checkpoint_task(checkpoint)].load(checkpoint, device, engine)
