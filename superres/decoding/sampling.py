"""How tokens are chosen from scores: the argmax, a seed-coupled sample, or speculative sampling.

The loop asks for a choice at the positions of each block. It chooses the block's first token, lets the proposer choose
proposals, and says which of them pass; what differs between ways of sampling is all in here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.noise import NOISES, Noise, Uniforms

if TYPE_CHECKING:
    from typing_extensions import Self

    from superres.decoding.acceptance import Criterion
    from superres.decoding.proposers.base import Context, Proposer

PROPOSAL, VERDICT, COMMITTED = range(3)
"""What the uniform numbers of a position are for in speculative sampling."""


def filtered(scores: Tensor, top_k: int | None, nucleus: float) -> Tensor:
    """Return scores [..., V] that are -inf but for the tokens to sample from; ties with the last of them stay.

    Args:
        scores: over the temperature.
        top_k: keep the so many likeliest (Fan et al. 2018); None keeps all.
        nucleus: then keep the likeliest whose probabilities add up to at least this (Holtzman et al. 2020); 1 keeps
            all.
    """
    if top_k is not None and top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(top_k, dim=-1).values[..., -1:], float("-inf"))
    if nucleus < 1:
        ordered = scores.sort(dim=-1, descending=True).values
        probability = ordered.softmax(-1)
        outside = probability.cumsum(-1) - probability >= nucleus
        outside[..., 0] = False
        least = ordered.masked_fill(outside, float("inf")).amin(-1, keepdim=True)
        scores = scores.masked_fill(scores < least, float("-inf"))
    return scores


@dataclass
class Sampler:
    """From scores to scores of the distribution to sample from.

    Attributes:
        temperatures: T of each colour in turn, float64 [1 or 3].
        top_k: see `filtered`.
        nucleus: see `filtered`.
    """

    temperatures: Tensor
    top_k: int | None = None
    nucleus: float = 1.0

    @property
    def filters(self) -> bool:
        """Whether some tokens are left out."""
        return self.top_k is not None or self.nucleus < 1

    def temperature(self, position: Tensor) -> Tensor:
        """Return T at target positions [B, N], as [B, N, 1]."""
        # Intensities follow one another as red, green, blue.
        return self.temperatures[position % len(self.temperatures)].unsqueeze(-1)

    def __call__(self, scores: Tensor, temperature: Tensor) -> Tensor:
        """Return `scores` [B, N, V] over the `temperature` [B, N, 1], filtered."""
        scores = scores / temperature.to(scores.dtype)
        return filtered(scores, self.top_k, self.nucleus) if self.filters else scores


@dataclass
class Choice:
    """How tokens are chosen at some target positions of each row; verification and proposals of a position share it.

    A `superres.interfaces.Choose`: offsets count from the first of the positions.

    Attributes:
        rule: the kind of noise; None for greedy decoding.
        noise: of the positions, [B, N, ...].
        temperature: [B, N, 1].
        sampler: what is sampled from.
    """

    rule: type[Noise] | None
    noise: Tensor
    temperature: Tensor
    sampler: Sampler

    def like(self, width: int) -> Self:
        """Return room for the same at `width` positions."""
        noise, temperature = (x.new_zeros(len(x), width, x.shape[2]) for x in (self.noise, self.temperature))
        return replace(self, noise=noise, temperature=temperature)

    def take(self, other: Choice) -> Self:
        """Copy another in here, at the first positions, and return what there is of them."""
        count = other.noise.shape[1]
        return replace(self, noise=self.noise[:, :count].copy_(other.noise),
                       temperature=self.temperature[:, :count].copy_(other.temperature))

    def __call__(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """See `Choose.__call__`."""
        return self.adjust(scores, offsets).argmax(-1)

    def adjust(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """Return the scores [B, N, V] whose argmax is the choice at `offsets`."""
        if self.rule is None:
            return scores
        return self.rule.adjust(self.sampler(scores, self.temperature[:, offsets]), self.noise[:, offsets])

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """See `Choose.additive`."""
        if self.rule is None:
            return None, None
        plain = self.rule.additive and not self.sampler.filters
        return (self.temperature[:, offsets], self.noise[:, offsets]) if plain else None

    def first(self, scores: Tensor, before: Choice, index: Tensor) -> Tensor:
        """Return the first token [B, 1] of a block.

        Args:
            scores: p1's, of that token, [B, 1, V].
            before: the choice of the block before.
            index: accepted tokens of that block but the first, [B].
        """
        return self(scores, slice(1))

    def propose(self, proposer: Proposer, context: Context, offsets: Tensor) -> Tensor:
        """Let `proposer` make the proposals [B, k - 1] at `offsets`; `context.choose` is this choice."""
        return proposer.propose(context, offsets)

    def accept(self, criterion: Criterion, proposed: Tensor, scores: Tensor, target: Tensor) -> Tensor:
        """Return which proposals [B, k - 1] pass by p1's scores [B, k - 1, V]; `target` is their positions."""
        return criterion.accept(proposed, self.adjust(scores, slice(1, None)), target)

    def clear(self, rows: Tensor) -> None:
        """Forget the proposals in `rows` [R], which begin new sequences."""

    def inherit(self, before: Choice, kept: Tensor) -> None:
        """Take over what `before`, of the same positions, knows of the proposals in its rows `kept` [R]."""


