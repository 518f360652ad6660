"""Proposers: where unverified tokens come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from superres.scoring import Session, StepOutput


@dataclass
class Context:
    """What a proposer may look at.

    Attributes:
        session: the model's session.
        output: result of the latest step.
        index: step column whose position comes next, [B].
        position: tokens committed so far, [B]; the first proposal for it is already chosen by the loop.
        tokens: committed tokens [B, T + W]; those at `position` and later are undefined.
        choose: turns scores [B, N, V] for target positions [B, N] into tokens [B, N], exactly as the verifier does.
    """

    session: Session
    output: StepOutput
    index: Tensor
    position: Tensor
    tokens: Tensor
    choose: Callable[[Tensor, Tensor], Tensor]


class Proposer(Protocol):
    """Makes proposals."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """Return int64 [B, k - 1]: proposals for the tokens at `context.position + offsets`, offsets [k - 1] being 1..k-1."""
        ...


class HeadProposer:
    """Prediction heads p2..pk at the one accepted position of each row (section 4 of the paper, heads evaluated lazily)."""

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        scores = context.session.propose(context.output, context.index, len(offsets))
        return context.choose(scores, context.position.unsqueeze(1) + offsets)


PROPOSERS: dict[str, type[HeadProposer]] = {"heads": HeadProposer}
"""Proposers by name."""
