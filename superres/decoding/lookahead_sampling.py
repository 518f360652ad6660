"""Lookahead's verification for sampling (Fu et al. 2024, algorithm 4): candidates leave p1's distribution as it is.

Candidates come from greedy guesses, so the distribution that each was drawn from is one token's. Then min(1, p / q) is p
of that token, and what is left of p after a rejection, norm(max(0, p - q)), is p without it: nothing but the candidates'
tokens has to be kept in the pool.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from superres.config import DecodeConfig
from superres.decoding.noise import Uniforms

VERDICT, COMMITTED, PURPOSES = range(3)
"""What the uniform numbers of a position are for, and how many such purposes there are."""


def draw(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return tokens [B] drawn in proportion to weights [B, V], by uniform numbers [B] in (0, 1)."""
    sums = weights.cumsum(-1)
    # A number that rounds to 1 would point past the last token.
    point = uniform.clamp(max=1 - 2.0**-20).unsqueeze(1).to(sums.dtype) * sums[:, -1:]
    return torch.searchsorted(sums, point, right=True).squeeze(1)


def verify_candidates(
    distribution: Callable[[Tensor, int], Tensor], candidates: Tensor, known: Tensor, verdict: Tensor, committed: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Accept a prefix of one of several candidates, and draw the token after it.

    At each place the candidates that agree with what is accepted so far are tried in turn: a token passes with the
    probability that p gives it, and is taken out of p if it does not. One uniform number decides for all of them, as the
    chances of being tried and passing add up to p. Where none passes, the token is drawn from what is left of p.

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
            removed = torch.zeros_like(p).scatter_add_(1, own, tried.to(p.dtype))
            rest = p * (removed == 0)
            rest = rest.where(rest.sum(1, keepdim=True) > 0, p)  # a chance of 1 that rounding has let fail
            chosen = own.gather(1, first.unsqueeze(1))
            alive = alive & (own == chosen) & passes.unsqueeze(1)
            leader = torch.where(passes, first, leader)
        token = torch.where(going & ~passes, draw(rest, committed[:, place]), token)
        accepted, going = accepted + passes, going & passes
    return leader, accepted, token


class SampledVerdicts:
    """What `verify_candidates` needs at the positions of each step: temperatures and uniform numbers."""

    def __init__(self, options: DecodeConfig, like: Tensor) -> None:
        """Prepare to sample as `options` say, on the device of `like`."""
        self.seed = options.seed
        self.temperatures = torch.tensor(options.temperatures, dtype=torch.float64, device=like.device)

    def __call__(
        self, scores: Tensor, paths: Tensor, candidates: Tensor, known: Tensor, keys: Tensor, position: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `verify_candidates` does.

        Args:
            scores: p1's scores of the step's columns [B, S, V].
            paths: columns of the root and each candidate, [G, N].
            candidates: their tokens [B, G, N - 1].
            known: which of them there are, bool [B, G].
            keys: keys of the rows' noise, int64 [B].
            position: target positions of the candidates' tokens and of the one after, [B, N].
        """
        rows, uniforms = torch.arange(len(scores), device=scores.device), Uniforms(self.seed, keys)

        def distribution(candidate: Tensor, place: int) -> Tensor:
            # Intensities follow one another as red, green, blue.
            temperature = self.temperatures[position[:, place] % len(self.temperatures)].unsqueeze(1)
            return (scores[rows, paths[candidate, place]] / temperature.to(scores.dtype)).softmax(-1)

        verdict, committed = (uniforms.at(PURPOSES * position + purpose) for purpose in (VERDICT, COMMITTED))
        return verify_candidates(distribution, candidates, known, verdict[:, :-1], committed)
