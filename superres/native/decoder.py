"""The decoder for CPUs: native.cpp does whole iterations, the twin of `superres.decoding` in
`cpp/decode`."""

from __future__ import annotations

from ctypes import byref, pointer

import torch
from torch import Tensor

from superres.decoding.blockwise import PlainDecoder
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.lookahead.iteration import LookaheadDecoder
from superres.decoding.sum_limits import unwrapped
from superres.errors import ScoresError
from superres.interfaces import Session
from superres.native import abi
from superres.native.build import library
from superres.native.session import NativeSession, address
from superres.nn.heads import RecurrentHeads


def native_decoder(plain: PlainDecoder) -> NativeDecoder | None:
    """Return a decoder that takes over the rows of `plain`, or None if native.cpp does not support
    its settings.

    It knows the package's own criteria, and the proposers heads, draft and lookahead. All others,
    and classes that derive from these, leave the iterations to the plain decoder, whose steps are
    native all the same.
    """
    session, limits, _ = unwrapped(plain.session)
    rule, sampling = getattr(plain.criterion, "rule", None), plain.samplers.noise is not None
    if type(plain.proposer) not in PROPOSERS.data.values():
        return None
    data = plain.proposer.as_data(plain.session)
    if not isinstance(session, NativeSession) or rule is None or data is None:
        return None
    draft, draft_limits, _ = unwrapped(data.draft)
    if not isinstance(draft, NativeSession | None):
        return None
    if draft is not None and (draft_limits is None) != (limits is None):
        return None
    # sampled tokens are chosen in single steps
    if isinstance(plain, LookaheadDecoder) and sampling:
        return None
    if plain.block_costs is not None:
        largest = 0 if session.heads is None or not data.uses_heads else 1 + session.heads.count
        # The centres of ordinal heads alone must determine their proposals.
        known = isinstance(session.heads, RecurrentHeads) or (
            session.session.size.outputs == session.session.ordinal.parameters)
        if not known or sampling or len(plain.block_costs.costs) > min(session.width, largest):
            return None
    return NativeDecoder(plain)


