"""A run of a batch: its outputs and rows, what is skipped or refused, and that no bad file costs
another."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from fakes import TOKENS, FakeUpscaler
from PIL import Image

from superres.batch import record, run
from superres.batch.feed_queue import FeedQueue
from superres.batch.run_options import BatchOptions, parse_batch_size, parse_shard
from superres.config import DecodeConfig
from superres.errors import ConfigError, InvalidInputError, OutputError
from superres.system.paths import version_of
from superres.tasks.faces import image_key
from tests.batch.helpers import outputs, plan, rows_of, upscale, write_image

NAMES = [f"{name}.png" for name in "abcde"]
PARSERS = {"batch_size": parse_batch_size, "shard": parse_shard}


@pytest.fixture
def faces(tmp_path):
    """A folder of five 8x8 images, a.png to e.png, the first value of the i-th being i."""
    for value, name in enumerate(NAMES):
        write_image(tmp_path / "faces" / name, value)
    return tmp_path / "faces"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def pictures(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "manifest.jsonl")


def statuses(folder):
    return [row["status"] for row in rows_of(folder)]


def test_an_output_and_its_row_hold_what_was_decoded_and_nothing_that_varies(faces, out, tmp_path):
    summary = upscale(faces, out, decode=DecodeConfig(seed=7), batch_size=1)
    assert (summary.done, summary.skipped, summary.failed, summary.exit_code) == (5, 0, 0, 0)
    assert pictures(out) == outputs(out) == NAMES
    config = DecodeConfig(block_size=10, seed=7).to_dict()
    assert rows_of(out)[1] == {
        "input": str(faces / "b.png"), "output": str(out / "b.png"), "status": "ok", "error": None,
        "tokens": TOKENS, "iterations": 308, "model_calls": 309, "mean_accepted_block_size": TOKENS
        / 308, "seconds": 0.05, "checkpoint": "fake@0123abcd", "config": config, "seed": 7,
        "crop": None, "sha256": hashlib.sha256((out / "b.png").read_bytes()).hexdigest(),
        "options": {"source": "auto", "crop": "face", "alpha": "white",
                    "format": "png", "sheet": False, "keep": None, "finish": None, "start": 8,
                    "engine": "fake"},
        "size": (out / "b.png").stat().st_size, "version": version_of(str(faces / "b.png")),
        "shard_sha256": None, "sample": None, "bits_per_dim": None,
    }
    assert summary.line().endswith(" images/s, mean accepted block size 9.97")
    with Image.open(out / "b.png") as image:
        assert (image.size, image.mode, image.format,
                image.getpixel((0, 0))[0]) == ((32, 32), "RGB", "PNG", 1)
        assert json.loads(image.text["superres"]) == {"checkpoint": "fake@0123abcd",
                                                      "config": config, "sample": 1}
    upscale(faces, tmp_path / "again", decode=DecodeConfig(seed=7), batch_size=4)
    assert [(out / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
            for name in NAMES] == [True] * 5


def test_a_sheet_shows_input_enlargement_and_result_beside_the_results_themselves(faces, out):
    upscale(faces, out)
    assert upscale(faces, out, sheet=True, on_existing="skip").done == 5
    assert pictures(out) == sorted([*NAMES, *(f"{name[0]}-sheet.png" for name in NAMES)])
    with Image.open(out / "b-sheet.png") as sheet, Image.open(out / "b.png") as result, \
            Image.open(faces / "b.png") as source:
        assert sheet.size == (3 * 256, 16 + 256)
        given, lanczos, shown = (np.asarray(sheet)[16:, 256 * column:256 * (column + 1)]
                                 for column in range(3))
        assert np.array_equal(shown, np.asarray(result).repeat(8, 0).repeat(8, 1))
        assert np.array_equal(given, np.asarray(source.convert("RGB")).repeat(32, 0).repeat(32, 1))
        expected = source.convert("RGB").resize((32, 32), Image.Resampling.LANCZOS)
        assert np.array_equal(lanczos, np.asarray(expected).repeat(8, 0).repeat(8, 1))
        assert json.loads(sheet.text["superres"])["checkpoint"] == "fake@0123abcd"
    assert upscale(faces, out, sheet=True).skipped == 5


def test_a_bad_file_costs_its_own_row_only_and_rows_keep_the_order_of_the_inputs(faces, out,
                                                                                 tmp_path, capsys):
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(buffer,
                                                                                           "JPEG")
    bad = {"bb.png": b"not an image", "empty.png": b"", "huge.ppm": b"P6 20000 20000 255\n"
           + bytes(100), "truncated.jpg": buffer.getvalue()[: len(buffer.getvalue()) // 2]}
    for name, content in bad.items():
        (faces / name).write_bytes(content)
    write_image(faces / "small.png", size=(1, 1))
    (faces / "z.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(faces / "pipe.png")  # is no picture, but fails if it is named
    os.mkfifo(tmp_path / "pipe.png")
    write_image(out / "d.png")
    summary = upscale([faces, tmp_path / "missing.png", tmp_path / "pipe.png"], out, batch_size=2)
    expected = [*((name, "ok") for name in ("a.png", "b.png")), ("bb.png", "failed"),
                ("c.png", "ok"), ("d.png", "skipped"), ("e.png", "ok"),
                *((name, "failed") for name in (
                    "empty.png", "huge.ppm", "small.png", "truncated.jpg", "z.png", "missing.png",
                    "pipe.png"))]
    assert [(Path(row["input"]).name, row["status"]) for row in rows_of(out)] == expected
    assert (summary.done, summary.skipped, summary.failed, summary.exit_code) == (4, 1, 8, 1)
    assert pictures(out) == NAMES
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("superres: ")]
    assert (lines.pop(0) == f"superres: {faces}: 12 files: 11 used, 1 left out (1 not a regular "
            "file)")
    failed = [row["input"] for row in rows_of(out) if row["status"] == "failed"]
    assert [sum(path in line for path in failed) for line in lines] == [1] * 8
    assert "a pipe or a device" in rows_of(out)[-1]["error"]
    assert not any(str(faces) in reason for reason in summary.reasons)


def test_existing_outputs_are_skipped_replaced_or_refused(faces, out, capsys):
    for name in "ab":
        write_image(out / f"{name}.png", 99)
    before = (out / "a.png").read_bytes()
    upscaler = FakeUpscaler()
    summary = upscale(faces, out, upscaler)
    assert (summary.done, summary.skipped, summary.exit_code, upscaler.batches) == (3, 2, 0, [3])
    row = rows_of(out)[0]
    assert row["config"] is row["tokens"] is row["error"] is None
    summary = upscale(faces, out, on_existing="error")
    assert (summary.done, summary.failed, summary.exit_code) == (0, 5, 1)
    assert statuses(out) == ["failed", "failed", "ok", "ok", "ok"]  # known is how
    assert (out / "a.png").read_bytes() == before
    assert "exists already" in capsys.readouterr().err
    assert upscale(faces, out, on_existing="overwrite").done == 5
    assert (out / "a.png").read_bytes() != before


def test_samples_are_numbered_and_differ_and_those_of_an_input_are_drawn_together(faces, out,
                                                                                  tmp_path):
    decode = DecodeConfig(temperature=0.9)
    upscale(faces, out, decode=decode, samples=3, batch_size=4)
    assert pictures(out)[:4] == ["a-1.png", "a-2.png", "a-3.png", "b-1.png"]
    assert len(rows_of(out)) == 15
    upscale(faces, tmp_path / "one", decode=decode)
    assert np.array_equal(Image.open(tmp_path / "one" / "a.png"), Image.open(out / "a-1.png"))
    assert not np.array_equal(Image.open(out / "a-1.png"), Image.open(out / "a-2.png"))
    (out / "a-2.png").unlink()
    upscaler = FakeUpscaler()
    summary = upscale(faces / "a.png", out, upscaler, decode, samples=3)
    assert (summary.done, summary.skipped, upscaler.batches) == (3, 0, [3])


def test_keys_depend_on_pixels_and_sample_only(faces, tmp_path):
    images = [np.asarray(Image.open(faces / name)) for name in NAMES]
    forward, backward = FakeUpscaler(), FakeUpscaler()
    upscale(faces, tmp_path / "out", forward, batch_size=5)
    upscale([faces / name for name in NAMES[::-1]], tmp_path / "back", backward, batch_size=2)
    assert forward.keys == backward.keys[::-1] == [image_key(image, 1) for image in images]
    assert len({image_key(image, sample) for image in images for sample in (1, 2, 3)}) == 15
    source = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    digest = hashlib.sha256(bytes(range(192)) + bytes([0, 0, 0, 0, 0, 0, 0, 2])).digest()
    assert image_key(source, 2) == int.from_bytes(digest[:8], "big") // 2


@pytest.mark.parametrize("count", [2, 7])
def test_shards_are_disjoint_and_complete_and_may_be_empty(faces, out, count):
    everything = plan([faces], BatchOptions(out))
    shards = [plan([faces], BatchOptions(out, shard=(index, count))) for index in range(count)]
    assert sorted((entry for shard in shards for entry in shard),
                  key=lambda entry: entry.input) == everything
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    summary = upscale(faces, out, shard=(count - 1, count))
    assert (summary.exit_code, summary.done) == (0, len(shards[-1]))
    assert pictures(out)[-1] == f"manifest-{count - 1}-of-{count}.jsonl"


@pytest.mark.parametrize(("setting", "message"), [
    ({"batch_size": "many"}, "--batch-size must be a whole number or auto, not 'many'"),
    *(({"shard": text}, "--shard must be I/N") for text in ("4/4", "-1/2", "1/0", "1", "a/b",
                                                            "1/2/3", "")),
    *(({name: value}, f"--{name.replace('_', '-')} must be") for name, value in (
        ("batch_size", 0), ("samples", 0), ("source", "x"), ("on_existing", "x"), ("format", "jpg"),
        ("suffix", "a/b"), ("alpha", "reddish"), ("crop", "middle"))),
    ({"crop": "1,2,0"}, "--crop 1,2,0 has a SIZE of 0"),
])
def test_options_out_of_range_are_refused_with_their_name(tmp_path, setting, message):
    (name, value), = setting.items()
    with pytest.raises(ConfigError, match=message):
        BatchOptions(tmp_path,
                     **{name: PARSERS[name](value) if isinstance(value, str) and name in PARSERS
                        else value})


def test_folders_are_listed_in_order_without_other_files_and_only_recursive_below(tmp_path):
    for name in ("in/b.png", "in/A.JPG", "in/.hidden.png", "in/sub/c.png", "in/.cache/d.png",
                 "first.png"):
        write_image(tmp_path / name)
    (tmp_path / "in" / "notes.txt").touch()
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in", target_is_directory=True)
    (tmp_path / "in" / "sub" / "up").symlink_to(tmp_path / "in", target_is_directory=True)
    expected = ["first.png", "in/A.JPG", "in/b.png", "in/sub/c.png"]
    for recursive in (False, True):
        inputs = [tmp_path / name for name in ("first.png", "in", "in/b.png")]
        found = plan(inputs, BatchOptions(tmp_path / "out", recursive=recursive, keep_tree=True))
        assert ([os.path.relpath(entry.input, tmp_path) for entry in found]
                == expected[: 4 if recursive else 3])
    (tmp_path / "above").mkdir()
    (tmp_path / "in").rename(tmp_path / "above" / "in")
    with pytest.raises(InvalidInputError, match="add --recursive"):
        plan([tmp_path / "above"], BatchOptions(tmp_path / "out"))


def test_outputs_inside_an_input_folder_are_not_inputs_of_the_next_run(faces):
    for _ in range(2):
        upscale(faces, faces / "out", recursive=True)
    assert pictures(faces / "out") == NAMES


def test_clashes_are_refused_by_every_shard_and_no_input_is_ever_replaced(faces, out, tmp_path):
    write_image(tmp_path / "other" / "a.png")
    for index in (0, 1):
        with pytest.raises(InvalidInputError, match=r"faces/a.png and .*other/a.png would both be "
                           r"written to"):
            plan([faces, tmp_path / "other"], BatchOptions(out, shard=(index, 2)))
    for inputs, options, message in (
            (faces, {"output": faces}, "both an input and the output folder"),
            (faces / "a.png", {"output": faces}, "would replace an input"),
            (faces, {"output": out, "manifest": faces / "a.png"}, "is one of the inputs"),
            (faces, {"output": out, "manifest": out / "a.png"}, "is one of the outputs")):
        with pytest.raises(InvalidInputError, match=message):
            plan([inputs], BatchOptions(**options))


@pytest.mark.parametrize(("most", "batch_size", "batches", "failed"), [
    (2, 5, [5, 3, 2, 2, 1], 0), (0, 2, [2, 1, 1, 1, 1, 1], 5),
])
def test_running_out_of_memory_lowers_the_batch(faces, out, capsys, most, batch_size, batches,
                                                failed):
    upscaler = FakeUpscaler(most=most)
    summary = upscale(faces, out, upscaler, batch_size=batch_size)
    assert (summary.done, summary.failed) == (5 - failed, failed)
    assert most == 0 or upscaler.batches == batches
    assert outputs(out) == NAMES
    assert "out of memory with a batch of" in capsys.readouterr().err
    assert (failed == 0 or rows_of(out)[0]["error"] == "decoding failed: CUDA out of memory. Tried "
            "to allocate more")


def test_decoding_waits_neither_for_pictures_to_be_encoded_nor_reading_for_decoding(tmp_path, out,
                                                                                    monkeypatch):
    """No picture is encoded before all are decoded, in several batches; none is decoded before more
    are read."""
    for number in range(30):
        write_image(tmp_path / "faces" / f"{number:02}.png", number)
    decoded, read, encode, taken = (threading.Event(), threading.Event(), record.encode,
                                    FeedQueue.take)
    monkeypatch.setattr(run, "QUEUE", 2)

    class Watched(FakeUpscaler):
        def __call__(self, sources, *more, **settings):
            made = super().__call__(sources, *more, **settings)
            if len(self.batches) == 3:
                decoded.set()
            return made

    def waiting(*given):
        assert decoded.wait(60)
        return encode(*given)

    def watched(feed, most, wait):
        got = taken(feed, most, wait)
        with feed._changed:  # while this batch is decoded, the next one is read
            assert feed._changed.wait_for(lambda: len(feed.items) >= 10 or feed._ended, 60)
        read.set()
        return got

    monkeypatch.setattr(record, "encode", waiting)
    monkeypatch.setattr(FeedQueue, "take", watched)
    summary = upscale(tmp_path / "faces", out, Watched(), batch_size=10)
    assert (summary.done, summary.failed) == (30, 0)
    assert read.is_set()


def test_an_image_that_cannot_be_decoded_fails_alone_and_its_neighbours_are_done(faces, out,
                                                                                 capsys):
    summary = upscale(faces, out, FakeUpscaler(broken=frozenset({2})), batch_size=2)
    assert statuses(out) == ["ok", "ok", "failed", "ok", "ok"]
    assert summary.exit_code == 1
    assert "c.png: decoding failed: the network broke" in capsys.readouterr().err


def test_an_output_that_cannot_be_replaced_fails_alone(faces, out):
    (out / "b.png" / "occupied").mkdir(parents=True)
    summary = upscale(faces, out)
    assert (summary.done, summary.failed) == (4, 1)
    assert rows_of(out)[1]["error"].startswith(f"cannot write {out / 'b.png'}: ")
    assert pictures(out) == NAMES


def refuse(path, *_):
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


@pytest.mark.parametrize(("blocked", "settings", "error", "message"), [
    ("out", {}, OutputError, r"cannot write to the folder .*choose another with --output"),
    ("out", {"inner": "below"}, OutputError, r"cannot write to the folder .*choose another with "
     r"--output"),
    ("permission", {}, OutputError, "out: Permission denied"),
    ("manifest", {}, OutputError, "choose another --manifest"),
    (None, {"samples": 2}, ConfigError, "add --temperature"),
    (None, {"decode": DecodeConfig(block_size=11)}, ConfigError, "block size 11 is more than the "
     "10 prediction heads"),
])
def test_what_cannot_be_written_or_decoded_is_found_before_decoding(
    faces, out, monkeypatch, blocked, settings, error, message,
):
    if blocked == "out":
        out.write_text("a file")
    elif blocked == "permission":
        monkeypatch.setattr("superres.system.output.open", refuse, raising=False)
    settings = {**settings, **({"manifest": faces} if blocked == "manifest" else {})}
    upscaler = FakeUpscaler()
    with pytest.raises(error, match=message):
        upscale(faces, out / settings.pop("inner", "."), upscaler, **settings)
    assert upscaler.batches == []
    assert blocked or not out.exists()
