"""Prompt lookup: propose the continuation of an earlier match of the latest tokens, in the source
or in the target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superres.decoding.proposers.proposer import Context, Proposer, RowTensors, state_of

if TYPE_CHECKING:
    from torch import Tensor

LONGEST = 3  # Largest number of latest tokens to match


class LookupProposer(Proposer):
    """Copies the continuation of the longest match of the latest tokens; of equally long matches,
    the latest one.

    A continuation that reaches the latest token starts over. Without a match, the latest token is
    repeated. The state of the rows is their source tokens [B, S].
    """

    def new_state(self, source: Tensor, width: int, padding: Tensor | None,
                  copies: int) -> RowTensors:
        return RowTensors(source.repeat_interleave(copies, dim=0))

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        import torch

        source: Tensor = state_of(context.session).tensors[0]
        first = context.first.unsqueeze(1)
        # [B, N]
        text = torch.cat([source, context.tokens.scatter(1, context.position.unsqueeze(1), first)],
                         dim=1)
        # [B, 1]: place of the latest token in `text`
        last = source.shape[1] + context.position.unsqueeze(1)
        place = torch.arange(text.shape[1], device=text.device)
        matched = torch.zeros_like(text)  # [B, N]: length of the match that ends at each place
        same = (place < last).long()
        for back in range(LONGEST):
            wanted = text.gather(1, (last - back).clamp(min=0))  # [B, 1]
            same = same * ((text.roll(back, dims=1) == wanted) & (place >= back) & (last >= back))
            matched += same
        best = (matched * len(place) + place * (matched > 0)).argmax(1, keepdim=True)  # [B, 1]
        # A copy that reaches the latest token continues from its own start.
        copied = text.gather(1, best + 1 + (offsets - 1) % (last - best))  # [B, k - 1]
        return copied.where(matched.gather(1, best) > 0, first)
