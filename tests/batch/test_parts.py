"""Runs in parts end alike: from any place to any place, in files and in shards, interrupted or
not."""

from __future__ import annotations

import functools
import io
import itertools
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeUpscaler
from PIL import Image
from stores import faulty_store

from superres.batch import opening
from superres.batch.parts import Plan
from superres.batch.rows import Row, latest_rows, merge
from superres.batch.run import upscale as upscale_plan
from superres.batch.run_options import BatchOptions
from superres.cli.upscale import allowed_hosts
from superres.config import DecodeConfig
from superres.errors import OutputError, PlaceError
from superres.pictures.mark import DRAWN
from superres.system import stores
from superres.system.paths import Place
from superres.system.places import RemotePlace, known_place
from tests.batch.helpers import CHANGES, contents, killed, pack, png, upscale
from tests.tasks.test_photos import group_photo

pytest.importorskip("s3fs", reason="the cloud extra is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the parquet extra is not installed")

pytestmark = pytest.mark.slow
DRAW = np.random.default_rng(0)


FACES = {f"{number % 3}/{number:02d}.png": png(DRAW.integers(0, 256, (8, 8, 3), np.uint8))
         for number in range(24)}
FACES |= {"0/03.png": b"no picture", "1/22.png": b""}


@pytest.fixture(scope="module")
def store():
    with pytest.MonkeyPatch.context() as patch, faulty_store(patch) as bucket:
        for name, content in FACES.items():
            known_place(f"{bucket}/in/{name}").write(content)
        yield bucket


@pytest.fixture
def faces(tmp_path):
    for name, content in FACES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(content)
    return str(tmp_path / "in")


def run(given, output, layout="files", rows=7, listed=None, allow=(), upscaler=None, **options):
    """Run in parts, as the command does, and return the summary."""
    given = [given] if isinstance(given, str) else given
    allowed = allowed_hosts(given, output, listed, list(allow))
    settings = BatchOptions(output, layout=layout, rows=rows,
                            **{"recursive": True, "keep_tree": True, **options})
    decode = DecodeConfig(temperature=0.9 if options.get("samples", 1) > 1 else 0.0)
    return upscale_plan(Plan(settings, given, listed, allowed), upscaler or FakeUpscaler(), decode)


def pictures(output, layout="files"):
    """Return the pictures of a run by their names."""
    found = {}
    for name, _, _ in known_place(output).files(recursive=True):
        content = known_place(f"{output}/{name}").read(10_000_000)
        if layout == "files" and name.endswith(".png"):
            found[name] = content
        elif name.endswith(".tar"):
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                found |= {member.name: archive.extractfile(member).read() for member in archive
                          if member.name.endswith(".png")}
        elif name.endswith(".parquet"):
            rows = parquet.read_table(io.BytesIO(content)).to_pylist()
            found |= {row["image"]["path"]: row["image"]["bytes"] for row in rows}
    return found


def names_in(output):
    return [found.name for found in known_place(str(output)).files("part-")]


def rows_in(output):
    """Return the rows of all parts without times and places."""
    rows = [json.loads(row.line()) for row in latest_rows(f"{output}/")]
    for row in rows:
        row["seconds"] = None
        row["output"] = (row["output"].removeprefix(output).partition(".tar/")[2]
                         or row["output"].removeprefix(output))
    return rows


@pytest.mark.parametrize("layout", ["files", "webdataset", "parquet"])
def test_from_store_to_store_as_from_folder_to_folder(store, faces, tmp_path, layout):
    upscale(Path(faces), tmp_path / "whole", recursive=True, keep_tree=True)
    whole = {name: content for name, content in contents(tmp_path / "whole").items()
             if name.endswith(".png")}
    there, here = f"{store}/out-{layout}", str(tmp_path / "out")
    for source, output in ((f"{store}/in/", there), (faces, here)):
        summary = run(source, output, layout)
        assert (summary.done, summary.failed, summary.exit_code) == (22, 2, 1)
        assert pictures(output, layout) == whole
        assert all(DRAWN.encode() in picture for picture in whole.values())
        rows = list(latest_rows(f"{output}/"))
        assert len({row.input for row in rows}) == len(rows) == 24
        assert all(row.sha256 and row.input.startswith(source) for row in rows if row.status
                   == "ok")
    assert layout == "files" or names_in(there) == names_in(here)


