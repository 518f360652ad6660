"""SJD++: SJD that reuses confident tokens (Teng et al. 2025, arXiv 2512.07503, section 3.1).

After the rejected token, a stale token x stays if its confidence p(x) / q(x), of this step and the
one before, is above a threshold; the others are drawn anew from p, as in SJD. For both, q is p in
the next step. That is not the distribution of a token that stays, which favours a large q. The
abstract says that quality is kept without observable degradation.

"true q" differs in q alone. A token is x with probability q(x) if x is confident; if the old token
is not, it is drawn from p. So q becomes q(x) [p(x) > threshold q(x)] + P p(x), where P is the
probability under q of a token that is not confident, and the samples have the network's
distribution.

Of the paper, excerpts could be read; its equations 5 and 6 are as an independent implementation has
them, whose best of six thresholds, for text, was 0.1. New tokens at the window's end are those of
"SJD, left sampled" here, and random in that implementation.
"""

from torch import Tensor

import superres
from rule import Rule
from scd import previous
from sjd import LeftSampled
from superres.decoding.proposers.proposer import Context

THRESHOLD = 0.1


@superres.register_proposer("sjd-plus")
class Reuse(LeftSampled):
    """Stale draws; confident tokens stay."""

    true_q = False

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        tokens, sampler = super().propose(context, offsets), context.sampler
        if context.draws is None:
            return tokens
        token, q, _ = previous(context.draws, context.index.unsqueeze(1) + offsets)
        p = sampler.q[:, offsets - 1]
        passing = (p > THRESHOLD * q) & (q > 0)  # [B, N, V]
        stays = passing.gather(-1, token.unsqueeze(-1)).squeeze(-1)
        if self.true_q:
            p = q * passing + (1 - (q * passing).sum(-1, keepdim=True)) * p
        return sampler.put(token.where(stays, tokens), p, offsets)


@superres.register_proposer("sjd-plus-true-q")
class TrueReuse(Reuse):
    """Stale draws; confident tokens stay, and q is what they have then."""

    true_q = True


PAPER = "Teng et al. 2025, arXiv 2512.07503, section 3"
SETTINGS = {"accept": "token-by-token", "sampling": "speculative", "block_size": 16}
RULES = [Rule("SJD++", PAPER, "none", {"proposer": "sjd-plus", **SETTINGS}),
         Rule("SJD++, true q", PAPER + "; q corrected here", "lossless",
              {"proposer": "sjd-plus-true-q", **SETTINGS})]
