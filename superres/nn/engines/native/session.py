"""The decoding step as one call of compiled code (the folder `cpp`), for CPUs: built on first use, and kept.

`NativeModel` takes the place of `superres.nn.engines.torch_model.StepModel` where a compiler is found and the network
is one that the code knows; otherwise `superres.nn.engines` says so in the log and the plain step serves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from ctypes import byref, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from superres.errors import ScoresError
from superres.interfaces import Choose, LoopState, Sources, StepOutput
from superres.nn.attention import Attention
from superres.nn.cache import slot_count
from superres.nn.engines.native.build import LANES, PANEL, CCache, CLayer, CLoop, CSession, NativeUnavailable, library
from superres.nn.engines.native.weights import PackedWeights
from superres.nn.engines.proposing import ProposingSession, StepState
from superres.nn.engines.torch_model import StepModel
from superres.nn.engines.torch_step import PARTS
from superres.nn.image_priors import INITIAL_SHARPNESS, RESIDUAL_SCALE
from superres.nn.model import EncoderDecoder, Memory
from superres.system.machine import TorchThreads, usable_cores

SOURCES_FOR_THREADS = 8
"""Sources that torch encodes with several threads. With fewer it would save 5 ms, and lose a second beside a busy
process, since its threads wait for one another after every operation."""

FIRST_ROUNDS, ROUNDS, IN_A_ROW = 4, 16, 4
"""Steps with each number of threads, of which the fastest counts: in turns, so that a machine that is busy for a moment
slows all alike; some in a row, since threads that were asleep are slow at first; and a few in each of the sessions
after the first, since it may have been busy for all of that."""


@dataclass
class NativeState:
    """What proposals are computed from: the step's hidden states [B, W, D] and first positions [B]."""

    hidden: Tensor
    position: Tensor


