"""Verification of candidates by sampling (Fu et al. 2024, algorithm 4), which preserves the
distribution of p1.

Candidates are greedy predictions, so the distribution q of each candidate token is 1 at that token.
The probability min(1, p / q) of accepting a token is therefore p of that token. The residual
distribution after a rejection, norm(max(0, p - q)), is p without that token. So the pool stores
tokens only, and no distributions.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from superres.decoding.plain.sampling import draw


def without(p: Tensor, tokens: Tensor, rejected: Tensor) -> Tensor:
    """Return weights [B, V]: p [B, V], but 0 at the rejected ones of `tokens` [B, G]; `rejected` is
    bool [B, G]."""
    rest = p * (torch.zeros_like(p).scatter_add_(1, tokens, rejected.to(p.dtype)) == 0)  # [B, V]
    # rounding may reject a token of probability 1
    return rest.where(rest.sum(1, keepdim=True) > 0, p)


def verify_candidates(
    distribution: Callable[[Tensor, int], Tensor], candidates: Tensor, known: Tensor,
    verdict: Tensor, committed: Tensor, own: slice = slice(None),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Accept a prefix of one of several candidates, and draw the token after it.

    At each place, the candidates that agree with the accepted tokens are tried in turn. A token is
    accepted with its probability under p; a rejected token is removed from p. The probability that
    a token is tried and accepted is then its original probability under p, so one uniform number
    decides for all candidates. If no token is accepted, the next token is drawn from the rest of p.

    A process that has read the candidates `own` only knows p after each of their prefixes, and the
    tokens of all candidates. It follows the accepted tokens until no own candidate agrees with
    them. The process that has read the accepted candidate follows them to the end, and has the
    result of a single process that reads all candidates.

    Args:
        distribution: returns p1's distribution [B, V] after the first `place` tokens of one own
            candidate per row, [B].
        candidates: tokens of all candidates [B, G, N - 1].
        known: whether there is such a candidate, bool [B, G].
        verdict: uniform numbers in (0, 1), [B, N - 1].
        committed: further independent uniform numbers, [B, N].
        own: the candidates whose distributions this process knows, at least one.

    Returns:
        Of each row, all [B]: the candidate, the number of its accepted tokens (0..N - 1), the token
        after these, and whether this process knows them; if not, the others are undefined.
    """
    going, alive = torch.ones_like(known[:, 0]), known
    follows, (accepted, token) = going, (torch.zeros_like(candidates[:, 0, 0]) for _ in range(2))
    # [G, G]
    earlier = torch.ones(known.shape[1], known.shape[1], dtype=torch.bool,
                         device=known.device).tril(-1)
    for place in range(candidates.shape[2] + 1):
        # [B, V]; any candidate will do at place 0
        p = rest = distribution(first_of(alive[:, own]), place)
        passes = torch.zeros_like(going)
        if place < candidates.shape[2]:
            tokens = candidates[:, :, place]  # [B, G]
            tried = alive & ~((tokens.unsqueeze(2) == tokens.unsqueeze(1)) & earlier
                              & alive.unsqueeze(1)).any(2)
            chances = (p.gather(1, tokens) * tried).cumsum(1)  # [B, G]
            hit = chances > verdict[:, place : place + 1]
            passes = hit.any(1) & going
            rest = without(p, tokens, tried)
            chosen = tokens.gather(1, first_of(hit).unsqueeze(1))
            alive = torch.where(passes.unsqueeze(1), alive & (tokens == chosen), alive)
            follows = follows & (~passes | alive[:, own].any(1))
        token = torch.where(going & ~passes,
                            draw(rest.unsqueeze(1), committed[:, place, None, None]).squeeze(1),
                            token)
        accepted, going = accepted + passes, going & passes
    return first_of(alive), accepted, token, follows


def first_of(marked: Tensor) -> Tensor:
    """Return the first of the `marked` candidates, bool [B, G], as [B]; 0 if there is none."""
    return marked.long().argmax(1)
