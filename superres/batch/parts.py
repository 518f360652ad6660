"""Divide the inputs of a run into parts, the unit of work and of retry, before anything is decoded.

The parts depend on the inputs alone, so machines that each do every N-th part agree without a word.
The members of archives are inputs as files are. The list of the inputs is a temporary file: memory
takes some digests per input.
"""

from __future__ import annotations

import array
import itertools
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superres.batch.inputs import LOCAL, Input, digest_of, find_inputs, read_list
from superres.batch.record import Output
from superres.batch.rows import Row
from superres.batch.run_options import LOCAL_ROWS, ROWS, BatchOptions
from superres.config import portable_name, without_case
from superres.errors import InvalidInputError, plain
from superres.pictures.files import IMAGE_SUFFIXES
from superres.system.places import is_url, public
from superres.system.progress import say, track
from superres.tasks.crops import FACE

IGNORES_CASE = sys.platform in ("win32", "darwin")  # the files of this machine
_SPOOLED = 1000  # inputs that are pickled together

_Digests = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Part:
    """A part of a run: inputs that follow each other, such as a range of the members of an archive.

    Attributes:
        number: its number in the names of its manifest and of its shard.
        turn: the turn of its first input; the turns of its inputs follow each other.
        samples: per input, the numbers (from 1) of its samples to make.
        standing: outputs that are not to be made, with their turns.
    """

    number: int
    entries: tuple[Input, ...]
    turn: int = 0
    samples: tuple[tuple[int, ...], ...] = ()
    standing: tuple[Output, ...] = ()


