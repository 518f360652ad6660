"""Photos in a batch: one output per face, also after an interruption, and a row and a line that say what was used."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeUpscaler
from killing import die_at
from PIL import Image
from test_batch_resume import FORK
from test_photos import astronaut, group_photo

from superres.batch import run as run_module
from superres.batch.manifest import merge
from superres.batch.plan import BatchOptions, plan
from superres.batch.upscaling import upscale_files
from superres.config import DecodeConfig
from superres.errors import ConfigError, InvalidInputError, OutputError
from superres.tasks.faces import FaceTask
from superres.tasks.photos import choose_crops

TASK = FaceTask(8, 32)
ROOT = Path(__file__).parent.parent
SAMPLED = DecodeConfig(temperature=0.9)


@pytest.fixture
def photos(tmp_path):
    """A small picture, a photo without a face, one with one face, and one with three."""
    folder = tmp_path / "photos"
    folder.mkdir()
    astronaut().crop((124, 8, 324, 208)).resize((8, 8)).save(folder / "a.png")
    Image.new("RGB", (300, 200), "green").save(folder / "b.png")
    astronaut().save(folder / "c.png")
    Image.fromarray(group_photo()[0]).save(folder / "d.png")
    return folder


NAMES = ["a.png", "b.png", "c.png", "d-face1.png", "d-face2.png", "d-face3.png"]


def run(photos, output, upscaler=None, decode=None, **options):
    settings = BatchOptions(output, **options)
    return upscale_files(plan([photos], settings), upscaler or FakeUpscaler(), settings, decode or DecodeConfig(),
                         group=2)


def rows_of(output):
    return [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]


def outputs(output):
    return [os.path.basename(row["output"]) for row in rows_of(output)]


def contents(output):
    rows = [{**row, "seconds": None, "output": os.path.basename(row["output"])} for row in rows_of(output)]
    return rows, {path.name: path.read_bytes() for path in output.glob("*.png")}


def test_every_face_is_an_output_with_a_row_a_record_and_one_line(photos, tmp_path, capsys):
    output = tmp_path / "out"
    summary = run(photos, output)
    assert (summary.done, summary.failed) == (6, 0)
    assert sorted(path.name for path in output.glob("*.png")) == outputs(output) == NAMES
    photo = group_photo()[0]
    crops = choose_crops(photo, TASK)
    for row, crop in zip(rows_of(output)[3:], crops, strict=True):
        assert row["crop"] == {"left": crop.left, "top": crop.top, "size": crop.size, "kind": "face",
                               "face": crop.face, "faces": 3}
        with Image.open(row["output"]) as image:
            assert json.loads(image.text["superres"])["crop"] == row["crop"]
            source = TASK.source_of(crop.take(photo))
            np.testing.assert_array_equal(np.asarray(image), TASK.enlarge(source[None], "nearest")[0])
    crops = [row["crop"] for row in rows_of(output)[:3]]
    assert crops[0] is None
    assert crops[1] == {"left": 50, "top": 0, "size": 200, "kind": "centre", "face": 0, "faces": 0}
    assert (crops[2]["kind"], crops[2]["face"], crops[2]["faces"]) == ("face", 0, 1)
    lines = [line for line in capsys.readouterr().err.splitlines() if "the model sees only 8x8" in line]
    assert [re.search(r"(.)\.png \(\d+x\d+\): crop (.*);", line).groups() for line in lines] == [
        ("b", "centre, no face found"), ("c", "face, one face found"), ("d", "face, 3 faces found")]


def test_samples_of_faces_have_both_numbers(photos, tmp_path):
    run(photos / "d.png", tmp_path / "out", decode=SAMPLED, samples=2)
    assert outputs(tmp_path / "out") == [f"d-face{face}-{sample}.png" for sample in (1, 2) for face in (1, 2, 3)]
    assert len({path.read_bytes() for path in (tmp_path / "out").glob("*.png")}) == 6
    upscaler = FakeUpscaler()
    summary = run(photos / "d.png", tmp_path / "out", upscaler, SAMPLED, samples=2)
    assert (summary.skipped, summary.done, upscaler.batches) == (6, 0, [])


@pytest.mark.parametrize("samples", [1, 2])
def test_merged_manifests_of_shards_have_the_order_of_one_run(photos, tmp_path, samples):
    for index in range(3):
        run(photos, tmp_path / "out", decode=SAMPLED, samples=samples, shard=(index, 3))
    paths = [tmp_path / "out" / f"manifest-{index}-of-3.jsonl" for index in range(3)]
    assert merge(paths, tmp_path / "out" / "manifest.jsonl") == {"ok": 6 * samples}
    run(photos, tmp_path / "whole", decode=SAMPLED, samples=samples)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_complete_run_is_not_repeated_and_its_photos_are_not_read(photos, tmp_path, monkeypatch):
    run(photos, tmp_path / "out")
    before = contents(tmp_path / "out")
    monkeypatch.setattr("superres.batch.reading.choose_crops", lambda *_: pytest.fail("a photo was read again"))
    summary = run(photos, tmp_path / "out")
    assert (summary.done, summary.skipped, summary.failed, summary.finished) == (0, 6, 0, 6)
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("name", NAMES)
def test_an_output_that_is_missing_or_damaged_is_made_again_alone(photos, tmp_path, name):
    run(photos, tmp_path / "out")
    before = contents(tmp_path / "out")
    for damage in (Path.unlink, lambda path: path.write_bytes(b"damaged")):
        damage(tmp_path / "out" / name)
        summary = run(photos, tmp_path / "out")
        assert (summary.done, summary.skipped, summary.failed) == (1, 5, 0)
        assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("calls", range(100, 204, 8))
def test_a_run_that_is_killed_anywhere_ends_as_one_that_is_not(photos, tmp_path, calls):
    run(photos, tmp_path / "whole")
    child = FORK.Process(target=lambda: (die_at(calls), run(photos, tmp_path / "out")))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    summary = run(photos, tmp_path / "out")
    assert summary.failed == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_file_of_the_user_that_has_a_face_s_name_is_not_touched(photos, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "d-face2.png").write_bytes(b"mine")
    summary = run(photos, tmp_path / "out")
    assert (summary.done, summary.skipped) == (5, 1)
    assert (tmp_path / "out" / "d-face2.png").read_bytes() == b"mine"
    assert [row["status"] for row in rows_of(tmp_path / "out")] == ["ok"] * 4 + ["skipped", "ok"]
    summary = run(photos, tmp_path / "out", on_existing="error")
    assert (summary.done, summary.failed) == (0, 6)
    assert (tmp_path / "out" / "d-face2.png").read_bytes() == b"mine"
    assert run(photos, tmp_path / "out", on_existing="overwrite").done == 6
    assert outputs(tmp_path / "out") == NAMES


def test_another_crop_is_refused_or_makes_all_outputs_anew(photos, tmp_path):
    output = tmp_path / "out"
    run(photos, output)
    with pytest.raises(OutputError, match="crop 'face' there, 'centre' now"):
        run(photos, output, crop="centre")
    for crop, expected in (("centre", ["a.png", "b.png", "c.png", "d.png"]), ("face", NAMES)) * 2:
        summary = run(photos, output, crop=crop, on_existing="redo")
        assert (summary.done, summary.failed) == (len(expected), 0)
        # Files of the other setting keep their rows, before the rows of this run.
        assert outputs(output)[-len(expected):] == expected
        assert sorted(outputs(output)) == sorted(path.name for path in output.glob("*.png"))
        again = run(photos, output, crop=crop)
        assert (again.done, again.skipped) == (0, len(expected))


def test_a_photo_that_could_not_be_read_has_its_faces_rows_later(photos, tmp_path):
    content = (photos / "d.png").read_bytes()
    (photos / "d.png").write_bytes(content[:999])
    assert run(photos, tmp_path / "out").failed == 1
    assert outputs(tmp_path / "out")[3:] == ["d.png"]
    (photos / "d.png").write_bytes(content)
    assert run(photos, tmp_path / "out").done == 3
    assert outputs(tmp_path / "out") == NAMES


def test_a_face_that_cannot_be_decoded_costs_its_own_row_and_is_made_later(photos, tmp_path):
    first = TASK.source_of(choose_crops(group_photo()[0], TASK)[1].take(group_photo()[0]))[0, 0, 0]
    upscaler = FakeUpscaler(broken=frozenset({int(first)}))
    assert run(photos / "d.png", tmp_path / "out", upscaler, batch_size=1).failed >= 1
    assert outputs(tmp_path / "out") == NAMES[3:]
    assert run(photos / "d.png", tmp_path / "out").failed == 0
    assert outputs(tmp_path / "out") == NAMES[3:]


def test_a_crop_of_outputs_that_are_older_than_the_option_is_the_centre(photos, tmp_path):
    output = tmp_path / "out"
    run(photos / "b.png", output, crop="centre")
    (row,) = rows_of(output)
    del row["options"]["crop"], row["crop"]
    (output / "manifest.jsonl").write_text(json.dumps(row) + "\n")
    assert run(photos / "b.png", output, crop="centre").skipped == 1
    with pytest.raises(OutputError, match="crop 'centre' there, 'face' now"):
        run(photos / "b.png", output)


def test_a_face_s_name_that_another_input_has_is_refused(photos, tmp_path):
    for name in ("d-face2.jpg", "e-face2.jpg"):
        astronaut(64).save(photos / name)
    with pytest.raises(InvalidInputError, match=r"d.png may show several faces, and then face 2 and .*d-face2.jpg "
                                                r"would both .* give --crop centre"):
        plan([photos], BatchOptions(tmp_path / "out"))
    assert len(plan([photos], BatchOptions(tmp_path / "out", crop="centre"))) == 6


def test_a_given_square_fails_the_pictures_that_it_leaves(photos, tmp_path, capsys):
    summary = run(photos, tmp_path / "out", crop="50,40,160")
    assert (summary.done, summary.failed) == (3, 1)
    err = capsys.readouterr().err
    assert "a.png: the crop 50,40,160 does not lie inside the picture of 8x8; give X + SIZE up to 8" in err
    assert err.count("crop as given; 160x160 pixels at (50, 40) are used, and the model sees only 8x8") == 3


def test_the_lines_of_many_photos_end_with_a_pointer_to_the_manifest(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(run_module, "PHOTO_LINES", 1)
    run(photos, tmp_path / "out")
    lines = [line for line in capsys.readouterr().err.splitlines() if "crop" in line]
    assert len(lines) == 2
    assert lines[1] == f"superres: the crops of further photos are in {tmp_path / 'out' / 'manifest.jsonl'}"


def test_transparent_photos_keep_the_transparency_of_their_faces(photos, tmp_path):
    image = astronaut()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(photos / "c.png")
    run(photos / "c.png", tmp_path / "out", alpha="keep")
    with Image.open(tmp_path / "out" / "c.png") as made:
        (crop,) = choose_crops(image.convert("RGB"), TASK)
        alpha = np.asarray(made.getchannel("A"))
    assert alpha[16].mean() == pytest.approx((crop.top + crop.size / 2) / 2, abs=4)


@pytest.mark.parametrize(("crop", "message"), [
    ("middle", "--crop must be face, centre or X,Y,SIZE"), ("1,2,0", "--crop 1,2,0 has a SIZE of 0"),
])
def test_a_bad_crop_is_refused_before_anything_is_written(tmp_path, crop, message):
    with pytest.raises(ConfigError, match=message):
        BatchOptions(tmp_path / "out", crop=crop)


def command(*words):
    code = "from superres.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, "upscale", *map(str, words)], cwd=ROOT, capture_output=True,
                          text=True, check=False)


def test_the_command_upscales_the_faces_of_a_photo(photos, tmp_path):
    done = command(photos / "d.png", photos / "c.png", "--output", tmp_path / "out", "--accept", "distance",
                   "--epsilon", "255", "--engine", "plain")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(tmp_path / "out")) == [*NAMES[2:], "manifest.jsonl"]
    assert f"superres: {photos / 'd.png'} (900x400): crop face, 3 faces found" in done.stderr
    assert "4 done, 0 skipped, 0 failed" in done.stderr


@pytest.mark.parametrize(("words", "message"), [
    (["--crop", "left"], "superres: --crop must be face, centre or X,Y,SIZE in pixels from the top left corner, such "
                         "as 400,250,800, not 'left'"),
    (["--crop", "1,2"], "not '1,2'"),
    (["--crop", "0,0,4"], "superres: --crop 0,0,4 has a SIZE of 4; the model needs at least 8 pixels"),
    (["--crop", "face", "--source", "lowres"], "superres: --crop face has no effect with --source lowres, which takes "
                                               "images of the model's input size only; leave it out, or give "
                                               "--source auto"),
])
def test_the_command_refuses_a_bad_crop_in_one_line(photos, tmp_path, words, message):
    refused = command(photos, "--output", tmp_path / "out", *words)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()
