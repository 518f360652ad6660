"""Bradley-Terry strengths: place several methods on one scale by votes on pairs of methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superres.survey.statistics import LEVEL, Floats, Interval

RESAMPLES = 500
REGULARISATION = 0.01
"""choix's alpha, which keeps strengths finite if one method always won, and has no other visible effect."""


@dataclass(frozen=True)
class Strength:
    """A method's strength.

    Attributes:
        method: name of the method.
        log_strength: natural logarithm of the strength; the mean over methods is 0. Method A is preferred to method B
            with probability 1 / (1 + exp(B - A)).
        interval: percentile bootstrap interval over raters.
    """

    method: str
    log_strength: float
    interval: Interval


def bradley_terry(
    raters: Sequence[str], methods_a: Sequence[str], methods_b: Sequence[str], values: Sequence[float],
    rng: np.random.Generator, level: float = LEVEL,
) -> list[Strength]:
    """Fit the model of Bradley and Terry (1952, Biometrika 39:324-345) with choix.

    Args:
        raters: name of each vote's rater; the intervals resample raters.
        methods_a: method a of each vote.
        methods_b: method b of each vote.
        values: 1 for method a, 0 for method b; 0.5 for "can't tell" counts as half a win for each method.
        rng: random generator for the resampling.
        level: confidence level.

    Returns:
        The strengths, highest first. The list is empty if there are fewer than three methods, or if the comparisons do
        not connect all methods.
    """
    import choix
    from scipy.sparse.csgraph import connected_components

    names = sorted({*methods_a, *methods_b})
    if len(names) < 3:
        return []
    wins = _wins_by_rater(raters, methods_a, methods_b, values, names)
    components, _ = connected_components(wins.sum(axis=0), directed=False)
    if components > 1:
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
    """Return the wins of each method over each other method by rater, float64 [raters, methods, methods]."""
    rater_names, rows = np.unique(list(raters), return_inverse=True)
    a, b = (np.searchsorted(names, methods) for methods in (methods_a, methods_b))  # the names are sorted
    wins = np.zeros((len(rater_names), len(names), len(names)))
    np.add.at(wins, (rows, a, b), np.asarray(values))
    np.add.at(wins, (rows, b, a), 1 - np.asarray(values))
    return wins