class Plan:
    """The inputs of a run, in a stable order, and the names of their outputs.

    Attributes:
        count: number of the inputs.
        rows: most inputs per part.
        part_count: number of all parts.
        shard_count: number of the inputs of the parts that this machine does.
        allowed: schemes and hosts that the command line names, from which alone inputs are read.
    """

    def __init__(
        self, options: BatchOptions, inputs: Sequence[str], listed: str | None = None,
        allowed: frozenset[tuple[str, str]] = frozenset({LOCAL}),
    ) -> None:
        """List `inputs` and the lines of the list `listed`.

        Raises InvalidInputError if there are none, two have the same output, or an output would
        replace an input; PlaceError if a place cannot be read at present.
        """
        self.options, self.allowed = options, allowed
        self.spool = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with this object
        keep_tree = options.keep_tree or options.in_parts
        lines = read_list(listed) if listed is not None else ()
        names, group = _Names(options), list[Input]()
        self._inputs, self._keys = array.array("Q"), array.array("Q")
        found = _distinct(find_inputs(inputs, lines, options.recursive, keep_tree, options.output,
                                      allowed, options.layout if options.in_parts else None))
        # a few files need no progress
        for entry in track(found, "listing", "inputs") if options.output else found:
            names.add(entry)
            self._inputs.append(digest_of(entry.input))
            self._keys.append(entry.key)
            group.append(entry)
            if len(group) == _SPOOLED:
                pickle.dump(group, self.spool)
                group = []
        pickle.dump(group, self.spool)
        self.count = len(self._inputs)
        if not self.count:
            hint = "" if options.recursive else "; add --recursive to include sub-folders"
            places = ", ".join(
                map(public, [*inputs, *(["the list"] if listed is not None or not inputs else [])])
            )
            raise InvalidInputError(f"no image ({' '.join(sorted(IMAGE_SUFFIXES))}) in "
                                    f"{places[:300]}{hint}")
        names.refuse_clashes(self.entries)
        names.tell_unportable(self.entries)
        fair = -(-self.count // options.shard[1])
        self.rows = options.rows or (ROWS if options.in_parts else min(LOCAL_ROWS, fair))
        self.part_count = -(-self.count // self.rows)
        starts = range(options.shard[0] * self.rows, self.count, options.shard[1] * self.rows)
        self.shard_count = sum(min(self.rows, self.count - start) for start in starts)

    def entries(self) -> Iterator[Input]:
        """Yield the inputs."""
        self.spool.seek(0)
        left = self.count
        while left:
            group = pickle.load(self.spool)  # noqa: S301 -- from this object
            left -= len(group)
            place = self.spool.tell()
            yield from group
            self.spool.seek(place)

    def parts(self) -> Iterator[Part]:
        """Yield the parts of `options.shard`."""
        (index, shards), entries = self.options.shard, self.entries()
        for number in range(self.part_count):
            group = tuple(itertools.islice(entries, self.rows))
            if number % shards == index:
                yield Part(number, group)

    def has_changed(self, rows: Iterable[Row]) -> bool:
        """Return whether the file of an input of some rows has changed since then."""
        found = {(row.input, row.version) for row in rows}
        place = self.positions(np.array([digest_of(name) for name, _ in found], np.uint64))
        return any(at >= 0 and self._keys[at] != digest_of(name, version)
                   for at, (name, version) in zip(place.tolist(), found, strict=True))

    def positions(self, inputs: _Digests) -> np.ndarray[Any, Any]:
        """Return the places of inputs in the plan, int64 [N]; -1 for others."""
        known = np.array(self._inputs, dtype=np.uint64)
        order = np.argsort(known, kind="stable")
        place = np.searchsorted(known, inputs, sorter=order).clip(max=len(known) - 1)
        return np.where(known[order[place]] == inputs, order[place], -1)


def _distinct(entries: Iterable[Input]) -> Iterator[Input]:
    """Leave out repeated inputs; paths are compared in their absolute form, members by archive,
    number and name."""
    seen = set[int]()
    for entry in entries:
        path, member = (entry.archive or entry.input, entry.input[len(entry.archive) :]
                        if entry.archive else "")
        key = digest_of(path if is_url(path) else os.path.abspath(path), str(entry.member), member)
        if key not in seen:
            seen.add(key)
            yield entry


class _Names:
    """Finds outputs of the same name, and outputs that are inputs, among any number of inputs, by
    digests.

    It also finds files whose names are not fit for other systems.
    """

    def __init__(self, options: BatchOptions) -> None:
        self.options, self.folders = options, dict[str, str]()
        self.outputs, self.wholes, self.inputs = (array.array("Q"), array.array("Q"),
                                                  array.array("Q"))
        self.caseless, self.refused, self.example = array.array("Q"), 0, ""

    def add(self, entry: Input) -> None:
        """Add an input."""
        path = entry.archive or entry.input
        if not is_url(path):
            self.inputs.append(digest_of(self._real(path)))
        for name in self._names(entry):
            self.outputs.append(self._digest(name))
            whole, face = (self.options.face_of(name) if self.options.crop == FACE
                           and "-face" in name else (name, 0))
            if face:
                self.wholes.append(self._digest(whole))
            if self.options.layout == "files":
                self.caseless.append(digest_of(without_case(name)))
                if any(part != portable_name(part) for part in name.split("/")):
                    self.refused, self.example = self.refused + 1, self.example or name

    def _names(self, entry: Input) -> list[str]:
        """Return the names that no other output may have; those of members are made unique in each
        shard."""
        is_free = entry.error is not None or (entry.archive is not None and self.options.layout
                                              != "files")
        return [] if is_free else self.options.names(entry)

    def _digest(self, name: str) -> int:
        return digest_of(self._real(f"{self.options.folder}/{name}"))

    def _real(self, path: str) -> str:
        """Return the path without symbolic links; each folder is resolved once."""
        if is_url(path):
            return path
        if os.path.islink(path):
            return os.path.realpath(path)
        parent, name = os.path.split(path)
        if parent not in self.folders:
            self.folders[parent] = os.path.realpath(parent)
        return f"{self.folders[parent]}/{name}"

    def refuse_clashes(self, entries: Callable[[], Iterator[Input]]) -> None:
        """Raise InvalidInputError if two inputs would have the same output, or an output would
        replace an input."""
        options = self.options
        outputs, wholes, inputs = (np.unique(np.array(one, np.uint64), return_counts=True)
                                   for one in (self.outputs, self.wholes, self.inputs))
        if not options.in_parts:
            manifest = np.uint64(digest_of(self._real(str(options.manifest_path))))
            for found, what in ((inputs[0], "inputs"), (outputs[0], "outputs")):
                if manifest in found:
                    raise InvalidInputError(f"the manifest {options.manifest_path} is one of the "
                                            f"{what}; choose another --manifest")
        suspects = set(outputs[0][outputs[1] > 1].tolist()) | set(
            np.intersect1d(outputs[0], wholes[0]).tolist())
        replaced = (set(np.intersect1d(outputs[0], inputs[0]).tolist()) if options.layout == "files"
                    else set[int]())
        owners: dict[str, str] = {}
        for entry in entries() if suspects or replaced else ():
            for name in self._names(entry):
                if self._digest(name) in replaced:
                    raise InvalidInputError(f"the output {options.folder}/{name} would replace an "
                                            "input; choose another --output")
                if suspects & {self._digest(name), self._digest(options.face_of(name)[0])}:
                    self._claim(name, entry.input, owners)
        for name, owner in owners.items():
            whole, face = options.face_of(name)
            if face and whole in owners:
                raise InvalidInputError(
                    f"{public(owners[whole])} may show several faces, and then face {face} and "
                    f"{public(owner)} would both be written to {options.folder}/{name}; rename one "
                    "of them, or give --crop centre")

    def tell_unportable(self, entries: Callable[[], Iterator[Input]]) -> None:
        """Print how many files Windows refuses, and how many have names that differ in case or
        normal form only.

        Raises InvalidInputError for the latter where this machine would keep one of them.
        """
        if self.refused:
            say(f"results with names that Windows refuses: {self.refused:,}, such as "
                f"{plain(self.example)}; rename their inputs if the results are to be copied there")
        found, counts = np.unique(np.array(self.caseless, np.uint64), return_counts=True)
        if (counts > 1).any():
            first = found[counts > 1][0]
            names = (name for entry in entries() for name in self._names(entry))
            pair = itertools.islice((plain(name) for name in names if digest_of(without_case(name))
                                     == first), 2)
            text = ("results with names that differ only in case or Unicode form: "
                    f"{counts[counts > 1].sum():,}, such as {' and '.join(pair)}; Windows and "
                    "macOS keep only one of each; rename their inputs if the results are to be "
                    "copied there")
            if IGNORES_CASE and not self.options.in_parts:
                raise InvalidInputError(text)
            say(text)

    def _claim(self, name: str, owner: str, owners: dict[str, str]) -> None:
        """Note the input that an output belongs to; raise InvalidInputError if it has one."""
        first = owners.setdefault(name, owner)
        if first is not owner:
            remedy = "rename one of them, or upscale them into separate places" if self.options.in_parts else (
                "rename one of them, add --keep-tree, or upscale them into separate folders")
            raise InvalidInputError(f"{public(first)} and {public(owner)} would both be written to "
                                    f"{self.options.folder}/{name}; {remedy}")
