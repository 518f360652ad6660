"""Choosing tokens from scores: by argmax, by seed-coupled sampling, or by speculative sampling.

The loop requests a sampler for the positions of each block. The sampler determines the block's
first token, is used by the proposer, and decides which proposals pass. All differences between the
ways of sampling are in this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.acceptance import Criterion, DrawCriterion, Draws, Verdict
from superres.decoding.plain.noise import Noise, weights
from superres.decoding.proposers.proposer import Context, Proposer
from superres.sessions import Sampler

PROPOSAL, VERDICT, COMMITTED = range(3)
"""The purposes of the three uniform numbers of a position in speculative sampling."""

GUMBEL_COUNTERS = 1 << 31  # added to positions, which are smaller

# Unit of the weights from which tokens are drawn; sums of whole units are exact
LEAST_WEIGHT = 2.0**-40


def filtered(scores: Tensor, top_k: int | None, nucleus: float) -> Tensor:
    """Return scores [..., V], which are divided by the temperature, as -inf except at the tokens to
    sample from.

    These are the `top_k` likeliest tokens and ties (Fan et al. 2018), all if None. Of them, the
    fewest likeliest tokens are kept, and ties, whose probabilities sum to at least `nucleus`
    (Holtzman et al. 2020); 1 keeps all.
    """
    if top_k is not None and top_k < scores.shape[-1]:
        scores = scores.masked_fill(scores < scores.topk(top_k, dim=-1).values[..., -1:],
                                    float("-inf"))
    if nucleus < 1:
        ordered = scores.sort(dim=-1, descending=True).values
        weight = weights(ordered)
        sums = weight.cumsum(-1)
        outside = (sums - weight).double() >= sums[..., -1:].double() * nucleus
        outside[..., 0] = False
        least = ordered.masked_fill(outside, float("inf")).amin(-1, keepdim=True)
        scores = scores.masked_fill(scores < least, float("-inf"))
    return scores


def scaled(scores: Tensor, temperature: Tensor, options: DecodeConfig) -> Tensor:
    """Return scores [B, N, V] divided by `temperature` [B, N, 1], and filtered as `options` say."""
    return filtered(scores / temperature.to(scores.dtype), options.sample_top_k, options.nucleus)


@dataclass
class CoupledSampler(Sampler):
    """Chooses tokens at N target positions of each row, both for proposals and for their
    verification.

    Offsets count from the first of the positions.
    """

    coupled: bool  # whether the tokens are seed-coupled samples
    noise: Tensor  # noise of the positions, [B, N, V] if `coupled`
    temperature: Tensor  # [B, N, 1]
    options: DecodeConfig

    def __call__(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        return self.adjust(scores, offsets).argmax(-1)

    def adjust(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """Return the scores [B, N, V] whose argmax is the choice at `offsets`."""
        if not self.coupled:
            return scores
        scores = scaled(scores, self.temperature[:, offsets], self.options)
        return scores + self.noise[:, offsets].to(scores.dtype)

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        if not self.coupled:
            return None, None
        filters = self.options.sample_top_k is not None or self.options.nucleus < 1
        return None if filters else (self.temperature[:, offsets], self.noise[:, offsets])

    def first(self, scores: Tensor, before: CoupledSampler, index: Tensor) -> Tensor:
        """Return the first token [B, 1] of a block from p1's scores [B, 1, V].

        `before` is the sampler of the previous block, of which `index` + 1 tokens were accepted,
        [B].
        """
        return self(scores, slice(1))

    def propose(self, proposer: Proposer, context: Context, offsets: Tensor) -> Tensor:
        """Return the proposals [B, k - 1] of `proposer` at `offsets`; `context.sampler` is this
        sampler."""
        return proposer.propose(context, offsets)

    def record(self, tokens: Tensor) -> Tensor:
        """Return the proposals `tokens` [B, k - 1], which were not drawn from a distribution."""
        return tokens

    def accept(
        self, criterion: Criterion, proposed: Tensor, scores: Tensor, target: Tensor,
        missing: Tensor,
    ) -> Tensor:
        """Return which proposals [B, k - 1] pass under p1's scores [B, k - 1, V]; the accepted ones
        are a prefix.

        `target` holds the positions of the proposals. A row accepts at most `missing` [B] tokens,
        the block's first token included, so the other proposals of the row have no influence.
        """
        return criterion.accept(proposed, self.adjust(scores, slice(1, 1 + scores.shape[1])),
                                target)

    def clear(self, rows: Tensor) -> None:
        """Clear the data of the proposals of `rows` [R], which begin new sequences."""

    def inherit(self, before: CoupledSampler, kept: Tensor) -> None:
        """Copy the data of the proposals in rows `kept` [R] of `before`, a sampler at the same
        positions."""


# Takes the argmax of the scores
GREEDY = CoupledSampler(False, torch.empty(0), torch.empty(0), DecodeConfig())


@dataclass
class SpeculativeSampler(CoupledSampler):
    """Speculative sampling: proposals are drawn from distributions q one after another, and judged
    by p and q.

    A `DrawCriterion` judges them; `block_verification` if there is none. The temperature and the
    filters are applied to p and q first. For a proposer that draws no tokens, q is 1 at its
    proposals.

    The noise depends on seed, sequence, position and the position's offset in the block: three
    uniform numbers per position, one per purpose, [B, k, 3]. Where a block ends depends on all of
    its proposals, so a later block that proposes for the same position must use other numbers.
    """

    # distributions of the proposals at offsets 1..k, float64 [B, k, V]; 0 without a proposal, as at
    # offset k
    q: Tensor
    gumbels: Callable[[], Tensor]  # makes Gumbel noise of the positions, [B, k, V]
    draws: Draws | None = None  # the proposals, once they are judged
    rest: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # of the criterion's `Verdict`

    def __call__(self, scores: Tensor, offsets: Tensor | slice = slice(None)) -> Tensor:
        """Draw a proposal at each of `offsets` [N], which are no slice, and store its
        distribution."""
        if isinstance(offsets, slice):
            raise TypeError("speculative sampling needs the offsets of proposals as a tensor, not "
                            "as a slice")
        q = self.distribution(scores, offsets)  # [B, N, V]
        return self.put(draw(q, self._uniform(offsets, PROPOSAL)), q, offsets)

    def put(self, tokens: Tensor, q: Tensor, offsets: Tensor) -> Tensor:
        """Return the proposals `tokens` [B, N] at `offsets` [N], which have the distributions `q`
        [B, N, V] given all that came before."""
        self.q[:, offsets - 1] = q
        return tokens

    def distribution(self, scores: Tensor, offsets: Tensor | slice) -> Tensor:
        """Return the distributions float64 [B, N, V] of tokens at `offsets` from their scores."""
        return distribution(scaled(scores, self.temperature[:, offsets], self.options))

    def gumbel(self, offsets: Tensor) -> Tensor:
        """Return Gumbel noise [B, N, V] of the positions at `offsets` [N], the same in every
        block."""
        return self.gumbels()[:, offsets]

    def additive(self, offsets: Tensor) -> None:
        ...

    def first(self, scores: Tensor, before: CoupledSampler, index: Tensor) -> Tensor:
        p = self.distribution(scores, slice(1))  # [B, 1, V]
        if isinstance(before, SpeculativeSampler) and before.rest is not None:
            place = index.view(-1, 1, 1)
            q = before.q.gather(1, place.expand(-1, 1, p.shape[-1]))  # [B, 1, V]
            rest = before.rest(p, q, index)
            # The residual is 0 where p equals q; the block ends there only by rounding.
            p = rest.where(rest.amax(-1, keepdim=True) >= LEAST_WEIGHT, p)
        return draw(p, self._uniform(slice(1), COMMITTED))

    def propose(self, proposer: Proposer, context: Context, offsets: Tensor) -> Tensor:
        if getattr(proposer, "draws", False):
            return proposer.propose(context, offsets)
        return self.record(proposer.propose(replace(context, sampler=GREEDY), offsets))

    def record(self, tokens: Tensor) -> Tensor:
        self.q[:, : tokens.shape[1]].scatter_(-1, tokens.unsqueeze(-1), 1.0)
        return tokens

    def accept(
        self, criterion: Criterion, proposed: Tensor, scores: Tensor, target: Tensor,
        missing: Tensor,
    ) -> Tensor:
        count = scores.shape[1]
        verified = slice(1, 1 + count)
        self.draws = Draws(
            proposed, self.distribution(scores, verified), self.q[:, :count],
            self._uniform(verified, VERDICT).squeeze(-1), target,
            (missing - 1).clamp(max=count).unsqueeze(1))
        judge = criterion.judge if isinstance(criterion, DrawCriterion) else block_verification
        passed, self.rest = judge(self.draws)
        return passed

    def clear(self, rows: Tensor) -> None:
        self.q.index_fill_(0, rows, 0.0)

    def inherit(self, before: CoupledSampler, kept: Tensor) -> None:
        if isinstance(before, SpeculativeSampler):
            self.q.copy_(before.q[kept])

    def _uniform(self, offsets: Tensor | slice, purpose: int) -> Tensor:
        return self.noise[:, offsets, purpose].unsqueeze(-1)


def block_verification(draws: Draws) -> Verdict:
    """Judge a block jointly (Sun et al. 2025, algorithm 2): samples p1's distribution exactly.

    For proposals X1..Xn, let s0 = 1 and si = min(1, s(i-1) p(Xi) / q(Xi)). The block may end after
    Xi with probability Ri / (Ri + 1 - si), where Ri is the sum of max(0, si p - q) over the tokens
    that may follow Xi; after Xn, with probability sn. The longest such prefix is accepted, so that
    si is the probability that at least i proposals are. The next token is drawn from norm(max(0, si
    p - q)), or from p after Xn.
    """
    p, q, last, count = draws.p, draws.q, draws.last, draws.p.shape[1]
    number = torch.arange(1, 1 + count, device=p.device)  # [N]
    survival = [torch.ones_like(p[:, 0, 0])]
    for ratio in draws.ratio().unbind(1):
        survival.append((survival[-1] * ratio).clamp(max=1))
    s = torch.stack(survival, dim=1)  # [B, N + 1]
    before = F.pad(s[:, :-1], (0, 1), value=1.0)  # 1 after the last proposal, which none follows
    rest = (whole(residual(p[:, 1:], q[:, 1:], s[:, 1:-1].unsqueeze(-1))).sum(-1).double()
            * LEAST_WEIGHT)
    s = s[:, 1:]
    rest = F.pad(rest, (0, 1)).where(number < last, s)  # after the last proposal, q is 0
    passed = (draws.uniform * (rest + (1 - s)) < rest) & (number <= last)
    return Verdict(
        number <= (passed * number).amax(1, keepdim=True),
        lambda p, q, index: residual(p, q, before.gather(1, index.view(-1, 1)).unsqueeze(-1)))


def distribution(scores: Tensor) -> Tensor:
    """Return softmax(scores) [..., V], float64; no probability is between 0 and LEAST_WEIGHT."""
    weight = weights(scores)
    return weight.double() / weight.sum(-1, keepdim=True).double()


def residual(p: Tensor, q: Tensor, survival: Tensor) -> Tensor:
    """Return max(0, survival p - q) for distributions p and q [..., V] and `survival` [..., 1]."""
    return (survival * p - q).clamp(min=0)


def whole(probability: Tensor) -> Tensor:
    """Return probabilities [..., V] as whole numbers of LEAST_WEIGHT, int64."""
    return (probability.double() / LEAST_WEIGHT).long()


def draw(probability: Tensor, uniform: Tensor) -> Tensor:
    """Draw tokens [B, N] from weights [B, N, V] of at most 1 with uniform numbers [B, N, 1] in [0,
    1).

    The weights need not sum to 1; a token of a weight below LEAST_WEIGHT is never drawn.
    """
    sums = whole(probability).cumsum(-1)  # [B, N, V]
    place = (uniform.double() * sums[..., -1:].double()).long()
    tokens = torch.searchsorted(sums, place, right=True).squeeze(-1)
    # NaN weights raise an error later (`superres.decoding.plain.state.NanCheck`); until then every
    # token must be in range.
    return tokens.clamp(max=probability.shape[-1] - 1)


class Samplers:
    """Makes the samplers of a decode: greedy, by seed-coupled sampling, or by speculative
    sampling."""

    def __init__(self, options: DecodeConfig, keys: Tensor, vocabulary: int) -> None:
        """Prepare for rows whose sampling noise has the keys `keys`, int64 [B]."""
        self.options, self.keys, self.vocabulary = options, keys, vocabulary
        self.speculative = options.is_speculative
        # [1 or 3]
        self.temperatures = torch.tensor(options.temperatures, dtype=torch.float64,
                                         device=keys.device)
        self.noise = Noise(options.seed, keys, vocabulary) if options.is_sampling else None

    def rekey(self, keys: Tensor) -> None:
        """Use `keys` [B] from now on."""
        if self.noise is not None:
            self.noise.rekey(keys)

    def at(self, position: Tensor) -> CoupledSampler:
        """Return the sampler at target positions [B, N]."""
        if self.noise is None:
            return GREEDY
        temperature = self.temperature(position)
        if not self.speculative:
            return CoupledSampler(True, self.noise.gumbel(position), temperature, self.options)
        uniform = self.uniform(position, torch.arange(position.shape[1], device=position.device))
        q = temperature.new_zeros(*position.shape, self.vocabulary)  # [B, N, V]
        # The uniform numbers are words of the same counters: the noise has counters of its own.
        return SpeculativeSampler(False, uniform, temperature, self.options, q,
                                  partial(self.noise.gumbel, position + GUMBEL_COUNTERS))

    def temperature(self, position: Tensor) -> Tensor:
        """Return T at target positions [B, N], as [B, N, 1]; the channels of consecutive positions
        are R, G, B."""
        return self.temperatures[position % len(self.temperatures)].unsqueeze(-1)

    def uniform(self, position: Tensor, offset: Tensor) -> Tensor:
        """Return uniform numbers in (0, 1), one per purpose, float64 [B, N, 3].

        They differ by target position [B, N] and by its `offset` [N] from the start of the block.
        """
        if self.noise is None:
            raise ValueError("greedy decoding has no noise")
        return self.noise.uniforms(position, offset)[..., :3]
