"""What can be given to a batch, in which order it comes, and what is said of what cannot be
read."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from superres.batch import names as names_of_outputs
from superres.batch.archives import READER
from superres.batch.inputs import read_list
from superres.batch.opening import open_inputs
from superres.batch.run_options import BatchOptions
from superres.errors import InvalidInputError
from superres.system import text_files
from tests.batch.helpers import pack, plan, png, read

SOURCES = np.zeros((6, 8, 8, 3), np.uint8) + np.arange(6, dtype=np.uint8)[:, None, None, None]


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Faces 0 to 5 in folders; the current folder is the one above."""
    monkeypatch.chdir(tmp_path)
    paths = ["in/b.png", "in/ä ö.png", "in/sub/c.png", "in/sub/deep/d.png", "in/z/e.png", "f.png"]
    for value, name in enumerate(paths):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(png(value))
    return tmp_path


def jobs(*inputs, listed=(), **options):
    return plan(inputs, BatchOptions(Path("out"), **options), listed)


def sources(found, **options):
    """Read jobs; returns the number of each one's face, or what is wrong with it."""
    return [value for _, value in read(found, **options)]


def names(found):
    return [(job.input, job.name) for job in found]


def test_folders_give_their_tree_when_asked_to_keep_it(tree):
    found = jobs("in", "f.png", recursive=True, keep_tree=True, suffix="-large",
                 format="webp-lossless")
    assert [job.name for job in found] == ["b", "ä ö", "sub/c", "sub/deep/d", "z/e", "f"]
    assert sources(found) == [0, 1, 2, 3, 4, 5]
    options = BatchOptions(tree / "out", suffix="-large", format="webp-lossless", samples=2)
    assert options.outputs(found[2]) == [f"{tree}/out/sub/c-1-large.webp",
                                         f"{tree}/out/sub/c-2-large.webp"]


