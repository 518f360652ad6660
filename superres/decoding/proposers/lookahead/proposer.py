"""Lookahead decoding as the decoder's options know it; `LookaheadDecoding` decodes with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from superres.config import DecodeConfig, require
from superres.decoding.proposers.base import Proposer

if TYPE_CHECKING:
    import torch

    from superres.decoding.proposers.lookahead.pool import NgramPool


class LookaheadProposer(Proposer):
    """N-grams from Jacobi iterations, several verified per step, in blocks of their size N."""

    branching = True
    settings = ("window", "candidates")
    block_size = 4

    def __init__(self, pool: Callable[[int, int, torch.device], NgramPool] | None = None) -> None:
        """Keep n-grams in `pool(batch, ngram_size, device)`; a pool of the usual capacity if None."""
        self.pool = pool

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
