"""Blockwise parallel decoding: predict, verify, accept in one model call (Stern et al. 2018, sections 3 to 5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, Criterion
from superres.decoding.adaptive import AdaptiveBlockSize
from superres.decoding.choice import Choice, Chooser
from superres.decoding.noise import NOISES
from superres.decoding.proposal import PROPOSERS
from superres.decoding.proposer import Context, Proposer, accompany
from superres.decoding.trace import RowTrace, TraceRecorder
from superres.errors import ConfigError
from superres.scoring import ScoringModel, Session, StepOutput

DONE_CHECK_INTERVAL = 16
"""Iterations between two looks of the host at the done flag; in between nothing is read from the device."""

DEFAULT_BLOCK_SIZE = 5
"""Where neither the options nor prediction heads say how many tokens to propose."""

END_CHECK_INTERVAL = 4
"""The same on an accelerator where an end token may end a row at any time: a sentence takes a handful of iterations."""


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


class BlockwiseLoop:
    """The state of one decode: committed tokens, positions, pending proposals. All of it stays on the device."""

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
        self.wanted, self.fitted, self.learned = block_size, fitted, 0
        self.end_token = model.end_token
        self.criterion = criterion or CRITERIA[options.accept](options)
        self.proposer = proposer or PROPOSERS[options.proposer]()
        self.keys, self.make_chooser = keys.clone(), partial(Chooser, options, vocabulary=model.vocabulary)
        self.chooser = self.make_chooser(self.keys)
        self.starting = False
        batch, device = len(keys), keys.device
        self.position = torch.zeros(batch, dtype=torch.int64, device=device)
        self.length = model.length
        self.limit = torch.full_like(self.position, model.length)
        self.tokens = torch.zeros(batch, model.length + session.width, dtype=torch.int64, device=device)
        self.columns = torch.arange(session.width, device=device)
        self.recorder = TraceRecorder()
        self.choice = self._next_choice()
        filler = self.tokens[:, : session.width]
        self.proposals = self._predict(session.step(filler, self.position), torch.zeros_like(self.position))

    @classmethod
    def open_session(
        cls, model: ScoringModel, source: Tensor, options: DecodeConfig, block_size: int, width: int | None = None,
        padding: Tensor | None = None,
    ) -> Session:
        """Make an empty session for a loop of this kind and `block_size`; other arguments as for `iterations`.

        Raises:
            ConfigError: it cannot have such a width.
        """
        return model.session(source, width or block_size, padding)

    def iterate(self) -> None:
        """Verify the pending proposals, accept, and make the next ones: one model call."""
        start, k = self.position, self.block_size
        output = self.session.step(self.proposals, start + 1)
        target = start.unsqueeze(1) + self.columns[: self.session.width]
        accepted = self._stop_at_end_token(self._accept(output.scores, target), self.proposals)
        # All columns are written; those that were not accepted are overwritten before anyone reads them.
        self.tokens.scatter_(1, target.clamp(min=0) if self.starting else target, self.proposals)
        self.recorder.record(start, self.proposals[:, :k], accepted)
        self.position = start + accepted
        if self.starting:
            # What a starting row has read is the start of the sequence, which is always accepted and is no token.
            self.position, self.starting = self.position.clamp(min=0), False
        self.proposals = self._predict(output, (accepted - 1).clamp(min=0))

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the session's first width, from the end of the next iteration on.

        The loop must be `fitted`.
        """
        self.wanted = block_size

    def adapt(self, adaptive: AdaptiveBlockSize) -> None:
        """Let `adaptive` learn from the iterations since the last time, and take the block size that it chooses."""
        seen, self.learned = max(self.learned, self.recorder.forgotten), len(self.recorder)
        if seen == self.learned:
            return
        position, accepted, sizes = self.recorder.since(seen)
        # A block that the end cut short says nothing of its proposals.
        whole = (accepted > 0) & (position + accepted < self.limit.cpu().numpy())
        adaptive.observe(accepted[whole], np.broadcast_to(sizes[:, None], accepted.shape)[whole])
        self.resize(adaptive.choose())

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
        self.keys[rows] = keys
        self.chooser = self.make_chooser(self.keys)
        self.position = self.position.index_fill(0, rows, -1)
        self.limit = self.limit.index_fill(0, rows, self.length)
        self.proposals = self.proposals.index_fill(0, rows, 0)
        self.choice.clear(rows)
        self.starting = True

    def shrink(self, session: Session, kept: Tensor) -> None:
        """Go on with rows `kept` [R] alone, in `session`, an empty one of R rows, made for the same width."""
        session.adopt(torch.arange(len(kept), device=kept.device), self.session, kept)
        session.resize(self.session.width)
        self.session, self.keys, self.chooser = session, self.keys[kept], self.make_chooser(self.keys[kept])
        self.position, self.limit, self.tokens = self.position[kept], self.limit[kept], self.tokens[kept]
        before, self.choice, self.proposals = self.choice, self._next_choice(), self.proposals[kept]
        self.choice.inherit(before, kept)
        self.recorder.shrink(kept)

    def done(self) -> bool:
        """Tell whether every row is complete (reads from the device)."""
        return bool((self.position >= self.limit).all())

    def result(self) -> Decoded:
        """Return the tokens, with everything past a row's end cleared, and the traces."""
        tokens = self.tokens[:, : self.length]
        inside = torch.arange(self.length, device=tokens.device) < self.position.unsqueeze(1)
        return Decoded(tokens * inside, self.position, self.recorder.rows())

    def _accept(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return how many of the pending proposals, for positions `target` [B, W], `scores` [B, W, V] let pass."""
        k, room = self.block_size, self.limit - self.position
        if self.starting:  # the start of a sequence is no token
            room = room * (self.position >= 0)
        if k == 1:  # nothing to verify, and a greedy iteration is mostly such small things
            return room.clamp(max=1)
        passed = self.choice.accept(self.criterion, self.proposals[:, 1:k], scores[:, : k - 1], target[:, 1:k])
        return accepted_length(passed, self.minimum, room)

    def _predict(self, output: StepOutput, index: Tensor) -> Tensor:
        """Return the next proposals [B, W]: p1's own choice first, then the proposer's, then filler up to the width."""
        self.block_size = self.wanted
        # One choice serves the proposals and their verification in the next iteration.
        before, choice = self.choice, self._next_choice()
        scores = output.scores.gather(1, index.view(-1, 1, 1).expand(-1, 1, output.scores.shape[-1]))
        first, self.choice = choice.first(scores, before, index), choice
        parts = [first]
        if self.block_size > 1:
            context = Context(self.session, output, index, self.position, first[:, 0], self.tokens, choice)
            parts.append(choice.propose(self.proposer, context, self.columns[1 : self.block_size]))
        if self.fitted and self.session.width != self.block_size:  # only now: proposals come from the step before
            self.session.resize(self.block_size)
        if self.block_size < self.session.width:
            parts.append(first.expand(-1, self.session.width - self.block_size))
        return torch.cat(parts, dim=1)

    def _next_choice(self) -> Choice:
        return self.chooser.at(self.position.unsqueeze(1) + self.columns[: self.block_size])

    def _stop_at_end_token(self, accepted: Tensor, block: Tensor) -> Tensor:
        """Cut the accepted part of `block` right after its first end token, and close the rows that have one."""
        if self.end_token is None:
            return accepted
        columns = self.columns[: block.shape[1]]
        ends = (block == self.end_token) & (columns < accepted.unsqueeze(1))
        first = torch.where(ends, columns, block.shape[1]).amin(1)
        accepted = torch.minimum(accepted, first + 1)
        self.limit = torch.where(ends.any(1), self.position + accepted, self.limit)
        return accepted


def loop_type(proposer: Proposer, block_size: int) -> type[BlockwiseLoop]:
    """Return the kind of loop that serves `proposer` in blocks of `block_size`."""
    if block_size == 1 or not getattr(proposer, "branching", False):  # anything with a method `propose` serves
        return BlockwiseLoop
    from superres.decoding.lookahead import LookaheadLoop  # which builds on this module

    return LookaheadLoop


def check_options(options: DecodeConfig, prediction_heads: int, length: int | None = None) -> int:
    """Return the block size that `options` asks of a model of `prediction_heads` and targets of `length` tokens.

    Raises:
        ConfigError: it exceeds the prediction heads that the proposer uses, or the target; the minimum block exceeds
            it; or the criterion, the noise or the proposer is unknown or cannot use its settings.
    """
    if options.accept not in CRITERIA:
        raise ConfigError(f"unknown acceptance {options.accept!r}; choose one of {', '.join(CRITERIA)}")
    if options.noise not in NOISES:
        raise ConfigError(f"unknown noise {options.noise!r}; choose one of {', '.join(NOISES)}")
    if options.proposer not in PROPOSERS:
        raise ConfigError(f"unknown proposer {options.proposer!r}; choose one of {', '.join(PROPOSERS)}")
    CRITERIA[options.accept](options)
    kind = PROPOSERS[options.proposer]
    by_heads = prediction_heads if kind.uses_heads or prediction_heads > 1 else DEFAULT_BLOCK_SIZE
    block_size = options.block_size or kind.block_size or by_heads
    if block_size > prediction_heads and kind.uses_heads:
        raise ConfigError(f"block size {block_size} is more than the {prediction_heads} prediction heads; "
                          f"use {prediction_heads} or less")
    if length is not None and block_size > length:
        raise ConfigError(f"block size {block_size} is more than the {length} target tokens that the cache is made "
                          f"for; use {length} or less")
    if options.adaptive and options.proposer != "heads":
        raise ConfigError(f"an adaptive block size needs proposals of the heads, not of {options.proposer}")
    if options.min_block > block_size:
        raise ConfigError(f"min-block {options.min_block} is larger than the block size {block_size}")
    if length is not None:
        kind.check_options(options, block_size, length)
    return block_size


def check_interval(end_token: int | None, kind: str) -> int:
    """Return the iterations between two looks at the done flag on a device of `kind` ("cpu", "cuda").

    Where rows may end at any time, iterations past the end are wasted; a CPU's flag costs nothing to read.
    """
    if end_token is None:
        return DONE_CHECK_INTERVAL
    return 1 if kind == "cpu" else END_CHECK_INTERVAL


@torch.inference_mode()
def iterations(
    model: ScoringModel, source: Tensor, options: DecodeConfig, *, padding: Tensor | None = None,
    keys: Tensor | None = None, width: int | None = None, proposer: Proposer | None = None,
    adaptive: AdaptiveBlockSize | None = None,
) -> Iterator[BlockwiseLoop]:
    """Decode a batch blockwise, and hand out the loop now and then, to be looked at.

    The loop is handed out first before any iteration, then every `check_interval` iterations, and last when every row
    is complete. It is one and the same object; whoever stops asking has stopped the decoding.

    Args:
        model: the model.
        source: source tokens [B, S].
        options: block size, proposer, acceptance, sampling.
        padding: bool [B, S], True where a source is padding.
        keys: key of each row's sampling noise, int64 [B]; the row's number if None.
        width: step width W, at least the block size, which it is by default. A larger one runs the same kernels
            as a larger block.
        proposer: source of proposals, with which any block size goes; by `options.proposer` if None.
        adaptive: chooses the block size as it goes, up to that of `options`; None keeps it.

    Raises:
        ConfigError: options do not fit the model, or both a width and an adaptive block size are asked for.
    """
    heads = model.prediction_heads if proposer is None else options.block_size or model.prediction_heads
    block_size = check_options(options, heads, model.length)
    if width is not None and width < block_size:
        raise ConfigError(f"width {width} is smaller than the block size {block_size}")
    if width is not None and adaptive is not None:
        raise ConfigError(f"an adaptive block size has no fixed width; leave out the width {width}")
    if keys is None:
        keys = torch.arange(len(source), device=source.device)
    proposer = proposer or PROPOSERS[options.proposer]()
    model = accompany(model, proposer)
    kind = loop_type(proposer, block_size)
    session = kind.open_session(model, source, options, block_size, width, padding)
    first = block_size if adaptive is None else adaptive.choose()
    loop = kind(model, session, options, keys, first, proposer, fitted=adaptive is not None)
    interval = check_interval(model.end_token, source.device.type)
    yield loop
    while not loop.done():
        for _ in range(interval):
            loop.iterate()
        if adaptive is not None and len(loop.recorder) % DONE_CHECK_INTERVAL == 0:
            loop.adapt(adaptive)
        yield loop
    if adaptive is not None:
        loop.adapt(adaptive)


def decode(
    model: ScoringModel, source: Tensor, options: DecodeConfig, *, padding: Tensor | None = None,
    keys: Tensor | None = None, width: int | None = None, proposer: Proposer | None = None,
    adaptive: AdaptiveBlockSize | None = None, progress: Callable[[int, int], None] | None = None,
) -> Decoded:
    """Decode a batch blockwise.

    Exact acceptance gives the tokens of greedy decoding (or, at a temperature, of sequential sampling with the same
    seed). On float32 hardware that holds bit for bit against a run of the same `width`, since kernels differ between
    shapes.

    Args:
        model: see `iterations`, as for all that is not said here.
        source: source tokens [B, S].
        options: block size, proposer, acceptance, sampling.
        padding: bool [B, S].
        keys: int64 [B].
        width: step width W.
        proposer: source of proposals.
        adaptive: chooses the block size.
        progress: called whenever the loop is handed out, with (tokens of the shortest row, T).

    Returns:
        Tokens, lengths and traces.

    Raises:
        ConfigError: options do not fit the model.
    """
    for loop in iterations(
        model, source, options, padding=padding, keys=keys, width=width, proposer=proposer, adaptive=adaptive,
    ):
        if progress is not None:
            progress(int(loop.position.min()), model.length)
    return loop.result()
