"""A session of the native engine: a decoding step on the CPU is one call of the compiled code in
the folder `cpp`."""

from __future__ import annotations

from ctypes import byref
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from superres.config import ModelConfig
from superres.config.tables import INITIAL_SHARPNESS, RESIDUAL_SCALE, position_signal, slot_count
from superres.interfaces import Float32, Float64, Int64
from superres.native import abi
from superres.native.arrays import address, aligned, empty, zeros
from superres.native.build import library
from superres.native.memory import NativeMemory
from superres.native.weights import PackedWeights
from superres.sessions import Tree

GROUP_WIDTH = 64
"""Width of a group of attention heads and hidden units: see `Layers` in cpp/model/layer.h. Another
width changes the last bits of scores. A narrower group takes less time than the wait for its
thread."""

LEAST_COLUMNS = 4
"""Fewest columns per thread from which threads share a step's columns. With fewer, one thread takes
little more time for all columns than for its own, because it reads the same weights."""

SLOT_AXIS = 2
"""The axis of the slots, or of groups of slots, in the keys, values and their scales of
`NativeSession.caches`."""

COPIED = ("position_table", "head_table", "estimate", "residual_sum", "longest")
"""Parts of the memory that a session reads as they are."""


class NativeSession:
    """A batch being decoded by native.cpp. Not thread-safe; for one decode at a time.

    It decodes the sources of `memory` in steps of up to `width` tokens, by the numbers of threads
    in `threads`. Recurrent heads choose from the tokens in `shortlist`, int64 [B, N], -1 past a
    list's last; from all if None. With a `tree`, whose root is column 0, steps read its columns.

    Attributes:
        rows: the arrays whose first axis is the batch, by name.
        caches: those of them that hold the keys and values of each layer.
    """

    def __init__(
        self, packed: PackedWeights, memory: NativeMemory, width: int, threads: abi.CThreads,
        shortlist: Int64 | None = None, tree: Tree | None = None,
    ) -> None:
        self.packed, self.config, self.tree = packed, packed.config, tree
        self.batch, self.width, self.widest = len(memory), width, width
        self.threads, self.not_finite = threads, zeros((1,), np.int64)
        self.slots, self.cross_slots = self._slots(), 0
        if self.config.cross_attention:
            self.cross_slots = memory.states.shape[1]
        self.rows = self._rows_of(memory, shortlist)
        self._bind()
        if self.cross_slots:  # keys and values of the memory, and the weights of a shortlist
            states = aligned(memory.states, np.float32)
            library().superres_remember(byref(self.session), states.ctypes.data)

    def _slots(self) -> int:
        # Attention reads aligned groups of LANES keys; no two groups of one step may share slots of
        # the ring.
        slots = slot_count(self.config, self.widest) + 2 * abi.LANES - 1
        return slots + -slots % abi.LANES

    def _rows_of(self, memory: NativeMemory, shortlist: Int64 | None) -> dict[str, Any]:
        """Return the arrays of the rows: parts of the memory, and room for what steps write."""
        config, rows = self.config, dict[str, Any]()
        for name in COPIED:
            if (part := getattr(memory, name)) is not None:
                rows[name] = aligned(part, part.dtype)
        if "residual_sum" in rows:
            # Entry T stands for absent neighbours and stays 0.
            rows["deviation"] = zeros((self.batch, config.target_length + 2), np.float32)
        if shortlist is not None:
            batch, count = shortlist.shape
            rows["shortlist"] = aligned(shortlist, np.int64)
            rows["shortlist weight"] = empty((batch, count * config.width), np.uint8)
            rows["shortlist bias"], rows["shortlist scale"] = (
                empty((batch, count), np.float32) for _ in range(2))
        self.caches = {f"{layer} {part}": array for layer in range(config.decoder_layers)
                       for part, array in enumerate(self._cache())}
        rows |= self.caches
        if self.cross_slots:
            mask = memory.mask
            rows["cross_mask"] = (zeros((self.batch, self.cross_slots), np.float32) if mask is None
                                  else aligned(mask, np.float32))
            # steps of one token propose nothing
            owners = [*range(config.decoder_layers),
                      *["heads"] * bool(self.packed.heads.recurrent and self.widest > 1)]
            shape = self.batch, self.cross_slots, config.width
            rows |= {f"{owner} cross {part}": zeros(shape, np.float32) for owner in owners
                     for part in ("key", "value")}
        return rows

    def _cache(self) -> tuple[Any, ...]:
        """Allocate the keys and values of a layer; as bytes with their scales if the products are
        int8.

        They are finite from the start: a step that is timed in the middle of a target reads them
        all, and a hidden value has weight 0, but 0 times NaN is NaN.
        """
        rows, slots = (self.batch, self.config.attention_heads), self.slots
        size = self.config.width // self.config.attention_heads
        if self.packed.precision != "int8":
            return (zeros((*rows, slots // abi.LANES, size, abi.LANES), np.float32),
                    zeros((*rows, slots, size), np.float32))
        quads = (slots // abi.LANES, size // 4, abi.LANES, 4), (slots // 4, size, 4)
        return (*(empty((*rows, *shape), np.uint8) for shape in quads),
                *(zeros((*rows, slots), np.float32) for _ in quads))

    def _bind(self) -> None:
        """Let native.cpp read the arrays of the rows, with scratch for as many."""
        config, packed, rows = self.config, self.packed, self.rows
        signal = _signal(config.target_shape, config.width)
        self.session = session = abi.CSession(
            size=self._sizes(), weights=packed.weights, heads=packed.heads, threads=self.threads,
            input=abi.CInput(
                position_table=rows.get("position_table", signal).ctypes.data,
                conditioned="position_table" in rows, cross_mask=self._at("cross_mask")),
            ordinal=abi.COrdinal(parameters=config.ordinal_outputs, estimate=self._at("estimate"),
                                 residual_scale=RESIDUAL_SCALE,
                                 initial_sharpness=INITIAL_SHARPNESS),
            report=abi.CReport(not_finite=self.not_finite.ctypes.data),
        )
        session.heads.conditioning = self._at("head_table")
        if "shortlist" in rows:
            session.heads.shortlist = abi.CShortlist(
                rows["shortlist"].shape[1], self._at("shortlist"), packed.known.ctypes.data,
                *map(self._at, ("shortlist weight", "shortlist bias", "shortlist scale")))
        if "residual_sum" in rows:
            session.neighbourhood = packed.neighbourhood
            near = session.neighbourhood  # a view of the copy
            near.residual_sum, near.deviation = self._at("residual_sum"), self._at("deviation")
        # The caches of the layers, and of the memory.
        self.layers = session.cache = (abi.CLayerCache * config.decoder_layers)()
        for number, layer in enumerate(self.layers):
            layer.self = abi.CCache(*(array.ctypes.data for name, array in self.caches.items()
                                      if name.startswith(f"{number} ")))
            layer.cross = self._cross(number)
        session.heads.cross = self._cross("heads")
        self._scratch()

    def _cross(self, owner: object) -> abi.CCache:
        return abi.CCache(self._at(f"{owner} cross key"), self._at(f"{owner} cross value"))

    def _at(self, name: str) -> int | None:
        """Return the address of an array of the rows; None, which is null in C++, without it."""
        array = self.rows.get(name)
        return None if array is None or not array.size else int(array.ctypes.data)

    def _sizes(self) -> abi.CSizes:
        config = self.config
        return abi.CSizes(
            batch=self.batch, width=self.widest, length=config.target_length, d=config.width,
            attention_heads=config.attention_heads, filter=config.filter_size,
            layers=config.decoder_layers, vocabulary=config.vocabulary, channels=config.channels,
            outputs=config.outputs, slots=self.slots, cross_slots=self.cross_slots,
            # Causal attention is local attention in a single block.
            block_length=(config.attention_block_length if config.attention == "local_1d"
                          else self.slots),
            key_distance=config.key_distance, groups=groups_of(config),
            stride=max(3 * config.width, self.packed.weights.project.panels * abi.PANEL),
        )

    def _scratch(self) -> None:
        """Allocate what native.cpp writes before it reads it."""
        session, config, columns = self.session, self.config, self.batch * self.widest
        slots = max(self.slots, self.cross_slots) * config.attention_heads
        sizes = {"x": 2 * config.width, "parts": 2 * session.size.groups * config.width,
                 "wide": config.filter_size, "attended": config.width, "weights": slots,
                 "projected": session.size.stride, "gathered": session.neighbourhood.features}
        self.scratch = {name: empty((columns * size,), np.float32) for name, size in sizes.items()}
        session.scratch = abi.CScratch(**{name: array.ctypes.data if array.size else None
                                          for name, array in self.scratch.items()})
        if session.heads.count:
            count = library().superres_propose_room(byref(session), session.heads.count)
            self.scratch["heads"] = empty((self.batch * count,), np.float32)
        if self.tree is not None:
            self._add_tree(self.tree)
        session.size.width = self.width

    def _add_tree(self, tree: Tree) -> None:
        """Let steps read the columns of a tree."""
        session, scratch = self.session, self.scratch
        depth, ancestors = (aligned(part, np.int64) for part in (tree.depth, tree.ancestors))
        session.tree = abi.CTree(tree.scored, ancestors.shape[1], depth.ctypes.data,
                                 ancestors.ctypes.data)
        scratch |= {"depth": depth, "ancestors": ancestors}
        for number, layer in enumerate(self.layers):
            shape = self.batch, self.widest, 2 * self.config.width
            scratch[f"columns {number}"] = columns = zeros(shape, np.float32)
            layer.columns = columns.ctypes.data
        if session.neighbourhood.features:
            scratch["deviation"] = zeros((self.batch, self.widest), np.float32)
            session.neighbourhood.column_deviation = scratch["deviation"].ctypes.data

    @property
    def longest(self) -> Int64 | None:
        """Largest number of tokens of each row of a text that ends [B]; None for T."""
        return self.rows.get("longest")

    @property
    def scored(self) -> int:
        """Number of columns of a step that get scores."""
        return self.width if self.tree is None else self.tree.scored

    @property
    def most_proposals(self) -> int:
        """Number of heads that can propose: none without a memory of the source, if they read
        it."""
        heads = self.session.heads
        return 0 if heads.recurrent and not heads.cross.key else int(heads.count)

    def step(self, tokens: Int64, position: Int64) -> tuple[Float32, Float32]:
        """Read `tokens` [B, W] at decoder positions `position` [B] + 0..W-1, as
        `superres.sessions.Session.step`; return scores [B, W, V] and decoder outputs [B, W, D].

        Of a tree, `position` is that of the root, and only scored columns have scores.
        """
        scores = empty((self.batch, self.scored, self.config.vocabulary), np.float32)
        hidden = empty((self.batch, self.width, self.config.width), np.float32)
        library().superres_step(
            byref(self.session), address(tokens, np.int64, self.batch, self.width),
            address(position, np.int64, self.batch), hidden.ctypes.data, scores.ctypes.data)
        return scores, hidden

    def propose(
        self, hidden: Float32, position: Int64, index: Int64, first: Int64, count: int,
        temperature: Float32 | None = None, noise: Float32 | None = None,
    ) -> Int64:
        """Return the proposals [B, N] of `count` heads at step column `index` [B] of a step's
        `hidden` and `position`, after p1's token `first` [B].

        Tokens are chosen by argmax(scores / temperature + noise), of [B, N] and [B, N, V]; by
        argmax(scores) if both are None.
        """
        if count > self.most_proposals:
            raise ValueError(f"{count} proposals were requested from {self.most_proposals} heads")
        tokens = empty((self.batch, count), np.int64)
        numbers = (address(part, np.int64, self.batch) for part in (position, index, first))
        library().superres_propose(
            byref(self.session), *numbers, count,
            address(hidden, np.float32, self.batch, self.width, self.config.width),
            address(temperature, np.float32, self.batch, count),
            address(noise, np.float32, self.batch, count, self.config.vocabulary),
            self.scratch["heads"].ctypes.data, tokens.ctypes.data)
        return tokens

    def commit(self, columns: Int64, start: Int64) -> None:
        """Commit paths [B, P] of the columns of a tree, as `superres.sessions.TreeSession.commit`
        does; `start` [B] is the position of the step."""
        library().superres_keep(byref(self.session), address(columns, np.int64, *columns.shape),
                                columns.shape[1], address(start, np.int64, self.batch))

    def part_seconds(self, tokens: Int64, position: Int64, repeats: int) -> Float64:
        """Return the mean seconds of each `Part` of a step over `repeats` steps; arguments as for
        `step`."""
        seconds = zeros((len(abi.ENUMS["Part"]),), np.float64)
        self.session.report.seconds = seconds.ctypes.data
        try:
            for _ in range(repeats):
                self.step(tokens, position)
        finally:
            self.session.report.seconds = None
        return np.asarray(seconds / repeats)

    def resize(self, width: int) -> None:
        """Make the following steps read `width` tokens; a ValueError if there is no memory for
        them."""
        if not 1 <= width <= self.widest or (self.tree is not None and width != self.widest):
            raise ValueError(f"a session for steps of up to {self.widest} tokens cannot read "
                             f"{width}")
        self.width = self.session.size.width = width

    def write(self, rows: Int64, other: NativeSession) -> None:
        """Begin the rows of `other`, an empty session made for the same width, in `rows` [R]."""
        for name, array in self.rows.items():
            if name not in self.caches:  # of positions that have been read
                array[rows] = other.rows[name]

    def select(self, rows: Int64, length: int) -> None:
        """Copy the first `length` decoder positions of row `rows[i]` [B], of the same source, to
        row i."""
        used = min(length, self.slots)
        for part in self.caches.values():
            count = -(-used * part.shape[SLOT_AXIS] // self.slots)
            part[:, :, :count] = part[rows, :, :count]
        if "deviation" in self.rows:
            self.rows["deviation"][...] = self.rows["deviation"][rows]

    def keep(self, rows: Int64) -> None:
        """Continue with `rows` [R] only."""
        self.batch = len(rows)
        self.rows = kept_rows(self.rows, rows)
        self.caches = {name: self.rows[name] for name in self.caches}
        self._bind()


def kept_rows(arrays: dict[str, Any], rows: Int64) -> dict[str, npt.NDArray[Any]]:
    """Return copies of the `rows` [R] of arrays, in aligned memory."""
    kept = dict[str, npt.NDArray[Any]]()
    for name, array in arrays.items():
        kept[name] = empty((len(rows), *array.shape[1:]), array.dtype)
        np.take(array, rows, axis=0, out=kept[name])
    return kept


@lru_cache(maxsize=16)
def _signal(shape: tuple[int, ...], width: int) -> Float32:
    return aligned(position_signal(shape, width), np.float32)


def groups_of(config: ModelConfig) -> int:
    """Return into how many groups the attention heads and hidden units of a layer are divided."""
    return next(groups for groups in range(max(1, config.width // GROUP_WIDTH), 0, -1) if not (
        config.attention_heads % groups or config.width // groups % abi.PANEL
        or config.filter_size // groups % abi.PANEL))
