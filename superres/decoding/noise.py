"""Counter-based Gumbel noise: what is added to a score depends on (seed, key of the sequence, position, token) alone.

argmax(scores / T + noise) is a sample of softmax(scores / T). Since verifier and proposers add the same noise,
sampling turns into a deterministic decode, and its result does not depend on block size, batch or order of images.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shift_xor(x: Tensor, bits: int) -> Tensor:
    """Return x ^ (x >>> bits); torch's own shift of int64 keeps the sign."""
    return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))


def mix(x: Tensor) -> Tensor:
    """Scramble int64 counters to uniform 64-bit values (the finaliser of SplitMix64)."""
    x = _shift_xor(x, 30) * _FIRST
    x = _shift_xor(x, 27) * _SECOND
    return _shift_xor(x, 31)


class GumbelNoise:
    """Standard Gumbel noise for a batch of sequences."""

    def __init__(self, seed: int, keys: Tensor, vocabulary: int) -> None:
        """Key the noise.

        Args:
            seed: in [0, 2**63).
            keys: int64 [B], one a sequence (e.g. derived from an image's content).
            vocabulary: V.
        """
        seeded = mix(torch.full_like(keys, seed) * _GOLDEN + _GOLDEN)
        self.streams = mix(seeded ^ mix(keys + _SECOND))
        self.tokens = torch.arange(vocabulary, device=keys.device)

    def at(self, position: Tensor) -> Tensor:
        """Return the noise of every token at target positions `position` [B, N]: float64 [B, N, V]."""
        counter = position.unsqueeze(-1) * len(self.tokens) + self.tokens + 1
        # 52 bits: with half a step added they stay below 1, where the noise would be infinite.
        bits = (mix(self.streams[:, None, None] + counter * _GOLDEN) >> 12) & ((1 << 52) - 1)
        uniform = (bits.double() + 0.5) * 2.0**-52
        return -(-uniform.log()).log()