class NativeDecoder:
    """The iterations of a `PlainDecoder` in native.cpp: a `superres.interfaces.Decoder`.

    `largest` is the most tokens of a block. `q_total` [B, W] belongs to speculative sampling: sums
    of the weights that pending proposals were drawn from, int64, 0 without a proposal; [B, 0] in
    other decodes.
    """

    def __init__(self, plain: PlainDecoder) -> None:
        """Take over the rows of `plain`; raises ValueError if their tensors are too small for the
        session's steps."""
        self.plain, state = plain, plain.state
        self.proposals = plain.state.proposals.shape[1] if plain.samplers.speculative else 0
        # A total of 0 says that there is no proposal, so q needs no zeros. Torch would start
        # threads to write them, and these compete with the session's own.
        self.q = state.position.new_empty(
            len(state.position), self.proposals, plain.samplers.vocabulary, dtype=torch.int32)
        self.q_total = state.position.new_zeros(len(state.position), self.proposals)
        self._bind()

    def shrink(self, rows: Tensor, session: Session) -> None:
        self.plain.shrink(rows, session)
        self.q, self.q_total = self.q[rows], self.q_total[rows]
        self._bind()

    def advance(self, count: int) -> Tensor:
        """See `superres.interfaces.Decoder.advance`; stops early when all rows are complete."""
        plain, state, session = self.plain, self.plain.state, self.session
        # The last iteration of a call proposes blocks of another size.
        size, following = state.block_size, plain.block_size
        count = count if following == size else 1
        # rows were taken over in a narrower session, which has been resized since
        if session.width > self.width:
            self._bind()
        if (not 1 <= following <= self.largest
                or not max(size, plain.min_block) <= session.width <= self.width):
            raise ValueError(f"iterations in blocks of {size} have no memory for steps of "
                             f"{session.width} that propose blocks of {following}")
        self.loop.block_size = size
        self.loop.end_token = -1 if plain.end_token is None else plain.end_token
        record = torch.empty(count, session.batch, self.loop.capacity + 2, dtype=torch.int64)
        made: int = library().superres_iterate(
            byref(session.session), byref(self.loop), count, following, record.data_ptr())
        if session.not_finite:
            session.not_finite.zero_()  # the session may decode other rows later
            raise ScoresError
        state.block_size = following
        return record[:made]

    def _bind(self) -> None:
        """Make the form in which native.cpp reads the rows, with their tensors."""
        plain, state, size = self.plain, self.plain.state, self._checked().size
        batch, width, vocabulary = size.batch, size.width, size.vocabulary
        capacity, stride = state.proposals.shape[1], state.store.shape[1]
        kind, bound = plain.criterion.rule or ("distance", 0)
        # Scratch, which one iteration leaves to the next.
        integers = torch.empty(2 * width + capacity + 3, batch, dtype=torch.int64)
        buffers = {
            "tokens": integers[:width], "best_tokens": integers[width : 2 * width],
            "next": integers[2 * width :], "place": integers[-3], "index": integers[-2],
            "first": integers[-1], "hidden": torch.empty(batch, width, size.d),
            "scores": torch.empty(batch, width, vocabulary),
            "scratch": None if self.session.heads is None else self.session.head_memory,
        }
        self.loop = loop = abi.CLoopState(
            block_size=state.block_size, capacity=capacity, stride=stride, minimum=plain.min_block,
            rule=abi.value("Rule", kind), bound=min(bound, vocabulary) if kind == "rank" else bound,
            end_token=-1 if plain.end_token is None else plain.end_token,
            position=address(state.position, torch.int64, batch),
            limit=address(state.limit, torch.int64, batch),
            store=address(state.store, torch.int64, batch, stride),
            proposals=address(state.proposals, torch.int64, batch, capacity),
            **{name: None if tensor is None else tensor.data_ptr()
               for name, tensor in buffers.items()},
        )
        # the copies in `loop` keep nothing alive
        loop.tensors = [buffers, vars(state).copy(), self.data]
        self._add_settings(loop, size)

    def _add_settings(self, loop: abi.CLoopState, size: abi.CSizes) -> None:
        """Add what only some decodes have: a draft, sampling, block costs, limits, a lookahead."""
        plain, batch = self.plain, size.batch
        if self.draft is not None:
            loop.draft = draft = _draft_of(self.draft.session, batch)
            loop.tensors.append(draft)
        if plain.samplers.noise is not None:
            loop.sampling = pointer(self._sampling(batch, size.vocabulary))
        if (costs := plain.block_costs) is not None:
            loop.block_costs = abi.CBlockCosts(
                count=len(costs.costs), costs=address(costs.costs, torch.float64, len(costs.costs)),
                sizes=address(costs.sizes, torch.int64, batch), offset=costs.offset,
                exponent=costs.exponent, reach=costs.reach,
                rate=address(costs.rate, torch.float64, batch, 2 + size.channels))
        if self.limits is not None:
            earlier, past = self.limits.earlier, size.length + 1
            count = earlier.shape[1]
            loop.limits = abi.CLimits(
                count=count, earlier=address(earlier, torch.int64, past, count),
                bounds=address(self.bounds, torch.int64, batch, 2, past))
        if isinstance(plain, LookaheadDecoder):
            loop.lookahead = lookahead = _lookahead_of(plain, batch)
            loop.tensors.append(lookahead)

    def _checked(self) -> abi.CSession:
        """Find the sessions and the proposer of the rows, and return the session as native.cpp
        reads it."""
        plain, state = self.plain, self.plain.state
        session, self.limits, self.bounds = unwrapped(plain.session)
        data = plain.proposer.as_data(plain.session)
        if not isinstance(session, NativeSession) or data is None:
            raise ValueError("these rows are not of a native session")
        draft = unwrapped(data.draft)[0]
        self.session, self.data = session, data
        self.draft = draft if isinstance(draft, NativeSession) else None
        self.width, capacity = session.width, state.proposals.shape[1]
        self.largest = min(capacity, 1 + session.most_proposals) if data.uses_heads else capacity
        least = 1 + session.config.target_length + self.width
        if capacity < self.width or state.store.shape[1] < least:
            raise ValueError(f"{capacity} proposals and {state.store.shape[1]} tokens of memory "
                             f"are too few for steps of {self.width}")
        if (not 1 <= state.block_size <= min(self.width, self.largest)
                or not 0 <= plain.min_block <= self.width):
            raise ValueError(f"steps of {self.width} cannot verify blocks of {state.block_size}, "
                             f"at least {plain.min_block}")
        return session.session

    def _sampling(self, batch: int, vocabulary: int) -> abi.CSampling:
        """Return the form in which native.cpp reads the sampling."""
        samplers, options = self.plain.samplers, self.plain.samplers.options
        temperatures = samplers.temperatures.float()
        made = abi.CSampling(
            kind=abi.value("SamplingKind", "speculative" if samplers.speculative else "gumbel"),
            seed=options.seed, channels=len(temperatures),
            top_k=min(options.sample_top_k or vocabulary, vocabulary), nucleus=options.nucleus,
            keys=address(samplers.keys, torch.int64, batch),
            temperature=address(temperatures, torch.float32, len(temperatures)),
            q=address(self.q, torch.int32, batch, self.proposals, vocabulary),
            q_total=address(self.q_total, torch.int64, batch, self.proposals))
        self.loop.tensors += [made, temperatures, samplers.keys, self.q, self.q_total]
        return made


def _draft_of(session: abi.CSession, batch: int) -> abi.CDraft:
    """Return the form in which native.cpp reads a draft model's session; the result keeps its
    scratch alive."""
    size, width = session.size, session.size.width
    integers = torch.empty(2 * width + 1, batch, dtype=torch.int64)
    hidden = torch.empty(batch, width, size.d)
    scores = torch.empty(batch, width, size.vocabulary)
    parts = integers[:width], integers[-1], integers[width:-1], hidden, scores
    made = abi.CDraft(pointer(session), *(part.data_ptr() for part in parts))
    made.scratch = integers, hidden, scores
    return made


def _lookahead_of(data: LookaheadDecoder, batch: int) -> abi.CLookahead:
    """Return the form in which native.cpp reads the layout and the state; the result keeps its own
    memory alive."""
    candidates, size = data.paths.shape
    columns, capacity = len(data.guesses), data.pool.grams.shape[1]
    cells, own = data.cells.contiguous(), torch.zeros(2, batch, dtype=torch.int64)
    made = abi.CLookahead(
        size=size, columns=columns, candidates=candidates, cells=cells.shape[1], capacity=capacity,
        paths=address(data.paths, torch.int64, candidates, size),
        guesses=address(data.guesses, torch.int64, columns), stage=cells[0].data_ptr(),
        column=cells[1].data_ptr(),
        window=address(data.window, torch.int64, batch, size - 1, columns),
        grams=address(data.pool.grams, torch.int64, batch, capacity, size),
        oldest=own[0].data_ptr(), found=own[1].data_ptr())
    made.tensors = cells, own
    return made


