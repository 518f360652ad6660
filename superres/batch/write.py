"""Where the outputs and the rows of a run are kept: what every place offers.

A place is a folder of single files (`superres.batch.folder_store`), or parts in a store or in
shards (`superres.batch.part_store`). A killed run leaves nothing there that a later one takes for
something else.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from superres.batch.inputs import Input
from superres.batch.known import Known
from superres.batch.locks import locked
from superres.batch.parts import Part, Plan
from superres.batch.record import Output, RunSettings
from superres.batch.rows import Row
from superres.system.paths import Place


class PartWriter(Protocol):
    """Writes the outputs of a part, which it gets in the order of the inputs."""

    def add(self, output: Output) -> None:
        """Add an output, or only its row."""

    def finish(self) -> list[Row]:
        """Write everything, the manifest included, and return the rows."""

    def give_up(self) -> list[Row]:
        """Write what can stand for itself, remove the rest, and return the rows of what was
        written."""


class Store(ABC):
    """The place of a run. A context manager.

    It is opened by `__enter__`, which raises OutputError if it cannot be written, another run is
    writing there, or outputs were made with other settings; InvalidInputError if a manifest is
    damaged; PlaceError.
    """

    def __init__(self, plan: Plan, settings: RunSettings) -> None:
        self.plan, self.settings, self.options = plan, settings, settings.options
        self.known = Known(settings)

    def __enter__(self) -> Store:
        """Open the place."""
        self.options.place.prepare_folder()
        with ExitStack() as stack:
            if self.options.place.renames:
                stack.enter_context(locked(Path(self.options.output), self.options.shard))
            self.open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self._stack.close()

    @abstractmethod
    def open(self, stack: ExitStack) -> None:
        """Read the manifests, and let `stack` close what this opens."""

    def standing(self, entry: Input, output: str) -> Output | None:
        """Return what an output is whose file exists and must not be replaced; None if it is to be
        made."""
        return None

    def number(self, part: Part) -> Part:
        """Return the part with the number by which it is written."""
        return part

    @abstractmethod
    def writer(self, part: Part) -> PartWriter:
        """Begin to write a part."""

    def finish(self) -> None:  # noqa: B027 -- parts are complete one by one
        """Complete the place after the last part."""


def file_digest(place: Place) -> str:
    """Return the SHA-256 of the file at a place."""
    digest = hashlib.sha256()
    with place.fetched() as path, open(path, "rb") as file:
        while content := file.read(1 << 20):
            digest.update(content)
    return digest.hexdigest()
