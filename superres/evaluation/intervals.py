"""95 % confidence intervals of means, of ratios of sums and of differences, over independent
pictures or sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from superres.decoding.trace import RowTrace, mean_accepted_block_size
from superres.evaluation.perceptual import Scores

Entries = dict[str, float | None]
"""Scores by name; None for a score without a finite value, and for the interval of one that has
none."""


def half_width(scores: Scores) -> float | None:
    """Return half the width of Student's 95 % confidence interval of the mean of `scores`, float64
    [N].

    None for a single score, or if one is not finite.
    """
    from scipy import stats  # slow to import

    if len(scores) < 2 or not np.isfinite(scores).all():
        return None
    return float(stats.t.ppf(0.975, len(scores) - 1) * stats.sem(scores))


@dataclass(frozen=True)
class Estimate:
    """A score of N pictures: a mean, a ratio of sums, or the difference of two such scores of the
    same pictures.

    Attributes:
        value: the score; infinite or NaN if the pictures have none.
        terms: float64 [N]. To first order and but for a constant, the score is their mean, so both
            have the same interval (Cochran 1977, "Sampling Techniques", section 6.4).
    """

    value: float
    terms: Scores

    @classmethod
    def mean(cls, scores: Scores) -> Estimate:
        """Return the mean of `scores`, float64 [N]."""
        return cls(float(scores.mean()), scores)

    @classmethod
    def ratio(cls, totals: Scores, counts: Scores) -> Estimate:
        """Return the ratio of the sums of `totals` and `counts`, float64 [N] each."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = totals.mean() / counts.mean()
            return cls(float(value), (totals - value * counts) / counts.mean())

    def decibels(self) -> Estimate:
        """Return a ratio of powers in dB."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return Estimate(float(10 * np.log10(self.value)), 10 / math.log(10) * self.terms
                            / np.float64(self.value))

    def minus(self, other: Estimate) -> Estimate:
        """Return the difference from the score of the same pictures by another method.

        Its interval is narrower than the scores' if pictures that are difficult for one method are
        so for the other.
        """
        with np.errstate(invalid="ignore"):  # both may be infinite
            return Estimate(self.value - other.value, self.terms - other.terms)

    def by_input(self, count: int) -> Estimate:
        """Return the score with an interval over inputs, of which `count` successive pictures have
        the same one."""
        return Estimate(self.value, self.terms.reshape(-1, count).mean(axis=1))

    def entries(self, name: str) -> Entries:
        """Return the value under `name`, and half the width of its interval under
        <name>_half_width."""
        finite = math.isfinite(self.value)
        return {name: self.value if finite else None,
                f"{name}_half_width": half_width(self.terms) if finite else None}


def with_interval(name: str, scores: Scores) -> Entries:
    """Return the entries of the mean of `scores`, float64 [N]."""
    return Estimate.mean(scores).entries(name)


def accepted_block_size(traces: Sequence[RowTrace]) -> Entries:
    """Return the entries of "mean_accepted_block_size" of decoded sequences, at least one: tokens
    over iterations."""
    tokens, iterations = (np.array([getattr(trace, name) for trace in traces], np.float64)
                          for name in ("tokens", "iterations"))
    ratio = Estimate.ratio(tokens, np.maximum(iterations, 1e-9))
    return Estimate(mean_accepted_block_size(list(traces)),
                    ratio.terms).entries("mean_accepted_block_size")
