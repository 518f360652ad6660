"""The report of a study: preferences of the raters, their confidence intervals, and rater quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from superres.survey.exclusions import Exclusion, excluded_raters, quality, read_exclusions
from superres.survey.records import Record, main_votes, read_votes, repeated_votes
from superres.survey.statistics import (
    LEVEL,
    Votes,
    binomial_p,
    cluster_bootstrap,
    intraclass_correlation,
    krippendorff_alpha,
    pigeonhole_bootstrap,
    two_way,
    votes_bootstrap,
    wilson,
)
from superres.survey.store import Store
from superres.survey.strength import bradley_terry
from superres.survey.study import GOLD, Comparison, Study

Report = dict[str, Any]

VALUES = {"a": 1.0, "": 0.5, "b": 0.0}
"""A vote's value by the picture chosen, "can't tell" being half a vote for each."""


def study_report(store: Store, study: Study, level: float = LEVEL) -> Report:
    """Return the report of a study in a store, ready for JSON.

    Raises:
        StoreError: the store cannot be read.
    """
    return make_report(study, read_votes(store, study), read_exclusions(store, study), level)


def make_report(
    study: Study, records: Sequence[Record], exclusions: Sequence[Exclusion], level: float = LEVEL,
) -> Report:
    """Return the report of votes, ready for JSON; the same votes give the same report.

    Args:
        study: what was asked.
        records: rows of `superres.survey.records.read_votes`.
        exclusions: rules to apply; the result without them stands beside.
        level: confidence level of all intervals.
    """
    out = excluded_raters(records, exclusions)
    kept = [record for record in records if record["rater"] not in out]
    report: Report = {
        **study.record(), "level": level,
        "exclusions": [{**asdict(exclusion), "raters": [r for r, number in out.items() if number == exclusion.number]}
                       for exclusion in exclusions],
        "result": _analysis(study, kept, level),
        "without_exclusions": _analysis(study, records, level) if out else None,
        "raters": [{"rater": rater, **measures, "excluded_by": out.get(rater)}
                   for rater, measures in quality(records).items()],
    }
    return report


def _analysis(study: Study, records: Sequence[Record], level: float) -> Report:
    main = main_votes(list(records))
    gold = [record["chosen"] == "a" for record in records if record["kind"] == GOLD]
    repeats = [first["chosen"] == again["chosen"] for first, again in repeated_votes(list(records))]
    return {
        "votes": len(main),
        "raters": len({record["rater"] for record in main}),
        "images": len({record["image"] for record in main}),
        "comparisons": [_comparison(c, [r for r in main if r["comparison"] == c.name], study.settings.seed, level)
                        for c in study.comparisons],
        "sides": _sides(main, level),
        "repeats": _share(repeats, level),
        "gold": _share(gold, level),
        "agreement": _agreement(main),
        "response_ms": _quantiles([record["response_ms"] for record in main]),
        "strengths": _strengths(main, study.settings.seed, level),
    }


def _comparison(comparison: Comparison, records: list[Record], seed: int, level: float) -> Report:
    counts = {chosen: sum(record["chosen"] == chosen for record in records) for chosen in VALUES}
    report: Report = {
        **asdict(comparison), "fool_rate": comparison.is_fool_rate, "votes": len(records),
        "votes_a": counts["a"], "votes_b": counts["b"], "unsure": counts[""],
        "raters": len({record["rater"] for record in records}),
        "images": len({record["image"] for record in records}),
    }
    if records:
        votes = Votes.of([VALUES[record["chosen"]] for record in records], [record["rater"] for record in records],
                         [record["image"] for record in records])
        report.update(_preference(votes, counts, seed, level), agreement=_agreement(records),
                      response_ms=_quantiles([record["response_ms"] for record in records]))
    return report


def _preference(votes: Votes, counts: dict[str, int], seed: int, level: float) -> Report:
    rng = np.random.default_rng((seed, 2))
    both = two_way(votes, level)
    decided = counts["a"] + counts["b"]
    return {
        "preference": votes.preference,
        "preference_decided": counts["a"] / decided if decided else None,
        "intervals": {
            "two_way": both and both.interval,
            "votes": votes_bootstrap(votes, rng, level),
            "rater": cluster_bootstrap(votes, votes.raters, rng, level) if votes.rater_count > 1 else None,
            "image": cluster_bootstrap(votes, votes.images, rng, level) if votes.image_count > 1 else None,
            "pigeonhole": pigeonhole_bootstrap(votes, rng, level) if both else None,
            "wilson": wilson(counts["a"], decided, level) if decided else None,
        },
        "standard_error": both and both.standard_error,
        "degrees_of_freedom": both and both.degrees_of_freedom,
        "p_two_way": both and both.p_value,
        "p_binomial": binomial_p(counts["a"], decided) if decided else None,
        "design_effect": both and both.design_effect,
        "rater_correlation": intraclass_correlation(votes.values, votes.raters),
        "image_correlation": intraclass_correlation(votes.values, votes.images),
    }


def _sides(records: list[Record], level: float) -> Report | None:
    """Return how often the left picture was chosen, and the binomial test against one half."""
    left = [record["choice"] == "left" for record in records if record["choice"] != "unsure"]
    share = _share(left, level)
    return share and {**share, "p_binomial": binomial_p(sum(left), len(left))}


def _share(hits: Sequence[bool], level: float) -> Report | None:
    if not hits:
        return None
    return {"count": len(hits), "share": sum(hits) / len(hits), "interval": wilson(sum(hits), len(hits), level)}


def _agreement(records: list[Record]) -> float | None:
    """Return Krippendorff's alpha of the choices of picture a, b or neither, over pairs."""
    if not records:
        return None
    raters, units, choices = (np.unique([str(record[key]) for record in records], return_inverse=True)[1]
                              for key in ("rater", "pair", "chosen"))
    return krippendorff_alpha(raters, units, choices)


def _quantiles(values: list[float]) -> Report | None:
    if not values:
        return None
    low, median, high = np.quantile(values, [0.1, 0.5, 0.9])
    return {"p10": float(low), "median": float(median), "p90": float(high)}


def _strengths(records: list[Record], seed: int, level: float) -> list[Report]:
    found = bradley_terry(
        [record["rater"] for record in records], [record["method_a"] for record in records],
        [record["method_b"] for record in records], [VALUES[record["chosen"]] for record in records],
        np.random.default_rng((seed, 3)), level)
    return [asdict(strength) for strength in found]
