"""Proposals for images without a model: neighbouring pixels, or the enlarged source."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from superres.decoding.proposers.base import Context, Proposer
from superres.errors import ConfigError

if TYPE_CHECKING:  # the command line lists the proposers in its help, which must not wait for torch
    from torch import Tensor


class SourceProposer(Proposer):
    """The session's estimate of the target from the source: for an image, its enlargement."""

    raster = True
    stateless = True

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`.

        Raises:
            ConfigError: the model does not estimate its target.
        """
        estimate = context.session.estimate
        if estimate is None:
            raise ConfigError("proposer 'source' needs a model that estimates its target from the source; choose heads")
        target = (context.position.unsqueeze(1) + offsets).clamp(max=estimate.shape[1] - 1)  # [B, k - 1]
        return estimate.gather(1, target).round().clamp(0, context.output.scores.shape[-1] - 1).long()


class NeighbourProposer(Proposer):
    """The token one step back along an axis of the raster; if that is not decoded yet, the nearest one that is.

    The raster's edges are ignored: one step back from the start of a row is the end of the previous row.
    """

    raster = True
    stateless = True
    axis: int

    def propose(self, context: Context, offsets: Tensor) -> Tensor:
        """See `Proposer.propose`."""
        stride = math.prod(context.session.shape[self.axis + 1 :])
        position = context.position.unsqueeze(1)
        neighbour = (position + offsets - (offsets + stride - 1) // stride * stride).clamp(min=0)  # [B, k - 1]
        return context.tokens.gather(1, neighbour).where(neighbour < position, context.first.unsqueeze(1))


class LeftProposer(NeighbourProposer):
    """The pixel to the left."""

    axis = 1


class AboveProposer(NeighbourProposer):
    """The pixel above."""

    axis = 0
