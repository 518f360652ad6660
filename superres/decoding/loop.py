"""The loop around `superres.decoding.blockwise`: what does its iterations, their record, and which rows there are."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, Criterion
from superres.decoding.block_size import AdaptiveBlockSize
from superres.decoding.blockwise import BlockwiseDecoding
from superres.decoding.finite import FiniteScores
from superres.decoding.graph_cache import BURST, Replays
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer
from superres.decoding.proposers.heads import HeadProposer
from superres.decoding.proposers.lookahead.decoding import LookaheadDecoding
from superres.decoding.sampling import Chooser
from superres.decoding.state import DecodeState
from superres.decoding.trace import RowTrace, TraceRecorder
from superres.interfaces import IteratingSession, LoopState, ScoringModel, Session, StepOutput
from superres.system.machine import TorchThreads

Iterate = Callable[[int, int], Tensor]
"""Does whole iterations: see `superres.interfaces.IteratingSession.iterations`."""


@dataclass
class Decoded:
    """Result of a decode.

    Attributes:
        tokens: int64 [B, T]; past a row's end they are 0.
        lengths: tokens of each row [B], the end token counted.
        traces: acceptance trace of each row.
    """

    tokens: Tensor
    lengths: Tensor
    traces: list[RowTrace]


def is_ordinary(proposer: Proposer, options: DecodeConfig) -> bool:
    """Tell whether a proposer is just what `options` name, and does nothing but what is seen in its proposals."""
    return getattr(proposer, "stateless", False) and type(proposer) is PROPOSERS[options.proposer]


def decoding_type(proposer: Proposer, block_size: int) -> type[BlockwiseDecoding]:
    """Return the algorithm that serves `proposer` in blocks of `block_size`."""
    if block_size == 1 or not getattr(proposer, "branching", False):  # anything with a method `propose` serves
        return BlockwiseDecoding
    return LookaheadDecoding


class BlockwiseLoop:
    """Runs the iterations of one decode: by torch operations, captured, or by a session that knows whole iterations.

    Attributes:
        state: the rows being decoded.
        decoding: the algorithm.
        recorder: what each iteration accepted.
        complete: whether all rows were complete when `done` last looked.
    """

    def __init__(
        self, model: ScoringModel, session: Session, options: DecodeConfig, keys: Tensor, block_size: int,
        proposer: Proposer | None = None, criterion: Criterion | None = None, fitted: bool = False,
    ) -> None:
        """Prepare; the first iteration reads the start of every sequence, and makes the first proposals.

        Args:
            model: what is decoded.
            session: an empty session of it, by `open_session` of the algorithm that `decoding_type` names.
            options: acceptance and sampling.
            keys: keys of the sampling noise, int64 [B].
            block_size: k, at most the session's width.
            proposer: source of proposals 2..k; by `options.proposer` if None.
            criterion: acceptance; by `options.accept` if None.
            fitted: whether the session's width follows the block size, which can change then (`resize`).
        """
        proposer = proposer or PROPOSERS[options.proposer]()
        stateless = criterion is None and getattr(proposer, "stateless", False)
        self.fitted, self.complete = fitted, False
        self.torch_threads = TorchThreads(1 if model.own_threads else None)
        self.seed, self.keys = options.seed, keys.clone()
        self.recorder, self.finite = TraceRecorder(), FiniteScores(len(keys), session.width, keys.device)
        # Filler must not end a row that starts.
        self.state = DecodeState(
            len(keys), model.length, session.width, block_size, int(model.end_token == 0), keys.device)
        self.replays: Replays | None = None
        if stateless and model.replaying is not None:
            self.replays = Replays(model.replaying.capture, self.state.proposals)
        hold = None if self.replays is None else session.width
        self.make_chooser = partial(Chooser, options, vocabulary=model.vocabulary, hold=hold)
        self.decoding = decoding_type(proposer, block_size)(
            model, session, options, criterion or CRITERIA[options.accept](options), proposer,
            self.make_chooser(self.keys), self.state)
        self.decoding.step = self._step
        # A session may do whole iterations with its own heads, and by a rule that is known as data.
        rule = getattr(self.decoding.criterion, "rule", None)
        greedy = stateless and type(proposer) is HeadProposer and not options.is_sampling
        self.rule = rule if greedy else None
        self.whole: dict[int, Iterate | None] = {}
        self.learned, self.spent = 0, 0.0  # iterations that adaptive block sizes have learned from, seconds since

    @property
    def session(self) -> Session:
        """The rows' cache."""
        return self.decoding.session

    def _step(self, tokens: Tensor, position: Tensor) -> StepOutput:
        output = self.session.step(tokens, position)
        self.finite.note(output.scores)
        return output

    def run(self, count: int) -> None:
        """Do `count` iterations."""
        started = time.perf_counter()
        with self.torch_threads:
            while count > 0:
                count -= self._some(count)
        self.spent += time.perf_counter() - started

    def iterate(self) -> None:
        """Do one iteration."""
        self.run(1)

    def _some(self, count: int) -> int:
        """Do at most `count` iterations in the fastest way, and return how many."""
        size, wanted = self.state.block_size, self.decoding.block_size
        whole = self._whole(size)
        if whole is not None:
            count = count if wanted == size else 1
            # If fewer are made, all rows are complete.
            self.recorder.extend(whole(count, wanted), size)
            self.state.block_size = wanted
        elif self.replays is None:
            count = 1
            block, accepted = self.decoding.iterate(self.state)
            self.recorder.record(self.state.position - accepted, block[:, :size], accepted)
            self.state.starting = False
        elif wanted != size:
            count = 1
            self._recorded()
            self.replays.hand_over(size, 1, self.recorder)
        else:
            count = min(count, BURST)
            self.replays.run(self._recorded, size, count, self.recorder)
        if self.fitted and self.session.width != wanted:
            self.session.resize(wanted)
            self.state.fit(wanted)
        return count

    def _recorded(self) -> None:
        """Do one iteration and record it on the device."""
        block, accepted = self.decoding.iterate(self.state)
        if self.replays is not None:
            self.replays.record(self.state.position - accepted, block, accepted)

    def _whole(self, size: int) -> Iterate | None:
        """Return what does whole iterations in blocks of `size`, if the session knows how."""
        if size not in self.whole:
            self.whole[size] = None
            if self.rule is not None and isinstance(self.session, IteratingSession):
                self.whole[size] = self.session.iterations(LoopState(
                    self.state.position, self.state.limit, self.state.store, self.state.proposals, size,
                    self.decoding.min_block, self.rule, self.decoding.end_token))
        return self.whole[size]

    def burst(self, position: int) -> int:
        """Do some iterations from `position` on in all rows, whatever was there, to time them, and return how many.

        They are as many as are replayed, or made whole, at a time, less where all rows end; one where they are neither.
        """
        self.state.position.fill_(position)
        self.state.limit.fill_(self.state.length)
        before = len(self.recorder)
        self.run(1 if self.replays is None and self._whole(self.state.block_size) is None else BURST)
        return len(self.recorder) - before

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the session's first width, from the end of the next iteration on.

        The loop must be `fitted`.
        """
        self.decoding.block_size = block_size

    def adapt(self, adaptive: AdaptiveBlockSize) -> None:
        """Let `adaptive` learn from the iterations since the last time, and take the block size that it chooses.

        Nothing is done before that is due.
        """
        if not adaptive.is_due(self.spent):
            return
        before, self.learned = self.learned, len(self.recorder)
        seen = max(before, self.recorder.forgotten)
        if seen == self.learned:
            return
        started = time.perf_counter()
        limit = self.state.limit.cpu().numpy()  # which waits for the device
        read = time.perf_counter()
        seconds, self.spent = self.spent + read - started, 0.0
        position, accepted, sizes = self.recorder.since(seen)
        if seen == before:
            adaptive.time(sizes, seconds)
        # A block that the end cut short says nothing of its proposals.
        uncut = (position >= 0) & (accepted > 0) & (position + accepted < limit)
        adaptive.observe(accepted[uncut], np.broadcast_to(sizes[:, None], accepted.shape)[uncut])
        self.resize(adaptive.choose())
        adaptive.updated(time.perf_counter() - read)

    def restart(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        """Begin new sequences in `rows` [R], in the middle of the others' decoding.

        Args:
            rows: int64 [R], none of them twice.
            fresh: an empty session with the new sources, made for the same width.
            chosen: the rows of `fresh` that hold them, int64 [R].
            keys: keys of the sampling noise, int64 [R].
        """
        self.session.adopt(rows, fresh, chosen)
        self.keys.index_copy_(0, rows, keys)
        self.decoding.chooser.rekey(self.seed, self.keys)
        self.state.start(rows)
        self.decoding.start(rows)
        self.finite.clear(rows)
        self.complete = False

    def begin_anew(self, fresh: Session, keys: Tensor, seed: int) -> None:
        """Begin new sequences in all rows, and forget what was; arguments as for `restart`, and `DecodeConfig.seed`."""
        self.seed, self.recorder = seed, TraceRecorder()
        self.learned, self.spent = 0, 0.0
        everyone = torch.arange(len(keys), device=keys.device)
        self.restart(everyone, fresh, everyone, keys)

    def shrink(self, session: Session, kept: Tensor) -> None:
        """Go on with rows `kept` [R] alone, in `session`, an empty one of R rows, made for the same width."""
        session.adopt(torch.arange(len(kept), device=kept.device), self.session, kept)
        session.resize(self.session.width)
        self.keys = self.keys[kept]
        self.state.keep(kept)
        self.decoding.keep(kept, session, self.make_chooser(self.keys), self.state)
        self.decoding.step = self._step
        self.whole = {}
        self.recorder.shrink(kept)
        self.finite.shrink(kept)

    def check_scores(self) -> None:
        """Refuse scores that are not finite (reads from the device).

        Raises:
            ScoresError: a step had some.
        """
        self.finite.is_noted |= self.replays is not None  # what is replayed notes on the device alone
        self.finite.check()

    def done(self) -> bool:
        """Tell whether every row is complete (reads from the device).

        Raises:
            ScoresError: scores were not finite.
        """
        self.check_scores()
        self.complete = bool((self.state.position >= self.state.limit).all())
        return self.complete

    def result(self) -> Decoded:
        """Return the tokens, with everything past a row's end cleared, and the traces."""
        length = self.state.position.clamp(min=0)
        tokens = self.state.tokens[:, : self.state.length]
        inside = torch.arange(self.state.length, device=tokens.device) < length.unsqueeze(1)
        return Decoded(tokens * inside, length, self.recorder.rows())
