"""Proposals of the prediction heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from superres.decoding.proposers.base import Context, Proposer

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.interfaces import Session


class HeadProposer(Proposer):
    """Prediction heads p2..pk (section 4 of the paper), evaluated only at the accepted position of each row."""

    uses_heads = True
    draws = True
    stateless = True
    training = "prediction heads"

    def as_data(self, session: Session) -> dict[str, Any]:
        """See `Proposer.as_data`."""
        return {"kind": "heads", "uses_heads": True}

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        return context.session.propose(context.output, context.index, context.first, offsets, context.sampler)
