"""Nothing is left out in silence: what is done, what fails and what is left out add up to all that
a container has."""

from __future__ import annotations

import io
import os
import random
import re
import stat
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from superres.batch.inputs import find_inputs
from superres.batch.run_options import BatchOptions
from superres.errors import InvalidInputError
from superres.evaluation.survey_methods import read_folder
from superres.system import folders
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask
from tests.batch.helpers import pack, plan, png, read, upscale

pyarrow = pytest.importorskip("pyarrow", reason="the parquet extra is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="the parquet extra is not installed")

BAD = [b"no picture", b"", b"\x89PNG\r\n\x1a\n"]
# suffixes and the kinds as which they count
OTHER = {"txt": ".txt", "JSON": ".json", "xmp": ".xmp", "cr3": ".cr3"}


def values_of(paths, **options):
    """Return the values of the pictures that are read, by input, and the inputs that fail."""
    found = read(plan(map(str, paths), BatchOptions("out", keep_tree=True, **options)))
    return ({name: value for name, value in found if isinstance(value, int)},
            [name for name, error in found if isinstance(error, str)])


def told(capsys, path):
    """Return the numbers of files that a container's line tells: seen, used, and left out by
    kind."""
    pattern = (rf"superres: {re.escape(str(path))}: (\S+) \w+(?:: (\S+) used, \S+ left out "
               rf"\((.*)\))?")
    (found,) = filter(None,
                      (re.match(pattern, line) for line in capsys.readouterr().err.splitlines()))
    kinds = Counter({kind: int(count) for count,
                     kind in (one.split(" ", 1) for one in (found[3] or "").split(", ")
                              if one)})
    return int(found[1]), int(found[2] or found[1]), kinds


class Known:
    """What a random container has: pictures by name, names that fail, and what is left out by
    kind."""

    def __init__(self, seed):
        self.draw, self.number = random.Random(seed), 0
        self.done, self.failed, self.left_out = {}, set(), Counter()

    def name(self, suffix, folder=""):
        self.number += 1
        return f"{folder}{self.draw.choice(['', 'ä ', 'x.y-', '[1]'])}{self.number}{suffix}"

    def files(self, folder="", count=12):
        """Yield random files below a folder, and note what becomes of them."""
        for _ in range(self.draw.randrange(count)):
            kind = self.draw.choice(["png", "PNG", "bad", "other", "none", "hidden", "mac"])
            if kind in ("png", "PNG"):
                name = self.name(f".{kind}", folder)
                self.done[name] = self.draw.randrange(256)
                yield name, png(self.done[name])
                continue
            suffix = self.draw.choice(list(OTHER)) if kind == "other" else "png"
            before = {"hidden": f"{folder}.", "mac": f"{folder}__MACOSX/"}.get(kind, folder)
            name = self.name("" if kind == "none" else f".{suffix}",
                             "") if kind != "none" else f"none{self.number}"
            self.number += 1
            if kind == "bad":
                self.failed.add(before + name)
            else:
                self.left_out[{"other": OTHER.get(suffix), "none": "without suffix",
                               "hidden": "hidden", "mac": "in __MACOSX"}[kind]] += 1
            yield before + name, self.draw.choice(BAD) if kind == "bad" else png(0)

    def check(self, path, capsys, **options):
        """Read a container beside a picture, and compare."""
        beside = path.parent / "beside.png"
        beside.write_bytes(png(7))
        done, failed = values_of([beside, path], **options)
        assert done.pop(str(beside)) == 7
        assert {name.removeprefix(f"{path}/"): value for name, value in done.items()} == self.done
        assert {name.removeprefix(f"{path}/") for name in failed} == self.failed
        assert len(failed) == len(self.failed)
        seen, used, left_out = told(capsys, path)
        assert left_out == self.left_out
        assert used == len(self.done) + len(self.failed)
        assert seen == used + self.left_out.total()


@pytest.mark.parametrize("seed", range(10))
def test_folders_add_up(tmp_path, capsys, seed):
    known, root, recursive = Known(seed), tmp_path / "in", seed % 2 == 1
    root.mkdir()
    below = Known(seed + 1000)
    below.number = 100
    places = ["", "sub/", "sub/deep/"]
    for place in places:
        target = known if recursive or not place else below
        for name, content in target.files(place):
            if "__MACOSX" in name:
                target.left_out["in __MACOSX"] -= 1  # a folder of that name is an ordinary one
                name = name.replace("__MACOSX/", "hidden-")
                target.done[name] = 0
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(content)
    known.left_out = +known.left_out
    if not recursive:
        files = sum(len(names) for parent, _, names in os.walk(root) if parent != str(root))
        known.left_out.update({"in sub-folders": files} if files else {})
    (root / ".cache").mkdir()
    (root / ".cache" / "a.png").write_bytes(png(1))
    os.mkfifo(root / "pipe.png")
    (root / "to-nowhere.png").symlink_to("nowhere.png")
    known.left_out.update({"hidden folder": 1, "not a regular file": 1})
    known.failed.add("to-nowhere.png")
    known.check(root, capsys, recursive=recursive)


@pytest.mark.parametrize("seed", range(14))
def test_tar_files_add_up(tmp_path, capsys, seed):
    known, path = Known(seed), tmp_path / ("a.tar" if seed % 2 else "a.tar.gz")
    with tarfile.open(path, "w" if seed % 2 else "w:gz",
                      format=seed % 3 and tarfile.PAX_FORMAT) as archive:
        def add(name, content=b"", kind=tarfile.REGTYPE, target=""):
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, target
            archive.addfile(member, io.BytesIO(content))

        for place in ("", "sub/", "sub/deep/"):
            add(place or ".", kind=tarfile.DIRTYPE)
            for name, content in known.files(place):
                add(name, content)
        for original in known.draw.sample(sorted(known.done), min(3, len(known.done))):
            hard, soft = known.name(".png", "links/"), known.name(".png", "sub/")
            add(hard, kind=tarfile.LNKTYPE, target=f"./{original}")
            add(soft, kind=tarfile.SYMTYPE, target=os.path.relpath(original, "sub"))
            known.done[hard] = known.done[original]
            # as tar -u does; a hard link keeps the old content, a symbolic one does not
            if known.draw.random() < 0.5:
                known.left_out["replaced by a later member of the same name"] += 1
                known.done[original] = known.draw.randrange(256)
                add(original, png(known.done[original]))
            known.done[soft] = known.done[original]
        add("dangling.png", kind=tarfile.SYMTYPE, target="../../etc/secret.png")
        add("gone.png", kind=tarfile.LNKTYPE, target="nowhere.png")
        add("loop.png", kind=tarfile.SYMTYPE, target="loop.png")
        add("device.png", kind=tarfile.CHRTYPE)
    known.left_out.update({"link without its target": 3, "not a regular file": 1})
    known.check(path, capsys)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("seed", range(10))
def test_zip_files_add_up(tmp_path, capsys, seed):
    known, path = Known(seed), tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for place in ("", "sub/", "sub/deep/"):
            for name, content in known.files(place):
                archive.writestr(name, content)
        archive.mkdir("empty.png")
        for original in known.draw.sample(sorted(known.done), min(2, len(known.done))):
            known.left_out["replaced by a later member of the same name"] += 1
            known.done[original] = known.draw.randrange(256)
            archive.writestr(original, png(known.done[original]))
            link = zipfile.ZipInfo(known.name(".png", "links/"))
            link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(link, f"../{original}")
            known.done[link.filename] = known.done[original]
        archive.writestr("Case.png", png(1))
        archive.writestr("case.png", png(2))
        known.done |= {"Case.png": 1, "case.png": 2}
    known.check(path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_arrays_and_rows_add_up(tmp_path, capsys, seed):
    known, path, count = Known(seed), tmp_path / "a.npz", seed * 9
    known.done = {f"lr/{number:06d}": number for number in range(count)}
    known.left_out = Counter({"array hr": 1, "array ids": 1})
    pictures = np.zeros((count, 8, 8, 3), np.uint8) + np.arange(count, dtype=np.uint8)[:, None,
                                                                                       None, None]
    np.savez(path, lr=pictures, hr=pictures, ids=np.arange(count))
    known.check(path, capsys)
    rows, path = Known(seed), tmp_path / "a.parquet"
    keys, contents = [], []
    for number in range(count):
        key = rows.draw.choice(["7", "x.y", "7-000001", "", None, "sub/7", "7.png"])
        name = (key or f"{number:06d}").removesuffix(".png")
        while f"{name}.png" in rows.done or f"{name}.png" in rows.failed:
            name = f"{name}-{number:06d}"
        keys.append(key)
        contents.append(rows.draw.choice([png(number), png(number), b"bad", None]))
        if contents[-1] in (b"bad", None):
            rows.failed.add(f"{name}.png")
        else:
            rows.done[f"{name}.png"] = number
    parquet.write_table(pyarrow.table({"image": pyarrow.array(contents, pyarrow.binary()),
                                       "key": pyarrow.array(keys, pyarrow.string())}), path)
    rows.check(path, capsys)


KINDS = {
    "binary": pyarrow.binary(), "large_binary": pyarrow.large_binary(),
    "binary_view": pyarrow.binary_view(),
    "dictionary": pyarrow.dictionary(pyarrow.int32(), pyarrow.binary()),
    "fixed": pyarrow.binary(len(png(3))),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, "struct", "struct of views"])
def test_parquet_columns_of_every_binary_type_are_read(tmp_path, kind):
    if kind.startswith("struct"):
        inner = pyarrow.binary_view() if "views" in kind else pyarrow.binary()
        column = pyarrow.array([{"bytes": png(3), "path": "a.png"}],
                               pyarrow.struct([("bytes", inner), ("path", pyarrow.string())]))
    else:
        column = pyarrow.array([png(3)], KINDS[kind])
    parquet.write_table(pyarrow.table({"image": column}), tmp_path / "a.parquet")
    done, failed = values_of([tmp_path / "a.parquet"])
    assert (list(done.values()), failed) == ([3], [])


@pytest.mark.slow
def test_a_parquet_column_of_another_type_is_named_with_its_type(tmp_path):
    parquet.write_table(pyarrow.table({"image": [[1, 2]], "label": [1]}), tmp_path / "a.parquet")
    (entry,) = plan([tmp_path / "a.parquet"], BatchOptions(tmp_path / "out"))
    assert "column image of encoded pictures (binary), and has image: list<" in entry.error
    assert "label: int64" in entry.error


def test_many_containers_share_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(folders, "LINES", 2)
    for number in range(5):
        (tmp_path / "in" / str(number)).mkdir(parents=True)
        (tmp_path / "in" / str(number) / f"{number}.png").write_bytes(png(1))
        (tmp_path / "in" / str(number) / "a.txt").touch()
    values_of(sorted((tmp_path / "in").iterdir()))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert (lines[2] == "superres: 3 further folders and archives: 6 files: 3 used, 3 left out (3 "
            ".txt)")


def test_a_bad_line_of_a_list_fails_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    for name in ("a.png", "in/b.png"):
        Path(name).write_bytes(png(1))
    lines = ["a.png", "in", "in/", "ftp://host/a.png", "s3://faces/a.png", "no\0thing.png", "out/"]
    Path("out").mkdir()
    found = list(find_inputs([], lines, False, False, "out"))
    errors = {entry.input: entry.error for entry in found}
    assert [name for name, error in errors.items() if error is None] == ["a.png", "in/b.png"]
    assert "in is a folder; end its line with / to take its pictures" in errors["in"]
    assert "both an input and the output folder" in errors["out/"]
    assert len(found) == 7


@pytest.fixture
def faces(tmp_path):
    """Two pictures, a note, and two pictures in sub-folders."""
    for name in ("in/a.png", "in/b.png", "in/more/c.png", "in/more/deep/d.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), 9, np.uint8)).save(tmp_path / name)
    (tmp_path / "in" / "notes.txt").touch()
    return tmp_path / "in"


@pytest.mark.parametrize("reader", [lambda path: read_faces(path, FaceTask(8, 32)), read_folder])
def test_data_and_survey_folders_tell_what_they_leave_out_and_how_to_take_it(faces, capsys, reader):
    assert len(reader(faces)) == 2
    assert (f"{faces}: 5 files: 2 used, 3 left out (2 in sub-folders, 1 .txt); 2 of those in "
            f"sub-folders are pictures: '{faces}/**' includes them") in capsys.readouterr().err
    assert len(reader(faces / "**")) == 4
    assert f"{faces}: 5 files: 4 used, 1 left out (1 .txt)" in capsys.readouterr().err
    with pytest.raises(InvalidInputError, match="has no images"):
        reader(faces.parent)


def test_pictures_after_the_limit_are_counted(faces, capsys):
    read_faces(faces, FaceTask(8, 32), limit=1)
    assert ("5 files: 1 used, 4 left out (2 in sub-folders, 1 .txt, 1 after the first "
            "1)" in capsys.readouterr().err)


@pytest.mark.slow
def test_shards_are_read_by_webdataset_with_a_key_per_picture(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    names = ["a.2019.png", "a.2020.png", "a_2020.png", ".b.png", "v1.0/c.d.png", "__x__/e.png",
             "odd\nfolder/f.png", "Case.png", "case.png"]
    pack(tmp_path / "in.zip", dict.fromkeys(names, png(1)))
    rows = pyarrow.table({"image": [png(1), png(2)], "id": [7, 7]})
    parquet.write_table(rows, tmp_path / "in.parquet")
    upscale([tmp_path / name for name in ("in.zip", "in.parquet")], tmp_path / "out",
            layout="webdataset")
    shards = sorted(map(str, (tmp_path / "out").glob("*.tar")))
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode("pil"))
    assert [sample["__key__"] for sample in samples] == [
        "a_2019", "a_2020", "a_2020-2", "v1.0/c_d", "_x__/e", "odd_folder/f", "Case", "case", "7",
        "7-000001"]
    for sample in samples:
        assert sample["png"].size == (32, 32)
        assert sample["json"]["tokens"] == 3072
    lines = [line for path in sorted((tmp_path / "out").glob("*.jsonl"))
             for line in path.read_text().splitlines()]
    assert len(lines) == 10
