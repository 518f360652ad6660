"""A run that is killed at any moment goes on; the manifest is the truth, and nobody else writes meanwhile."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeUpscaler
from killing import die_at
from PIL import Image
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

from superres.batch.commit import GROUP, Lock
from superres.batch.manifest import Manifest, Row, merge
from superres.batch.plan import BatchOptions, plan
from superres.batch.upscaling import upscale_files
from superres.config import DecodeConfig
from superres.errors import InvalidInputError, OutputError
from superres.system.output import prepare_folder, scratch_file, write_atomically
from superres.system.progress import say

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def faces(tmp_path):
    """Forty faces in a tree, some of them not to be read."""
    for value in range(40):
        path = tmp_path / "faces" / f"{value % 3}" / f"{value:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(path)
        if value % 9 == 4:
            path.write_bytes(path.read_bytes()[:40])
    return tmp_path / "faces"


def run(faces, output, upscaler=None, decode=None, group=GROUP, **options):
    settings = BatchOptions(output, recursive=True, keep_tree=True, **options)
    jobs = plan([faces], settings)
    return upscale_files(jobs, upscaler or FakeUpscaler(), settings, decode or DecodeConfig(), group)


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def contents(folder):
    """All files below a folder, the manifest without times and folders."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    manifest = rows_of(folder / "manifest.jsonl")
    for row in manifest:
        row["output"] = os.path.relpath(row["output"], folder)
        row["seconds"] = None
    return {**files, "manifest.jsonl": manifest}


class Slow(FakeUpscaler):
    """Leaves time to be killed in."""

    def __call__(self, *arguments, **more):
        time.sleep(0.05)
        return super().__call__(*arguments, **more)


def run_killed_in_ordering(*arguments, **options):
    replace = os.replace

    def killed(source, target):
        if Path(target).name == "manifest.jsonl":
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = killed  # in this process alone, which ends here
    run(*arguments, **options)


def test_a_run_killed_while_it_orders_the_manifest_leaves_nothing_to_the_next(faces, tmp_path):
    run(faces, tmp_path / "whole")
    for _ in range(2):
        child = FORK.Process(target=run_killed_in_ordering, args=(faces, tmp_path / "out"))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
    assert run(faces, tmp_path / "out").failed == 4
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_run_killed_at_random_moments_ends_as_an_undisturbed_one(faces, tmp_path):
    run(faces, tmp_path / "whole", batch_size=3)
    options = {"batch_size": 3, "group": 5}
    draw, kills = random.Random(0), 0
    for _ in range(60):
        child = FORK.Process(target=run, args=(faces, tmp_path / "out", Slow()), kwargs=options)
        child.start()
        child.join(draw.uniform(0.05, 0.2))
        if child.exitcode is not None:
            break
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        kills += 1
    assert run(faces, tmp_path / "out", **options).failed == 4
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert kills >= 2


def code_when_killed_at(moment, call, *arguments):
    """Return the exit code of a process that calls `call` and dies at a moment, 0 if it ends before."""
    def child():
        die_at(moment)
        call(*arguments)

    process = FORK.Process(target=child)
    process.start()
    process.join()
    return process.exitcode


def test_a_run_killed_at_every_call_that_touches_a_file_ends_as_an_undisturbed_one(faces, tmp_path):
    for path in sorted(faces.rglob("*.png"))[6:]:
        path.unlink()
    run(faces, tmp_path / "whole")
    for moment in itertools.count(1):
        if code_when_killed_at(moment, run, faces, tmp_path / "out") == 0:
            break
    run(faces, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert moment > 60


def check_in_a_process(work):
    """Run `work` in a forked process, which has to end well within a minute."""
    tqdm.get_lock()
    process = FORK.Process(target=work)
    process.start()
    process.join(60)
    process.kill()
    process.join()
    assert process.exitcode == 0


def test_a_forked_run_that_is_killed_at_its_progress_bar_does_not_stop_the_next(faces, tmp_path):
    def parent():
        # The lock of this family of processes alone: the test's own process must not hang with them.
        del TqdmDefaultWriteLock.mp_lock
        tqdm.set_lock(TqdmDefaultWriteLock())
        run(faces, tmp_path / "out")
        child = os.fork()
        if child == 0:
            tqdm._get_free_pos = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # called with the lock held
            run(faces, tmp_path / "out")
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        run(faces, tmp_path / "out")

    check_in_a_process(parent)


def test_a_line_beside_the_progress_bar_waits_for_no_other_process():
    def parent():
        del TqdmDefaultWriteLock.mp_lock
        tqdm.set_lock(TqdmDefaultWriteLock())
        child = os.fork()
        if child == 0:
            tqdm.get_lock().acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        say("this is told all the same")

    check_in_a_process(parent)


@pytest.mark.parametrize("call", [prepare_folder, lambda folder: write_atomically(folder / "result", b"new")])
def test_what_a_kill_leaves_lasts_until_the_next_run(tmp_path, call):
    moments = 0
    while code_when_killed_at(moments + 1, call, tmp_path) != 0:
        moments += 1
        call(tmp_path)
        assert [path.name for path in tmp_path.iterdir() if path.name != "result"] == []
    assert moments > 4


def test_a_file_that_another_process_is_writing_is_not_taken_for_abandoned(tmp_path):
    with scratch_file(tmp_path, tmp_path / "result") as file:
        file.write(b"half")
        prepare_folder(tmp_path)
        assert Path(file.name).exists()
        file.write(b" and half")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("result", b"half and half")]


