"""Confidence: the probability that a proposal passes, known before it is verified, and the block
size for it.

An ordinal head scores intensities by their distance from its centre mu. p1 will read more tokens
than the head did, so its centre differs from mu. The difference has a Laplace distribution: the
sharper the head, the smaller it is. A proposal passes if p1's centre is at most the criterion's
reach away from it. Two coefficients per checkpoint calibrate the slope of that distribution, for
all criteria.

For tokens without an order, the head's own probability of its proposal is the measure, and the
coefficients calibrate its log-odds for exact acceptance. Confidence decides only how many proposals
are verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superres.config import FIRST_GUESS, Confidence, DecodeConfig
from superres.decoding.acceptance import CRITERIA, Rule
from superres.decoding.block_size import fastest_size
from superres.interfaces import Float64, Int64

# Number of iterations after which an earlier iteration counts for 1/e in the running values
MEMORY = 100


def reach(rule: Rule) -> float:
    """Return the distance from a proposal within which p1's centre must lie for the proposal to
    pass."""
    kind, bound = rule
    return bound / 2 if kind == "rank" else bound + 0.5


def usual(confidence: Confidence | None, options: DecodeConfig) -> float:
    """Return the probability that a proposal passes the criterion of `options`, before anything is
    decoded."""
    return confidence.accepted if confidence is not None and options.is_exact else FIRST_GUESS


def passing(
    confidence: Confidence, centre: np.ndarray, slope: np.ndarray, tokens: np.ndarray, limit: float,
    largest: int,
) -> np.ndarray:
    """Return the probability that each of `tokens` [..., N] passes if the proposals before it pass.

    `centre` and `slope` [..., N] are those of the heads, and `limit` is the reach of the criterion.
    p1 chooses no token beyond 0 and `largest`, so a proposal near them passes on that side.
    """
    own = np.exp(confidence.offset + confidence.exponent * np.log(slope))
    above = centre - tokens
    # The probability that p1's centre is too low, and that it is too high.
    low = np.where(tokens <= limit, 0.0, np.exp(-own * np.maximum(limit + above, 0)))
    high = np.where(tokens >= largest - limit, 0.0, np.exp(-own * np.maximum(limit - above, 0)))
    result: np.ndarray = 1 - (low + high) / 2
    return result


def passing_by_odds(confidence: Confidence, log_odds: np.ndarray) -> np.ndarray:
    """Return the probability that each proposal passes exact acceptance, by its log-odds in the
    head's distribution."""
    result: np.ndarray = 1 / (1 + np.exp(-(confidence.offset + confidence.exponent * log_odds)))
    return result


def best_width(survival: Sequence[float], costs: Sequence[float], rate: float) -> int:
    """Return the width with the largest difference between a step's tokens and those decoded on
    average in its time.

    Steps of this width give the most tokens per second if `rate`, in tokens per second, is that
    rate. `survival` has the expected number of rows that accept token i of their block, and `costs`
    the seconds of an iteration at width i, for i = 1, 2 and so on; there may be more costs.
    """
    return 1 + int((np.cumsum(survival) - rate * np.array(costs[: len(survival)])).argmax())


@dataclass(frozen=True)
class BlockCosts:
    """Data of one decode for choosing the block size of every iteration by its proposals."""

    costs: Float64  # seconds of an iteration at block sizes 1 to K, float64 [K]
    offset: float  # as in `superres.config.Confidence`
    exponent: float  # as in `superres.config.Confidence`
    # distance from a proposal within which p1's centre must lie for the proposal to pass
    reach: float
    sizes: Int64  # block size of each row's pending proposals, int64 [B]
    # running values of each row, float64 [B, 2 + channels]: expected tokens per row and seconds of
    # the latest iterations, and the probability that a proposal for each channel passes. The rows
    # of a group, all rows in Python, have the same values
    rate: Float64


class ConfidentBlockSize:
    """Chooses the block size of every iteration by the probabilities of its proposals."""

    def __init__(
        self, confidence: Confidence, costs: Sequence[float], options: DecodeConfig,
        vocabulary: int, end_token: int | None = None,
    ) -> None:
        """Choose for the criterion of `options`, among block sizes from its minimum block to the
        number of `costs`.

        No token after an `end_token` counts. Raises ValueError if the criterion has no rule.
        """
        rule = CRITERIA[options.accept](options).rule
        if rule is None:
            raise ValueError(f"the criterion {options.accept} has no reach")
        self.confidence, self.costs, self.reach = confidence, list(costs), reach(rule)
        self.minimum, self.largest_token = options.min_block, vocabulary - 1
        self.end_token = end_token
        size, tokens = fastest_size(self.costs, passing=usual(confidence, options))
        # tokens and seconds of the first iteration's rate
        self.first = tokens, self.costs[size - 1]

    def block_costs(self, rows: int, shape: Sequence[int]) -> BlockCosts:
        """Return the data of a decode of `rows` rows, targets of `shape`, for `choose` and for
        native iterations."""
        channels = shape[-1] if len(shape) > 1 else 1
        # Heads propose only if proposals of average probability reduce the time per token, and only
        # proposals correct that probability: it starts at 1.
        rate = np.tile(np.array([*self.first, *[1.0] * channels]), (rows, 1))
        return BlockCosts(np.array(self.costs), self.confidence.offset, self.confidence.exponent,
                          self.reach, np.ones(rows, np.int64), rate)

    def choose(self, passed: Float64 | None, block: Int64, missing: Int64,
               given: BlockCosts) -> int:
        """Return the block size for pending proposals.

        They pass with the probabilities `passed` [B, K - 1]; None if these are not known. `block`
        has p1's token and the proposals [B, K], or more, and `missing` the largest number of tokens
        that each row may accept [B]. The rate of `given`, which is from `block_costs`, is updated.
        """
        if passed is None:
            return len(self.costs)
        survival = np.cumprod(np.pad(passed, ((0, 0), (1, 0)), constant_values=1), axis=1)  # [B, K]
        if self.end_token is not None:
            ended = np.logical_or.accumulate(block[:, : passed.shape[1]] == self.end_token, axis=1)
            survival[:, 1:] *= ~ended
        shares = (survival * (np.arange(survival.shape[1]) < missing[:, None])).sum(0).tolist()
        latest, seconds = given.rate[0, :2].tolist()
        rows = max(shares[0], 1.0)
        size = best_width(shares, self.costs, rows * latest / seconds)
        size = max(size, self.minimum)
        keep = 1 - 1 / MEMORY
        # In every row, since the first one may be dropped before the others end.
        given.rate[:, 0] = keep * latest + sum(shares[:size]) / rows
        given.rate[:, 1] = keep * seconds + self.costs[size - 1]
        return size
