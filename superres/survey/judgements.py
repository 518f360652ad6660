"""Statistics of judged pictures: how many pictures of each method are torn, unequal and good.

A study of single pictures asks few raters, often two, about many pictures. So the intervals are
about other pictures judged by the same raters. A picture's value for an answer is the share of its
raters who gave it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from superres.survey.records import Record, grouped
from superres.survey.statistics import Interval, wilson
from superres.survey.study import JUDGEMENTS

LEVEL = 0.95
"""Confidence level of reports on judged pictures."""

Values = dict[str, float]
"""Share of a picture's raters who gave an answer, by image."""


def values_of(records: Sequence[Record], answer: str) -> Values:
    """Return the value of each image's picture for an answer, given the votes on the pictures of
    one method."""
    return {image: fmean(record["chosen"] == answer for record in own)
            for image, own in grouped(records, "image").items()}


def answer_shares(records: Sequence[Record], level: float = LEVEL) -> dict[str, dict[str, Any]]:
    """Return the "share" of each answer, averaged over the pictures of one method, and its
    "interval".

    The interval is Wilson's for the number of pictures, however many raters judged each. That is
    too wide where raters disagree, and never too narrow.
    """
    found = {}
    for answer in JUDGEMENTS:
        values = values_of(records, answer)
        total = sum(values.values())
        found[answer] = {"share": total / len(values),
                         "interval": wilson(total, len(values), level)}
    return found


def by_rater(records: Sequence[Record], level: float = LEVEL) -> list[dict[str, Any]]:
    """Return each rater's "shares" of the answers, as `answer_shares`, and the "pictures" that the
    rater judged."""
    return [{"rater": rater, "pictures": len(own), "shares": answer_shares(own, level)}
            for rater, own in sorted(grouped(records, "rater").items())]


def paired_interval(differences: Sequence[float], level: float = LEVEL) -> Interval:
    """Return the interval of a mean of paired differences of shares, each in [-1, 1].

    It is Wald's after two more pairs, one of which differs by +1 or -1 (Agresti and Min 2005,
    Statistics in Medicine 24:729-740). So it has a width if all differences are 0.
    """
    from scipy import stats

    count = len(differences) + 2
    mean = math.fsum(differences) / count
    variance = (math.fsum(value * value for value in differences) + 1) / count - mean**2
    half = float(stats.norm.ppf((1 + level) / 2)) * math.sqrt(variance / count)
    return max(-1.0, mean - half), min(1.0, mean + half)


def method_differences(records: Sequence[Record], methods: Sequence[str],
                       level: float = LEVEL) -> list[dict[str, Any]]:
    """Return how the shares of each two methods differ on the images of which both have judged
    pictures.

    A result has "method_a", "method_b", the number of "images", and in "answers" the mean
    "difference" a - b and its "interval", by answer.
    """
    own, found = grouped(records, "method_a"), []
    for a, b in itertools.combinations([method for method in methods if method in own], 2):
        images = sorted(set.intersection(*({record["image"] for record in own[one]}
                                           for one in (a, b))))
        if not images:
            continue
        answers = {}
        for answer in JUDGEMENTS:
            first, second = values_of(own[a], answer), values_of(own[b], answer)
            changes = [first[image] - second[image] for image in images]
            answers[answer] = {"difference": fmean(changes),
                               "interval": paired_interval(changes, level)}
        found.append({"method_a": a, "method_b": b, "images": len(images), "answers": answers})
    return found


def same_answers(records: Sequence[Record]) -> float | None:
    """Return the share of equal answers among all two votes on one picture; None if no picture has
    two votes."""
    equal = [one["chosen"] == other["chosen"] for own in grouped(records, "pair").values()
             for one, other in itertools.combinations(own, 2)]
    return fmean(equal) if equal else None
