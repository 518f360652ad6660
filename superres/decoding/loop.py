"""The loop around a decoder: it runs the iterations, records them, and replaces complete rows."""

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
from superres.decoding.blockwise import PlainDecoder
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.graph_cache import BURST, CapturedDecoder
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.base import Proposer
from superres.decoding.proposers.lookahead.decoding import LookaheadDecoder
from superres.decoding.sampling import Samplers
from superres.decoding.state import DecodeState
from superres.decoding.trace import RowTrace, TraceRecorder
from superres.interfaces import Decoder, ScoringModel, Session
from superres.system.machine import TorchThreads

FEW_COLUMNS = 16
"""Columns of a step (rows times tokens) up to which torch's operations are too small to be divided among threads."""


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


def decoding_type(proposer: Proposer, block_size: int) -> type[PlainDecoder]:
    """Return the algorithm for `proposer` (any object with a method `propose`) and blocks of `block_size`."""
    tree = block_size > 1 and getattr(proposer, "proposes_tree", False)
    return LookaheadDecoder if tree else PlainDecoder


class BlockwiseLoop:
    """Runs one decode: the iterations of `decoder`, and whatever happens between them.

    `state` has the rows being decoded, `plain` the algorithm and its parts, and `recorder` the trace of all rows.
    `decoder` is `plain` itself, or a faster decoder that has taken over its rows. `complete` says whether all rows were
    complete at the last call of `done`.
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
        self.resizable, self.complete = resizable, False
        alone = model.own_threads or len(keys) * block_size <= FEW_COLUMNS
        self.torch_threads = TorchThreads(1 if alone else None)
        self.seed, self.keys, self.recorder = options.seed, keys.clone(), TraceRecorder()
        # The filler must not be the end token, or a row would end where it starts.
        self.state = DecodeState(
            len(keys), model.length, session.width, block_size, int(model.end_token == 0), keys.device)
        stateless = criterion is None and getattr(proposer, "stateless", False)
        # Processes exchange their results through the host.
        captured = model.graph_capture if stateless and model.peers is None else None
        self.make_samplers = partial(
            Samplers, options, vocabulary=model.vocabulary, buffer_width=None if captured is None else session.width)
        self.plain = decoding_type(proposer, block_size)(
            model, session, options, criterion or CRITERIA[options.accept](options), proposer,
            self.make_samplers(self.keys), self.state, confident)
        self.decoder: Decoder = self.plain
        if captured is not None:
            self.decoder = CapturedDecoder(self.plain, captured.capture)
        elif criterion is None:
            self.decoder = model.decoder(self.plain) or self.plain
        self.ends = model.end_token is not None
        self.plain.start(torch.arange(len(keys), device=keys.device), self._longest(session))
        # Iterations that the adaptive block size has already learned from, and the seconds of those since then.
        self.learned, self.spent = 0, 0.0

    @property
    def session(self) -> Session:
        """The rows' cache."""
        return self.plain.session

    def _longest(self, session: Session) -> Tensor | None:
        """Return the largest number of tokens of each row [B]; None if that is T."""
        return session.longest if self.ends else None

    @property
    def is_native(self) -> bool:
        """Whether the model's own decoder runs the iterations; it ends with the last row."""
        return self.decoder is not self.plain and not self.is_captured

    @property
    def is_captured(self) -> bool:
        """Whether captured iterations are replayed, whose number of rows is fixed."""
        return isinstance(self.decoder, CapturedDecoder)

    def run(self, count: int) -> None:
        """Do `count` iterations; fewer if a decoder ends with the last row."""
        started = time.perf_counter()
        with self.torch_threads:
            while count > 0:
                size = self.state.block_size
                trace = self.decoder.advance(count)
                if not len(trace):  # all rows are complete
                    break
                self.recorder.extend(trace, size)
                count -= len(trace)
                if self.resizable and self.session.width != self.state.block_size:
                    self.session.resize(self.state.block_size)
                    self.state.fit(self.state.block_size)
        self.spent += time.perf_counter() - started

    def iterate(self) -> None:
        """Do one iteration."""
        self.run(1)

    def burst(self, position: int, count: int | None = None) -> int:
        """Do `count` iterations from `position` on in all rows, to time them, and return their number.

        Without `count`, the plain decoder does one iteration, and others a burst. There may be fewer
        iterations if all rows are complete. Tokens of the rows are overwritten.
        """
        self.state.position.fill_(position)
        self.state.limit.fill_(self.state.length)
        before = len(self.recorder)
        if count is None:
            count = 1 if self.decoder is self.plain else BURST
        self.run(count)
        return len(self.recorder) - before

    def verification(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Do the next iteration without its proposals, undo it, and return its seconds by `clock`.

        A whole iteration then takes these seconds and those of its proposals, in whatever runs the iterations. The loop
        must be neither complete nor captured, and all blocks of one size; proposals of trees have no such part.
        """
        state, plain, size = self.state, self.plain, self.state.block_size
        sampler = None if self.is_native else plain.sampler
        # q is written with proposals only, and counts for nothing without its total.
        changed = [state.position, state.limit, state.proposals, getattr(self.decoder, "q_total", torch.empty(0))]
        kept = [tensor.clone() for tensor in changed]
        recorder, self.recorder, plain.block_size = self.recorder, TraceRecorder(), 1
        started = clock()
        self.run(1)
        seconds = clock() - started
        # The committed tokens need no copy: the next iteration commits the same tokens.
        for tensor, before in zip(changed, kept, strict=True):
            tensor.copy_(before)
        self.recorder, state.block_size, plain.block_size = recorder, size, size
        if sampler is not None:
            plain.sampler = sampler
        return seconds

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the session's first width, from the end of the next iteration on.

        The loop must be `resizable`.
        """
        self.plain.block_size = block_size

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
        self.plain.samplers.rekey(self.seed, self.keys)
        self.plain.start(rows, self._longest(self.session))
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
        self.plain.shrink(kept, session, self.make_samplers(self.keys))
        self.decoder.keep(kept)
        self.recorder.shrink(kept)

    def done(self) -> bool:
        """Return whether every row is complete (reads from the device); raises ScoresError if scores are not finite."""
        self.plain.nan_check.check()
        self.complete = bool((self.state.position >= self.state.limit).all())
        return self.complete

    def result(self) -> Decoded:
        """Return the tokens, 0 past each row's end, and the traces."""
        length = self.state.position.clamp(min=0)
        tokens = self.state.tokens[:, : self.state.length]
        inside = torch.arange(self.state.length, device=tokens.device) < length.unsqueeze(1)
        return Decoded(tokens * inside, length, self.recorder.rows())
