"""The meaning of tokens: one module per task, which provides a `Task`; and the registry of the tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from superres.config import ModelConfig
from superres.tasks import translation
from superres.tasks.faces import FaceTask

Inputs = TypeVar("Inputs", contravariant=True)
Outputs = TypeVar("Outputs", covariant=True)


class Task(Protocol[Inputs, Outputs]):
    """Converts a batch of inputs to source tokens, and target tokens to a batch of outputs.

    Objects of `superres.tasks.faces.FaceTask` and `superres.tasks.translation.Codec` are tasks.
    """

    @property
    def name(self) -> str:
        """The task's name in `ModelConfig.task` and on the command line."""

    def encode(self, inputs: Inputs, /) -> npt.NDArray[np.int64]:
        """Convert a batch of N inputs to source tokens, int64 [N, S] in [0, vocabulary).

        Raises:
            InvalidInputError: an input is invalid.
        """

    def decode(self, tokens: npt.ArrayLike, /) -> Outputs:
        """Convert target tokens, whole numbers [N, T], to a batch of N outputs.

        Raises:
            InvalidInputError: a row has the wrong length, or a token is out of range.
        """


TASKS: dict[str, Callable[[ModelConfig, Path], Task[Any, Any]]] = {
    FaceTask.name: lambda network, _: FaceTask.of(network),
    translation.name: lambda network, folder: translation.Codec.read(folder, network.source_length),
}
"""Functions that return the task of a network and its checkpoint's folder, by name."""

TASK_FILES: dict[str, tuple[str, ...]] = {FaceTask.name: (), translation.name: (translation.VOCABULARY_FILE,)}
"""Names of the task's files in a checkpoint's folder, by task."""
