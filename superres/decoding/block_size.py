"""The block size of a decode: the one that options ask for, or one that recorded costs make the
fastest."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate

from superres.config import FIRST_GUESS, DecodeConfig, StepCosts
from superres.decoding.acceptance import CRITERIA
from superres.decoding.proposers import PROPOSERS
from superres.errors import ConfigError

GAIN = 1.08
"""Smallest expected speed-up of a whole decode over one token per step for which blocks are
decoded. Recorded costs predict a decode's time within about 5 %, and blocks should gain 3 % or
more."""
# Block size if neither the options nor the number of prediction heads determine it
DEFAULT_BLOCK_SIZE = 5


def check_options(options: DecodeConfig, prediction_heads: int, length: int | None = None) -> int:
    """Return the block size that `options` ask of a model of `prediction_heads` and targets of
    `length` tokens.

    Raises:
        ConfigError: the block size exceeds the prediction heads that the proposer uses, or the
            target; the minimum block exceeds the block size; or the criterion or the proposer
            cannot use its settings.
    """
    CRITERIA[options.accept](options)
    kind = PROPOSERS[options.proposer]
    by_heads = prediction_heads if kind.uses_heads or prediction_heads > 1 else DEFAULT_BLOCK_SIZE
    block_size = options.block_size or (None if options.adaptive else kind.block_size) or by_heads
    if block_size > prediction_heads and kind.uses_heads:
        raise ConfigError(f"block size {block_size} is more than the {prediction_heads} prediction "
                          f"heads; use {prediction_heads} or less")
    if length is not None and block_size > length:
        raise ConfigError(f"block size {block_size} is more than the {length} target tokens that "
                          f"the cache is made for; use {length} or less")
    if options.adaptive and kind.proposes_tree:
        raise ConfigError(f"the block size of {options.proposer} is the length of its n-grams and "
                          "cannot be adaptive; leave adaptive out, or choose another proposer")
    if options.min_block > block_size:
        raise ConfigError(f"min-block {options.min_block} is larger than the block size "
                          f"{block_size}")
    if length is not None:
        kind.check_options(options, block_size, length)
    return block_size


def fastest_size(costs: Sequence[float], least: int = 1,
                 passing: float = FIRST_GUESS) -> tuple[int, float]:
    """Return the block size with the most tokens per second if every proposal passes with
    probability `passing`.

    `costs` are the times of an iteration at block sizes 1 to K, and `least` is the smallest size.
    Also returns the expected tokens of an iteration of that size.
    """
    shares = accumulate([1.0, *[passing] * (len(costs) - 1)], operator.mul)
    tokens = [*accumulate(shares)]
    size = max(range(least, len(costs) + 1), key=lambda size: tokens[size - 1] / costs[size - 1])
    return size, float(tokens[size - 1])


def paying_size(costs: StepCosts, times: Sequence[float], least: int, passing: float,
                length: float) -> int:
    """Return the block size that decodes targets of `length` tokens fastest; 1 unless blocks gain a
    share of `GAIN`.

    `times` are those of an iteration at block sizes 1 to K, and other arguments are as for
    `fastest_size`. Steps of one token are decoded in a session of their own, unless `least` forbids
    it.
    """
    size, tokens = fastest_size(times, least, passing)
    in_blocks = costs.start + length / tokens * times[size - 1]
    return size if least > 1 or GAIN * in_blocks < length * costs.alone else 1
