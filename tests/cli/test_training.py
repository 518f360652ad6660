"""What commands show while they work: phases, time left, and the outcome of training."""

from __future__ import annotations

import io
import sys

import pytest

from superres.cli import train
from superres.system import progress
from superres.system.progress import Progress
from superres.training.outcome import outcome
from superres.training.stage import Stage


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, without the thread that shows progress."""
    now = [1000.0]
    monkeypatch.setattr(Progress, "thread", object())
    monkeypatch.setattr(Progress, "spoken", 1000.0)
    monkeypatch.setattr(Progress.__init__, "__defaults__", (None, "", lambda: now[0]))
    return now


def record(step, seconds, **values):
    return {"step": step, "seconds": seconds, "images": 4 * step, **values}


def test_a_log_gets_a_line_per_minute_with_phase_step_loss_rate_and_time_left(clock, capsys):
    with train.Training({"base": (40, "steps")}) as shown:
        for number in range(10):  # 10 s per step, resumed at step 20
            shown.show(record(21 + number, 10 * number, p1=2.5 - number / 10, rate=0.002))
            clock[0] += 10
            shown.phase.tick()
    assert capsys.readouterr().err.splitlines() == [
        "superres: base: 26 of 40 steps, images 104, p1 2, rate 0.002, 02:48 left"]


def test_the_innermost_phase_speaks_also_if_it_cannot_count(clock, capsys):
    with Progress("reading pictures", 4, "pictures") as outer:
        outer.update()
        with Progress("compiling native.cpp"):
            clock[0] += 59
            progress._open[-1].tick()
            clock[0] += 1
            progress._open[-1].tick()
        clock[0] += 60
        progress._open[-1].tick()
    assert capsys.readouterr().err.splitlines() == [
        "superres: compiling native.cpp: 01:00 so far", "superres: reading pictures: 1 of 4 "
        "pictures, 06:00 left"]


def test_no_time_left_is_negative():
    late = Progress("training", 240, "s")
    late.resume(250)
    assert late.left == "00:00 left"


def test_a_terminal_shows_a_bar_that_starts_again_with_each_stage(clock, monkeypatch):
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    with train.Training({"base": (3, "steps"), "heads": (120, "s")}) as shown:
        shown.show(record(1, 0.5, p1=3.0, rate=0.001), "base")
        shown.show(record(2, 1.0, bits_per_dim=4.25), "base")
        shown.phase.tick()
        assert "base:" in screen.getvalue()
        assert "2/3" in screen.getvalue()
        assert "images 8, p1 3, rate 0.001, bits_per_dim 4.25" in screen.getvalue()
        shown.show(record(1, 60.0, heads=5.0), "heads")
        assert (shown.phase.done, shown.phase.total, shown.phase.unit) == (60, 120, "s")
    assert "\n" in screen.getvalue()


@pytest.mark.parametrize(("settings", "expected"), [
    ({"steps": 7}, (7, "steps")), ({"minutes": 0.5}, (30, "s")), ({"endless": True}, (None, "s")),
])
def test_the_length_of_a_stage_is_in_steps_or_seconds(settings, expected):
    assert train._length(Stage(**settings)) == expected


@pytest.mark.parametrize(("settings", "step", "scores", "losses", "lines"), [
    ({}, 300, (3.5, 3.25), {"p1": [2.0, 1.5]}, ["start and result: bits/dim 3.5 and 3.25, loss of "
                                                "p1 2 and 1.5"]),
    ({}, 16, (3.5, 3.5), {}, ["start and result: bits/dim 3.5 and 3.5",
                              "warning: 16 steps are fewer than the 200 of the warm-up",
                              "warning: the result is no better than its start"]),
    ({"stage": "heads", "freeze_base": True}, 300, (3.5, 3.5), {"heads": [2.0, 1.0]},
     ["start and result: bits/dim 3.5 and 3.5, loss of the heads 2 and 1"]),
    ({"stage": "heads"}, 300, None, {"p1": [1.0, 1.0], "heads": [1.0, 1.25]},
     ["start and result: loss of the heads 1 and 1.25", "warning: the result is no better than its "
      "start"]),
    ({}, 300, None, {}, []),
])
def test_the_end_of_training_compares_the_result_with_its_start(settings, step, scores, losses,
                                                                lines):
    history = ([record(0, 0.0, bits_per_dim=scores[0]), record(step, 9.0, bits_per_dim=scores[1])]
               if scores else [])
    found = outcome(Stage(steps=step, **settings), step, history, losses)
    assert [line[:len(start)] for line, start in zip(found, lines, strict=True)] == lines
