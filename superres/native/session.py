"""A session of the native engine: a decoding step on the CPU is one call of the compiled code in
the folder `cpp`."""

from __future__ import annotations

import math
from ctypes import byref
from typing import Any

import torch
from torch import Tensor

from superres.config import ModelConfig
from superres.config.tables import INITIAL_SHARPNESS, RESIDUAL_SCALE, slot_count
from superres.interfaces import Sampler, StepOutput
from superres.native import abi
from superres.native.build import library
from superres.native.weights import PackedWeights
from superres.nn.heads import RecurrentHeads
from superres.nn.model import Memory
from superres.nn.proposing import ProposingSession, StepState
from superres.nn.torch_step import PARTS

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


class NativeSession(ProposingSession):
    """A batch being decoded by native.cpp: `superres.interfaces.Session`. Not thread-safe; for one
    decode at a time.

    It decodes the sources of `memory` in steps of up to `width` tokens on `threads` threads.
    Recurrent heads choose from the tokens in `shortlist`, int64 [B, N], -1 past a list's last; from
    all if None.
    """

    def __init__(
        self, packed: PackedWeights, memory: Memory, width: int, threads: int,
        shortlist: Tensor | None = None,
    ) -> None:
        config = packed.model.config
        super().__init__(packed.model, memory, width)
        self.packed, self.tensors, self.widest = packed, list[Any](), width
        self.not_finite = torch.zeros(1, dtype=torch.int64)
        self.by_row: list[Tensor] = []
        self.deviation: Tensor | None = None
        self.session = abi.CSession(
            size=self._sizes(), weights=packed.weights, heads=packed.heads,
            threads=abi.CThreads(count=threads, rows_at_once=2, least_columns=LEAST_COLUMNS),
            input=abi.CInput(position_table=self._keep(self.position_table, self.conditioned),
                             conditioned=self.conditioned),
            ordinal=abi.COrdinal(parameters=config.ordinal_outputs,
                                 residual_scale=RESIDUAL_SCALE,
                                 initial_sharpness=INITIAL_SHARPNESS),
            report=abi.CReport(not_finite=self.not_finite.data_ptr()),
        )
        self._add_memory(shortlist)
        self._caches(memory)
        self._scratch()

    def _sizes(self) -> abi.CSizes:
        config, width = self.config, self.width
        # Attention reads aligned groups of LANES keys; no two groups of one step may share slots of
        # the ring.
        slots = slot_count(config, width) + 2 * abi.LANES - 1
        slots += -slots % abi.LANES
        return abi.CSizes(
            batch=self.batch, width=width, length=config.target_length, d=config.width,
            attention_heads=config.attention_heads, filter=config.filter_size,
            layers=config.decoder_layers, vocabulary=config.vocabulary, channels=config.channels,
            outputs=config.outputs, slots=slots,
            # Causal attention is local attention in a single block.
            block_length=config.attention_block_length if config.attention == "local_1d" else slots,
            key_distance=config.key_distance, groups=groups_of(config),
            stride=max(3 * config.width, self.packed.weights.project.panels * abi.PANEL),
        )

    def _add_memory(self, shortlist: Tensor | None) -> None:
        """Add what only some networks read: parts of the memory, a shortlist, the neighbourhood."""
        if self.head_table is not None:
            self.session.heads.conditioning = self._keep(self.head_table, True)
        if self.estimate is not None:
            self.session.ordinal.estimate = self._keep(self.estimate, True)
        if shortlist is not None:
            self.session.heads.shortlist = self._shortlist(shortlist)
        if self.packed.model.neighbourhood is not None and self.residual_sum is not None:
            self.session.neighbourhood = self.packed.neighbourhood
            near = self.session.neighbourhood  # a view of the copy
            near.residual_sum = self._keep(self.residual_sum, True)
            # Entry T stands for absent neighbours and stays 0.
            self.deviation = torch.zeros(self.batch, self.config.target_length + 2)
            near.deviation = self._keep(self.deviation, True)

    def _source_of(self, memory: Memory) -> tuple[Tensor, ...]:
        """Return the states and the mask: native.cpp computes keys and values from them, and
        `_keys` for `_recur`."""
        return ((memory.states, memory.hidden(memory.states.dtype))
                if isinstance(self.heads, RecurrentHeads) else ())

    def _keys(self) -> tuple[Tensor, ...]:
        return super()._source_of(Memory(*self.source))

    @property
    def scored(self) -> int:
        """Number of columns of a step that get scores."""
        return self.width

    @property
    def most_proposals(self) -> int:
        """Number of heads that can propose: none without a memory of the source, if they read
        it."""
        heads = self.session.heads
        return 0 if heads.recurrent and not heads.cross.key else int(heads.count)

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.interfaces.Session.step`; the state is the decoder outputs [B, W, D] and
        `position`."""
        tokens, position = tokens.contiguous(), position.contiguous()
        scores = torch.empty(self.batch, self.scored, self.config.vocabulary)
        hidden = torch.empty(self.batch, self.width, self.config.width)
        library().superres_step(
            byref(self.session), address(tokens, torch.int64, self.batch, self.width),
            address(position, torch.int64, self.batch), hidden.data_ptr(), scores.data_ptr(),
        )
        return StepOutput(scores, (hidden, position))

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor,
                sampler: Sampler) -> Tensor:
        hidden, position = output.state
        rule = None if sampler.limit is not None else sampler.additive(offsets)
        if rule is None:
            place = (position.unsqueeze(1) + torch.arange(self.width)).clamp(
                max=self.config.target_length - 1)
            shape = self.batch, self.width, self.session.neighbourhood.features
            near = self.gathered.flatten()[: math.prod(shape)].view(shape) if shape[-1] else None
            return super().propose(
                StepOutput(output.scores, StepState(hidden, place, near)), index, first, offsets,
                sampler)
        temperature, noise = (None if part is None else part.float().flatten() for part in rule)
        index, first, count = index.contiguous(), first.contiguous(), len(offsets)
        if count > self.most_proposals:
            raise ValueError(f"{count} proposals were requested from {self.most_proposals} heads")
        tokens = torch.empty(self.batch, count, dtype=torch.int64)
        rows = (address(tensor, torch.int64, self.batch) for tensor in (position, index, first))
        library().superres_propose(
            byref(self.session), *rows, count,
            address(hidden, torch.float32, self.batch, self.width, self.config.width),
            address(temperature, torch.float32, self.batch * count),
            address(noise, torch.float32, self.batch * count * self.config.vocabulary),
            self.head_memory.data_ptr(), tokens.data_ptr(),
        )
        return tokens

    def part_seconds(self, tokens: Tensor, position: Tensor, repeats: int) -> dict[str, float]:
        seconds = torch.zeros(len(abi.ENUMS["Part"]), dtype=torch.float64)
        self.session.report.seconds = seconds.data_ptr()
        try:
            for _ in range(repeats):
                self.step(tokens, position)
        finally:
            self.session.report.seconds = None
        return {part: float(seconds[abi.value("Part", part)]) / repeats for part in PARTS}

    def resize(self, width: int) -> None:
        """See `superres.interfaces.Session.resize`; a ValueError if there is no memory for steps of
        `width`."""
        if not 1 <= width <= self.widest:
            raise ValueError(f"a session for steps of up to {self.widest} tokens cannot read "
                             f"{width}")
        self.width = self.session.size.width = width

    def select(self, rows: Tensor, length: int) -> None:
        used = min(length, self.session.size.slots)
        for layer in self.caches:
            for part in layer:
                count = -(-used * part.shape[SLOT_AXIS] // self.session.size.slots)
                begin = part.narrow(SLOT_AXIS, 0, count)
                begin.copy_(begin[rows])
        if self.deviation is not None:
            self.deviation.copy_(self.deviation[rows])

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `superres.interfaces.Session.row_state`; adds the tensors that native.cpp reads."""
        tensors = [*super().row_state(), *self.by_row,
                   *(part for layer in self.caches for part in layer if cache)]
        # Some of the tensors that native.cpp reads are those of the plain session.
        return list({tensor.data_ptr(): tensor for tensor in tensors}.values())

    def _keep(self, tensor: Tensor, by_row: bool = False) -> int:
        """Keep a contiguous float32 form of `tensor`, whose first axis is the batch if `by_row`;
        return its address."""
        self.tensors.append(tensor.float().contiguous())
        if by_row:
            self.by_row.append(self.tensors[-1])
        address: int = self.tensors[-1].data_ptr()
        return address

    def _caches(self, memory: Memory) -> None:
        """Allocate the cache of every layer, and project the memory for cross-attention if the
        model has it."""
        config, session = self.config, self.session
        self.caches = [self._cache() for _ in range(config.decoder_layers)]
        self.layer_caches = session.cache = (abi.CLayerCache * config.decoder_layers)()
        for layer, parts in zip(self.layer_caches, self.caches, strict=True):
            layer.self = abi.CCache(*(part.data_ptr() for part in parts))
        if not config.cross_attention:
            return
        slots = session.size.cross_slots = memory.states.shape[1]
        mask = torch.zeros(self.batch, slots) if memory.mask is None else memory.mask[:, 0, 0]
        session.input.cross_mask = self._keep(mask, True)
        for layer in self.layer_caches:
            layer.cross = self._cross_cache()
        if session.heads.recurrent and self.width > 1:  # steps of one token propose nothing
            session.heads.cross = self._cross_cache()
        states = memory.states.float().contiguous()
        library().superres_remember(byref(session), states.data_ptr())

    def _cache(self) -> tuple[Tensor, ...]:
        """Allocate the keys and values of a layer; as bytes with their scales if the products are
        int8.

        They are finite from the start: a step that is timed in the middle of a target reads them
        all, and a hidden value has weight 0, but 0 times NaN is NaN.
        """
        rows, slots = (self.batch, self.config.attention_heads), self.session.size.slots
        size = self.config.width // self.config.attention_heads
        if self.packed.precision != "int8":
            return (torch.zeros(*rows, slots // abi.LANES, size, abi.LANES),
                    torch.zeros(*rows, slots, size))
        quads = (slots // abi.LANES, size // 4, abi.LANES, 4), (slots // 4, size, 4)
        return (*(torch.empty(*rows, *shape, dtype=torch.uint8) for shape in quads),
                *(torch.zeros(*rows, slots) for _ in quads))

    def _shortlist(self, tokens: Tensor) -> abi.CShortlist:
        """Keep the tokens [B, N], and memory for their weights, which `superres_remember`
        gathers."""
        batch, count = tokens.shape
        weights = torch.empty(batch, count * self.config.width, dtype=torch.uint8)
        parts = [tokens.contiguous(), weights, torch.empty(batch, count),
                 torch.empty(batch, count)]
        self.by_row += parts
        first, *others = (part.data_ptr() for part in parts)
        return abi.CShortlist(count, first, self.packed.known.data_ptr(), *others)

    def _cross_cache(self) -> abi.CCache:
        """Allocate the keys and values of the memory for a layer; `superres_remember` writes those
        of its positions."""
        shape = self.batch, self.session.size.cross_slots, self.config.width
        return abi.CCache(*(self._keep(torch.zeros(shape), True) for _ in range(2)))

    def _scratch(self) -> None:
        """Allocate the scratch buffers of native.cpp."""
        session, config, rows = self.session, self.config, self.batch * self.width
        slots = max(session.size.slots, session.size.cross_slots) * config.attention_heads
        sizes = {"x": 2 * config.width, "parts": 2 * session.size.groups * config.width,
                 "wide": config.filter_size, "attended": config.width, "weights": slots,
                 "projected": session.size.stride}
        self.gathered = torch.empty(self.batch, self.width, session.neighbourhood.features)
        session.scratch = abi.CScratch(gathered=self.gathered.data_ptr(), **{
            name: self._keep(torch.empty(rows * size)) for name, size in sizes.items()})
        if self.heads is not None:
            count = library().superres_propose_room(byref(session), self.heads.count)
            self.head_memory = torch.empty(self.batch * count)


def address(tensor: Tensor | None, dtype: torch.dtype, *shape: int) -> int | None:
    """Return the address of a tensor; None for None, which is null in C++.

    Raises ValueError if the tensor is not contiguous, not on the CPU, or not of the given type and
    shape.
    """
    if tensor is None:
        return None
    if (tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous()
        or tensor.device.type != "cpu"):
        raise ValueError(f"the native step wants contiguous {dtype} {list(shape)} on the CPU, not "
                         f"{tensor.dtype} {list(tensor.shape)} on {tensor.device.type}")
    return tensor.data_ptr()


def groups_of(config: ModelConfig) -> int:
    """Return into how many groups the attention heads and hidden units of a layer are divided."""
    return next(groups for groups in range(max(1, config.width // GROUP_WIDTH), 0, -1) if not (
        config.attention_heads % groups or config.width // groups % abi.PANEL
        or config.filter_size // groups % abi.PANEL))
