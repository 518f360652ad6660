"""Runs in parts end alike: from any place to any place, in files and in shards, interrupted or
not."""

from __future__ import annotations

import functools
import io
import itertools
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from batch_tools import contents, upscale
from fakes import FakeUpscaler
from killing import CHANGES, die, killed
from PIL import Image
from stores import faulty_store

from superres.batch import inputs, opening, part_store
from superres.batch.parts import Plan
from superres.batch.rows import Row, latest_rows, merge
from superres.batch.run import upscale as upscale_plan
from superres.batch.run_options import BatchOptions
from superres.cli.upscale import allowed_hosts
from superres.config import DecodeConfig
from superres.errors import InvalidInputError, OutputError, PlaceError
from superres.pictures.mark import DRAWN
from superres.system import places, progress
from superres.system.places import files_in, read_place, write_place
from tests.tasks.test_photos import group_photo

pytest.importorskip("s3fs", reason="the cloud extra is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the parquet extra is not installed")

pytestmark = pytest.mark.slow
DRAW = np.random.default_rng(0)


def png(pixels):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


FACES = {f"{number % 3}/{number:02d}.png": png(DRAW.integers(0, 256, (8, 8, 3), np.uint8))
         for number in range(24)}
FACES |= {"0/03.png": b"no picture", "1/22.png": b""}


@pytest.fixture(scope="module")
def store():
    with pytest.MonkeyPatch.context() as patch, faulty_store(patch) as bucket:
        for name, content in FACES.items():
            write_place(f"{bucket}/in/{name}", content)
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
    allowed = allowed_hosts([*given, output, listed or ""], list(allow), listed)
    settings = BatchOptions(output, layout, rows,
                            **{"recursive": True, "keep_tree": True, **options})
    decode = DecodeConfig(temperature=0.9 if options.get("samples", 1) > 1 else 0.0)
    return upscale_plan(Plan(settings, given, listed, allowed), upscaler or FakeUpscaler(), decode)


def pictures(output, layout="files"):
    """Return the pictures of a run by their names."""
    found = {}
    for name, _, _ in files_in(output, recursive=True):
        content = read_place(f"{output}/{name}", 10_000_000)
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
    return [found.name for found in files_in(str(output), "part-")]


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


def test_shards_are_inputs_whose_keys_are_kept(store, tmp_path):
    for kind in ("webdataset", "parquet"):
        run(f"{store}/in/", f"{store}/low-{kind}", kind)
    whole = pictures(f"{store}/low-parquet", "parquet")
    for kind, suffix in (("webdataset", "tar"), ("parquet", "parquet")):
        output = str(tmp_path / kind)
        summary = run(f"{store}/low-{kind}/*.{suffix}", output, "webdataset", source="photo",
                      crop="centre")
        assert (summary.done, summary.failed) == (22, 0)
        assert sorted(pictures(output, "webdataset")) == sorted(whole)
    run(f"{store}/low-webdataset/*.tar", str(tmp_path / "files"), source="photo", crop="centre")
    assert sorted(pictures(str(tmp_path / "files")))[0] == "part-000000/0/00.png"


