"""The web demo below its page: crops, drawings, decoding for visitors, batches, and the folder of temporary files."""

from __future__ import annotations

import base64
import io
import json
import os
import platform
import re
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from fakes import FakeTrace
from PIL import Image
from skimage import data

from superres.config import DecodeConfig
from superres.decoding.decode import check_options
from superres.decoding.trace import RowTrace
from superres.errors import ConfigError, InvalidInputError
from superres.pipeline.upscaler import Upscaled
from superres.tasks.faces import FaceTask, area_reduce, image_key
from superres.tasks.photos import choose_crops
from superres.web import batches, drawing, files
from superres.web.batches import Limits, upscale_batch
from superres.web.controls import options_of
from superres.web.decoding import Decoder, StoppedError, take_turns
from superres.web.files import Workspace
from superres.web.photos import CropShare, default_crop, file_name, reduce_upload, shrink, take

TASK = FaceTask(8, 32)
EXACT = DecodeConfig(block_size=10)
TOKENS = 3072


class FakeStream:
    """An upscaler whose stream gives two frames: half of the tokens, then all; every iteration accepts 8."""

    def __init__(self, fail_at=None):
        self.name, self.revision, self.asked, self.fail_at = "fake", "0", [], fail_at
        self.default, self.face_task = DecodeConfig(), TASK
        self.model_config = type("C", (), {"prediction_heads": 10, "source_shape": (8, 8, 3), "target_length": TOKENS})

    def block_size(self, options):
        return check_options(options, self.model_config.prediction_heads, TOKENS)

    def stream(self, sources, options, *, keys, interval):
        assert interval > 0
        for share in (2, 1):
            self.asked.append((len(sources), share, tuple(keys)))
            if self.fail_at == share:
                raise RuntimeError("secret /tmp/path")
            images = sources.repeat(4, axis=1).repeat(4, axis=2)
            yield Upscaled(images, [trace(TOKENS // share)] * len(sources), 2.0 / share)


def trace(tokens, size=8):
    count = tokens // size
    return RowTrace([size * i for i in range(count)], [size] * count, np.zeros((count, size), np.int64))


@pytest.fixture
def workspace():
    with Workspace() as made:
        yield made


@pytest.fixture
def photo(rng):
    return rng.integers(0, 256, (60, 90, 3), np.uint8)


def saved(image, path):
    Image.fromarray(image).save(path)
    return str(path)


# Photos


def test_an_8x8_picture_is_the_source_and_has_no_truth(rng):
    image = rng.integers(0, 256, (8, 8, 3), np.uint8)
    subject = take(image, TASK, CropShare(10, 10, 10).of(image, TASK))
    np.testing.assert_array_equal(subject.source, image)
    assert subject.truth is None


@pytest.mark.parametrize("shape", [(60, 90), (90, 60), (218, 178), (32, 32), (9, 8)])
def test_the_first_crop_is_that_of_the_command_line(rng, shape):
    image = rng.integers(0, 256, (*shape, 3), np.uint8)
    np.testing.assert_array_equal(take(image, TASK, default_crop(image, TASK)).source, TASK.to_source(image))
    np.testing.assert_array_equal(take(image, TASK).source, TASK.to_source(image))


def test_the_first_crop_is_the_face_of_the_command_line():
    image = data.astronaut()
    (crop,) = choose_crops(image, TASK)
    assert crop.kind == "face"
    assert default_crop(image, TASK) == crop
    np.testing.assert_array_equal(take(image, TASK).source, TASK.source_of(crop.take(image)))
    smaller = np.pad(area_reduce(image, 300, 300), ((0, 212), (0, 0), (0, 0)), mode="edge")
    largest = max(choose_crops(np.hstack([smaller, image]), TASK), key=lambda crop: crop.size)
    assert default_crop(np.hstack([smaller, image]), TASK) == largest
    assert largest.left > 300


def test_source_and_truth_are_reduced_from_the_same_square(photo):
    subject = take(photo, TASK, CropShare(x=25, y=100, size=60).of(photo, TASK))
    square = photo[24:60, 4:40]
    np.testing.assert_array_equal(subject.source, area_reduce(square, 8, 8))
    np.testing.assert_array_equal(subject.truth, area_reduce(square, 32, 32))
    assert take(photo, TASK, CropShare(size=50).of(photo, TASK)).truth is None  # 30 pixels wide, under the truth's 32


@pytest.mark.parametrize("share", [(0, 0, 1), (100, 100, 1), (0, 100, 100), (33.3, 66.6, 40)])
@pytest.mark.parametrize("size", [(8, 8), (9, 500), (640, 480)])
def test_every_crop_lies_inside_and_is_large_enough(share, size):
    crop = CropShare(*share).of(np.zeros((size[1], size[0], 3), np.uint8), TASK)
    left, top, side = crop.left, crop.top, crop.size
    assert left >= 0
    assert top >= 0
    assert 8 <= side <= min(size)
    assert left + side <= size[0]
    assert top + side <= size[1]


@pytest.mark.parametrize("wrong", [{"x": -1}, {"y": 101}, {"size": 0}, {"size": float("nan")}, {"x": "a"}, {"x": None}])
def test_a_crop_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError, match="must be a percentage"):
        CropShare(**wrong)


def test_messages_name_the_upload_and_not_the_server_s_path(tmp_path):
    path = tmp_path / "secret.png"
    path.write_text("no picture")
    with pytest.raises(InvalidInputError, match=r"^mine\.png is not an image") as caught:
        reduce_upload(path, np.array, 8, "mine.png")
    assert str(tmp_path) not in str(caught.value)
    path.unlink()
    with pytest.raises(InvalidInputError, match="upload it again"):
        reduce_upload(path, np.array, 8)


def test_using_an_upload_keeps_it_from_the_sweep(photo, workspace):
    path = saved(photo, workspace.new_folder() / "a.png")
    os.utime(path, (0, 0))
    reduce_upload(path, np.array, 8)
    assert workspace.sweep() == 0


def test_shrinking_keeps_the_shape_and_never_enlarges(rng):
    assert shrink(rng.integers(0, 256, (1000, 10, 3), np.uint8), 100).shape == (100, 1, 3)
    assert shrink(rng.integers(0, 256, (20, 10, 3), np.uint8), 100).shape == (20, 10, 3)


@pytest.mark.parametrize("path", ["../../a.png", "C:\\b\\a.png", "/tmp/a.png", "a.png"])  # noqa: S108
def test_file_names_lose_their_folders(path):
    assert file_name(path) == "a.png"


# Drawing


def picture_of(uri):
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/png;base64,"))))


def test_pictures_are_exact_and_carry_their_record(photo):
    image = picture_of(drawing.data_uri(photo, {"seed": 7}))
    np.testing.assert_array_equal(np.asarray(image), photo)
    assert json.loads(image.text["superres"]) == {"seed": 7}


def test_a_frame_shows_whole_pixels_only(rng):
    images = np.full((1, 32, 32, 3), 255, np.uint8)
    shown = drawing.unfinished(Upscaled(images, [trace(1000)], 1.0), 0)
    assert (shown.reshape(-1, 3)[:333] == 255).all()
    assert set(np.unique(shown.reshape(-1, 3)[333:])) == {150, 170}


def test_the_marked_block_is_the_last_one():
    assert drawing.block_overlay(trace(1000), 32).count("v1h-1z") == 4  # tokens 992 to 999 lie in pixels 330 to 333
    assert "M10 10h1" in drawing.block_overlay(trace(1000), 32)
    assert drawing.block_overlay(RowTrace([], [], np.zeros((0, 8))), 32) == ""


def test_accepted_sizes_are_those_of_each_pixel_s_block():
    sizes = [1, 2, 3, 10, *[8] * 382]
    assert sum(sizes) == TOKENS
    found = drawing.accepted_sizes(FakeTrace(sizes), 32).ravel()
    assert found[:6].tolist() == [5 / 3, 3, 10, 10, 10, pytest.approx((10 + 8 + 8) / 3)]
    assert found[-1] == 8


def test_the_heat_map_grows_brighter_with_the_block_size():
    grey = np.full((32, 32, 3), 128, np.uint8)
    means = [drawing.heat_map(grey, FakeTrace([size] * (TOKENS // size)), 8).mean() for size in (1, 2, 4, 8)]
    assert means == sorted(means)
    assert drawing.heat_map(grey, FakeTrace([1] * TOKENS), 1).shape == (32, 32, 3)  # greedy: one size only


def test_the_mean_and_the_differences_of_samples_are_numpy_s(rng):
    images = rng.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
    images[:, 3, 4] = 7
    spread, highest = drawing.difference_map(images)
    expected = np.std(images.astype(np.float64), axis=0).mean(axis=2)
    assert highest == pytest.approx(expected.max())
    assert spread[3, 4].tolist() == [68, 1, 84]  # equal pixels have the first colour
    assert spread[np.unravel_index(expected.argmax(), (32, 32))].tolist() == [253, 231, 37]
    mean = drawing.mean_picture(images)
    assert np.abs(mean - images.mean(axis=0)).max() <= 0.5
    assert mean[3, 4].tolist() == [7, 7, 7]


def test_the_histogram_says_its_shares_in_words():
    assert "1: 75 %, 2: 0 %, 3: 25 %" in drawing.histogram([1, 1, 1, 3], 3, 1.5)


def test_names_are_text_and_not_html(photo):
    bad = '"><script>alert(1)</script>'
    for html in (drawing.figure(photo, bad, bad), drawing.message(bad), drawing.statistics([(bad, bad)]),
                 drawing.legend(bad, bad), drawing.fold(bad, "")):
        assert "<script" not in html


# Settings


def test_the_settings_come_back_from_their_controls():
    values = {"block_size": 10.0, "accept": "distance", "epsilon": 2, "top_k": 2,
              "consistent": True, "temperature": 0, "seed": 0}
    wanted = DecodeConfig(block_size=10, accept="distance", consistent=True)
    assert options_of(DecodeConfig(), values.values()) == wanted
    assert options_of(DecodeConfig(), {**values, "epsilon": 4.0, "temperature": 0.5}.values()) == replace(
        wanted, epsilon=4, temperature=0.5)


def test_settings_without_a_control_are_the_checkpoint_s_own():
    tuned = DecodeConfig(min_block=3, proposer="jacobi", accept="top-k")
    values = {"block_size": 2, "accept": "top-k", "epsilon": 2, "top_k": 2, "consistent": False,
              "temperature": 0, "seed": 0}
    assert options_of(tuned, values.values()) == replace(tuned, block_size=2, min_block=2)


@pytest.mark.parametrize("wrong", [
    {"block_size": 1.5}, {"block_size": None}, {"block_size": -1}, {"accept": ["exact"]}, {"accept": None},
    {"epsilon": "x"}, {"epsilon": {}}, {"top_k": "3"}, {"top_k": 0}, {"epsilon": "2"}, {"epsilon": -1},
    {"temperature": -1}, {"temperature": None}, {"consistent": 1}, {"seed": float("inf")},
    {"seed": float("nan")}, {"seed": -1}, {"seed": 2**70},
], ids=str)
def test_whatever_a_visitor_sends_instead_is_refused_with_a_message(wrong):
    values = {"block_size": 10, "accept": "exact", "epsilon": 2, "top_k": 2, "consistent": False,
              "temperature": 0, "seed": 0}
    with pytest.raises(ConfigError):
        options_of(DecodeConfig(), {**values, **wrong}.values())


# Decoding


def test_watching_ends_with_the_complete_result_keyed_by_image_and_sample(rng):
    sources = rng.integers(0, 256, (1, 8, 8, 3), np.uint8)
    upscaler = FakeStream()
    frames = list(Decoder(upscaler).upscale("test", sources, {"": replace(EXACT, temperature=1.0)}, 2))
    assert [frame[""].is_complete for frame in frames] == [False, True]
    assert frames[-1][""].images.shape == (2, 32, 32, 3)
    assert upscaler.asked[0][2] == (image_key(sources[0], 1), image_key(sources[0], 2))


def test_who_stops_watching_stops_the_decoding(rng, caplog):
    upscaler = FakeStream()
    decoder = Decoder(upscaler)
    frames = decoder.upscale("test", rng.integers(0, 256, (1, 8, 8, 3), np.uint8), {"": EXACT})
    next(frames)
    assert decoder.is_busy
    with caplog.at_level("INFO"):
        frames.close()
    assert not decoder.is_busy
    assert len(upscaler.asked) == 1
    assert caplog.records[-1].fields["outcome"] == "stopped"


def test_time_is_limited(rng):
    sources = rng.integers(0, 256, (1, 8, 8, 3), np.uint8)
    with pytest.raises(StoppedError, match=r"longer than 0 seconds.*; reduce the input"):
        list(Decoder(FakeStream(), time_limit=0).upscale("test", sources, {"": EXACT}))


def test_a_closed_decoder_says_so(rng):
    decoder = Decoder(FakeStream())
    frames = decoder.upscale("test", rng.integers(0, 256, (1, 8, 8, 3), np.uint8), {"": EXACT})
    next(frames)
    decoder.close()
    with pytest.raises(StoppedError, match="server is stopping"):
        next(frames)


def test_several_samples_without_a_temperature_are_refused(rng):
    with pytest.raises(ConfigError, match="add --temperature"):
        list(Decoder(FakeStream()).upscale("test", rng.integers(0, 256, (1, 8, 8, 3), np.uint8), {"": EXACT}, 2))


def test_the_variant_with_less_time_behind_it_is_next():
    def variant(step, steps):
        return iter([Upscaled(np.zeros(0), [], step * i) for i in range(1, steps + 1)])

    turns = [(name, result.seconds) for name, result in take_turns({"slow": variant(3, 3), "fast": variant(1, 4)})]
    assert turns == [("slow", 3), ("fast", 1), ("fast", 2), ("fast", 3), ("slow", 6), ("fast", 4), ("slow", 9)]


def test_a_race_ends_with_both_variants_complete(rng):
    sources = rng.integers(0, 256, (1, 8, 8, 3), np.uint8)
    variants = {"Greedy": replace(EXACT, block_size=1), "Blockwise": EXACT}
    shown = list(Decoder(FakeStream()).upscale("race", sources, variants))
    assert all(result.is_complete for result in shown[-1].values())
    assert list(shown[-1]) == ["Greedy", "Blockwise"]


# Batches


def batch(workspace, uploads, upscaler=None, limits=Limits(), **more):  # noqa: B008 -- it never changes
    decoder = Decoder(upscaler or FakeStream(), **more)
    return list(upscale_batch(decoder, workspace, uploads, EXACT, limits))[-1]


def write_zip(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return str(path)


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def test_every_file_has_a_row_and_a_bad_one_costs_only_itself(photo, workspace, tmp_path):
    (tmp_path / "bad.png").write_text("x")
    uploads = [saved(photo, tmp_path / "a.png"), str(tmp_path / "bad.png"),
               write_zip(tmp_path / "more.zip", [("b/c.png", png(photo)), ("b/empty.png", b"")])]
    progress = batch(workspace, uploads)
    assert [(row.input, row.status) for row in progress.rows] == [
        ("bad.png", "failed"), ("empty.png", "failed"), ("a.png", "ok"), ("c.png", "ok")]
    assert [name for name, _, _ in progress.pictures] == ["a.png", "c.png"]
    assert all(str(tmp_path) not in row.error and str(workspace.folder) not in row.error for row in progress.failed)
    assert (progress.total, progress.done) == (4, 2)
    assert list(workspace.folder.iterdir()) == []  # what was unpacked is gone


def test_equal_names_get_different_outputs(photo, workspace, tmp_path):
    members = [(f"{folder}/a.{suffix}", png(photo)) for folder in "xy" for suffix in ("png", "jpg")]
    progress = batch(workspace, [write_zip(tmp_path / "a.zip", members)])
    assert [name for name, _, _ in progress.pictures] == ["a.png", "a-2.png", "a-3.png", "a-4.png"]


def test_names_in_a_zip_never_become_paths(photo, workspace, tmp_path):
    names = ["../../../evil.png", "/absolute.png", "C:\\windows.png", "..\\up.png", "a/", "__MACOSX/._a.png"]
    progress = batch(workspace, [write_zip(tmp_path / "evil.zip", [(name, png(photo)) for name in names])])
    assert [name for name, _, _ in progress.pictures] == ["evil.png", "absolute.png", "windows.png", "up.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.zip"]


def test_a_zip_bomb_is_unpacked_no_further_than_the_limit(photo, workspace, tmp_path):
    members = [("bomb.png", bytes(5_000_000)), ("a.png", png(photo))]
    progress = batch(workspace, [write_zip(tmp_path / "bomb.zip", members)], limits=Limits(member_bytes=30_000))
    assert [row.error for row in progress.failed] == ["bomb.png has over 0.03 MB unpacked; reduce it first"]
    assert len(progress.pictures) == 1


def test_too_many_files_are_refused_before_any_is_read(workspace, tmp_path):
    path = write_zip(tmp_path / "many.zip", [(f"{number}.png", b"") for number in range(101)])
    with pytest.raises(InvalidInputError, match="101 files are too many at once; upload at most 100"):
        batch(workspace, [path])
    with pytest.raises(InvalidInputError, match="no file yet"):
        batch(workspace, [])


def test_a_zip_of_many_large_pictures_ends_when_the_pixels_of_a_batch_are_used_up(workspace, tmp_path):
    large = png(np.zeros((100, 100, 3), np.uint8))
    path = write_zip(tmp_path / "large.zip", [(f"{number}.png", large) for number in range(99)])
    progress = batch(workspace, [path], limits=Limits(pixels=3 * 100 * 100))
    assert [name for name, *_ in progress.pictures] == ["0.png", "1.png", "2.png", "3.png"]
    assert len(progress.failed) == 95
    assert "4.png is too much for one batch; upload at most 0.03 megapixels at once" in progress.failed[0].error


def test_what_is_unpacked_of_a_batch_is_limited_in_all(workspace, tmp_path):
    members = [(f"{number}.png", bytes(10_000)) for number in range(6)]
    uploads = [write_zip(tmp_path / "a.zip", members[:3]), write_zip(tmp_path / "b.zip", members[3:])]
    progress = batch(workspace, uploads, limits=Limits(all_member_bytes=25_000))
    assert ["too much for one batch" in row.error for row in progress.failed] == [False] * 3 + [True] * 3


def test_a_zip_of_countless_folders_is_refused(workspace, tmp_path):
    path = write_zip(tmp_path / "many.zip", [(f"{number}/", b"") for number in range(1001)])
    with pytest.raises(InvalidInputError, match=r"^many\.zip has 1001 entries, which are too many at once"):
        batch(workspace, [path])


class LateDecoder(Decoder):
    """Has no time left when it is asked for the fourth time."""

    checks = 0

    def check_time(self, deadline):
        self.checks += 1
        super().check_time(deadline if self.checks < 4 else 0.0)


def test_time_is_limited_while_files_are_read(photo, workspace, tmp_path):
    path = write_zip(tmp_path / "a.zip", [(f"{number}.png", png(photo)) for number in range(9)])
    decoder = LateDecoder(FakeStream())
    progress = list(upscale_batch(decoder, workspace, [path], EXACT))[-1]
    assert len(progress.failed) == 9
    assert all("took longer than" in row.error for row in progress.failed)
    assert decoder.checks <= 6
    assert list(workspace.folder.iterdir()) == []


def test_a_picture_is_in_memory_at_its_full_size_only_once(photo, workspace, tmp_path):
    path, inside, most = saved(photo, tmp_path / "a.png"), [], []

    def reduce(image):
        inside.append(image)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: reduce_upload(path, reduce, 8), range(16)))
    assert set(most) == {1}


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="is about the heaps of glibc")
def test_threads_that_read_a_picture_keep_no_memory_for_the_next_one():
    code = """
import sys, threading
from pathlib import Path
import numpy as np
from superres.web.memory import return_large_blocks
if sys.argv[1] == "returned":
    return_large_blocks()
before = int(Path("/proc/self/statm").read_text().split()[1])
done = threading.Barrier(9)
def use():
    for _ in range(3):
        np.ones(20_000_000, np.uint8)
    done.wait()
    done.wait()
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads:
    thread.start()
done.wait()
print((int(Path("/proc/self/statm").read_text().split()[1]) - before) * 4096 // 1_000_000)
done.wait()
"""
    kept = {mode: int(subprocess.run([sys.executable, "-c", code, mode], capture_output=True, check=True).stdout)
            for mode in ("kept", "returned")}
    assert kept["kept"] > 60
    assert kept["returned"] < 20


def test_a_damaged_zip_and_an_encrypted_member_are_named(photo, workspace, tmp_path):
    path = write_zip(tmp_path / "a.zip", [("a.png", png(photo)), ("b.png", png(photo))])
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for header in re.finditer(rb"PK\x01\x02", bytes(content)):
        content[header.start() + 8] |= 1  # says that it is encrypted
    (tmp_path / "a.zip").write_bytes(content)
    progress = batch(workspace, [path])
    assert [row.input for row in progress.failed] == ["a.png", "b.png"]
    assert "password" in progress.failed[0].error
    (tmp_path / "a.zip").write_bytes(content[:60])
    with pytest.raises(InvalidInputError, match=r"^a\.zip is a damaged zip file; pack it again"):
        batch(workspace, [path])


def test_when_the_time_is_up_the_rest_fails_and_what_is_done_is_kept(photo, workspace, tmp_path):
    uploads = [saved(photo, tmp_path / f"{number}.png") for number in range(9)]
    decoder = Decoder(FakeStream())
    steps = upscale_batch(decoder, workspace, uploads, EXACT)
    for progress in steps:
        if len(progress.pictures) == 8:
            decoder.time_limit = 0
            decoder.check_time = lambda deadline: (_ for _ in ()).throw(StoppedError("took longer; ask for fewer"))
    assert [row.status for row in progress.rows] == ["ok"] * 8 + ["failed"]
    assert progress.failed[0].input == "8.png"


def test_the_zip_holds_pictures_and_manifest(photo, workspace, tmp_path):
    progress = batch(workspace, [saved(photo, tmp_path / "a.png")])
    path = workspace.save_zip("out.zip", progress.pictures, batches.manifest(progress.rows))
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["a.png", "manifest.jsonl"]
        row = json.loads(archive.read("manifest.jsonl"))
        picture = Image.open(archive.open("a.png"))
        assert json.loads(picture.text["superres"])["config"]["block_size"] == 10
    assert (row["input"], row["status"], row["tokens"]) == ("a.png", "ok", TOKENS)


# Temporary files


def test_the_sweep_deletes_what_is_old_and_spares_what_is_new_or_the_page_s_own(photo, workspace):
    own = saved(photo, workspace.new_folder() / "own.png")
    workspace.keep_present_files()
    old, new = (saved(photo, workspace.new_folder() / "a.png") for _ in range(2))
    for path in (own, old, os.path.dirname(own), os.path.dirname(old)):
        os.utime(path, (0, 0))
    assert workspace.sweep() == 1
    assert [os.path.exists(path) for path in (own, old, new)] == [True, False, True]
    workspace.sweep(-1)
    assert [path.name for path in workspace.folder.rglob("*") if path.is_file()] == ["own.png"]


def test_the_sweep_deletes_the_oldest_beyond_the_space_there_is(workspace):
    paths = [workspace.new_folder() / f"{age}" for age in range(5)]
    for age, path in enumerate(paths):
        path.write_bytes(bytes(100))
        os.utime(path, (1e9 - age, 1e9 - age))
    assert workspace.sweep(age=1e10, most_bytes=250) == 3
    assert [path.exists() for path in paths] == [True, True, False, False, False]


def test_the_folder_is_private_and_gone_at_the_end(photo, monkeypatch):
    monkeypatch.setenv("GRADIO_TEMP_DIR", "before")
    with Workspace() as workspace:
        assert os.environ["GRADIO_TEMP_DIR"] == str(workspace.folder)
        assert workspace.folder.stat().st_mode & 0o777 == 0o700
        workspace.save_pictures([("a.png", photo, {})])
    assert not workspace.folder.exists()
    assert os.environ["GRADIO_TEMP_DIR"] == "before"
    assert files.KEEP_SECONDS > 0
