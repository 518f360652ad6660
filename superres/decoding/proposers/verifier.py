"""Proposals of the verifier itself: by its prediction heads, or by its choices after a rejected
token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from superres.decoding.proposers.proposer import Context, Proposer, ProposerData

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor


class HeadProposer(Proposer):
    """Prediction heads p2..pk (section 4 of the paper), evaluated only at the accepted position of
    each row."""

    uses_heads = True
    draws = True
    training = "prediction heads"

    def as_data(self) -> ProposerData:
        return ProposerData("heads", uses_heads=True)

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        return context.session.propose(context.output, context.index, context.first, offsets,
                                       context.sampler)


class JacobiProposer(Proposer):
    """The verifier's choices after the rejected token, from the call that rejected that token
    (Jacobi decoding).

    After j of k tokens were accepted, the last step has also scored the k - j tokens after the next
    one. It read one wrong token, but otherwise the input of p1, so its choices are stale rather
    than independent of the source. Further proposals repeat the last choice. The first step of a
    sequence reads filler, so its choices are wrong; that costs accepted tokens in one iteration,
    but not exactness.
    """

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        scores = context.output.scores
        # While the block size grows, the last step had fewer columns than the next one.
        last = min(len(offsets), scores.shape[1] - 1)
        column = (context.index.unsqueeze(1) + offsets).clamp(max=last)  # [B, N]
        return context.sampler(
            scores.gather(1, column.unsqueeze(-1).expand(-1, -1, scores.shape[-1])), offsets
        )
