import dataclasses
import errno
import hashlib
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
from fakes import TOKENS, FakeUpscaler
from PIL import Image

from superres.batch.inputs import Input, list_inputs
from superres.batch.plan import BatchOptions, parse_batch_size, parse_shard, plan
from superres.batch.upscaling import upscale_files
from superres.config import DecodeConfig
from superres.errors import ConfigError, InvalidInputError, OutputError
from superres.system.output import write_atomically, write_result
from superres.tasks.faces import image_key

FIELDS = ["input", "output", "status", "error", "tokens", "iterations", "model_calls", "mean_accepted_block_size",
          "seconds", "checkpoint", "config", "seed", "options", "sha256", "crop"]
EXACT = DecodeConfig()


def write_image(path, value=0, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.arange(size[0] * size[1] * 3, dtype=np.uint8).reshape(size[1], size[0], 3)
    pixels[0, 0, 0] = value
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def faces(tmp_path):
    """A folder of five 8x8 images, a.png to e.png, the first value of the i-th being i."""
    for value, name in enumerate("abcde"):
        write_image(tmp_path / "faces" / f"{name}.png", value)
    return tmp_path / "faces"


def upscale(inputs, output, upscaler=None, decode=EXACT, **options):
    """Run a batch; returns its summary and the manifest's rows."""
    settings = BatchOptions(output, **options)
    if settings.manifest is None:
        settings = dataclasses.replace(settings, manifest=output.parent / "manifest.jsonl")
    summary = upscale_files(plan(inputs, settings), upscaler or FakeUpscaler(), settings, decode)
    return summary, [json.loads(line) for line in settings.manifest.read_text().splitlines()]


def names(folder):
    return sorted(os.listdir(folder))


def test_each_input_becomes_a_32x32_rgb_png_named_by_its_stem(faces, tmp_path):
    summary, rows = upscale([faces], tmp_path / "out")
    assert names(tmp_path / "out") == [f"{name}.png" for name in "abcde"]
    with Image.open(tmp_path / "out" / "b.png") as image:
        assert (image.size, image.mode, image.format) == ((32, 32), "RGB", "PNG")
        assert image.getpixel((0, 0))[0] == 1
    assert (summary.done, summary.skipped, summary.failed, summary.exit_code) == (5, 0, 0, 0)
    assert [row["status"] for row in rows] == ["ok"] * 5


def test_rows_have_the_fields_of_the_contract_and_count_what_was_decoded(faces, tmp_path):
    _, rows = upscale([faces / "a.png"], tmp_path / "out", decode=DecodeConfig(seed=7))
    assert list(rows[0]) == FIELDS
    assert rows[0] == {
        "input": str(faces / "a.png"), "output": str(tmp_path / "out" / "a.png"), "status": "ok", "error": None,
        "tokens": TOKENS, "iterations": 308, "model_calls": 309, "mean_accepted_block_size": TOKENS / 308,
        "seconds": 0.05, "checkpoint": "fake@0123abcd", "config": DecodeConfig(block_size=10, seed=7).to_dict(),
        "seed": 7, "sha256": hashlib.sha256((tmp_path / "out" / "a.png").read_bytes()).hexdigest(), "crop": None,
        "options": {"source": "auto", "crop": "face", "alpha": "white", "metadata": "strip", "format": "png"},
    }
    assert DecodeConfig.from_dict(rows[0]["config"]).block_size == 10


def test_seconds_are_shared_among_the_images_of_a_batch(faces, tmp_path):
    _, rows = upscale([faces], tmp_path / "out", FakeUpscaler(seconds_per_call=50.0), batch_size=2)
    assert [row["seconds"] for row in rows] == [2.5, 2.5, 2.5, 2.5, 5.0]


def test_png_records_settings_and_nothing_that_varies_between_runs(faces, tmp_path):
    upscale([faces], tmp_path / "one", batch_size=1)
    upscale([faces], tmp_path / "two", batch_size=4)
    assert (tmp_path / "one" / "c.png").read_bytes() == (tmp_path / "two" / "c.png").read_bytes()
    with Image.open(tmp_path / "one" / "c.png") as image:
        record = json.loads(image.text["superres"])
    assert record == {"checkpoint": "fake@0123abcd", "config": DecodeConfig(block_size=10).to_dict(), "sample": 1}


def bad_files(folder):
    """Write one file of each kind of bad input; returns them."""
    write_image(folder / "small.png", size=(1, 1))
    (folder / "text.png").write_text("not an image")
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(buffer, "JPEG")
    (folder / "truncated.jpg").write_bytes(buffer.getvalue()[:len(buffer.getvalue()) // 2])
    header = b"P6 20000 20000 255\n"
    (folder / "huge.ppm").write_bytes(header + bytes(100))
    (folder / "empty.png").touch()
    return ["small.png", "text.png", "truncated.jpg", "huge.ppm", "empty.png"]


def test_a_bad_file_costs_its_own_row_only(faces, tmp_path, capsys):
    bad = {str(faces / name) for name in bad_files(faces)}
    summary, rows = upscale([faces, tmp_path / "missing.png"], tmp_path / "out", batch_size=2)
    bad.add(str(tmp_path / "missing.png"))
    assert {row["input"] for row in rows if row["status"] == "failed"} == bad
    assert (summary.done, summary.failed, summary.exit_code) == (5, 6, 1)
    assert names(tmp_path / "out") == [f"{name}.png" for name in "abcde"]
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("superres: ")]
    assert len(lines) == 6
    assert sum(summary.reasons.values()) == 6
    assert summary.reason_lines() == []  # all different
    assert not any(str(faces) in reason for reason in summary.reasons)
    assert all(sum(path in line for path in bad) == 1 for line in lines)


def test_rows_keep_the_order_of_the_inputs_whatever_fails(faces, tmp_path):
    (faces / "bb.png").write_text("not an image")
    write_image(tmp_path / "out" / "d.png")
    _, rows = upscale([faces], tmp_path / "out", batch_size=2)
    assert [(Path(row["input"]).stem, row["status"]) for row in rows] == [
        ("a", "ok"), ("b", "ok"), ("bb", "failed"), ("c", "ok"), ("d", "skipped"), ("e", "ok")]


def test_existing_outputs_are_skipped_replaced_or_refused(faces, tmp_path, capsys):
    for name in "ab":
        write_image(tmp_path / "out" / f"{name}.png", 99)
    before = (tmp_path / "out" / "a.png").read_bytes()
    upscaler = FakeUpscaler()
    summary, rows = upscale([faces], tmp_path / "out", upscaler, on_existing="skip")
    assert (summary.done, summary.skipped, summary.exit_code, upscaler.batches) == (3, 2, 0, [3])
    assert rows[0]["config"] is rows[0]["tokens"] is rows[0]["error"] is None
    summary, rows = upscale([faces], tmp_path / "out", on_existing="error")
    assert (summary.done, summary.failed, summary.exit_code) == (0, 5, 1)
    assert [row["status"] for row in rows] == ["failed", "failed", "ok", "ok", "ok"]  # known is how
    assert (tmp_path / "out" / "a.png").read_bytes() == before
    assert "exists already" in capsys.readouterr().err
    summary, _ = upscale([faces], tmp_path / "out", on_existing="overwrite")
    assert (summary.done, summary.exit_code) == (5, 0)
    assert (tmp_path / "out" / "a.png").read_bytes() != before


def test_samples_are_numbered_and_differ_and_one_alone_equals_the_first_of_many(faces, tmp_path):
    decode = DecodeConfig(temperature=0.9)
    _, rows = upscale([faces], tmp_path / "many", decode=decode, samples=3, batch_size=4)
    assert len(rows) == 15
    assert names(tmp_path / "many")[:4] == ["a-1.png", "a-2.png", "a-3.png", "b-1.png"]
    upscale([faces], tmp_path / "one", decode=decode)
    paths = ("one/a.png", "many/a-1.png", "many/a-2.png")
    one, first, second = (np.asarray(Image.open(tmp_path / path)) for path in paths)
    assert (one == first).all()
    assert (first != second).any()


def test_only_missing_samples_are_drawn(faces, tmp_path):
    write_image(tmp_path / "out" / "a-2.png")
    upscaler = FakeUpscaler()
    summary, rows = upscale([faces / "a.png"], tmp_path / "out", upscaler, DecodeConfig(temperature=1.0), samples=3)
    assert (summary.done, summary.skipped, upscaler.batches) == (2, 1, [2])
    assert [row["status"] for row in rows] == ["ok", "skipped", "ok"]


@pytest.mark.parametrize(("settings", "message"), [
    ({"samples": 2}, "add --temperature"),
    ({"decode": DecodeConfig(block_size=11)}, "block size 11 is more than the 10 prediction heads"),
])
def test_settings_that_cannot_serve_are_refused_before_anything_is_made(faces, tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        upscale([faces], tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()


def test_keys_depend_on_pixels_and_sample_only(faces, tmp_path):
    images = [np.asarray(Image.open(faces / f"{name}.png")) for name in "abcde"]
    forward, backward = FakeUpscaler(), FakeUpscaler()
    upscale([faces], tmp_path / "out", forward, batch_size=5)
    upscale([faces / f"{name}.png" for name in "edcba"], tmp_path / "back", backward, batch_size=2)
    assert forward.keys == backward.keys[::-1] == [image_key(image, 1) for image in images]
    assert len({image_key(image, sample) for image in images for sample in (1, 2, 3)}) == 15
    assert all(0 <= key < 2**63 for key in forward.keys)


def test_key_is_the_documented_digest():
    source = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    digest = hashlib.sha256(bytes(range(192)) + bytes([0, 0, 0, 0, 0, 0, 0, 2])).digest()
    assert image_key(source, 2) == int.from_bytes(digest[:8], "big") // 2
    assert image_key(source.transpose(1, 0, 2), 2) != image_key(source, 2)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_are_disjoint_and_complete(faces, tmp_path, count):
    everything = plan([faces], BatchOptions(tmp_path / "out"))
    shards = [plan([faces], BatchOptions(tmp_path / "out", shard=(index, count))) for index in range(count)]
    assert sorted((job for shard in shards for job in shard), key=lambda job: job.input) == everything
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_an_empty_shard_succeeds(faces, tmp_path):
    summary, rows = upscale([faces], tmp_path / "out", shard=(6, 7))
    assert (summary.exit_code, summary.line(), rows) == (0, "0 done, 0 skipped, 0 failed", [])


@pytest.mark.parametrize("text", ["4/4", "5/4", "-1/2", "1/0", "1", "a/b", "1/2/3", ""])
def test_a_shard_out_of_range_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match="--shard must be I/N"):
        BatchOptions(tmp_path, shard=parse_shard(text))


@pytest.mark.parametrize("setting", [
    {"batch_size": 0}, {"samples": 0}, {"source": "x"}, {"on_existing": "x"}, {"format": "jpg"}, {"metadata": "x"},
    {"suffix": "a/b"}, {"alpha": "reddish"},
])
def test_options_out_of_range_are_refused_with_their_name(tmp_path, setting):
    with pytest.raises(ConfigError, match=f"--{next(iter(setting)).replace('_', '-')} must be"):
        BatchOptions(tmp_path, **setting)


def test_folders_are_listed_in_order_without_other_files_and_only_recursive_below(tmp_path):
    for name in ("in/b.png", "in/A.JPG", "in/.hidden.png", "in/sub/c.png", "in/.cache/d.png", "first.png"):
        write_image(tmp_path / name)
    (tmp_path / "in" / "notes.txt").touch()

    def found(recursive):
        inputs = [tmp_path / name for name in ("first.png", "in", "in/b.png")]
        return [str(path.relative_to(tmp_path)) for path in list_inputs(inputs, recursive, tmp_path / "out")]

    assert found(False) == ["first.png", "in/A.JPG", "in/b.png"]
    assert found(True) == ["first.png", "in/A.JPG", "in/b.png", "in/sub/c.png"]


def test_symbolic_link_loops_end_and_no_folder_is_read_twice(faces, tmp_path):
    (faces / "loop").symlink_to(faces, target_is_directory=True)
    (faces / "sub").mkdir()
    (faces / "sub" / "up").symlink_to(tmp_path, target_is_directory=True)
    paths = list_inputs([faces], True, tmp_path / "out")
    assert [path.name for path in paths] == [f"{name}.png" for name in "abcde"]


def test_a_pipe_in_a_folder_is_passed_over_and_a_dangling_link_fails(faces, tmp_path):
    os.mkfifo(faces / "pipe.png")
    (faces / "z.png").symlink_to(tmp_path / "nowhere.png")
    summary, rows = upscale([faces], tmp_path / "out")
    assert (summary.done, summary.failed) == (5, 1)
    assert rows[-1]["input"].endswith("z.png")


def test_a_pipe_that_is_named_fails_instead_of_blocking(faces, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    summary, rows = upscale([faces, tmp_path / "pipe.png"], tmp_path / "out")
    assert (summary.done, summary.failed) == (5, 1)
    assert "a pipe or a device" in rows[-1]["error"]


def test_outputs_inside_an_input_folder_are_not_inputs_of_the_next_run(faces):
    for _ in range(2):
        upscale([faces], faces / "out", recursive=True)
    assert names(faces / "out") == [f"{name}.png" for name in "abcde"]


def test_an_empty_folder_is_refused_with_the_remedy(tmp_path):
    write_image(tmp_path / "in" / "sub" / "a.png")
    with pytest.raises(InvalidInputError, match="add --recursive"):
        plan([tmp_path / "in"], BatchOptions(tmp_path / "out"))


def test_two_inputs_with_one_output_are_refused_by_every_shard_naming_both(faces, tmp_path):
    write_image(tmp_path / "other" / "a.png")
    for index in (0, 1):
        with pytest.raises(InvalidInputError, match=r"faces/a.png and .*other/a.png would both be written to"):
            plan([faces, tmp_path / "other"], BatchOptions(tmp_path / "out", shard=(index, 2)))


def test_no_input_is_ever_replaced(faces, tmp_path):
    with pytest.raises(InvalidInputError, match="both an input and the output folder"):
        plan([faces], BatchOptions(faces))
    with pytest.raises(InvalidInputError, match="would replace an input"):
        plan([faces / "a.png"], BatchOptions(faces))
    with pytest.raises(InvalidInputError, match="is one of the inputs"):
        plan([faces], BatchOptions(tmp_path / "out", manifest=faces / "a.png"))


def test_running_out_of_memory_lowers_the_batch_and_loses_nothing(faces, tmp_path, capsys):
    upscaler = FakeUpscaler(most=2)
    summary, rows = upscale([faces], tmp_path / "out", upscaler, batch_size=5)
    assert (summary.done, summary.failed) == (5, 0)
    assert upscaler.batches == [5, 3, 2, 2, 1]
    assert [Path(row["input"]).stem for row in rows] == list("abcde")
    assert capsys.readouterr().err.count("out of memory with a batch of") == 2


def test_an_image_that_alone_exceeds_the_memory_fails(faces, tmp_path):
    summary, rows = upscale([faces], tmp_path / "out", FakeUpscaler(most=0), batch_size=2)
    assert (summary.done, summary.failed) == (0, 5)
    assert rows[0]["error"] == "decoding failed: CUDA out of memory. Tried to allocate more"


def test_an_image_that_cannot_be_decoded_fails_alone_and_its_neighbours_are_done(faces, tmp_path, capsys):
    summary, rows = upscale([faces], tmp_path / "out", FakeUpscaler(broken=frozenset({2})), batch_size=2)
    assert [row["status"] for row in rows] == ["ok", "ok", "failed", "ok", "ok"]
    assert summary.exit_code == 1
    assert "c.png: decoding failed: the network broke" in capsys.readouterr().err


def test_an_interrupted_write_leaves_the_old_file_and_no_temporary_one(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(b"old")

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("superres.system.output.os.replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a.png", b"new")
    assert names(tmp_path) == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"old"


def test_output_that_cannot_be_replaced_fails_alone(faces, tmp_path):
    (tmp_path / "out" / "b.png" / "occupied").mkdir(parents=True)
    summary, rows = upscale([faces], tmp_path / "out")
    assert (summary.done, summary.failed) == (4, 1)
    assert rows[1]["error"].startswith(f"cannot write {tmp_path / 'out' / 'b.png'}: ")
    assert names(tmp_path / "out") == [f"{name}.png" for name in "abcde"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_disc_that_takes_no_more_stops_the_run_with_one_line_and_the_next_run_goes_on(
    faces, tmp_path, monkeypatch, capsys, error,
):
    real, count = os.write, []

    def fill(file, data):
        count.append(file)
        if len(count) > 2:
            raise OSError(error, os.strerror(error))
        return real(file, data)

    with monkeypatch.context() as patch:
        patch.setattr("superres.batch.commit.os.write", fill)
        summary, rows = upscale([faces], tmp_path / "out", batch_size=1)
    assert summary.exit_code == 1
    assert len(rows) == summary.done <= 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("superres: ")]
    assert os.strerror(error) in line
    assert "the same command resumes the run" in line
    assert names(tmp_path / "out") == [Path(row["output"]).name for row in rows]
    again, rows = upscale([faces], tmp_path / "out")
    assert (again.done + summary.done, again.skipped, again.exit_code) == (5, summary.done, 0)
    assert [Path(row["output"]).name for row in rows] == names(tmp_path / "out")


@pytest.mark.parametrize("inner", [".", "below"])
def test_an_output_folder_that_cannot_be_made_is_found_before_decoding(faces, tmp_path, inner):
    (tmp_path / "out").write_text("a file")
    upscaler = FakeUpscaler()
    with pytest.raises(OutputError, match=r"cannot write to the folder .*choose another with --output"):
        upscale([faces], tmp_path / "out" / inner, upscaler, manifest=tmp_path / "manifest.jsonl")
    assert upscaler.batches == []


@pytest.mark.parametrize(("text", "size"), [("auto", None), ("12", 12)])
def test_the_batch_size_is_a_number_or_auto(text, size):
    assert parse_batch_size(text) == size
    with pytest.raises(ConfigError, match="--batch-size must be a whole number or auto, not 'many'"):
        parse_batch_size("many")


def test_a_read_only_output_folder_is_found_before_decoding(faces, tmp_path, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("superres.system.output.open", refuse, raising=False)
    upscaler = FakeUpscaler()
    with pytest.raises(OutputError, match="out: Permission denied"):
        upscale([faces], tmp_path / "out", upscaler)
    assert upscaler.batches == []


def test_a_manifest_that_cannot_be_written_is_found_before_decoding(faces, tmp_path):
    upscaler = FakeUpscaler()
    with pytest.raises(OutputError, match="choose another --manifest"):
        upscale([faces], tmp_path / "out", upscaler, manifest=faces)
    assert upscaler.batches == []


def test_the_manifest_is_in_the_output_folder_unless_it_is_named(faces, tmp_path):
    options = BatchOptions(tmp_path / "out", shard=(1, 3))
    upscale_files([Input(str(faces / "a.png"), "a")], FakeUpscaler(), options, DecodeConfig())
    upscale_files([Input(str(faces / "b.png"), "b")], FakeUpscaler(), BatchOptions(tmp_path / "out"), DecodeConfig())
    assert names(tmp_path / "out") == ["a.png", "b.png", "manifest-1-of-3.jsonl", "manifest.jsonl"]


def test_summary_counts_the_mean_accepted_block_size_over_all_iterations(faces, tmp_path):
    summary, _ = upscale([faces], tmp_path / "out")
    assert summary.mean_accepted_block_size == TOKENS / 308
    assert summary.line().startswith("5 done, 0 skipped, 0 failed; ")
    assert summary.line().endswith(" images/s, mean accepted block size 9.97")


def test_a_result_that_cannot_be_written_is_one_line_that_names_the_option(tmp_path):
    (tmp_path / "sheet.png").mkdir()
    with pytest.raises(OutputError, match="choose another --sheet") as caught:
        write_result(tmp_path / "sheet.png", b"", "--sheet")
    assert str(tmp_path / "sheet.png") in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]
