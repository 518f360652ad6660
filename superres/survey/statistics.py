"""Statistics of paired choices: tests, and intervals that treat votes, raters, images or both as random.

A vote is 1 for method a, 0 for method b, and 0.5 for "can't tell". Votes of one rater or on one image are correlated.
An interval that ignores this is far too narrow (Clark 1973, "The language-as-fixed-effect fallacy"), so reports lead
with the two-way interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse, stats

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Interval = tuple[float, float]

LEVEL = 0.9
"""Confidence level of the paper's intervals (Stern et al. 2018, Table 3)."""

RESAMPLES = 10_000
PIGEONHOLE_RESAMPLES = 2_000


@dataclass(frozen=True)
class Votes:
    """Votes of one comparison.

    Attributes:
        values: 1 for method a, 0 for method b, 0.5 for "can't tell", float64 [n].
        raters: index of each vote's rater, from 0, int64 [n].
        images: index of each vote's image, from 0, int64 [n].
    """

    values: Floats
    raters: Ints
    images: Ints

    @classmethod
    def of(cls, values: Sequence[float], raters: Sequence[str], images: Sequence[str]) -> Votes:
        """Index raters and images in the order of their names."""
        return cls(np.array(values, np.float64), *(np.unique(list(names), return_inverse=True)[1].astype(np.int64)
                                                   for names in (raters, images)))

    @property
    def preference(self) -> float:
        """Mean vote: the share of votes for method a."""
        return float(self.values.mean())

    @property
    def counts(self) -> tuple[int, int]:
        """Number of raters, and number of images."""
        return int(self.raters.max()) + 1, int(self.images.max()) + 1


def votes_bootstrap(votes: Votes, rng: np.random.Generator, level: float = LEVEL) -> Interval:
    """Return the percentile bootstrap interval over votes, as in the paper's Table 3; too narrow for correlated votes.

    The counts of the values 0, 0.5 and 1 among n votes drawn with replacement have a multinomial distribution.
    """
    values, counts = np.unique(votes.values, return_counts=True)
    total = counts.sum()
    return _percentiles(rng.multinomial(total, counts / total, RESAMPLES) @ values / total, level)


def cluster_bootstrap(votes: Votes, clusters: Ints, rng: np.random.Generator, level: float = LEVEL) -> Interval:
    """Return the percentile bootstrap interval over clusters (Field and Welsh 2007, JRSS B 69:369-390).

    `clusters` is `votes.raters` or `votes.images`.
    """
    sums, sizes = np.bincount(clusters, votes.values), np.bincount(clusters)
    weights = rng.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), RESAMPLES)
    return _percentiles((weights @ sums) / (weights @ sizes), level)


