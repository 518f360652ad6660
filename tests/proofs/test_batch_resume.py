"""A run that is killed at any moment goes on; the manifest is the truth, and nobody else writes
meanwhile."""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import itertools
import json
import os
import signal
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes import FakeUpscaler
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

from superres.batch.locks import locked
from superres.batch.rows import Journal, Row, merge
from superres.config import DecodeConfig
from superres.errors import InvalidInputError, OutputError
from superres.system.output import prepare_folder, scratch_file, write_atomically
from superres.system.progress import say
from tests.batch.helpers import contents, die, killed, rows_of, upscale, write_image

run = functools.partial(upscale, recursive=True, keep_tree=True)
DISTANCE = DecodeConfig(accept="distance")


@pytest.fixture
def faces(tmp_path):
    """Forty faces in a tree, four of which cannot be read."""
    for value in range(40):
        path = write_image(tmp_path / "faces" / f"{value % 3}" / f"{value:02d}.png", value)
        if value % 9 == 4:
            path.write_bytes(path.read_bytes()[:40])
    return tmp_path / "faces"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def whole(faces, tmp_path):
    """What an undisturbed run leaves."""
    run(faces, tmp_path / "whole")
    return contents(tmp_path / "whole")


def test_a_run_killed_at_every_call_that_touches_a_file_ends_as_an_undisturbed_one(tmp_path, out):
    faces = tmp_path / "faces"
    for value in range(2):
        write_image(faces / f"{value}" / f"{value}.png", value)
    (faces / "0" / "0.png").write_bytes(b"no picture")
    run(faces, tmp_path / "whole")
    moment = next(moment for moment in itertools.count(1) if not killed(lambda: run(faces, out),
                                                                        moment))
    run(faces, out)
    assert contents(out) == contents(tmp_path / "whole")
    assert moment > 30


@pytest.mark.parametrize(("name", "calls"), [
    ("superres.batch.rows.Journal.append", 0), ("superres.batch.folder_store.FolderWriter._rename",
                                                0),
    ("superres.batch.folder_store.FolderWriter._sync_folders", 0),
    ("superres.batch.folder_store.os.replace", 3), ("superres.batch.rows.Journal.sort", 0),
])
def test_a_kill_between_any_two_moves_loses_nothing(faces, out, whole, monkeypatch, name, calls):
    real, count = os.replace, []

    def child():
        monkeypatch.setattr(name, lambda *names: die() if count.append(0) or len(count) > calls
                            else real(*names))
        run(faces, out)

    assert killed(child)
    assert run(faces, out).skipped == (36 if "sync" in name or "sort" in name else calls)
    assert contents(out) == whole


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_forked_run_that_is_killed_at_its_progress_bar_does_not_stop_the_next(faces, out):
    def parent():
        # the test's own process must not share the lock that stays held
        del TqdmDefaultWriteLock.mp_lock
        tqdm.set_lock(TqdmDefaultWriteLock())
        sys.stderr = Terminal()  # there are bars on terminals only
        run(faces, out)
        if (child := os.fork()) == 0:
            tqdm._get_free_pos = die  # called with the lock held
            run(faces, out)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        run(faces, out)
        say("this is told all the same")

    tqdm.get_lock()
    assert not killed(parent)


@pytest.mark.parametrize(
    "call", [prepare_folder, lambda folder: write_atomically(folder / "result", b"new")]
)
def test_what_a_kill_leaves_lasts_until_the_next_run(tmp_path, call):
    moments = 0
    while killed(lambda: call(tmp_path), moments + 1):
        moments += 1
        call(tmp_path)
        assert [path.name for path in tmp_path.iterdir() if path.name != "result"] == []
    assert moments > 2


def test_a_file_that_another_process_is_writing_is_not_taken_for_abandoned(tmp_path):
    with scratch_file(tmp_path, tmp_path / "result") as file:
        file.write(b"half")
        prepare_folder(tmp_path)
        file.write(b" and half")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("result",
                                                                                b"half and half")]


def test_links_in_place_of_working_files_are_removed_or_refused_and_never_followed(faces, out,
                                                                                   tmp_path):
    precious = tmp_path / "precious"
    (precious / "0-of-1").mkdir(parents=True)
    for name in ("0-of-1/0", "lock", "notes"):
        (precious / name).write_text("precious")
    out.mkdir()
    for target in (precious, tmp_path / "nowhere"):
        (out / ".superres").symlink_to(target)
        with pytest.raises(OutputError, match=r"out/\.superres is a link, .*; remove the link, or "
                           r"choose another"):
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


