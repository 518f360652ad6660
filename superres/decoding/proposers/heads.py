"""Proposals of the prediction heads, alone or after stale choices of the verifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from superres.decoding.proposers.base import Context, Proposer
from superres.decoding.proposers.jacobi import JacobiProposer

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.interfaces import Choose, Session


class HeadProposer(Proposer):
    """Prediction heads p2..pk (section 4 of the paper), evaluated only at the accepted position of each row."""

    uses_heads = True
    draws = True
    stateless = True
    training = "prediction heads"

    def as_data(self, session: Session) -> dict[str, Any]:
        """See `Proposer.as_data`."""
        return {"kind": "heads"}

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        return context.session.propose(context.output, context.index, context.first, offsets, context.choose)


class StaleProposer(JacobiProposer):
    """Stale choices as in Jacobi decoding, then proposals of the heads; sequential heads read the stale choices."""

    uses_heads = True
    training = "prediction heads"

    def as_data(self, session: Session) -> dict[str, Any]:
        """See `Proposer.as_data`."""
        return {"kind": "stale"}

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        stale = StaleChoose(context.choose, *self.stale(context, offsets))
        return context.session.propose(context.output, context.index, context.first, offsets, stale)


@dataclass
class StaleChoose:
    """A `superres.interfaces.Choose` that returns known tokens where there are known tokens.

    Attributes:
        choose: chooses the other tokens.
        tokens: known tokens at offsets 1..N, [B, N].
        known: whether the token at each offset is known, bool [B, N].
    """

    choose: Choose
    tokens: Tensor
    known: Tensor

    def __call__(self, scores: Tensor, offsets: Tensor) -> Tensor:
        """See `Choose.__call__`."""
        place = offsets - 1
        return self.tokens[:, place].where(self.known[:, place], self.choose(scores, offsets))

    def additive(self, offsets: Tensor) -> None:
        """See `Choose.additive`."""