GREEDY = Choice(None, torch.empty(0), torch.empty(0), Sampler(torch.empty(0)))
"""The choice of the likeliest tokens."""


@dataclass
class SpeculativeChoice(Choice):
    """Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023): the distribution of p1, exactly.

    A proposal drawn from q passes with probability min(1, p / q). Where one fails, the next block's first token is
    drawn from norm(max(0, p - q)), which makes up for it; where all passed, from p. The temperature and the filters
    act on p and q before. A proposer that draws nothing is asked for its likeliest tokens: q is then 1 at those.

    Noise is a function of seed, sequence and position, as for other sampling: uniform numbers [B, k, 3], by purpose.
    That a position may be proposed for several times does no harm: what was rejected with an earlier token was never
    looked at.

    Attributes:
        q: distributions of the proposals at offsets 1..k, float32 [B, k, V]; 0 where there is none, as at offset k.
        p: p1's at offsets 1..k-1, [B, k - 1, V], once they are known.
    """

    q: Tensor
    p: Tensor | None = None

    def like(self, width: int) -> Self:
        """See `Choice.like`."""
        return replace(super().like(width), q=self.q.new_zeros(len(self.q), width, self.q.shape[2]))

    def take(self, other: Choice) -> Self:
        """See `Choice.take`; here stays what the proposals before were drawn from, until `first` has made up for it."""
        return replace(super().take(other), q=self.q[:, : other.noise.shape[1]])

    def __call__(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """Draw proposals at `offsets` [N], once each, and remember their distributions; see `Choose.__call__`."""
        if isinstance(offsets, slice):
            raise TypeError("proposals stand at numbered offsets")
        q = self._distribution(scores, offsets)
        self.q[:, offsets - 1] = q
        return draw(q, self._uniform(offsets, PROPOSAL))

    def additive(self, offsets: Tensor) -> None:
        """See `Choose.additive`."""

    def first(self, scores: Tensor, before: Choice, index: Tensor) -> Tensor:
        """See `Choice.first`."""
        p = self._distribution(scores, slice(1))
        if isinstance(before, SpeculativeChoice):
            q = before.q.gather(1, index.view(-1, 1, 1).expand(-1, 1, p.shape[-1]))
            rest = (p - q).clamp(min=0)
            # Nothing is left where p is q: then nothing fails but by rounding.
            p = rest.where(rest.sum(-1, keepdim=True) > 0, p)
        self.q.zero_()
        return draw(p, self._uniform(slice(1), COMMITTED))

    def propose(self, proposer: Proposer, context: Context, offsets: Tensor) -> Tensor:
        """See `Choice.propose`."""
        if getattr(proposer, "draws", False):
            return proposer.propose(context, offsets)
        tokens = proposer.propose(replace(context, choose=GREEDY), offsets)
        self.q[:, : tokens.shape[1]].scatter_(-1, tokens.unsqueeze(-1), 1.0)
        return tokens

    def accept(self, criterion: Criterion, proposed: Tensor, scores: Tensor, target: Tensor) -> Tensor:
        """See `Choice.accept`; the criterion has no say."""
        self.p = self._distribution(scores, slice(1, None))
        own = proposed.unsqueeze(-1)
        p, q = self.p.gather(-1, own), self.q[:, :-1].gather(-1, own)
        return (self._uniform(slice(1, None), VERDICT) * q < p).squeeze(-1)

    def clear(self, rows: Tensor) -> None:
        """See `Choice.clear`."""
        self.q.index_fill_(0, rows, 0.0)

    def inherit(self, before: Choice, kept: Tensor) -> None:
        """See `Choice.inherit`."""
        if isinstance(before, SpeculativeChoice):
            self.q.copy_(before.q[kept])

    def _distribution(self, scores: Tensor, offsets: Tensor | slice) -> Tensor:
        return self.sampler(scores, self.temperature[:, offsets]).softmax(-1, dtype=torch.float32)

    def _uniform(self, offsets: Tensor | slice, purpose: int) -> Tensor:
        return self.noise[:, offsets, purpose].unsqueeze(-1)


def draw(probability: Tensor, uniform: Tensor) -> Tensor:
    """Return tokens [B, N]: where the cumulative sum of weights [B, N, V] passes uniform numbers [B, N, 1] below 1.

    The weights need not add up to 1; a token of weight 0 is never drawn.
    """
    sums = probability.cumsum(-1)
    tokens = torch.searchsorted(sums, uniform * sums[..., -1:], right=True).squeeze(-1)
    # Weights that are NaN are refused later (`superres.decoding.finite`); until then no token may be out of range.
    return tokens.clamp(max=probability.shape[-1] - 1)


class Chooser:
    """Chooses tokens from scores as the options say: greedily, by seed-coupled or by speculative sampling."""

    def __init__(self, options: DecodeConfig, keys: Tensor, vocabulary: int, hold: int | None = None) -> None:
        """Prepare for rows keyed by `keys` [B].

        Args:
            options: sampling.
            keys: of the rows' noise.
            vocabulary: V.
            hold: keep choices of up to this many positions in one memory, each in the place of the one before.
        """
        temperatures = torch.tensor(options.temperatures, dtype=torch.float64, device=keys.device)
        self.sampler = Sampler(temperatures, options.sample_top_k, options.nucleus)
        self.vocabulary = vocabulary
        self.noise: Noise | None = None
        self.uniforms: Uniforms | None = None
        if options.is_sampling and options.sampling == "speculative":
            self.uniforms = Uniforms(options.seed, keys)
        elif options.is_sampling:
            self.noise = NOISES[options.noise](options.seed, keys, vocabulary)
        self.samples = options.is_sampling
        self.held = None if hold is None else self._make(keys.new_zeros(len(keys), hold))

    def rekey(self, seed: int, keys: Tensor) -> None:
        """Choose for rows keyed by `keys` [B] from now on."""
        for source in (self.noise, self.uniforms):
            if source is not None:
                source.rekey(seed, keys)

    def at(self, position: Tensor) -> Choice:
        """Return the choice at target positions [B, N]."""
        choice = self._make(position)
        return choice if self.held is None or choice is GREEDY else self.held.take(choice)

    def _make(self, position: Tensor) -> Choice:
        if not self.samples:
            return GREEDY
        temperature = self.sampler.temperature(position)
        if self.noise is not None:
            return Choice(type(self.noise), self.noise.at(position), temperature, self.sampler)
        q = torch.zeros(*position.shape, self.vocabulary, device=position.device)
        return SpeculativeChoice(None, self.uniform(position), temperature, self.sampler, q)

    def uniform(self, position: Tensor) -> Tensor:
        """Return the numbers in (0, 1) of target positions [B, N] in speculative sampling, by purpose, [B, N, 3].

        Raises:
            ValueError: the sampling is another.
        """
        if self.uniforms is None:
            raise ValueError("there are numbers for each purpose in speculative sampling alone")
        counter = 3 * position.unsqueeze(-1) + torch.arange(3, device=position.device)
        # A number that rounds to 1 would point past the last token of a cumulative sum.
        return self.uniforms.at(counter).clamp(max=1 - 2.0**-20).float()
