"""The loop of blockwise parallel decoding: its state, and what an iteration does to it."""

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
from superres.decoding.finite import FiniteScores
from superres.decoding.graph_cache import BURST, Replays
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Context, Proposer
from superres.decoding.sampling import GREEDY, Choice, Chooser
from superres.decoding.trace import RowTrace, TraceRecorder
from superres.interfaces import IteratingSession, LoopState, ScoringModel, Session, Sources, StepOutput
from superres.system.machine import TorchThreads


@dataclass
class Decoded:
    """Result of a decode.

    Attributes:
        tokens: int64 [B, T]; past a row's end they are 0.
        lengths: tokens of each row [B], the end token counted.
        traces: one a row.
    """

    tokens: Tensor
    lengths: Tensor
    traces: list[RowTrace]


def accepted_length(passed: Tensor, minimum: int, room: Tensor) -> Tensor:
    """Return how many proposals are accepted: the first always, then the longest prefix that passed.

    Args:
        passed: bool [B, k - 1], verdicts on proposals 2..k.
        minimum: the minimum block size l (section 5.3).
        room: tokens still missing in each row [B]; the result never exceeds it.

    Returns:
        int64 [B].
    """
    prefix = 1 + passed.long().cumprod(1).sum(1)
    return torch.minimum(prefix.clamp(min=minimum), room)


def is_ordinary(proposer: Proposer, options: DecodeConfig) -> bool:
    """Tell whether a proposer is just what `options` name, and does nothing but what is seen in its proposals."""
    return getattr(proposer, "stateless", False) and type(proposer) is PROPOSERS[options.proposer]