def test_links_in_place_of_working_files_are_removed_or_refused_and_never_followed(faces, tmp_path):
    precious = tmp_path / "precious"
    (precious / "0-of-1").mkdir(parents=True)
    for name in ("0-of-1/0", "lock", "notes"):
        (precious / name).write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    for target in (precious, tmp_path / "nowhere"):
        (out / ".superres").symlink_to(target)
        with pytest.raises(OutputError, match=r"out/\.superres is a link, .*; remove the link, or choose another"):
            run(faces, out)
        assert [path.name for path in out.iterdir()] == [".superres"]
        (out / ".superres").unlink()
    (out / ".superres").mkdir()
    (out / ".superres" / "lock").symlink_to(precious / "lock")
    (out / ".superres" / "0-of-1").symlink_to(precious / "0-of-1")
    for name in (".superres-1-00000000.tmp", ".manifest.jsonl.tmp"):
        (out / name).symlink_to(precious / "notes")
    run(faces, out)
    assert {path.name: path.read_text() for path in precious.rglob("*") if path.is_file()} == {
        "0": "precious", "lock": "precious", "notes": "precious"}
    assert not (out / ".superres").exists()
    assert not (tmp_path / "nowhere").exists()


def test_a_cut_last_line_is_dropped_and_its_output_made_again(faces, tmp_path):
    run(faces, tmp_path / "out")
    whole = contents(tmp_path / "out")
    path = tmp_path / "out" / "manifest.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    Path(rows_of_raw(path)[-1]).unlink(missing_ok=True)
    summary = run(faces, tmp_path / "out", on_existing="redo")
    assert (summary.done, summary.skipped) == (1, 35)
    assert contents(tmp_path / "out") == whole


def rows_of_raw(path):
    return [line.split('"output": "')[1].split('"')[0] for line in path.read_text().splitlines()]


@pytest.mark.parametrize("damage", ["cut", "gone", "changed", "empty"])
def test_an_output_that_is_not_whole_is_made_again_and_no_other(faces, tmp_path, damage):
    run(faces, tmp_path / "out")
    whole, victim = contents(tmp_path / "out"), tmp_path / "out" / "1" / "07.png"
    before = victim.read_bytes()
    changed = {"cut": before[:-9], "changed": before[:-20] + b"x" + before[-19:], "empty": b""}
    victim.unlink() if damage == "gone" else victim.write_bytes(changed[damage])
    upscaler = FakeUpscaler()
    summary = run(faces, tmp_path / "out", upscaler)
    assert (summary.done, summary.skipped, summary.failed, sum(upscaler.batches)) == (1, 35, 4, 1)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(("change", "named"), [
    ({"decode": DecodeConfig(accept="distance")}, "accept 'exact' there, 'distance' now"),
    ({"upscaler": FakeUpscaler(revision="ffff")}, "checkpoint 'fake@0123abcd' there, 'fake@ffff' now"),
    ({"source": "lowres"}, "source 'auto' there, 'lowres' now"),
    ({"metadata": "keep"}, "metadata 'strip' there, 'keep' now"),
])
def test_changed_settings_are_refused_or_redone_on_request(faces, tmp_path, change, named):
    run(faces, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match=r"36 of the outputs in .* were made with other settings") as caught:
        run(faces, tmp_path / "out", **change)
    assert named in str(caught.value)
    assert contents(tmp_path / "out") == before
    assert run(faces, tmp_path / "out", on_existing="redo", **change).done == 36
    run(faces, tmp_path / "fresh", **change)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert run(faces, tmp_path / "out", **change).skipped == 36


