"""Proposals that the verifier chose itself, past the rejected token (Jacobi decoding)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superres.decoding.proposers.base import Context, Proposer

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor


class JacobiProposer(Proposer):
    """What the verifier itself chose past the rejected token, in the very call that rejected it (Jacobi decoding).

    After j of k tokens were accepted, the last step has also scored the k - j tokens past the next one. It read one
    token that turned out wrong, but all else that p1 reads, so its choices there are stale rather than blind. Past
    those, the last of them is repeated. (The first step of all read filler; its stale choices are wrong, which costs a
    little and harms nothing.)
    """

    stateless = True

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        return self.stale(context, offsets)[0]

    def stale(self, context: Context, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last step's choices for the tokens at `offsets` [B, N], and whether it has scored those."""
        column, last = context.index.unsqueeze(1) + offsets, len(offsets)
        scores = context.output.scores
        index = column.clamp(max=last).unsqueeze(-1).expand(-1, -1, scores.shape[-1])
        return context.choose(scores.gather(1, index), offsets), column <= last
