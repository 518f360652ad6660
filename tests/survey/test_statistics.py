"""Intervals, tests, strengths, plans and confidence sequences: against known values, against scipy,
and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from superres.errors import ConfigError
from superres.survey.anytime import (
    anytime_interval,
    excludes_even,
    log_capital,
    more_raters,
    rater_values,
    share_to_unsettle,
)
from superres.survey.judgements import paired_interval
from superres.survey.report import VALUES
from superres.survey.statistics import (
    Votes,
    davidson,
    fit_davidson,
    intraclass_correlation,
    krippendorff_alpha,
    plan_votes,
    two_way,
    wilson,
)


def votes(values, raters, images):
    return Votes(np.array(values, float), np.array(raters), np.array(images))


def crossed(rng, raters, images, rater_sd, image_sd):
    """Every rater votes on every image."""
    logits = (rater_sd * rng.standard_normal((raters, 1))
              + image_sd * rng.standard_normal((1, images)))
    values = rng.random((raters, images)) < 1 / (1 + np.exp(-logits))
    rows, columns = np.indices((raters, images))
    return votes(values.ravel(), rows.ravel(), columns.ravel())


def width(interval):
    return interval[1] - interval[0]


def test_two_way_variance_is_that_of_cameron_gelbach_and_miller_by_hand():
    """Two raters, two images; residuals 0.25, 0.25, 0.25 and -0.75."""
    found = two_way(votes([1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 1]))
    by_rater = by_image = 2 * (0.5**2 + 0.5**2) / 16  # G / (G - 1) = 2
    by_cell = 4 / 3 * (3 * 0.25**2 + 0.75**2) / 16
    expected = max(by_rater + by_image - by_cell, by_rater, by_image)
    assert found["standard_error"] == pytest.approx(math.sqrt(expected))
    # one degree of freedom says nearly nothing
    assert (found["degrees_of_freedom"], found["interval"]) == (1, (0, 1))


def test_two_way_needs_two_raters_and_two_images_and_has_an_interval_for_votes_that_are_all_alike():
    assert two_way(votes([1, 0, 1], [0] * 3, range(3))) is None
    assert two_way(votes([1, 0, 1], range(3), [0] * 3)) is None
    found = two_way(votes(np.ones(40), np.repeat(np.arange(4), 10), np.tile(np.arange(10), 4)))
    assert found["interval"] == pytest.approx(wilson(4, 4))
    assert found["interval"][0] < 0.7
    assert found["p_value"] is None


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=30))
def test_swapping_the_methods_mirrors_the_interval(values):
    raters, images = np.arange(len(values)) % 3, np.arange(len(values)) // 3
    one, other = (two_way(votes(own, raters, images))
                  for own in (values, [1 - value for value in values]))
    assert one["interval"] == pytest.approx((1 - other["interval"][1], 1 - other["interval"][0]))
    assert 0 <= one["interval"][0] <= one["interval"][1] <= 1


def test_intraclass_correlation_finds_what_clusters_share(rng):
    clusters = np.repeat(np.arange(400), 10)
    shared = rng.random(400)[clusters]
    values = (rng.random(4000) < shared).astype(float)
    # var(p) / (1 / 4) = 1 / 3
    assert intraclass_correlation(values, clusters) == pytest.approx(1 / 3, abs=0.05)
    assert intraclass_correlation(rng.integers(0, 2, 4000).astype(float),
                                  clusters) == pytest.approx(0, abs=0.02)
    assert intraclass_correlation(np.ones(10), np.arange(10)) is None
    assert intraclass_correlation(np.ones(10), np.zeros(10, int)) is None


def test_alpha_is_that_of_krippendorffs_own_example():
    """Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section C: nominal, four
    observers, 0.743."""
    data = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    entries = [(unit, int(value)) for row in data for unit, value in enumerate(row) if value != "."]
    units, choices = (np.array(column) for column in zip(*entries, strict=True))
    assert krippendorff_alpha(units, choices) == pytest.approx(0.743, abs=0.001)
    assert krippendorff_alpha(np.array([0, 1]), np.array([0, 1])) is None
    assert krippendorff_alpha(np.array([0, 0]), np.array([1, 1])) is None


def test_davidson_of_two_methods_is_the_closed_form():
    """With votes a, b and t ties, the odds are a / b and the tie parameter is t / sqrt(ab)
    (Davidson 1970)."""
    strengths, tie = fit_davidson(np.array([[[60.0, 20.0, 30.0]]]), np.array([[0, 1]]), 2, 1e-9)
    assert strengths[0, 0] - strengths[0, 1] == pytest.approx(math.log(2))
    assert math.exp(tie[0]) == pytest.approx(20 / math.sqrt(60 * 30))


@pytest.mark.parametrize("tie", [0.6, 0])
def test_davidson_gives_back_strengths_and_ties(rng, tie):
    truth = np.array([-0.8, 0.1, 0.7])
    a, b = np.array([[0, 1], [1, 2], [2, 0]])[rng.integers(0, 3, 12_000)].T
    weights = np.exp(np.stack([truth[a], (truth[a] + truth[b]) / 2, truth[b]])) * [[1], [tie], [1]]
    chances = np.cumsum(weights / weights.sum(axis=0), axis=0)
    values = 0.5 * (rng.random(12_000) > chances[:2]).sum(axis=0)
    names = np.array(["low", "mid", "top"])
    found, ties = davidson([f"r{i % 40}" for i in range(12_000)], names[a], names[b], 1 - values,
                           rng)
    assert [strength["method"] for strength in found] == ["top", "mid", "low"]
    for strength, value in zip(found, truth[::-1], strict=True):
        low, high = strength["interval"]
        assert strength["log_strength"] == pytest.approx(value, abs=0.1)
        assert low < strength["log_strength"] < high
    assert ties == (pytest.approx(tie, abs=0.05) if tie else None)


def test_strengths_need_three_methods_on_one_scale_and_are_finite(rng):
    for known in ((["r"], ["a"], ["b"], [1.0]), (["r", "r"], ["a", "c"], ["b", "d"], [1.0, 0.0]),
                  ([], [], [], [])):
        assert davidson(*known, rng) == ([], None)
    # a always wins
    found, _ = davidson(["r", "s"] * 3, ["a", "a", "b"] * 2, ["b", "c", "c"] * 2, [1.0] * 6, rng)
    assert [strength["method"] for strength in found] == ["a", "b", "c"]
    assert all(math.isfinite(strength["log_strength"]) for strength in found)


def test_a_plan_without_clusters_is_the_textbooks():
    plan = plan_votes(0.02, 10_000, 50, rater_correlation=0, image_correlation=0)
    assert plan["votes"] == plan["independent_votes"] == 1691  # 1.645**2 / 4 / 0.02**2
    assert plan["raters"] == 34
    assert plan["design_effect"] == pytest.approx(1, abs=0.01)


def test_a_plan_reaches_its_precision_in_simulated_studies(rng):
    """Correlations of a study's own votes, planned for 5 points: the interval of a new study is
    about 5 points."""
    pilot = crossed(rng, 60, 200, 0.4, 0.8)
    correlations = [intraclass_correlation(pilot.values, clusters)
                    for clusters in (pilot.raters, pilot.images)]
    plan = plan_votes(0.05, 200, 200, rater_correlation=correlations[0],
                      image_correlation=correlations[1])
    halves = [width(two_way(crossed(rng, plan["raters"], 200, 0.4, 0.8))["interval"]) / 2
              for _ in range(20)]
    assert np.mean(halves) == pytest.approx(0.05, rel=0.25)


def test_a_plan_says_when_images_are_too_few():
    with pytest.raises(ConfigError, match=r"no number of votes on 100 images gives .* use at least "
                       r"254 images"):
        plan_votes(0.02, 100, 50)
    assert plan_votes(0.02, 255, 50)["votes"] > 100_000
    for arguments in ((0, 100, 50), (0.02, 100, 50, 1.0), (0.02, 100, 50, 0.5, 1.0)):
        with pytest.raises(ConfigError, match="must be"):
            plan_votes(*arguments)


def test_the_two_way_interval_covers_the_known_preference_and_wilsons_is_too_narrow(rng):
    """Ninety in a hundred, of studies with an even preference over all raters and images."""
    covered = {"two-way": 0, "wilson": 0}
    for _ in range(100):
        found = crossed(rng, 12, 20, 0.4, 1.0)
        for name, (low, high) in (("two-way", two_way(found)["interval"]),
                                  ("wilson", wilson(found.values.sum(), len(found.values)))):
            covered[name] += low <= 0.5 <= high
    assert covered["two-way"] >= 85 > 75 > covered["wilson"]


def test_an_interval_of_paired_differences_covers_as_often_as_it_says():
    rng, covered = np.random.default_rng(0), []
    for _ in range(1000):  # two raters agree on most of 50 pictures; true shares 0.08 and 0.05
        torn = rng.random((2, 50)) < np.array([[0.08], [0.05]])
        seen = np.where(rng.random((2, 2, 50)) < 0.02, ~torn, torn).mean(axis=0)
        truth = 0.96 * 0.08 + 0.02 - (0.96 * 0.05 + 0.02)
        low, high = paired_interval(list(seen[0] - seen[1]))
        covered.append(low <= truth <= high)
    assert 0.93 <= np.mean(covered) <= 0.995
    low, high = paired_interval([0.0] * 20)
    assert low == -high < -0.05


EXAMPLE = np.array([0.6, 0.7, 0.4, 0.8, 0.9, 0.65, 0.55, 0.7, 0.75, 0.6])


def capital(values, mean, share, level=0.9):
    """The hedged capital as the source writes it: a product over values, one at a time."""
    above = below = 1.0
    total, squares, variance = 0.5, 0.25, 0.25
    for count, value in enumerate(values, 1):
        bet = math.sqrt(2 * math.log(2 / (1 - level)) / (variance * count * math.log(1 + count)))
        above *= 1 + min(bet, share / mean) * (value - mean)
        below *= 1 - min(bet, share / (1 - mean)) * (value - mean)
        total += value
        squares += (value - total / (count + 1)) ** 2
        variance = squares / (count + 1)
        yield max(above, below) / 2


def test_the_interval_has_the_means_that_did_not_multiply_the_sources_capital_by_ten():
    for mean in (0.1, 0.5, 0.63, 0.97):
        assert (np.exp(log_capital(EXAMPLE, np.array([mean]))[0])
                == pytest.approx(list(capital(EXAMPLE, mean, 0.75))))
    values = np.tile(EXAMPLE, 3)
    low, high = anytime_interval(values)
    inside = [mean for mean in np.arange(0.001, 1, 0.001)
              if list(capital(values, mean, 0.75))[-1] < 10]
    assert (low, high) == pytest.approx((inside[0] - 0.001, inside[-1] + 0.001))
    assert anytime_interval(1 - values) == pytest.approx((1 - high, 1 - low))
    wide = anytime_interval(values, 0.99)
    assert wide[0] < low < high < wide[1]


def test_a_forecast_settles_the_preference_and_ends_at_a_thousand(rng):
    values = np.tile([0.6, 0.5], 10)
    forecast = more_raters(values, rng)
    assert not excludes_even(values)[-1]
    assert excludes_even(np.tile([0.6, 0.5], 10 + forecast))[-1]
    assert more_raters(np.tile([0.4, 0.6], 10), rng) is None


def test_a_settled_result_is_undone_by_turning_that_share_of_votes_and_no_smaller_one(rng):
    values = rng.binomial(20, 0.65, 60) / 20
    share = share_to_unsettle(values)
    assert not excludes_even(values * (1 - share))[-1]
    assert excludes_even(values * (1 - share + 0.001))[-1]
    assert share_to_unsettle(1 - values) == pytest.approx(share)


def vote(rater, position, minute, chosen="a", comparison="c"):
    return {"rater": rater, "position": position, "comparison": comparison, "chosen": chosen,
            "voted": f"2026-01-01T{minute // 60:02}:{minute % 60:02}:00.000Z"}


def test_a_rater_counts_once_when_finished_or_gone_for_an_hour():
    records = [vote("slow", 1, 0), vote("fast", 1, 1), vote("fast", 2, 2, "b"),
               vote("open", 1, 3, "b")]
    assert rater_values(records, 2, VALUES)["c"].tolist() == [0.5]  # two are still voting
    records += [vote("slow", 2, 4)]
    assert rater_values(records, 2, VALUES)["c"].tolist() == [0.5, 1]
    # "open" has left; by the times of votes, so that a report stays the same
    records += [vote("late", 1, 70, "")]
    assert rater_values(records, 2, VALUES)["c"].tolist() == [0.5, 1, 0]
    before = rater_values(records, 2, VALUES)["c"].tolist()
    records += [vote("open", 2, 75)]  # too late: a value that was counted does not change
    assert rater_values(records, 2, VALUES)["c"].tolist() == before


def test_the_values_of_a_growing_study_only_ever_get_longer(rng):
    minutes, seen = np.cumsum(rng.integers(1, 20, 120)), []
    records = [vote(f"r{rng.integers(8)}", number, int(minute), rng.choice(["a", "b"]))
               for number, minute in enumerate(minutes)]
    for count in range(1, len(records) + 1):
        values = rater_values(records[:count], 5, VALUES).get("c", np.zeros(0)).tolist()
        assert values[:len(seen)] == seen
        seen = values
    assert len(seen) > 3


def test_whoever_looks_after_each_rater_claims_less_falsely_by_a_confidence_sequence(rng):
    """Raters whose preference is even; one in ten studies may be called settled, ever."""
    values = rng.binomial(20, np.clip(0.5 + 0.1 * rng.standard_normal((100, 120)), 0, 1)) / 20
    counts = np.arange(1, 121)
    means = values.cumsum(axis=1) / counts
    spread = np.sqrt((values**2).cumsum(axis=1) / counts - means**2)
    half = stats.t.ppf(0.95, counts - 1) * spread / np.sqrt(np.maximum(counts - 1, 1))
    by_t = (np.abs(means - 0.5) > half)[:, 4:].any(axis=1)  # the first look is at five raters
    anytime = [excludes_even(own).any() for own in values]
    assert sum(anytime) <= 10 < 30 < sum(by_t)
