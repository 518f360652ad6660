"""Lookahead's verification for sampling (Fu et al. 2024, algorithm 4): candidates leave p1's distribution as it is.

Candidates are greedy guesses, so that the distribution q that each was drawn from is 1 at its token. Then min(1, p / q)
is p of that token, and what is left of p after a rejection, norm(max(0, p - q)), is p without it: nothing but tokens
has to be kept in the pool.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from superres.decoding.sampling import draw


def without(p: Tensor, tokens: Tensor, tried: Tensor) -> Tensor:
    """Return weights [B, V]: p [B, V] without those of `tokens` [B, G] that were tried in vain (bool [B, G])."""
    rest = p * (torch.zeros_like(p).scatter_add_(1, tokens, tried.to(p.dtype)) == 0)
    return rest.where(rest.sum(1, keepdim=True) > 0, p)  # nothing is left where rounding has failed a chance of 1


def verify_candidates(
    distribution: Callable[[Tensor, int], Tensor], candidates: Tensor, known: Tensor, verdict: Tensor,
    committed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept a prefix of one of several candidates, and draw the token after it.

    At each place the candidates that agree with what is accepted so far are tried in turn: a token passes with the
    probability that p gives it, and is taken out of p if it does not. The chance to be tried and to pass is then just
    its probability before any was tried, so that one uniform number decides for all. Where none passes, the token is
    drawn from what is left of p.

    Args:
        distribution: returns p1's distribution [B, V] after the first `place` tokens of one candidate a row, [B].
        candidates: tokens [B, G, N - 1].
        known: which candidates there are, bool [B, G].
        verdict: uniform numbers in (0, 1), [B, N - 1].
        committed: others, independent of them, [B, N].

    Returns:
        For each row the candidate, how many of its tokens are accepted (0..N - 1), and the token after these.
    """
    going, alive = torch.ones_like(known[:, 0]), known
    leader, accepted, token = (torch.zeros_like(candidates[:, 0, 0]) for _ in range(3))
    earlier = torch.ones(known.shape[1], known.shape[1], dtype=torch.bool, device=known.device).tril(-1)
    for place in range(candidates.shape[2] + 1):
        p = rest = distribution(leader, place)
        passes = torch.zeros_like(going)
        if place < candidates.shape[2]:
            own = candidates[:, :, place]
            tried = alive & ~((own.unsqueeze(2) == own.unsqueeze(1)) & earlier & alive.unsqueeze(1)).any(2)
            chances = (p.gather(1, own) * tried).cumsum(1)
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
