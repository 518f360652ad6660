"""What the heads of a session know of their proposals, for `superres.decoding.confidence`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from superres.decoding.confidence import ConfidentBlockSize, passing, passing_by_odds
from superres.decoding.plain.sampling import CoupledSampler
from superres.interfaces import Float64
from superres.sessions import Sampler

# Smallest odds of all other tokens against a proposal, so that their logarithm is finite
LEAST_ODDS = 1e-6


@dataclass
class HeadConfidence(Sampler):
    """A sampler that chooses as `sampler` does, and stores what it observes."""

    sampler: CoupledSampler  # chooses the tokens
    # centres, slopes and tokens [B, N] of the latest proposals; None if the session's heads are not
    # ordinal
    seen: tuple[Tensor, Tensor, Tensor] | None = None
    # log-odds of each head's proposal in its distribution [B, 1]; empty if the session's heads are
    # ordinal
    log_odds: list[Tensor] = field(default_factory=list)

    def __call__(self, scores: Tensor, offsets: Tensor) -> Tensor:
        return self.sampler(scores, offsets)

    def additive(self, offsets: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        return self.sampler.additive(offsets)

    def observe(self, centre: Tensor, slope: Tensor, tokens: Tensor) -> None:
        self.seen = centre, slope, tokens

    def observe_scores(self, scores: Tensor, tokens: Tensor) -> None:
        own = scores.log_softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)  # [B, 1]
        self.log_odds.append(-(-own).expm1().clamp(min=LEAST_ODDS).log())

    def passed(self, by: ConfidentBlockSize) -> Float64 | None:
        """Return the probability that each proposal passes [B, K - 1]; None without proposals."""
        if self.seen is not None:
            centre, slope, tokens = (tensor.numpy() for tensor in self.seen)
            return passing(by.confidence, centre, slope, tokens, by.reach, by.largest_token)
        if self.log_odds:
            return passing_by_odds(by.confidence, torch.cat(self.log_odds, dim=1).numpy())
        return None
