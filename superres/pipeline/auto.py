"""Load any checkpoint; its task determines the pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from superres.checkpoint import find_checkpoint, read_config
from superres.config import DEFAULT_CHECKPOINT
from superres.errors import CheckpointError
from superres.pipeline.base import Pipeline
from superres.pipeline.translator import Translator
from superres.pipeline.upscaler import Upscaler
from superres.tasks import faces

PIPELINES: dict[str, type[Pipeline]] = {pipeline.task: pipeline for pipeline in (Upscaler, Translator)}
"""Pipelines by task."""


def checkpoint_task(folder: Path) -> str:
    """Return the task of the checkpoint in `folder`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or its task is unknown.
    """
    task = read_config(folder)["model"].get("task", faces.name)
    if task not in PIPELINES:
        raise CheckpointError(f"{folder} is for the task {task!r}, which this release does not support "
                              f"({', '.join(PIPELINES)}); update superres")
    return str(task)


def load(name_or_dir: str | Path = DEFAULT_CHECKPOINT, device: str = "auto") -> Any:  # noqa: ANN401 -- by the task
    """Load a checkpoint by its name such as "celeba-8to32", its folder, or its Hugging Face hub id ("owner/name").

    Returns:
        An `Upscaler` or a `Translator`.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or its task is unknown.
        ConfigError: the device is not available.
    """
    folder = find_checkpoint(name_or_dir)
    return PIPELINES[checkpoint_task(folder)].load(folder, device)
