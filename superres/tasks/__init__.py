"""What a token means: one module a task, which gives something with the shape of `Task`."""

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
    """Turns what people have into tokens for the network, and the network's tokens into what people want.

    The module `superres.tasks.faces` is one, a `superres.tasks.translation.Codec` another. A whole batch is passed at
    once.
    """

    @property
    def name(self) -> str:
        """The name that `ModelConfig.task` and the command line use."""

    def encode(self, inputs: Inputs, /) -> npt.NDArray[np.int64]:
        """Turn a batch of N inputs into source tokens, int64 [N, S] in [0, vocabulary).

        Raises:
            InvalidInputError: an input cannot be used.
        """

    def decode(self, tokens: npt.ArrayLike, /) -> Outputs:
        """Turn target tokens, whole numbers [N, T], into a batch of N outputs.

        Raises:
            InvalidInputError: the tokens have the wrong length or are out of range.
        """


TASKS: dict[str, Callable[[Path], Task[Any, Any]]] = {
    faces.name: lambda _: faces, translation.name: translation.Codec.read,
}
"""What makes a task from a checkpoint's folder, by the task's name: choices and contract tests derive from it."""

TASK_FILES: dict[str, tuple[str, ...]] = {faces.name: (), translation.name: (translation.VOCABULARY_FILE,)}
"""Files of a checkpoint's folder that belong to its task."""
