"""Proposals of the prediction heads, alone or past stale choices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from superres.decoding.proposers.base import Context, Proposer
from superres.decoding.proposers.jacobi import JacobiProposer

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.interfaces import Choose


class HeadProposer(Proposer):
    """Prediction heads p2..pk at the one accepted position of each row (section 4 of the paper), evaluated lazily."""

    uses_heads = True
    draws = True
    stateless = True
    training = "prediction heads"

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        return context.session.propose(context.output, context.index, context.first, offsets, context.choose)


class StaleProposer(JacobiProposer):
    """As Jacobi decoding, and past the stale choices the heads, which read them where they read tokens."""

    uses_heads = True
    training = "prediction heads"

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        stale = StaleChoose(context.choose, *self.stale(context, offsets))
        return context.session.propose(context.output, context.index, context.first, offsets, stale)


@dataclass
class StaleChoose:
    """A `superres.interfaces.Choose` that prefers tokens known already.

    Attributes:
        choose: chooses where none is known.
        tokens: for offsets 1..N, [B, N].
        known: which of them count, bool [B, N].
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
