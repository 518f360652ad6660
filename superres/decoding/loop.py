"""The loop around `superres.decoding.blockwise`: it runs the iterations, records them, and replaces complete rows."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, Criterion
from superres.decoding.block_size import AdaptiveBlockSize
from superres.decoding.blockwise import BlockwiseDecoding
from superres.decoding.confidence import ConfidentBlockSize, HeadConfidence
from superres.decoding.graph_cache import BURST, CapturedIterations
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer
from superres.decoding.proposers.lookahead.decoding import LookaheadDecoding
from superres.decoding.sampling import Samplers
from superres.decoding.state import DecodeState, NanCheck
from superres.decoding.trace import RowTrace, TraceRecorder
from superres.interfaces import BlockCosts, LoopState, ProposerData, Sampling, ScoringModel, Session
from superres.system.machine import TorchThreads

FEW_COLUMNS = 16
"""Columns of a step (rows times tokens) up to which torch's operations are too small to be divided among threads."""
Iterate = Callable[[int, int], Tensor]  # Native iterations: see `superres.interfaces.Session.iterations`


@dataclass
class Decoded:
    """Result of a decode."""

    tokens: Tensor  # int64 [B, T]; past a row's end they are 0
    lengths: Tensor  # number of tokens of each row [B], including the end token
    traces: list[RowTrace]  # acceptance trace of each row

    @property
    def model_calls(self) -> int:
        """Model calls of the batch: those of its slowest row."""
        return max(trace.model_calls for trace in self.traces)


def decoding_type(proposer: Proposer, block_size: int) -> type[BlockwiseDecoding]:
    """Return the algorithm for `proposer` (any object with a method `propose`) and blocks of `block_size`."""
    tree = block_size > 1 and getattr(proposer, "proposes_tree", False)
    return LookaheadDecoding if tree else BlockwiseDecoding


