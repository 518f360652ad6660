"""How sequences of a model are decoded: chosen once, for any number of batches and streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from superres.config import DecodeConfig, require, require_whole
from superres.decoding.acceptance import CRITERIA, Criterion, DrawCriterion
from superres.decoding.block_size import check_options
from superres.decoding.confidence import ConfidentBlockSize
from superres.decoding.limits import Limits
from superres.decoding.proposers import PROPOSERS
from superres.decoding.proposers.proposer import Proposer
from superres.interfaces import Bool, Decoder, Engine, Int64

Adaptive: TypeAlias = Callable[[Int64, Bool | None], int | ConfidentBlockSize | None]
"""Returns what chooses the block size for sources [B, S] and their padding, up to that of the
options: a block size for the whole decode, or one that every iteration chooses; None keeps that of
the options."""


class Algorithm:
    """Blockwise decoding by an engine with given options.

    Attributes:
        engine: the engine that runs the iterations: on torch if the given one does not support
            them.
        block_size: the block size that `options` ask for, k.
        is_own: whether the criterion is the caller's.
    """

    def __init__(
        self, engine: Engine, options: DecodeConfig, proposer: Proposer | None = None,
        criterion: Criterion | None = None, *, limits: Limits | None = None,
        width: int | None = None, adaptive: Adaptive | None = None,
    ) -> None:
        """Choose how `engine` decodes.

        Args:
            engine: the network's engine.
            options: block size, proposer, acceptance, sampling.
            proposer: source of proposals 2..k; by `options` if None.
            criterion: acceptance; by `options` if None.
            limits: limits on the tokens; None for none.
            width: step width W, at least the block size, which is the default. A larger width runs
                the same kernels as a larger block.
            adaptive: chooses the block size; None keeps that of `options`.

        Raises:
            ConfigError: the options do not fit the model, or the width does not fit them.
        """
        self.options, self.limits, self.width, self.adaptive = options, limits, width, adaptive
        # A proposer of the caller's makes any number of proposals.
        heads = (engine.prediction_heads if proposer is None else options.block_size
                 or engine.prediction_heads)
        self.block_size = check_options(options, heads, engine.length)
        if width is not None:
            require_whole("width", width)
            require(width >= self.block_size, f"width {width} is smaller than the block size "
                    f"{self.block_size}")
            require(not options.adaptive, "an adaptive block size has no fixed width; leave out "
                    f"the width {width}")
        self.proposer = proposer or PROPOSERS[options.proposer]()
        if isinstance(self.proposer, Proposer):  # any object with a method `propose` will do
            self.proposer.check(engine)
        self.criterion = criterion or CRITERIA[options.accept](options)
        self.is_own = criterion is not None
        draws, speculative = isinstance(self.criterion, DrawCriterion), options.is_speculative
        require(not draws or speculative, f"accept {options.accept} judges drawn proposals; sample "
                "speculative, at a temperature above 0")
        require(speculative or not getattr(self.proposer, "draws_only", False), "proposer "
                f"{options.proposer} draws its proposals; sample speculative, at a temperature "
                "above 0")
        require(draws or not speculative or options.accept == "exact", "speculative sampling takes "
                f"criteria of drawn proposals, not {options.accept}; leave it out, or sample "
                "coupled")
        self.engine = engine.supporting(self)

    def start(
        self, source: Int64, block_size: int, padding: Bool | None = None,
        confident: ConfidentBlockSize | None = None,
    ) -> Decoder:
        """Begin sources [B, S] in rows of their own, with the keys 0, 1 and so on; see
        `superres.interfaces.Engine.start`. `padding` [B, S] is True at padding."""
        encoded = self.engine.encode(source, padding, self)
        return self.engine.start(encoded, np.arange(len(source)), self, block_size, confident)
