"""Predictions of large runs follow from their figures, and say which size of a part is best."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from superres.cli.main import run
from superres.evaluation.capacity import MEASURED, Cluster, best, expected_time, part_time, predict, requests_of

QUIET = Cluster(1e6, 8, 4.0, 0.0, 0.0)


def test_without_stragglers_and_failures_the_work_is_divided():
    found = predict(QUIET, 1000)
    waves = 1000 / 8
    seconds = MEASURED.start_seconds + waves * (1000 / 4 + MEASURED.part_seconds)
    assert found.hours == pytest.approx(seconds / 3600, rel=1e-6)


@pytest.mark.parametrize("failures", [0.5, 20.0])
def test_the_mean_time_of_a_part_is_that_of_many_simulated_ones(failures):
    cluster = Cluster(1e6, 8, 4.0, 0.3, failures)
    draw = random.Random(0)
    times = [part_time(cluster, 500, MEASURED, draw) for _ in range(20_000)]
    assert statistics.mean(times) == pytest.approx(expected_time(cluster, 500, MEASURED), rel=0.06)


def test_small_parts_cost_their_requests_and_large_ones_their_stragglers():
    chosen, found = best(Cluster(2e6, 64, 4.0, 0.3, 0.05))
    assert found[0].hours > chosen.hours < found[-1].hours
    assert 100 < chosen.rows < 20_000
    fragile, _ = best(Cluster(2e6, 64, 4.0, 0.3, 20.0))
    assert fragile.rows < chosen.rows


def test_requests_are_counted_per_picture_and_per_part():
    assert requests_of(QUIET, 1000) == {"GET": 1e6 + 2000, "PUT": 3000, "LIST": 1002}
    single = Cluster(1e6, 8, 4.0, 0.0, 0.0, packed=False)
    assert requests_of(single, 1000)["PUT"] == 1e6 + 2000


def test_an_hour_without_end_is_a_number():
    assert math.isfinite(predict(Cluster(1e9, 4, 0.5, 0.1, 1000), 100).hours)


def test_the_command_prints_hours_requests_and_what_is_measured(capsys):
    assert run(["plan", "--images", "1e9", "--cores", "64"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("1,000,000,000 images on 64 cores, ")
    for part in ("core-hours", "requests: 1,00", "measured: ", "assumed: ", "extrapolated: "):
        assert part in told
    assert run(["plan", "--images", "1000", "--cores", "2", "--rate", "5", "--rows", "100", "--single-files"]) == 0
    assert "100 inputs per part" in capsys.readouterr().out


@pytest.mark.parametrize(("words", "part"), [
    (["--images", "0", "--cores", "2"], "--images must be at least 1"),
    (["--images", "5", "--cores", "0"], "--cores must be 1 to"),
    (["--images", "5", "--cores", "2", "--rate", "0"], "--rate must be above 0"),
    (["--images", "5", "--cores", "2", "--rows", "0"], "--rows"),
    (["--images", "nan", "--cores", "2"], "--images must be at least 1"),
])
def test_a_wrong_number_is_one_line(words, part, capsys):
    assert run(["plan", *words]) == 2
    told = capsys.readouterr().err
    assert part in told
    assert told.count("\n") == 1
