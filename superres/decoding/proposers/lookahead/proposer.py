"""The registry entry of lookahead decoding. `superres.decoding.plain.lookahead.iteration` contains
the algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from superres.config import DecodeConfig, require
from superres.decoding.proposers.proposer import Proposer, ProposerData

if TYPE_CHECKING:
    import torch

    from superres.decoding.plain.lookahead.pool import NgramPool


class LookaheadProposer(Proposer):
    """N-grams from Jacobi iterations, several of which are verified per step; the block size is
    N."""

    proposes_tree = True
    settings = ("window", "candidates")
    block_size = 4

    def __init__(self, pool: Callable[[int, int, torch.device], NgramPool] | None = None) -> None:
        """Make the pool of n-grams by `pool(batch, ngram_size, device)`; an `NgramPool` if None."""
        self.pool = pool

    @classmethod
    def check_options(cls, options: DecodeConfig, block_size: int, length: int) -> None:
        reach = options.window + block_size - 2
        require(reach <= length, f"window {options.window} and block size {block_size} reach "
                f"{reach} tokens ahead, more than the {length} target tokens; choose smaller "
                "values")
        require(options.min_block == 1, f"min-block {options.min_block} needs proposals in every "
                "step, but lookahead may have none; leave min-block out")

    def as_data(self) -> ProposerData | None:
        """See `Proposer.as_data`; single steps read another pool."""
        return ProposerData("lookahead") if self.pool is None else None
