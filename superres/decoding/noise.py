"""Counter-based noise: sampling becomes a deterministic function of seed, key and position.

Verifier and proposers use the same noise, so blockwise acceptance works as in greedy decoding. A
sample does not depend on the block size, the batch or the order of images.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from superres.config import is_whole
from superres.errors import InvalidInputError, shown

WORD = 0xFFFFFFFF  # Mask of the lower 32 bits

# The constants of Philox4x32
MULTIPLIERS, WEYL = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
# Tokens that compiled code computes together, and tokens that LANES counters give numbers to
LANES, GROUP = 16, 64


def philox(counter: Tensor, keys: Tensor) -> Tensor:
    """Return the four random words of each counter, int64 [4, ...] (Philox4x32-10, Salmon et al.
    2011).

    `counter` holds four words of 32 bits, int64 [4, ...], and `keys` the key of each round, from
    `round_keys`.
    """
    even, odd = counter[::2], counter[1::2]
    for key in keys.unbind(0):
        # int64 wraps around, but all 64 bits of a product are right; the upper half of `odd` is
        # masked out below.
        products = torch.stack([even[1] * MULTIPLIERS[1], even[0] * MULTIPLIERS[0]])
        even, odd = ((products >> 32) ^ odd ^ key) & WORD, products
    return torch.stack([even, odd & WORD], dim=1).flatten(0, 1)


def round_keys(key: Tensor) -> Tensor:
    """Return the keys of the ten rounds for keys of two words, int64 [2, ...]: int64 [10, 2,
    ...]."""
    weyl = torch.tensor(WEYL, device=key.device).view(2, *[1] * (key.dim() - 1))
    return torch.stack([key + number * weyl & WORD for number in range(10)])


def words(numbers: Tensor) -> Tensor:
    """Return the lower and the upper 32 bits of int64 numbers [...], as [2, ...]."""
    return torch.stack([numbers & WORD, numbers >> 32 & WORD])


def noise_keys(keys: Iterable[int] | Tensor | None, count: int, device: torch.device) -> Tensor:
    """Return keys of sampling noise, int64 [count], on `device`.

    `keys` are whole numbers in [0, 2**63), one for each of `count` sequences; 0, 1, 2, ... if None.
    Raises InvalidInputError if there is not one key per sequence, or a key is out of range or not a
    whole number.
    """
    if keys is None:
        return torch.arange(count, device=device)
    try:
        given: list[Any] = [key.tolist() if isinstance(key, Tensor) else key for key in keys]
    except TypeError:
        raise InvalidInputError("keys must be a sequence, one key per input, not "
                                f"{keys!r}") from None
    if len(given) != count:
        raise InvalidInputError(f"there are {len(given)} keys for {count} inputs; give one per "
                                "input")
    for key in given:
        if not is_whole(key) or not 0 <= key < 2**63:
            raise InvalidInputError(f"keys must be whole numbers in [0, 2**63), not {shown(key)}")
    return torch.tensor([int(key) for key in given], dtype=torch.int64, device=device)


def part_keys(keys: Tensor, parts: Tensor) -> Tensor:
    """Return the keys in [0, 2**63) of parts of sequences with `keys`, int64 [B] each.

    `parts` numbers each part in its sequence, int64 [B]; part 0 keeps the key of the sequence.
    """
    random = philox(torch.cat([words(parts), words(keys)]),
                    round_keys(words(torch.ones_like(keys))))
    low, high = random[:2]
    return keys.where(parts == 0, (high << 32 | low) & (2**63 - 1))


class Noise:
    """Noise as a function of seed, key, position and token; cpp/kernels/noise.h computes the
    same."""

    def __init__(self, seed: int, keys: Tensor, vocabulary: int) -> None:
        """Use `seed` in [0, 2**63) and one key per sequence, int64 [B], for example a hash of the
        image."""
        self.seeds = round_keys(words(keys.new_full((1, 1, 1), seed)))  # [10, 2, 1, 1, 1]
        self.vocabulary = vocabulary
        self.blocks = torch.arange(-(-vocabulary // GROUP) * LANES, device=keys.device)
        self.rekey(keys)

    def rekey(self, keys: Tensor) -> None:
        """Use `keys` [B] from now on."""
        self.keys = words(keys)[..., None, None]  # [2, B, 1, 1]

    def random_words(self, position: Tensor, blocks: Tensor) -> Tensor:
        """Return four random words for `blocks` [M] or [N, M] at target positions [B, N], int64 [4,
        B, N, M]."""
        shape = *position.shape, blocks.shape[-1]
        parts = blocks, position.unsqueeze(-1) & WORD, *self.keys
        return philox(torch.stack([part.expand(shape) for part in parts]), self.seeds)

    def uniforms(self, position: Tensor, number: Tensor) -> Tensor:
        """Return four numbers in (0, 1) for each target position [B, N], float64 [B, N, 4].

        Each `number` [N] gives the positions in its column other numbers.
        """
        words = self.random_words(position, number.unsqueeze(-1))[..., 0]
        return (words.movedim(0, -1).double() + 0.5) * 2.0**-32

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
