"""Choosing tokens from scores: by argmax, by seed-coupled sampling, or by speculative sampling.

The loop requests a sampler for the positions of each block. The sampler determines the block's first token, is used by
the proposer, and decides which proposals pass. All differences between the ways of sampling are in this module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.noise import GumbelNoise, RandomWords, weights
from superres.interfaces import Sampling

if TYPE_CHECKING:
    from typing_extensions import Self

    from superres.decoding.acceptance import Criterion
    from superres.decoding.proposers.base import Context, Proposer

PROPOSAL, VERDICT, COMMITTED = range(3)
"""The purposes of the three uniform numbers of a position in speculative sampling."""

LEAST_WEIGHT = 2.0**-40
"""Unit of the weights from which tokens are drawn."""


def filtered(scores: Tensor, top_k: int | None, nucleus: float) -> Tensor:
    """Return scores [..., V] that are -inf except at the tokens to sample from.

    Args:
        scores: scores divided by the temperature, [..., V].
        top_k: keep the `top_k` likeliest tokens and ties (Fan et al. 2018); None keeps all tokens.
        nucleus: then keep the fewest likeliest tokens, and ties, whose probabilities sum to at least `nucleus`
            (Holtzman et al. 2020); 1 keeps all tokens.
    """
    if top_k is not None and top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(top_k, dim=-1).values[..., -1:], float("-inf"))
    if nucleus < 1:
        ordered = scores.sort(dim=-1, descending=True).values
        weight = weights(ordered)
        sums = weight.cumsum(-1)
        outside = (sums - weight).double() >= sums[..., -1:].double() * nucleus
        outside[..., 0] = False
        least = ordered.masked_fill(outside, float("inf")).amin(-1, keepdim=True)
        scores = scores.masked_fill(scores < least, float("-inf"))
    return scores


@dataclass
class ScoreFilter:
    """Turns scores into the scores of the distribution to sample from.

    Attributes:
        temperatures: T of each colour channel, float64 [1 or 3].
        top_k: see `filtered`.
        nucleus: see `filtered`.
    """

    temperatures: Tensor
    top_k: int | None = None
    nucleus: float = 1.0

    @property
    def is_active(self) -> bool:
        """Whether a filter excludes tokens."""
        return self.top_k is not None or self.nucleus < 1

    def temperature(self, position: Tensor) -> Tensor:
        """Return T at target positions [B, N], as [B, N, 1]."""
        # The channels of consecutive positions are red, green, blue.
        return self.temperatures[position % len(self.temperatures)].unsqueeze(-1)

    def __call__(self, scores: Tensor, temperature: Tensor) -> Tensor:
        """Return `scores` [B, N, V] divided by `temperature` [B, N, 1], and filtered."""
        scores = scores / temperature.to(scores.dtype)
        return filtered(scores, self.top_k, self.nucleus) if self.is_active else scores


@dataclass
class CoupledSampler:
    """Chooses tokens at N target positions of each row, both for proposals and for their verification.

    It is a `superres.interfaces.Sampler`; offsets count from the first of the positions.

    Attributes:
        coupled: whether the tokens are seed-coupled samples.
        noise: noise of the positions, [B, N, V] if `coupled`.
        temperature: temperature of the positions, [B, N, 1].
        filter: computes the distribution to sample from.
    """

    coupled: bool
    noise: Tensor
    temperature: Tensor
    filter: ScoreFilter

    def load(self, other: CoupledSampler) -> Self:
        """Copy `other` into the first positions of this buffer, and return a sampler that uses this buffer's memory."""
        count = other.noise.shape[1]
        return replace(self, noise=self.noise[:, :count].copy_(other.noise),
                       temperature=self.temperature[:, :count].copy_(other.temperature))

    def __call__(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """See `Sampler.__call__`."""
        return self.adjust(scores, offsets).argmax(-1)

    def adjust(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """Return the scores [B, N, V] whose argmax is the choice at `offsets`."""
        if not self.coupled:
            return scores
        scaled = self.filter(scores, self.temperature[:, offsets])
        return scaled + self.noise[:, offsets].to(scaled.dtype)

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """See `Sampler.additive`."""
        if not self.coupled:
            return None, None
        return None if self.filter.is_active else (self.temperature[:, offsets], self.noise[:, offsets])

    def first(self, scores: Tensor, before: CoupledSampler, index: Tensor) -> Tensor:
        """Return the first token [B, 1] of a block.

        Args:
            scores: p1's scores of that token, [B, 1, V].
            before: the sampler of the previous block.
            index: number of accepted tokens of the previous block, minus 1, [B].
        """
        return self(scores, slice(1))

    def propose(self, proposer: Proposer, context: Context, offsets: Tensor) -> Tensor:
        """Return the proposals [B, k - 1] of `proposer` at `offsets`; `context.sampler` is this sampler."""
        return proposer.propose(context, offsets)

    def accept(self, criterion: Criterion, proposed: Tensor, scores: Tensor, target: Tensor) -> Tensor:
        """Return which proposals [B, k - 1] pass under p1's scores [B, k - 1, V]; `target` holds their positions."""
        return criterion.accept(proposed, self.adjust(scores, slice(1, None)), target)

    def clear(self, rows: Tensor) -> None:
        """Clear the data of the proposals of `rows` [R], which begin new sequences."""

    def inherit(self, before: CoupledSampler, kept: Tensor) -> None:
        """Copy the data of the proposals in rows `kept` [R] of `before`, a sampler at the same positions."""


GREEDY = CoupledSampler(False, torch.empty(0), torch.empty(0), ScoreFilter(torch.empty(0)))
"""Takes the argmax of the scores."""


@dataclass
class SpeculativeSampler(CoupledSampler):
    """Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023): samples p1's distribution exactly.

    A proposal drawn from q passes with probability min(1, p / q). After a rejection, the next block's first token is
    drawn from norm(max(0, p - q)); if all proposals passed, it is drawn from p. The temperature and the filters are
    applied to p and q first. For a proposer that draws no tokens, q is 1 at its greedy proposals.

    The noise depends on seed, sequence and position, as in the other ways of sampling: three uniform numbers per
    position, one per purpose, [B, k, 3]. Several proposals of one position may use the same numbers, since only the
    last of them is verified after accepted tokens.

    Attributes:
        q: distributions of the proposals at offsets 1..k, float64 [B, k, V]; 0 without a proposal, as at offset k.
        p: p1's distributions at offsets 1..k-1, [B, k - 1, V]; None before verification.
    """

    q: Tensor
    p: Tensor | None = None

    def load(self, other: CoupledSampler) -> Self:
        """See `CoupledSampler.load`; q of the previous proposals stays in the buffer until `first` has used it."""
        return replace(super().load(other), q=self.q[:, : other.noise.shape[1]])

    def __call__(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """Draw a proposal at each of `offsets` [N] and store its distribution; see `Sampler.__call__`."""
        if isinstance(offsets, slice):
            raise TypeError("speculative sampling needs the offsets of proposals as a tensor, not as a slice")
        q = self._distribution(scores, offsets)  # [B, N, V]
        self.q[:, offsets - 1] = q
        return draw(q, self._uniform(offsets, PROPOSAL))

    def additive(self, offsets: Tensor) -> None:
        """See `Sampler.additive`."""

    def first(self, scores: Tensor, before: CoupledSampler, index: Tensor) -> Tensor:
        """See `CoupledSampler.first`."""
        p = self._distribution(scores, slice(1))  # [B, 1, V]
        if isinstance(before, SpeculativeSampler):
            q = before.q.gather(1, index.view(-1, 1, 1).expand(-1, 1, p.shape[-1]))  # [B, 1, V]
            rest = (p - q).clamp(min=0)
            # The difference is 0 where p equals q; a rejection there is due to rounding.
            p = rest.where(rest.amax(-1, keepdim=True) >= LEAST_WEIGHT, p)
        self.q.zero_()
        return draw(p, self._uniform(slice(1), COMMITTED))

    def propose(self, proposer: Proposer, context: Context, offsets: Tensor) -> Tensor:
        """See `CoupledSampler.propose`."""
        if getattr(proposer, "draws", False):
            return proposer.propose(context, offsets)
        tokens = proposer.propose(replace(context, sampler=GREEDY), offsets)
        self.q[:, : tokens.shape[1]].scatter_(-1, tokens.unsqueeze(-1), 1.0)
        return tokens

    def accept(self, criterion: Criterion, proposed: Tensor, scores: Tensor, target: Tensor) -> Tensor:
        """See `CoupledSampler.accept`; the criterion is not used."""
        self.p = self._distribution(scores, slice(1, None))
        own = proposed.unsqueeze(-1)  # [B, k - 1, 1]
        p, q = self.p.gather(-1, own), self.q[:, :-1].gather(-1, own)
        return (self._uniform(slice(1, None), VERDICT) * q < p).squeeze(-1)

    def clear(self, rows: Tensor) -> None:
        """See `CoupledSampler.clear`."""
        self.q.index_fill_(0, rows, 0.0)

    def inherit(self, before: CoupledSampler, kept: Tensor) -> None:
        """See `CoupledSampler.inherit`."""
        if isinstance(before, SpeculativeSampler):
            self.q.copy_(before.q[kept])

    def _distribution(self, scores: Tensor, offsets: Tensor | slice) -> Tensor:
        return distribution(self.filter(scores, self.temperature[:, offsets]))

    def _uniform(self, offsets: Tensor | slice, purpose: int) -> Tensor:
        return self.noise[:, offsets, purpose].unsqueeze(-1)


def distribution(scores: Tensor) -> Tensor:
    """Return softmax(scores) [..., V], float64; no probability is between 0 and LEAST_WEIGHT."""
    weight = weights(scores)
    return weight.double() / weight.sum(-1, keepdim=True).double()


def draw(probability: Tensor, uniform: Tensor) -> Tensor:
    """Draw tokens [B, N] from weights [B, N, V] of at most 1 with uniform numbers [B, N, 1] in [0, 1).

    The weights need not sum to 1; a token of a weight below LEAST_WEIGHT is never drawn.
    """
    sums = (probability.double() / LEAST_WEIGHT).long().cumsum(-1)  # [B, N, V], exact
    place = (uniform.double() * sums[..., -1:].double()).long()
    tokens = torch.searchsorted(sums, place, right=True).squeeze(-1)
    # NaN weights raise an error later (`superres.decoding.nan_check`); until then every token must be in range.
    return tokens.clamp(max=probability.shape[-1] - 1)


class Samplers:
    """Makes the samplers of a decode: greedy, by seed-coupled sampling, or by speculative sampling."""

    def __init__(self, options: DecodeConfig, keys: Tensor, vocabulary: int, buffer_width: int | None = None) -> None:
        """Prepare for rows whose sampling noise has the keys `keys`.

        Args:
            options: sampling settings.
            keys: keys of the rows' noise, int64 [B].
            vocabulary: V.
            buffer_width: number of positions of a fixed buffer that every sampler is copied to; None for new memory.
        """
        temperatures = torch.tensor(options.temperatures, dtype=torch.float64, device=keys.device)
        self.filter = ScoreFilter(temperatures, options.sample_top_k, options.nucleus)
        self.vocabulary = vocabulary
        self.noise: GumbelNoise | None = None
        self.uniforms: RandomWords | None = None
        if options.is_sampling and options.sampling == "speculative":
            self.uniforms = RandomWords(options.seed, keys)
        elif options.is_sampling:
            self.noise = GumbelNoise(options.seed, keys, vocabulary)
        self.options, self.keys = options, keys
        self.buffer = None if buffer_width is None else self._make(keys.new_zeros(len(keys), buffer_width))

    def rekey(self, seed: int, keys: Tensor) -> None:
        """Use `seed` and `keys` [B] from now on."""
        for source in (self.noise, self.uniforms):
            if source is not None:
                source.rekey(seed, keys)

    def as_data(self, width: int) -> Sampling | None:
        """Return the sampling as data for blocks of at most `width` tokens, or None for greedy choices."""
        if not self.options.is_sampling:
            return None
        speculative = self.options.sampling == "speculative"
        shape = len(self.keys), width if speculative else 0
        return Sampling(
            "speculative" if speculative else "gumbel", self.options.seed, self.keys,
            self.filter.temperatures.float(), self.filter.top_k, self.filter.nucleus,
            self.keys.new_zeros(*shape, self.vocabulary, dtype=torch.int32), self.keys.new_zeros(shape))

    def at(self, position: Tensor) -> CoupledSampler:
        """Return the sampler at target positions [B, N]."""
        sampler = self._make(position)
        return sampler if self.buffer is None or sampler is GREEDY else self.buffer.load(sampler)

    def _make(self, position: Tensor) -> CoupledSampler:
        if self.noise is None and self.uniforms is None:
            return GREEDY
        temperature = self.filter.temperature(position)  # [B, N, 1]
        if self.noise is not None:
            return CoupledSampler(True, self.noise.at(position), temperature, self.filter)
        shape = *position.shape, self.vocabulary
        q = torch.zeros(shape, dtype=torch.float64, device=position.device)  # [B, N, V]
        return SpeculativeSampler(False, self.uniform(position), temperature, self.filter, q)

    def uniform(self, position: Tensor) -> Tensor:
        """Return uniform numbers in (0, 1) for target positions [B, N], one per purpose, float64 [B, N, 3].

        Raises:
            ValueError: the sampling is not speculative.
        """
        if self.uniforms is None:
            raise ValueError("only speculative sampling has uniform numbers per purpose")
        return self.uniforms.uniforms(position)[..., :3]
