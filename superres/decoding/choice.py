"""How tokens are chosen from scores: the argmax, a seed-coupled sample, or speculative sampling.

The loop asks for a choice at the positions of each block. It chooses the block's first token, lets the proposer choose
proposals, and says which of them pass; what differs between ways of sampling is all in here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.noise import NOISES, Noise, Uniforms

if TYPE_CHECKING:
    from superres.decoding.acceptance import Criterion
    from superres.decoding.proposer import Context, Proposer

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

    A `superres.scoring.Choose`: offsets count from the first of the positions.

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


class SpeculativeChoice(Choice):
    """Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023): the distribution of p1, exactly.

    A proposal drawn from q passes with probability min(1, p / q). Where one fails, the next block's first token is
    drawn from norm(max(0, p - q)), which makes up for it; where all passed, from p. The temperature and the filters
    act on p and q before. A proposer that draws nothing is asked for its likeliest tokens: q is then 1 at those.

    Noise is a function of seed, sequence and position, as for other sampling. That a position may be proposed for
    several times does no harm: what was rejected with an earlier token was never looked at.

    Attributes:
        q: distributions of the proposals at offsets 1..k, [B, k, V]; 0 where there is none, as at offset k.
        p: p1's at offsets 1..k-1, [B, k - 1, V], once they are known.
    """

    GREEDY = Choice(None, torch.empty(0), torch.empty(0), Sampler(torch.empty(0)))

    def __init__(self, sampler: Sampler, uniforms: Uniforms, position: Tensor, vocabulary: int) -> None:
        """Prepare for target positions [B, k]."""
        counter = 3 * position.unsqueeze(-1) + torch.arange(3, device=position.device)
        # A number that rounds to 1 would point past the last token of a cumulative sum.
        uniform = uniforms.at(counter).clamp(max=1 - 2.0**-20).float()
        super().__init__(None, uniform, sampler.temperature(position), sampler)
        self.q = torch.zeros(*position.shape, vocabulary, device=position.device)
        self.p: Tensor | None = None

    def __call__(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """Draw proposals at `offsets` [N], once each, and remember their distributions; see `Choose.__call__`."""
        if isinstance(offsets, slice):
            raise TypeError("proposals stand at numbered offsets")
        q = self._distribution(scores, offsets)
        self.q = self.q.to(q.dtype)
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
        return draw(p, self._uniform(slice(1), COMMITTED))

    def propose(self, proposer: Proposer, context: Context, offsets: Tensor) -> Tensor:
        """See `Choice.propose`."""
        if getattr(proposer, "draws", False):
            return proposer.propose(context, offsets)
        tokens = proposer.propose(dataclasses.replace(context, choose=self.GREEDY), offsets)
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
            self.q = before.q[kept]

    def _distribution(self, scores: Tensor, offsets: Tensor | slice) -> Tensor:
        return self.sampler(scores, self.temperature[:, offsets]).softmax(-1)

    def _uniform(self, offsets: Tensor | slice, purpose: int) -> Tensor:
        return self.noise[:, offsets, purpose].unsqueeze(-1)


def draw(probability: Tensor, uniform: Tensor) -> Tensor:
    """Return tokens [B, N]: where the cumulative sum of weights [B, N, V] passes uniform numbers [B, N, 1] below 1.

    The weights need not add up to 1; a token of weight 0 is never drawn.
    """
    sums = probability.cumsum(-1)
    return torch.searchsorted(sums, uniform * sums[..., -1:], right=True).squeeze(-1)


class Chooser:
    """Chooses tokens from scores as the options say: greedily, by seed-coupled or by speculative sampling."""

    def __init__(self, options: DecodeConfig, keys: Tensor, vocabulary: int) -> None:
        """Prepare for rows keyed by `keys` [B]."""
        temperatures = torch.tensor(options.temperatures, dtype=torch.float64, device=keys.device)
        self.sampler = Sampler(temperatures, options.sample_top_k, options.nucleus)
        self.vocabulary = vocabulary
        self.noise: Noise | None = None
        self.uniforms: Uniforms | None = None
        if options.is_sampling and options.sampling == "speculative":
            self.uniforms = Uniforms(options.seed, keys)
        elif options.is_sampling:
            self.noise = NOISES[options.noise](options.seed, keys, vocabulary)

    def at(self, position: Tensor) -> Choice:
        """Return the choice at target positions [B, N]."""
        if self.uniforms is not None:
            return SpeculativeChoice(self.sampler, self.uniforms, position, self.vocabulary)
        if self.noise is None:
            return Choice(None, position, position, self.sampler)
        return Choice(type(self.noise), self.noise.at(position), self.sampler.temperature(position), self.sampler)
