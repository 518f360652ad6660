"""Decodes of one sequence whose proposals come from outside: from a person, or from a rule such as
"the pixel on the left"."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from superres.config import DecodeConfig, require
from superres.decoding.algorithm import Algorithm
from superres.decoding.limits import Limits
from superres.interfaces import Decoder, Engine, Int64

Propose: TypeAlias = Callable[[list[int]], list[int]]
"""Returns guesses of what follows tokens, the last of which is p1's next choice."""
ANYTHING = 255
"""Epsilon that accepts every intensity."""


@dataclass(frozen=True)
class Drafted:
    """What became of some model calls.

    Attributes:
        tokens: those that the calls committed.
        accepted: number of tokens that each call accepted.
        pending: p1's next choice, and the prediction heads' proposals after it; none at the end.
        seconds: of the calls.
    """

    tokens: list[int]
    accepted: list[int]
    pending: list[int]
    seconds: float


def drafted(
    engine: Engine, limits: Limits | None, source: Int64, committed: Sequence[int], *,
    block_size: int, epsilon: int, calls: int, propose: Propose | None = None,
    check: Callable[[], None] = lambda: None,
) -> Drafted:
    """Continue a sequence of a source [S] after the tokens `committed`, in up to `calls` calls.

    A call verifies p1's choice and what `propose` returns, cut to blocks of `block_size`; without
    it, the prediction heads propose. Accepted are intensities within `epsilon` of p1's choice.
    `check` is called repeatedly, and may raise an error. Raises ConfigError if no decode has the
    `committed` tokens, or if the engine takes none from outside.
    """
    options = DecodeConfig(block_size=block_size, accept="distance", epsilon=ANYTHING,
                           consistent=limits is not None)
    decoder = Algorithm(engine, options, limits=limits).start(source[None], block_size)
    repeat(decoder, committed, check)
    decoder.accept(epsilon)
    started, accepted = time.perf_counter(), list[int]()
    while len(accepted) < calls and not decoder.complete()[0]:
        check()
        accepted += proposed(decoder, propose) if propose else by_heads(decoder,
                                                                        calls - len(accepted))
    seconds = time.perf_counter() - started
    tokens, _ = decoder.results(np.zeros(1, np.int64))
    position = int(decoder.positions()[0])
    pending = [] if position == engine.length else decoder.pending()[0].tolist()
    return Drafted(tokens[0, len(committed):position].tolist(), accepted, pending, seconds)


def repeat(decoder: Decoder, tokens: Sequence[int], check: Callable[[], None]) -> None:
    """Commit tokens of an earlier decode, block by block."""
    size = decoder.block_size
    decoder.advance(1)  # reads the start of the sequence
    for begin, end in pairwise([*range(0, len(tokens), size), len(tokens)]):
        check()
        decoder.offer(np.array([tokens[begin:end]], np.int64))
        accepted = int(decoder.advance(1)[0, 0, 1])
        require(accepted == end - begin, f"token {begin + accepted + 1} is not one that this "
                "picture can have there; begin again")


def proposed(decoder: Decoder, propose: Propose) -> list[int]:
    """Verify guesses in one call; return how many tokens it accepted."""
    position, size = int(decoder.positions()[0]), decoder.block_size
    known, _ = decoder.results(np.zeros(1, np.int64))
    first = int(decoder.pending()[0, 0])
    guesses = propose([*known[0, :position].tolist(), first])
    decoder.offer(np.array([[first, *guesses][:size]], np.int64))
    return [int(decoder.advance(1)[0, 0, 1])]


BATCH = 64  # calls between two checks


def by_heads(decoder: Decoder, calls: int) -> list[int]:
    """Do up to `calls` calls with the prediction heads' proposals."""
    trace = decoder.advance(min(calls, BATCH) if decoder.compiled else 1)
    return [count for count in trace[:, 0, 1].tolist() if count]
