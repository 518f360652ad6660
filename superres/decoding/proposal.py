"""Proposers: where unverified tokens come from.

Whatever they propose, exact acceptance gives the verifier's own tokens; only the number of iterations differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from superres.errors import ConfigError

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.scoring import Choose, Session, StepOutput


@dataclass
class Context:
    """What a proposer may look at.

    Attributes:
        session: the model's session.
        output: result of the latest step.
        index: step column whose position comes next, [B].
        position: tokens committed so far, [B].
        first: the token at `position`, already chosen by the loop, [B].
        tokens: committed tokens [B, T + W]; those at `position` and later are undefined.
        choose: turns scores of the tokens at `position` + offsets into tokens, exactly as the verifier does.
    """

    session: Session
    output: StepOutput
    index: Tensor
    position: Tensor
    first: Tensor
    tokens: Tensor
    choose: Choose


class Proposer(Protocol):
    """Makes proposals.

    One whose attribute `stateless` is true computes them from the context alone, on the device and without reading
    anything back, so that its work may be captured once and replayed.
    """

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """Return proposals [B, k - 1], int64, for the tokens at `context.position + offsets`; offsets are 1..k-1."""
        ...


class HeadProposer:
    """Prediction heads p2..pk at the one accepted position of each row (section 4 of the paper), evaluated lazily."""

    uses_heads = True
    stateless = True

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        return context.session.propose(context.output, context.index, context.first, offsets, context.choose)


class StaleProposer:
    """What the verifier itself chose past the rejected token, in the very call that rejected it; then the heads.

    After j of k tokens were accepted, the last step has also scored the k - j tokens past the next one. It read one
    token that turned out wrong, but all else that p1 reads, so its choices there are stale rather than blind. (The
    first step of all read filler; its stale choices are wrong, which costs a little and harms nothing.)
    """

    uses_heads = True
    stateless = True

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        column, last = context.index.unsqueeze(1) + offsets, len(offsets)
        scores = context.output.scores
        index = column.clamp(max=last).unsqueeze(-1).expand(-1, -1, scores.shape[-1])
        stale = StaleChoose(context.choose, context.choose(scores.gather(1, index), offsets), column <= last)
        return context.session.propose(context.output, context.index, context.first, offsets, stale)


@dataclass
class StaleChoose:
    """A `superres.scoring.Choose` that prefers tokens known already.

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


class SourceProposer:
    """The tokens that the source alone lets expect: for an image, its enlargement."""

    uses_heads = False
    stateless = True

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`.

        Raises:
            ConfigError: the model expects nothing of its source.
        """
        estimate = context.session.estimate
        if estimate is None:
            raise ConfigError("proposer 'source' needs a model that estimates its target from the source; choose heads")
        target = (context.position.unsqueeze(1) + offsets).clamp(max=estimate.shape[1] - 1)
        return estimate.gather(1, target).round().clamp(0, context.output.scores.shape[-1] - 1).long()


class NeighbourProposer:
    """The token one place back along an axis of the raster; where that is itself not decoded yet, the one before it.

    It does not mind the raster's edges: back from the start of a row is the end of the row before.
    """

    uses_heads = False
    stateless = True
    axis: int

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        stride = math.prod(context.session.shape[self.axis + 1 :])
        position = context.position.unsqueeze(1)
        neighbour = (position + offsets - (offsets + stride - 1) // stride * stride).clamp(min=0)
        return context.tokens.gather(1, neighbour).where(neighbour < position, context.first.unsqueeze(1))


class LeftProposer(NeighbourProposer):
    """The pixel to the left."""

    axis = 1


class AboveProposer(NeighbourProposer):
    """The pixel above."""

    axis = 0


PROPOSERS: dict[str, type[HeadProposer | StaleProposer | SourceProposer | LeftProposer | AboveProposer]] = {
    "heads": HeadProposer, "stale": StaleProposer, "source": SourceProposer, "left": LeftProposer,
    "above": AboveProposer,
}
"""Proposers by the name that users give. Those that use the heads propose at most as many tokens as there are heads."""