@pytest.mark.parametrize("damage", ["cut", "gone", "changed", "empty", "row"])
def test_an_output_that_is_not_whole_is_made_again_and_no_other(faces, out, whole, damage):
    run(faces, out)
    victim, manifest = out / "1" / "07.png", out / "manifest.jsonl"
    before = victim.read_bytes()
    if damage == "row":  # cut short, as by a kill
        victim = Path(rows_of(out)[-1]["output"])
        manifest.write_bytes(manifest.read_bytes()[:-30])
    changed = {"cut": before[:-9], "changed": before[:-20] + b"x" + before[-19:], "empty": b""}
    victim.write_bytes(changed[damage]) if damage in changed else victim.unlink()
    upscaler = FakeUpscaler()
    summary = run(faces, out, upscaler, verify=damage == "changed")
    assert (summary.done, summary.skipped, summary.failed, sum(upscaler.batches)) == (1, 35, 4, 1)
    assert contents(out) == whole


@pytest.mark.parametrize(("change", "named"), [
    ({"decode": DISTANCE}, "accept 'exact' there, 'distance' now"),
    ({"upscaler": FakeUpscaler(revision="ffff")}, "checkpoint 'fake@0123abcd' there, 'fake@ffff' "
     "now"),
    ({"source": "lowres"}, "source 'auto' there, 'lowres' now"),
    ({"upscaler": FakeUpscaler(engine="native-int8")}, "engine 'fake' there, 'native-int8' now"),
])
def test_changed_settings_are_refused_or_redone_on_request(faces, out, whole, tmp_path, change,
                                                           named):
    run(faces, out)
    with pytest.raises(OutputError, match=r"36 of the outputs in .* were made with other "
                       r"settings") as caught:
        run(faces, out, **change)
    assert named in str(caught.value)
    assert contents(out) == whole
    assert run(faces, out, on_existing="redo", **change).done == 36
    run(faces, tmp_path / "fresh", **change)
    assert contents(out) == contents(tmp_path / "fresh")
    assert run(faces, out, **change).skipped == 36


@pytest.mark.parametrize(("begun", "now", "goes_on"), [
    (None, "native", True), ("native", "triton", True), ("native-int8", "native-int8", True),
    (None, "native-int8", False), ("native", "native-int8", False), ("native-int8", "plain", False),
])
def test_a_run_goes_on_with_an_engine_of_the_same_format_alone(tmp_path, out, begun, now, goes_on):
    """The manifest of an earlier release names no engine; its default was native."""
    run(write_image(tmp_path / "face.png"), out, FakeUpscaler(engine=begun or "native"))
    if begun is None:
        (row,) = rows_of(out)
        del row["options"]["engine"]
        (out / "manifest.jsonl").write_text(json.dumps(row) + "\n")
    upscaler = FakeUpscaler(engine=now)
    if goes_on:
        assert run(tmp_path / "face.png", out, upscaler).skipped == 1
    else:
        with pytest.raises(OutputError, match=f"engine '{begun or 'native'}' there, '{now}' now"):
            run(tmp_path / "face.png", out, upscaler)
    assert not upscaler.batches


@pytest.mark.parametrize("name",
                         ["superres.batch.rows.Journal.append", "fakes.FakeUpscaler.__call__"])
def test_a_redo_that_is_interrupted_goes_on(faces, out, tmp_path, monkeypatch, name):
    run(faces, out)
    real, count = Journal.append if "append" in name else FakeUpscaler.__call__, []

    def stop(*arguments, **more):
        count.append(0)
        if len(count) == 8:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(name, stop)
        with pytest.raises(KeyboardInterrupt):
            run(faces, out, decode=DISTANCE, rows=4, batch_size=2, on_existing="redo")
    assert 0 < run(faces, out, decode=DISTANCE, rows=4, on_existing="redo").skipped < 36
    run(faces, tmp_path / "fresh", decode=DISTANCE)
    assert contents(out) == contents(tmp_path / "fresh")


def test_outputs_of_other_inputs_keep_their_rows(faces, out):
    for folder in "012":
        upscale(faces / folder, out)
    rows = rows_of(out)
    assert len({row["output"] for row in rows}) == len(rows) == 40
    assert [Path(row["input"]).parent.name for row in rows] == ["0"] * 14 + ["1"] * 13 + ["2"] * 13


def test_a_damaged_manifest_is_refused_with_its_line(faces, out):
    run(faces, out)
    path = out / "manifest.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for bad in (b"{\n", b"[]\n", b'{"status": "ok"}\n', b"\xff\n",
                b'{"input": 3, "output": "x", "status": "ok"}\n',
                b'{"input": "' + b"x" * 1_000_000):
        path.write_bytes(b"".join([*lines[:2], bad, *lines[2:]]))
        with pytest.raises(InvalidInputError, match=r"line 3 of the manifest .* is "
                           r"damaged") as caught:
            run(faces, out)
        assert "\n" not in str(caught.value)


def refused(folder, *shards):
    for shard in shards:
        with (pytest.raises(OutputError, match="wait until it ends, choose another --output"),
              locked(folder, shard)):
            pass


