"""Plan a study: the number of votes for a required precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from scipy import stats

from superres.config import require
from superres.survey.report import study_report
from superres.survey.statistics import LEVEL
from superres.survey.store import Store
from superres.survey.study import Study

RATER_CORRELATION = 0.03
IMAGE_CORRELATION = 0.15
"""Assumed correlations of two votes by one rater, or on one image, for studies without a pilot. They follow from normal
effects with standard deviations of 0.4 (raters) and 1.0 (images) on the logit scale."""


@dataclass(frozen=True)
class Plan:
    """Number of votes for one comparison.

    Attributes:
        independent_votes: number of votes that would suffice if votes were independent.
        votes: number of votes required with random raters and images.
        raters: votes / votes per rater, rounded up.
        votes_per_image: votes / images.
        design_effect: votes / independent votes.
    """

    independent_votes: int
    votes: int
    raters: int
    votes_per_image: float
    design_effect: float


def plan_votes(
    precision: float, images: int, votes_per_rater: int, preference: float = 0.5, level: float = LEVEL,
    rater_correlation: float = RATER_CORRELATION, image_correlation: float = IMAGE_CORRELATION,
) -> Plan:
    """Return the votes for a confidence interval of the `preference` plus or minus `precision`, as shares.

    The variance of independent votes is multiplied by the design effect of two crossed clusters, after Kish, "Survey
    Sampling" (1965). It is 1 + (m - 1) r + (n / I - 1) i for m votes per rater, n votes on I images, and the
    correlations r of a rater's votes and i of the votes on an image. A preference of 0.5 requires the most votes.

    Raises:
        ConfigError: a value is out of range, or no number of votes on that many images suffices.
    """
    require(0 < precision < 0.5, f"the precision must be between 0 and 0.5 (0.02 is 2 points), not {precision}")
    require(0 < preference < 1, f"the expected preference must be between 0 and 1, not {preference}")
    require(0 < level < 1, f"the confidence level must be between 0 and 1, not {level}")
    require(images >= 1 and votes_per_rater >= 1, f"images and votes per rater must be at least 1, not {images} and "
                                                  f"{votes_per_rater}")
    for name, value in (("rater", rater_correlation), ("image", image_correlation)):
        require(0 <= value < 1, f"the {name} correlation must be in [0, 1), not {value}")
    z = float(stats.norm.ppf((1 + level) / 2))
    independent = z * z * preference * (1 - preference) / precision**2
    # n = independent * (fixed + n / images * image_correlation), solved for n.
    fixed = 1 + (votes_per_rater - 1) * rater_correlation - image_correlation
    share = independent * image_correlation / images
    needed = math.floor(independent * image_correlation) + 1
    require(share < 1, f"no number of votes on {images} images gives a precision of {precision}, since images differ; "
                       f"use at least {needed} images")
    votes = math.ceil(independent * fixed / (1 - share))
    return Plan(math.ceil(independent), votes, math.ceil(votes / votes_per_rater), votes / images,
                votes / independent)


def pilot_correlations(store: Store, study: Study) -> tuple[float, float]:
    """Return the correlations of a rater's votes and of the votes on an image, averaged over a study's comparisons.

    Raises:
        ConfigError: the study has too few votes for an estimate.
        StoreError: the store cannot be read.
    """
    comparisons = study_report(store, study)["result"]["comparisons"]

    def average(name: str) -> float:
        known = [c[name] for c in comparisons if c.get(name) is not None]
        require(bool(known), f"the study {study.name!r} has too few votes to estimate their correlations; give "
                             "--rater-correlation and --image-correlation")
        return min(max(fmean(known), 0.0), 0.99)  # an estimate can be negative by chance

    return average("rater_correlation"), average("image_correlation")
