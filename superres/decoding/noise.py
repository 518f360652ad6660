"""Counter-based noise: sampling becomes a deterministic function of seed, key and position.

Verifier and proposers use the same noise, so blockwise acceptance works as in greedy decoding. A sample does not depend
on the block size, the batch or the order of images. All kinds of noise sample softmax(scores) exactly. They differ in
how often proposals agree with the verifier if a proposer's scores are only close to the verifier's.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Protocol, SupportsIndex

import torch
from torch import Tensor

from superres.config import NOISE_NAMES, Registry
from superres.errors import InvalidInputError

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64
_FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
_SECOND = -7723592293110705685  # 0x94D049BB133111EB


def _shift_xor(x: Tensor, bits: int) -> Tensor:
    """Return x ^ (x >>> bits) with a logical shift; torch's shift of int64 is arithmetic."""
    return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))


def mix(x: Tensor) -> Tensor:
    """Hash int64 counters to uniform 64-bit values (the finaliser of SplitMix64)."""
    x = _shift_xor(x, 30) * _FIRST
    x = _shift_xor(x, 27) * _SECOND
    return _shift_xor(x, 31)


def noise_keys(keys: Iterable[int] | Tensor | None, count: int, device: torch.device) -> Tensor:
    """Return keys of sampling noise, int64 [count], on `device`.

    Args:
        keys: whole numbers in [0, 2**63), one per sequence; 0, 1, 2, ... if None.
        count: number of sequences.
        device: device of the result.

    Raises:
        InvalidInputError: there is not one key per sequence, or a key is out of range or not a whole number.
    """
    if keys is None:
        return torch.arange(count, device=device)
    try:
        given = list(keys.tolist() if isinstance(keys, Tensor) else keys)
    except TypeError:
        raise InvalidInputError(f"keys must be a sequence, one key per input, not {keys!r}") from None
    if len(given) != count:
        raise InvalidInputError(f"there are {len(given)} keys for {count} inputs; give one per input")
    return torch.tensor([_checked(key) for key in given], dtype=torch.int64, device=device)


def _checked(key: SupportsIndex) -> int:
    """Return a key as an int, or raise InvalidInputError."""
    try:
        number = operator.index(key)
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise InvalidInputError(f"keys must be whole numbers in [0, 2**63), not {key!r}")
    return number


def part_keys(keys: Tensor, parts: Tensor) -> Tensor:
    """Return the keys of parts of sequences, int64 [B] in [0, 2**63).

    Args:
        keys: keys of the sequences, int64 [B].
        parts: number of the part in its sequence, int64 [B]; part 0 keeps the key of the sequence.
    """
    return keys.where(parts == 0, mix(mix(keys + _GOLDEN) ^ parts) & (2**63 - 1))


class Noise(Protocol):
    """Noise for a batch of sequences."""

    additive: bool
    """Whether `adjust` returns the sum of scores and noise."""

    def __init__(self, seed: int, keys: Tensor, vocabulary: int) -> None:
        """Key the noise.

        Args:
            seed: in [0, 2**63).
            keys: one key per sequence, int64 [B], for example a hash of the image.
            vocabulary: V.
        """
        ...

    def rekey(self, seed: int, keys: Tensor) -> None:
        """Change seed and keys in place; `keys` has the same shape as before."""
        ...

    def at(self, position: Tensor) -> Tensor:
        """Return the noise of target positions [B, N]: [B, N, V], or [B, N, 1] for one number per position."""
        ...

    @staticmethod
    def adjust(scores: Tensor, noise: Tensor) -> Tensor:
        """Return scores [B, N, V] whose argmax is a sample of softmax(`scores`), given the noise of the positions.

        A score of -inf stays -inf.
        """
        ...


class Uniforms:
    """Uniform numbers as a function of seed, key and counter."""

    def __init__(self, seed: int, keys: Tensor) -> None:
        """Use `seed` in [0, 2**63) and `keys`, int64 [B]."""
        self.streams = torch.empty_like(keys)
        self.rekey(seed, keys)

    def rekey(self, seed: int, keys: Tensor) -> None:
        """See `Noise.rekey`."""
        seeded = mix(torch.full_like(keys, seed) * _GOLDEN + _GOLDEN)  # [B]
        self.streams.copy_(mix(seeded ^ mix(keys + _SECOND)))

    def at(self, counter: Tensor) -> Tensor:
        """Return float64 numbers in (0, 1) for counters [B, ...]."""
        streams = self.streams.view(-1, *[1] * (counter.dim() - 1))
        # 52 bits plus half a step stay strictly between 0 and 1, where Gumbel noise is finite.
        bits = (mix(streams + (counter + 1) * _GOLDEN) >> 12) & ((1 << 52) - 1)
        return (bits.double() + 0.5) * 2.0**-52


class GumbelNoise:
    """Standard Gumbel noise on every score (the Gumbel-max trick), for tokens without an order."""

    additive = True

    def __init__(self, seed: int, keys: Tensor, vocabulary: int) -> None:
        """See `Noise`."""
        self.uniforms = Uniforms(seed, keys)
        self.tokens = torch.arange(vocabulary, device=keys.device)

    def rekey(self, seed: int, keys: Tensor) -> None:
        """See `Noise.rekey`."""
        self.uniforms.rekey(seed, keys)

    def at(self, position: Tensor) -> Tensor:
        """See `Noise.at`; float64 [B, N, V]."""
        uniform = self.uniforms.at(position.unsqueeze(-1) * len(self.tokens) + self.tokens)
        return -(-uniform.log()).log()

    @staticmethod
    def adjust(scores: Tensor, noise: Tensor) -> Tensor:
        """See `Noise.adjust`."""
        return scores + noise.to(scores.dtype)


class QuantileNoise:
    """One uniform number u per position; the sample is the token at which the cumulative distribution exceeds u.

    It suits ordered tokens such as intensities. If a proposer's distribution is the verifier's shifted by two grey
    levels, so is its sample. With Gumbel noise, the two samples may be far apart.
    """

    additive = False

    def __init__(self, seed: int, keys: Tensor, vocabulary: int) -> None:
        """See `Noise`."""
        self.uniforms = Uniforms(seed, keys)

    def rekey(self, seed: int, keys: Tensor) -> None:
        """See `Noise.rekey`."""
        self.uniforms.rekey(seed, keys)

    def at(self, position: Tensor) -> Tensor:
        """See `Noise.at`; float64 [B, N, 1]."""
        return self.uniforms.at(position).unsqueeze(-1)

    @staticmethod
    def adjust(scores: Tensor, noise: Tensor) -> Tensor:
        """Return minus the distance of u from each token's interval of the cumulative distribution; see `Noise.adjust`.

        The score of a token of probability 0 is -inf.
        """
        probability = scores.softmax(-1)
        upper = probability.cumsum(-1)  # [B, N, V]
        u = noise.to(scores.dtype)  # [B, N, 1]
        distance = torch.maximum(upper - probability - u, u - upper).clamp(min=0)
        return (-distance).masked_fill(probability == 0, float("-inf"))


NOISES: Registry[type[Noise]] = Registry(NOISE_NAMES, {"gumbel": GumbelNoise, "quantile": QuantileNoise})
"""Kinds of noise by name."""
