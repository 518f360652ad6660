"""Small archives that claim or unpack to much are refused in little memory, in every command that
reads them."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import json
import lzma
import os
import resource
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from hostile_archives import npy, npz, parquet_dictionary, parquet_lie, tar_header
from pyarrow import parquet

from superres.batch.archives import DAMAGED, READER, list_members, read_members
from superres.errors import InvalidInputError
from superres.system.folders import Tally
from superres.system.unpacking import Gate, read_array

PICTURE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)


def zeros(count):
    """Return `count` bytes of zeros compressed by gzip, in members of 16 MB."""
    return gzip.compress(bytes(1 << 24)) * (count >> 24)


def overlapping(path):
    """Write a zip file whose 400 members all are the same 16 MB of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.png", bytes(1 << 24))
        (first,) = archive.infolist()
        for number in range(1, 400):
            again = copy.copy(first)
            again.filename = f"{number}.png"
            archive.filelist.append(again)


CLAIM, HUGE = "an extended header claims 3,221,225,472 bytes", f"a member claims {1 << 60:,} bytes"
MUCH = "it unpacks to over "


def hostile(folder):
    """Write archives that claim much, and return by name why they are refused."""
    gig, large = zeros(1 << 30), tar_header("a.bin", 1 << 24) + bytes(1 << 24)
    tar_files = {
        "pax.tar.gz": (gzip.compress(tar_header("x", 3 << 30, tarfile.XHDTYPE)) + gig, CLAIM),
        "global.tar.gz": (gzip.compress(tar_header("x", 3 << 30, tarfile.XGLTYPE)) + gig, CLAIM),
        "long.tar.gz": (gzip.compress(tar_header("x", 3 << 30, tarfile.GNUTYPE_LONGNAME)) + gig,
                        CLAIM),
        "huge.tar": (tar_header("a.png", 1 << 60), HUGE),
        "skip.tar": (tar_header("a.bin", 1 << 60) + bytes(10_240), HUGE),
        "skip.tar.gz": (gzip.compress(tar_header("a.bin", 1 << 60)) + zeros(1 << 24), HUGE),
        "early.tar.gz": (gzip.compress(tar_header("a.bin", 1 << 28)) + zeros(1 << 24),
                         "it ends early"),
        "negative.tar": (tar_header("a.png", -5) + bytes(10_240), "a member claims -5 bytes"),
        "sparse.tar": (tar_header("a.png", 512, tarfile.GNUTYPE_SPARSE) + bytes(10_240),
                       "it has sparse members"),
        "members.tar.gz": (gzip.compress(tar_header("a.png", 0) * 400_000), "it has over "),
        "headers.tar": ((tar_header("x", 5, tarfile.GNUTYPE_LONGNAME) + b"a.png".ljust(512, b"\0"))
                        * 20_000, "it has too many extended headers before a member"),
        "bomb.tar.xz": (lzma.compress(large) * 200, MUCH),
        "bomb.tar.bz2": (bz2.compress(large) * 300, MUCH),
    }
    arrays = {
        "claim": (npy((1, 8, 8, 3), 2_000_000_000), b"", "EOF: reading array header"),
        "negative": (npy((-1, 8, 8, 3)), b"", "lr must be uint8 [N, H, W, 3], not uint8 [-1, 8"),
        "empty": (npy((10**12, 0, 8, 3)), b"", "lr must be uint8 [N, H, W, 3], not uint8 [100"),
        "lying": (npy((1 << 40, 8, 8, 3)), bytes(1000), "lr claims 211,106,232,532,992 bytes and"),
        "tall": (npy((1, 1 << 31, 1 << 31, 3)), bytes(1000), "lr claims 13,835,058,055,282,"),
        "zeros": (npy((4_000_000, 8, 8, 3)), bytes(4_000_000 * 192), "it has over "),
    }
    for name, (content, _) in tar_files.items():
        (folder / name).write_bytes(content)
    for name, (start, content, _) in arrays.items():
        (folder / f"{name}.npz").write_bytes(npz(start, content))
    overlapping(folder / "overlap.zip")
    parquet_dictionary(folder / "dictionary.parquet")
    parquet_dictionary(folder / "rows.parquet", 2_000_000, 400)
    parquet_dictionary(folder / "many.parquet", 100, 500_000)
    parquet_lie(folder / "lie.parquet")
    return {**{name: reason for name, (_, reason) in tar_files.items()},
            **{f"{name}.npz": reason for name, (_, _, reason) in arrays.items()},
            "overlap.zip": MUCH, "dictionary.parquet": "it takes over 500 MB of memory to unpack",
            "rows.parquet": MUCH, "many.parquet": "it has over ",
            "lie.parquet": "it takes over 500 MB of memory to unpack"}


