"""The web demo below its page: crops, drawings, decoding for visitors, batches, and the folder of
temporary files."""

from __future__ import annotations

import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage import data

from superres.config import DecodeConfig
from superres.decoding.block_size import check_options
from superres.decoding.trace import RowTrace
from superres.errors import ConfigError, InvalidInputError
from superres.pipeline.upscaled import Upscaled
from superres.pipeline.upscaler import Upscaler
from superres.tasks.crops import Crop
from superres.tasks.faces import FaceTask, area_reduce
from superres.web import drawing
from superres.web.batch_tab import upscale_batch
from superres.web.controls import options_of
from superres.web.crops import crop_of, reduce_picture, subjects, take
from superres.web.decoding import Deadline, StoppedError, VisitorDecoding
from superres.web.files import files_below, new_folder, sweep, temporary_files
from superres.web.site import part_of
from tests.web.helpers import encoded, zipped

TASK = FaceTask(8, 32)
EXACT = DecodeConfig(block_size=10)
TOKENS = 3072


class FakeStream:
    """An upscaler whose stream gives two frames: half of the tokens, then all; every iteration
    accepts 8."""

    def __init__(self):
        self.name, self.revision, self.engine, self.asked = "fake", "0", "fake", []
        self.default, self.face_task = DecodeConfig(), TASK
        self.model_config = type("C", (), {"prediction_heads": 10, "source_shape": (8, 8, 3),
                                           "target_length": TOKENS})

    record, stages = Upscaler.record, 1

    def from_size(self, side):
        return self

    def block_size(self, options):
        return check_options(options, self.model_config.prediction_heads, TOKENS)

    def decode_stream(self, sources, options, *, keys, interval):
        assert interval > 0
        for share in (2, 1):
            self.asked.append((len(sources), share, tuple(keys)))
            images = sources.repeat(4, axis=1).repeat(4, axis=2)
            yield Upscaled(images, [trace(TOKENS // share)] * len(sources), 2.0 / share)


def trace(tokens, size=8):
    count = tokens // size
    return RowTrace([size * i for i in range(count)], [size] * count,
                    np.zeros((count, size), np.int64))


@pytest.fixture
def photo(rng):
    return rng.integers(0, 256, (60, 90, 3), np.uint8)


def saved(image, path):
    Image.fromarray(image).save(path)
    return str(path)


# Photos


def test_source_and_truth_are_reduced_from_the_same_square(photo):
    subject = take(photo, TASK, Crop(4, 24, 36))
    square = photo[24:60, 4:40]
    np.testing.assert_array_equal(subject.source, area_reduce(square, 8, 8))
    np.testing.assert_array_equal(subject.truth, area_reduce(square, 32, 32))
    assert take(photo, TASK, Crop(0, 0, 30)).truth is None  # under the truth's 32
    large = np.tile(photo, (20, 20, 1))
    # its pixels are reduced before they are taken
    subject = take(large, TASK, crop := Crop(-9, 100, 1100, turn=30.0))
    assert subject.crop == crop
    np.testing.assert_array_equal(subject.truth, area_reduce(crop.take(large), 32, 32))
    image = photo[:8, :8]
    (subject,) = subjects(image, TASK)
    np.testing.assert_array_equal(subject.source, image)
    assert subject.truth is None


@pytest.mark.parametrize("doubt", [0.1, 0.9])
def test_the_page_shows_how_a_face_is_turned_and_says_what_is_uncertain(tmp_path, monkeypatch,
                                                                        photo, doubt):
    faces = np.array([[40.0, 30, 24, -8.26, doubt], [0.5, 50, 32, 3, 0]])
    monkeypatch.setattr("superres.tasks.photos.find_faces", lambda _: faces)
    element, preview, chosen, _ = crop_of(saved(photo, tmp_path / "photo.png"), TASK, 8)
    shown = json.loads(unescape(re.search('data-photo="([^"]*)"', element)[1]))
    assert [crop["square"] for crop in shown["crops"]] == [[28, 18, 24, -8.3], [-16, 34, 32, 3]]
    assert [crop["uncertain"] for crop in shown["crops"]] == [doubt == 0.9, False]
    assert (shown["chosen"], chosen) == (1, "-16,34,32,3")
    assert {(crop["kind"], crop["searched"]) for crop in shown["crops"]} == {("face", True)}
    assert 'data-offered="yes" data-square="-16,34,32,3"' in preview


def test_the_static_page_has_an_example_s_face_upright(photo, monkeypatch):
    large = np.asarray(Image.fromarray(photo).resize((360, 240)))
    # to the edge
    for turn, x, margin in ((-8.0, 180.0, 15), (20.0, 42.0, 2), (20.0, 36.0, 0), (0.0, 30.0, 0)):
        faces = np.array([[x, 120.0, 60, turn, 0]])
        monkeypatch.setattr("superres.tasks.photos.find_faces", lambda _, faces=faces: faces)
        part, (left, top, side) = part_of(large, TASK)
        (subject,) = subjects(large, TASK)
        assert (left, top, side) == (margin, margin, 60)
        np.testing.assert_array_equal(area_reduce(part[top:top + side, left:left + side], 32, 32),
                                      subject.truth)


# Drawing


def test_a_frame_shows_whole_pixels_only(rng):
    images = np.full((1, 32, 32, 3), 255, np.uint8)
    shown = drawing.unfinished(Upscaled(images, [trace(1000)], 1.0), 0)
    assert (shown.reshape(-1, 3)[:333] == 255).all()
    assert set(np.unique(shown.reshape(-1, 3)[333:])) == {150, 170}


def test_the_mean_and_the_differences_of_samples_are_numpy_s(rng):
    images = rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    images[:, 3, 4] = 7
    mean, spread, highest = drawing.mean_and_difference(images)
    expected = np.std(images.astype(np.float64), axis=0).mean(axis=2)
    assert highest == pytest.approx(expected.max())
    assert spread[3, 4].tolist() == [68, 1, 84]  # equal pixels have the first colour
    assert spread[np.unravel_index(expected.argmax(), (32, 32))].tolist() == [253, 231, 37]
    assert np.abs(mean - images.mean(axis=0)).max() <= 0.5


def test_names_are_text_and_not_html(photo):
    bad = '"><script>alert(1)</script>'
    for html in (drawing.figure(photo, bad, bad), drawing.message(bad),
                 drawing.statistics([(bad, bad)]), drawing.legend(bad, bad), drawing.fold(bad, "")):
        assert "<script" not in html


# Settings


VALUES = {"block_size": 10, "accept": "distance", "epsilon": 2, "top_k": 2, "consistent": True,
          "temperature": 0, "later_temperature": "", "seed": 0}


def test_settings_come_from_controls_and_the_others_from_the_checkpoint():
    wanted = DecodeConfig(block_size=10, accept="distance", consistent=True)
    assert options_of(DecodeConfig(), VALUES.values()) == wanted
    assert options_of(DecodeConfig(),
                      {**VALUES, "epsilon": 4.0, "temperature": 0.5}.values()) == replace(
                          wanted, epsilon=4, temperature=0.5)
    for value, read in ((None, None), ("0", 0.0), ("0.7,0", (0.7, 0.0))):
        assert options_of(DecodeConfig(),
                          {**VALUES, "temperature": 1,
                           "later_temperature": value}.values()) == replace(
                               wanted, temperature=1, later_temperature=read)
    with pytest.raises(ConfigError, match="later_temperature must be a number, or several with "
                       "commas"):
        options_of(DecodeConfig(), {**VALUES, "later_temperature": "warm"}.values())
    unset = {**VALUES, "block_size": 0, "accept": "exact"}.values()
    for default in (DecodeConfig(), DecodeConfig(adaptive=True)):
        assert options_of(default, unset) == replace(default, consistent=True)
        assert options_of(default, VALUES.values()) == wanted  # as the visitor chose
    tuned = DecodeConfig(min_block=3, proposer="jacobi", accept="top-k")
    values = {**VALUES, "block_size": 2, "accept": "top-k", "consistent": False}
    assert options_of(tuned, values.values()) == replace(tuned, block_size=2, min_block=2)


# Decoding


def test_who_stops_watching_stops_the_decoding(rng, caplog):
    upscaler = FakeStream()
    decoding = VisitorDecoding(upscaler)
    frames = decoding.upscale("test", rng.integers(0, 256, (1, 8, 8, 3), np.uint8), {"": EXACT})
    next(frames)
    assert decoding.is_busy
    with caplog.at_level("INFO"):
        frames.close()
    assert not decoding.is_busy
    assert len(upscaler.asked) == 1
    assert caplog.records[-1].message.startswith("test: stopped in ")


def test_the_variant_with_less_decoding_time_is_next(rng, monkeypatch):
    upscaler = FakeStream()
    monkeypatch.setattr(upscaler, "decode_stream", lambda sources, options, **_: (
        Upscaled(np.zeros(0), [], options.seed * step) for step in range(1, 5)))
    variants = {"slow": replace(EXACT, seed=3), "fast": replace(EXACT, seed=1)}
    frames = VisitorDecoding(upscaler).upscale("test", rng.integers(0, 256, (1, 8, 8, 3), np.uint8),
                                       variants)
    assert [(frame["slow"].seconds, frame["fast"].seconds) for frame in frames] == [
        (3, 1), (3, 2), (3, 3), (6, 3), (6, 4), (9, 4), (12, 4)]


# Batches


@pytest.fixture(autouse=True)
def uploads(tmp_path, monkeypatch):
    """The folder of uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))


def batch(paths, decoding=None):
    uploads = [{"path": str(path)} for path in paths]
    return list(upscale_batch(decoding or VisitorDecoding(FakeStream()), uploads, 8, "none",
                              list(VALUES.values())))[-1]


def failed(progress):
    return [row for row in progress.rows if row.status == "failed"]


def png(image):
    return encoded(Image.fromarray(image), "PNG")


def write_zip(path, members):
    path.write_bytes(zipped(members))
    return path


def test_every_file_has_a_row_and_a_bad_one_costs_only_itself(photo, tmp_path):
    (tmp_path / "bad.png").write_text("x")
    progress = batch([saved(photo, tmp_path / "a.png"), str(tmp_path / "bad.png"),
                      str(tmp_path / "gone.png"),
                      write_zip(tmp_path / "more.zip", {"b/c.png": png(photo), "b/empty.png": b"",
                                                        "b/x.txt": b""})])
    assert [(row.input, row.status) for row in progress.rows] == [
        ("bad.png", "failed"), ("gone.png", "failed"), ("more.zip/b/empty.png", "failed"),
        ("a.png", "ok"), ("more.zip/b/c.png", "ok")]
    assert [row.tokens for row in progress.rows][-1] == TOKENS
    assert [one.output.row.output for one in progress.pictures] == ["a.png", "c.png"]
    assert all(str(tmp_path) not in row.error for row in failed(progress))
    assert (progress.total, progress.done) == (5, 2)
    assert progress.notes == ["more.zip: 3 members: 2 used, 1 left out (1 .txt)"]


@pytest.mark.parametrize(("names", "outputs"), [
    (["x/a.png", "x/a.jpg", "y/a.png", "y/a.jpg"], ["a.png", "a-2.png", "a-3.png", "a-4.png"]),
    (["../../../evil.png", "/absolute.png", "C:\\windows.png", "x\\up.png", "a/",
      "__MACOSX/._a.png"],
     ["evil.png", "absolute.png", "windows.png", "up.png"]),
    (["Anna.png", "anna.png", "e\u0301t\u00e9.png", "\u00c9t\u00e9.jpg"],
     ["Anna.png", "anna-2.png", "e\u0301t\u00e9.png", "\u00c9t\u00e9-2.png"]),
    (["con.png", "aux.x.png", 'a:b<c>|d*"?.png', "\U0001f600" * 60 + ".png"],
     ["_con.png", "_aux.x.png", "a_b_c__d___.png", "\U0001f600" * 25 + ".png"]),
])
def test_names_in_a_zip_are_made_different_and_never_become_paths(photo, tmp_path, names, outputs):
    progress = batch([write_zip(tmp_path / "more.zip", dict.fromkeys(names, png(photo)))])
    assert [one.output.row.output for one in progress.pictures] == outputs
    assert sorted(path.name for path in tmp_path.iterdir()) == ["more.zip"]


def test_every_face_of_a_photo_becomes_a_picture_with_its_crop(tmp_path):
    group = np.concatenate([data.astronaut(), data.astronaut()], 1)
    progress = batch([saved(group, tmp_path / "both.png"),
                      saved(group[:8, :8], tmp_path / "small.png"),
                      saved(group[:, :512], tmp_path / "both-face1.png")])
    assert [one.output.row.output for one in progress.pictures] == ["both-face1-2.png",
                                                                    "both-face2.png", "small.png",
                                                                    "both-face1.png"]
    assert progress.total == 4
    crops = [row.crop for row in progress.rows]
    assert [(crop or {}).get("face") for crop in crops] == [1, 2, None, 0]
    assert crops[1]["left"] == crops[0]["left"] + 512


def test_zip_files_that_cannot_be_read_are_refused(photo, tmp_path):
    many = write_zip(tmp_path / "many.zip", {f"{number}.png": b"" for number in range(101)})
    folders = write_zip(tmp_path / "folders.zip", {f"{number}/": b"" for number in range(3)})
    for uploads, message in (([many], "101 files are too many at once; upload at most 100"),
                             ([], "^there is no file yet; upload images"),
                             ([folders], "there is no file yet"),
                             ([write_zip(tmp_path / "no.zip", {"a.txt": b""})], "1 left out .* "
                              "upload images")):
        with pytest.raises(InvalidInputError, match=message):
            batch(uploads)
    path = tmp_path / "locked.zip"
    content = bytearray(zipped({"a.png": png(photo)}))
    content[content.index(b"PK\x01\x02") + 8] |= 1  # says that it is encrypted
    path.write_bytes(content)
    (tmp_path / "cut.zip").write_bytes(content[:-30])
    errors = [row.error
              for row in failed(batch([path, tmp_path / "cut.zip", tmp_path / "gone.zip"]))]
    assert [re.search("password|damaged|not uploaded", error)[0] for error in errors] == [
        "password", "damaged", "not uploaded"]
    assert str(tmp_path) not in str(errors)


@pytest.mark.parametrize("checks", [3, 11])
def test_when_the_time_is_up_the_rest_fails_and_what_is_done_is_kept(photo, tmp_path, monkeypatch,
                                                                     checks):
    uploads = [saved(photo, tmp_path / f"{number}.png") for number in range(9)]
    decoding, left = VisitorDecoding(FakeStream()), iter(range(checks))
    check = decoding.check_time
    monkeypatch.setattr(decoding, "check_time",
                        lambda deadline: check(Deadline(0.0) if next(left, None) is None
                                               else deadline))
    progress = batch(uploads, decoding)
    ready = 0 if checks == 3 else 8
    assert [row.status for row in progress.rows] == ["ok"] * ready + ["failed"] * (9 - ready)
    assert "took longer than" in failed(progress)[0].error
    decoding.close()
    with pytest.raises(StoppedError, match="server is stopping"):
        batch(uploads, decoding)


def test_one_picture_of_a_visitor_at_a_time_is_in_memory(photo, tmp_path):
    path, inside, most = saved(photo, tmp_path / "a.png"), [], []

    def reduce(image):
        inside.append(image)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: reduce_picture(path, reduce, 8), range(16)))
    assert set(most) == {1}


# Temporary files


def test_the_sweep_deletes_what_is_old_and_the_oldest_of_too_much_and_spares_the_page_s_own(
    photo, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "before")
    with temporary_files() as folder:
        assert os.environ["GRADIO_TEMP_DIR"] == str(folder)
        assert folder.stat().st_mode & 0o777 == 0o700
        paths = [Path(saved(photo, new_folder() / "a.png")) for _ in range(6)]
        own, used, *_ = paths
        for age, path in enumerate(paths):
            for changed in (path, path.parent):
                os.utime(changed, (1e9 - age, 1e9 - age))
        sweep(folder, {own}, age=1e10, most_bytes=3 * own.stat().st_size)
        assert [path.exists() for path in paths] == [True] * 4 + [False] * 2
        reduce_picture(used, np.array, 8)  # counts as used
        sweep(folder, {own})
        assert sorted(files_below(folder)) == sorted([own, used])
        sweep(folder, {own}, age=-1)
        assert list(folder.rglob("*")) == [own.parent, own]
    assert not folder.exists()
    assert os.environ["GRADIO_TEMP_DIR"] == "before"
