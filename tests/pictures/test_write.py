"""The files of results: pixels, transparency, the record, and the mark on what a model drew."""

from __future__ import annotations

import io
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from superres import __version__
from superres.batch.inputs import Input
from superres.batch.reading import unblend
from superres.batch.record import Request, RunSettings, encode
from superres.batch.run_options import BatchOptions
from superres.cli.main import run
from superres.config import DecodeConfig
from superres.errors import OutputError
from superres.pictures.mark import DRAWN, MAX_BYTES, origin
from superres.pictures.read import Picture
from superres.pictures.untrusted import read_origin
from superres.pictures.write import ENCODERS, DrawnImage, encode_png
from superres.pipeline.upscaled import Upscaled
from superres.tasks.faces import FaceTask
from tests.batch.helpers import made_from, rows_of, upscale
from tests.pictures.helpers import saved

IMAGE = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
RECORD = {"checkpoint": "fake@0", "config": {**DecodeConfig().to_dict(), "seed": 3}}
DESCRIPTION, ORIENTATION = 0x010E, 0x0112
XMP = b"""<x:xmpmeta xmlns:x="adobe:ns:meta/"><r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
<r:Description xmlns:d="http://purl.org/dc/elements/1.1/" d:creator="GONE" xmlns:q="http://ns.adobe.com/xap/1.0/"
 xmlns:p="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" q:CreatorTool="a camera"
><p:DigitalSourceType r:resource="http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture"/>
</r:Description></r:RDF></x:xmpmeta>"""


def opened(data):
    return Image.open(io.BytesIO(data))


def mark_of(data):
    """The mark of a file, as Pillow reads it."""
    with opened(data) as image:
        image.load()
        return image.getxmp()["xmpmeta"]["RDF"]["Description"]["DigitalSourceType"]


@pytest.mark.parametrize("name", ENCODERS)
def test_pixels_and_transparency_survive_every_format_and_bytes_repeat(name):
    alpha = np.arange(1024, dtype=np.uint32).reshape(32, 32).astype(np.uint8)
    for picture in (Picture(IMAGE), Picture(IMAGE, alpha)):
        data = ENCODERS[name](picture, RECORD)
        assert data == ENCODERS[name](picture, RECORD)
        if name == "npz":
            with np.load(io.BytesIO(data)) as arrays:
                image, record = arrays["image"], json.loads(str(arrays["record"]))
        else:
            with opened(data) as file:
                image = np.asarray(file)
                record = json.loads(file.text["superres"] if name == "png"
                                    else file.getexif()[DESCRIPTION])
        assert (image[:, :, :3] == IMAGE).all()
        assert image.shape[2] == (3 if picture.alpha is None else 4)
        assert picture.alpha is None or (image[:, :, 3] == alpha).all()
        assert record == json.loads(json.dumps(RECORD))


def photo():
    """A JPEG of a camera: its EXIF turns it, and it has a description, XMP and a profile."""
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[:, :40] = 200
    tags = Image.Exif()
    tags[DESCRIPTION], tags[ORIENTATION] = "GONE", 6
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    return saved(Image.fromarray(pixels), "JPEG", exif=tags.tobytes(), xmp=XMP,
                 icc_profile=profile, quality=95)


def item_of(path, **options):
    settings = RunSettings("toy@0123", DecodeConfig(), BatchOptions(Path("out"), **options),
                           FaceTask(8, 32))
    (item,) = made_from([Input(str(path), "photo")], settings)
    assert isinstance(item, Request), item
    return item


@pytest.mark.parametrize("format", ["png", "webp-lossless"])
@pytest.mark.parametrize("sheet", [False, True])
def test_every_picture_of_the_command_is_upright_and_marked_and_carries_nothing_else_over(
    tmp_path, format, sheet):
    (tmp_path / "a.jpg").write_bytes(photo())
    assert upscale(tmp_path / "a.jpg", tmp_path / "out", format=format, sheet=sheet).done == 1
    (made,) = (path for path in (tmp_path / "out").iterdir() if path.suffix != ".jsonl")
    data = made.read_bytes()
    assert mark_of(data) == DRAWN
    assert not re.search(b"GONE|digitalCapture|iCCP|ICCP", data)
    with opened(data) as image:
        assert ORIENTATION not in image.getexif()
    found = read_origin(made)
    assert (found["mark"], found["tool"]) == (DRAWN, f"superres {__version__}")
    assert found["settings"]["checkpoint"] == "fake@0123abcd"
    # white was on the left; turned clockwise it is above
    source = item_of(tmp_path / "a.jpg").source.astype(int)
    assert source[:4].mean() > source[4:].mean() + 100


def test_transparency_is_kept_or_laid_over_a_colour(tmp_path):
    pixels = np.zeros((8, 8, 4), np.uint8)
    pixels[:, :] = (100, 150, 200, 255)
    pixels[:, 4:, 3] = 0
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert (item_of(tmp_path / "a.png").source[:, 4:] == 255).all()
    assert (item_of(tmp_path / "a.png", alpha="#0000ff").source[:, 4:] == (0, 0, 255)).all()
    kept = item_of(tmp_path / "a.png", alpha="keep")
    assert (kept.source[:, :4] == (100, 150, 200)).all()
    with opened(encode(kept, IMAGE, RECORD, BatchOptions(Path("out"), alpha="keep"))) as image:
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


