"""Strengths by Davidson's model: place several methods on one scale by votes on pairs of methods, ties included.

No maintained library fits ties: choix has the model of Bradley and Terry alone, and statsmodels no paired comparisons.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superres.survey.statistics import LEVEL, Floats, Interval, Ints

RESAMPLES = 500
REGULARISATION = 0.01
"""Precision of a normal prior on strengths, which keeps them finite if one method always won."""

STEPS = 50
LONGEST_STEP = 2.0


@dataclass(frozen=True)
class Strength:
    """A method's strength.

    Attributes:
        method: name of the method.
        log_strength: natural logarithm of the strength; the mean over methods is 0. Among decided votes, method A is
            preferred to method B with probability 1 / (1 + exp(B - A)).
        interval: percentile bootstrap interval over raters.
    """

    method: str
    log_strength: float
    interval: Interval


def davidson(
    raters: Sequence[str], methods_a: Sequence[str], methods_b: Sequence[str], values: Sequence[float],
    rng: np.random.Generator, level: float = LEVEL,
) -> tuple[list[Strength], float | None]:
    """Fit the model of Davidson (1970, JASA 65:317-328), which without ties is that of Bradley and Terry (1952).

    A is preferred to B with probability a / (a + b + v sqrt(ab)), and neither with v sqrt(ab) / (a + b + v sqrt(ab)),
    for strengths a and b and the tie parameter v.

    Args:
        raters: name of each vote's rater; the intervals resample raters.
        methods_a: method a of each vote.
        methods_b: method b of each vote.
        values: 1 for method a, 0 for method b, 0.5 for "can't tell".
        rng: random generator for the resampling.
        level: confidence level.

    Returns:
        The strengths, highest first, and v, or None without ties. There are no strengths of fewer than three methods,
        or if the comparisons do not connect all methods.
    """
    from scipy.sparse.csgraph import connected_components

    names = sorted({*methods_a, *methods_b})
    if len(names) < 3:
        return [], None
    rater_names, rows = np.unique(list(raters), return_inverse=True)
    a, b = (np.searchsorted(names, methods) for methods in (methods_a, methods_b))
    pairs, columns = np.unique(np.stack([a, b], 1), axis=0, return_inverse=True)
    links = np.zeros((len(names), len(names)))
    links[pairs[:, 0], pairs[:, 1]] = 1
    if connected_components(links, directed=False)[0] > 1:
        return [], None
    by_rater = np.zeros((len(rater_names), len(pairs), 3))
    np.add.at(by_rater, (rows, columns.reshape(-1), (2 - 2 * np.asarray(values)).astype(np.int64)), 1)
    weights = rng.multinomial(len(by_rater), np.full(len(by_rater), 1 / len(by_rater)), RESAMPLES)
    counts = np.concatenate([by_rater.sum(axis=0)[None], np.tensordot(weights, by_rater, 1)])
    fitted, tie, _ = fit(counts, pairs, len(names))
    fitted -= fitted.mean(axis=1, keepdims=True)
    low, high = np.quantile(fitted[1:], [(1 - level) / 2, (1 + level) / 2], axis=0)
    found = [Strength(name, float(fitted[0, i]), (float(low[i]), float(high[i]))) for i, name in enumerate(names)]
    found.sort(key=lambda strength: -strength.log_strength)
    return found, float(np.exp(tie[0])) if counts[0, :, 1].any() else None


def fit(
    counts: Floats, pairs: Ints, methods: int, precision: float = REGULARISATION,
) -> tuple[Floats, Floats, Floats]:
    """Fit Davidson's model to several tables of votes at once, by Newton's method.

    The model is a multinomial logit: in pair (a, b), the outcomes a, tie and b have the scores A, v + (A + B) / 2 and
    B. Its likelihood is therefore concave.

    Args:
        counts: number of votes for a, for neither and for b, by table and pair, float64 [T, P, 3].
        pairs: methods a and b of each pair, int64 [P, 2].
        methods: number of methods M.
        precision: precision of the normal prior on the log strengths.

    Returns:
        The log strengths, float64 [T, M]; the logarithm of the tie parameter, float64 [T]; and the covariance of both
        in the posterior's normal approximation, float64 [T, M + 1, M + 1].
    """
    sides = np.eye(methods + 1)[pairs]  # [P, 2, M + 1]
    # The derivative of each outcome's score by the parameters, [P, 3, M + 1].
    scores = np.stack([sides[:, 0], sides.mean(axis=1) + np.eye(methods + 1)[methods], sides[:, 1]], 1)
    possible = np.array([True, bool(counts[..., 1].any()), True])
    totals, prior = counts.sum(axis=2), precision * np.eye(methods + 1)
    parameters = np.zeros((len(counts), methods + 1))
    for step in range(STEPS + 1):
        chances = np.where(possible, np.exp(np.einsum("pok,tk->tpo", scores, parameters)), 0)
        chances /= chances.sum(axis=2, keepdims=True)
        expected = np.einsum("tpo,pok->tpk", chances, scores)
        squares = np.einsum("tpo,pok,pol->tpkl", chances, scores, scores)
        squares -= expected[..., :, None] * expected[..., None, :]
        hessian = np.einsum("tp,tpkl->tkl", totals, squares) + prior
        gradient = np.einsum("tpo,pok->tk", counts, scores) - np.einsum("tp,tpk->tk", totals, expected)
        change = np.linalg.solve(hessian, (gradient - precision * parameters)[..., None])[..., 0]
        if step == STEPS or np.abs(change).max() < 1e-8:
            break
        parameters += change * np.minimum(1, LONGEST_STEP / np.maximum(np.abs(change).max(axis=1), 1e-300))[:, None]
    return parameters[:, :methods], parameters[:, methods], np.linalg.inv(hessian)
