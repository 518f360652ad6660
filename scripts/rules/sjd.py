"""SJD: speculative Jacobi decoding (Teng et al. 2025, arXiv 2410.01699).

A step that rejects a token has also scored those after it. They are drawn anew from these scores,
which are stale, as they follow the rejected token: q is the stale distribution. The next step
accepts token by token. SCD's and SJD-PAC's papers call it lossless; its own was read in excerpts.
New tokens at the window's end have no scores yet. The authors' code has three ways to begin them,
all with q = 1 at the token:
- "random": any token;
- "left repeated": that to the left, here of the same channel; a row's first tokens, theirs at
  random, follow the raster's last pixel here;
- "left sampled": the likeliest token where the left one was scored. Here it is drawn, as the name
  says, and q is that distribution.
"""

import torch
from torch import Tensor

import superres
from rule import Rule
from superres.decoding.plain.sampling import PROPOSAL
from superres.decoding.proposers.proposer import Context, Proposer


@superres.register_proposer("sjd-left-sampled")
class LeftSampled(Proposer):
    """Stale draws; new tokens are drawn where the nearest known token to the left was scored."""

    draws = draws_only = True

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        column, channels = context.index.unsqueeze(1) + offsets, channels_of(context)  # [B, N]
        beyond, scores = (column - last(context)).clamp(min=0), context.output.scores
        column = (column + -beyond // channels * channels).clamp(min=0)
        scores = scores.gather(1, column.unsqueeze(-1).expand(-1, -1, scores.shape[-1]))
        return context.sampler(scores, offsets)


@superres.register_proposer("sjd-random")
class Random(LeftSampled):
    """Stale draws; new tokens are any tokens, and q is 1 at them."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        tokens, sampler = super().propose(context, offsets), context.sampler
        new, q = context.index.unsqueeze(1) + offsets > last(context), sampler.q[:, offsets - 1]
        tokens = self.begin(context, tokens, new, offsets)
        certain = torch.zeros_like(q).scatter_(-1, tokens.unsqueeze(-1), 1.0)
        return sampler.put(tokens, certain.where(new.unsqueeze(-1), q), offsets)

    def begin(self, context: Context, tokens: Tensor, new: Tensor, offsets: Tensor) -> Tensor:
        uniform = context.sampler.noise[:, offsets, PROPOSAL]
        return (uniform * context.output.scores.shape[-1]).long().where(new, tokens)


@superres.register_proposer("sjd-left-repeated")
class LeftRepeated(Random):
    """Stale draws; new tokens repeat the left ones, and q is 1 at them."""

    def begin(self, context: Context, tokens: Tensor, new: Tensor, offsets: Tensor) -> Tensor:
        channels = channels_of(context)
        before = (context.position.unsqueeze(1) + torch.arange(-channels, 0)).clamp(min=0)
        row = torch.cat([context.tokens.gather(1, before), context.first.unsqueeze(1), tokens], 1)
        for place, entering in enumerate(new.unbind(1), start=channels + 1):
            row[:, place] = row[:, place - channels].where(entering, row[:, place])
        return row[:, channels + 1:]


def channels_of(context: Context) -> int:
    """Return how many tokens back the left token is."""
    return context.shape[2] if len(context.shape) == 3 else 1


def last(context: Context) -> int:
    """Return the last column that has scores after a proposal."""
    return 0 if context.draws is None else context.draws.proposed.shape[1]


RULES = [Rule(f"SJD, {kind.replace('-', ' ')}", "Teng et al. 2025, arXiv 2410.01699", "lossless",
              {"proposer": f"sjd-{kind}", "accept": "token-by-token", "sampling": "speculative",
               "block_size": 10})
         for kind in ("random", "left-repeated", "left-sampled")]