@pytest.mark.parametrize("kept", ["strip", "keep"])
def test_an_earlier_run_goes_on_unless_its_results_have_metadata_of_their_inputs(tmp_path, kept):
    (tmp_path / "a.jpg").write_bytes(photo())
    assert upscale(tmp_path / "a.jpg", tmp_path / "out").done == 1
    (row,), manifest = rows_of(tmp_path / "out"), tmp_path / "out" / "manifest.jsonl"
    row["options"]["metadata"] = kept
    manifest.write_text(json.dumps(row) + "\n")
    if kept == "strip":
        assert upscale(tmp_path / "a.jpg", tmp_path / "out").skipped == 1
        return
    with pytest.raises(OutputError, match=r"metadata 'keep' there, 'strip' now.*-existing redo"):
        upscale(tmp_path / "a.jpg", tmp_path / "out")
    assert upscale(tmp_path / "a.jpg", tmp_path / "out", on_existing="redo").done == 1


# The mark

@pytest.mark.parametrize("ending", [".png", ".webp", ".tif", ".tiff", ".jpg"])
def test_every_picture_of_a_result_is_marked_and_so_are_its_copies(tmp_path, ending):
    result = Upscaled(IMAGE[None], [], 1.0, record=RECORD)
    path = tmp_path / f"a{ending}"
    if ending == ".jpg":
        result.pictures[0].save(path, quality=90)
    else:
        result.save(path)
        assert path.read_bytes() == Path(*result.save(tmp_path / f"b{ending}")).read_bytes()
        np.testing.assert_array_equal(np.asarray(Image.open(path)), IMAGE)
    drawn = result.pictures[0].resize((16, 16)).rotate(90).convert("L").copy()
    copy = pickle.loads(pickle.dumps(drawn))  # noqa: S301 -- our own
    assert isinstance(copy, DrawnImage)
    copy.save(tmp_path / f"c{ending}")
    for made in (path, tmp_path / f"c{ending}"):
        assert mark_of(made.read_bytes()) == DRAWN
        assert read_origin(made)["settings"] == json.loads(json.dumps(RECORD))


def test_a_notebook_shows_marked_pictures_and_one_that_no_model_drew_has_no_mark():
    assert mark_of(Upscaled(IMAGE[None], [], 1.0)._repr_png_()) == DRAWN
    data = encode_png(Picture(IMAGE), None)
    assert set(re.findall(rb"IHDR|tEXt|iTXt|IDAT|IEND", data)) == {b"IHDR", b"IDAT", b"IEND"}


@pytest.mark.parametrize("name", ["png", "webp-lossless"])
def test_info_prints_mark_and_settings_of_a_picture(tmp_path, capsys, name):
    (tmp_path / "a").write_bytes(ENCODERS[name](Picture(IMAGE), RECORD))
    assert run(["info", str(tmp_path / "a")]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["mark"] == f"trainedAlgorithmicMedia ({DRAWN})"
    assert (lines["checkpoint"], lines["options"], lines["seed"]) == ("fake@0", "defaults", "3")
    assert run(["info", "--json", str(tmp_path / "a")]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == json.loads(json.dumps(RECORD))


NO_RECORD = ("settings   none: this picture is not from superres, or another program has removed "
             "them")
DAMAGED_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"


@pytest.mark.parametrize(("name", "content", "status", "message"), [
    ("a.jpg", photo(), 0, "digitalCapture"), ("a.jpg", photo(), 0, NO_RECORD),
    ("a.jpg", saved(Image.fromarray(IMAGE), "JPEG", exif=DAMAGED_EXIF), 0, NO_RECORD),
    ("a.png", saved(Image.fromarray(IMAGE), "PNG"), 0, "mark       none"),
    ("a.txt", b"text", 2, "is not a picture in PNG, JPEG, WEBP, TIFF"),
    ("b.png", None, 2, "cannot be read"), (".", None, 2, "cannot be read")])
def test_info_says_what_a_picture_of_others_lacks_and_what_cannot_be_read(
    tmp_path, capsys, name, content, status, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert run(["info", str(tmp_path / name)]) == status
    assert message in "".join(capsys.readouterr())


RDF = (b'<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description '
       b'xmlns:q="http://ns.adobe.com/xap/1.0/">%b</r:Description></r:RDF>')
TOOL = b"<q:CreatorTool>%b</q:CreatorTool>"
LAUGHS = b'<!DOCTYPE a [<!ENTITY b "ha">' + b"".join(
    b'<!ENTITY b%d "%b">' % (n, b"&b%b;" % (b"%d" % (n - 1) if n else b"") * 10)
    for n in range(9)) + b"]>"


@pytest.mark.parametrize(("packet", "tool"), [
    (RDF % (TOOL % b" a &amp; b "), "a & b"), (RDF % TOOL % b"", ""), (b"", None),
    (b"no XML", None), (LAUGHS + RDF % TOOL % b"&b8;", None),
    ((LAUGHS + RDF % TOOL % b"&b8;").decode().encode("utf-16"), None),
    (b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + RDF % TOOL % b"&b;", None),
    (RDF % (b"<a>" * 100_000 + b"</a>" * 100_000), None),
    (RDF % TOOL % (b"x" * MAX_BYTES), None), (RDF % TOOL % b"\xff", None), (b"\xff\xfe\0", None),
    (b'<?xml version="1.0" encoding="martian"?>' + RDF % TOOL % b"a", None)], ids=range(12))
def test_a_hostile_or_damaged_packet_says_nothing(packet, tool):
    assert origin(packet).get("tool") == tool
