"""The loop around a decoder: it chooses the decoder, runs the iterations, and records them."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import CRITERIA, Criterion
from superres.decoding.blockwise import PlainDecoder
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.lookahead.iteration import LookaheadDecoder
from superres.decoding.proposers.proposer import Proposer
from superres.decoding.trace import TraceRecorder
from superres.interfaces import Decoder, ScoringModel, Session
from superres.system.machine import TorchThreads
from superres.system.precision import float32_products

FEW_COLUMNS = 16
"""Columns of a step (rows times tokens) up to which torch's operations are too small to be divided
among threads."""


def decoding_type(proposer: Proposer, block_size: int) -> type[PlainDecoder]:
    """Return the algorithm for `proposer` (any object with a method `propose`) and blocks of
    `block_size`."""
    tree = block_size > 1 and getattr(proposer, "proposes_tree", False)
    return LookaheadDecoder if tree else PlainDecoder


class BlockwiseLoop:
    """Runs the iterations of a batch by the fastest decoder that supports its settings, and records
    them.

    `decoder` is `plain`, the algorithm on torch, or a decoder that has taken over its rows.
    `recorder` has the trace of all rows. `complete` says whether all rows were complete at the last
    call of `done`.
    """

    def __init__(
        self, model: ScoringModel, session: Session, options: DecodeConfig, keys: Tensor,
        block_size: int, proposer: Proposer | None = None, criterion: Criterion | None = None,
        resizable: bool = False, confident: ConfidentBlockSize | None = None,
    ) -> None:
        """Prepare; arguments as for `PlainDecoder`.

        If it is `resizable`, `resize` may change the block size, and the session's width follows
        it. `proposer` and `criterion` are by `options` if None; a criterion of the caller's leaves
        the iterations to the plain decoder.
        """
        proposer = proposer or PROPOSERS[options.proposer]()
        self.recorder, self.resizable, self.complete = (TraceRecorder(),
                                                        resizable or confident is not None, False)
        alone = model.own_threads or len(keys) * block_size <= FEW_COLUMNS
        self.torch_threads = TorchThreads(1 if alone else None)
        self.plain = decoding_type(proposer, block_size)(
            model, session, options, keys, block_size, proposer,
            criterion or CRITERIA[options.accept](options), confident)
        self.decoder: Decoder = self.plain
        if criterion is None:
            self.decoder = model.decoder(self.plain) or self.plain

    @property
    def is_native(self) -> bool:
        """Whether the model's own decoder runs the iterations; it ends with the last row."""
        return self.decoder is not self.plain

    def run(self, count: int) -> None:
        """Do `count` iterations; fewer if a decoder ends with the last row."""
        plain = self.plain
        # A model's own decoder computes no products with torch, and its iterations are short beside
        # this context.
        with self.torch_threads, nullcontext() if self.is_native else float32_products():
            while count > 0:
                size = plain.state.block_size
                trace = self.decoder.advance(count)
                made = trace.shape[0]  # `len` of a tensor takes four times as long
                if not made:  # all rows are complete
                    break
                self.recorder.extend(trace, size)
                count -= made
                if self.resizable and plain.session.width != plain.state.block_size:
                    plain.session.resize(plain.state.block_size)
                    plain.state.fit(plain.state.block_size)
                if count > 0 and self.is_native and self.done():
                    break

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the session's first width, from the end of the
        next iteration on.

        The loop must be `resizable`.
        """
        self.plain.block_size = block_size

    def replace(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        self.decoder.replace(rows, fresh, chosen, keys)
        self.complete = False

    def keep(self, rows: Tensor, session: Session) -> None:
        self.decoder.keep(rows, session)
        self.recorder.shrink(rows)

    def done(self) -> bool:
        """Return whether every row is complete (reads from the device); raises ScoresError if
        scores are not finite."""
        self.complete = bool(self.decoder.complete().all())
        return self.complete
