"""Divide the inputs of a run into parts, the unit of work and of retry, before anything is decoded.

The parts depend on the inputs alone, so machines that each do every N-th part agree without a word.
The members of archives are inputs as files are. The list of the inputs is a temporary file: memory
takes some digests per input.
"""

from __future__ import annotations

import itertools
import pickle
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from superres.batch.digests import Digests, Numbers, digest_of
from superres.batch.inputs import Input, find_inputs, nothing_in, read_list
from superres.batch.names import Names
from superres.batch.record import Output
from superres.batch.rows import Row
from superres.batch.run_options import LOCAL_ROWS, ROWS, BatchOptions
from superres.system.paths import HERE
from superres.system.places import known_place
from superres.system.progress import track

_SPOOLED = 1000  # inputs that are pickled together


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
        allowed: frozenset[tuple[str, str]] = frozenset({HERE}),
    ) -> None:
        """List `inputs` and the lines of the list `listed`.

        Raises InvalidInputError if there are none, two have the same output, or an output would
        replace an input; PlaceError if a place cannot be read at present.
        """
        self.options, self.allowed = options, allowed
        self.spool = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with this object
        # List the inputs into a temporary file, with their names in memory.
        keep_tree = options.keep_tree or options.in_parts
        lines = read_list(listed) if listed is not None else ()
        names, group = Names(options), list[Input]()
        self._inputs, self._keys = Digests(), Digests()
        found = _distinct(find_inputs(inputs, lines, options.recursive, keep_tree, options.output,
                                      allowed, options.layout if options.in_parts else None))
        for entry in track(found, "listing", "inputs"):
            names.add(entry)
            self._inputs.add(entry.input)
            self._keys.add(entry.input, entry.version)
            group.append(entry)
            if len(group) == _SPOOLED:
                pickle.dump(group, self.spool)
                group = []
        pickle.dump(group, self.spool)
        self.count = len(self._inputs)
        # Refuse what no run could do.
        if not self.count:
            raise nothing_in([*inputs, *(["the list"] if listed is not None else [])],
                             options.recursive)
        names.refuse_clashes(self.entries)
        names.tell_unportable(self.entries)
        # Divide them into parts, of which this machine does every N-th.
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

    def positions(self, inputs: Numbers) -> Numbers:
        """Return the places of inputs in the plan, int64 [N]; -1 for others."""
        return self._inputs.places(inputs)


def _distinct(entries: Iterable[Input]) -> Iterator[Input]:
    """Leave out repeated inputs; paths are compared in their absolute form, members by archive,
    number and name."""
    seen = set[int]()
    for entry in entries:
        path, member = (entry.archive or entry.input, entry.input[len(entry.archive) :]
                        if entry.archive else "")
        key = digest_of(known_place(path).full, str(entry.member), member)
        if key not in seen:
            seen.add(key)
            yield entry
