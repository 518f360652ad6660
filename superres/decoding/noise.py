"""Counter-based noise that turns sampling into a deterministic decode: it depends on (seed, key, position) alone.

Verifier and proposers see the same noise, so blockwise acceptance works as for greedy decoding, and a sample does not
depend on block size, batch or order of images. All kinds sample softmax(scores) exactly. They
differ in what happens where a proposer's scores are only close to the verifier's, as they always are.
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
    """Return x ^ (x >>> bits); torch's own shift of int64 keeps the sign."""
    return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))


def mix(x: Tensor) -> Tensor:
    """Scramble int64 counters to uniform 64-bit values (the finaliser of SplitMix64)."""
    x = _shift_xor(x, 30) * _FIRST
    x = _shift_xor(x, 27) * _SECOND
    return _shift_xor(x, 31)


def noise_keys(keys: Iterable[int] | Tensor | None, count: int, device: torch.device) -> Tensor:
    """Return keys of sampling noise, int64 [count], on `device`.

    Args:
        keys: whole numbers in [0, 2**63), one per sequence; 0, 1, 2, ... if None.
        count: number of sequences.
        device: of the result.

    Raises:
        InvalidInputError: there are more or fewer keys than sequences, or one is out of range or no whole number.
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
    """Return a key as an int, if it is one in range."""
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
        keys: of the sequences, int64 [B].
        parts: number of the part in its sequence, int64 [B]; part 0 keeps the key of the sequence.
    """
    return keys.where(parts == 0, mix(mix(keys + _GOLDEN) ^ parts) & (2**63 - 1))


class Noise(Protocol):
    """Noise for a batch of sequences."""

    additive: bool
    """Whether `adjust` is the sum of scores and noise."""

    def __init__(self, seed: int, keys: Tensor, vocabulary: int) -> None:
        """Key the noise.

        Args:
            seed: in [0, 2**63).
            keys: int64 [B], one a sequence (e.g. derived from an image's content).
            vocabulary: V.
        """
        ...

    def rekey(self, seed: int, keys: Tensor) -> None:
        """Key the noise anew, for as many sequences, in the memory that it has."""
        ...

    def at(self, position: Tensor) -> Tensor:
        """Return the noise of target positions [B, N]: [B, N, V], or [B, N, 1] where one number serves all tokens."""
        ...

    @staticmethod
    def adjust(scores: Tensor, noise: Tensor) -> Tensor:
        """Return scores [B, N, V] whose argmax is a sample of softmax(`scores`), given the noise of their positions.

        Tokens whose score is -inf keep it.
        """
        ...


class Uniforms:
    """Uniform numbers keyed by seed, sequence and a counter."""

    def __init__(self, seed: int, keys: Tensor) -> None:
        """Key them by `seed` in [0, 2**63) and `keys`, int64 [B]."""
        self.streams = torch.empty_like(keys)
        self.rekey(seed, keys)

    def rekey(self, seed: int, keys: Tensor) -> None:
        """See `Noise.rekey`."""
        seeded = mix(torch.full_like(keys, seed) * _GOLDEN + _GOLDEN)
        self.streams.copy_(mix(seeded ^ mix(keys + _SECOND)))

    def at(self, counter: Tensor) -> Tensor:
        """Return float64 numbers in (0, 1) for counters [B, ...]."""
        streams = self.streams.view(-1, *[1] * (counter.dim() - 1))
        # 52 bits: with half a step added they stay below 1, where Gumbel noise would be infinite.
        bits = (mix(streams + (counter + 1) * _GOLDEN) >> 12) & ((1 << 52) - 1)
        return (bits.double() + 0.5) * 2.0**-52


class GumbelNoise:
    """Standard Gumbel noise on every score (the Gumbel-max trick); no order of the tokens is assumed."""

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
    """One uniform number u a position; the sample is the token where the cumulative distribution passes u.

    For tokens in order, as intensities are: if a proposer's distribution lies two grey levels beside the verifier's,
    so does its sample. Gumbel noise would as likely send the two samples to opposite ends of the distribution.
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
        """Return minus the distance of u from each token's part of the cumulative distribution; see `Noise.adjust`.

        Tokens of probability 0 have no part of it: -inf.
        """
        probability = scores.softmax(-1)
        upper = probability.cumsum(-1)
        u = noise.to(scores.dtype)
        distance = torch.maximum(upper - probability - u, u - upper).clamp(min=0)
        return (-distance).masked_fill(probability == 0, float("-inf"))


NOISES: Registry[type[Noise]] = Registry(NOISE_NAMES, {"gumbel": GumbelNoise, "quantile": QuantileNoise})
"""Kinds of noise by the name that users give."""
