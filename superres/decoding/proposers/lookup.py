"""Prompt lookup: what followed the latest tokens before, in the source or in the target so far, will follow again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from superres.decoding.proposers.base import Context, Proposer, companion_of

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 3
"""Latest tokens that are looked up at the most."""


@dataclass
class Sources:
    """The source tokens of a batch, [B, S]: a `superres.decoding.proposers.base.Companion`."""

    tokens: Tensor

    def select(self, rows: Tensor, length: int) -> None:
        """See `Companion.select`."""
        self.tokens = self.tokens[rows]

    def copy_rows(self, rows: Tensor, other: Sources, chosen: Tensor, cache: bool = True) -> None:
        """See `Companion.copy_rows`."""
        self.tokens = self.tokens.index_copy(0, rows, other.tokens[chosen])

    def row_state(self, cache: bool = True) -> list[Tensor]:
        """See `Companion.row_state`."""
        return [self.tokens]


class LookupProposer(Proposer):
    """Copies what followed the longest match of the latest tokens, the latest of several as long; again and again.

    Where nothing matches, it repeats the latest token.
    """

    def companion(self, source: Tensor, width: int, padding: Tensor | None, copies: int) -> Sources:
        """See `Proposer.companion`."""
        return Sources(source.repeat_interleave(copies, dim=0))

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        import torch

        source: Tensor = companion_of(context).tokens
        first = context.first.unsqueeze(1)
        text = torch.cat([source, context.tokens.scatter(1, context.position.unsqueeze(1), first)], dim=1)
        last = source.shape[1] + context.position.unsqueeze(1)  # where the latest token stands
        place = torch.arange(text.shape[1], device=text.device)
        matched = torch.zeros_like(text)
        same = (place < last).long()
        for back in range(LONGEST):
            wanted = text.gather(1, (last - back).clamp(min=0))
            same = same * ((text.roll(back, dims=1) == wanted) & (place >= back) & (last >= back))
            matched += same
        best = (matched * len(place) + place * (matched > 0)).argmax(1, keepdim=True)
        # Past the latest token, what was copied goes on from its start.
        copied = text.gather(1, best + 1 + (offsets - 1) % (last - best))
        return copied.where(matched.gather(1, best) > 0, first)
