"""What `superres train` shows while it trains."""

from __future__ import annotations

import io
import sys
import time

import pytest
from fakes import changed

from superres.cli import train


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(train, "time", changed(time, monotonic=lambda: now[0]))
    return now


def record(step, seconds, **values):
    return {"step": step, "seconds": seconds, "images": 4 * step, **values}


def test_a_log_gets_a_line_per_minute_with_step_loss_rate_and_time_left(clock, capsys):
    bar = train.TrainingBar(40, "steps")
    for number in range(10):  # 10 s per step, resumed at step 20
        clock[0] += 10
        bar.show(record(21 + number, 10 * number, p1=2.5 - number / 10, rate=0.002))
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["superres: training: 27 of 40 steps, images 108, p1 1.9, rate 0.002, 02:31 left"]


def test_a_bar_shows_the_latest_values_and_starts_again_with_each_stage(monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    bar = train.TrainingBar(None, "s")
    bar.begin("base", 3, "steps")
    bar.show(record(1, 0.5, p1=3.0, rate=0.001))
    bar.show(record(2, 1.0, bits_per_dim=4.25))
    bar.bar.refresh()
    assert "base:" in screen.getvalue()
    assert "2/3" in screen.getvalue()
    assert "images 8, p1 3, rate 0.001, bits_per_dim 4.25" in screen.getvalue()
    bar.begin("heads", 120, "s")
    bar.show(record(1, 60.0, heads=5.0))
    assert (bar.bar.n, bar.bar.total, bar.bar.unit) == (60, 120, "s")
    bar.bar.close()


@pytest.mark.parametrize(("settings", "expected"), [
    ({"steps": 7}, (7, "steps")), ({"minutes": 0.5}, (30, "s")), ({"endless": True}, (None, "s")),
])
def test_the_length_of_a_stage_is_in_steps_or_seconds(settings, expected):
    assert train._length(train.TrainConfig(**settings)) == expected