def test_a_damaged_shard_is_named_once_and_the_others_are_done(tmp_path):
    for name in ("a", "b"):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as archive:
            for key in ("0.png", "1.png", "1.jpg"):
                member = tarfile.TarInfo(key)
                member.size = len(FACES["0/00.png"])
                archive.addfile(member, io.BytesIO(FACES["0/00.png"]))
    content = (tmp_path / "b.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(content[:700])
    (tmp_path / "c.tar").write_bytes(b"no archive")
    summary = run([str(tmp_path / f"{name}.tar") for name in "abc"], str(tmp_path / "out"),
                  "webdataset")
    assert (summary.done, summary.failed) == (3, 3)
    errors = [row.error for row in latest_rows(f"{tmp_path}/out") if row.error]
    assert "b.tar/0.png cannot be unpacked" in errors[0]
    assert "b.tar is damaged" in errors[1]
    assert "c.tar is damaged or not an archive" in errors[2]
    assert list(pictures(f"{tmp_path}/out", "webdataset")) == ["0.png", "1.png", "1-2.png"]


def packed_as(path, members):
    """Pack pictures into an archive of the kind that its suffix names, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
    elif path.suffix == ".npz":
        np.savez(path, np.array([Image.open(io.BytesIO(content)) for content in members.values()]))
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.table({"image": list(members.values()), "key": list(members)}),
                            path)
    else:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as archive:
            for name, content in members.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return str(path)


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
    archive = packed_as(tmp_path / f"faces{suffix}", GOOD)
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


@pytest.mark.parametrize("layout", ["webdataset", "parquet"])
def test_a_run_that_is_killed_in_an_archive_keeps_its_finished_parts(tmp_path, layout):
    """Members of the same names in two archives and in files share parts, under keys of their
    own."""
    members = dict(list(GOOD.items())[:4])
    given = [packed_as(tmp_path / "a.tar.gz", members), packed_as(tmp_path / "b.zip", members)]
    run(given, str(tmp_path / "whole"), layout, rows=3)

    def dying(out, moment):
        # writes the manifest, and thereby ends a part
        calls, real = itertools.count(1), part_store.write_place

        def write(*manifest):
            real(*manifest)
            if next(calls) == moment:
                die()

        part_store.write_place = write
        run(given, out, layout, rows=3)

    for moment in (1, 2):
        out = str(tmp_path / f"out-{moment}")
        assert killed(functools.partial(dying, out, moment))
        resumed = run(given, out, layout, rows=3)
        assert (resumed.skipped, resumed.done) == (3 * moment, 8 - 3 * moment)
        assert end_of(out, layout) == end_of(str(tmp_path / "whole"), layout)
    made = [json.loads(row.line()) for row in latest_rows(str(tmp_path / "whole"))]
    assert len({row["output"] for row in made}) == len(made) == 8


def test_the_members_of_an_archive_are_counted_before_they_are_read(tmp_path, monkeypatch):
    totals, real = set(), progress.Progress.to

    def to(self, done, note=""):
        totals.add(self.total)
        real(self, done, note)

    monkeypatch.setattr(progress.Progress, "to", to)
    for index, total in enumerate((12, 10)):
        totals.clear()
        run(packed_as(tmp_path / "a.tar", GOOD), str(tmp_path / "out"), "webdataset", rows=5,
            shard=(index, 2))
        assert totals - {None} == {total}  # None while the inputs are listed


def test_an_archive_whose_store_is_away_stops_the_run(place, tmp_path, monkeypatch):
    away = place("store", "a.tar")
    write_place(away, Path(packed_as(tmp_path / "a.tar", GOOD)).read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(inputs, "list_members",
                      lambda *_: (_ for _ in ()).throw(PlaceError("the store is away")))
        with pytest.raises(PlaceError, match="the store is away"):
            run(away, str(tmp_path / "out"), "webdataset")
    assert run(away, str(tmp_path / "out"), "webdataset").done == 22


LAYOUTS = [("folder", "files"), ("folder", "webdataset"), ("store", "files"),
           ("store", "webdataset"), ("folder", "parquet")]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return a function that gives a new place of this machine or of a store."""
    monkeypatch.setitem(places.PACKAGES, "memory", "fsspec")

    def named(kind, name):
        return str(tmp_path / name) if kind == "folder" else f"memory://{tmp_path.name}/{name}"

    return named


def end_of(output, layout):
    """Return what a run leaves: its files, and its rows without times and places."""
    found = {name: content for name, content in pictures(output, layout).items()}
    names = sorted(name for name, _, _ in files_in(output, recursive=True)
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
        for name in ("move_to", "write_place", "remove"):
            patch.setattr(part_store, name, failing(getattr(part_store, name)))
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
    lost = next(name for name, _, _ in files_in(out, recursive=True)
                if name.endswith((".png", ".tar", ".parquet")))
    places.remove(f"{out}/{lost}")
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


@pytest.mark.parametrize(("kind", "layout"), [one for one in LAYOUTS if one[0] == "folder"])
def test_an_overwrite_that_is_killed_anywhere_ends_with_one_setting(tmp_path, layout, kind):
    for number in range(2):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{number}.png").write_bytes(FACES[f"{number}/0{number}.png"])
    faces, whole = str(tmp_path / "in"), str(tmp_path / "whole")
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
    name = next(name for name, _, _ in files_in(out, recursive=True)
                if name.endswith((".png", ".tar", ".parquet")))
    content = read_place(f"{out}/{name}", 10_000_000)
    write_place(f"{out}/{name}", content[:-20] + b"x" + content[-19:])
    assert run(faces, out, layout).done == 0
    assert run(faces, out, layout, verify=True).done >= 1
    assert end_of(out, layout) == whole


def test_a_store_that_is_away_while_inputs_are_read_loses_nothing(faces, tmp_path, monkeypatch):
    real, asked = opening.read_place, []

    def sometimes(place, most):
        asked.append(place)
        if len(asked) == 12:
            raise PlaceError(f"cannot read {place} at present")
        return real(place, most)

    monkeypatch.setattr(opening, "read_place", sometimes)
    monkeypatch.setitem(places.PACKAGES, "memory", "fsspec")
    for name, content in FACES.items():
        write_place(f"memory://in/{name}", content)
    out = str(tmp_path / "out")
    summary = run("memory://in/", out)
    assert "at present" in summary.stopped
    assert summary.exit_code == 1
    run("memory://in/", out)
    assert len(pictures(out)) == 22
    assert len(list(latest_rows(f"{out}/"))) == 24


def test_shards_of_a_run_share_its_plan(faces, tmp_path):
    out = str(tmp_path / "out")
    counts = [run(faces, out, "webdataset", rows=5, shard=(index, 2)) for index in range(2)]
    assert sum(one.done for one in counts) == 22
    assert all(one.done > 5 for one in counts)
    assert len(pictures(out, "webdataset")) == 22


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


def test_inputs_of_one_name_are_refused_before_anything_is_decoded(faces, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "00.png").write_bytes(FACES["0/00.png"])
    out = str(tmp_path / "out")
    with pytest.raises(InvalidInputError, match=r"would both be written to .*/00\.png"):
        run([f"{faces}/0/00.png", str(tmp_path / "other" / "00.png")], out, rows=1)
    (tmp_path / "other" / "00-face2.png").write_bytes(FACES["0/00.png"])
    with pytest.raises(InvalidInputError, match=r"may show several faces, and then face 2 and"):
        run(str(tmp_path / "other"), out, rows=1)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match=r"no image \(.*\) in"):
        run(str(tmp_path / "empty"), out)
    assert not (tmp_path / "out").exists()


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
    write_place(f"{store}/lists/all.txt", listed.read_bytes())
    away = run([], str(tmp_path / "away"), listed=f"{store}/lists/all.txt")
    assert (away.done, away.failed) == (1, 4)
    assert any("path of this machine" in row.error for row in latest_rows(f"{tmp_path}/away")
               if row.error)


def test_a_member_never_leaves_the_place(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("../../x.png", "/etc/y.png", "ok/z.png"):
            member = tarfile.TarInfo(name)
            member.size = len(FACES["0/00.png"])
            archive.addfile(member, io.BytesIO(FACES["0/00.png"]))
    run(str(tmp_path / "a.tar"), str(tmp_path / "deep" / "out"))
    found = {str(path.relative_to(tmp_path / "deep" / "out" / "a"))
             for path in tmp_path.rglob("*.png")}
    assert found == {"x.png", "etc/y.png", "ok/z.png"}


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


def test_the_name_of_an_archive_is_a_folder_of_outputs(place, tmp_path):
    packed = packed_as(tmp_path / "sub" / "faces-000001.tar.gz", FACES)
    assert run(packed, place("store", "out")).done == 22
    assert {f"faces-000001/{name}" for name in FACES} > set(pictures(place("store", "out")))


KEYS = ["a#b.png", "a?b.png", "a[1].png", "a*.png", "in[1]/x?.png", "b?c=1.png", "in1/x1.png",
        "a1.png"]


@pytest.fixture(scope="module")
def keys(store):
    """A folder of the store with keys that look like patterns, and a note."""
    for name in [*KEYS, "notes#1.txt"]:
        write_place(f"{store}/keys/{name}", FACES["0/00.png"])
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


def test_lines_of_a_list_name_keys_as_they_are_spelt_and_fail_alone(store, tmp_path):
    for name in KEYS[:4]:
        write_place(f"{store}/lines/{name}", FACES["0/00.png"])
    lines = [f"{store}/lines/{name}" for name in KEYS[:4]]
    bad = [f"{store}/lines/a.png?X-Amz-Signature=secret", "s3://key:secret@faces/a.png",
           f"{store}/lines"]
    (tmp_path / "list").write_text("".join(f"{line}\n" for line in [*bad, *lines]))
    summary = run([], str(tmp_path / "out"), listed=str(tmp_path / "list"), allow=[store])
    assert (summary.done, summary.failed) == (4, 3)
    failed = [row for row in latest_rows(f"{tmp_path}/out") if row.error]
    assert "would be recorded" in failed[0].error
    assert not any("secret" in f"{row.input} {row.error}" for row in failed)


def test_sub_folders_of_a_store_that_are_not_read_are_counted(store, tmp_path, capsys):
    for name in ("x.png", "y/z.png", ".hidden.png"):
        write_place(f"{store}/tree/{name}", FACES["0/00.png"])
    assert run(f"{store}/tree/", str(tmp_path / "out"), recursive=False).done == 1
    assert (f"{store}/tree/: 3 files: 1 used, 2 left out (1 hidden, 1 sub-folder); --recursive "
            "includes sub-folders"
            ) in capsys.readouterr().err


def test_archives_of_a_run_in_parts_are_counted(tmp_path, capsys):
    run(str(archive_of(tmp_path)), str(tmp_path / "out"), "webdataset")
    assert f"{tmp_path}/a.tar: 3 members: 1 used, 2 left out (2 .json)" in capsys.readouterr().err


def archive_of(folder):
    with tarfile.open(folder / "a.tar", "w") as archive:
        for name in ("a.png", "a.json", "b.json"):
            member = tarfile.TarInfo(name)
            member.size = len(FACES["0/00.png"])
            archive.addfile(member, io.BytesIO(FACES["0/00.png"]))
    return folder / "a.tar"
