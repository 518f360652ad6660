"""Statistics of paired choices: the interval that treats raters and images as random, strengths,
and plans.

A vote is 1 for method a, 0 for method b, and 0.5 for "can't tell". Votes of one rater or on one
image are correlated. An interval that ignores this is far too narrow (Clark 1973, "The
language-as-fixed-effect fallacy"), so reports lead with the two-way interval. `level` is a
confidence level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from superres.config import require

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Interval = tuple[float, float]

LEVEL = 0.9
"""Confidence level of the paper's intervals (Stern et al. 2018, Table 3)."""

RATER_RESAMPLES = 500

FEW_RATERS = 5
"""Below this number of raters there is no forecast, p-value or strength: resampling few raters
gives intervals of strengths that are far too narrow, down to a width of zero."""

REGULARISATION = 0.01
"""Precision of a normal prior on strengths, which keeps them finite if one method always won."""

RATER_CORRELATION = 0.03
IMAGE_CORRELATION = 0.15
"""Assumed correlations of two votes by one rater, or on one image, for plans without a pilot study.
They follow from normal effects with standard deviations of 0.4 (raters) and 1.0 (images) on the
logit scale."""


@dataclass(frozen=True)
class Votes:
    """Votes of one comparison: float64 [n], and the index of each vote's rater and image, from 0,
    int64 [n]."""

    values: Floats
    raters: Ints
    images: Ints

    @classmethod
    def of(cls, values: Sequence[float], raters: Sequence[str], images: Sequence[str]) -> Votes:
        """Index raters and images in the order of their names."""
        return cls(np.array(values, np.float64),
                   *(np.unique(list(names), return_inverse=True)[1].astype(np.int64)
                     for names in (raters, images)))

    @property
    def preference(self) -> float:
        """Mean vote: the share of votes for method a."""
        return float(self.values.mean())

    @property
    def counts(self) -> tuple[int, int]:
        """Number of raters, and number of images."""
        return int(self.raters.max()) + 1, int(self.images.max()) + 1


def withheld(raters: int) -> str | None:
    """Return why a report of so many raters has no strengths and p-values; None if it has them."""
    return None if raters >= FEW_RATERS else (
        f"p-values and strengths need at least {FEW_RATERS} raters, not {raters}")


def two_way(votes: Votes, level: float = LEVEL) -> dict[str, Any] | None:
    """Return the two-way clustered interval of a preference; None with fewer than two raters or two
    images.

    The variance is that of Cameron, Gelbach and Miller (2011, JBES 29:238-249), with the factor G /
    (G - 1) for G clusters. In small samples it can fall below the variance clustered by raters or
    by images, or even below zero. The maximum of the three is used (MacKinnon, Nielsen and Webb
    2024, "Jackknife inference with two-way clustering"). The quantiles are those of t with
    min(raters, images) - 1 degrees of freedom. The result has the "interval", clipped to [0, 1],
    the "standard_error", the "degrees_of_freedom", the two-sided "p_value" for a preference of 0.5,
    and the "design_effect", the variance relative to the same number of independent votes. If all
    votes are equal, the residuals vanish. The interval is then Wilson's for min(raters, images)
    votes, without the last two.
    """
    from scipy import stats  # slow to import, as is statsmodels
    from statsmodels.regression.linear_model import OLS
    from statsmodels.stats.sandwich_covariance import cov_cluster_2groups

    fewest, mean = min(votes.counts), votes.preference
    if fewest < 2:
        return None
    fitted = OLS(votes.values, np.ones(len(votes.values))).fit()  # its only coefficient is the mean
    matrices = cov_cluster_2groups(fitted, votes.raters, votes.images)
    variance = max(float(matrix[0, 0]) for matrix in matrices)
    if variance <= 1e-15:
        return {"interval": wilson(mean * fewest, fewest, level), "standard_error": 0.0,
                "degrees_of_freedom": fewest - 1, "p_value": None, "design_effect": None}
    error = math.sqrt(variance)
    half = float(stats.t.ppf((1 + level) / 2, fewest - 1)) * error
    return {"interval": (max(0.0, mean - half), min(1.0, mean + half)), "standard_error": error,
            "degrees_of_freedom": fewest - 1,
            "p_value": 2 * float(stats.t.sf(abs(mean - 0.5) / error, fewest - 1)),
            "design_effect": variance / (float(votes.values.var()) / len(votes.values))}


