"""Faces: exact reduction, tokens there and back, pictures of every kind, data sets and their
refusals."""

from __future__ import annotations

import dataclasses
import math
import runpy
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from skimage import data

from prepare_celeba import random_crops
from superres.errors import ConfigError, InvalidInputError, OutputError
from superres.pictures.read import read_image
from superres.tasks import face_data, face_paths, faces
from superres.tasks.face_data import read_faces
from superres.tasks.faces import FaceTask, area_reduce
from superres.tasks.photos import choose_crops, read_sources

TASK = FaceTask(8, 32)
PICTURES = hnp.arrays(np.uint8, st.tuples(st.integers(8, 40), st.integers(8, 40), st.just(3)))


def exact_average(image: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The definition, in rational numbers: each box's overlap-weighted mean, truncated."""
    def overlaps(length: int, size: int, box: int) -> dict[int, Fraction]:
        low, high = Fraction(box * length, size), Fraction((box + 1) * length, size)
        return {i: min(high, Fraction(i + 1)) - max(low, Fraction(i))
                for i in range(math.floor(low), math.ceil(high))}

    height, width, channels = image.shape
    result = np.zeros((rows, columns, channels), np.uint8)
    for r, c, k in np.ndindex(result.shape):
        y, x = overlaps(height, rows, r), overlaps(width, columns, c)
        total = sum(wy * wx * int(image[i, j, k]) for i, wy in y.items() for j, wx in x.items())
        result[r, c, k] = math.floor(total * Fraction(rows * columns, height * width))
    return result


@given(PICTURES, st.integers(1, 8), st.integers(1, 8))
def test_area_reduce_equals_the_rational_average_truncated(image, rows, columns):
    np.testing.assert_array_equal(area_reduce(image, rows, columns),
                                  exact_average(image, rows, columns))


@pytest.mark.parametrize(("shape", "dtype", "size"), [
    ((4, 4, 3), np.uint8, 8), ((9, 9, 3), np.float32, 8), ((9, 9), np.uint8, 8),
    ((9, 9, 3), np.uint8, 0)])
def test_area_reduce_refuses_what_it_cannot_average(shape, dtype, size):
    with pytest.raises(InvalidInputError):
        area_reduce(np.zeros(shape, dtype), size, size)


def test_only_a_picture_of_its_size_is_an_input():
    picture = np.zeros((8, 8, 3), np.uint8)
    assert TASK.to_source(picture) is picture
    with pytest.raises(InvalidInputError, match="'lowres' needs images of 8x8, not 8x9"):
        TASK.to_source(np.zeros((9, 8, 3), np.uint8))


@given(hnp.arrays(np.uint8, st.tuples(st.integers(0, 3), st.just(32), st.just(32), st.just(3))))
def test_decode_reverses_encode(images):
    tokens = faces.encode(images)
    assert (tokens.dtype, tokens.shape) == (np.int64, (len(images), 3072))
    np.testing.assert_array_equal(TASK.decode(tokens), images)


def test_what_is_no_picture_is_neither_decoded_nor_encoded():
    for tokens in (np.full((1, 3072), 256), np.full((1, 3072), -1), np.zeros((1, 3071), int),
                   np.zeros((1, 3072))):
        with pytest.raises(InvalidInputError):
            TASK.decode(tokens)
    for images in (np.zeros((1, 8, 8, 3)), np.zeros((8, 8, 3), np.uint8),
                   np.zeros((1, 8, 8, 4), np.uint8)):
        for encode in (faces.encode, TASK.encode):
            with pytest.raises(InvalidInputError, match="uint8"):
                encode(images)


@pytest.mark.parametrize("method", faces.ENLARGEMENTS)
def test_enlargement_has_the_size_asked_for_and_treats_images_alone(method, rng):
    images = rng.integers(0, 256, (2, 8, 8, 3), np.uint8)
    enlarged = TASK.enlarge(images, method)
    assert enlarged.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(enlarged[1:], TASK.enlarge(images[1:], method))


# Data sets

def pairs_of(count: int, rng: np.random.Generator) -> face_data.FacePairs:
    hr = rng.integers(0, 256, (count, 32, 32, 3), np.uint8)
    return face_data.FacePairs(hr, area_reduce(hr, 8, 8), np.arange(count, dtype=np.int32))


def test_a_written_data_set_reads_back_equal(tmp_path, rng):
    pairs = pairs_of(5, rng)
    face_data.write_npz(pairs, tmp_path / "faces.npz")
    for limit in (None, 3, 99):
        read = read_faces(tmp_path / "faces.npz", TASK, limit=limit)
        assert len(read) == min(limit or 5, 5)
        for key in ("hr", "lr", "ids"):
            np.testing.assert_array_equal(getattr(read, key), getattr(pairs, key)[:limit])
    (tmp_path / "taken.npz").mkdir()
    for place in ("taken.npz", "absent/faces.npz"):
        with pytest.raises(OutputError, match=place):
            face_data.write_npz(pairs, tmp_path / place)
    assert {path.name for path in tmp_path.iterdir()} == {"faces.npz", "taken.npz"}


@pytest.mark.parametrize(("change", "says"), [
    ({"lr": None}, "lacks lr"), ({"hr": np.zeros((2, 32, 32, 3), np.float32)}, "hr must be uint8"),
    ({"lr": np.zeros((2, 9, 8, 3), np.uint8)}, "lr must be uint8"),
    ({"lr": np.zeros((1, 8, 8, 3), np.uint8)}, "lr must be uint8"),
    ({"ids": np.zeros(2, np.int64)}, "ids must be int32"), ({"ids": np.int32(3)}, "must be"),
    ({"ids": np.array([object(), object()])}, "not a readable"),
    ({"hr": np.zeros((0, 32, 32, 3), np.uint8), "lr": np.zeros((0, 8, 8, 3), np.uint8),
      "ids": np.zeros(0, np.int32)},
     "no pictures"),
])
def test_an_npz_with_other_content_is_refused(tmp_path, rng, change, says):
    arrays = {key: getattr(pairs_of(2, rng), key) for key in ("hr", "lr", "ids")} | change
    np.savez(tmp_path / "faces.npz",
             **{key: value for key, value in arrays.items() if value is not None})
    with pytest.raises(InvalidInputError, match=says) as caught:
        read_faces(tmp_path / "faces.npz", TASK)
    assert str(tmp_path / "faces.npz") in str(caught.value)


def test_what_is_no_data_set_is_refused(tmp_path, rng):
    (tmp_path / "text.npz").write_text("hello")
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    face_data.write_npz(pairs_of(2, rng), tmp_path / "short.npz")
    (tmp_path / "short.npz").write_bytes((tmp_path / "short.npz").read_bytes()[:3000])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("no pictures here")
    for entry in ("text.npz", "array.npz", "short.npz", "absent.npz", "folder"):
        with pytest.raises(InvalidInputError, match=entry):
            read_faces(tmp_path / entry, TASK)
    for arguments, value in (({"limit": 0}, "0"), ({"split": "dev"}, "dev")):
        with pytest.raises(InvalidInputError, match=value):
            read_faces(tmp_path, TASK, **arguments)


def test_a_folder_gives_both_sizes_of_the_same_crop(tmp_path, rng, capsys):
    aligned, photo = rng.integers(0, 256, (218, 178, 3), np.uint8), data.astronaut()[:90, 200:300]
    Image.fromarray(aligned).save(tmp_path / "000007.png")
    Image.fromarray(photo).save(tmp_path / "000003.PNG")
    (tmp_path / "notes.txt").write_text("ignored")
    pairs = read_faces(tmp_path, TASK)
    assert pairs.ids.tolist() == [3, 7]
    for pair, square in enumerate((photo[:, 5:95], aligned[40:178, 20:158])):
        np.testing.assert_array_equal(pairs.hr[pair], area_reduce(square, 32, 32))
        np.testing.assert_array_equal(pairs.lr[pair], area_reduce(square, 8, 8))
    assert read_faces(tmp_path, TASK, limit=1).ids.tolist() == [3]
    for path in tmp_path.iterdir():
        path.rename(path.with_stem("a" + path.stem))
    assert read_faces(tmp_path, TASK).ids.tolist() == [0, 1]
    capsys.readouterr()
    Image.new("RGB", (31, 50)).save(tmp_path / "zoe.png")
    (tmp_path / "zack.png").write_bytes(b"no picture")
    assert read_faces(tmp_path, TASK).ids.tolist() == [0, 1]
    told = capsys.readouterr().err
    assert "zoe.png is too small: 31 pixels" in told
    assert "skipped" in told.split("zack.png")[0].splitlines()[-1]
    for path in tmp_path.glob("a*"):
        path.unlink()
    with pytest.raises(InvalidInputError, match=r"has no picture that can be used; add pictures of "
                       r"at least 32x32"):
        read_faces(tmp_path, TASK)


@pytest.mark.slow
def test_photos_are_cropped_at_every_face_that_is_found(tmp_path, capsys):
    photo = Image.fromarray(data.astronaut())
    group = Image.new("RGB", (1024, 512))
    for left in (0, 512):
        group.paste(photo, (left, 0))
    for name, picture in (("1", photo), ("2", group), ("3", Image.fromarray(data.coffee()))):
        picture.save(tmp_path / f"{name}.png")
    pairs = read_faces(tmp_path, TASK)
    assert pairs.ids.tolist() == [0, 1, 2, 3]  # two of one file
    assert "no face was found in 1 of 3 photos" in capsys.readouterr().err
    crops = [crop for name in ("1", "2", "3")
             for crop in choose_crops(read_image(tmp_path / f"{name}.png"), TASK)]
    assert [crop.kind for crop in crops] == ["face", "face", "face", "centre"]
    expected = read_sources([tmp_path / f"{name}.png" for name in ("1", "2", "3")], TASK).images
    np.testing.assert_array_equal(pairs.lr, expected)  # as superres upscale has them


@pytest.mark.slow
def test_uncertain_faces_are_counted_and_the_taken_pixels_decide_what_is_too_small(
    tmp_path, monkeypatch, capsys, rng
):
    Image.fromarray(rng.integers(0, 256, (1200, 1300, 3), np.uint8)).save(tmp_path / "1.png")
    found = np.array([[600.0, 600, 40, 0, 0.8], [500, 500, 40, 5, 0.1], [640, 600, 1100, 5, 0.1]])
    monkeypatch.setattr(face_data.KnownFaces, "search", lambda *_: found)
    assert len(read_faces(tmp_path, TASK)) == 3
    assert "1 of 3 faces are uncertain, so their squares are not turned" in capsys.readouterr().err
    # the square of 1100 pixels is reduced by 2
    with pytest.raises(InvalidInputError, match="at least 560x560"):
        read_faces(tmp_path, TASK, size=560)
    assert "1.png is too small: 550 pixels of it are used" in capsys.readouterr().err


def celeba_root(root: Path) -> None:
    """Lay out six grey pictures as torchvision expects CelebA; two each for train, valid and
    test."""
    folder = root / "celeba"
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{number:06d}.jpg" for number in range(1, 7)]
    for file in names:
        Image.new("RGB", (178, 218)).save(folder / "img_align_celeba" / file)
    (folder / "list_eval_partition.txt").write_text("".join(f"{file} {i // 2}\n" for i,
                                                            file in enumerate(names)))
    (folder / "identity_CelebA.txt").write_text("".join(f"{file} 1\n" for file in names))
    for file in ("list_bbox_celeba.txt", "list_landmarks_align_celeba.txt", "list_attr_celeba.txt"):
        (folder / file).write_text("6\nx y\n" + "".join(f"{entry} 1 2\n" for entry in names))


def test_a_celeba_root_is_read_by_the_official_split(tmp_path, monkeypatch):
    from torchvision.datasets import CelebA

    celeba_root(tmp_path)
    with pytest.raises(InvalidInputError, match="annotation files"):
        read_faces(tmp_path, TASK)
    # The real annotation files' checksums are known to torchvision; these are made up.
    monkeypatch.setattr(CelebA, "_check_integrity", lambda self: True)
    assert ([read_faces(tmp_path, TASK, split).ids.tolist() for split in face_paths.SPLITS]
            == [[1, 2], [3, 4], [5, 6]])
    assert read_faces(tmp_path, TASK, "test", limit=1).ids.tolist() == [5]


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_a_celeba_root_without_a_working_torchvision_names_the_remedy(tmp_path, monkeypatch, error):
    class Broken(ModuleType):
        def __getattr__(self, name):
            raise error("operator does not exist")

    monkeypatch.setitem(sys.modules, "torchvision.datasets", Broken("torchvision.datasets"))
    celeba_root(tmp_path)
    with pytest.raises(InvalidInputError, match=r"operator does not exist.*img_align_celeba"):
        read_faces(tmp_path, TASK)


@pytest.fixture
def prepare(monkeypatch, capsys):
    """Run prepare_celeba.py in this process; return its exit status and what it wrote to standard
    error."""
    def run(*arguments: object) -> tuple[int, str]:
        script = str(Path(__file__).parents[2] / "scripts" / "train" / "prepare_celeba.py")
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(script, run_name="__main__")
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.fixture
def photos(tmp_path):
    """A folder with two square photos of different content."""
    for number, corner in enumerate((0, 200)):
        Image.fromarray(data.astronaut()[corner : corner + 192, 100:292]).save(tmp_path
                                                                               / f"{number}.png")
    return tmp_path


def test_prepare_celeba_keeps_larger_pictures_for_random_crops(photos, prepare):
    code, told = prepare(photos, photos / "faces.npz", "--size", "64")
    assert (code, told.count("\n")) == (0, 1)
    assert "no face was found in 1 of 2 photos" in told
    read, exact = read_faces(photos / "faces.npz", TASK), read_faces(photos, TASK, size=64)
    np.testing.assert_array_equal(read.large, exact.large)
    assert read.large.shape == (2, 64, 64, 3)
    for here, there in ((read.hr, exact.hr), (read.lr, exact.lr)):
        assert np.abs(here.astype(int) - there).max() <= 1  # twice reduced
    assert prepare(photos / "faces.npz", photos / "crops.npz", "--random-crops", "--seed",
                   "3")[0] == 0
    crops = read_faces(photos / "crops.npz", TASK)
    np.testing.assert_array_equal(crops.hr, random_crops(read, 3).hr)
    assert np.abs(area_reduce(crops.hr, 8, 8).astype(int) - crops.lr).max() <= 1
    assert not np.array_equal(crops.hr, read.hr)
    assert prepare(photos / "faces.npz", photos / "turned.npz", "--turned", "90")[0] == 0
    turned, quarters = read_faces(photos / "turned.npz", TASK), [1, -1]
    for here, there in ((turned.hr, read.hr), (turned.lr, read.lr)):
        np.testing.assert_array_equal(
            here, [np.rot90(one, k) for one, k in zip(there, quarters, strict=True)]
        )
    assert prepare(photos / "faces.npz", photos / "both.npz", "--turned", "4",
                   "--random-crops")[0] == 2


def test_prepare_celeba_writes_pairs_of_any_sizes(photos, prepare):
    assert prepare(photos, photos / "faces.npz", "--source", "32", "--target", "64")[0] == 0
    read, exact = (read_faces(path, FaceTask(32, 64)) for path in (photos / "faces.npz", photos))
    for key in ("hr", "lr", "ids"):
        np.testing.assert_array_equal(getattr(read, key), getattr(exact, key))
    message, _ = prepare(photos, photos / "wrong.npz", "--source", "7", "--target", "18")
    assert "not 18 for 7" in message


def test_random_crops_lie_inside_around_the_centre():
    gradient = np.arange(64, dtype=np.uint8) * 3
    picture = np.stack(np.broadcast_arrays(gradient[:, None], gradient[None], np.uint8(7)), -1)
    rng = np.random.default_rng(0)
    crops = np.stack([TASK.random_crop(picture, rng)[0] for _ in range(400)]).astype(float)
    for lines in (crops[..., 0].mean(2), crops[..., 1].mean(1)):
        first, last = lines[:, 0] / 3, lines[:, -1] / 3
        side, centre = (last - first) * 32 / 31, (first + last) / 2
        assert (side.min(), side.max()) == (pytest.approx(52, abs=0.5), pytest.approx(64, abs=0.5))
        assert centre.mean() == pytest.approx(31.5, abs=0.3)
        assert 3 < np.abs(centre - 31.5).max() <= 6.5


@pytest.mark.parametrize(("source", "target"), [(32, 64), (6, 18), (1, 1)])
def test_no_random_crop_is_smaller_than_a_target(source, target):
    task = FaceTask(source, target)
    picture = np.zeros((task.large, task.large, 3), np.uint8)
    for seed in range(20):  # a smaller crop would be refused
        high, low = task.random_crop(picture, np.random.default_rng(seed))
        assert (high.shape, low.shape) == (task.target_shape, task.source_shape)


def test_random_crops_need_larger_pictures(photos, rng):
    with pytest.raises(InvalidInputError, match=r"at least 40x40; give --size 64"):
        random_crops(pairs_of(2, rng), 0)
    for size, says in ((33, "size must be at least 40 for random crops of 32x32, not 33; 64"),
                       (250, "least 250x250")):
        with pytest.raises(InvalidInputError, match=says):
            read_faces(photos, TASK, size=size)


def test_drawn_inputs_belong_to_the_first_pictures_of_the_data(tmp_path, rng):
    pairs, path = pairs_of(5, rng), tmp_path / "drawn.npz"
    drawn = face_data.FacePairs(pairs.lr[:3], pairs.lr[:3, :4, :4], pairs.ids[:3])
    face_data.write_npz(drawn, path)
    read = face_data.read_drawn(path, pairs)
    np.testing.assert_array_equal(read, pairs.lr[:3])
    mixed = face_data.mixed_inputs(pairs, [read + 1, read + 2])
    expected = pairs.lr + np.array([0, 1, 2, 0, 0], np.uint8).reshape(5, 1, 1, 1)
    np.testing.assert_array_equal(mixed.lr, expected)
    for wrong in (dataclasses.replace(drawn, ids=pairs.ids[1:4]), pairs):
        face_data.write_npz(wrong, path)
        with pytest.raises(InvalidInputError, match=r"must hold pictures of 8x8 of the data's "
                           r"images .* train decode"):
            face_data.read_drawn(path, pairs)


@pytest.mark.parametrize(("source", "target", "says"), [
    (0, 8, "not 8 for 0"), (8, 12, "not 12 for 8"), (8, 4, "not 4 for 8"),
    (True, 8, "not 8 for True"), (2.0, 8, r"not 8 for 2\.0")])
def test_a_target_is_a_whole_multiple_of_its_source(source, target, says):
    with pytest.raises(ConfigError, match=says):
        FaceTask(source, target)


@pytest.mark.parametrize(("high", "low", "source", "target"), [
    (64, 32, 32, 64), (64, 32, 8, 32), (32, 8, 16, 32), (20, 4, 6, 18), (18, 6, 6, 18)])
def test_a_prepared_file_serves_every_task_of_at_most_its_size(tmp_path, rng, high, low, source,
                                                               target):
    hr, lr = (rng.integers(0, 256, (3, side, side, 3), np.uint8) for side in (high, low))
    np.savez(tmp_path / "faces.npz", hr=hr, lr=lr, ids=np.arange(3, dtype=np.int32))
    task = FaceTask(source, target)
    for limit in (None, 2):
        pairs = read_faces(tmp_path / "faces.npz", task, limit=limit)
        assert pairs.task == task
        np.testing.assert_array_equal(pairs.hr,
                                      area_reduce(hr, target, target, is_reduced=True)[:limit])
        expected = lr if (high, low) == (target, source) else area_reduce(hr, source, source,
                                                                          is_reduced=True)
        np.testing.assert_array_equal(pairs.lr, expected[:limit])
        assert (pairs.large is not None) == (high >= task.large)
        if pairs.large is not None:
            np.testing.assert_array_equal(pairs.large, hr[:limit])
    with pytest.raises(InvalidInputError, match=rf"{high}x{high}, smaller than targets .* --source "
                       rf"9 --target 72"):
        read_faces(tmp_path / "faces.npz", FaceTask(9, 72))