UPSCALE = """
import json, psutil, resource, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from superres.batch.archives import READER
from superres.batch.inputs import find_inputs
from superres.batch.opening import open_inputs

def seconds():
    ended = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    going = [psutil.Process(child.process.pid).cpu_times() for child in READER._idle]
    return sum(one.ru_utime + one.ru_stime for one in ended) + sum(
        one.user + one.system for one in going)

before = seconds()
for path in sys.argv[2:]:
    found = list(find_inputs([path], [], False, False, Path("out")))
    told = [str(content) for _, content in open_inputs(found) if isinstance(content, Exception)]
    # ru_maxrss has what the process that started this one took.
    most = int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) // 1024
    now = seconds()
    print(json.dumps([most, now - before, told]))
    before = now
"""
TRAIN = """
import json, resource, sys
from pathlib import Path
from superres.errors import InvalidInputError
from superres.tasks.face_data import _read_arrays
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    _read_arrays(Path(sys.argv[2]))
    told = "accepted"
except InvalidInputError as error:
    told = str(error)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([(usage.ru_maxrss - before) // 1024, usage.ru_utime + usage.ru_stime, told]))
"""


def measured(code, *paths):
    """Return what a reader of these files prints of each: its most megabytes so far, processor
    seconds, what it said.

    One process reads them all; the seconds include those of its own processes.
    """
    def bound():
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parents[1]),
                           *map(str, paths)],
                          capture_output=True, text=True, check=True, preexec_fn=bound,
                          timeout=1200)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_small_archives_that_claim_much_take_little(tmp_path):
    reasons = hostile(tmp_path)
    found = measured(UPSCALE, *(tmp_path / name for name in reasons))
    for (name, reason), (megabytes, seconds, told) in zip(reasons.items(), found, strict=True):
        assert f"is damaged or not an archive ({reason}" in told[-1], (name, told)
        assert "\n" not in told[-1]
        assert megabytes < 200, (name, megabytes)
        assert seconds < 12, (name, seconds)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1 << 33, 8, 8, 3), (-5, 8, 8, 3), (4_000_000, 8, 8, 3)])
