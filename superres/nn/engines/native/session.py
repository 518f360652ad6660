"""The native engine: a decoding step on the CPU is one call of the compiled code in the folder `cpp`.

`NativeModel` replaces `superres.nn.engines.torch_model.StepModel` if a C++ compiler is installed and the code supports
the network. Otherwise `superres.nn.engines` logs a warning and uses the plain step.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from ctypes import byref
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from superres.config import ModelConfig
from superres.errors import ScoresError
from superres.interfaces import LimitedSampler, LoopState, Sampler, Sources, StepOutput, Tree, TreeSession
from superres.nn.cache import slot_count
from superres.nn.engines.native.abi import (
    DECLARATIONS,
    LANES,
    MAX_HEAD,
    PANEL,
    CCache,
    CInput,
    CLayerCache,
    COrdinal,
    CReport,
    CScratch,
    CSession,
    CShortlist,
    CSizes,
    CThreads,
    CTree,
    value,
)
from superres.nn.engines.native.build import NativeUnavailable, chosen, library
from superres.nn.engines.native.encoder import NativeEncoder, supports
from superres.nn.engines.native.loop import address, loop_of
from superres.nn.engines.native.thread_trials import ThreadTrials
from superres.nn.engines.native.weights import PackedWeights
from superres.nn.engines.proposing import ProposingSession, StepState
from superres.nn.engines.torch_model import StepModel
from superres.nn.engines.torch_step import PARTS
from superres.nn.image_priors import INITIAL_SHARPNESS, RESIDUAL_SCALE
from superres.nn.model import EncoderDecoder, Memory
from superres.nn.recurrent import RecurrentHeads
from superres.system.machine import TorchThreads, usable_cores

ENGINES = {"float32": "native", "bfloat16": "native-bf16", "int8": "native-int8"}
"""Name of the engine by the format of its weights."""

GROUP_WIDTH = 64
"""Width of a group: see `Layers` in cpp/model/layer.h. A narrower group would not repay the wait for its thread."""

SLOT_AXES = 3, 2, 2, 2
"""The axis of the slots, or of groups of slots, in the keys, values and their scales of `NativeSession.caches`."""

SOURCES_FOR_THREADS = 8
"""Smallest number of sources that torch encodes with several threads. For fewer sources, threads save 5 ms but can cost
a second beside a busy process, since torch's threads wait for one another after every operation."""

AnySession = TypeVar("AnySession", bound="NativeSession")


@dataclass
class NativeState:
    """The state that proposals are computed from.

    Attributes:
        hidden: the step's decoder outputs [B, W, D].
        position: decoder position of the step's first column [B].
    """

    hidden: Tensor
    position: Tensor