class BlockwiseLoop:
    """The state of one decode: committed tokens, positions, pending proposals. All of it stays on the device.

    An iteration changes it in place, so that it can be captured once and replayed, where the model has a way to.
    """

    def __init__(
        self, model: ScoringModel, session: Session, options: DecodeConfig, keys: Tensor, block_size: int,
        proposer: Proposer | None = None, criterion: Criterion | None = None, fitted: bool = False,
    ) -> None:
        """Make the first model call, which yields the first proposals.

        Args:
            model: what is decoded.
            session: an empty session of it.
            options: acceptance and sampling.
            keys: keys of the sampling noise, int64 [B].
            block_size: k, at most the session's width.
            proposer: source of proposals 2..k; by `options.proposer` if None.
            criterion: acceptance; by `options.accept` if None.
            fitted: whether the session's width follows the block size, which can change then (`resize`).
        """
        self.session, self.block_size, self.minimum = session, block_size, options.min_block
        self.wanted, self.fitted = block_size, fitted
        self.learned, self.spent = 0, 0.0  # iterations that adaptive block sizes have learned from, seconds since
        self.end_token = model.end_token
        self.criterion = criterion or CRITERIA[options.accept](options)
        self.proposer = proposer or PROPOSERS[options.proposer]()
        self.torch_threads = TorchThreads(1 if model.own_threads else None)
        self.seed, self.keys = options.seed, keys.clone()
        self.make_chooser = partial(Chooser, options, vocabulary=model.vocabulary)
        self.chooser = self.make_chooser(self.keys)
        self.complete = False
        batch, device = len(keys), keys.device
        self.position = torch.zeros(batch, dtype=torch.int64, device=device)
        self.length = model.length
        self.limit = torch.full_like(self.position, model.length)
        # A column for the start of the sequence comes first.
        self.store = torch.zeros(batch, 1 + model.length + session.width, dtype=torch.int64, device=device)
        # What a starting row reads is the start of the sequence, whatever stands there; but it must not end the row.
        self.filler = int(self.end_token == 0)
        self.proposals = torch.full_like(self.store[:, : session.width], self.filler)
        self.columns = torch.arange(session.width, device=device)
        self.next_columns = self.columns + 1
        self.recorder = TraceRecorder()
        self.finite = FiniteScores(batch, session.width, device)
        replaying = model.replaying if criterion is None and getattr(self.proposer, "stateless", False) else None
        self.replays = Replays(replaying.capture, self.proposals) if replaying is not None else None
        # What a session may take over whole: nobody else's proposer or criterion.
        self.plain = options if criterion is None and is_ordinary(self.proposer, options) else None
        self.starting = False
        self._see()
        self.held: Choice | None = None
        with self.torch_threads:
            self.choice = self._next_choice()
            output = self._step(self.position)
            torch.cat(self._predict(output, torch.zeros_like(self.position)), dim=1, out=self.pending)
        self.starting = self.replays is not None  # any row may start whenever it is replayed

    def _see(self) -> None:
        """Look at the state's tensors as an iteration needs them."""
        self.whole: dict[int, Callable[[int, int], Tensor] | None] = {}
        self.tokens, self.place = self.store[:, 1:], self.position.unsqueeze(1)
        self.pending, self.zero = self.proposals[:, : self.session.width], torch.zeros_like(self.position)

    @classmethod
    def open_session(
        cls, model: ScoringModel, source: Sources, options: DecodeConfig, block_size: int, width: int | None = None,
        padding: Tensor | None = None,
    ) -> Session:
        """Make an empty session for a loop of this kind and `block_size`; other arguments as for `iterations`.

        Raises:
            ConfigError: it cannot have such a width.
        """
        return model.session(source, width or block_size, padding)

    def run(self, count: int) -> None:
        """Do `count` iterations."""
        started = time.perf_counter()
        with self.torch_threads:
            self._run(count)
        self.spent += time.perf_counter() - started

    def _run(self, count: int) -> None:
        while count > 0:
            turns, whole = 1, self._whole()
            if whole is not None:
                turns = count if self.wanted == self.block_size else 1
                # If fewer were made, all rows are complete.
                self.recorder.extend(whole(turns, self.wanted), self.block_size)
                self.block_size = self.wanted
                self._fit()
            elif self.replays is None:
                self._iterate()
            elif self.wanted != self.block_size:
                size = self.block_size
                self._iterate()
                self.replays.hand_over(size, 1, self.recorder)
            else:
                turns = min(count, BURST)
                self.replays.run(self._iterate, self.block_size, turns, self.recorder)
            count -= turns

    def _fit(self) -> None:
        """Let the session's steps, where they are fitted, be as wide as the proposals now are."""
        if self.fitted and self.session.width != self.block_size:
            self.session.resize(self.block_size)
            self.pending = self.proposals[:, : self.block_size]

    def _whole(self) -> Callable[[int, int], Tensor] | None:
        """Return what does whole iterations in place of `_iterate`, if the session knows how."""
        if self.block_size not in self.whole:
            whole = None
            if self.plain is not None and isinstance(self.session, IteratingSession):
                whole = self.session.iterations(LoopState(
                    self.position, self.limit, self.store, self.proposals, self.block_size, self.plain, self.end_token))
            self.whole[self.block_size] = whole
        return self.whole[self.block_size]

    def iterate(self) -> None:
        """Do one iteration."""
        self.run(1)

    def _step(self, position: Tensor) -> StepOutput:
        """Let the model read the pending proposals at decoder positions `position` [B] and score the tokens there."""
        output = self.session.step(self.pending, position)
        self.finite.note(output.scores)
        return output

    def _iterate(self) -> None:
        """Verify the pending proposals, accept, and make the next ones: one model call."""
        place = self.place + self.next_columns[: self.session.width]
        output = self._step(place[:, 0])
        accepted = self._stop_at_end_token(self._accept(output.scores, place), self.pending)
        # All columns are written; those that were not accepted are overwritten before anyone reads them.
        self.store.scatter_(1, place, self.pending)
        if self.replays is None:
            self.recorder.record(self.position, self.proposals[:, : self.block_size], accepted)
            self.starting = False
        else:
            self.replays.record(self.position, self.proposals, accepted)
        self.position.add_(accepted)
        index = self.zero if self.block_size == 1 else (accepted - 1).clamp_(min=0)
        proposals = self._predict(output, index)
        torch.cat(proposals, dim=1, out=self.pending)

    def burst(self, position: int) -> int:
        """Do some iterations from `position` on in all rows, whatever was there, to time them, and return how many.

        They are as many as are replayed, or made whole, at a time, less where all rows end; one where they are neither.
        """
        self.position.fill_(position)
        self.limit.fill_(self.length)
        before = len(self.recorder)
        self.run(1 if self.replays is None and self._whole() is None else BURST)
        return len(self.recorder) - before

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the session's first width, from the end of the next iteration on.

        The loop must be `fitted`.
        """
        self.wanted = block_size

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
        limit = self.limit.cpu().numpy()  # which waits for the device
        looked = time.perf_counter()
        seconds, self.spent = self.spent + looked - started, 0.0
        position, accepted, sizes = self.recorder.since(seen)
        if seen == before:
            adaptive.time(sizes, seconds)
        # A block that the end cut short says nothing of its proposals.
        whole = (position >= 0) & (accepted > 0) & (position + accepted < limit)
        adaptive.observe(accepted[whole], np.broadcast_to(sizes[:, None], accepted.shape)[whole])
        self.resize(adaptive.choose())
        adaptive.looked(time.perf_counter() - looked)

    def restart(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        """Begin new sequences in `rows` [R], in the middle of the others' decoding.

        Such a row stands one place before its first token, so that the next iteration does for it what the first model
        call does for a new loop, without a call of its own.

        Args:
            rows: int64 [R], none of them twice.
            fresh: an empty session with the new sources, made for the same width.
            chosen: the rows of `fresh` that hold them, int64 [R].
            keys: keys of the sampling noise, int64 [R].
        """
        self.session.adopt(rows, fresh, chosen)
        self.keys.index_copy_(0, rows, keys)
        self.chooser.rekey(self.seed, self.keys)
        self.position.index_fill_(0, rows, -1)
        self.limit.index_fill_(0, rows, self.length)
        self.proposals.index_fill_(0, rows, self.filler)
        self.choice.clear(rows)
        self.finite.clear(rows)
        self.starting, self.complete = True, False

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
        self.session, self.keys, self.chooser = session, self.keys[kept], self.make_chooser(self.keys[kept])
        self.position, self.limit, self.store = self.position[kept], self.limit[kept], self.store[kept]
        self.proposals = self.proposals[kept]
        self._see()
        before, self.choice = self.choice, self._next_choice()
        self.choice.inherit(before, kept)
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
        self.complete = bool((self.position >= self.limit).all())
        return self.complete

    def result(self) -> Decoded:
        """Return the tokens, with everything past a row's end cleared, and the traces."""
        tokens = self.tokens[:, : self.length]
        inside = torch.arange(self.length, device=tokens.device) < self.position.unsqueeze(1)
        return Decoded(tokens * inside, self.position.clone(), self.recorder.rows())

    def _accept(self, scores: Tensor, following: Tensor) -> Tensor:
        """Return how many of the pending proposals `scores` [B, W, V] let pass.

        Target position `following` [B, W] is the one past that of each proposal, the one which its column scores.
        """
        k = self.block_size
        if k == 1:  # nothing to verify, and a greedy iteration is mostly such small things
            return (self.limit - self.position).clamp_(max=1)
        passed = self.choice.accept(self.criterion, self.proposals[:, 1:k], scores[:, : k - 1], following[:, : k - 1])
        return accepted_length(passed, self.minimum, self._room())

    def _room(self) -> Tensor:
        """Return how many tokens each row may accept at most, [B]."""
        room = self.limit - self.position
        if self.starting:  # what a starting row has read is the start of the sequence alone
            room.masked_fill_(self.position < 0, 1)
        return room

    def _predict(self, output: StepOutput, index: Tensor) -> list[Tensor]:
        """Return the next proposals [B, W] in parts: p1's own choice, then the proposer's, then filler up to W."""
        scores = output.scores[:, :1]
        if self.block_size > 1:
            scores = output.scores.gather(1, index.view(-1, 1, 1).expand(-1, 1, output.scores.shape[-1]))
        self.block_size = self.wanted
        # One choice serves the proposals and their verification in the next iteration.
        before, choice = self.choice, self._next_choice()
        first, self.choice = choice.first(scores, before, index), choice
        parts = [first]
        if self.block_size > 1:
            context = Context(self.session, output, index, self.position, first[:, 0], self.tokens, choice)
            parts.append(choice.propose(self.proposer, context, self.columns[1 : self.block_size]))
        self._fit()  # only now: proposals come from the step before
        if self.block_size < self.session.width:
            parts.append(first.expand(-1, self.session.width - self.block_size))
        return parts

    def _next_choice(self) -> Choice:
        if not self.chooser.samples:  # a greedy iteration is mostly such small things
            return GREEDY
        choice = self.chooser.at(self.place + self.columns[: self.block_size])
        if self.replays is None:
            return choice
        self.held = self.held or choice.like(len(self.columns))
        return self.held.take(choice)

    def _stop_at_end_token(self, accepted: Tensor, block: Tensor) -> Tensor:
        """Cut the accepted part of `block` right after its first end token, and close the rows that have one."""
        if self.end_token is None:
            return accepted
        columns = self.columns[: block.shape[1]]
        ends = (block == self.end_token) & (columns < accepted.unsqueeze(1))
        first = torch.where(ends, columns, block.shape[1]).amin(1)
        accepted = torch.minimum(accepted, first + 1)
        torch.where(ends.any(1), self.position + accepted, self.limit, out=self.limit)
        return accepted
