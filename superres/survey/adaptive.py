"""Choose how many pairs of each comparison a rater sees, so that the votes tell most about the order of the methods.

A vote on two methods whose order is clear tells nothing new, and neither does one more vote on two methods that are as
good as equal. Each vote therefore goes to the comparison with the largest mutual information between the vote and the
order of its two methods (Lindley 1956, Ann. Math. Stat. 27:986-1005), chosen greedily.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from superres.survey.statistics import Floats
from superres.survey.strength import fit
from superres.survey.study import Comparison

PRECISION = 1.0
"""Precision of the prior on log strengths: before the first votes, all comparisons are equally uncertain."""

NORMAL: Floats = stats.norm.ppf((np.arange(200) + 0.5) / 200)
"""Quantiles that stand for the normal distribution."""


def allocate(
    comparisons: Sequence[Comparison], votes: Floats, available: Sequence[int], trials: int,
) -> list[int]:
    """Return the number of pairs of each comparison that a rater sees.

    Args:
        comparisons: the comparisons C of a study.
        votes: votes of earlier raters for a, for neither and for b, float64 [C, 3].
        available: number of pairs of each comparison.
        trials: pairs that the rater sees, at least C and at most all pairs.

    Returns:
        Counts of at least 1 and at most `available`, with the sum `trials`.
    """
    names = sorted({name for c in comparisons for name in (c.method_a, c.method_b)})
    pairs = np.array([[names.index(c.method_a), names.index(c.method_b)] for c in comparisons])
    strengths, _, covariance = fit(votes[None], pairs, len(names), PRECISION)
    spread = covariance[0, :-1, :-1]
    differences = np.eye(len(names))[pairs[:, 0]] - np.eye(len(names))[pairs[:, 1]]  # [C, M]
    margins = differences @ strengths[0]
    counts = [0] * len(comparisons)
    for number in range(trials):
        variances = np.einsum("cm,mn,cn->c", differences, spread, differences)
        gains = order_information(margins, variances)
        for index, count in enumerate(counts):
            if count >= available[index] or (number < len(counts) and count):
                gains[index] = -1
        best = int(np.argmax(gains))
        counts[best] += 1
        weight = 0.25 / np.cosh(margins[best] / 2) ** 2  # Fisher information of a vote
        column = spread @ differences[best]
        spread = spread - np.outer(column, column) * weight / (1 + weight * variances[best])
    return counts


def order_information(margins: Floats, variances: Floats) -> Floats:
    """Return the mutual information, in nats, between a vote and the sign of its normal margin in log strength, [C]."""
    points = margins[:, None] + np.sqrt(variances)[:, None] * NORMAL  # [C, Q]
    votes = 1 / (1 + np.exp(-points))
    conditional, chance = np.zeros(len(margins)), votes.mean(axis=1)
    for side in (points > 0, points <= 0):
        share = side.mean(axis=1)
        conditional += share * _entropy((votes * side).mean(axis=1) / np.maximum(share, 1e-12))
    return _entropy(chance) - conditional


def _entropy(chances: Floats) -> Floats:
    inside = np.clip(chances, 1e-12, 1 - 1e-12)
    result: Floats = -inside * np.log(inside) - (1 - inside) * np.log(1 - inside)
    return result
