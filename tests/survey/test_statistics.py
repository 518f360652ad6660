"""Intervals, tests, strengths and plans: against known values, against scipy, and coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from superres.errors import ConfigError
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
    logits = rater_sd * rng.standard_normal((raters, 1)) + image_sd * rng.standard_normal((1,
                                                                                           images))
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
    assert two_way(votes([1, 0, 1], [0] * 3, range(3))) is two_way(votes([1, 0, 1], range(3),
                                                                         [0] * 3)) is None
    found = two_way(votes(np.ones(40), np.repeat(np.arange(4), 10), np.tile(np.arange(10), 4)))
    assert found["interval"] == pytest.approx(wilson(4, 4))
    assert found["interval"][0] < 0.7
    assert found["p_value"] is None


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=30))
def test_swapping_the_methods_mirrors_the_interval(values):
    raters, images = np.arange(len(values)) % 3, np.arange(len(values)) // 3
    one, other = (two_way(votes(own, raters, images)) for own in (values,
                                                                  [1 - value for value in values]))
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
    strengths, tie, _ = fit_davidson(np.array([[[60.0, 20.0, 30.0]]]), np.array([[0, 1]]), 2, 1e-9)
    assert strengths[0, 0] - strengths[0, 1] == pytest.approx(math.log(2))
    assert math.exp(tie[0]) == pytest.approx(20 / math.sqrt(60 * 30))


@pytest.mark.parametrize("tie", [0.6, 0])
def test_davidson_gives_back_strengths_and_ties(rng, tie):
    truth = np.array([-0.8, 0.1, 0.7])
    a, b = np.array([[0, 1], [1, 2], [2, 0]])[rng.integers(0, 3, 12_000)].T
    weights = np.exp(np.stack([truth[a], (truth[a] + truth[b]) / 2, truth[b]])) * [[1], [tie], [1]]
    values = 0.5 * (rng.random(12_000) > np.cumsum(weights / weights.sum(axis=0),
                                                   axis=0)[:2]).sum(axis=0)
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
    correlations = [intraclass_correlation(pilot.values, clusters) for clusters in (pilot.raters,
                                                                                    pilot.images)]
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
