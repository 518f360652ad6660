"""Photos in a batch: one output per face, also after an interruption, and a row and a line that say
what was used."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeUpscaler
from PIL import Image

from superres.batch.run_options import BatchOptions
from superres.config import DecodeConfig
from superres.errors import InvalidInputError, OutputError
from superres.tasks.faces import FaceTask
from superres.tasks.photos import choose_crops
from tests.batch.helpers import contents, outputs, plan, rows_of, upscale
from tests.tasks.test_photos import astronaut, group_photo

TASK = FaceTask(8, 32)
SAMPLED = DecodeConfig(temperature=0.9)
NAMES = ["a.png", "b.png", "c.png", "d-face1.png", "d-face2.png", "d-face3.png"]


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


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_every_face_is_an_output_with_a_row_a_record_and_one_line(photos, out, capsys, monkeypatch):
    summary = upscale(photos, out)
    assert (summary.done, summary.failed) == (6, 0)
    assert sorted(path.name for path in out.glob("*.png")) == outputs(out) == NAMES
    photo, rows = group_photo()[0], rows_of(out)
    for row, crop in zip(rows[3:], choose_crops(photo, TASK), strict=True):
        assert row["crop"] == {"left": crop.left, "top": crop.top, "size": crop.size,
                               "kind": "face", "face": crop.face, "faces": 3, "turn": crop.turn,
                               "doubt": crop.doubt}
        with Image.open(row["output"]) as image:
            assert json.loads(image.text["superres"])["crop"] == row["crop"]
            source = TASK.source_of(crop.take(photo))
            np.testing.assert_array_equal(np.asarray(image),
                                          TASK.enlarge(source[None], "nearest")[0])
    assert rows[0]["crop"] is None
    assert rows[1]["crop"] == {"left": 50, "top": 0, "size": 200, "kind": "centre", "face": 0,
                               "faces": 0, "turn": 0.0, "doubt": 0.0}
    lines = [line for line in capsys.readouterr().err.splitlines() if "the model sees only 8x8"
             in line]
    assert [re.search(r"(.)\.png \(\d+x\d+\): crop (.*);", line).groups() for line in lines] == [
        ("b", "centre, no face found"), ("c", "face, one face found"), ("d", "face, 3 faces found")]
    before = contents(out)
    monkeypatch.setattr("superres.batch.reading.choose_crops",
                        lambda *_: pytest.fail("a photo was read again"))
    summary = upscale(photos, out)
    assert (summary.done, summary.skipped, summary.failed, summary.finished) == (0, 6, 0, 6)
    assert contents(out) == before


def test_an_output_that_is_missing_or_damaged_is_made_again_with_the_faces_of_its_photo(photos,
                                                                                        out):
    upscale(photos, out)
    before = contents(out)
    for name, damage, faces in (("c.png", Path.unlink, 1), ("d-face1.png", Path.unlink, 3),
                                ("d-face3.png", Path.unlink, 3),
                                ("d-face2.png", lambda path: path.write_bytes(b"damaged"), 3)):
        damage(out / name)
        summary = upscale(photos, out)
        assert (summary.done, summary.skipped, summary.failed) == (faces, 6 - faces, 0)
        assert contents(out) == before


def test_a_file_of_the_user_that_has_a_face_s_name_is_not_touched(photos, out):
    out.mkdir()
    (out / "d-face2.png").write_bytes(b"mine")
    summary = upscale(photos, out)
    assert (summary.done, summary.skipped) == (5, 1)
    assert [row["status"] for row in rows_of(out)] == ["ok"] * 4 + ["skipped", "ok"]
    assert upscale(photos, out, on_existing="error").failed == 6
    assert (out / "d-face2.png").read_bytes() == b"mine"
    assert upscale(photos, out, on_existing="overwrite").done == 6
    assert outputs(out) == NAMES


def test_another_crop_is_refused_or_makes_all_outputs_anew(photos, out):
    upscale(photos, out)
    with pytest.raises(OutputError, match="crop 'face' there, 'centre' now"):
        upscale(photos, out, crop="centre")
    for crop, expected in (("centre", ["a.png", "b.png", "c.png", "d.png"]), ("face", NAMES)) * 2:
        summary = upscale(photos, out, crop=crop, on_existing="redo")
        assert (summary.done, summary.failed) == (len(expected), 0)
        # Files of the other setting keep their rows, before the rows of this run.
        assert outputs(out)[-len(expected):] == expected
        assert sorted(outputs(out)) == sorted(path.name for path in out.glob("*.png"))
        assert upscale(photos, out, crop=crop).skipped == len(expected)


def test_a_photo_that_could_not_be_read_or_decoded_has_its_faces_rows_later(photos, out):
    content = (photos / "d.png").read_bytes()
    (photos / "d.png").write_bytes(content[:999])
    assert upscale(photos / "d.png", out).failed == 1
    assert outputs(out) == ["d.png"]
    (photos / "d.png").write_bytes(content)
    first = TASK.source_of(choose_crops(group_photo()[0], TASK)[1].take(group_photo()[0]))[0, 0, 0]
    assert upscale(photos / "d.png", out, FakeUpscaler(broken=frozenset({int(first)})),
                   batch_size=1).failed >= 1
    assert outputs(out) == NAMES[3:]
    assert upscale(photos / "d.png", out).failed == 0
    assert outputs(out) == NAMES[3:]


def test_a_face_s_name_that_another_input_has_is_refused(photos, out):
    for name in ("d-face2.jpg", "e-face2.jpg"):
        astronaut(64).save(photos / name)
    with pytest.raises(InvalidInputError, match=r"d.png may show several faces, and then face 2 "
                       r"and .*d-face2.jpg would both .* give --crop centre"):
        plan([photos], BatchOptions(out))
    assert len(plan([photos], BatchOptions(out, crop="centre"))) == 6


def test_a_given_square_fails_the_pictures_that_it_leaves_and_lines_are_few(photos, out, capsys,
                                                                            monkeypatch):
    monkeypatch.setattr("superres.batch.run.PHOTO_LINES", 1)
    summary = upscale(photos, out, crop="50,40,160")
    assert (summary.done, summary.failed) == (3, 1)
    err = capsys.readouterr().err
    assert ("a.png: the crop 50,40,160 has its centre at (130, 120) and a side of 160, and the "
            "picture has 8x8" in err)
    assert err.count("crop as given; 160x160 pixels at (50, 40) are used, and the model sees only "
                     "8x8") == 1
    assert f"superres: the crops of further photos are in {out / 'manifest.jsonl'}\n" in err


def test_transparent_photos_keep_the_transparency_of_their_faces(photos, out):
    image = astronaut()
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    image.save(photos / "c.png")
    upscale(photos / "c.png", out, alpha="keep")
    with Image.open(out / "c.png") as made:
        (crop,) = choose_crops(image.convert("RGB"), TASK)
        assert np.asarray(made.getchannel("A"))[16].mean() == pytest.approx((crop.top + crop.size
                                                                             / 2) / 2, abs=4)


def test_a_run_goes_on_after_one_of_a_release_whose_crops_were_upright(photos, out):
    upscale(photos, out)
    rows = rows_of(out)
    for crop in (row["crop"] for row in rows if row["crop"] is not None):
        del crop["turn"], crop["doubt"]
        crop["windows"] = 20
    (out / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert upscale(photos, out).skipped == 6
    assert rows_of(out) == rows