def wilson(successes: float, trials: float, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval (Wilson 1927, JASA 22:209-212); counts may be fractional."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(successes, trials, 1 - level, method="wilson")
    return max(0.0, float(low)), min(1.0, float(high))


def intraclass_correlation(values: Floats, clusters: Ints) -> float | None:
    """Return the one-way analysis-of-variance estimate of the correlation of two votes in a
    cluster, in [-1, 1].

    Clusters may have different sizes (Donner 1986, Int. Stat. Rev. 54:67-82). The result is None if
    no cluster has two votes, if there is only one cluster, or if all votes are equal.
    """
    sizes = np.bincount(clusters)
    n, count = len(values), len(sizes)
    if count < 2 or n == count:
        return None
    means = np.bincount(clusters, values) / sizes
    between = float((sizes * (means - values.mean())**2).sum()) / (count - 1)
    within = float(((values - means[clusters])**2).sum()) / (n - count)
    typical = (n - float((sizes**2).sum()) / n) / (count - 1)
    total = between + (typical - 1) * within
    return (between - within) / total if total > 0 else None


def krippendorff_alpha(units: Ints, choices: Ints) -> float | None:
    """Return Krippendorff's nominal alpha: 1 is perfect agreement, 0 is agreement by chance
    (Krippendorff 2011).

    `units` and `choices`, int64 [n], are the indices of each vote's rated unit and of its choice.
    The result is None if no unit has two votes, or if all votes are equal.
    """
    import krippendorff

    counts = np.zeros((int(units.max()) + 1, int(choices.max()) + 1), np.int64)
    np.add.at(counts, (units, choices), 1)
    counts = counts[counts.sum(axis=1) >= 2]
    if not len(counts) or (counts.sum(axis=0) > 0).sum() < 2:
        return None
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))


def davidson(raters: Sequence[str], methods_a: Sequence[str], methods_b: Sequence[str],
             values: Sequence[float], rng: np.random.Generator,
             level: float = LEVEL) -> tuple[list[dict[str, Any]], float | None]:
    """Fit the model of Davidson (1970, JASA 65:317-328), which without ties is that of Bradley and
    Terry (1952).

    A is preferred to B with probability a / (a + b + v sqrt(ab)), and neither with v sqrt(ab) / (a
    + b + v sqrt(ab)), for strengths a and b and the tie parameter v. No maintained library fits
    ties. Each vote has a rater, a method a, a method b, and a value.

    Returns:
        The strengths, highest first: the "method", its "log_strength" (natural logarithm, with the
        mean 0 over methods) and the percentile bootstrap "interval" over raters; none of fewer than
        three methods, or if the comparisons do not connect them. And v, or None without ties.
    """
    from scipy.sparse.csgraph import connected_components

    names = sorted({*methods_a, *methods_b})
    if len(names) < 3:
        return [], None
    # Which methods meet, and whether by them all stand on one scale.
    rater_names, rows = np.unique(list(raters), return_inverse=True)
    a, b = (np.searchsorted(names, methods) for methods in (methods_a, methods_b))
    pairs, columns = np.unique(np.stack([a, b], 1), axis=0, return_inverse=True)
    links = np.zeros((len(names), len(names)))
    links[pairs[:, 0], pairs[:, 1]] = 1
    if connected_components(links, directed=False)[0] > 1:
        return [], None
    by_rater = np.zeros((len(rater_names), len(pairs), 3))
    outcomes = (2 - 2 * np.asarray(values)).astype(np.int64)
    np.add.at(by_rater, (rows, columns.reshape(-1), outcomes), 1)
    # The votes as they are, and resampled by raters, are fitted at once.
    weights = rng.multinomial(len(by_rater), np.full(len(by_rater), 1 / len(by_rater)),
                              RATER_RESAMPLES)
    counts = np.concatenate([by_rater.sum(axis=0)[None], np.tensordot(weights, by_rater, 1)])
    fitted, tie = fit_davidson(counts, pairs, len(names))
    fitted -= fitted.mean(axis=1, keepdims=True)
    low, high = np.quantile(fitted[1:], [(1 - level) / 2, (1 + level) / 2], axis=0)
    found = [{"method": names[i], "log_strength": float(fitted[0, i]),
              "interval": (float(low[i]), float(high[i]))}
             for i in np.argsort(-fitted[0], kind="stable")]
    return found, float(np.exp(tie[0])) if counts[0, :, 1].any() else None


