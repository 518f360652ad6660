"""Choosing tokens from scores in a kernel, with the noise of `superres.decoding.plain.noise`, bit
for bit.

A kernel that calls these functions must be compiled without fused multiply-adds.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def logarithm(x):
    """log(x) of normal x > 0."""
    bits = x.to(tl.int32, bitcast=True)
    half = ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)  # in [0.5, 1)
    small = half < 0.70703125
    exponent = ((bits >> 23) - 126 - small.to(tl.int32)).to(tl.float32)
    m = tl.where(small, half + half, half) - 1.0
    square = m * m
    y = m * 7.0376836292e-2 + -1.1514610310e-1
    y = y * m + 1.1676998740e-1
    y = y * m + -1.2420140846e-1
    y = y * m + 1.4249322787e-1
    y = y * m + -1.6668057665e-1
    y = y * m + 2.0000714765e-1
    y = y * m + -2.4999993993e-1
    y = y * m + 3.3333331174e-1
    y = y * m * square
    y = y + exponent * -2.12194440e-4
    y = y - square * 0.5
    return m + y + exponent * 0.693359375


@triton.jit
def gumbel(seed, key, position, V: tl.constexpr):
    """Standard Gumbel noise [N, V] of keys and target positions, int64 [N] each."""
    N: tl.constexpr = position.shape[0]
    WIDE: tl.constexpr = V if V > 64 else 64
    # One call gives the words of four tokens, 16 apart.
    block = tl.arange(0, WIDE // 4).to(tl.uint32)[None, :]
    zero = tl.zeros([N, WIDE // 4], tl.uint32)
    first, second, third, fourth = tl.philox(
        seed, zero + block, zero + position[:, None].to(tl.uint32),
        zero + key[:, None].to(tl.uint32), zero + (key >> 32)[:, None].to(tl.uint32))
    bits = tl.join(tl.join(first, third), tl.join(second, fourth))  # [N, WIDE / 4, 2, 2]
    # [N, WIDE / 64, 4, 16]
    bits = tl.permute(tl.reshape(bits, (N, WIDE // 64, 16, 4)), (0, 1, 3, 2))
    bits = tl.reshape(bits, (N, WIDE // V, V))
    if V < WIDE:
        bits = tl.where((tl.arange(0, WIDE // V) == 0)[None, :, None], bits, 0)
    bits = tl.sum(bits, 1)
    v = tl.minimum((bits.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994039535522)
    rest = 1.0 - v
    return -logarithm(tl.div_rn((rest - 1.0) + v, rest) - logarithm(rest))


@triton.jit
def weights(scores):
    """Whole numbers [N, V] proportional to softmax(scores); the largest score has 2**24."""
    x = tl.maximum(scores - tl.max(scores, 1)[:, None], -87.0)
    n = (x * 1.44269504 + 12582912.0) - 12582912.0  # the nearest integer
    r = x - n * 0.693359375
    r = r - n * -2.12194440e-4
    p = r * 1.9875691500e-4 + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * r * r + r + 1.0
    power = (n.to(tl.int32) + 151 << 23).to(tl.float32, bitcast=True)  # 2**(n + 24)
    return (p * power).to(tl.int32)


@triton.jit
def best(scores, weight, wanted):
    """Scores [N, V], with -inf where the tokens of larger scores weigh at least `wanted` [N]
    together."""
    bits = scores.to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # whole numbers in the order of the scores
    high = tl.max(order, 1)
    low = tl.min(order, 1)
    for _ in range(32):  # the least score that is kept, by bisection
        middle = (low & high) + ((low ^ high) >> 1)
        above = tl.sum(tl.where(order > middle[:, None], weight, 0).to(tl.int64), 1)
        kept = above.to(tl.float64) < wanted
        high = tl.where(kept, middle, high)
        low = tl.where(kept, low, tl.minimum(middle + 1, high))
    return tl.where(order >= high[:, None], scores, float("-inf"))


@triton.jit
def scaled(scores, position, temperature, colours, top_k, nucleus, V: tl.constexpr,
           FILTERED: tl.constexpr):
    """The scores [N, V] of target positions int64 [N] by temperature, filtered: see
    `superres.decoding.plain.sampling`."""
    scores = tl.div_rn(scores, tl.load(temperature + position % colours)[:, None]
                       + tl.zeros_like(scores))
    if FILTERED:
        one = tl.full(scores.shape, 1, tl.int32)
        scores = best(scores, one, top_k.to(tl.float64))
        share = tl.load(nucleus)
        if share < 1.0:
            weight = weights(scores)
            scores = best(scores, weight, tl.sum(weight.to(tl.int64), 1).to(tl.float64) * share)
    return scores


@triton.jit
def uniform(seed, key, position, number, PURPOSE: tl.constexpr):
    """A number in (0, 1) of keys and target positions, int64 [N], and of offsets int32 [N]; float64
    [N]."""
    first, second, third, _ = tl.philox(seed, number.to(tl.uint32), position.to(tl.uint32),
                                        key.to(tl.uint32), (key >> 32).to(tl.uint32))
    bits = first if PURPOSE == 0 else (second if PURPOSE == 1 else third)
    return (bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10
