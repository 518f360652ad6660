"""Confidence sequences, adaptive choice and plain sentences: against known values and by
simulation."""

from __future__ import annotations

import math
import shlex
from collections import Counter

import numpy as np
import pytest
from survey_tools import add_study, choosing, vote_through

from superres.survey.anytime import (
    anytime_interval,
    excludes_even,
    log_capital,
    more_raters,
    rater_values,
    share_to_unsettle,
)
from superres.survey.assignment import allocate
from superres.survey.presentation import findings, sentence
from superres.survey.records import read_votes
from superres.survey.report import VALUES, study_report
from superres.survey.study import Comparison

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
    inside = [mean for mean in np.arange(0.001, 1, 0.001) if list(capital(values, mean, 0.75))[-1]
              < 10]
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


THREE = [Comparison("b vs a", "b", "a"), Comparison("c vs a", "c", "a"),
         Comparison("c vs b", "c", "b")]


def test_votes_go_where_the_order_is_unclear():
    clear, close = [45.0, 0, 5], [26.0, 0, 24]
    shares = allocate(THREE, np.array([clear, clear, close]), 20, 20)
    assert sum(shares) == 20
    assert shares[:2] == [1, 1]
    assert max(allocate(THREE, np.array([clear, clear, close]), 8, 20)) == 8
    assert allocate(THREE, np.array([clear, clear, close]), 7, 21) == [7, 7, 7]
    assert sorted(allocate(THREE, np.zeros((3, 3)), 20, 20)) == [6, 7, 7]


def test_a_study_of_three_methods_asks_most_about_the_two_that_are_close(sqlite, rng):
    study, _ = add_study(sqlite, methods=("bad", "good", "camera"), count=12, trials=10, gold=0,
                         repeats=0, practice=0)
    choose = choosing(sqlite,
                      lambda _, comparison: "ab"[comparison == "bad vs camera" or rng.integers(2)])
    for number in range(12):
        vote_through(sqlite, study, f"rater{number}", choose)
    records = read_votes(sqlite, study)
    by_rater = {rater: Counter(record["comparison"] for record in records if record["rater"]
                               == rater)
                for rater in {record["rater"] for record in records}}
    assert {sum(counts.values()) for counts in by_rater.values()} == {10}
    # one value per rater and comparison
    assert all(len(counts) == 2 for counts in by_rater.values())
    total = Counter(record["comparison"] for record in records)
    assert total["good vs camera"] > 2 * total["bad vs camera"]
    pairs = Counter(record["pair"] for record in records if record["comparison"]
                    == "good vs camera")
    assert max(pairs.values()) - min(pairs.values()) <= 1  # the images stay balanced


@pytest.mark.parametrize(("count", "settings"),
                         [(4, {"adaptive": False}), (4, {"trials": 2, "repeats": 0}), (2, {})])
def test_a_balanced_study_and_one_of_too_few_trials_have_no_plan(sqlite, count, settings):
    assert not add_study(sqlite, methods="abcd"[:count], **settings)[0].is_adaptive


def known(fool_rate=False, **changes):
    return {"method_a": "A", "method_b": "B", "fool_rate": fool_rate, "votes": 100,
            "anytime": {"raters": 20, "preference": 0.57, "interval": (0.48, 0.66),
                        "settled": False, "more_raters": 12, "votes_to_flip": 8,
                        "votes_to_unsettle": None, **changes}}


@pytest.mark.parametrize(("changes", "parts"), [
    ({}, ["A is preferred to B in 57 of 100 votes, on average over 20 raters, between 48 and 66 "
          "(90%", "12 more raters would settle", "8 votes the other way"]),
    ({"preference": 0.4, "interval": (0.3, 0.49), "settled": True, "votes_to_flip": 11,
      "votes_to_unsettle": 1},
     ["B is preferred to A in 60 of 100 votes", "settled. 1 vote the other way", "and 11 would "
      "turn it round"]),
    ({"preference": 0.5, "interval": (0.4, 0.61), "more_raters": None, "votes_to_flip": None},
     ["A and B are chosen in 50 of 100 votes each", "look again after more raters"]),
    ({"preference": 0.5, "more_raters": None, "votes_to_flip": None}, ["take the two as equal"]),
    ({"raters": 1, "preference": 0.504}, ["A is preferred to B in 50.4 of 100 votes, on average "
                                          "over 1 rater,", "too early to say, with 1 finished "
                                          "rater"]),
    ({"fool_rate": True, "preference": 0.36}, ["A is taken for the photograph in 36 of 100 votes"]),
])
def test_an_answer_is_a_sentence_with_the_numbers_of_the_leader(changes, parts):
    text = sentence(known(**changes), 0.9)
    assert [part for part in parts if part not in text] == []


def test_careless_raters_are_warned_of_with_what_to_do_and_careful_ones_are_not(sqlite):
    study, _ = add_study(sqlite, "my study", count=20, trials=16, gold=2, repeats=4, practice=0)
    for number in range(3):
        vote_through(sqlite, study, f"rater{number}", choosing(sqlite, lambda *_: "a"))
    report = study_report(sqlite, study)
    whats = [warning["what"] for warning in report["findings"]["warnings"]]
    # tests are fast
    assert [what for what in whats if "half a second" not in what] == ["Only 3 raters finished."]
    for number in range(3):
        vote_through(sqlite, study, f"careless{number}")
    found = {warning["what"]: warning["command"]
             for warning in study_report(sqlite, study)["findings"]["warnings"]}
    assert found["3 raters chose the same side in over 90 of 100 votes."] == (
        "superres survey exclude 'my study' 'same-side>0.9' --reason 'chose the same side in over "
        f"90 of 100 votes' --store {shlex.quote(sqlite.location)}")
    assert "3 raters gave another answer to most pairs that they saw twice." in found


@pytest.mark.parametrize(("unsure", "chance"),
                         [(False, "two answers gives 50"), (True, "three answers gives 33")])
def test_sides_repeats_and_unfinished_raters_are_warned_of(unsure, chance):
    result = {"comparisons": [known(raters=3)], "raters": 5,
              "sides": {"share": 0.3, "p_binomial": 0.001},
              "repeats": {"share": 0.52, "interval": (0.45, 0.6)}}
    report = {"study": "s", "level": 0.9, "raters": [], "result": result,
              "settings": {"judge": False, "allow_unsure": unsure}}
    warnings = findings(report, "survey.db")["warnings"]
    parts = ["right picture was chosen in 70 of 100", "the same answer in 52 of 100 cases; "
             f"guessing among {chance}.", "Only 3", "2 raters did not finish"]
    assert all(part in warning["what"] for part, warning in zip(parts, warnings, strict=True))