def test_a_shard_has_keys_statistics_and_no_time_in_it(faces, tmp_path):
    for name, upscaler in (("a", FakeUpscaler()), ("b", FakeUpscaler(seconds_per_call=9.0))):
        run(faces, str(tmp_path / name), "webdataset", upscaler=upscaler)
        run(faces, str(tmp_path / f"{name}-parquet"), "parquet", upscaler=upscaler)
    for kind in ("", "-parquet"):
        for name in names_in(tmp_path / f"a{kind}"):
            if not name.endswith(".jsonl"):
                assert (tmp_path / f"a{kind}" / name).read_bytes() == (tmp_path / f"b{kind}"
                                                                       / name).read_bytes()
    with tarfile.open(tmp_path / "a" / "part-000001.tar") as archive:
        names = archive.getnames()
        record = json.load(archive.extractfile(names[1]))
    assert names[:2] == ["0/21.png", "0/21.json"]
    assert record["tokens"] == 3072
    assert record["input"].endswith("in/0/21.png")
    table = parquet.read_table(tmp_path / "a-parquet" / "part-000001.parquet")
    assert table["key"].to_pylist()[:2] == ["0/21", "1/01"]


def test_shards_are_inputs_whose_keys_are_kept(place, faces, tmp_path):
    for kind, suffix in (("webdataset", "tar"), ("parquet", "parquet")):
        low, output = place("store", f"low-{kind}"), str(tmp_path / kind)
        run(faces, low, kind)
        summary = run(f"{low}/*.{suffix}", output, "webdataset", source="photo", crop="centre")
        assert (summary.done, summary.failed) == (22, 0)
        assert sorted(pictures(output, "webdataset")) == sorted(pictures(low, kind))
    run(f"{place('store', 'low-webdataset')}/*.tar", str(tmp_path / "files"), source="photo",
        crop="centre")
    assert sorted(pictures(str(tmp_path / "files")))[0] == "part-000000/0/00.png"


GOOD = {name: content for name, content in FACES.items() if name not in ("0/03.png", "1/22.png")}


@pytest.fixture
def opened_archives(monkeypatch):
    """Return a list of the archives whose members are read, one entry per pass."""
    passes, real = [], opening.read_members

    def counting(path, label, *rest):
        passes.append(label)
        return real(path, label, *rest)

    monkeypatch.setattr(opening, "read_members", counting)
    return passes


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".zip", ".npz", ".parquet"])
@pytest.mark.parametrize(("kind", "layout"), [("folder", "webdataset"), ("folder", "parquet"),
                                              ("store", "files")])
def test_an_archive_is_done_in_parts_by_one_pass(place, tmp_path, opened_archives, suffix, kind,
                                                 layout):
    archive = pack(tmp_path / f"faces{suffix}", GOOD)
    assert run(archive, place(kind, "out"), layout, rows=5).done == 22
    numbers = {name[:11] for name in names_in(place(kind, "out"))}
    assert numbers == {f"part-{number:06d}" for number in range(5)}
    assert opened_archives == [archive]
    halves = [run(archive, place(kind, "shared"), layout, rows=5, shard=(index, 2))
              for index in range(2)]
    assert [half.done for half in halves] == [12, 10]
    assert opened_archives == [archive] * 3
    assert end_of(place(kind, "shared"), layout) == end_of(place(kind, "out"), layout)
    one = run(archive, place(kind, "out"), layout, rows=3)
    assert (one.done, one.skipped) == (0, 22)


