"""The names of outputs: none is that of two inputs, or of an input, and all are fit for other
systems, or a line says so."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator

import numpy as np

from superres.batch.digests import Digests, digest_of
from superres.batch.inputs import Input
from superres.batch.run_options import BatchOptions, refuse_shared, replaces_input
from superres.config import portable_name, without_case
from superres.errors import InvalidInputError, plain
from superres.system.places import known_place
from superres.system.progress import say
from superres.tasks.crops import FACE

IGNORES_CASE = sys.platform in ("win32", "darwin")  # the files of this machine


class Names:
    """Finds outputs of the same name, and outputs that are inputs, among any number of inputs; and
    files whose names are not fit for other systems."""

    def __init__(self, options: BatchOptions) -> None:
        self.options, self.folders = options, dict[str, str]()
        # of outputs, of those without the number of a face, of inputs, and of outputs without case
        self.outputs, self.wholes, self.inputs, self.caseless = (Digests() for _ in range(4))
        self.refused, self.example = 0, ""

    def add(self, entry: Input) -> None:
        """Add an input."""
        self.inputs.append(self._digest(entry.archive or entry.input))
        for name in self._names(entry):
            self.outputs.append(self._output(name))
            whole, face = (self.options.face_of(name) if self.options.crop == FACE
                           and "-face" in name else (name, 0))
            if face:
                self.wholes.append(self._output(whole))
            if self.options.layout == "files":
                self.caseless.add(without_case(name))
                if any(part != portable_name(part) for part in name.split("/")):
                    self.refused, self.example = self.refused + 1, self.example or name

    def _names(self, entry: Input) -> list[str]:
        """Return the names that no other output may have; those of members are made unique in each
        shard."""
        is_free = entry.error is not None or (entry.archive is not None and self.options.layout
                                              != "files")
        return [] if is_free else self.options.names(entry)

    def _digest(self, path: str) -> int:
        """Return the digest of a place, whatever links lead there; each folder is resolved once."""
        return digest_of(known_place(path).real(self.folders))

    def _output(self, name: str) -> int:
        return self._digest(f"{self.options.folder}/{name}")

    def refuse_clashes(self, entries: Callable[[], Iterator[Input]]) -> None:
        """Raise InvalidInputError if two inputs would have the same output, or an output would
        replace an input."""
        options = self.options
        if not options.in_parts:
            manifest = Digests()
            manifest.append(self._digest(str(options.manifest_path)))
            for found, what in ((self.inputs, "inputs"), (self.outputs, "outputs")):
                if manifest.shared(found):
                    raise InvalidInputError(f"the manifest {options.manifest_path} is one of the "
                                            f"{what}; choose another --manifest")
        suspects = self.outputs.repeated() | self.outputs.shared(self.wholes)
        replaced = self.outputs.shared(self.inputs) if options.layout == "files" else set[int]()

        def owners() -> Iterator[tuple[str, str]]:
            for entry in entries() if suspects or replaced else ():
                for name in self._names(entry):
                    if self._output(name) in replaced:
                        raise replaces_input(name, options)
                    if suspects & {self._output(name), self._output(options.face_of(name)[0])}:
                        yield name, entry.input

        refuse_shared(owners(), options)

    def tell_unportable(self, entries: Callable[[], Iterator[Input]]) -> None:
        """Print how many files Windows refuses, and how many have names that differ in case or
        normal form only.

        Raises InvalidInputError for the latter where this machine would keep one of them.
        """
        if self.refused:
            say(f"results with names that Windows refuses: {self.refused:,}, such as "
                f"{plain(self.example)}; rename their inputs if the results are to be copied there")
        if alike := self.caseless.repeated():
            first, count = min(alike), np.isin(self.caseless.values(), list(alike)).sum()
            names = (name for entry in entries() for name in self._names(entry))
            pair = itertools.islice((plain(name) for name in names if digest_of(without_case(name))
                                     == first), 2)
            text = ("results with names that differ only in case or Unicode form: "
                    f"{count:,}, such as {' and '.join(pair)}; Windows and macOS keep only one of "
                    "each; rename their inputs if the results are to be copied there")
            if IGNORES_CASE and not self.options.in_parts:
                raise InvalidInputError(text)
            say(text)