class BlockwiseLoop:
    """Runs the iterations of one decode: as torch operations, as captured work, or as native iterations of a session.

    `state` has the rows being decoded, `decoding` is the algorithm, and `recorder` has the trace of all rows.
    `complete` says whether all rows were complete at the last call of `done`.
    """

    def __init__(
        self, model: ScoringModel, session: Session, options: DecodeConfig, keys: Tensor, block_size: int,
        proposer: Proposer | None = None, criterion: Criterion | None = None, resizable: bool = False,
        confident: ConfidentBlockSize | None = None,
    ) -> None:
        """Prepare; the first iteration reads the start of every sequence and makes the first proposals.

        Args:
            model: the model.
            session: an empty session of the model, from `open_session` of `decoding_type`.
            options: acceptance and sampling.
            keys: keys of the sampling noise, int64 [B].
            block_size: k, at most the session's width.
            proposer: source of proposals 2..k; by `options.proposer` if None.
            criterion: acceptance; by `options.accept` if None.
            resizable: whether `resize` may change the block size; the session's width then follows it.
            confident: chooses the block size of every iteration, up to `block_size`; the loop must be `resizable`.
        """
        proposer = proposer or PROPOSERS[options.proposer]()
        stateless = criterion is None and getattr(proposer, "stateless", False)
        self.resizable, self.complete, self.confident = resizable, False, confident
        alone = model.own_threads or len(keys) * block_size <= FEW_COLUMNS
        self.torch_threads = TorchThreads(1 if alone else None)
        self.seed, self.keys = options.seed, keys.clone()
        self.recorder, self.nan_check = TraceRecorder(), NanCheck(len(keys), session.width, keys.device)
        # The filler must not be the end token, or a row would end where it starts.
        self.state = DecodeState(
            len(keys), model.length, session.width, block_size, int(model.end_token == 0), keys.device)
        self.ends = model.end_token is not None
        self.state.start(torch.arange(len(keys), device=keys.device), self._longest(session))
        self.captured: CapturedIterations | None = None
        # Processes exchange their results through the host.
        if stateless and model.graph_capture is not None and model.peers is None:
            self.captured = CapturedIterations(model.graph_capture.capture, self.state.proposals)
        buffer_width = None if self.captured is None else session.width
        self.make_samplers = partial(Samplers, options, vocabulary=model.vocabulary, buffer_width=buffer_width)
        self.decoding = decoding_type(proposer, block_size)(
            model, session, options, criterion or CRITERIA[options.accept](options), proposer,
            self.make_samplers(self.keys), self.state, self.nan_check.note)
        self.block_costs: BlockCosts | None = None
        if confident is not None:
            self.decoding.head_confidence = HeadConfidence(self.decoding.sampler)
            self.block_costs = confident.block_costs(len(keys), session.shape)
        # Native iterations take the criterion's rule, the sampling and the proposer as data. A class of the user that
        # derives from a proposer may propose other tokens.
        self.proposer = proposer if criterion is None and type(proposer) in PROPOSERS.data.values() else None
        self.rule = getattr(self.decoding.criterion, "rule", None)
        self.sampling: Sampling | None = None
        self.native: dict[int, Iterate | None] = {}
        # Iterations that the adaptive block size has already learned from, and the seconds of those since then.
        self.learned, self.spent = 0, 0.0

    @property
    def session(self) -> Session:
        """The rows' cache."""
        return self.decoding.session

    def _longest(self, session: Session) -> Tensor | None:
        """Return the largest number of tokens of each row [B]; None if that is T."""
        return session.longest if self.ends else None

    @property
    def is_native(self) -> bool:
        """Whether the session does whole iterations by itself."""
        return self._native_iterations(self.state.block_size) is not None

    def run(self, count: int) -> None:
        """Do `count` iterations; none is done once all rows are complete in native iterations."""
        started = time.perf_counter()
        with self.torch_threads:
            while count > 0:
                count -= self._advance(count)
        self.spent += time.perf_counter() - started

    def iterate(self) -> None:
        """Do one iteration."""
        self.run(1)

    def _advance(self, count: int) -> int:
        """Do at most `count` iterations in the fastest way, and return the number that counts as done."""
        size, wanted = self.state.block_size, self.decoding.block_size
        native = self._native_iterations(size)
        if native is not None:
            count = count if wanted == size else 1
            # If there are fewer than `count`, all rows are complete.
            self.recorder.extend(native(count, wanted), size)
            self.state.block_size = wanted
        elif self.captured is None:
            count = 1
            block, accepted = self.decoding.iterate(self.state)
            self.recorder.record(self.state.position - accepted, block[:, :size], accepted)
            self.state.starting = False
            heads, costs = self.decoding.head_confidence, self.block_costs
            if self.confident is not None and costs is not None and heads is not None:
                wanted = self.confident.choose(heads, self.state.proposals, self.state.missing(), costs)
                self.state.block_size = wanted
        elif wanted != size:
            count = 1
            self._recorded_iteration()
            self.captured.flush(size, 1, self.recorder)
        else:
            count = min(count, BURST)
            self.captured.run(self._recorded_iteration, size, count, self.recorder)
        if self.resizable and self.session.width != wanted:
            self.session.resize(wanted)
            self.state.fit(wanted)
        return count

    def _recorded_iteration(self) -> None:
        """Do one iteration and record it on the device."""
        block, accepted = self.decoding.iterate(self.state)
        if self.captured is not None:
            self.captured.record(self.state.position - accepted, block, accepted)

    def _native_iterations(self, size: int) -> Iterate | None:
        """Return the session's native iterations in blocks of `size`, or None."""
        if size not in self.native:
            self.native[size] = None
            data = None if self.proposer is None else self.proposer.as_data(self.session)
            if self.rule is not None and data is not None:
                self.sampling = self.sampling or self.decoding.samplers.as_data(self.state.proposals.shape[1])
                self.native[size] = self.session.iterations(LoopState(
                    self.state.position, self.state.limit, self.state.store, self.state.proposals, size,
                    self.decoding.min_block, self.rule, self.decoding.end_token, self.sampling, ProposerData(**data),
                    self.block_costs, lookahead=self.decoding.lookahead_data()))
        return self.native[size]

    def burst(self, position: int, count: int | None = None) -> int:
        """Do `count` iterations from `position` on in all rows, to time them, and return their number.

        Without `count`, captured and native iterations are done in a burst, others one at a time. There may be fewer
        iterations if all rows are complete. Tokens of the rows are overwritten.
        """
        self.state.position.fill_(position)
        self.state.limit.fill_(self.state.length)
        before = len(self.recorder)
        if count is None:
            count = BURST if self.captured is not None or self.is_native else 1
        self.run(count)
        return len(self.recorder) - before

    def verification(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Do the next iteration without its proposals, undo it, and return its seconds by `clock`.

        A whole iteration then takes these seconds and those of its proposals, in whatever runs the iterations. The loop
        must be neither complete nor captured, and all blocks of one size; proposals of trees have no such part.
        """
        state, decoding, size = self.state, self.decoding, self.state.block_size
        sampler = None if self.is_native else decoding.sampler
        changed = [state.position, state.limit, state.proposals]
        if self.sampling is not None:
            changed.append(self.sampling.q_total)  # q is written with proposals only, and counts for nothing without it
        kept = [tensor.clone() for tensor in changed]
        recorder, self.recorder, decoding.block_size = self.recorder, TraceRecorder(), 1
        started = clock()
        self.run(1)
        seconds = clock() - started
        # The committed tokens need no copy: the next iteration commits the same tokens.
        for tensor, before in zip(changed, kept, strict=True):
            tensor.copy_(before)
        self.recorder, state.block_size, decoding.block_size = recorder, size, size
        if sampler is not None:
            decoding.sampler = sampler
        return seconds

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the session's first width, from the end of the next iteration on.

        The loop must be `resizable`.
        """
        self.decoding.block_size = block_size

    def adapt(self, adaptive: AdaptiveBlockSize) -> None:
        """Update `adaptive` with the iterations since the last update, if one is due, and take its block size."""
        if not adaptive.is_due(self.spent):
            return
        before, self.learned = self.learned, len(self.recorder)
        seen = max(before, self.recorder.forgotten)
        if seen == self.learned:
            return
        started = time.perf_counter()
        limit = self.state.limit.cpu().numpy()  # waits for the device
        read = time.perf_counter()
        seconds, self.spent = self.spent + read - started, 0.0
        position, accepted, sizes = self.recorder.since(seen)
        if seen == before:
            adaptive.time(sizes, seconds)
        # A block that the target's end truncated says nothing about its proposals.
        whole = (position >= 0) & (accepted > 0) & (position + accepted < limit)
        adaptive.observe(accepted[whole], np.broadcast_to(sizes[:, None], accepted.shape)[whole])
        self.resize(adaptive.choose())
        adaptive.updated(time.perf_counter() - read)

    def restart(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        """Begin new sequences in `rows` [R], each at most once, while the other rows are being decoded.

        The new sources are in the rows `chosen` [R] of `fresh`, an empty session made for the same width; `keys` [R]
        are those of the sampling noise. All are int64.
        """
        self.session.copy_rows(rows, fresh, chosen, cache=False)
        self.keys.index_copy_(0, rows, keys)
        self.decoding.samplers.rekey(self.seed, self.keys)
        self.state.start(rows, self._longest(self.session))
        self.decoding.start(rows)
        self.nan_check.clear(rows)
        self.complete = False

    def begin_anew(self, fresh: Session, keys: Tensor, seed: int) -> None:
        """Begin new sequences in all rows, with a new record; arguments as for `restart`, and `DecodeConfig.seed`."""
        self.seed, self.recorder = seed, TraceRecorder()
        self.learned, self.spent = 0, 0.0
        everyone = torch.arange(len(keys), device=keys.device)
        self.restart(everyone, fresh, everyone, keys)

    def shrink(self, session: Session, kept: Tensor) -> None:
        """Continue with rows `kept` [R] only, in `session`, an empty session of R rows made for the same width."""
        session.copy_rows(torch.arange(len(kept), device=kept.device), self.session, kept)
        session.resize(self.session.width)
        self.keys = self.keys[kept]
        self.state.keep(kept)
        self.decoding.keep(kept, session, self.make_samplers(self.keys), self.state)
        if self.sampling is not None:
            self.sampling = replace(self.sampling, keys=self.keys, q=self.sampling.q[kept],
                                    q_total=self.sampling.q_total[kept])
        self.native = {}
        if self.block_costs is not None:
            costs = self.block_costs
            self.block_costs = replace(costs, sizes=costs.sizes[kept], rate=costs.rate[kept])
        self.recorder.shrink(kept)
        self.nan_check.shrink(kept)

    def done(self) -> bool:
        """Return whether every row is complete (reads from the device); raises ScoresError if scores are not finite."""
        self.nan_check.is_noted |= self.captured is not None  # captured work sets no flag of the host
        self.nan_check.check()
        self.complete = bool((self.state.position >= self.state.limit).all())
        return self.complete

    def result(self) -> Decoded:
        """Return the tokens, 0 past each row's end, and the traces."""
        length = self.state.position.clamp(min=0)
        tokens = self.state.tokens[:, : self.state.length]
        inside = torch.arange(self.state.length, device=tokens.device) < length.unsqueeze(1)
        return Decoded(tokens * inside, length, self.recorder.rows())
