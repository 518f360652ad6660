"""Compute the report of a study: the raters' preferences with confidence intervals, and rater
quality."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean

import numpy as np

from superres.config import require
from superres.survey import anytime, judgements, statistics
from superres.survey.exclusions import excluded_raters, quality, read_exclusions
from superres.survey.presentation import Report, findings
from superres.survey.records import (
    Record,
    gold_answers,
    grouped,
    left_choices,
    read_votes,
    repeated_answers,
)
from superres.survey.statistics import LEVEL, Floats, Votes
from superres.survey.store import Store
from superres.survey.study import CAMERA, MAIN, Comparison, Study
from superres.survey.withdrawal import withdrawals

VALUES = {"a": 1.0, "": 0.5, "b": 0.0}
"""Value of a vote by its chosen picture; "can't tell" counts as half a vote for each picture."""


def study_report(store: Store, study: Study, level: float | None = None) -> Report:
    """Return the deterministic report of a study's votes, serialisable as JSON.

    If rules exclude raters, the report also has the result without exclusions. `level` is the
    confidence level of all intervals, by default that of the paper for pairs and
    `superres.survey.judgements.LEVEL` for single pictures.
    """
    level = level or (judgements.LEVEL if study.settings.judge else LEVEL)
    records, exclusions = read_votes(store, study), read_exclusions(store, study)
    excluded = excluded_raters(records, exclusions)
    report = {
        **study.record(), "level": level,
        "exclusions": [{**asdict(rule),
                        "raters": [r for r, number in excluded.items() if number == rule.number]}
                       for rule in exclusions],
        "result": _analysis(study,
                            [record for record in records if record["rater"] not in excluded],
                            level),
        "without_exclusions": _analysis(study, records, level) if excluded else None,
        "raters": [{"rater": rater, **measures, "excluded_by": excluded.get(rater)}
                   for rater, measures in quality(records).items()],
        "withdrawals": [asdict(withdrawal) for withdrawal in withdrawals(store, study)],
    }
    return {"findings": findings(report, store.location), **report}


def pilot_correlations(store: Store, study: Study) -> tuple[float, float]:
    """Return the correlations of a rater's votes and of the votes on an image, averaged over a
    study's comparisons.

    Raise ConfigError if the study has too few votes for an estimate.
    """
    comparisons = study_report(store, study)["result"]["comparisons"]
    by_rater, by_image = ([c[f"{unit}_correlation"] for c in comparisons
                           if c.get(f"{unit}_correlation") is not None]
                          for unit in ("rater", "image"))
    require(bool(by_rater and by_image), f"the study {study.name!r} has too few votes to estimate "
            "their correlations; give --rater-correlation and --image-correlation")
    # An estimate can be negative by chance.
    return min(max(fmean(by_rater), 0.0), 0.99), min(max(fmean(by_image), 0.0), 0.99)


def _analysis(study: Study, records: Sequence[Record], level: float) -> Report:
    main, seed = [record for record in records if record["kind"] == MAIN], study.settings.seed
    common = {**_size(main), "repeats": _share(repeated_answers(records), level),
              "gold": _share(gold_answers(records), level), **_answers(main)}
    if study.settings.judge:
        return {**common, **_judgements(study, main, level)}
    # What holds for all comparisons together.
    left = left_choices(main)
    sides = _share(left, level)
    raters, methods_a, methods_b = ([record[key] for record in main]
                                    for key in ("rater", "method_a", "method_b"))
    reason = statistics.withheld(len(set(raters)))
    strengths, ties = (None, None) if reason else statistics.davidson(
        raters, methods_a, methods_b, [VALUES[record["chosen"]] for record in main],
        np.random.default_rng((seed, 3)), level)
    if sides:
        sides["p_binomial"] = None if reason else _binomial_p(sum(left), len(left))
    # What holds for each.
    finished = anytime.rater_values(main, study.settings.trials, VALUES)
    own = grouped(main, "comparison")
    return {
        **common, "withheld": reason,
        "comparisons": [_comparison(c, own.get(c.name, []), finished.get(c.name), seed, level)
                        for c in study.comparisons],
        "sides": sides, "strengths": strengths, "tie_parameter": ties}


def _judgements(study: Study, main: list[Record], level: float) -> Report:
    """Return the report of a study of single pictures: each method's, and differences between
    methods."""
    methods = [comparison.method_a for comparison in study.comparisons]
    by_method, found = grouped(main, "method_a"), []
    for method in methods:
        own = by_method.get(method, [])
        shares = {"answers": judgements.answer_shares(own, level),
                  "raters_alone": judgements.by_rater(own, level),
                  "same_answers": judgements.same_answers(own)} if own else {}
        found.append({"method": method, **_size(own), **_answers(own), **shares})
    return {"comparisons": [], "methods": found,
            "differences": judgements.method_differences(main, methods, level),
            "same_answers": judgements.same_answers(main)}


def _comparison(
    comparison: Comparison, records: list[Record], finished: Floats | None, seed: int, level: float,
) -> Report:
    """Return the report of a comparison; `finished` has one value per finished rater."""
    a, unsure, b = (sum(record["chosen"] == chosen for record in records) for chosen in VALUES)
    report: Report = {
        **asdict(comparison), "fool_rate": comparison.method_b == CAMERA, **_size(records),
        "votes_a": a, "votes_b": b, "unsure": unsure,
    }
    if not records:
        return report
    # Intervals and tests, with few raters some only.
    chosen, raters, images = ([record[key] for record in records]
                              for key in ("chosen", "rater", "image"))
    votes = Votes.of([VALUES[value] for value in chosen], raters, images)
    both, reason = statistics.two_way(votes, level), statistics.withheld(votes.counts[0])
    return {
        **report,
        "withheld": reason,
        "preference": votes.preference,
        "preference_decided": a / (a + b) if a + b else None,
        "intervals": {"two_way": both and both["interval"],
                      "wilson": statistics.wilson(a, a + b, level) if a + b else None},
        "tie_parameter": unsure / math.sqrt(a * b) if a and b else None,
        "standard_error": both and both["standard_error"],
        "degrees_of_freedom": both and both["degrees_of_freedom"],
        "p_two_way": None if reason or both is None else both["p_value"],
        "p_binomial": _binomial_p(a, a + b) if a + b and not reason else None,
        "design_effect": both and both["design_effect"],
        "rater_correlation": statistics.intraclass_correlation(votes.values, votes.raters),
        "image_correlation": statistics.intraclass_correlation(votes.values, votes.images),
        "anytime": None if finished is None else _anytime(finished, a, b, seed, level),
        **_answers(records),
    }


def _anytime(finished: Floats, a: int, b: int, seed: int, level: float) -> Report:
    """Return what holds however often the owner looks, given finished raters' values and the votes
    for a and b."""
    mean, settled = float(finished.mean()), bool(anytime.excludes_even(finished, level)[-1])
    rng = np.random.default_rng((seed, 4))
    return {
        "raters": len(finished), "preference": mean,
        "interval": anytime.anytime_interval(finished, level), "settled": settled,
        "more_raters": None if settled else anytime.more_raters(finished, rng, level),
        # One changed vote moves the margin by two.
        "votes_to_flip": abs(a - b) // 2 + 1 if a != b else None,
        "votes_to_unsettle": math.ceil(anytime.share_to_unsettle(finished, level) * max(a, b))
        if settled and mean != anytime.EVEN else None,
    }


def _binomial_p(successes: int, trials: int) -> float:
    """Return the two-sided p-value of the exact binomial test against one half."""
    from scipy import stats

    return float(stats.binomtest(successes, trials).pvalue)


def _size(records: list[Record]) -> Report:
    raters, images = ({record[key] for record in records} for key in ("rater", "image"))
    return {"votes": len(records), "raters": len(raters), "images": len(images)}


def _share(hits: Sequence[bool], level: float) -> Report | None:
    return {"count": len(hits), "share": sum(hits) / len(hits),
            "interval": statistics.wilson(sum(hits), len(hits), level)} if hits else None


def _answers(records: list[Record]) -> Report:
    """Return Krippendorff's alpha over pairs, for choices of picture a, b or neither, and quantiles
    of the times."""
    if not records:
        return {"agreement": None, "response_ms": None}
    pairs, choices = (np.unique([str(record[key]) for record in records], return_inverse=True)[1]
                      for key in ("pair", "chosen"))
    times = np.quantile([record["response_ms"] for record in records], [0.1, 0.5, 0.9])
    return {"agreement": statistics.krippendorff_alpha(pairs, choices),
            "response_ms": dict(zip(("p10", "median", "p90"), map(float, times), strict=True))}
