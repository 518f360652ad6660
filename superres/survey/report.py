"""Compute the report of a study: the raters' preferences with confidence intervals, and rater quality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from superres.survey.anytime import (
    EVEN,
    anytime_interval,
    more_raters,
    rater_values,
    settled,
    share_to_unsettle,
)
from superres.survey.commands import DEFAULT_STORE
from superres.survey.exclusions import Exclusion, excluded_raters, quality, read_exclusions
from superres.survey.findings import findings
from superres.survey.records import Record, read_votes, repeated_votes
from superres.survey.statistics import (
    LEVEL,
    Floats,
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
from superres.survey.strength import davidson
from superres.survey.study import GOLD, MAIN, Comparison, Study

Report = dict[str, Any]

VALUES = {"a": 1.0, "": 0.5, "b": 0.0}
"""Value of a vote by its chosen picture; "can't tell" counts as half a vote for each picture."""

NO_VALUES = np.zeros(0)


def study_report(store: Store, study: Study, level: float = LEVEL) -> Report:
    """Return the report of a study in a store, serialisable as JSON.

    Raises:
        StoreError: the store cannot be read.
    """
    return make_report(study, read_votes(store, study), read_exclusions(store, study), level, store.location)


def make_report(
    study: Study, records: Sequence[Record], exclusions: Sequence[Exclusion], level: float = LEVEL,
    store: str = DEFAULT_STORE,
) -> Report:
    """Return the deterministic report of votes, serialisable as JSON.

    Args:
        study: the study.
        records: rows of `superres.survey.records.read_votes`.
        exclusions: rules to apply; if they exclude raters, the report also has the result without exclusions.
        level: confidence level of all intervals.
        store: location of the study's store, for the command lines in warnings.
    """
    excluded = excluded_raters(records, exclusions)
    included = [record for record in records if record["rater"] not in excluded]
    report = {
        **study.record(), "level": level,
        "exclusions": [{**asdict(rule), "raters": [r for r, number in excluded.items() if number == rule.number]}
                       for rule in exclusions],
        "result": _analysis(study, included, level),
        "without_exclusions": _analysis(study, records, level) if excluded else None,
        "raters": [{"rater": rater, **measures, "excluded_by": excluded.get(rater)}
                   for rater, measures in quality(records).items()],
    }
    return {"findings": findings(report, store), **report}


def _analysis(study: Study, records: Sequence[Record], level: float) -> Report:
    main = [record for record in records if record["kind"] == MAIN]
    gold = [record["chosen"] == "a" for record in records if record["kind"] == GOLD]
    repeats = [first["chosen"] == again["chosen"] for first, again in repeated_votes(records)]
    finished = rater_values(main, study.settings.trials, VALUES)
    return {
        "votes": len(main),
        "raters": len({record["rater"] for record in main}),
        "images": len({record["image"] for record in main}),
        "comparisons": [_comparison(c, [r for r in main if r["comparison"] == c.name], finished.get(c.name, NO_VALUES),
                                    study.settings.seed, level) for c in study.comparisons],
        "sides": _sides(main, level),
        "repeats": _share(repeats, level),
        "gold": _share(gold, level),
        "agreement": _agreement(main),
        "response_ms": _quantiles([record["response_ms"] for record in main]),
        **_strengths(main, study.settings.seed, level),
    }


def _comparison(
    comparison: Comparison, records: list[Record], finished: Floats, seed: int, level: float,
) -> Report:
    counts = {chosen: sum(record["chosen"] == chosen for record in records) for chosen in VALUES}
    report: Report = {
        **asdict(comparison), "fool_rate": comparison.is_fool_rate, "votes": len(records),
        "votes_a": counts["a"], "votes_b": counts["b"], "unsure": counts[""],
        "raters": len({record["rater"] for record in records}),
        "images": len({record["image"] for record in records}),
    }
    if records:
        raters, images = ([record[key] for record in records] for key in ("rater", "image"))
        votes = Votes.of([VALUES[record["chosen"]] for record in records], raters, images)
        report.update(_preference(votes, counts, seed, level), anytime=_anytime(finished, counts, seed, level),
                      agreement=_agreement(records),
                      response_ms=_quantiles([record["response_ms"] for record in records]))
    return report


def _anytime(finished: Floats, counts: dict[str, int], seed: int, level: float) -> Report | None:
    """Return what holds however often the owner looks: one value per finished rater, in `finished`."""
    if not len(finished):
        return None
    mean = float(finished.mean())
    done = settled(finished, level)
    margin, leading = abs(counts["a"] - counts["b"]), max(counts["a"], counts["b"])
    return {
        "raters": len(finished), "preference": mean, "interval": anytime_interval(finished, level), "settled": done,
        "more_raters": None if done else more_raters(finished, np.random.default_rng((seed, 4)), level),
        # One changed vote moves the margin by two.
        "votes_to_flip": margin // 2 + 1 if margin else None,
        "votes_to_unsettle": math.ceil(share_to_unsettle(finished, level) * leading) if done and mean != EVEN else None,
    }


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
        "tie_parameter": counts[""] / math.sqrt(counts["a"] * counts["b"]) if counts["a"] and counts["b"] else None,
        "standard_error": both and both.standard_error,
        "degrees_of_freedom": both and both.degrees_of_freedom,
        "p_two_way": both and both.p_value,
        "p_binomial": binomial_p(counts["a"], decided) if decided else None,
        "design_effect": both and both.design_effect,
        "rater_correlation": intraclass_correlation(votes.values, votes.raters),
        "image_correlation": intraclass_correlation(votes.values, votes.images),
    }


def _sides(records: list[Record], level: float) -> Report | None:
    """Return the share of votes for the left side, and the p-value of the binomial test against one half."""
    left = [record["choice"] == "left" for record in records if record["choice"] != "unsure"]
    share = _share(left, level)
    return share and {**share, "p_binomial": binomial_p(sum(left), len(left))}


def _share(hits: Sequence[bool], level: float) -> Report | None:
    if not hits:
        return None
    return {"count": len(hits), "share": sum(hits) / len(hits), "interval": wilson(sum(hits), len(hits), level)}


def _agreement(records: list[Record]) -> float | None:
    """Return Krippendorff's alpha over pairs, for choices of picture a, picture b or neither."""
    if not records:
        return None
    pairs, choices = (np.unique([str(record[key]) for record in records], return_inverse=True)[1]
                      for key in ("pair", "chosen"))
    return krippendorff_alpha(pairs, choices)


def _quantiles(values: list[float]) -> Report | None:
    if not values:
        return None
    low, median, high = np.quantile(values, [0.1, 0.5, 0.9])
    return {"p10": float(low), "median": float(median), "p90": float(high)}


def _strengths(records: list[Record], seed: int, level: float) -> Report:
    raters, methods_a, methods_b = ([record[key] for record in records] for key in ("rater", "method_a", "method_b"))
    values = [VALUES[record["chosen"]] for record in records]
    found = davidson(raters, methods_a, methods_b, values, np.random.default_rng((seed, 3)), level)
    return {"strengths": [asdict(strength) for strength in found.methods] if found else [],
            "tie_parameter": found and found.tie_parameter}
