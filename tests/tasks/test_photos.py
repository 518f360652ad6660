"""Photos: faces are found and cropped as CelebA crops them, and other pictures are reduced whole or
by their centre."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageFilter
from skimage import data

from superres.errors import ConfigError, InvalidInputError
from superres.tasks import face_finder
from superres.tasks.crops import Crop, parse_crop
from superres.tasks.face_data import read_faces
from superres.tasks.face_finder import LONGEST, find_faces
from superres.tasks.faces import FaceTask, area_reduce
from superres.tasks.photos import choose_crops, is_photo, read_sources
from superres.web.crops import chosen, subjects

TASK = FaceTask(8, 32)
EYES = 224, 108
"""Midpoint of the eyes in scikit-image's astronaut; it is the centre of CelebA's crop."""


def astronaut(size=512):
    return Image.fromarray(data.astronaut()).resize((size, size), Image.Resampling.LANCZOS)


def group_photo(count=3, size=300):
    """A photo of coffee with astronauts' heads side by side: pixels, and the midpoints of their
    eyes."""
    photo = Image.fromarray(data.coffee()).resize((count * size, size + 100)).filter(
        ImageFilter.GaussianBlur(2))
    head = astronaut().crop((124, 8, 324, 208)).resize((size - 40, size - 40))
    for number in range(count):
        photo.paste(head, (number * size + 20, 50))
    return np.asarray(photo), [(number * size + 20 + size * 0.43, 50 + size * 0.43)
                               for number in range(count)]


@pytest.mark.parametrize(("width", "height"), [(512, 512), (4000, 3000), (150, 150), (900, 1600)])
def test_the_face_of_a_photo_of_any_size_is_cropped_as_celeba_crops_it(width, height):
    side = min(width, height)
    photo = Image.new("RGB", (width, height), "gray")
    photo.paste(astronaut(side), (width - side, 0))
    (crop,) = choose_crops(np.asarray(photo), TASK)
    scale = side / 512
    eyes = width - side + EYES[0] * scale, EYES[1] * scale
    assert (crop.kind, crop.face, crop.faces) == ("face", 0, 1)
    assert np.allclose((crop.left + crop.size / 2, crop.top + crop.size / 2), eyes, atol=14 * scale)
    # 138 pixels where the eyes are 39 apart
    assert crop.size == pytest.approx(140 * scale, rel=0.12)


def test_several_faces_are_several_crops_from_left_to_right():
    photo, eyes = group_photo()
    crops = choose_crops(photo, TASK)
    assert [(crop.kind, crop.face, crop.faces) for crop in crops] == [("face", number, 3)
                                                                      for number in (1, 2, 3)]
    for crop, (x, y) in zip(crops, eyes, strict=True):
        assert np.hypot(crop.left + crop.size / 2 - x, crop.top + crop.size / 2 - y) < 30
    assert choose_crops(photo, TASK) == crops


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coffee", "chelsea", "brick", "page"])
def test_a_photo_without_a_face_falls_back_to_the_centre(name):
    photo = np.asarray(Image.fromarray(getattr(data, name)()).convert("RGB"))
    height, width = photo.shape[:2]
    side = min(height, width)
    assert choose_crops(photo, TASK) == [Crop((width - side) // 2, (height - side) // 2, side,
                                              "centre", faces=0)]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(8, 8), (30, 200), (33, 33), (64, 64)])
def test_tiny_pictures_and_noise_give_no_false_alarm(rng, size):
    for _ in range(10):
        (crop,) = choose_crops(rng.integers(0, 256, (*size, 3), np.uint8), TASK)
        assert crop.kind == "centre"
    assert choose_crops(np.zeros((*size, 3), np.uint8), TASK)[0].kind == "centre"


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (24, 100), (178, 218)])
def test_small_and_aligned_pictures_are_no_photos(size, monkeypatch):
    monkeypatch.setattr("superres.tasks.photos.find_faces",
                        lambda image: pytest.fail("a picture was searched"))
    picture = np.asarray(astronaut().crop((124, 8, 324, 208)).resize(size))
    assert not is_photo(picture, TASK)
    (crop,) = choose_crops(picture, TASK)
    squares = {(8, 8): (0, 0, 8), (32, 32): (0, 0, 32), (24, 100): (0, 38, 24),
               (178, 218): (20, 40, 138)}
    assert (crop.left, crop.top, crop.size, crop.turn, crop.doubt) == (*squares[size], 0, 0)
    notes = read_sources(picture, TASK).notes
    assert len(notes) == (size != (8, 8))
    assert all(note.endswith("the model sees only 8x8") for note in notes)


@pytest.mark.slow
def test_the_work_on_a_huge_photo_is_bounded(monkeypatch):
    seen, windows = [], face_finder._windows
    monkeypatch.setattr(face_finder, "_windows",
                        lambda image: [seen.append(image.shape), windows(image)][1])
    find_faces(np.zeros((6000, 8000, 3), np.uint8))
    find_faces(np.zeros((40, 20_000, 3), np.uint8))  # its shorter side vanishes
    assert seen[0] == (LONGEST * 3 // 4, LONGEST, 3)
    assert len(seen) == 3  # upright, and turned to both sides
    assert max(max(shape) for shape in seen) < 1.25 * LONGEST


def test_faces_of_a_data_set_are_searched_once_and_remembered_by_the_photo_s_content(tmp_path,
                                                                                     monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "photos").mkdir()
    for number, place in enumerate(((0, 0), (40, 30))):
        photo = Image.new("RGB", (600, 560))
        photo.paste(astronaut(), place)
        photo.save(tmp_path / "photos" / f"{number}.png")
    first = read_faces(tmp_path / "photos", TASK)
    file, = (tmp_path / "cache").rglob("faces-*.jsonl")
    file.write_text("damaged\n" + file.read_text() + '["cut off')
    monkeypatch.setattr(face_finder, "find_faces",
                        lambda _: pytest.fail("a photo was searched again"))
    again = read_faces(tmp_path / "photos", TASK)
    np.testing.assert_array_equal(again.hr, first.hr)
    assert len(first) == 2


@pytest.mark.slow
@pytest.mark.parametrize("turn", [-18, 12, 18])
def test_a_face_that_is_turned_is_found_where_it_is(turn):
    photo = astronaut().rotate(turn, Image.Resampling.BICUBIC, fillcolor="gray")
    crops = choose_crops(np.asarray(photo), TASK)
    assert [crop.kind for crop in crops] == ["face"]
    (crop,), angle = crops, np.radians(turn)
    x, y = EYES[0] - 256, EYES[1] - 256
    eyes = 256 + x * np.cos(angle) + y * np.sin(angle), 256 - x * np.sin(angle) + y * np.cos(angle)
    assert np.allclose((crop.left + crop.size / 2, crop.top + crop.size / 2), eyes, atol=20)
    assert crop.size == pytest.approx(140, rel=0.15)
    # upright, the astronaut's head leans by 3.4 degrees
    assert crop.turn == pytest.approx(3.4 - turn, abs=3)


def test_a_face_at_the_edge_is_framed_as_any_other_and_the_edge_is_repeated():
    photo = data.astronaut()
    (whole,), (cut,) = choose_crops(photo, TASK), choose_crops(photo[60:170, 150:300], TASK)
    assert cut.kind == "face"
    assert cut.beyond(110, 150)
    assert np.hypot(cut.left + cut.size / 2 + 150 - EYES[0], cut.top + cut.size / 2 + 60
                    - EYES[1]) < 14
    assert cut.size == pytest.approx(whole.size, rel=0.1)
    assert cut.take(photo[60:170, 150:300]).shape == (cut.size, cut.size, 3)


def test_the_centre_and_a_given_square_are_used_as_asked():
    photo = np.asarray(astronaut())[:, :400]
    assert choose_crops(photo, TASK, "centre") == [Crop(0, 56, 400, "centre")]
    (crop,) = choose_crops(photo, TASK, "120,30, 150")
    assert crop == Crop(120, 30, 150, "given")
    np.testing.assert_array_equal(crop.take(photo), photo[30:180, 120:270])


@pytest.mark.parametrize(("setting", "message"), [
    ("left", "crop must be face, centre, X,Y,SIZE in pixels from the top left corner, such as "
     "400,250,800, or X,Y,SIZE,TURN with degrees clockwise, such as 400,250,800,-7.5, not 'left'"),
    ("", "not ''"), ("1,2", "not '1,2'"), ("1,2,3,4,5", "not '1,2,3,4,5'"),
    ("1,2,30,181", "not '1,2,30,181'"), ("1,2,-30", "not '1,2,-30'"),
    ("1,2,30,nan", "not '1,2,30,nan'"), ("1,2,30,", "not '1,2,30,'"),
    ("1.5,2,30", "not '1.5,2,30'"), ("a,b,c", "not 'a,b,c'"), (f"1,2,{10**12}", "not '1,2,1"),
    (None, "not None"), ("0,0,7", "crop 0,0,7 has a SIZE of 7; the model needs at least 8 pixels"),
    ((1, 2, 30), r"not \(1, 2, 30\)"),
])
def test_bad_crops_are_refused_in_one_line(setting, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_crop(setting, 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("setting", ["463,0,100", "0,-51,100", "-51,0,100", "0,0,1025,45",
                                     "999999999,0,9"])
def test_a_square_whose_centre_is_outside_or_that_is_far_too_large_is_refused(setting):
    with pytest.raises(InvalidInputError, match=f"crop {setting} has its centre at .* 512x512 "
                       "pixels; give a square"):
        choose_crops(data.astronaut(), TASK, setting)


@pytest.mark.parametrize("setting", ["-12,400,150", "0,0,900", "462,0,100", "-20,-30,60,180"])
def test_beyond_the_edges_a_square_repeats_them(setting):
    photo = data.astronaut()
    (crop,) = choose_crops(photo, TASK, setting)
    assert crop.setting == setting
    taken, wide = crop.take(photo), np.pad(photo, ((600, 600), (600, 600), (0, 0)), mode="edge")
    square = wide[crop.top + 600 : crop.top + crop.size + 600,
                  crop.left + 600 : crop.left + crop.size + 600]
    square = square[::-1, ::-1] if crop.turn else square
    np.testing.assert_allclose(area_reduce(taken, 8, 8).astype(int), area_reduce(square, 8, 8),
                               atol=1)
    assert "partly beyond the picture, whose edges are repeated" in read_sources(photo, TASK,
                                                                                 setting).notes[0]


@pytest.mark.parametrize("turn", ["0.000001", "-123.456789", "7.5", "180"])
def test_the_setting_of_a_square_gives_the_square_again(turn):
    crop = parse_crop(f"-5,3,40,{turn}")
    assert crop.setting == f"-5,3,40,{turn}"
    assert parse_crop(crop.setting) == crop
    assert str(parse_crop("5,3,40,-0").turn) == "0.0"


@pytest.mark.parametrize(("setting", "side"), [
    ("0,0,32", 32), ("0,0,32,10", 8), ("-1,0,32", 8), ("4,4,8", 8), ("4,5,16,-7", 8), ("face", 32)])
def test_a_square_of_a_picture_of_a_later_stage_s_input_is_one_input_on_every_way(setting, side,
                                                                                  rng):
    stages, picture = FaceTask(8, 64, (32,)), rng.integers(0, 256, (32, 32, 3), np.uint8)
    given, (crop,) = read_sources(picture, stages, setting), choose_crops(picture, stages, setting)
    assert given.images.shape == (1, side, side, 3)
    assert ("only that stage enlarges it" in given.notes[0]) == (side == 32)
    np.testing.assert_array_equal(given.images[0], area_reduce(crop.take(picture), side, side))
    for shown in (*subjects(picture, stages, setting), chosen(setting, 8, stages, picture)):
        np.testing.assert_array_equal(shown.source, given.images[0])
    photo = rng.integers(0, 256, (100, 90, 3), np.uint8)  # a square of that size, of a larger one
    given = read_sources(photo, stages, "20,20,32")
    np.testing.assert_array_equal(given.images, area_reduce(photo[None, 20:52, 20:52], 8, 8))
    assert "the model sees only 8x8; --start 32 keeps more" in given.notes[0]
    with pytest.raises(InvalidInputError, match="inputs of one call have one size, not 8x8 and "
                       "32x32; upscale"):
        read_sources([picture, photo], stages)


@pytest.mark.parametrize("turn", [90, -90, 180, -180])
def test_a_square_that_is_turned_by_right_angles_has_the_same_pixels(turn, rng):
    photo = rng.integers(0, 256, (90, 120, 3), np.uint8)
    taken = Crop(20, 10, 64, "given", turn=turn).take(photo)
    np.testing.assert_array_equal(taken, np.rot90(photo[10:74, 20:84], turn // 90))


@pytest.mark.parametrize("size", [100, 600, 1100])
def test_a_turned_square_shows_what_is_upright_in_a_photo_that_is_turned_back(size):
    photo = astronaut(1500).filter(ImageFilter.GaussianBlur(4))
    crop = Crop(300, 200, size, "given", turn=20.5)
    centre = 300 + size / 2, 200 + size / 2
    upright = np.asarray(photo.rotate(20.5, Image.Resampling.BICUBIC, center=centre).crop(
        (300, 200, 300 + size, 200 + size)))
    inside = np.s_[2:6, 2:6]  # the corners were black before the photo was turned
    taken = crop.take(np.asarray(photo))
    assert len(taken) >= min(size, 512)
    difference = area_reduce(taken, 8, 8)[inside].astype(int) - area_reduce(upright, 8, 8)[inside]
    assert np.abs(difference).max() <= 2


def turned(image):
    image = image.transpose(Image.Transpose.ROTATE_90)
    image.getexif()[0x0112] = 6  # to be turned clockwise
    return image


@pytest.mark.parametrize("mode", ["L", "P", "CMYK", "RGBA", turned])
def test_pillow_images_of_any_mode_are_upright_photos(mode):
    image = mode(astronaut()) if callable(mode) else astronaut().convert(mode)
    (crop,) = choose_crops(image, TASK)
    assert crop.kind == "face"
    assert np.hypot(crop.left + crop.size / 2 - EYES[0], crop.top + crop.size / 2 - EYES[1]) < 14


@pytest.mark.slow
def test_pictures_of_any_kind_become_sources_in_order(tmp_path):
    path = tmp_path / "face.jpg"
    astronaut().save(path, quality=95)
    photo, _ = group_photo()
    small = np.asarray(astronaut(8))
    sources = read_sources([str(path), small, photo, astronaut(), path], TASK)
    assert sources.images.shape == (7, 8, 8, 3)
    assert sources.inputs == [0, 1, 2, 2, 2, 3, 4]
    np.testing.assert_array_equal(sources.images[1], small)
    np.testing.assert_array_equal(sources.images[0], sources.images[6])
    assert [note.partition(" (")[0] for note in sources.notes] == [str(path), "picture 3",
                                                                   "picture 4", str(path)]
    assert len(read_sources([], TASK).images) == 0
    for one in (str(path), path):
        np.testing.assert_array_equal(read_sources(one, TASK).images, sources.images[:1])
    np.testing.assert_array_equal(read_sources(np.stack([photo, photo]), TASK).inputs,
                                  [0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(("pictures", "message"), [
    ("missing.jpg", "missing.jpg cannot be read: No such file"),
    (["a.png"], "a.png cannot be read"), ([np.full((8, 8, 3), 2.0)], r"picture 1: a picture must "
                                          r"be a path, a Pillow image, uint8 .* not float64"),
    ([np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8, 4), np.uint8)], r"picture 2: .* not uint8 "
     r"\[8, 8, 4\]"),
    (np.zeros((8, 8, 4), np.uint8), r"picture 1: .* not uint8 \[8, 8, 4\]"), ([7], "not a int"),
    (np.zeros((4, 9, 3), np.uint8), "at least 8x8, not 9x4"),
    (Image.new("RGB", (7, 9)), "too small: 7x9"),
    (np.zeros(0, np.uint8), r"pictures have the shape \[0\]"), (7, "pictures are a int"),
    (None, "a NoneType"),
])
def test_what_is_no_picture_is_refused_in_one_line(pictures, message):
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_sources(pictures, TASK)
    assert "\n" not in str(caught.value)