class NativeSession(ProposingSession):
    """A batch being decoded by native.cpp: `superres.interfaces.Session`. Not thread-safe; for one decode at a time."""

    def __init__(
        self, packed: PackedWeights, memory: Memory, width: int, threads: int, shortlist: Tensor | None = None,
    ) -> None:
        """Allocate cache and scratch for the sources of `memory` and steps of `width` on `threads` threads.

        Recurrent heads choose from the tokens in `shortlist`, int64 [B, N], -1 past a list's last; from all if None.
        """
        config = packed.model.config
        super().__init__(packed.model, memory, width)
        self.packed, self.tensors, self.widest = packed, list[Any](), width
        self.not_finite = torch.zeros(1, dtype=torch.int64)
        self.by_row: list[Tensor] = []
        # Attention reads aligned groups of LANES keys; no two groups of one step may share slots of the ring.
        slots = slot_count(config, width) + 2 * LANES - 1
        slots += -slots % LANES
        size = CSizes(
            batch=self.batch, width=width, length=config.target_length, d=config.width,
            attention_heads=config.attention_heads, filter=config.filter_size, layers=config.decoder_layers,
            vocabulary=config.vocabulary, channels=config.channels, outputs=config.outputs, slots=slots,
            # Causal attention is local attention in a single block.
            block_length=config.attention_block_length if config.attention == "local_1d" else slots,
            groups=groups_of(config), stride=max(3 * config.width, packed.weights.project.panels * PANEL),
        )
        position_table = self._keep(self.position_table, *self._table_shape(), by_row=self.conditioned)
        self.session = CSession(
            size=size, threads=CThreads(count=threads, together=rows_together(packed, slots)), weights=packed.weights,
            input=CInput(position_table=position_table, conditioned=self.conditioned),
            ordinal=COrdinal(parameters=config.ordinal_outputs, residual_scale=RESIDUAL_SCALE,
                             initial_sharpness=INITIAL_SHARPNESS),
            heads=packed.heads, report=CReport(not_finite=self.not_finite.data_ptr()),
        )
        if self.head_table is not None:
            self.session.heads.conditioning = self._keep(self.head_table, *self._table_shape(), by_row=True)
        if self.estimate is not None:
            self.session.ordinal.estimate = self._keep(self.estimate, self.batch, config.target_length, by_row=True)
        if shortlist is not None:
            self.session.heads.shortlist = self._shortlist(shortlist)
        self._neighbourhood()
        self._caches(memory)
        self._scratch()

    def _source_of(self, memory: Memory) -> tuple[Tensor, ...]:
        """Return the states and the mask: native.cpp computes keys and values from them, and `_recur` for itself."""
        return (memory.states, memory.hidden(memory.states.dtype)) if isinstance(self.heads, RecurrentHeads) else ()

    def _recur(
        self, heads: RecurrentHeads, state: Tensor, first: Tensor, offsets: Tensor, sampler: Sampler,
    ) -> Tensor:
        """See `ProposingSession._recur`."""
        kept, self.source = self.source, super()._source_of(Memory(*self.source))
        try:
            return super()._recur(heads, state, first, offsets, sampler)
        finally:
            self.source = kept

    @property
    def scored(self) -> int:
        """Number of columns of a step that get scores."""
        return self.width

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.interfaces.Session.step`."""
        tokens, position = tokens.contiguous(), position.contiguous()
        scores = torch.empty(self.batch, self.scored, self.config.vocabulary)
        hidden = torch.empty(self.batch, self.width, self.config.width)
        library().superres_step(
            byref(self.session), address(tokens, torch.int64, self.batch, self.width),
            address(position, torch.int64, self.batch), hidden.data_ptr(), scores.data_ptr(),
        )
        return StepOutput(scores, NativeState(hidden, position))

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor, sampler: Sampler) -> Tensor:
        """See `superres.interfaces.Session.propose`."""
        state: NativeState = output.state
        rule = None if isinstance(sampler, LimitedSampler) else sampler.additive(offsets)
        if rule is None:
            return super().propose(StepOutput(output.scores, self._plain(state)), index, first, offsets, sampler)
        temperature, noise = (None if part is None else part.float().flatten() for part in rule)
        index, first, count = index.contiguous(), first.contiguous(), len(offsets)
        if count > self.session.heads.count:
            raise ValueError(f"{count} proposals were requested from {self.session.heads.count} heads")
        tokens = torch.empty(self.batch, count, dtype=torch.int64)
        rows = (address(tensor, torch.int64, self.batch) for tensor in (state.position, index, first))
        library().superres_propose(
            byref(self.session), *rows, count,
            address(state.hidden, torch.float32, self.batch, self.width, self.config.width),
            address(temperature, torch.float32, self.batch * count),
            address(noise, torch.float32, self.batch * count * self.config.vocabulary),
            self.room.data_ptr(), tokens.data_ptr(),
        )
        return tokens

    def iterations(self, state: LoopState) -> Callable[[int, int], Tensor] | None:
        """See `superres.interfaces.IteratingSession.iterations`.

        Raises:
            ValueError: the tensors of `state` are too small for the session's step width, or the session's step width
                is too small for its block size or minimum block size.
        """
        width, room, draft = self.width, state.proposals.shape[1], state.proposer.draft
        if not isinstance(draft, NativeSession | None) or not self._knows_block_costs(state):
            return None
        most = self._largest_block(state)
        scratch = None if self.heads is None else self.room
        loop = loop_of(state, self.session, scratch, None if draft is None else draft.session)

        def iterate(count: int, following: int) -> Tensor:
            if not 1 <= following <= most or not max(state.block_size, state.min_block) <= self.width <= width:
                raise ValueError(f"iterations in blocks of {state.block_size} have no memory for steps of {self.width} "
                                 f"that propose blocks of {following}")
            record = torch.empty(count, self.batch, room + 2, dtype=torch.int64)
            pointers = byref(self.session), byref(loop)
            made: int = library().superres_iterate(*pointers, count, following, record.data_ptr())
            if self.not_finite:
                self.not_finite.zero_()  # the session may decode other rows later
                raise ScoresError
            return record[:made]

        return iterate

    def _largest_block(self, state: LoopState) -> int:
        """Return the most tokens of a block, after the checks of `iterations`."""
        width, room = self.width, state.proposals.shape[1]
        most = room
        if state.proposer.uses_heads:
            most = 1 if self.heads is None else min(room, 1 + self.heads.count)
        if room < width or state.store.shape[1] < 1 + self.config.target_length + width:
            raise ValueError(f"{room} proposals and {state.store.shape[1]} tokens of memory are too few "
                             f"for steps of {width}")
        if not 1 <= state.block_size <= min(width, most) or not 0 <= state.min_block <= width:
            raise ValueError(f"steps of {width} cannot verify blocks of {state.block_size}, at least {state.min_block}")
        return most

    def _knows_block_costs(self, state: LoopState) -> bool:
        """Return whether the session can choose the block size of every iteration, or need not."""
        if state.block_costs is None:
            return True
        most = 0 if self.heads is None or not state.proposer.uses_heads else 1 + self.heads.count
        # The centres of ordinal heads alone must determine their proposals.
        known = isinstance(self.heads, RecurrentHeads) or self.session.size.outputs == self.session.ordinal.parameters
        return known and state.sampling is None and len(state.block_costs.costs) <= min(self.width, most)

    def part_seconds(self, tokens: Tensor, position: Tensor, repeats: int) -> dict[str, float]:
        """See `superres.nn.engines.torch_step.StepSession.part_seconds`."""
        seconds = torch.zeros(len(DECLARATIONS.enums["Part"]), dtype=torch.float64)
        self.session.report.seconds = seconds.data_ptr()
        try:
            for _ in range(repeats):
                self.step(tokens, position)
        finally:
            self.session.report.seconds = None
        return {part: float(seconds[value("Part", part)]) / repeats for part in PARTS}

    def resize(self, width: int) -> None:
        """See `superres.interfaces.Session.resize`.

        Raises:
            ValueError: the session has no memory for steps of `width`.
        """
        if not 1 <= width <= self.widest:
            raise ValueError(f"a session for steps of up to {self.widest} tokens cannot read {width}")
        self.width = self.session.size.width = width

    def choose_threads(self, trials: ThreadTrials) -> None:
        """Use the number of threads that `trials` finds fastest; call it before the first real step."""
        tokens = torch.zeros(self.batch, self.width, dtype=torch.int64)
        position = torch.zeros(self.batch, dtype=torch.int64)

        def step(threads: int) -> None:
            self.session.threads.count = threads
            self.step(tokens, position)

        # A waits session uses exactly the number of threads that is timed, even on a busy machine.
        self.session.threads.waits = True
        self.session.threads.count = trials.fastest(step)
        self.session.threads.waits = False

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.interfaces.Session.select`."""
        used = min(length, self.session.size.slots)
        for layer in self.caches:
            for part, axis in zip(layer, SLOT_AXES, strict=False):
                begin = part.narrow(axis, 0, -(-used * part.shape[axis] // self.session.size.slots))
                begin.copy_(begin[rows])
        if self.deviation is not None:
            self.deviation.copy_(self.deviation[rows])

    def _plain(self, state: NativeState) -> StepState:
        """Return the state in the form of the plain session."""
        place = (state.position.unsqueeze(1) + torch.arange(self.width)).clamp(max=self.config.target_length - 1)
        features = self.session.neighbourhood.features
        gathered = self.gathered.flatten()[: self.batch * self.width * features].view(self.batch, self.width, features)
        return StepState(state.hidden, place, gathered if features else None)

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `superres.interfaces.Session.row_state`; adds the tensors that native.cpp reads."""
        tensors = [*super().row_state(), *self.by_row, *(part for layer in self.caches for part in layer if cache)]
        # Some of the tensors that native.cpp reads are those of the plain session.
        return list({tensor.data_ptr(): tensor for tensor in tensors}.values())

    def _table_shape(self) -> tuple[int, int, int]:
        """Return the shape of the tables that are looked up by position, [B or 1, T, D]."""
        return self.batch if self.conditioned else 1, self.config.target_length, self.config.width

    def _keep(self, tensor: Tensor, *shape: int, by_row: bool = False) -> int:
        """Keep a contiguous float32 form of `tensor` alive and return its address.

        Args:
            tensor: values of any shape with as many elements as `shape`.
            shape: the shape with which native.cpp reads them.
            by_row: whether the first axis is the batch, so that the tensor belongs to `row_state`.

        Raises:
            ValueError: the number of elements differs.
        """
        if tensor.numel() != math.prod(shape):
            raise ValueError(f"the native step wants {list(shape)}, not {list(tensor.shape)}")
        self.tensors.append(tensor.float().contiguous())
        if by_row:
            self.by_row.append(self.tensors[-1])
        address: int = self.tensors[-1].data_ptr()
        return address

    def _neighbourhood(self) -> None:
        """Fill the session's numeric neighbourhood, if the model has one."""
        near = self.packed.model.neighbourhood
        self.deviation: Tensor | None = None
        if near is None or self.residual_sum is None:
            return
        self.session.neighbourhood = self.packed.neighbourhood
        own = self.session.neighbourhood
        own.residual_sum = self._keep(self.residual_sum, self.batch, self.config.source_length, by_row=True)
        # Entry T stands for absent neighbours and stays 0.
        self.deviation = torch.zeros(self.batch, self.config.target_length + 2)
        own.deviation = self._keep(self.deviation, *self.deviation.shape, by_row=True)

    def _caches(self, memory: Memory) -> None:
        """Allocate the cache of every layer, and project the memory for cross-attention if the model has it."""
        config, session = self.config, self.session
        self.caches = [self._cache() for _ in range(config.decoder_layers)]
        self.layer_caches = session.cache = (CLayerCache * config.decoder_layers)()
        for layer, parts in zip(self.layer_caches, self.caches, strict=True):
            layer.self = CCache(*(part.data_ptr() for part in parts))
        if not config.cross_attention:
            return
        slots = session.size.cross_slots = memory.states.shape[1]
        mask = torch.zeros(self.batch, slots) if memory.mask is None else memory.mask[:, 0, 0]
        session.input.cross_mask = self._keep(mask, self.batch, slots, by_row=True)
        for layer in self.layer_caches:
            layer.cross = self._cross_cache()
        if session.heads.recurrent:
            session.heads.cross = self._cross_cache()
        states = memory.states.float().contiguous()
        library().superres_remember(byref(session), states.data_ptr())

    def _cache(self) -> tuple[Tensor, ...]:
        """Allocate the keys and values of a layer; as bytes with their scales if the products are int8.

        They are finite from the start: a step that is timed in the middle of a target reads them all, and a hidden
        value has weight 0, but 0 times NaN is NaN.
        """
        rows, slots = (self.batch, self.config.attention_heads), self.session.size.slots
        size = self.config.width // self.config.attention_heads
        if self.packed.precision != "int8":
            return torch.zeros(*rows, size, slots), torch.zeros(*rows, slots, size)
        quads = (size // 4, slots, 4), (slots // 4, size, 4)
        return (*(torch.empty(*rows, *shape, dtype=torch.uint8) for shape in quads),
                *(torch.zeros(*rows, slots) for _ in quads))

    def _shortlist(self, tokens: Tensor) -> CShortlist:
        """Keep the tokens [B, N], and memory for their weights, which `superres_remember` gathers."""
        batch, count = tokens.shape
        parts = [tokens.contiguous(), torch.empty(batch, count * self.config.width, dtype=torch.uint8),
                 torch.empty(batch, count), torch.empty(batch, count)]
        self.by_row += parts
        first, *others = (part.data_ptr() for part in parts)
        return CShortlist(count, first, self.packed.known.data_ptr(), *others)

    def _cross_cache(self) -> CCache:
        """Allocate the keys and values of the memory for a layer, which `superres_remember` writes."""
        shape = self.batch, self.session.size.cross_slots, self.config.width
        return CCache(*(self._keep(torch.empty(shape), *shape, by_row=True) for _ in range(2)))

    def _scratch(self) -> None:
        """Allocate the scratch buffers of native.cpp."""
        session, config = self.session, self.config
        rows = self.batch * self.width
        slots = max(session.size.slots, session.size.cross_slots) * config.attention_heads
        sizes = {"x": 2 * config.width, "parts": 2 * session.size.groups * config.width, "wide": config.filter_size,
                 "attended": config.width, "weights": slots, "projected": session.size.stride}
        self.gathered = torch.empty(self.batch, self.width, session.neighbourhood.features)
        session.scratch = CScratch(gathered=self.gathered.data_ptr(), **{
            name: self._keep(torch.empty(rows * size), rows * size) for name, size in sizes.items()})
        if self.heads is not None:
            count = library().superres_propose_room(byref(session), self.heads.count)
            self.room = torch.empty(self.batch * count)


class NativeTreeSession(NativeSession):
    """A batch being decoded by native steps over a tree: `superres.interfaces.TreeSession`."""

    def __init__(self, packed: PackedWeights, memory: Memory, tree: Tree, threads: int) -> None:
        """Prepare for steps over `tree`, whose root is column 0; other arguments as for `NativeSession`."""
        super().__init__(packed, memory, tree.size, threads)
        self.tree, self.start = tree, torch.zeros(self.batch, dtype=torch.int64)
        self.tensors += [tree.depth, tree.ancestors.contiguous()]
        self.session.tree = CTree(tree.scored, tree.ancestors.shape[1],
                                  *(part.data_ptr() for part in self.tensors[-2:]))
        for layer in self.layer_caches:
            layer.columns = self._keep(torch.zeros(self.batch, self.width, 2 * self.config.width),
                                       self.batch, self.width, 2 * self.config.width)

    @property
    def scored(self) -> int:
        """See `NativeSession.scored`."""
        return self.tree.scored

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.interfaces.TreeSession`."""
        self.start = position.clone()
        return super().step(tokens, position)

    def keep(self, columns: Tensor) -> None:
        """See `superres.interfaces.TreeSession.keep`."""
        columns = columns.contiguous()
        library().superres_keep(byref(self.session), address(columns, torch.int64, self.batch, columns.shape[1]),
                                columns.shape[1], address(self.start, torch.int64, self.batch))

    def iterations(self, state: LoopState) -> Callable[[int, int], Tensor] | None:
        """See `superres.interfaces.IteratingSession.iterations`; sampled tokens are chosen in single steps."""
        return None if state.sampling is not None or state.lookahead is None else super().iterations(state)

    def resize(self, width: int) -> None:
        """Accept only the width of the tree.

        Raises:
            ValueError: `width` is another one.
        """
        if width != self.width:
            raise ValueError(f"a session over a tree of {self.width} columns cannot read {width}")


def groups_of(config: ModelConfig) -> int:
    """Return into how many groups the attention heads and hidden units of a layer are divided, for threads to share."""
    return next(groups for groups in range(max(1, config.width // GROUP_WIDTH), 0, -1) if not (
        config.attention_heads % groups or config.width // groups % PANEL or config.filter_size // groups % PANEL))


def rows_together(packed: PackedWeights, slots: int) -> int:
    """Return how many rows, with caches of `slots` slots, a thread decodes together: see `superres_iterate`.

    The rows of a group share each read of the weights, but the key-value caches of a large group do not fit the
    processor's cache. The smaller the caches are relative to the weights, the larger is the best group.
    """
    config = packed.model.config
    cache = 2 * config.decoder_layers * config.width * slots * torch.float32.itemsize
    return max(2, packed.bytes // (2 * cache))


class NativeModel(StepModel):
    """`EncoderDecoder` as a `superres.interfaces.ScoringModel` whose steps run in native.cpp.

    Attributes:
        threads: largest number of threads per step; None measures which number is fastest.
        shortlists: returns the tokens from which recurrent heads sampler, for sources int64 [B, S], as int64 [B, N]: a
            multiple of 32 tokens, -1 past the last; None if they choose from all.
    """

    engine = "native"
    own_threads = True
    width_invariant = True

    def __init__(
        self, model: EncoderDecoder, end_token: int | None = None, *, threads: int | None = None,
        precision: str = "float32",
    ) -> None:
        """Pack the weights of `model`, which must be in evaluation mode and on the CPU.

        Args:
            model: the network.
            end_token: as in `StepModel`.
            threads: largest number of threads per step; None measures which number is fastest, up to torch's limit.
            precision: format of the weights. "bfloat16" halves the bytes that a step reads; sums stay in float32.
                Where the processor multiplies pairs of bfloat16 (AVX-512 BF16), inputs are rounded to bfloat16 too,
                which is twice as fast. "int8" also stores keys and values in a byte each, and rounds the inputs of
                products: every column with a scale of its own, so that no result depends on the step width. The sums
                are exact integers. The encoder of images has the same format.

        Raises:
            NativeUnavailable: the code cannot be built on this machine, or does not support the network.
        """
        super().__init__(model, end_token)
        self.engine, self.half = ENGINES[precision], precision != "float32"
        config = model.config
        if model.signal.device.type != "cpu":
            raise NativeUnavailable(f"the native step runs on the CPU, not on {model.signal.device.type}; choose plain")
        if not config.identity_p1:
            raise NativeUnavailable("the native step knows no p1 but the base model itself")
        if any(size % PANEL for size in (config.width, config.filter_size, config.head_filter_size)):
            raise NativeUnavailable(f"width and filter sizes must be multiples of {PANEL}")
        if config.width // config.attention_heads % LANES:
            raise NativeUnavailable(f"the width of an attention head must be a multiple of {LANES}")
        if precision == "int8" and config.width // config.attention_heads > MAX_HEAD:
            raise NativeUnavailable(f"with int8, the width of an attention head must be at most {MAX_HEAD}, not "
                                    f"{config.width // config.attention_heads}; choose native")
        library()
        self.threads = threads
        self.trials: dict[tuple[int, int, int], ThreadTrials] = {}
        with torch.inference_mode():
            self.packed = PackedWeights(model, precision)
            self.encoder = NativeEncoder(model, precision) if supports(model) else None

    @property
    def code(self) -> str:
        """See `StepModel.code`."""
        return f"{self.engine} {chosen().identity}"

    def side_by_side(self, decodes: int) -> list[StepModel]:
        """See `StepModel.side_by_side`: every decode gets a thread or more of its own, and does not wait for others."""
        most = self._most_threads()
        count = max(1, min(decodes, most))
        if count == 1:
            return [self]
        own = copy.copy(self)
        own.threads, own.trials = most // count, {}
        return [own] * count

    def encode(self, source: Sources, padding: Tensor | None = None, copies: int = 1) -> Memory:
        """See `StepModel.encode`."""
        if self.encoder is not None and isinstance(source, Tensor):
            tokens, source = source, self.encoder(source, self._most_threads(), padding)
            source.tokens = None if self.shortlists is None else tokens
        with self._torch_threads(len(source.states if isinstance(source, Memory) else source)):
            return super().encode(source, padding, copies)

    def session(  # type: ignore[override]
        self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1,
    ) -> NativeSession:
        """See `superres.interfaces.ScoringModel.session`."""
        most = self._most_threads()
        memory = self.encode(source, padding, copies)
        with self._torch_threads(len(memory.states)):
            return self._timed(NativeSession(self.packed, memory, width, most, self._shortlist(memory, width)), most)

    def _shortlist(self, memory: Memory, width: int) -> Tensor | None:
        """Return the shortlists for heads, int64 [B, N]; None if there are none or no head proposes."""
        if self.shortlists is None or memory.tokens is None or width == 1 or self.packed.heads.recurrent == 0:
            return None
        return torch.from_numpy(self.shortlists(memory.tokens.numpy()))

    def tree_session(  # type: ignore[override]
        self, source: Sources, tree: Tree, kept: int, padding: Tensor | None = None,
    ) -> TreeSession:
        """See `superres.interfaces.ScoringModel.tree_session`; images, and trees with a trunk, get the plain step."""
        if tree.root or self.model.config.ordinal_output or self.model.neighbourhood is not None:
            return super().tree_session(source, tree, kept, padding)
        most = self._most_threads()
        memory = self.encode(source, padding)
        with self._torch_threads(len(memory.states)):
            return self._timed(NativeTreeSession(self.packed, memory, tree, most), most)

    def _timed(self, session: AnySession, most: int) -> AnySession:
        """Let `session` use the fastest number of threads up to `most`, unless the number is fixed."""
        if self.threads is None:
            # With at least one row per thread, threads do not wait for one another: such batches share their timings.
            trials = self.trials.setdefault((min(session.batch, most), session.width, most), ThreadTrials(most))
            session.choose_threads(trials)
        return session

    def _most_threads(self) -> int:
        return self.threads or min(TorchThreads.limit(), usable_cores())

    def _torch_threads(self, sources: int) -> TorchThreads:
        """Limit torch to one thread for few sources or little work, or on a busy machine; else use all its threads."""
        few = self.encoder is not None or sources < SOURCES_FOR_THREADS
        return TorchThreads(1 if few or library().superres_busy() else None)