def test_a_pattern_gives_what_matches_in_order_and_its_folders_below_the_fixed_part(tree):
    assert names(jobs("in/**/*.png", keep_tree=True)) == [
        ("in/b.png", "b"), ("in/sub/c.png", "sub/c"), ("in/sub/deep/d.png", "sub/deep/d"),
        ("in/z/e.png", "z/e"), ("in/ä ö.png", "ä ö")]
    assert names(jobs("in/[bc].png")) == [("in/b.png", "b")]
    (tree / "a[1].png").write_bytes(png(3))
    assert sources(jobs("a[1].png")) == [3]  # is no pattern
    with pytest.raises(InvalidInputError, match=r"nothing matches in/\*\.gif"):
        jobs("in/*.gif")


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\0"])
def test_a_list_names_files_folders_and_their_tree(tree, monkeypatch, separator):
    lines = [b"in/sub/c.png", "in/ä ö.png".encode(), b"in/z/", b"in/sub/../sub/c.png", b""]
    (tree / "list.txt").write_bytes(separator.join(lines))
    listed = list(read_list("list.txt"))
    assert [job.name for job in jobs(listed=listed, keep_tree=True)] == ["in/sub/c", "in/ä ö", "e"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(separator.join(lines))))
    assert list(read_list("-")) == listed
    with pytest.raises(InvalidInputError, match="cannot read the list nowhere"):
        list(read_list("nowhere"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
def test_a_list_of_another_program_names_what_it_names(tree, encoding):
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tree / "list.txt").write_bytes(f"{mark}in/b.png\r\nin/ä ö.png\r\n".encode(encoding))
    assert list(read_list("list.txt")) == ["in/b.png", "in/ä ö.png"]


def test_a_list_of_utf_16_without_a_mark_is_refused_and_names_of_one_letter_are_read(tree):
    (tree / "list.txt").write_bytes("in/b.png\n".encode("utf-16-le"))
    with pytest.raises(InvalidInputError, match=r"the list list\.txt is UTF-16 without a byte "
                       r"order mark; convert it"):
        list(read_list("list.txt"))
    (tree / "list.txt").write_bytes(b"a\0b\0c\0")
    assert list(read_list("list.txt")) == ["a", "b", "c"]


def test_a_line_of_any_length_is_read_in_linear_time(tree, monkeypatch):
    """Each byte is decoded once, however long the line is."""
    monkeypatch.setattr(text_files, "CHUNK", 3)
    lines = ["x" * 10_000, "ä" * 1_001, "\udcff.png"]  # the last one is a name that is not UTF-8
    (tree / "list.txt").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    assert list(read_list("list.txt")) == lines


def test_an_input_is_taken_once_however_it_is_spelt(tree):
    assert names(jobs("in/b.png", "./in/b.png", "in", str(tree / "in" / "b.png"))) == [
        ("in/b.png", "b"), ("in/ä ö.png", "ä ö")]


def test_what_lies_outside_the_tree_is_not_written_there(tree):
    (tree / "below").mkdir()
    os.chdir(tree / "below")
    (found,) = jobs(listed=["../f.png"], keep_tree=True)
    assert "outside" in found.error
    (absolute,) = jobs(listed=[str(tree / "f.png")], keep_tree=True)
    assert absolute.name == f"{tree}/f".lstrip("/")


MEMBERS = {"x/a.png": png(0), "notes.txt": b"no picture", "x/.hidden.png": png(1), "b.png": png(2),
           "y/c.png": png(3), "__MACOSX/b.png": b"resource fork"}


@pytest.mark.parametrize("name", ["faces.zip", "faces.tar", "faces.tgz", "faces.tar.xz"])
def test_pictures_in_archives_are_inputs_with_their_own_names_and_tree(tree, name):
    pack(tree / name, MEMBERS)
    assert names(jobs(name)) == [(f"{name}/x/a.png", "a"), (f"{name}/b.png", "b"),
                                 (f"{name}/y/c.png", "c")]
    found = jobs("f.png", name, "in", keep_tree=True)
    assert [job.name for job in found] == ["f", "faces/x/a", "faces/b", "faces/y/c", "b", "ä ö"]
    assert sources(found) == [5, 0, 2, 3, 0, 1]
    assert sources([found[1], found[3]]) == [0, 3]  # some are left out


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_are_inputs(tree, save):
    save(tree / "set.npz", hr=np.zeros((6, 32, 32, 3), np.uint8), lr=SOURCES,
         ids=np.arange(6, dtype=np.int32))
    save(tree / "plain.npz", SOURCES[:2])
    found = jobs("set.npz", "plain.npz")
    assert names(found)[1] == ("set.npz/lr/000001", "set-000001")
    assert names(found)[7] == ("plain.npz/arr_0/000001", "plain-000001")
    assert sources(found) == [0, 1, 2, 3, 4, 5, 0, 1]
    assert sources([found[1], found[4]]) == [1, 4]
    assert jobs("set.npz", keep_tree=True, shard=(2, 3))[0].name == "set/000004"


@pytest.mark.parametrize(("name", "content"), [
    ("bad.zip", b"PK\x03\x04 cut"), ("bad.tar", b"nothing"), ("bad.tar.gz", b"\x1f\x8b cut"),
    ("bad.npz", b""), ("gone.zip", None),
])
def test_an_archive_that_cannot_be_listed_costs_one_row(tree, name, content):
    if content is not None:
        (tree / name).write_bytes(content)
    first, second = jobs(name, "f.png")
    assert f"{name} is damaged or not an archive" in first.error
    assert (second.input, sources([first, second])) == ("f.png", [first.error, 5])


@pytest.mark.parametrize(("arrays", "says"), [
    ({"a": SOURCES, "b": SOURCES}, "it needs an array lr, or only one, not a.npy, b.npy"),
    ({"lr": SOURCES.astype(float)}, "lr must be uint8 [N, H, W, 3], not float64"),
    ({"lr": SOURCES[0]}, "lr must be uint8"),
    ({"lr": np.asfortranarray(SOURCES)}, "lr must be uint8"),
])
def test_arrays_of_another_kind_are_refused(tree, arrays, says):
    np.savez(tree / "set.npz", **arrays)
    (job,) = jobs("set.npz")
    assert says in job.error


def test_a_damaged_member_costs_its_own_row_and_a_cut_tar_those_behind(tree):
    pack(tree / "faces.zip", {"a.png": png(0), "b.png": png(1), "c.png": png(2),
                                  "empty.png": b""})
    content = (tree / "faces.zip").read_bytes()
    place = content.index(b"b.png") + 40
    (tree / "faces.zip").write_bytes(content[:place] + b"\0\0\0\0" + content[place + 4 :])
    zero, one, two, empty = sources(jobs("faces.zip"))
    assert (zero, two) == (0, 2)
    assert "faces.zip/b.png" in one
    assert "faces.zip/empty.png is empty" in empty
    pack(tree / "cut.tar", {"a.png": png(0), "b.png": png(1), "c.png": png(2)})
    found = jobs("cut.tar")
    (tree / "cut.tar").write_bytes((tree / "cut.tar").read_bytes()[:550])
    results = sources(found)
    assert [isinstance(result, str) and "cut.tar" in result for result in results] == [True] * 3
    assert "cut.tar is damaged" in jobs("cut.tar")[-1].error


def test_an_archive_whose_reader_is_killed_is_not_called_damaged(tree, monkeypatch):
    pack(tree / "faces.zip", {"a.png": png(1)})
    READER.close()
    monkeypatch.setattr("superres.system.confined._START", "import os; os.kill(os.getpid(), 9)")
    (entry,) = jobs("faces.zip")
    assert (entry.error == "faces.zip was not listed (its process ended with signal 9); give the "
            "same command again")


def test_messages_about_members_are_short_and_printable_whatever_their_names(tree):
    folder = "x\x1b[2J" * 500
    pack(tree / "faces.zip", {f"{folder}/a.png": b"", f"{folder}/b.png": png(1)})
    pack(tree / "cut.tar", {f"{folder}/a.png": b"", f"{folder}/b.png": png(1)})
    found = [*jobs("faces.zip"), *jobs("cut.tar")]
    (tree / "cut.tar").write_bytes((tree / "cut.tar").read_bytes()[:6000])
    contents = [content for _, content in open_inputs(found)]
    messages = [str(content) for content in contents if isinstance(content, InvalidInputError)]
    assert len(messages) == 3
    for message in messages:
        assert message.startswith(("faces.zip/", "cut.tar/"))
        assert len(message) < 1000
        assert message.isprintable()


@pytest.mark.parametrize("when", [0, 1])
def test_no_member_of_an_archive_that_is_replaced_has_the_name_of_another(tree, when):
    for name in ("old", "new"):
        with zipfile.ZipFile(f"{name}.zip", "w") as archive:
            for number in range(3):
                archive.writestr(f"{name}{number}.png", name)
    found = open_inputs(jobs("old.zip"))
    contents = [next(found)[1].read() for _ in range(when)]
    os.replace("new.zip", "old.zip")
    left = [str(content) for _, content in found]
    assert contents == [b"old"] * when
    assert left == [f"old.zip/old{number}.png is not used: old.zip was changed or removed after it "
                    "was listed; give the same command again" for number in range(when, 3)]


@pytest.mark.parametrize(("name", "inside"), [
    ("../../x.png", "x"), ("/etc/x.png", "etc/x"), ("a/../../x.png", "x"),
    ("y.png/../../x.png", "x"), ("a//./x.png", "a/x"),
])
@pytest.mark.parametrize(("layout", "folder"), [("files", "evil/"), ("webdataset", "")])
def test_members_never_leave_the_folder_of_their_archive(tree, name, inside, layout, folder):
    pack(tree / "evil.zip", {name: png(0)})
    assert ([job.name for job in jobs("evil.zip", keep_tree=True, layout=layout)]
            == [f"{folder}{inside}"])
    (flat,) = jobs("evil.zip")
    assert flat.name == "x"


def test_names_that_other_systems_do_not_take_are_told_before_the_run(tree, capsys, monkeypatch):
    names = ["Anna.png", "anna.png", "e\u0301.png", "\u00c9.png", "A/b.png", "a/c.png", "con.png",
             "x/what?.png", "y./a.png"]
    pack(tree / "a.zip", dict.fromkeys(names, png(0)))
    assert len(jobs("a.zip", keep_tree=True)) == 9
    refused, alike = capsys.readouterr().err.splitlines()[1:]
    assert refused.startswith("superres: results with names that Windows refuses: 3, such as "
                              "a/con.png; rename")
    assert alike.startswith("superres: results with names that differ only in case or Unicode "
                            "form: 4, such as a/Anna.png and a/anna.png; Windows and macOS keep "
                            "only one of each; rename")
    jobs("a.zip", layout="webdataset")
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(names_of_outputs, "IGNORES_CASE", True)
    with pytest.raises(InvalidInputError, match="names that differ only in case or Unicode form: "
                       "4"):
        jobs("a.zip", keep_tree=True)


def test_a_folder_or_file_that_cannot_be_read_costs_one_row(tree, monkeypatch):
    real = os.scandir

    def refuse(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("superres.system.folders.os.scandir", refuse)
    results = sources(jobs("in", recursive=True))
    assert [results[0], results[1], results[3]] == [0, 1, 4]
    assert "cannot list the folder in/sub: Permission denied" in results[2]
    monkeypatch.setattr("superres.system.folders.os.scandir", real)
    (tree / "in" / "a.png").symlink_to("a.png")  # leads to itself
    found = jobs("in", recursive=True)
    (tree / "in" / "sub" / "c.png").unlink()
    results = sources(found)
    assert [*results[1:3], *results[4:]] == [0, 1, 3, 4]
    assert "in/a.png cannot be read" in results[0]
    assert "in/sub/c.png cannot be read: No such file or directory" in results[3]


def test_names_of_250_bytes_and_names_that_are_no_text_are_inputs(tree):
    long, odd = "x" * 246 + ".png", os.fsdecode(b"in/odd\xff.png")
    (tree / "in" / long).write_bytes(png(4))
    with open(odd, "wb") as file:
        file.write(png(5))
    assert sources(jobs("in")) == [0, 5, 4, 1]
    assert dict(names(jobs("in")))[odd] == os.fsdecode(b"odd\xff")