def pigeonhole_bootstrap(votes: Votes, rng: np.random.Generator, level: float = LEVEL) -> Interval:
    """Return the percentile interval of resampling raters and images at once (Owen 2007, Ann. Appl. Stat. 1:386-411).

    The weight of a vote is the product of the draws of its rater and of its image. The interval is conservative.
    """
    # csr_array sums entries of the same rater and image.
    sums, sizes = (sparse.csr_array((entries, (votes.raters, votes.images)), votes.counts)
                   for entries in (votes.values, np.ones(len(votes.values))))
    draws = []
    for _ in range(PIGEONHOLE_RESAMPLES // 100):  # in chunks, to bound the memory for large studies
        by_rater, by_image = (rng.multinomial(n, np.full(n, 1 / n), 100).astype(np.float64) for n in votes.counts)
        total = np.einsum("bi,bi->b", by_rater @ sizes, by_image)
        summed = np.einsum("bi,bi->b", by_rater @ sums, by_image)
        draws.append(summed[total > 0] / total[total > 0])
    return _percentiles(np.concatenate(draws), level)


@dataclass(frozen=True)
class TwoWay:
    """The two-way clustered interval of a preference.

    Attributes:
        standard_error: standard error of the preference.
        degrees_of_freedom: degrees of freedom of the t quantile, min(raters, images) - 1.
        interval: confidence interval, clipped to [0, 1].
        p_value: two-sided p-value for a preference of 0.5; None if all votes are equal.
        design_effect: variance relative to the same number of independent votes; None if all votes are equal.
    """

    standard_error: float
    degrees_of_freedom: int
    interval: Interval
    p_value: float | None
    design_effect: float | None


def two_way(votes: Votes, level: float = LEVEL) -> TwoWay | None:
    """Return the two-way clustered interval; None with fewer than two raters or two images.

    The variance is that of Cameron, Gelbach and Miller (2011, JBES 29:238-249), with the factor G / (G - 1) for G
    clusters. In small samples it can fall below the variance clustered by raters or by images, or even below zero. The
    maximum of the three is used (MacKinnon, Nielsen and Webb 2024, "Jackknife inference with two-way clustering"). If
    all votes are equal, the residuals vanish. The result is then Wilson's interval for min(raters, images) votes.
    """
    from statsmodels.regression.linear_model import OLS
    from statsmodels.stats.sandwich_covariance import cov_cluster_2groups

    fewest, mean = min(votes.counts), votes.preference
    if fewest < 2:
        return None
    fitted = OLS(votes.values, np.ones(len(votes.values))).fit()  # its only coefficient is the mean
    variance = max(float(matrix[0, 0]) for matrix in cov_cluster_2groups(fitted, votes.raters, votes.images))
    if variance <= 1e-15:
        return TwoWay(0.0, fewest - 1, wilson(mean * fewest, fewest, level), None, None)
    error = math.sqrt(variance)
    half = float(stats.t.ppf((1 + level) / 2, fewest - 1)) * error
    p_value = 2 * float(stats.t.sf(abs(mean - 0.5) / error, fewest - 1))
    independent = float(votes.values.var()) / len(votes.values)
    return TwoWay(error, fewest - 1, (max(0.0, mean - half), min(1.0, mean + half)), p_value, variance / independent)


def intervals(votes: Votes, rng: np.random.Generator, level: float = LEVEL) -> dict[str, Interval | None]:
    """Return all intervals by name; None where there are too few raters or images, or where no vote is decided."""
    both, (raters, images) = two_way(votes, level), votes.counts
    for_a, decided = float((votes.values == 1).sum()), int((votes.values != 0.5).sum())
    return {
        "two_way": both.interval if both else None,
        "votes": votes_bootstrap(votes, rng, level),
        "rater": cluster_bootstrap(votes, votes.raters, rng, level) if raters > 1 else None,
        "image": cluster_bootstrap(votes, votes.images, rng, level) if images > 1 else None,
        "pigeonhole": pigeonhole_bootstrap(votes, rng, level) if both else None,
        "wilson": wilson(for_a, decided, level) if decided else None,
    }


def wilson(successes: float, trials: float, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval (Wilson 1927, JASA 22:209-212); counts may be fractional."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(successes, trials, 1 - level, method="wilson")
    return max(0.0, float(low)), min(1.0, float(high))


def intraclass_correlation(values: Floats, clusters: Ints) -> float | None:
    """Return the one-way analysis-of-variance estimate of the correlation of two votes in a cluster, in [-1, 1].

    Clusters may have different sizes (Donner 1986, Int. Stat. Rev. 54:67-82). The result is None if no cluster has two
    votes, if there is only one cluster, or if all votes are equal.
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
    """Return Krippendorff's nominal alpha: 1 is perfect agreement, 0 is agreement by chance (Krippendorff 2011).

    Args:
        units: index of the rated unit of each vote, int64 [n]; a rater has at most one vote per unit.
        choices: index of each vote's choice, int64 [n].

    Returns:
        alpha, or None if no unit has two votes or all votes are equal.
    """
    import krippendorff

    counts = np.zeros((int(units.max()) + 1, int(choices.max()) + 1), np.int64)
    np.add.at(counts, (units, choices), 1)
    counts = counts[counts.sum(axis=1) >= 2]
    if not len(counts) or (counts.sum(axis=0) > 0).sum() < 2:
        return None
    return float(krippendorff.alpha(value_counts=counts, level_of_measurement="nominal"))


def _percentiles(draws: Floats, level: float) -> Interval:
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
