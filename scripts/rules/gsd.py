"""GSD, grouped speculative decoding: a proposal passes by the mass of the tokens that are like it.

So et al. 2025 (ICCV, arXiv 2508.07747, algorithm 3) accept a proposal x with probability min(1, P /
Q), where P and Q are the sums of p and q over a cluster of x: the G tokens around it in the order
of p, without those whose probability differs from p(x) by delta, or whose embedding is farther than
d. A rejected one is replaced by a draw from norm(max(0, p - q)). The paper claims more accepted
tokens (theorem 1) and good pictures, not p's distribution. The theorem is for disjoint clusters;
those by rank overlap, and can accept fewer tokens. Even disjoint ones do not keep their masses,
because the replacement compares tokens.

Here grey levels are the embedding. G and delta are those of the authors' code, which sums 14 tokens
(here seven on both sides of x) and takes delta = 0.15; the paper tries G = 3 to 50 of thousands of
codes. d is 4 grey levels; in the code it is a distance of the language model's input embeddings. A
token of probability 0 never passes, while its cluster may have mass. The paper proposes by SJD from
random tokens; the heads' draws are the other rule.
"""

from typing import ClassVar

import torch
from torch import Tensor

import superres
from rule import Rule
from superres.decoding.acceptance import DrawCriterion, Draws, Verdict
from superres.decoding.plain.sampling import residual


@superres.register_criterion("gsd")
class Grouped(DrawCriterion):
    """Accept a proposal by the masses of its cluster."""

    group: ClassVar[int] = 14  # G
    difference: ClassVar[float] = 0.15  # delta, of probabilities
    reach: ClassVar[int] = 4  # d, in grey levels

    def judge(self, draws: Draws) -> Verdict:
        cluster, own = self.cluster(draws.proposed, draws.p), draws.proposed.unsqueeze(-1)
        p, q = ((part * cluster).sum(-1) for part in (draws.p, draws.q))
        likely = (draws.p.gather(-1, own) > 0) & (draws.q.gather(-1, own) > 0)  # [B, N, 1]
        return Verdict((draws.uniform < p / q) & likely.squeeze(-1),
                       lambda p, q, index: residual(p, q, 1.0))

    def cluster(self, proposed: Tensor, p: Tensor) -> Tensor:
        """Return the tokens of the cluster of each proposal [B, N], bool [B, N, V]."""
        own = proposed.unsqueeze(-1)
        rank = p.argsort(dim=-1, stable=True).argsort(-1)
        level = torch.arange(p.shape[-1], device=p.device)
        return (((rank - rank.gather(-1, own)).abs() <= self.group // 2)
                & ((p - p.gather(-1, own)).abs() < self.difference)
                & ((level - own).abs() <= self.reach))


PAPER = "So et al. 2025, arXiv 2508.07747, algorithm 3"
SETTINGS = {"block_size": 10, "sampling": "speculative", "accept": "gsd"}
RULES = [
    Rule("GSD", PAPER, "none", {**SETTINGS, "proposer": "sjd-random"}),
    Rule("heads, GSD", PAPER, "none", SETTINGS, needs="heads"),
]
