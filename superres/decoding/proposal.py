"""Proposers: where unverified tokens come from.

Whatever they propose, exact acceptance gives the verifier's own tokens; only the number of iterations differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from superres.config import DecodeConfig, require
from superres.decoding.draft import DraftProposer
from superres.decoding.lookup import LookupProposer
from superres.decoding.ngrams import NgramProposer
from superres.decoding.proposer import Context, Proposer
from superres.errors import ConfigError

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor

    from superres.scoring import Choose


class HeadProposer(Proposer):
    """Prediction heads p2..pk at the one accepted position of each row (section 4 of the paper), evaluated lazily."""

    uses_heads = True
    draws = True
    stateless = True
    training = "prediction heads"

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        return context.session.propose(context.output, context.index, context.first, offsets, context.choose)


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


class SourceProposer(Proposer):
    """The tokens that the source alone lets expect: for an image, its enlargement."""

    raster = True
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


class NeighbourProposer(Proposer):
    """The token one place back along an axis of the raster; where that is itself not decoded yet, the one before it.

    It does not mind the raster's edges: back from the start of a row is the end of the row before.
    """

    raster = True
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


class LookaheadProposer(Proposer):
    """N-grams from Jacobi iterations, several at once, in blocks of their size N: see `superres.decoding.lookahead`."""

    branching = True
    block_size = 4

    @classmethod
    def check_options(cls, options: DecodeConfig, block_size: int, length: int) -> None:
        """See `Proposer.check_options`."""
        reach = options.window + block_size - 2
        require(reach <= length, f"window {options.window} and n-grams of {block_size} look {reach} tokens ahead, "
                                 f"further than the {length} of a target; choose smaller ones")
        require(options.min_block == 1, f"min-block {options.min_block} needs a proposal in every step, and lookahead "
                                        "may have none; leave it out")

    @classmethod
    def branches(cls, options: DecodeConfig) -> int:
        """See `Proposer.branches`: the candidates of the verification branch."""
        return options.candidates

    @classmethod
    def columns(cls, options: DecodeConfig, block_size: int) -> int:
        """See `Proposer.columns`: those of the lookahead branch and of the verification branch."""
        return max(1, (options.window + options.candidates) * (block_size - 1))


PROPOSERS: dict[str, type[Proposer]] = {
    "heads": HeadProposer, "stale": StaleProposer, "jacobi": JacobiProposer, "draft": DraftProposer,
    "ngram": NgramProposer, "lookup": LookupProposer, "source": SourceProposer, "left": LeftProposer,
    "above": AboveProposer, "lookahead": LookaheadProposer,
}
"""Proposers by the name that users give. Those that use the heads propose at most as many tokens as there are heads."""
