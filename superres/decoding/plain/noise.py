"""Noise on torch: sampling becomes a deterministic function of seed, key and position.

Verifier and proposers use the same noise, so blockwise acceptance works as in greedy decoding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from superres.decoding.noise import WORD, philox, words

# Tokens that compiled code computes together, and tokens that LANES counters give numbers to
LANES, GROUP = 16, 64


class Noise:
    """Noise as a function of seed, key, position and token; cpp/kernels/noise.h computes the
    same."""

    def __init__(self, seed: int, keys: Tensor, vocabulary: int) -> None:
        """Use `seed` in [0, 2**63) and one key per sequence, int64 [B], for example a hash of the
        image."""
        self.seed, self.vocabulary = words(seed), vocabulary
        self.blocks = torch.arange(-(-vocabulary // GROUP) * LANES, device=keys.device)
        self.rekey(keys)

    def rekey(self, keys: Tensor) -> None:
        """Use `keys` [B] from now on."""
        self.keys = [word[:, None, None] for word in words(keys)]  # [B, 1, 1] each

    def random_words(self, position: Tensor, blocks: Tensor) -> Tensor:
        """Return four random words for `blocks` [M] or [N, M] at target positions [B, N], int64 [4,
        B, N, M]."""
        counter = blocks, position.unsqueeze(-1) & WORD, *self.keys
        return torch.stack(philox(counter, self.seed))

    def uniforms(self, position: Tensor, number: Tensor) -> Tensor:
        """Return four numbers in (0, 1) for each target position [B, N], float64 [B, N, 4].

        Each `number` [N] gives the positions in its column other numbers.
        """
        found = self.random_words(position, number.unsqueeze(-1))[..., 0]
        return (found.movedim(0, -1).double() + 0.5) * 2.0**-32

    def gumbel(self, position: Tensor) -> Tensor:
        """Return standard Gumbel noise for target positions [B, N], float32 [B, N, V].

        The argmax of scores + noise is a sample of softmax(scores) (the Gumbel-max trick).
        """
        # Token v has word v // LANES % 4 of block v // GROUP * LANES + v % LANES.
        bits = self.random_words(position, self.blocks).view(4, *position.shape, -1, LANES)
        return gumbel(bits.movedim(0, -2).flatten(-3)[..., : self.vocabulary])


# Compiled code repeats the following functions bit for bit. So they consist of elementary
# operations, whose results IEEE 754 defines, in a fixed order; a library's logarithm or exponential
# differs between versions and processors.


def logarithm(x: Tensor) -> Tensor:
    """Return log(x) of normal float32 numbers x > 0, to about 1 ulp (the polynomial of Cephes'
    logf)."""
    bits = x.view(torch.int32)
    half = (bits & 0x7FFFFF | 0x3F000000).view(torch.float32)  # in [0.5, 1)
    small = half < 0.70703125
    exponent = ((bits >> 23) - 126 - small.int()).float()
    m = torch.where(small, half + half, half) - 1.0
    square = m * m
    y = m * LOG_POLYNOMIAL[0] + LOG_POLYNOMIAL[1]
    for factor in LOG_POLYNOMIAL[2:]:
        y = y * m + factor
    y = y * m * square
    y = y + exponent * -2.12194440e-4
    y = y - square * 0.5
    return m + y + exponent * 0.693359375


LOG_POLYNOMIAL = (7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1,
                  1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1,
                  3.3333331174e-1)


def gumbel(bits: Tensor) -> Tensor:
    """Return Gumbel noise in (-2.9, 22.9), float32, from uniform words of 32 bits."""
    v = ((bits.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    rest = 1.0 - v
    # -log(1 - v): the quotient corrects the rounding of 1 - v, so that a small v keeps all its
    # bits.
    exponential_noise = ((rest - 1.0) + v) / rest - logarithm(rest)
    return -logarithm(exponential_noise)


def weights(scores: Tensor) -> Tensor:
    """Return whole numbers proportional to softmax(scores), int64 [..., V]; the largest score has
    2**24.

    Sums of whole numbers are exact, so they do not depend on the order of the terms.
    """
    x = (scores - scores.amax(-1, keepdim=True)).float().clamp(min=-87.0)
    n = (x * 1.44269504).round()
    r = x - n * 0.693359375
    r = r - n * -2.12194440e-4
    p = r * EXP_POLYNOMIAL[0] + EXP_POLYNOMIAL[1]
    for factor in EXP_POLYNOMIAL[2:]:
        p = p * r + factor
    p = p * r * r + r + 1.0
    power = (n.int() + 127 + 24 << 23).view(torch.float32)  # 2**(n + 24)
    return (p * power).long()


EXP_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2,
                  1.6666665459e-1, 5.0000001201e-1)