def fit_davidson(counts: Floats, pairs: Ints, methods: int,
                 precision: float = REGULARISATION) -> tuple[Floats, Floats]:
    """Fit Davidson's model to T tables of votes at once, by Newton's method.

    The model is a multinomial logit: in pair (a, b), the outcomes a, tie and b have the scores A, v
    + (A + B) / 2 and B. Its likelihood is therefore concave. `counts` are the votes for a, for
    neither and for b, by table and pair, float64 [T, P, 3]. `pairs` are the methods a and b of each
    pair, int64 [P, 2], numbered below `methods`, M. `precision` is that of the normal prior on the
    log strengths.

    Returns:
        The log strengths, float64 [T, M], and the logarithm of the tie parameter, float64 [T].
    """
    sides = np.eye(methods + 1)[pairs]  # [P, 2, M + 1]
    # The derivative of each outcome's score by the parameters, [P, 3, M + 1].
    scores = np.stack([sides[:, 0], sides.mean(axis=1) + np.eye(methods + 1)[methods], sides[:, 1]],
                      1)
    possible = np.array([True, bool(counts[..., 1].any()), True])
    totals, prior = counts.sum(axis=2), precision * np.eye(methods + 1)
    parameters = np.zeros((len(counts), methods + 1))
    for _ in range(50):  # steps of at most 2
        chances = np.where(possible, np.exp(np.einsum("pok,tk->tpo", scores, parameters)), 0)
        chances /= chances.sum(axis=2, keepdims=True)
        expected = np.einsum("tpo,pok->tpk", chances, scores)
        squares = np.einsum("tpo,pok,pol->tpkl", chances, scores, scores)
        squares -= expected[..., :, None] * expected[..., None, :]
        hessian = np.einsum("tp,tpkl->tkl", totals, squares) + prior
        gradient = (np.einsum("tpo,pok->tk", counts, scores)
                    - np.einsum("tp,tpk->tk", totals, expected) - precision * parameters)
        change = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        if np.abs(change).max() < 1e-8:
            break
        largest = np.abs(change).max(axis=1, keepdims=True)
        parameters += change * np.minimum(1, 2 / np.maximum(largest, 1e-300))
    return parameters[:, :methods], parameters[:, methods]


def plan_votes(
    precision: float, images: int, votes_per_rater: int, preference: float = 0.5,
    level: float = LEVEL, rater_correlation: float = RATER_CORRELATION,
    image_correlation: float = IMAGE_CORRELATION,
) -> dict[str, Any]:
    """Return the numbers of votes and raters for an interval of the `preference` plus or minus
    `precision`, as shares.

    The variance of independent votes is multiplied by the design effect of two crossed clusters,
    after Kish, "Survey Sampling" (1965). It is 1 + (m - 1) r + (n / I - 1) i for m votes per rater,
    n votes on I images, and the correlations r of a rater's votes and i of the votes on an image. A
    preference of 0.5 requires the most votes. Raise ConfigError if a value is out of range, or no
    number of votes on that many images suffices.
    """
    from scipy import stats

    require(0 < precision < 0.5, "the precision must be between 0 and 0.5 (0.02 is 2 points), not "
            f"{precision}")
    require(0 < preference < 1, "the expected preference must be between 0 and 1, not "
            f"{preference}")
    require(0 < level < 1, f"the confidence level must be between 0 and 1, not {level}")
    for name, value in (("rater", rater_correlation), ("image", image_correlation)):
        require(0 <= value < 1, f"the {name} correlation must be in [0, 1), not {value}")
    z = float(stats.norm.ppf((1 + level) / 2))
    independent = z * z * preference * (1 - preference) / precision**2
    # n = independent * (fixed + n / images * image_correlation), solved for n.
    fixed = 1 + (votes_per_rater - 1) * rater_correlation - image_correlation
    share = independent * image_correlation / images
    needed = math.floor(independent * image_correlation) + 1
    require(share < 1, f"no number of votes on {images} images gives a precision of {precision}, "
            f"since images differ; use at least {needed} images")
    votes = math.ceil(independent * fixed / (1 - share))
    return {"independent_votes": math.ceil(independent), "votes": votes,
            "raters": math.ceil(votes / votes_per_rater), "votes_per_image": votes / images,
            "design_effect": votes / independent}
