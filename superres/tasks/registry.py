"""The tasks and their files, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from superres.config import ModelConfig
from superres.tasks import translation
from superres.tasks.faces import FaceTask

TASKS: dict[str, Callable[[ModelConfig, Path], FaceTask | translation.Codec]] = {
    FaceTask.name: lambda network, _: FaceTask.of(network),
    translation.name: lambda network, folder: translation.Codec.read(folder, network.source_length),
}
"""Functions that return the task of a network and its checkpoint's folder, by name."""

TASK_FILES: dict[str, tuple[str, ...]] = {FaceTask.name: (),
                                          translation.name: (translation.VOCABULARY_FILE,)}
"""Names of the task's files in a checkpoint's folder, by task."""
