"""Cool-SD: acceptance is relaxed, most for the first proposal of a block and ever less after it.

Li et al. 2026 (AAAI, arXiv 2601.09212) accept proposal i, a token x, with probability min(1, w p(x)
/ q(x)), where w = delta exp(-nu i - mu) decays with i, and draw the token after a rejection from
norm(max(0, p - min(q, w p))). Theorem 2 bounds the total variation distance of a block from p's
tokens, and this draw makes the bound least. In the form that we test, it is the sum over the
proposals of the mass by which accepted ones exceed p, max(0, min(q, w p) - p), given that all
earlier ones were accepted. For one proposal it is the distance itself, and 0 where w <= 1. By
proposition 2, proven for two proposals of a near draft, decay has a smaller bound than the same w
for all, if both accept equally many. For nine proposals of a good draft it has a larger one.

Here nu = 0.7 as in the paper, and mu makes the mean of w equal to delta: the paper is said to
normalise so, but we could read only summaries of it, and its code is not published. delta is 2, of
1.1 and 2 in its main table; w is below 1 from the fifth of nine proposals on. In short blocks, as
in the paper, it accepts more than the other rules. The last rule is the comparison, the same w for
all. The proposals are the heads'; the paper trains an EAGLE draft.
"""

from typing import ClassVar

import torch
from torch import Tensor

import superres
from rule import Rule
from superres.decoding.acceptance import DrawCriterion, Draws, Verdict


@superres.register_criterion("cool-sd")
class CoolSD(DrawCriterion):
    """Accept a proposal by w times its ratio."""

    relaxation: ClassVar[float] = 2.0  # delta
    decay: ClassVar[float] = 0.7  # nu

    def judge(self, draws: Draws) -> Verdict:
        factor = self.factors(draws.p)

        def rest(p: Tensor, q: Tensor, index: Tensor) -> Tensor:
            column = index.clamp(max=len(factor) - 1)
            accepted = torch.minimum(q, factor[column].view(-1, 1, 1) * p)  # [B, 1, V]
            return (p - accepted).clamp(min=0)

        return Verdict(draws.uniform < factor * draws.ratio(), rest)

    def factors(self, p: Tensor) -> Tensor:
        """Return w of each proposal [N], for p [B, N, V]."""
        number = torch.arange(p.shape[1], device=p.device)
        share = torch.exp(-self.decay * number.to(p.dtype))
        return self.relaxation * share / share.mean()


@superres.register_criterion("uniform-relaxation")
class Uniform(CoolSD):
    """Accept every proposal by the same w."""

    relaxation: ClassVar[float] = 1.1
    decay: ClassVar[float] = 0.0


SETTINGS = {"block_size": 10, "sampling": "speculative", "accept": "cool-sd"}
RULES = [Rule(name, "Li et al. 2026, arXiv 2601.09212, theorem 2", "bounded", {**SETTINGS, **more},
              needs="heads")
         for name,
         more in (("heads, Cool-SD", {}), ("heads, Cool-SD, blocks of 4", {"block_size": 4}),
                  ("heads, uniform relaxation", {"accept": "uniform-relaxation"}))]
