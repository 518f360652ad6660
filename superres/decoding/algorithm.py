"""How sequences of a model are decoded: chosen once, for any number of batches and streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

from superres.config import DecodeConfig, require, require_whole
from superres.decoding.acceptance import CRITERIA, Criterion
from superres.decoding.block_size import check_options
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import Proposer, with_proposer_state
from superres.interfaces import ScoringModel

Adaptive: TypeAlias = Callable[[Tensor, Tensor | None], int | ConfidentBlockSize | None]
"""Returns what chooses the block size for sources [B, S] and their padding, up to that of the
options: a block size for the whole decode, or one that every iteration chooses; None keeps that of
the options."""


class Algorithm:
    """Blockwise decoding of a model by given options.

    Attributes:
        model: the model, whose sessions include the state of the proposer.
        block_size: the block size that `options` ask for, k.
        is_plain: whether torch runs the iterations, as it does for a criterion of the caller's.
    """

    def __init__(
        self, model: ScoringModel, options: DecodeConfig, proposer: Proposer | None = None,
        criterion: Criterion | None = None, *, width: int | None = None,
        adaptive: Adaptive | None = None,
    ) -> None:
        """Choose how `model` decodes.

        Args:
            model: the model.
            options: block size, proposer, acceptance, sampling.
            proposer: source of proposals 2..k; by `options` if None.
            criterion: acceptance; by `options` if None.
            width: step width W, at least the block size, which is the default. A larger width runs
                the same kernels as a larger block.
            adaptive: chooses the block size; None keeps that of `options`.

        Raises:
            ConfigError: the options do not fit the model, or the width does not fit them.
        """
        self.options, self.width, self.adaptive = options, width, adaptive
        # A proposer of the caller's makes any number of proposals.
        heads = (model.prediction_heads if proposer is None else options.block_size
                 or model.prediction_heads)
        self.block_size = check_options(options, heads, model.length)
        if width is not None:
            require_whole("width", width)
            require(width >= self.block_size, f"width {width} is smaller than the block size "
                    f"{self.block_size}")
            require(not options.adaptive, "an adaptive block size has no fixed width; leave out "
                    f"the width {width}")
        self.proposer = proposer or PROPOSERS[options.proposer]()
        self.criterion = criterion or CRITERIA[options.accept](options)
        self.is_plain = criterion is not None
        self.model = with_proposer_state(model, self.proposer)
