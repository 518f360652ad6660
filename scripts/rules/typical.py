"""Typical acceptance: a proposal passes if it is likely enough for how open the choice is.

Cai et al. 2024 (Medusa, arXiv 2401.10774) accept x if p(x) > min(epsilon, delta
exp(-H)), where H is the entropy of p. The paper gives it up to match p. Its proposals are a tree of
likeliest tokens; here they are the heads' draws, and p replaces a rejected one. epsilon and delta
are those of its experiments, 0.09 and its root.
"""

import torch

import superres
from rule import Rule
from superres.decoding.acceptance import DrawCriterion, Draws, Verdict

EPSILON, DELTA = 0.09, 0.3


@superres.register_criterion("typical")
class Typical(DrawCriterion):
    """Accept a proposal by p and its entropy alone."""

    def judge(self, draws: Draws) -> Verdict:
        entropy = torch.special.entr(draws.p).sum(-1)  # [B, N]
        threshold = (DELTA * (-entropy).exp()).clamp(max=EPSILON)
        own = draws.p.gather(-1, draws.proposed.unsqueeze(-1)).squeeze(-1)  # [B, N]
        return Verdict(own > threshold, lambda p, q, index: p)


RULES = [Rule("heads, typical acceptance", "Cai et al. 2024, arXiv 2401.10774",
              "none", {"accept": "typical", "sampling": "speculative", "block_size": 10},
              needs="heads")]
