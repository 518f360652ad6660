"""Verification of candidates by sampling (Fu et al. 2024, algorithm 4), which preserves the distribution of p1.

Candidates are greedy predictions, so the distribution q of each candidate token is 1 at that token. The probability
min(1, p / q) of accepting a token is therefore p of that token. The residual distribution after a rejection,
norm(max(0, p - q)), is p without that token. So the pool stores tokens only, and no distributions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from superres.decoding.sampling import draw


def without(p: Tensor, tokens: Tensor, rejected: Tensor) -> Tensor:
    """Return weights [B, V]: p [B, V], but 0 at the rejected ones of `tokens` [B, G]; `rejected` is bool [B, G]."""
    rest = p * (torch.zeros_like(p).scatter_add_(1, tokens, rejected.to(p.dtype)) == 0)  # [B, V]
    return rest.where(rest.sum(1, keepdim=True) > 0, p)  # rounding may reject a token of probability 1


def verify_candidates(
    distribution: Callable[[Tensor, int], Tensor], candidates: Tensor, known: Tensor, verdict: Tensor,
    committed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept a prefix of one of several candidates, and draw the token after it.

    At each place, the candidates that agree with the accepted tokens are tried in turn. A token is accepted with its
    probability under p; a rejected token is removed from p. The probability that a token is tried and accepted is then
    its original probability under p, so one uniform number decides for all candidates. If no token is accepted, the
    next token is drawn from the rest of p.

    Args:
        distribution: returns p1's distribution [B, V] after the first `place` tokens of one candidate per row, [B].
        candidates: tokens [B, G, N - 1].
        known: whether there is such a candidate, bool [B, G].
        verdict: uniform numbers in (0, 1), [B, N - 1].
        committed: further independent uniform numbers, [B, N].

    Returns:
        The candidate, the number of its accepted tokens (0..N - 1), and the token after these, of each row, all [B].
    """
    going, alive = torch.ones_like(known[:, 0]), known
    leader, accepted, token = (torch.zeros_like(candidates[:, 0, 0]) for _ in range(3))
    earlier = torch.ones(known.shape[1], known.shape[1], dtype=torch.bool, device=known.device).tril(-1)  # [G, G]
    for place in range(candidates.shape[2] + 1):
        p = rest = distribution(leader, place)  # [B, V]
        passes = torch.zeros_like(going)
        if place < candidates.shape[2]:
            own = candidates[:, :, place]  # [B, G]
            tried = alive & ~((own.unsqueeze(2) == own.unsqueeze(1)) & earlier & alive.unsqueeze(1)).any(2)
            chances = (p.gather(1, own) * tried).cumsum(1)  # [B, G]
            hit = chances > verdict[:, place : place + 1]
            passes = hit.any(1) & going
            first = hit.long().argmax(1)
            rest = without(p, own, tried)
            chosen = own.gather(1, first.unsqueeze(1))
            alive = alive & (own == chosen) & passes.unsqueeze(1)
            leader = torch.where(passes, first, leader)
        token = torch.where(going & ~passes, draw(rest.unsqueeze(1), committed[:, place, None, None]).squeeze(1), token)
        accepted, going = accepted + passes, going & passes
    return leader, accepted, token
