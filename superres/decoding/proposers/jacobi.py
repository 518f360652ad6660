"""Proposals that the verifier itself chose after the rejected token (Jacobi decoding)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superres.decoding.proposers.base import Context, Proposer

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.interfaces import Session


class JacobiProposer(Proposer):
    """The verifier's choices after the rejected token, from the same model call that rejected that token.

    After j of k tokens were accepted, the last step has also scored the k - j tokens after the next one. It read one
    wrong token, but otherwise the input of p1, so its choices are stale rather than independent of the source. Further
    proposals repeat the last stale choice. The first step of a sequence reads filler, so its stale choices are wrong;
    that costs accepted tokens in one iteration, but not exactness.
    """

    stateless = True

    def as_data(self, session: Session) -> dict[str, Any]:
        """See `Proposer.as_data`."""
        return {"kind": "jacobi"}

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        return self.stale(context, offsets)[0]

    def stale(self, context: Context, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last step's choices at `offsets` [B, N], and whether the step has scored them, bool [B, N]."""
        column, last = context.index.unsqueeze(1) + offsets, len(offsets)  # [B, N]
        scores = context.output.scores
        index = column.clamp(max=last).unsqueeze(-1).expand(-1, -1, scores.shape[-1])  # [B, N, V]
        return context.choose(scores.gather(1, index), offsets), column <= last