class NativeSession(ProposingSession):
    """A batch being decoded by native.cpp: `superres.interfaces.Session`. It serves one decode, in one thread."""

    def __init__(self, packed: PackedWeights, memory: Memory, width: int, threads: int) -> None:
        """Allocate cache and scratch for the sources of `memory` and steps of `width` on `threads` threads."""
        config = packed.model.config
        super().__init__(packed.fused, memory, width)
        self.packed, self.kept = packed, list[Any]()
        self.flawed = torch.zeros(1, dtype=torch.int64)
        self.by_row: list[Tensor] = []
        # Whole groups of keys are read, and no two of them may share slots.
        slots = slot_count(config, width) + 2 * LANES - 1
        slots += -slots % LANES
        self.session = CSession(
            batch=self.batch, width=width, length=config.target_length, size_d=config.width,
            attention_heads=config.attention_heads, filter=config.filter_size, layers=config.decoder_layers,
            vocabulary=config.vocabulary, channels=config.channels, outputs=config.outputs, slots=slots,
            # Causal attention is local attention whose block nobody ever leaves.
            block_length=config.attention_block_length if config.attention == "local_1d" else slots,
            pre=packed.pre, threads=threads, patient=False, stride=max(3 * config.width, packed.project.panels * PANEL),
            together=rows_together(packed, slots),
            final_weight=packed.final[0], final_bias=packed.final[1], project=packed.project,
            int8_filter=packed.int8_filter,
            token_table=packed.token_table, flawed=self.flawed.data_ptr(),
            position_table=self._keep(self.position_table, *self._table_shape(), by_row=self.conditioned),
            conditioned=memory.conditioning is not None, ordinal=config.ordinal_output,
            residual_scale=RESIDUAL_SCALE, initial_sharpness=INITIAL_SHARPNESS, heads=packed.heads,
        )
        if self.head_table is not None:
            self.session.heads.conditioning = self._keep(self.head_table, *self._table_shape(), by_row=True)
        if self.recurrence is not None:
            size = self.batch, memory.states.shape[1], config.width
            self.session.heads.cross = CCache(*(self._keep(part, *size) for part in (
                self.recurrence.key, self.recurrence.value)))
        if self.estimate is not None:
            self.session.estimate = self._keep(self.estimate, self.batch, config.target_length, by_row=True)
        self._neighbourhood()
        self._caches(memory)
        self._scratch()

    def step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        """See `superres.interfaces.Session.step`."""
        tokens, position = tokens.contiguous(), position.contiguous()
        scores = torch.empty(self.batch, self.width, self.config.vocabulary)
        hidden = torch.empty(self.batch, self.width, self.config.width)
        library().superres_step(
            byref(self.session), _address(tokens, torch.int64, self.batch, self.width),
            _address(position, torch.int64, self.batch), c_void_p(hidden.data_ptr()), c_void_p(scores.data_ptr()),
        )
        return StepOutput(scores, NativeState(hidden, position))

    def propose(self, output: StepOutput, index: Tensor, first: Tensor, offsets: Tensor, choose: Choose) -> Tensor:
        """See `superres.interfaces.Session.propose`."""
        state: NativeState = output.state
        rule = choose.additive(offsets)
        if rule is None:
            return super().propose(StepOutput(output.scores, self._plain(state)), index, first, offsets, choose)
        temperature, noise = (None if part is None else part.float().flatten() for part in rule)
        index, first, count = index.contiguous(), first.contiguous(), len(offsets)
        if count > self.session.heads.count:
            raise ValueError(f"{count} proposals are asked of {self.session.heads.count} heads")
        tokens = torch.empty(self.batch, count, dtype=torch.int64)
        rows = (_address(tensor, torch.int64, self.batch) for tensor in (state.position, index, first))
        library().superres_propose(
            byref(self.session), *rows, c_int64(count),
            _address(state.hidden, torch.float32, self.batch, self.width, self.config.width),
            _address(temperature, torch.float32, self.batch * count),
            _address(noise, torch.float32, self.batch * count * self.config.vocabulary),
            c_void_p(self.room.data_ptr()), c_void_p(tokens.data_ptr()),
        )
        return tokens

    def iterations(self, state: LoopState) -> Callable[[int, int], Tensor] | None:
        """See `superres.interfaces.IteratingSession.iterations`; greedy decoding by these heads is known."""
        options, width, room = state.options, self.width, state.proposals.shape[1]
        bounds = {"exact": 0, "distance": options.epsilons[0], "top-k": min(options.top_k, self.config.vocabulary)}
        one_bound = options.accept in bounds and (options.accept != "distance" or len(options.epsilons) == 1)
        if options.is_sampling or options.proposer != "heads" or not one_bound:
            return None
        integers = torch.empty(2 * width + room + 3, self.batch, dtype=torch.int64)
        stride = state.store.shape[1]
        if room < width or stride < 1 + self.config.target_length + width:
            raise ValueError(f"{room} proposals and {stride} tokens of memory are too few for steps of {width}")
        shared = {
            "position": _address(state.position, torch.int64, self.batch),
            "limit": _address(state.limit, torch.int64, self.batch),
            "store": _address(state.store, torch.int64, self.batch, stride),
            "proposals": _address(state.proposals, torch.int64, self.batch, room),
        }
        kept = {
            "tokens": integers[:width], "best_tokens": integers[width : 2 * width], "next": integers[2 * width :],
            "place": integers[-3], "index": integers[-2], "first": integers[-1],
            "hidden": torch.empty(self.batch, width, self.config.width),
            "scores": torch.empty(self.batch, width, self.config.vocabulary),
            "scratch": self.room if self.heads is not None else None,
        }
        loop = CLoop(
            block_size=state.block_size, room=room, stride=stride,
            minimum=options.min_block, best=options.accept == "top-k", bound=bounds[options.accept],
            end_token=-1 if state.end_token is None else state.end_token,
            **shared, **{name: None if tensor is None else tensor.data_ptr() for name, tensor in kept.items()},
        )
        loop.kept = kept, state  # as long as there are addresses of it

        def iterate(count: int, following: int) -> Tensor:
            record = integers.new_empty(count, self.batch, room + 2)
            counts = c_int64(count), c_int64(following)
            address = c_void_p(record.data_ptr())
            made: int = library().superres_iterate(byref(self.session), byref(loop), *counts, address)
            if self.flawed:
                self.flawed.zero_()  # the session may serve other rows later
                raise ScoresError
            return record[:made]

        return iterate

    def part_seconds(self, tokens: Tensor, position: Tensor, repeats: int) -> dict[str, float]:
        """See `superres.nn.engines.torch_step.StepSession.part_seconds`."""
        seconds = torch.zeros(len(PARTS), dtype=torch.float64)
        self.session.seconds = seconds.data_ptr()
        try:
            for _ in range(repeats):
                self.step(tokens, position)
        finally:
            self.session.seconds = None
        return dict(zip(PARTS, (seconds / repeats).tolist(), strict=True))

    def resize(self, width: int) -> None:
        """See `superres.interfaces.Session.resize`."""
        self.width = self.session.width = width

    def select(self, rows: Tensor, length: int) -> None:
        """See `superres.interfaces.Session.select`."""
        used = min(length, self.session.slots)
        for key, value in self.caches:
            key[..., :used] = key[rows, :, :, :used]
            value[:, :, :used] = value[rows, :, :used]
        if self.deviation is not None:
            self.deviation.copy_(self.deviation[rows])

    def _plain(self, state: NativeState) -> StepState:
        """Return the state as the plain session has it."""
        place = (state.position.unsqueeze(1) + torch.arange(self.width)).clamp(max=self.config.target_length - 1)
        features = self.session.features
        gathered = self.gathered.flatten()[: self.batch * self.width * features].view(self.batch, self.width, features)
        return StepState(state.hidden, place, gathered if features else None)

    def row_state(self) -> list[Tensor]:
        """See `superres.nn.engines.torch_step.ProposingSession.row_state`; what native.cpp reads comes along."""
        return [*super().row_state(), *(tensor.view(self.batch, -1) for tensor in self.by_row)]

    def _table_shape(self) -> tuple[int, int, int]:
        """Return the shape of what is looked up by position."""
        return self.batch if self.conditioned else 1, self.config.target_length, self.config.width

    def _keep(self, tensor: Tensor, *shape: int, by_row: bool = False) -> int:
        """Keep a contiguous float32 form of `tensor`, perhaps one of single rows, and return its address.

        Raises:
            ValueError: it has another number of values than `shape` says.
        """
        if tensor.numel() != math.prod(shape):
            raise ValueError(f"the native step wants {list(shape)}, not {list(tensor.shape)}")
        self.kept.append(tensor.float().contiguous())
        if by_row:
            self.by_row.append(self.kept[-1])
        address: int = self.kept[-1].data_ptr()
        return address

    def _neighbourhood(self) -> None:
        """Hand over the numeric neighbourhood, if there is one."""
        near, session, packed = self.packed.model.neighbourhood, self.session, self.packed
        self.deviation: Tensor | None = None
        if near is None or self.residual_sum is None:
            return
        session.features, session.near = near.first.in_features, near.table.shape[1]
        session.cell_size = near.cell_positions.shape[1] if near.remainder else 0
        session.near_table, session.cell, session.cell_positions = packed.tables
        session.source_length = self.config.source_length
        session.residual_sum = self._keep(self.residual_sum, self.batch, self.config.source_length, by_row=True)
        # Entry T is the "absent" neighbour and stays 0.
        self.deviation = torch.zeros(self.batch, self.config.target_length + 2)
        session.deviation = self._keep(self.deviation, *self.deviation.shape, by_row=True)
        session.first, session.second = packed.first, packed.second
        session.channel_bias, session.direct = packed.channel_bias, packed.direct

    def _caches(self, memory: Memory) -> None:
        """Allocate the cache of every layer, and project the memory for cross-attention where there is any."""
        config, session = self.config, self.session
        layers = (CLayer * config.decoder_layers)(*self.packed.layers)
        rows, size = (self.batch, config.attention_heads), config.width // config.attention_heads
        self.caches = [
            (torch.zeros(*rows, size, session.slots), torch.zeros(*rows, session.slots, size)) for _ in layers
        ]
        for number, layer in enumerate(layers):
            layer.self = CCache(*(self._keep(part, *part.shape, by_row=True) for part in self.caches[number]))
            cross = self.packed.model.decoder[number].cross_attention
            if isinstance(cross, Attention):
                parts = _cross_cache(cross, memory.states)
                whole = self.batch, memory.states.shape[1], config.width
                layer.cross = CCache(*(self._keep(part, *whole, by_row=True) for part in parts))
        if config.cross_attention:
            session.cross_slots = memory.states.shape[1]
            mask = torch.zeros(self.batch, session.cross_slots) if memory.mask is None else memory.mask[:, 0, 0]
            session.cross_mask = self._keep(mask, self.batch, session.cross_slots, by_row=True)
        self.layers = session.layer = layers

    def _scratch(self) -> None:
        """Allocate what the code computes in."""
        session, config = self.session, self.config
        rows = self.batch * self.width
        slots = max(session.slots, session.cross_slots) * config.attention_heads
        sizes = {"x": config.width, "wide": config.filter_size,
                 "attended": config.width, "weights": slots, "projected": session.stride}
        for name, size in sizes.items():
            setattr(session, name, self._keep(torch.zeros(rows * size), rows * size))
        self.gathered = torch.zeros(self.batch, self.width, session.features)
        session.gathered = self.gathered.data_ptr()
        if self.heads is not None:
            count = library().superres_propose_room(byref(session), c_int64(self.heads.count))
            self.room = torch.empty(self.batch * count)