def test_data_to_train_on_claim_no_more_than_they_have(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("hr.npy",
                         npy(shape) + bytes(4_000_000 * 192 if shape[0] == 4_000_000 else 0))
        for name in ("lr", "ids"):
            archive.writestr(f"{name}.npy", npy(shape))
    ((megabytes, seconds, told),) = measured(TRAIN, tmp_path / "data.npz")
    assert "is not a readable .npz" in told
    assert megabytes < 200
    assert seconds < 12


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_honest_tar_files_of_every_compression_are_read_and_cut_ones_are_refused(tmp_path, form):
    pictures = {f"{'deep/' * 60}{number}.png": os.urandom(3000) for number in range(40)}
    with tarfile.open(fileobj=(buffer := io.BytesIO()), mode="w", format=form) as archive:
        for name, content in pictures.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    plain, path = buffer.getvalue(), tmp_path / "a.tar"
    two = gzip.compress(plain[:5000]) + gzip.compress(plain[5000:]) + bytes(512)
    for packed in (plain, gzip.compress(plain), bz2.compress(plain), lzma.compress(plain), two,
                   lzma.compress(plain, format=lzma.FORMAT_ALONE)):
        path.write_bytes(packed)
        assert read(path) == (list(pictures), list(pictures.values()), None)
        path.write_bytes(packed[: len(packed) // 2])
        names, _, told = read(path)
        assert names == list(pictures)[: len(names)] != list(pictures)
        assert told


@pytest.mark.parametrize("packed", [0, 100, 10**6])
def test_a_gate_lets_through_what_a_size_justifies_and_no_more(packed):
    members, size = 10_000 + packed // 50, 500_000_000 + 200 * packed
    gate = Gate(packed)
    for _ in range(10):
        gate.let(members // 10, size // 10)
    gate = Gate(packed)
    names = 20_000_000 + 4 * packed
    gate.let(members, size, names, size)
    with pytest.raises(ValueError, match=f"over {members:,} members"):
        gate.let(1)
    for more in ({"unpacked": size + 1}, {"content": size + 1}):
        with pytest.raises(ValueError, match="unpacks to over"):
            Gate(packed).let(**more)
    with pytest.raises(ValueError, match="names have over"):
        Gate(packed).let(names=names + 1)
    gate = Gate(packed)
    assert gate.seconds == 60 + packed // 100_000
    gate.end -= gate.seconds + 1
    with pytest.raises(ValueError, match=rf"it takes over {gate.seconds} seconds of processor "
                       rf"time"):
        gate.let()


def many(path, count, content=b"x"):
    """Write a container of `count` members of little content, and return their number that its size
    justifies."""
    kind = path.suffix
    if kind == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("0.png", content)
            archive.filelist *= count
    elif kind == ".gz":
        path.write_bytes(gzip.compress((tar_header("0.png", 1) + content.ljust(512, b"\0"))
                                       * count))
    elif kind == ".npz":
        np.savez_compressed(path, np.zeros((count, 1, 1, 3), np.uint8))
    else:
        parquet_dictionary(path, 1, count)
    return 10_000 + path.stat().st_size // 50


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zip", "tar.gz", "npz", "parquet"])
def test_every_container_lets_as_many_members_through_as_its_size_justifies(tmp_path, kind):
    for count in (9_999, 12_000):
        path = tmp_path / f"{count}.{kind}"
        most, tally, told = many(path, count), Tally("it"), ""
        try:
            list(list_members(str(path), str(path), tally))
        except ValueError as error:
            told = str(error)
        if count <= most:
            assert (tally.seen, told) == (count, "")
        else:
            assert tally.seen <= most
            assert f"it has over {most:,} members, too many for its size" in told


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_arrays_of_numpy_are_read_as_numpy_reads_them(tmp_path, version):
    pictures = np.stack([PICTURE] * 5)
    np.lib.format.write_array(stream := io.BytesIO(), pictures, version)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("lr.npy", stream.getvalue())
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        np.testing.assert_array_equal(read_array(archive, "lr"), pictures)
    np.testing.assert_array_equal(read(tmp_path / "a.npz")[1], pictures)


def written(path, count=50, size=300):
    """Write a Parquet file of random pictures and return its rows."""
    rows = [(f"k{number}", os.urandom(size)) for number in range(count)]
    parquet.write_table(pyarrow.table({"key": [key for key, _ in rows],
                                       "image": [content for _, content in rows]}),
                        path)
    return rows


def read(path):
    """Return the names of an archive's pictures, and their content or the error's text, until the
    archive's own."""
    names, contents = [], []
    try:
        names += list_members(str(path), path.name, Tally("it"))
        for found in read_members(str(path), path.name, [number for number, _ in names]):
            contents.append(str(found) if isinstance(found, InvalidInputError) else
                            found if isinstance(found, np.ndarray) else found.read())
    except DAMAGED as error:
        return [name for _, name in names], contents, str(error)
    return [name for _, name in names], contents, None


def test_content_of_any_size_comes_whole_and_a_reader_that_is_given_up_ends_its_process(tmp_path):
    rows = written(tmp_path / "a.parquet", 1100)
    assert read(tmp_path / "a.parquet") == ([f"{key}.png" for key, _ in rows],
                                            [content for _, content in rows], None)
    pictures = [os.urandom(size) for size in (1, 4_000_000, 9_000_001)]
    with tarfile.open(tmp_path / "a.tar", "w") as tar, zipfile.ZipFile(tmp_path / "a.zip",
                                                                       "w") as archive:
        for number, content in enumerate(pictures):
            member = tarfile.TarInfo(f"{number}.png")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
            archive.writestr(f"{number}.png", content)
    for path in (tmp_path / "a.tar", tmp_path / "a.zip"):
        assert read(path) == (["0.png", "1.png", "2.png"], pictures, None)
    assert len(READER._idle) == 1
    reader = read_members(str(tmp_path / "a.tar"), "a.tar", [1, 1, 2])
    first, found = next(reader), next(reader)
    assert (first.closed, found.read()) == (True, pictures[1])
    (child,) = READER._busy
    reader.close()
    assert child.process.returncode == -signal.SIGKILL


def test_members_are_read_on_when_the_reader_is_killed(tmp_path):
    rows = written(tmp_path / "a.parquet", 40)
    contents = []
    # the last one is not there
    for content in read_members(str(tmp_path / "a.parquet"), "a.parquet", range(41)):
        contents.append(content.read())
        if len(contents) in (1, 20, 40):
            (child,) = READER._busy
            child.process.kill()
    assert contents == [content for _, content in rows]


def pax(*records, size=None):
    """Return a tar file of one member after an extended header of these records."""
    text = b"".join(records)
    header = tar_header("x", len(text) if size is None else size, tarfile.XHDTYPE)
    return (header + text + bytes(-len(text) % 512) + tar_header("a.png", 3)
            + b"abc".ljust(512, b"\0") + bytes(1024))


@pytest.mark.parametrize(("content", "told"), [
    (pax(b"15 comment=abc\n"), None), (pax(b"14 path=b.png\n"), None),
    (pax(b"11 size=-5\n"), "a member claims -5 bytes"),
    (pax(b"30 size=%021d\n" % 3), None), (pax(b"0 a=b\n"), "a header is damaged: "),
    (pax(bytes(10_001)), "an extended header claims 10,001 bytes"),
    *((pax(record), "it has sparse members") for record in (
        b"22 GNU.sparse.size=10\n", b"24 GNU.sparse.map=0,100\n")),
    (tar_header("a.png", 512, tarfile.GNUTYPE_SPARSE) + bytes(1024), "it has sparse members"),
    (tar_header("a.png", 3) + b"abc".ljust(512, b"\0") + b"x" + bytes(511), "a header is damaged: "
     "bad checksum"),
    (tar_header("a.png", 3) + b"abc".ljust(512, b"\0") + b"x" * 100, "a header is damaged: trunc"),
    (b"", "empty file")])
def test_extended_headers_of_tar_files_are_short_and_sound(content, told, tmp_path):
    (tmp_path / "a.tar").write_bytes(content)
    names, contents, error = read(tmp_path / "a.tar")
    assert error is None if told is None else error.startswith(told)
    if told is None:
        assert (names, contents) == (["b.png" if b"b.png" in content else "a.png"], [b"abc"])


def test_members_of_long_names_are_left_out_by_name(tmp_path):
    names = ["a.png", "b" * 4096 + ".png", "c" * 4092 + ".png", "ü" * 2047 + ".png"]
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar, zipfile.ZipFile(tmp_path / "a.zip",
                                                                             "w") as archive:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
            archive.writestr(name, b"")
    for path in (tmp_path / "a.tar.gz", tmp_path / "a.zip"):
        tally = Tally(path.name, "member")
        assert [name for _, name in list_members(str(path), path.name, tally)] == ["a.png",
                                                                                   names[2]]
        assert tally.line() == (f"{path.name}: 4 members: 2 used, 2 left out (2 with a name of "
                                "over 4,096 bytes)")


def test_a_row_of_parquet_that_has_only_a_path_says_so(tmp_path):
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    rows = [{"bytes": None, "path": "in/a.png"}, {"bytes": b"b", "path": "b.png"},
            {"bytes": None, "path": None}]
    parquet.write_table(pyarrow.table({"image": pyarrow.array(rows, kind)}), tmp_path / "a.parquet")
    (first, *others), error = read(tmp_path / "a.parquet")[1:]
    assert first.startswith("a.parquet/in/a.png is only a path in the file, without the picture; "
                            "save")
    assert (others, error) == ([b"b", "a.parquet/000002.png is empty (0 bytes); provide an image "
                                "file"], None)


def test_damaged_parquet_files_are_refused_in_one_line(tmp_path):
    rows, path, rng = (written(tmp_path / "a.parquet"), tmp_path / "damaged.parquet",
                       np.random.default_rng(0))
    content = (tmp_path / "a.parquet").read_bytes()
    refused = []
    for number in range(12):
        damaged = bytearray(content)
        for place in rng.integers(4, len(content) - 8, 1 + number):
            damaged[place] = rng.integers(256)
        path.write_bytes(damaged if number else damaged[:-100])
        names, _, error = read(path)
        assert len(names) <= len(rows)
        refused += [error] if error is not None else []
    assert refused
    assert all("\n" not in error and 3 < len(error) < 500 for error in refused), refused
