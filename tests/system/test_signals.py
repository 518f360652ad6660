"""Commands that are ended by real signals: what they say is true, and they leave nothing
half-written."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import limits
import numpy as np
import pytest
from PIL import Image
from textual import write_checkpoint

from superres.checkpoint import save_checkpoint
from superres.config import PRESETS
from superres.tasks.face_data import FacePairs, write_npz
from superres.training.construction import build_model
from superres.training.stage import Stage

ROOT = Path(__file__).parents[2]
SPEAKING = """
import sys
from superres.system import progress
progress.LINE_SECONDS = progress.TICK_SECONDS = 0.02
from superres.cli.main import main
main()
"""
"""The command line with many lines of progress, by which a test knows where the command is."""
STUCK = """
import time
from superres.cli.main import app, main
from superres.system.progress import say
from superres.system.signals import deferred

@app.command()
def stuck():
    with deferred():
        say("begun")
        time.sleep(1000)

main()
"""
STARTING = """
import threading, time
from superres.cli.main import app, main
from superres.system.progress import say

class Late(threading.Thread):
    def _bootstrap(self):
        time.sleep(0.5)  # as on a busy machine
        super()._bootstrap()

@app.command()
def starting():
    say("begun")
    Late(target=say, args=("the thread has ended",)).start()

main()
"""
COUNT = 3000

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX systems")


class Command:
    """A running command, whose lines on standard error are read one by one."""

    def __init__(self, *words, code=SPEAKING, before=(), cwd=None):
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.lines = []
        self.process = subprocess.Popen([*before, sys.executable, "-c", code, *map(str, words)],
                                        cwd=cwd, text=True, env=environment,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def wait_for(self, pattern):
        for line in self.process.stderr:
            self.lines.append(line)
            if re.search(pattern, line):
                return
        pytest.fail(f"no line {pattern!r} in {''.join(self.lines)}")

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        """Return the exit code and the last line."""
        with self.process:
            self.lines += self.process.stderr
        return self.process.returncode, self.lines[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Small untrained networks and many inputs, so that no command ends before it is asked to."""
    folder = tmp_path_factory.mktemp("signals")
    network = replace(PRESETS["tiny"], source_shape=(4, 4, 3), target_shape=(8, 8, 3),
                      prediction_heads=8)
    save_checkpoint(build_model(network, Stage(steps=1)), folder / "faces")
    write_checkpoint(folder / "text")
    pictures = np.random.default_rng(0).integers(0, 256, (COUNT, 4, 4, 3), np.uint8)
    (folder / "in").mkdir()
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / "in" / f"{number:04d}.png")
    write_npz(FacePairs(pictures.repeat(2, 1).repeat(2, 2), pictures,
                        np.arange(COUNT, dtype=np.int32)),
              folder / "data.npz")
    (folder / "in.txt").write_text("dog\n" * 100_000)
    return folder


def test_an_upscale_commits_what_is_finished_and_the_same_command_continues(folder, tmp_path):
    command = Command("upscale", folder / "in", "-o", tmp_path / "out", "--checkpoint",
                      folder / "faces", "--engine", "plain", "--batch-size", "4")
    command.wait_for(rf"upscaling: [1-9]\d+ of {COUNT:,} images")
    command.send(signal.SIGTERM)
    assert command.end() == (143, "superres: interrupted by SIGTERM; finished results are kept, "
                             "and the same command continues\n")
    assert not (tmp_path / "out" / ".superres").exists()
    rows = (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()
    assert 0 < len(rows) < COUNT
    assert len(rows) == len(list((tmp_path / "out").glob("*.png")))


def test_a_translation_keeps_its_finished_lines_and_says_where_to_continue(folder, tmp_path):
    command = Command("translate", "--input", folder / "in.txt", "--output", "out.txt",
                      "--checkpoint", folder / "text", "--batch-size", "2", "--block-size", "1",
                      "--device", "cpu", cwd=tmp_path)
    command.wait_for(r"translating: [1-9]\d\d+ of 100,000 lines")
    command.send(signal.SIGINT)
    code, line = command.end()
    assert code == 130
    kept, = re.fullmatch(r"superres: interrupted; the first (\d+) translations are in "
                         r"out\.txt\.partial; continue with line (?!\1\b)\d+\n", line).groups()
    assert (tmp_path / "out.txt.partial").read_bytes().count(b"\n") == int(kept) > 0
    assert os.listdir(tmp_path) == ["out.txt.partial"]


def test_a_measurement_says_that_nothing_is_written_and_what_nohup_ignores_stays_ignored(folder,
                                                                                         tmp_path):
    command = Command("evaluate", "images", "--data", folder / "data.npz", "--checkpoint",
                      folder / "faces", "--likelihood-only", "--batch-size", "2", before=["nohup"],
                      cwd=tmp_path)
    command.wait_for("scoring bits/dim: [1-9]")
    command.send(signal.SIGHUP)
    command.wait_for("scoring bits/dim: [1-9]")
    command.send(signal.SIGTERM)
    assert command.end() == (143, "superres: interrupted by SIGTERM; no result was written\n")
    assert os.listdir(tmp_path) == []


def test_training_saves_its_state_at_a_signal(folder, tmp_path):
    command = Command("train", "heads", "--data", folder / "data.npz", "--start", folder / "faces",
                      "--output", tmp_path / "run", "--precision", "no", "--batch-size", "2",
                      "--warmup-steps", "1", "--steps", "100000")
    command.wait_for(r"training: [1-9]\d* of 100,000 steps")
    command.send(signal.SIGHUP)
    assert command.end() == (129, f"superres: interrupted by SIGHUP; {tmp_path / 'run'}: saved; "
                             "the same command resumes it\n")
    assert json.loads((tmp_path / "run" / "state" / "state.json").read_text())["step"] >= 1


def test_a_command_waits_for_a_thread_whose_start_was_interrupted():
    command = Command("starting", code=STARTING)
    command.wait_for("begun")
    time.sleep(0.2)
    command.send(signal.SIGTERM)
    code, _ = command.end()
    assert code == 143
    assert "superres: the thread has ended\n" in command.lines


def test_the_second_signal_ends_a_command_that_defers_the_first():
    command = Command("stuck", code=STUCK)
    command.wait_for("begun")
    command.send(signal.SIGTERM)
    # so soon, it is taken for the same request, as a closing terminal sends two
    command.send(signal.SIGHUP)
    time.sleep(1.2)
    assert command.process.poll() is None
    command.send(signal.SIGTERM)
    assert command.end()[0] == 143


def test_what_nohup_and_a_shell_ignore_is_not_ignored_by_what_the_tests_start():
    print_signals = ("import signal; print(signal.getsignal(signal.SIGHUP), "
                     "signal.getsignal(signal.SIGINT))")
    words = [sys.executable, "-c", "import limits, subprocess, sys\nlimits.hear_signals()\n"
             f"subprocess.run([sys.executable, '-c', {print_signals!r}])"]
    done = subprocess.run(["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", *words],
                          cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True,
                          timeout=300)
    assert done.stdout.startswith(f"{signal.SIG_DFL} <built-in function "
                                  "default_int_handler>"), done.stdout


def test_a_wait_without_an_end_fails_and_what_it_waits_for_is_killed(monkeypatch):
    monkeypatch.setattr(limits, "TEST_SECONDS", 0.2)
    process = subprocess.Popen(["sleep", "1000"])
    for wait in (process.wait, threading.Event().wait):
        with (pytest.raises(pytest.fail.Exception, match=r"took over 0\.2 seconds"),
              limits.limited()):
            wait()
    assert process.wait(timeout=60) == -signal.SIGKILL