def rows_together(packed: PackedWeights, slots: int) -> int:
    """Return how many rows of a thread, with caches of `slots`, do some iterations before others have their turn.

    Weights are read once for all of them; but caches of many rows do not fit near the processor, where they are wanted
    again and again. Where they are small beside the weights, more rows pay.
    """
    config = packed.model.config
    cache = 2 * config.decoder_layers * config.width * slots * torch.float32.itemsize
    return max(2, packed.bytes // (2 * cache))


class ThreadTrials:
    """How fast a step is with each number of threads, as far as was seen."""

    def __init__(self, most: int) -> None:
        """Compare powers of two up to `most`, and that."""
        self.rounds = 0
        self.least = {2**power: math.inf for power in range((most - 1).bit_length())} | {most: math.inf}

    def fastest(self, session: NativeSession) -> int:
        """Return how many threads do a step fastest, after some trials by `session` before its first step."""
        tokens = torch.zeros(session.batch, session.width, dtype=torch.int64)
        position = torch.zeros(session.batch, dtype=torch.int64)
        more = FIRST_ROUNDS if not self.rounds else int(self.rounds < ROUNDS)
        self.rounds += more
        # Each number of threads is to be timed as it is, even if the machine is busy for a moment.
        session.session.patient = True
        for threads in (*self.least,) * more:
            session.session.threads = threads
            for _ in range(IN_A_ROW):
                started = time.perf_counter()
                session.step(tokens, position)
                self.least[threads] = min(self.least[threads], time.perf_counter() - started)
        session.session.patient = False
        best = 1
        for threads, seconds in self.least.items():
            if seconds < 0.95 * self.least[best]:  # a thread more has to be worth it
                best = threads
        return best


def _address(tensor: Tensor | None, dtype: torch.dtype, *shape: int) -> c_void_p:
    """Return the address of a contiguous tensor, null for None.

    Raises:
        ValueError: it has not the type or shape with which native.cpp reads it.
    """
    if tensor is None:
        return c_void_p(None)
    if tensor.dtype != dtype or tensor.shape != shape or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError(f"the native step wants contiguous {dtype} {list(shape)} on the CPU, not {tensor.dtype} "
                         f"{list(tensor.shape)} on {tensor.device.type}")
    return c_void_p(tensor.data_ptr())


def _cross_cache(attention: Attention, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys [B, H, size, slots] and values [B, H, slots, size] of the memory."""
    key, value = attention.keys_and_values(states)
    return key.transpose(2, 3), value


class NativeModel(StepModel):
    """`EncoderDecoder` as a `superres.interfaces.ScoringModel`, its step in native.cpp."""

    engine = "native"
    own_threads = True

    def __init__(
        self, model: EncoderDecoder, end_token: int | None = None, *, threads: int | None = None, half: bool = False,
    ) -> None:
        """Pack the weights of `model`, which must be in evaluation mode and on the CPU.

        Args:
            model: the network.
            end_token: as in `StepModel`.
            threads: of a step; None measures how many serve best, up to as many as torch has.
            half: keep weights as bfloat16, which halves what a step reads; sums stay in float32. A processor that
                multiplies pairs of bfloat16 (AVX-512 BF16) gets both factors as such, and does it twice as fast.
                The aligned conditioning is computed in bfloat16, too.

        Raises:
            NativeUnavailable: the code cannot be built here, or does not know such a network.
        """
        super().__init__(model, end_token)
        self.engine, self.half = "native-bf16" if half else "native", half
        config = model.config
        if model.signal.device.type != "cpu":
            raise NativeUnavailable(f"the native step runs on the CPU, not on {model.signal.device.type}; choose plain")
        if not config.identity_p1 or config.head_layer == "dense":
            raise NativeUnavailable("the native step knows no dense head layer, and no p1 but the base model itself")
        if any(size % PANEL for size in (config.width, config.filter_size, config.head_filter_size)):
            raise NativeUnavailable(f"width and filter sizes must be multiples of {PANEL}")
        if config.width // config.attention_heads % LANES:
            raise NativeUnavailable(f"the width of an attention head must be a multiple of {LANES}")
        library()
        self.threads = threads
        self.trials: dict[tuple[int, int, int], ThreadTrials] = {}
        with torch.inference_mode():
            self.packed = PackedWeights(self.fused, half)

    def encode(self, source: Sources, padding: Tensor | None = None, copies: int = 1) -> Memory:
        """See `StepModel.encode`."""
        with _threads_for(len(source.states if isinstance(source, Memory) else source)):
            return super().encode(source, padding, copies)

    def session(  # type: ignore[override]
        self, source: Sources, width: int, padding: Tensor | None = None, copies: int = 1,
    ) -> NativeSession:
        """See `superres.interfaces.ScoringModel.session`."""
        most = self.threads or min(TorchThreads.limit(), usable_cores())
        memory = self.encode(source, padding, copies)
        with _threads_for(len(memory.states)):
            session = NativeSession(self.packed, memory, width, most)
        if self.threads is None:
            # With a thread a row there is nothing to wait for; how the threads of a team get on, only trying tells.
            trials = self.trials.setdefault((min(session.batch, most), width, most), ThreadTrials(most))
            session.session.threads = trials.fastest(session)
        return session


def _threads_for(sources: int) -> TorchThreads:
    """Let torch prepare so many sources with one thread, or with all that it has."""
    return TorchThreads(1 if sources < SOURCES_FOR_THREADS or library().superres_busy() else None)
