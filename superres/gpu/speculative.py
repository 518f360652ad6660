"""Speculative sampling in a kernel: the computation of
`superres.decoding.plain.sampling.SpeculativeSampler`, bit for bit.

A kernel that calls these functions must be compiled without fused multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from superres.decoding.plain import sampling
from superres.gpu.noise import uniform, weights
from superres.gpu.rows import of_row, repeated

PROPOSAL = tl.constexpr(sampling.PROPOSAL)
VERDICT = tl.constexpr(sampling.VERDICT)
COMMITTED = tl.constexpr(sampling.COMMITTED)
LEAST_WEIGHT = tl.constexpr(sampling.LEAST_WEIGHT)


@triton.jit
def probabilities(weight, total):
    """The shares float64 [N, V] that weights int32 [N, V] have of a total int64 [N]; 0 where it is
    0."""
    share = weight.to(tl.float64) / tl.maximum(total, 1).to(tl.float64)[:, None]
    return tl.where((total > 0)[:, None], share, 0.0)


@triton.jit
def distribution(scores):
    """The weights int32 [N, V] of softmax(scores), and their sums int64 [N]."""
    weight = weights(scores)
    return weight, tl.sum(weight.to(tl.int64), 1)


@triton.jit
def residual(p, q, survival):
    """Return max(0, survival p - q) in whole numbers of LEAST_WEIGHT, int64 [N, V]; `survival` is
    float64 [N]."""
    return (tl.maximum(survival[:, None] * p - q, 0.0) / LEAST_WEIGHT).to(tl.int64)


@triton.jit
def drawn(whole, u, V: tl.constexpr):
    """Tokens [N] drawn from whole weights int64 [N, V] with uniform numbers float64 [N]."""
    place = (u * tl.sum(whole, 1).to(tl.float64)).to(tl.int64)
    return tl.minimum(tl.sum((tl.cumsum(whole, 1) <= place[:, None]).to(tl.int32), 1), V - 1)


@triton.jit
def propose_token(scores, target, number, exists, q, q_totals, entries, seed, key, V: tl.constexpr):
    """Draw proposal `number`, from 0 on, for targets [N] from scores [N, V], and store its
    distribution.

    `entries` [N] are where those of the rows start; only rows that exist, [N], are stored.
    """
    weight, total = distribution(scores)
    at = entries + number
    tl.store(q + at[:, None] * V + tl.arange(0, V)[None, :], weight, mask=exists[:, None])
    tl.store(q_totals + at, total, mask=exists)
    whole = (probabilities(weight, total) / LEAST_WEIGHT).to(tl.int64)
    return drawn(whole, uniform(seed, key, target.to(tl.int64), target * 0 + 1 + number, PROPOSAL),
                 V)


@triton.jit
def pair(scores, column, number, entry, proposed, q, q_totals, V: tl.constexpr, ROWS: tl.constexpr,
         W: tl.constexpr):
    """The distribution p of scores [M, V] at column `number` [M] of each row, and that of the
    proposal there, or 0."""
    own = tl.where((column == number)[:, None], scores, 0.0)
    weight, total = distribution(tl.sum(tl.reshape(own, (ROWS, W, V)), 1))  # [ROWS, V], [ROWS]
    p = probabilities(weight, total)
    total = tl.load(q_totals + entry, mask=proposed, other=0)
    weight = tl.load(q + entry[:, None] * V + tl.arange(0, V)[None, :], mask=proposed[:, None],
                     other=0)
    return p, probabilities(weight, total)


@triton.jit
def verify(scores, block, place, position, size, missing, column, real, q, q_totals, entries, seed,
           key, V: tl.constexpr, ROWS: tl.constexpr, W: tl.constexpr):
    """The number of accepted tokens of each row, and the token that follows them, [M].

    `scores` [M, V] are those of the tokens after each column of the block [M], of `size` tokens.
    Rows accept at most `missing` [M] tokens. `entries` [M] are where the distributions of the
    proposals of a row start.
    """
    start, last = (of_row(position, column, 0, ROWS, W),
                   tl.minimum(size, of_row(missing, column, 0, ROWS, W)) - 1)
    exists, entry = of_row(real.to(tl.int32), column, 0, ROWS, W) > 0, of_row(entries, column, 0,
                                                                              ROWS, W)
    key = of_row(key, column, 0, ROWS, W)
    accepted, survival = tl.full([ROWS], 1, tl.int32), tl.full([ROWS], 1.0, tl.float64)
    kept = survival
    # One column after another, since the probabilities of all would take too many registers.
    for number in tl.range(0, size, num_stages=1):
        p, other = pair(scores, column, number + column * 0, entry + number,
                        exists & (start >= 0) & (number < size - 1), q, q_totals, V, ROWS, W)
        if number > 0:  # the block may end after so many proposals
            rest = tl.sum(residual(p, other, survival), 1).to(tl.float64) * LEAST_WEIGHT
            rest = tl.where(number < last, rest, survival)
            target = of_row(place, column, number, ROWS, W) - 1
            u = uniform(seed, key, target.to(tl.int64), target * 0 + number, VERDICT)
            ends = (number <= last) & (u * (rest + (1.0 - survival)) < rest)
            accepted = tl.where(ends, number + 1, accepted)
            kept = tl.where(ends, tl.where(number < size - 1, survival, 1.0), kept)
        own = tl.arange(0, V)[None, :] == of_row(block, column, number + 1, ROWS, W)[:, None]
        share = tl.sum(tl.where(own, other, 0.0), 1)
        ratio = tl.sum(tl.where(own, p, 0.0), 1) / tl.where(share > 0, share, 1.0)
        survival = tl.minimum(survival * ratio, 1.0)
    # The next token is drawn from what the proposal after the accepted ones leaves of p.
    index = accepted - 1
    p, other = pair(scores, column, repeated(index, ROWS, W), entry + index,
                    exists & (start >= 0) & (index < size - 1), q, q_totals, V, ROWS, W)
    rest = residual(p, other, kept)
    # The residual is 0 where p equals q; the block ends there only by rounding.
    rest = tl.where((tl.sum(rest, 1) == 0)[:, None], (p / LEAST_WEIGHT).to(tl.int64), rest)
    target = of_row(place, column, repeated(index, ROWS, W), ROWS, W)
    u = uniform(seed, key, target.to(tl.int64), target * 0, COMMITTED)
    return repeated(accepted, ROWS, W), repeated(drawn(rest, u, V), ROWS, W)
