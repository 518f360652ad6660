"""Bradley-Terry strengths: several methods on one scale, from votes on pairs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from superres.survey.statistics import LEVEL, Interval

Floats = npt.NDArray[np.float64]

RESAMPLES = 500
REGULARISATION = 0.01
"""choix's alpha: keeps strengths finite where one method always won, and is far too small to matter otherwise."""


@dataclass(frozen=True)
class Strength:
    """A method's strength.

    Attributes:
        method: its name.
        log_strength: natural logarithm; the mean over methods is 0. A beats B with probability 1 / (1 + exp(B - A)).
        interval: percentiles of resampling raters.
    """

    method: str
    log_strength: float
    interval: Interval


def bradley_terry(
    raters: Sequence[str], methods_a: Sequence[str], methods_b: Sequence[str], values: Sequence[float],
    rng: np.random.Generator, level: float = LEVEL,
) -> list[Strength]:
    """Fit the model of Bradley and Terry (1952, Biometrika 39:324-345) by choix, strongest method first.

    Args:
        raters: name of each vote's rater; whole raters are resampled for the intervals.
        methods_a: method a of each vote.
        methods_b: method b of each vote.
        values: 1 for method a, 0 for method b, 0.5 for "can't tell", which is half a win of each.
        rng: of the resampling.
        level: confidence level.

    Returns:
        the methods, or nothing where there are fewer than three, or where no chain of comparisons joins them all.
    """
    import choix
    from scipy.sparse.csgraph import connected_components

    names = sorted({*methods_a, *methods_b})
    if len(names) < 3:
        return []
    wins = _wins_by_rater(raters, methods_a, methods_b, values, names)
    joined, _ = connected_components(wins.sum(axis=0), directed=False)
    if joined > 1:
        return []

    def fit(matrix: Floats) -> Floats:
        strengths: Floats = choix.ilsr_pairwise_dense(matrix, alpha=REGULARISATION, max_iter=1000)
        centred: Floats = strengths - strengths.mean()
        return centred

    count = len(wins)
    weights = rng.multinomial(count, np.full(count, 1 / count), RESAMPLES)
    draws = np.array([fit(np.tensordot(row, wins, 1)) for row in weights])
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    found = [Strength(*entry) for entry in zip(names, map(float, fit(wins.sum(axis=0))),
                                               zip(map(float, low), map(float, high), strict=True), strict=True)]
    return sorted(found, key=lambda strength: -strength.log_strength)


def _wins_by_rater(
    raters: Sequence[str], methods_a: Sequence[str], methods_b: Sequence[str], values: Sequence[float],
    names: Sequence[str],
) -> Floats:
    """Return how often each rater preferred each method to each other, float64 [raters, methods, methods]."""
    rater_names = sorted(set(raters))
    rows, firsts, seconds = (np.array([order[name] for name in given]) for given, order in (
        (raters, {name: i for i, name in enumerate(rater_names)}),
        (methods_a, {name: i for i, name in enumerate(names)}),
        (methods_b, {name: i for i, name in enumerate(names)})))
    wins = np.zeros((len(rater_names), len(names), len(names)))
    np.add.at(wins, (rows, firsts, seconds), np.asarray(values))
    np.add.at(wins, (rows, seconds, firsts), 1 - np.asarray(values))
    return wins
