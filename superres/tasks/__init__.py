"""What a token means: one module a task, all with the shape of `Task`."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from superres.tasks import faces

Inputs = TypeVar("Inputs", contravariant=True)
Outputs = TypeVar("Outputs", covariant=True)


class Task(Protocol[Inputs, Outputs]):
    """Turns what people have into tokens for the network, and the network's tokens into what people want.

    A module with these names is a task; `superres.tasks.faces` is one. A whole batch is passed at once.
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


TASKS: dict[str, Task[Any, Any]] = {faces.name: faces}
"""The tasks by name: choices and contract tests derive from it."""