LAYOUTS = [("folder", "files"), ("folder", "webdataset"), ("store", "files"),
           ("store", "webdataset"), ("folder", "parquet")]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a function that gives a new place of this machine or of a store."""
    monkeypatch.setitem(stores.PACKAGES, "memory", "fsspec")

    def named(kind, name):
        return str(tmp_path / name) if kind == "folder" else f"memory://{tmp_path.name}/{name}"

    return named


def end_of(output, layout):
    """Return what a run leaves: its files, and its rows without times and places."""
    found = {name: content for name, content in pictures(output, layout).items()}
    names = sorted(name for name, _, _ in known_place(output).files(recursive=True)
                   if not name.endswith(".jsonl"))
    return found, names, sorted(rows_in(output), key=lambda row: (row["input"], row["output"]))


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
@pytest.mark.parametrize("moment", [1, 2, 5, 7, 11, 20])
def test_a_run_that_is_interrupted_ends_as_an_undisturbed_one(faces, place, monkeypatch, kind,
                                                              layout, moment):
    run(faces, place(kind, "whole"), layout)
    out, calls = place(kind, "out"), []

    def failing(real):
        def call(*names):
            calls.append(names)
            if len(calls) == moment:
                raise PlaceError("the store is away")
            return real(*names)
        return call

    with monkeypatch.context() as patch:
        for name in ("take", "write", "remove"):
            for one in (Place, RemotePlace):
                patch.setattr(one, name, failing(getattr(one, name)))
        stopped = run(faces, out, layout)
    assert (stopped.stopped is None) == (len(calls) < moment)
    resumed = run(faces, out, layout)
    assert resumed.stopped is None
    assert end_of(out, layout) == end_of(place(kind, "whole"), layout)
    again = run(faces, out, layout)
    assert (again.done, again.skipped, again.failed) == (0, 22, 2)


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_what_is_lost_new_or_changed_is_done_by_the_same_command(faces, place, kind, layout):
    out = place(kind, "out")
    run(faces, out, layout)
    lost = next(name for name, _, _ in known_place(out).files(recursive=True)
                if name.endswith((".png", ".tar", ".parquet")))
    known_place(f"{out}/{lost}").remove()
    assert run(faces, out, layout).done == (1 if layout == "files" else 6)
    for name in ("1/015.png", "a.png"):  # in the middle and at the beginning
        Path(faces, name).write_bytes(FACES["0/00.png"])
    assert run(faces, out, layout).done == 2
    Path(faces, "2/02.png").write_bytes(FACES["1/01.png"])
    changed = run(faces, out, layout)
    assert changed.done == (1 if layout == "files" else changed.done)
    assert 1 <= changed.done <= 7
    made = pictures(out, layout)
    assert len(made) == 24
    assert made["2/02.png"] == made["1/01.png"]
    rows = [row for row in rows_in(out) if row["status"] == "ok"]
    assert len({row["input"] for row in rows}) == len(rows) == 24
    assert run(faces, out, layout).skipped == 24
    run(faces, place(kind, "whole"), layout)
    assert made == pictures(place(kind, "whole"), layout)


def test_an_overwrite_that_is_killed_anywhere_ends_with_one_setting(tmp_path):
    for number in range(2):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.png").write_bytes(FACES[f"{number}/0{number}.png"])
    faces, whole, layout = str(tmp_path / "in"), str(tmp_path / "whole"), "webdataset"
    run(faces, whole, layout, rows=1, crop="centre")
    for moment in itertools.count(1):
        out = str(tmp_path / f"out-{moment}")
        run(faces, out, layout, rows=2)
        overwrite = functools.partial(run, faces, out, layout, rows=1, crop="centre",
                                      on_existing="overwrite")
        if not killed(overwrite, moment, CHANGES):
            break
        overwrite()
        assert end_of(out, layout) == end_of(whole, layout)
    assert moment > 10


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_a_file_of_the_same_size_is_found_by_its_digest_alone(faces, place, kind, layout):
    out = place(kind, "out")
    run(faces, out, layout)
    whole = end_of(out, layout)
    name = next(name for name, _, _ in known_place(out).files(recursive=True)
                if name.endswith((".png", ".tar", ".parquet")))
    content = known_place(f"{out}/{name}").read(10_000_000)
    known_place(f"{out}/{name}").write(content[:-20] + b"x" + content[-19:])
    assert run(faces, out, layout).done == 0
    assert run(faces, out, layout, verify=True).done >= 1
    assert end_of(out, layout) == whole


def test_a_store_that_is_away_while_inputs_are_read_loses_nothing(faces, tmp_path, monkeypatch):
    real, asked = RemotePlace.read, []

    def sometimes(place, most):
        asked.append(place)
        if len(asked) == 12:
            raise PlaceError(f"cannot read {place.text} at present")
        return real(place, most)

    monkeypatch.setattr(RemotePlace, "read", sometimes)
    monkeypatch.setitem(stores.PACKAGES, "memory", "fsspec")
    for name, content in FACES.items():
        known_place(f"memory://in/{name}").write(content)
    out = str(tmp_path / "out")
    summary = run("memory://in/", out)
    assert "at present" in summary.stopped
    assert summary.exit_code == 1
    run("memory://in/", out)
    assert len(pictures(out)) == 22
    assert len(list(latest_rows(f"{out}/"))) == 24


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_other_settings_are_refused_and_redone_when_asked(faces, place, kind, layout):
    out = place(kind, "out")
    run(faces, out, layout)
    with pytest.raises(OutputError, match=r"crop 'face' there, 'centre' now.*--on-existing redo"):
        run(faces, out, layout, crop="centre")
    for mode in ("redo", "overwrite"):
        assert run(faces, out, layout, crop="centre", on_existing=mode).done == 22
    assert run(faces, out, layout, crop="centre", on_existing="redo").done == 0
    assert len(rows_in(out)) == 24
    run(faces, place(kind, "whole"), layout, crop="centre")
    assert end_of(out, layout) == end_of(place(kind, "whole"), layout)


def test_faces_and_samples_of_a_photo_are_in_one_part(tmp_path):
    (tmp_path / "in").mkdir()
    Image.fromarray(group_photo()[0]).save(tmp_path / "in" / "party.png")
    (tmp_path / "in" / "small.png").write_bytes(FACES["0/00.png"])
    (tmp_path / "in" / "zero.png").write_bytes(b"")
    summary = run(str(tmp_path / "in"), str(tmp_path / "out"), "webdataset", samples=2, rows=1)
    assert (summary.done, summary.failed) == (8, 2)
    assert sorted(pictures(str(tmp_path / "out"), "webdataset")) == sorted(
        [f"party-face{face}-{sample}.png" for face in (1, 2, 3) for sample in (1, 2)]
        + ["small-1.png", "small-2.png"])


def test_a_list_names_only_places_of_the_command_line(store, faces, tmp_path, capfd):
    listed = tmp_path / "list"
    lines = [f"{store}/in/0/00.png", "s3://other/a.png", "https://elsewhere/b.png",
             "ftp://elsewhere/c.png", f"{faces}/1/01.png"]
    listed.write_text("\n".join(lines))
    out = str(tmp_path / "out")
    summary = run([], out, listed=str(listed), allow=[store])
    assert (summary.done, summary.failed) == (2, 3)
    refused = [row for row in latest_rows(f"{out}/") if row.error]
    assert all("is at a place that the command line does not name" in row.error for row in refused)
    known_place(f"{store}/lists/all.txt").write(listed.read_bytes())
    away = run([], str(tmp_path / "away"), listed=f"{store}/lists/all.txt")
    assert (away.done, away.failed) == (1, 4)
    assert any("path of this machine" in row.error for row in latest_rows(f"{tmp_path}/away")
               if row.error)


def test_manifests_of_parts_and_of_shards_merge_in_a_stream(store, faces, tmp_path):
    run(f"{store}/in/", f"{store}/merged")
    counts = merge([f"{store}/merged/"], f"{store}/merged/all.jsonl")
    assert counts == {"ok": 22, "failed": 2}
    assert len(list(latest_rows(f"{store}/merged/all.jsonl"))) == 24
    rows = [Row(f"{number}", f"/{number % 50}", "failed" if number % 3 else "ok")
            for number in range(200)]
    for index in range(2):
        (tmp_path / f"{index}").write_bytes(b"".join(row.line() for row in rows[index::2]))
    assert merge([str(tmp_path / "0"), str(tmp_path / "1")], str(tmp_path / "all")).total() == 50
    assert len(list(latest_rows(str(tmp_path / "all")))) == 50


KEYS = ["a#b.png", "a?b.png", "a[1].png", "a*.png", "in[1]/x?.png", "b?c=1.png", "in1/x1.png",
        "a1.png"]


@pytest.fixture(scope="module")
def keys(store):
    """A folder of the store with keys that look like patterns, and a note."""
    for name in [*KEYS, "notes#1.txt"]:
        known_place(f"{store}/keys/{name}").write(FACES["0/00.png"])
    return f"{store}/keys"


@pytest.mark.parametrize(("given", "expected"), [
    ("", KEYS), ("a#b.png", ["a#b.png"]), ("a?b.png", ["a?b.png"]), ("a[1].png", ["a[1].png"]),
    ("a*.png", ["a*.png"]), ("in[1]/", ["in[1]/x?.png"]), ("in[1]/*.png", ["in[1]/x?.png"]),
    ("a[0-9].png", ["a1.png"]), ("b?c*.png", ["b?c=1.png"]),
])
def test_keys_with_signs_of_patterns_are_taken_as_they_are_spelt_first(keys, tmp_path, capsys,
                                                                       given, expected):
    output = str(tmp_path) if given else f"{keys}-out"  # the keys are names of outputs, too
    summary = run(f"{keys}/{given}", output)
    assert (summary.done, summary.failed) == (len(expected), 0)
    assert sorted(row.input for row in latest_rows(f"{output}/")) == sorted(f"{keys}/{name}"
                                                                            for name in expected)
    if not given:
        assert sorted(pictures(output)) == sorted(expected)
        assert f"{keys}/: 9 files: 8 used, 1 left out (1 .txt)" in capsys.readouterr().err


def test_sub_folders_of_a_store_that_are_not_read_are_counted(store, tmp_path, capsys):
    for name in ("x.png", "y/z.png", ".hidden.png"):
        known_place(f"{store}/tree/{name}").write(FACES["0/00.png"])
    assert run(f"{store}/tree/", str(tmp_path / "out"), recursive=False).done == 1
    assert (f"{store}/tree/: 3 files: 1 used, 2 left out (1 hidden, 1 sub-folder); --recursive "
            "includes sub-folders"
            ) in capsys.readouterr().err
