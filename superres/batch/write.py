"""Where the outputs and the rows of a run are kept: what every place offers.

A place is a folder of single files (`superres.batch.folder_store`), or parts in a store or in
shards (`superres.batch.part_store`). A killed run leaves nothing there that a later one takes for
something else.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

from superres.batch.inputs import Input
from superres.batch.known import Known
from superres.batch.parts import Part
from superres.batch.record import Output
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


class Store(Protocol):
    """The place of a run. A context manager."""

    def __enter__(self) -> Store:
        """Open the place.

        Raises OutputError if it cannot be written, another run is writing there, or outputs were
        made with other settings; InvalidInputError if a manifest is damaged; PlaceError.
        """

    def __exit__(self, *_: object) -> None:
        """Close it."""

    known: Known

    def standing(self, entry: Input, output: str) -> Output | None:
        """Return what an output is whose file exists and must not be replaced; None if it is to be
        made."""

    def number(self, part: Part) -> Part:
        """Return the part with the number by which it is written."""

    def writer(self, part: Part) -> PartWriter:
        """Begin to write a part."""

    def finish(self) -> None:
        """Complete the place after the last part."""


def file_digest(place: Place) -> str:
    """Return the SHA-256 of the file at a place."""
    digest = hashlib.sha256()
    with place.fetched() as path, open(path, "rb") as file:
        while content := file.read(1 << 20):
            digest.update(content)
    return digest.hexdigest()
