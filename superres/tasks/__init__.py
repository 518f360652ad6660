"""Tasks: the meaning of tokens. Each task is a module that provides an implementation of `Task`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from superres.tasks import faces, translation

Inputs = TypeVar("Inputs", contravariant=True)
Outputs = TypeVar("Outputs", covariant=True)


class Task(Protocol[Inputs, Outputs]):
    """Converts batches of inputs to tokens, and tokens to outputs.

    The module `superres.tasks.faces` and the class `superres.tasks.translation.Codec` implement this protocol.
    """

    @property
    def name(self) -> str:
        """Name of the task in `ModelConfig.task` and on the command line."""

    def encode(self, inputs: Inputs, /) -> npt.NDArray[np.int64]:
        """Return the source tokens of N inputs, int64 [N, S] in [0, vocabulary).

        Raises:
            InvalidInputError: an input is not valid.
        """

    def decode(self, tokens: npt.ArrayLike, /) -> Outputs:
        """Return the N outputs of target tokens, integers [N, T].

        Raises:
            InvalidInputError: the tokens have the wrong length or are out of range.
        """


TASKS: dict[str, Callable[[Path], Task[Any, Any]]] = {
    faces.name: lambda _: faces, translation.name: translation.Codec.read,
}
"""Functions that create a task from a checkpoint's folder, by the name of the task."""

TASK_FILES: dict[str, tuple[str, ...]] = {faces.name: (), translation.name: (translation.VOCABULARY_FILE,)}
"""Names of the task's files in a checkpoint's folder, by the name of the task."""
