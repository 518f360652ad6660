"""What earlier runs have done at a place, according to its manifests and to the files that are
there."""

from __future__ import annotations

import array
import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from superres.batch.digests import Digests, digest_of
from superres.batch.inputs import Input
from superres.batch.parts import Plan
from superres.batch.record import RunSettings
from superres.batch.rows import Row
from superres.batch.run_options import BatchOptions
from superres.errors import OutputError

_OTHERS = -1  # stands for the number of outputs that were made with other settings


class Known:
    """The inputs that are done, by digests: memory takes 16 bytes for each.

    An input is done if its outputs were made with the same settings, are there, and the input's
    file is unchanged.

    Attributes:
        failures: the rows of inputs that failed and whose parts are kept, by the input's digest.
    """

    def __init__(self, settings: RunSettings) -> None:
        self.settings, self.options = settings, settings.options
        self.failures: dict[int, list[Row]] = {}
        self._inputs, self._counts = Digests(), array.array("q")
        self._made, self._example = Digests(), ""

    def read(self, rows: Iterable[Row], holds: Callable[[Row], bool], keeps_failures: bool) -> bool:
        """Read the rows of a manifest, and return whether an input is done according to them.

        `holds` returns whether an output is there. With `keeps_failures`, an input that failed is
        not tried again.
        """
        is_used = False
        for _, found in itertools.groupby(rows, key=lambda row: row.origin):
            group = list({row.key: row for row in found}.values())
            count = self._count(group, holds, keeps_failures)
            key = _key_of_rows(group[0], self.options)
            self._inputs.append(key)
            self._counts.append(count)
            self.failures.pop(key, None)
            if count > 0 and (failed := [row for row in group if row.status != "ok"]):
                self.failures[key] = failed
            for row in group:
                if row.status == "ok":
                    self._made.add(row.output)
            is_used |= count > 0
        return is_used

    def _count(self, group: list[Row], holds: Callable[[Row], bool], keeps_failures: bool) -> int:
        """Return the number of outputs of an input that is done, 0, or `_OTHERS`."""
        made = [row for row in group if row.status == "ok"]
        if not all(map(holds, made)):
            return 0
        for row in made:
            if differences := self.settings.differences(row):
                self._example = self._example or "; ".join(differences)
                return _OTHERS
        if keeps_failures:
            return len(group)
        faces = (group[0].crop or {}).get("faces") or 1
        return len(group) if len(made) == len(group) == self.options.per_input * faces else 0

    def refuse_others(self, plan: Plan) -> None:
        """Raise OutputError if outputs of the plan were made with other settings."""
        count = 0
        entries = plan.entries()
        while self._example and (group := list(itertools.islice(entries, 1000))):
            count += sum(len(self.options.outputs(entry)) for entry,
                         known in zip(group, self._look(group), strict=True)
                         if known == _OTHERS)
        if count:
            raise OutputError(f"{count} of the outputs in {self.options.place.public} were "
                              f"made with other settings ({self._example}); repeat those settings, "
                              "choose another --output, or give --on-existing redo")

    def counts_of(self, entries: Sequence[Input]) -> list[int]:
        """Return the number of outputs of each input that is done, 0 for others."""
        return [max(count, 0) for count in self._look(entries)]

    def _look(self, entries: Sequence[Input]) -> list[int]:
        keys = np.array([key_of(entry, self.options) for entry in entries], np.uint64)
        # what was read last about an input counts
        return [0 if place < 0 else self._counts[place]
                for place in self._inputs.places(keys).tolist()]

    def failures_of(self, entry: Input) -> list[Row]:
        """Return the failed rows of an input that is done."""
        return self.failures.get(key_of(entry, self.options), [])

    def was_made(self, output: str) -> bool:
        """Return whether a manifest says that an output was made."""
        return self._made.has(output)


def key_of(entry: Input, options: BatchOptions) -> int:
    """Return a digest of an input, of its file's version and of its first output."""
    output = "" if options.in_parts else options.outputs(entry)[0]
    return digest_of(output, entry.input, entry.version)


def _key_of_rows(row: Row, options: BatchOptions) -> int:
    has_face = bool((row.crop or {}).get("face"))
    output = "" if options.in_parts else options.face_of(row.output)[0] if has_face else row.output
    return digest_of(output, row.input, row.version)

