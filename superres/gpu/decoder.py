"""The decoder of the engine `triton`: the rows of a `PlainDecoder`, whose iterations the kernel
does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from superres.decoding.plain.blockwise import PlainDecoder
from superres.decoding.plain.limited import unwrapped
from superres.decoding.proposers import PROPOSERS
from superres.errors import ScoresError
from superres.gpu.kernel import decode
from superres.gpu.launch import Compiled, compiled, launch, loaded
from superres.gpu.session import TritonSession
from superres.gpu.weights import COLUMNS, FLOAT, HALF, Tuning, Weights, pack, power
from superres.nn.cache import KeyValueCache
from superres.nn.model import EncoderDecoder
from superres.sessions import Session

RULES = {"distance": 0, "rank": 1}


def supports(plain: PlainDecoder) -> bool:
    """Return whether the kernel does the iterations of `plain`."""
    session = unwrapped(plain.session)[0]
    data = (plain.proposer.as_data() if type(plain.proposer) in PROPOSERS.data.values()
            else None)
    return (type(plain) is PlainDecoder and isinstance(session, TritonSession)
            and plain.state.proposals.shape[1] <= COLUMNS and data is not None and data.kind
            == "heads"
            and getattr(plain.criterion, "rule", None) is not None
            and plain.block_size <= session.config.prediction_heads
            and plain.block_costs is None and plain.end_token is None)


def compiled_for(
    model: EncoderDecoder, half: bool, capability: tuple[int, int] = (9, 0),
    tuning: Tuning | None = None, **changes: int,
) -> Compiled:
    """Compile the kernel of greedy decoding with a network for GPUs of a `capability`; needs no
    GPU.

    `changes` are constants of other settings: E, SAMPLED, FILTERED, SPECULATIVE.
    """
    kind = torch.bfloat16 if half else torch.float32
    weights = pack(model, kind, tuning or (HALF if half else FLOAT))
    slots = KeyValueCache(model.config, 1, COLUMNS, torch.empty(0), weights.tuning.chunk).slots
    i32, i64, f32 = torch.int32, torch.int64, torch.float32
    kinds = [i64] * 5 + [i32, kind] + [f32] * 4 + [i32, i32, i64, i64, i64, f32, torch.float64, i32,
                                                   i64]
    constants = constants_of(weights, weights.tuning, slots) | changes
    return compiled(decode, kinds + [tensor.dtype for tensor in weights.tensors], constants,
                    weights.tuning.warps, capability)


def constants_of(weights: Weights, tuning: Tuning, slots: int) -> dict[str, Any]:
    """Return the constants of the kernel, without limits and sampling, for rings of `slots`."""
    return weights.sizes | tuned(tuning) | {
        "R": slots, "E": 0, "QUARTERS": weights.kind == torch.float32,
        "SAMPLED": False, "FILTERED": False, "SPECULATIVE": False}


def tuned(tuning: Tuning) -> dict[str, Any]:
    """Return the constants of the kernel that a tuning determines."""
    return {"C": tuning.chunk, "ROWS": tuning.rows, "PRECISION": tuning.precision,
            "STAGES": tuning.stages, "SHORT_STAGES": tuning.short_stages}


class TritonDecoder:
    """The iterations of a `PlainDecoder` in one launch per `advance`: a
    `superres.sessions.TensorDecoder`."""

    def __init__(self, plain: PlainDecoder) -> None:
        self.plain = plain
        session = unwrapped(plain.session)[0]
        if not isinstance(session, TritonSession):
            raise ValueError("these rows are not of a session of the kernel")
        # Fixed for the decoder's life: rows that end leave fewer, and another kernel would have to
        # be compiled.
        self.alone = session.weights.tuning
        self.tuning = self.alone.for_batch(session.batch, plain.state.store.device)
        # Weights that the pending proposals were drawn from, and their sums, in speculative
        # sampling.
        shape = (session.batch, COLUMNS) if plain.samplers.speculative else (1, 1)
        self.q_totals = plain.state.position.new_zeros(shape)
        self.q = self.q_totals.new_zeros(*shape, plain.samplers.vocabulary, dtype=torch.int32)
        self._bind()

    @property
    def variant(self) -> tuple[int, ...]:
        """What distinguishes this kernel from the others of the network."""
        return tuple(self.constants[name] for name in ("ROWS", "E", "SAMPLED", "FILTERED",
                                                       "SPECULATIVE"))

    def prepare(self) -> None:
        """Compile and load the kernel for these settings, which may raise an error of Triton or of
        the driver."""
        device = self.plain.state.store.device
        kinds = [torch.int64] * 5 + [torch.int32] + [one.dtype for one in self.tensors]
        if device.type == "cuda":
            self.choose_rows(lambda tuning: loaded(
                decode, device, kinds, self.constants | tuned(tuning), tuning.warps).code.sums)

    def choose_rows(self, sums: Callable[[Tuning], list[str]]) -> None:
        """Let several rows share a program only if the kernel's `sums` then have the order of those
        of one row.

        The compiler chooses the order, and tokens must not depend on the batch.
        """
        if sums(self.tuning) != sums(self.alone):
            self.tuning = self.alone
            self.constants |= tuned(self.tuning)

    def shrink(self, rows: Tensor, session: Session) -> None:
        self.plain.shrink(rows, session)
        if self.plain.samplers.speculative:
            self.q, self.q_totals = self.q[rows], self.q_totals[rows]
        self._bind()

    def advance(self, count: int) -> Tensor:
        """See `superres.sessions.TensorDecoder.advance`; rows stop by themselves."""
        plain, state = self.plain, self.plain.state
        count = count if plain.block_size == state.block_size else 1
        kind, bound = plain.criterion.rule or ("distance", 0)
        batch, capacity = state.proposals.shape
        # rows that are complete write nothing
        record = state.position.new_zeros(count, batch, 2 + capacity)
        status = torch.zeros(batch, 2, dtype=torch.int32, device=record.device)
        numbers = (batch, count, state.block_size, plain.block_size, plain.min_block, RULES[kind],
                   min(bound, 2**31 - 1), state.store.shape[1], capacity, *self.filters)
        tensors = [state.store, state.position, state.limit, state.proposals, record, status,
                   *self.tensors]
        programs = -(-batch // self.tuning.rows)
        launch(decode, programs, tensors, numbers, self.constants, self.tuning.warps)
        made, bad = status.amax(0).tolist()
        if bad:
            raise ScoresError
        state.block_size = plain.block_size
        return record[:made]

    def _bind(self) -> None:
        """Find the tensors of the rows."""
        session, limits, bounds = unwrapped(self.plain.session)
        if not isinstance(session, TritonSession) or session.estimate is None:
            raise ValueError("these rows are not of a session of the kernel")
        estimate = session.estimate.float().contiguous()
        weights, length, batch = session.weights, session.config.target_length, session.batch

        def rows(table: Tensor | None) -> Tensor:
            if table is None:
                return estimate.new_zeros(batch, length, session.config.width)
            return table.float().expand(batch, -1, -1).contiguous()

        group = earlier = estimate.new_zeros(1, dtype=torch.int32)
        self.constants = constants_of(weights, self.tuning, session.cache.slots)
        if limits is not None and bounds is not None:
            self.constants["E"] = size = power(limits.earlier.shape[1])
            group = limits.group.int()
            earlier = F.pad(limits.earlier, (0, size - limits.earlier.shape[1]),
                            value=-1).int().contiguous()
        else:
            bounds = self.plain.state.limit
        samplers = self.plain.samplers
        options, temperatures, vocabulary = (samplers.options, samplers.temperatures,
                                             samplers.vocabulary)
        self.filters = len(temperatures), min(options.sample_top_k or vocabulary, vocabulary)
        sampled = samplers.noise is not None
        self.constants |= {"SAMPLED": sampled,
                           "FILTERED": sampled
                           and (self.filters[1] < vocabulary or options.nucleus < 1),
                           "SPECULATIVE": samplers.speculative}
        noise = [torch.tensor([options.seed], device=estimate.device), self.plain.keys,
                 temperatures.float(), temperatures.new_tensor([options.nucleus]), self.q,
                 self.q_totals]
        self.tensors = [session.cache.store, session.deviation, rows(session.position_table),
                        rows(session.head_table), estimate, group, earlier, bounds, *noise,
                        *weights.tensors]