@pytest.mark.parametrize("moment", ["before rows", "after rows", "between names", "before names are on disc"])
def test_a_kill_between_any_two_moves_loses_nothing(faces, tmp_path, monkeypatch, moment):
    run(faces, tmp_path / "whole")

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def child():
        if moment == "before rows":
            monkeypatch.setattr("superres.batch.manifest.Manifest.append", die)
        elif moment == "after rows":
            monkeypatch.setattr("superres.batch.commit.Staging._rename", die)
        elif moment == "between names":
            real, count = os.replace, []
            monkeypatch.setattr("superres.batch.commit.os.replace",
                                lambda *names: die() if count.append(0) or len(count) > 3 else real(*names))
        else:
            monkeypatch.setattr("superres.batch.commit.Staging._sync_folders", die)
        run(faces, tmp_path / "out")

    process = FORK.Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    summary = run(faces, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert summary.skipped == {"before rows": 0, "after rows": 0, "between names": 3}.get(moment, summary.skipped)


def test_a_redo_that_is_killed_goes_on(faces, tmp_path, monkeypatch):
    run(faces, tmp_path / "out")
    count, real = [], Manifest.append

    def stop(self, rows):
        count.append(0)
        if len(count) == 4:
            raise KeyboardInterrupt
        real(self, rows)

    decode = DecodeConfig(accept="distance")
    with monkeypatch.context() as patch:
        patch.setattr("superres.batch.manifest.Manifest.append", stop)
        with pytest.raises(KeyboardInterrupt):
            run(faces, tmp_path / "out", decode=decode, group=4, on_existing="redo")
    summary = run(faces, tmp_path / "out", decode=decode, group=4, on_existing="redo")
    assert 0 < summary.skipped < 36
    run(faces, tmp_path / "fresh", decode=decode)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


class Interrupted(FakeUpscaler):
    """Is interrupted from the keyboard at its tenth call."""

    def __call__(self, *arguments, **more):
        if len(self.batches) == 9:
            raise KeyboardInterrupt
        return super().__call__(*arguments, **more)


def test_a_redo_that_is_interrupted_goes_on(faces, tmp_path):
    run(faces, tmp_path / "out")
    decode = DecodeConfig(accept="distance")
    with pytest.raises(KeyboardInterrupt):
        run(faces, tmp_path / "out", Interrupted(), decode, group=4, batch_size=2, on_existing="redo")
    summary = run(faces, tmp_path / "out", decode=decode, on_existing="redo")
    assert 0 < summary.skipped < 36
    run(faces, tmp_path / "fresh", decode=decode)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_outputs_of_other_inputs_keep_their_rows(faces, tmp_path):
    settings = BatchOptions(tmp_path / "out")
    for folder in "012":
        upscale_files(plan([faces / folder], settings), FakeUpscaler(), settings, DecodeConfig())
    rows = rows_of(tmp_path / "out" / "manifest.jsonl")
    assert len({row["output"] for row in rows}) == len(rows) == 40
    assert [Path(row["input"]).parent.name for row in rows] == ["0"] * 14 + ["1"] * 13 + ["2"] * 13


def test_a_damaged_manifest_is_refused_with_its_line(faces, tmp_path):
    run(faces, tmp_path / "out")
    path = tmp_path / "out" / "manifest.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for bad in (b"{\n", b"[]\n", b'{"status": "ok"}\n', b"\xff\n", b'{"input": 3, "output": "x", "status": "ok"}\n'):
        path.write_bytes(b"".join([*lines[:2], bad, *lines[2:]]))
        with pytest.raises(InvalidInputError, match=r"line 3 of the manifest .* is damaged") as caught:
            run(faces, tmp_path / "out")
        assert "\n" not in str(caught.value)


def test_two_runs_into_one_folder_are_refused_and_shards_are_not(tmp_path):
    (tmp_path / "out").mkdir()
    alone = Lock(tmp_path / "out", (0, 1))
    for shard in ((0, 1), (1, 2)):
        with pytest.raises(OutputError, match="another run writes into"):
            Lock(tmp_path / "out", shard)
    alone.release()
    first, second = Lock(tmp_path / "out", (0, 2)), Lock(tmp_path / "out", (1, 2))
    for shard in ((0, 1), (1, 2), (0, 2)):
        with pytest.raises(OutputError, match="another run writes into"):
            Lock(tmp_path / "out", shard)
    first.release()
    with pytest.raises(OutputError, match="another run"):
        Lock(tmp_path / "out", (0, 1))
    Lock(tmp_path / "out", (0, 2)).release()
    second.release()
    assert list((tmp_path / "out").iterdir()) == []
    Lock(tmp_path / "out", (0, 1)).release()


def test_a_second_run_is_refused_while_the_first_is_at_work(faces, tmp_path):
    holding, going = threading.Event(), threading.Event()

    class Held(FakeUpscaler):
        def __call__(self, *arguments, **more):
            holding.set()
            going.wait(20)
            return super().__call__(*arguments, **more)

    thread = threading.Thread(target=run, args=(faces, tmp_path / "out", Held()))
    thread.start()
    holding.wait(20)
    with pytest.raises(OutputError, match="wait until it ends, choose another --output"):
        run(faces, tmp_path / "out")
    going.set()
    thread.join()
    assert run(faces, tmp_path / "out").skipped == 36


def test_shards_are_merged_into_the_manifest_of_one_run(faces, tmp_path):
    run(faces, tmp_path / "whole")
    threads = [threading.Thread(target=run, args=(faces, tmp_path / "out"), kwargs={"shard": (index, 4)})
               for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = [tmp_path / "out" / f"manifest-{index}-of-4.jsonl" for index in range(4)]
    assert merge(paths, tmp_path / "out" / "manifest.jsonl") == {"ok": 36, "failed": 4}
    for path in paths:
        path.unlink()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert run(faces, tmp_path / "out").skipped == 36  # one run goes on from the merged manifest


def test_a_merge_prefers_what_succeeded_and_names_what_it_cannot_read(tmp_path):
    failed, done = Row("a", "/o/a.png", "failed", "why"), Row("a", "/o/a.png", "ok", tokens=3)
    for name, rows in (("x", [failed, Row("b", "/o/b.png", "failed", "why")]), ("y", [done]), ("z", [failed])):
        (tmp_path / name).write_bytes(b"".join(row.line() for row in rows))
    assert merge([tmp_path / name for name in "xyz"], tmp_path / "all") == {"ok": 1, "failed": 1}
    assert [row["status"] for row in rows_of(tmp_path / "all")] == ["ok", "failed"]
    merge([tmp_path / "all", tmp_path / "x"], tmp_path / "all")
    assert len(rows_of(tmp_path / "all")) == 2
    with pytest.raises(InvalidInputError, match="nowhere: No such file"):
        merge([tmp_path / "nowhere"], tmp_path / "all")
    with pytest.raises(OutputError, match="choose another --output"):
        merge([tmp_path / "x"], tmp_path / "x" / "y")


def test_a_manifest_that_takes_no_more_stops_the_run_and_loses_nothing(faces, tmp_path, monkeypatch, capsys):
    real, count = os.fsync, []

    def full(file):
        count.append(0)
        if len(count) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file)

    with monkeypatch.context() as patch:
        patch.setattr("superres.batch.manifest.os.fsync", full)
        summary = run(faces, tmp_path / "out", group=4, batch_size=2)
    assert summary.exit_code == 1
    assert summary.stopped
    assert capsys.readouterr().err.count("the same command resumes the run") == 1
    run(faces, tmp_path / "out")
    run(faces, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_folder_that_turns_read_only_stops_the_run_with_one_line(faces, tmp_path, monkeypatch, capsys):
    real, count = os.replace, []

    def refuse(*names):
        count.append(names)
        if len(count) > 6:
            raise PermissionError(errno.EACCES, "Permission denied")
        real(*names)

    with monkeypatch.context() as patch:
        patch.setattr("superres.batch.commit.os.replace", refuse)
        patch.setattr("superres.batch.commit.os.access", lambda *_: len(count) <= 6)
        summary = run(faces, tmp_path / "out", group=4, batch_size=2)
    assert (summary.done, summary.exit_code) == (6, 1)
    assert capsys.readouterr().err.count("Permission denied; stopped; finished outputs are kept") == 1
    run(faces, tmp_path / "out")
    run(faces, tmp_path / "whole")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_rows_read_back_as_they_were_written():
    row = Row("ä\udcff", "/o/x", "ok", tokens=3, config={"epsilon": [1, 2]}, options={}, sha256="0")
    assert Row.parse(row.line()) == row
    assert json.loads(row.line()) == dataclasses.asdict(row)
    assert Row.parse(b'{"input": "a", "output": "b", "status": "ok", "later": 1}') == Row("a", "b", "ok")


def test_a_clock_that_jumps_changes_nothing(faces, tmp_path, monkeypatch):
    run(faces, tmp_path / "whole")
    jumps = iter(range(10**6))
    monkeypatch.setattr("time.time", lambda: 1e9 * (-1) ** next(jumps))
    run(faces, tmp_path / "out", batch_size=3)
    monkeypatch.undo()
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_reading_and_decoding_do_not_run_away_from_writing(faces, tmp_path):
    most = []

    class Watched(FakeUpscaler):
        def __call__(self, *arguments, **more):
            most.append(threading.active_count())
            return super().__call__(*arguments, **more)

    before = threading.active_count()
    run(faces, tmp_path / "out", Watched(), batch_size=1)
    assert max(most) - before <= 2
    assert threading.active_count() == before
