"""The loop around a decoder: it chooses the decoder, runs the iterations, and records them."""

from __future__ import annotations

from contextlib import nullcontext

from torch import Tensor

from superres.decoding.algorithm import Algorithm
from superres.decoding.blockwise import PlainDecoder
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.proposers.lookahead.iteration import LookaheadDecoder
from superres.decoding.trace import TraceRecorder
from superres.interfaces import Decoder, Session
from superres.system.precision import float32_products
from superres.system.torch_threads import TorchThreads

FEW_COLUMNS = 16
"""Columns of a step (rows times tokens) up to which torch's operations are too small to be divided
among threads."""


def decoding_type(algorithm: Algorithm, block_size: int) -> type[PlainDecoder]:
    """Return the plain decoder of blocks of `block_size`; it also opens their sessions."""
    tree = block_size > 1 and getattr(algorithm.proposer, "proposes_tree", False)
    return LookaheadDecoder if tree else PlainDecoder


class BlockwiseLoop:
    """Runs the iterations of a batch by the fastest decoder that supports its settings, and records
    them.

    `decoder` is `plain`, the algorithm on torch, or a decoder that has taken over its rows.
    `recorder` has the trace of all rows. `ended` says which rows were complete at the last call of
    `done`, and `complete` whether all were.
    """

    def __init__(
        self, algorithm: Algorithm, session: Session, keys: Tensor, block_size: int | None = None,
        confident: ConfidentBlockSize | None = None,
    ) -> None:
        """Prepare; arguments as for `PlainDecoder`, and the algorithm's block size by default."""
        size = block_size or algorithm.block_size
        self.recorder, self.ended, self.complete = TraceRecorder(), list[bool](), False
        # Whether the session's width follows the block size, which changes
        self.resizable = confident is not None
        alone = algorithm.model.own_threads or len(keys) * size <= FEW_COLUMNS
        self.torch_threads = TorchThreads(1 if alone else None)
        self.plain = decoding_type(algorithm, size)(algorithm, session, keys, size, confident)
        faster = None if algorithm.is_plain else algorithm.model.decoder(self.plain)
        self.decoder: Decoder = faster or self.plain

    @property
    def runs_whole(self) -> bool:
        """Whether the model's own decoder runs whole iterations; it ends with the last row."""
        return self.decoder is not self.plain

    def run(self, count: int) -> None:
        """Do `count` iterations; fewer if a decoder ends with the last row."""
        plain = self.plain
        # A model's own decoder computes no products with torch, and its iterations are short beside
        # this context.
        with self.torch_threads, nullcontext() if self.runs_whole else float32_products():
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
                if count > 0 and self.runs_whole and self.done():
                    break

    def resize(self, block_size: int) -> None:
        """Propose blocks of `block_size`, at most the session's first width, from the end of the
        next iteration on; the session's width follows."""
        self.resizable, self.plain.block_size = True, block_size

    def replace(self, rows: Tensor, fresh: Session, chosen: Tensor, keys: Tensor) -> None:
        self.plain.replace(rows, fresh, chosen, keys)
        self.complete = False

    def shrink(self, rows: Tensor, session: Session) -> None:
        self.decoder.shrink(rows, session)
        self.recorder.shrink(rows)

    def done(self) -> bool:
        """Return whether every row is complete (reads from the device); raises ScoresError if
        scores are not finite."""
        self.ended = self.plain.complete().tolist()
        self.complete = all(self.ended)
        return self.complete