def test_two_runs_into_one_folder_are_refused_and_shards_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr("superres.batch.locks.LOCK_ATTEMPTS", 1)
    with locked(tmp_path, (0, 1)):
        refused(tmp_path, (0, 1), (1, 2))
    with ExitStack() as second:
        with locked(tmp_path, (0, 2)):
            second.enter_context(locked(tmp_path, (1, 2)))
            refused(tmp_path, (0, 1), (1, 2), (0, 2))
        refused(tmp_path, (0, 1))
        with locked(tmp_path, (0, 2)):
            pass
    assert list(tmp_path.iterdir()) == []


class Held(FakeUpscaler):
    """Says that it is at work, and goes on when it is told to."""

    holding, going, threads = threading.Event(), threading.Event(), []

    def __call__(self, *arguments, **more):
        self.threads.append(set(threading.enumerate()))
        self.holding.set()
        self.going.wait(300)
        return super().__call__(*arguments, **more)


def workers(threads):
    return {thread for thread in threads if thread.name != "superres-progress"}


def test_a_second_run_is_refused_while_the_first_is_at_work_with_two_more_threads(faces, out):
    before = set(threading.enumerate())
    thread = threading.Thread(target=run, args=(faces, out, Held()), kwargs={"batch_size": 1})
    thread.start()
    Held.holding.wait(300)
    refused(out, (0, 1))
    Held.going.set()
    thread.join()
    # With the one that was started here, and without the one that shows the progress of any
    # command.
    assert max(len(workers(threads) - before) for threads in Held.threads) <= 3
    assert workers(threading.enumerate()) <= before
    assert run(faces, out).skipped == 36


def test_shards_are_merged_into_the_manifest_of_one_run(faces, out, whole):
    threads = [threading.Thread(target=run, args=(faces, out), kwargs={"shard": (index, 4)})
               for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    paths = [out / f"manifest-{index}-of-4.jsonl" for index in range(4)]
    assert merge(paths, out / "manifest.jsonl") == {"ok": 36, "failed": 4}
    for path in paths:
        path.unlink()
    assert contents(out) == whole
    assert run(faces, out).skipped == 36  # one run goes on from the merged manifest


def test_a_merge_prefers_what_succeeded_and_names_what_it_cannot_read(tmp_path):
    failed, done = Row("a", "/o/a.png", "failed", "why"), Row("a", "/o/a.png", "ok", tokens=3)
    for name, rows in (("x", [failed, Row("b", "/o/b.png", "failed", "why")]), ("y", [done]),
                       ("z", [failed])):
        (tmp_path / name).write_bytes(b"".join(row.line() for row in rows))
    assert merge([tmp_path / name for name in "xyz"], tmp_path / "all") == {"ok": 1, "failed": 1}
    assert [row["status"] for row in rows_of(tmp_path, "all")] == ["ok", "failed"]
    merge([tmp_path / "all", tmp_path / "x"], tmp_path / "all")
    assert len(rows_of(tmp_path, "all")) == 2
    with pytest.raises(InvalidInputError, match="nowhere: No such file"):
        merge([tmp_path / "nowhere"], tmp_path / "all")
    with pytest.raises(OutputError, match="choose another --output"):
        merge([tmp_path / "x"], tmp_path / "x" / "y")


@pytest.mark.parametrize(("name", "error", "allowed", "said"), [
    ("superres.batch.folder_store.os.fsync", errno.ENOSPC, 12, "No space left on device; stopped; "
     "finished results"),
    ("superres.batch.folder_store.os.replace", errno.EACCES, 6, "Permission denied; stopped; "
     "finished results"),
])
def test_a_folder_that_takes_no_more_stops_the_run_with_one_line_and_loses_nothing(
    faces, out, whole, monkeypatch, capsys, name, error, allowed, said,
):
    real, count = (os.fsync if "fsync" in name else os.replace), []

    def refuse(*names):
        count.append(names)
        if len(count) > allowed:
            raise OSError(error, os.strerror(error))
        real(*names)

    with monkeypatch.context() as patch:
        patch.setattr(name, refuse)
        patch.setattr("superres.batch.folder_store.os.access", lambda *_: len(count) <= allowed)
        summary = run(faces, out, rows=4, batch_size=2)
    assert (summary.exit_code, bool(summary.stopped)) == (1, True)
    assert capsys.readouterr().err.count(said) == 1
    run(faces, out)
    assert contents(out) == whole


def test_rows_read_back_as_they_were_written():
    row = Row("ä\udcff", "/o/x", "ok", tokens=3, config={"epsilon": [1, 2]}, options={}, sha256="0")
    assert Row.parse(row.line()) == row
    assert json.loads(row.line()) == dataclasses.asdict(row)
    assert Row.parse(b'{"input": "a", "output": "b", "status": "ok", "later": 1}') == Row("a", "b",
                                                                                          "ok")
