"""LANTERN: the mass of near tokens counts for a proposal, as long as its sum has a bound.

Jang et al. 2025 (ICLR, arXiv 2410.03355) accept a proposal x with probability min(1, (p(x) + m) /
q(x)). m is the mass under p of its k nearest tokens in the latent space, nearest first, while it is
at most delta. Moving m to x gives a distribution p' whose total variation distance from p is m:
that is the bound delta. It holds for p', which differs by proposal, not for what is drawn: every
proposal may gain delta, so the sum can be near 1. LANTERN++ (Park et al. 2025, arXiv 2502.06352)
bounds m by (lambda - 1) p(x) instead, and drafts a static tree.

We could read the authors' code and summaries of the paper, not its sections. A rejected proposal is
replaced here by a draw from norm(max(0, p' - q)), so x and the tokens that gave m are not drawn.
The code does so for proposals that were not drawn, but removes k + 1 near tokens, whatever gave m;
for drawn ones (LANTERN++) it sets q to 0 at them instead, which makes them likelier.

Here the nearest tokens are the nearest grey levels, of two equally near ones the darker first. k is
16 of 256 levels, as 1,000 of 16,384 codes is the code's default; delta is 0.2, between the code's
default of 0.1 and the paper's largest, 0.4. A token of probability 0 never passes here. The
proposals are those of the heads, one per position, not a tree.
"""

from typing import ClassVar

import torch
from torch import Tensor

import superres
from rule import Rule
from superres.decoding.acceptance import DrawCriterion, Draws, Verdict
from superres.decoding.plain.sampling import residual


@superres.register_criterion("lantern")
class Lantern(DrawCriterion):
    """Accept a proposal by its own mass and that of near tokens."""

    nearest: ClassVar[int] = 16  # k
    bound: ClassVar[float] = 0.2  # delta

    def judge(self, draws: Draws) -> Verdict:
        own = draws.proposed.unsqueeze(-1)
        moved = self.moved(draws.proposed, draws.p)
        p, q = (part.gather(-1, own).squeeze(-1) for part in (draws.p, draws.q))
        ratio = ((p + (draws.p * moved).sum(-1)) / q).masked_fill((p == 0) | (q == 0), 0.0)

        def rest(p: Tensor, q: Tensor, index: Tensor) -> Tensor:
            column = index.clamp(max=moved.shape[1] - 1).view(-1, 1, 1)
            given = moved.gather(1, column.expand(-1, 1, p.shape[-1]))
            # after the last proposal and in the first step, q is 0 and nothing was rejected
            return residual(p, q, 1.0).masked_fill(given & (q.sum(-1, keepdim=True) > 0), 0.0)

        return Verdict(draws.uniform < ratio, rest)

    def moved(self, proposed: Tensor, p: Tensor) -> Tensor:
        """Return the tokens whose mass counts for each proposal [B, N], bool [B, N, V]."""
        level = torch.arange(p.shape[-1], device=p.device)
        near = (level - proposed.unsqueeze(-1)).abs().argsort(dim=-1, stable=True)
        near = near[..., 1: self.nearest + 1]  # [B, N, k]; the first one is the proposal
        within = p.gather(-1, near).cumsum(-1) <= self.bound
        return torch.zeros_like(p, dtype=torch.bool).scatter_(-1, near, within)


RULES = [Rule(
    "heads, LANTERN", "Jang et al. 2025, arXiv 2410.03355", "bounded",
    {"block_size": 10, "sampling": "speculative", "accept": "lantern"}, needs="heads")]
