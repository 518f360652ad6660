"""Formats of the results, and what they take over from their inputs: metadata, colours,
transparency."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from superres.batch.inputs import Input
from superres.batch.reading import unblend
from superres.batch.record import Request, RunSettings, encode
from superres.batch.run_options import BatchOptions
from superres.config import DecodeConfig
from superres.tasks.faces import FaceTask
from superres.tasks.image_files import FORMATS
from superres.tasks.pictures import Picture, read_picture
from tests.batch.helpers import made_from

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
RECORD = {"checkpoint": "fake@0", "config": {"block_size": 3}}
XMP = ('<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description '
       'xmlns:p="http://ns.adobe.com/photoshop/1.0/" p:City="ä"/></r:RDF>').encode()
DESCRIPTION, ORIENTATION = 0x010E, 0x0112


def open_bytes(data):
    return Image.open(io.BytesIO(data))


@pytest.mark.parametrize("name", FORMATS)
def test_pixels_and_transparency_survive_every_format_and_bytes_repeat(name):
    alpha = np.arange(1024, dtype=np.uint32).reshape(32, 32).astype(np.uint8)
    for picture in (Picture(IMAGE), Picture(IMAGE, alpha)):
        data = FORMATS[name](picture, RECORD)
        assert data == FORMATS[name](picture, RECORD)
        if name == "npz":
            with np.load(io.BytesIO(data)) as arrays:
                image, record = arrays["image"], json.loads(str(arrays["record"]))
        else:
            with open_bytes(data) as opened:
                image = np.asarray(opened)
                record = json.loads(opened.text["superres"] if name == "png"
                                    else opened.getexif()[DESCRIPTION])
        assert (image[:, :, :3] == IMAGE).all()
        assert image.shape[2] == (3 if picture.alpha is None else 4)
        assert picture.alpha is None or (image[:, :, 3] == alpha).all()
        assert record == RECORD


@pytest.fixture
def photo(tmp_path):
    """A JPEG with EXIF that turns it, XMP, and a profile."""
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, :40] = 200
    tags = Image.Exif()
    tags[DESCRIPTION], tags[ORIENTATION] = "a photo", 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(pixels).save(
        tmp_path / "photo.jpg", exif=tags.tobytes(), xmp=XMP, icc_profile=profile, quality=95)
    return tmp_path / "photo.jpg"


def item_of(path, **options):
    settings = RunSettings("toy@0123", DecodeConfig(), BatchOptions(Path("out"), **options),
                           FaceTask(8, 32))
    (item,) = made_from([Input(str(path), "photo")], settings)
    assert isinstance(item, Request), item
    return item


@pytest.mark.parametrize("name", ["png", "webp-lossless"])
def test_a_turned_photo_is_upright_and_its_metadata_and_profile_are_kept_or_stripped(photo, name):
    options = BatchOptions(Path("out"), format=name, metadata="keep")
    with open_bytes(encode(item_of(photo, metadata="keep"), IMAGE, RECORD, options)) as kept:
        tags = kept.getexif()
        assert tags[DESCRIPTION] == "a photo"
        assert ORIENTATION not in tags
        assert "ä".encode() in kept.info["xmp"]
        assert "sRGB" in ImageCms.ImageCmsProfile(
            io.BytesIO(kept.info["icc_profile"])).profile.profile_description
    with open_bytes(encode(item_of(photo), IMAGE, RECORD,
                           BatchOptions(Path("out"), format=name))) as stripped:
        assert stripped.getexif().get(DESCRIPTION) != "a photo"
        assert "ä".encode() not in stripped.info["xmp"]
        assert "icc_profile" not in stripped.info
    # white was on the left; turned clockwise it is above
    source = item_of(photo).source.astype(int)
    assert source[:4].mean() > source[4:].mean() + 100


def wide_profile():
    """The profile of a display with wider primaries: sRGB's, its red and green swapped, so that a
    mistake shows."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    start, count = 132, int.from_bytes(data[128:132], "big")
    tags = {bytes(data[start + 12 * i : start + 12 * i + 4]): start + 12 * i for i in range(count)}
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    data[red + 4 : red + 12], data[green + 4 : green + 12] = (data[green + 4 : green + 12],
                                                              data[red + 4 : red + 12])
    return bytes(data).replace("sRGB".encode("utf-16-be"),
                               "test".encode("utf-16-be")).replace(b"sRGB", b"test")


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_colours_are_converted_from_the_profile_to_srgb(tmp_path, mode):
    image = Image.new("RGB", (8, 8), (250, 20, 30))
    (image.quantize(4) if mode == "P" else image.convert(mode)).save(tmp_path / "a.png",
                                                                     icc_profile=wide_profile())
    picture = read_picture(tmp_path / "a.png")
    assert picture.has_profile
    assert np.abs(picture.rgb.astype(int) - (20, 250, 30)).max() <= 3


def test_a_profile_that_does_not_fit_and_damaged_exif_are_passed_over(tmp_path):
    for profile in (b"no profile",
                    ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()):
        Image.fromarray(IMAGE).save(tmp_path / "a.png", icc_profile=profile)
        assert (read_picture(tmp_path / "a.png").rgb == IMAGE).all()
    Image.fromarray(IMAGE).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"
                                + bytes(40), quality=100)
    assert read_picture(tmp_path / "a.jpg").rgb.shape == (32, 32, 3)


def test_transparency_is_kept_or_laid_over_a_colour(tmp_path):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :] = (100, 150, 200, 255)
    pixels[:, 4:, 3] = 0
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert (item_of(tmp_path / "a.png").source[:, 4:] == 255).all()
    assert (item_of(tmp_path / "a.png", alpha="#0000ff").source[:, 4:] == (0, 0, 255)).all()
    kept = item_of(tmp_path / "a.png", alpha="keep")
    assert (kept.source[:, :4] == (100, 150, 200)).all()
    data = encode(kept, IMAGE, RECORD, BatchOptions(Path("out"), alpha="keep"))
    with open_bytes(data) as image:
        assert image.mode == "RGBA"
        alpha = np.asarray(image)[:, :, 3]
        assert alpha[:, :12].min() > 250 > 5 > alpha[:, 20:].max()
    Image.fromarray(pixels[:, :, :3]).save(tmp_path / "opaque.png")
    assert item_of(tmp_path / "opaque.png", alpha="keep").picture.alpha is None


def test_colours_come_back_from_under_white():
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3))
    alpha = np.random.default_rng(1).integers(40, 256, (8, 8, 1))
    laid = ((colours * alpha + 255 * (255 - alpha)) / 255).round().astype(np.uint8)
    assert np.abs(unblend(laid, alpha.astype(np.uint8)).astype(int) - colours).max() <= 4
    assert (unblend(laid, np.zeros((8, 8, 1), np.uint8)) == 255).all()
