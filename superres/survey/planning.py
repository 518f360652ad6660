"""How many votes a wanted precision takes, before a study begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import stats

from superres.config import require
from superres.survey.report import study_report
from superres.survey.statistics import LEVEL
from superres.survey.store import Store
from superres.survey.study import Study

RATER_CORRELATION = 0.03
IMAGE_CORRELATION = 0.15
"""Correlations of two votes of a rater, or on an image, where no pilot says better: those of normal effects with
standard deviations of 0.4 (raters) and 1.0 (images) on the logit scale. Assumptions, not data."""


@dataclass(frozen=True)
class Plan:
    """Votes for one comparison.

    Attributes:
        independent_votes: enough if votes did not cluster.
        votes: enough with raters and images random.
        raters: votes over votes a rater, rounded up.
        votes_per_image: votes over images.
        design_effect: votes over independent votes.
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
    """Return the votes for an interval of the preference plus or minus `precision`.

    The variance of independent votes is multiplied by the design effect of two crossed clusters,
    1 + (m - 1) r + (n / I - 1) i: m votes a rater with correlation r, n votes on I images with correlation i
    (after Kish, "Survey Sampling", 1965).

    Args:
        precision: half of the interval's width, as a share (0.02 for 2 percentage points).
        images: I, in the study.
        votes_per_rater: m, of this comparison.
        preference: expected; 0.5 takes the most votes.
        level: confidence level.
        rater_correlation: r, intra-class correlation of a rater's votes.
        image_correlation: i, of the votes on an image.

    Raises:
        ConfigError: a value is out of range, or no number of votes on so few images is enough.
    """
    require(0 < precision < 0.5, f"the precision must be between 0 and 0.5 (0.02 is 2 points), not {precision}")
    require(0 < preference < 1, f"the expected preference must be between 0 and 1, not {preference}")
    require(0 < level < 1, f"the confidence level must be between 0 and 1, not {level}")
    require(images >= 1 and votes_per_rater >= 1, f"images and votes a rater must be at least 1, not {images} and "
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
                       f"take more than {needed} images")
    votes = math.ceil(independent * fixed / (1 - share))
    return Plan(math.ceil(independent), votes, math.ceil(votes / votes_per_rater), votes / images,
                votes / independent)


def pilot_correlations(store: Store, study: Study) -> tuple[float, float]:
    """Return the correlations of a rater's votes and of the votes on an image, means over a study's comparisons.

    Raises:
        ConfigError: there are too few votes to estimate them.
        StoreError: the store cannot be read.
    """
    comparisons = study_report(store, study)["result"]["comparisons"]
    found = []
    for name in ("rater_correlation", "image_correlation"):
        known = [c[name] for c in comparisons if c.get(name) is not None]
        require(bool(known), f"the study {study.name!r} has too few votes to tell how they correlate; give "
                             "--rater-correlation and --image-correlation")
        found.append(min(max(sum(known) / len(known), 0.0), 0.99))  # estimates may fall below zero by chance
    return found[0], found[1]
