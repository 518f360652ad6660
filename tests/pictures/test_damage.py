"""Picture files whose metadata is damaged, that lack their end, that are large, or that are no
pictures."""

from __future__ import annotations

import functools
import re
import struct
import subprocess
import sys
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image
from skimage.data import astronaut

from superres.errors import InvalidInputError
from superres.pictures import read as reading
from superres.pictures.colour import SRGB, matrix_profile
from superres.pictures.files import IMAGE_SUFFIXES, formats
from superres.tasks.faces import FaceTask
from superres.tasks.photos import read_sources
from superres.web.crops import crop_of
from tests.batch.helpers import upscale
from tests.pictures.helpers import chunk, exif, read, saved, segment, tiff

LINEAR = matrix_profile(SRGB, (1.0,))
UPRIGHT = np.random.default_rng(5).integers(0, 256, (16, 24, 3), np.uint8)
PICTURE = Image.fromarray(UPRIGHT)
TURNED = PICTURE.transpose(Image.Transpose.ROTATE_90)
TURN = 0x0112, 3, 1, b"\0\6\0\0"
ILL_TYPED = [
    (tag, kind, *value) for tag in (0x0100, 0x010E, 0x011A, 0x0132, 0x8769, 0x8825, 0xA002)
    for kind in (0, 1, 2, 3, 4, 5, 7, 9, 10, 12, 13, 99)
    for value in ((1, b"\0\1\2\3"), (7, b"\0\0\0\x08"))]
HOSTS = {
    "PNG": lambda data: png_with(b"eXIf", data, TURNED),
    "JPEG": lambda data: segment(saved(TURNED, "JPEG", quality=100, subsampling=0), 0xE1,
                                 b"Exif\0\0" + data),
    "WEBP": lambda data: saved(TURNED, "WEBP", lossless=True, exif=b"Exif\0\0" + data),
}
LONG = zlib.compress(bytes(20_000_000))


def png_with(kind, content, image=PICTURE, **options):
    data = saved(image, "PNG")
    return data[:33] + chunk(kind, content, **options) + data[33:]


@pytest.mark.parametrize("host", HOSTS)
def test_damaged_exif_data_cost_no_pixels_and_ill_typed_tags_no_orientation(host):
    expected = read(HOSTS[host](exif(TURN))).rgb
    assert expected.shape == UPRIGHT.shape
    for tag in ILL_TYPED:
        picture = read(HOSTS[host](exif(TURN, tag)))
        np.testing.assert_array_equal(picture.rgb, expected, err_msg=str(tag))
        assert all(note.startswith("metadata ignored: EXIF") for note in picture.notes)
    stored = read(HOSTS[host](exif())).rgb
    for data in (b"garbage!", b"II*\0\xff\xff\xff\xff", exif(TURN)[:12]):
        picture = read(HOSTS[host](data))
        np.testing.assert_array_equal(picture.rgb, stored)
        assert data != b"garbage!" or picture.notes == ("metadata ignored: EXIF (damaged)",)


@pytest.mark.parametrize("more", [[(34665, 4, [5])], [(34665, 4, [99_999])], [(270, 3, [1, 2, 3])],
                                  [(700, 7, b"<x")], [(34853, 4, [8])], [(306, 2, b"\xff\xfe")]])
def test_ill_typed_tags_of_a_tiff_cost_neither_pixels_nor_orientation(more):
    stored = np.asarray(TURNED)
    for bits, levels in ((8, stored), (16, stored.astype(int) * 257)):
        picture = read(tiff(levels, bits, 2, planes=bits == 16, more=[(274, 3, [6]), *more]))
        np.testing.assert_array_equal(picture.rgb, UPRIGHT)


@pytest.mark.parametrize(("kind", "content", "options", "says"), [
    (b"tEXt", b"workflow\0" + b"x" * 20_000_000, {}, 1), (b"zTXt", b"workflow\0\0" + LONG, {}, 0),
    (b"iTXt", b"workflow\0\1\0\0\0" + LONG, {}, 0), (b"iTXt", b"XML:com.adobe.xmp\0\1\0", {}, 0),
    (b"iCCP", b"big\0\0" + LONG, {}, 1), (b"iCCP", b"cut\0\0" + zlib.compress(LINEAR)[:-9], {}, 1),
    (b"tIME", b"?", {}, 0), (b"gAMA", struct.pack(">I", 100_000), {"checksum": 7}, 1),
    (b"tRNS", b"1", {}, 1), (b"acTL", b"", {}, 0), (b"fcTL", b"1", {}, 0), (b"pHYs", b"", {}, 0),
    (b"sRGB", b"", {}, 1), (b"eXIf", exif(TURN), {"checksum": 7}, 1)])
def test_damaged_and_large_chunks_cost_no_pixels_of_a_png(kind, content, options, says):
    picture = read(png_with(kind, content, **options))
    np.testing.assert_array_equal(picture.rgb, UPRIGHT)
    assert len(picture.notes) == says, picture.notes


@pytest.mark.parametrize(("chunks", "note", "more", "has_profile"), [
    (chunk(b"tEXt", b"", 7) * 20, "(wrong checksum)", None, False),
    (chunk(b"tEXt", b"", 7) * 5000, "(wrong checksum)", "and 4,980 more notes", False),
    (chunk(b"tEXt", b"a\0b") * 1500 + chunk(b"iCCP", b"a\0\0" + zlib.compress(LINEAR)),
     "(after 1,000 others)", "and 481 more notes", False),
    (chunk(b"iCCP", b"a\0\0" + zlib.compress(LINEAR)) + chunk(b"tEXt", b"a\0b") * 1500,
     "(after 1,000 others)", "and 481 more notes", True)])
def test_metadata_that_never_ends_are_read_as_far_as_a_limit_with_twenty_notes_and_their_number(
    chunks, note, more, has_profile):
    plain = saved(PICTURE, "PNG")
    picture = read(plain[:33] + chunks + plain[33:])
    assert picture.notes[:20] == (f"metadata ignored: PNG chunk tEXt {note}",) * 20
    assert picture.notes[20:] == ((more,) if more else ())
    assert (picture.rgb == UPRIGHT).all() != has_profile


@pytest.mark.parametrize(("code", "data"), [
    (0xE0, b"JFIF\0"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:"), (0xE2, b"MPF\0garbage"),
    (0xEE, b"Adobe"), (0xE2, b"ICC_PROFILE\0\1\2" + LINEAR), (0xE2, b"ICC_PROFILE\0\7"),
    (0xED, b"Photoshop 3.0\0008BIM\4\4"), (0xFE, b"\xff\xd9"), (0xE5, b"")])
def test_damaged_segments_cost_no_pixels_of_a_jpeg(code, data):
    plain = saved(PICTURE, "JPEG")
    for damaged in (segment(plain, code, data), plain[:2] + 70_000 * b"\xff" + plain[2:]):
        np.testing.assert_array_equal(read(damaged).rgb, read(plain).rgb)


# Ends of files

@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0},
                                     {"restart_marker_rows": 1}])
def test_a_jpeg_without_its_end_marker_is_read_and_one_without_pixels_is_refused(options):
    data = saved(PICTURE, "JPEG", quality=95, **options)
    for missing in (1, 2):
        picture = read(data[:-missing])
        np.testing.assert_array_equal(picture.rgb, read(data).rgb)
        assert picture.notes == ("the JPEG's end marker is missing; all pixels are there",)
    for missing in (6, 20, 100, 300):
        with pytest.raises(InvalidInputError, match="a is damaged"):
            read(data[:-missing])


def sequential_scans():
    """A JPEG of three components, each in a scan of its own, from three grey ones of equal
    tables."""
    greys = [saved(Image.fromarray(UPRIGHT[..., one]), "JPEG", quality=95) for one in range(3)]
    head, scans = greys[0][: greys[0].index(b"\xff\xc0")], [grey[grey.index(b"\xff\xda") + 10 : -2]
                                                            for grey in greys]
    tables = greys[0][greys[0].index(b"\xff\xc4") : greys[0].index(b"\xff\xda")]
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 16, 24, 3) + b"".join(
        bytes([one, 0x11, 0]) for one in (1, 2, 3))
    return head + frame + tables + b"".join(
        b"\xff\xda\0\x08\1" + bytes([one, 0, 0, 63, 0]) + scan
        for one, scan in enumerate(scans, 1)) + b"\xff\xd9"


@pytest.mark.parametrize("make", [
    sequential_scans,
    *(functools.partial(saved, PICTURE.convert(mode), "JPEG", progressive=True, quality=95)
      for mode in ("L", "RGB", "CMYK"))])
def test_a_jpeg_that_is_cut_between_two_scans_is_refused(make):
    data = make()
    *starts, end = (found.start() for found in re.finditer(rb"\xff[\xda\xd9]", data))
    assert len(starts) > 2
    np.testing.assert_array_equal(read(data[:end]).rgb, read(data).rgb)
    for cut in (start + more for start in starts for more in (0, 1, 2, 6)):
        with pytest.raises(InvalidInputError, match="a is damaged"):
            read(data[:cut])


# What is refused, by name, value and remedy

def png_that_claims(width, height):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*one) for one in ((b"IHDR", head), (b"IDAT", b"x"), (b"IEND", b"")))


FACE = Image.fromarray(astronaut()[:64, :64])
BAD_FILES = {
    "text.png": (b"not a picture", "not an image"), "empty.png": (b"", "0 bytes"),
    "drawing.png": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not an image"),
    "missing.png": (None, "No such file"), ".": (None, "cannot be read"),
    "thin.png": (saved(Image.new("RGB", (300, 7)), "PNG"), "300x7"),
    "float.tif": (saved(Image.new("F", (8, 8), 0.5), "TIFF"), "floating-point"),
    "large.png": (png_that_claims(8_000, 8_000), "large: 8000x8000, over 50,000,000 pixels; "),
    "warned.png": (png_that_claims(11_000, 11_000), "11000x11000"),
    "bomb.png": (png_that_claims(50_000, 50_000), "large: 2,500,000,000 pixels, over 50,000,000;"),
    "damaged.png": (png_that_claims(8, 8), "damaged"),
    "short.jpg": (saved(FACE, "JPEG")[:-300], "truncated"),
    "short.png": (saved(FACE, "PNG")[:-900], "truncated"),
}


@pytest.mark.parametrize("file", BAD_FILES)
def test_a_bad_file_gives_one_line_with_its_name_value_and_remedy(tmp_path, file):
    content, says = BAD_FILES[file]
    if content is not None:
        (tmp_path / file).write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidInputError, match=says) as caught:
            reading.read_image(tmp_path / file, least=8)
    message = str(caught.value)
    assert str(tmp_path / file) in message
    assert "\n" not in message
    assert ";" in message


@pytest.mark.parametrize(("brand", "says"),
                         [("avif", "an AVIF picture, which this Pillow cannot read; pip install"),
                          ("heic", "a HEIC picture, which needs the heic extra; pip install")])
def test_a_format_that_needs_more_is_named(brand, says, monkeypatch):
    monkeypatch.setattr(reading, "formats", lambda: ("PNG",))
    with pytest.raises(InvalidInputError, match=f"a is {says}"):
        read(b"\0\0\0\x18ftyp" + brand.encode() + bytes(40))


def test_every_suffix_is_that_of_a_format_and_the_content_decides():
    image = Image.fromarray(astronaut()).resize((64, 64))
    for kind in formats():
        assert np.abs(read(saved(image, kind)).rgb.astype(int)
                      - np.asarray(image)).mean() < 12, kind
    assert {".jfif", ".jpe", ".mpo", ".apng", ".hif", ".pnm", ".pbm", ".dib",
            ".avif"} < IMAGE_SUFFIXES
    two = saved(image, "MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))])
    np.testing.assert_array_equal(read(two).rgb, read(saved(image, "JPEG")).rgb)


# Memory

def test_a_picture_that_would_need_too_much_memory_is_refused_with_the_limit_and_the_remedy(
    monkeypatch):
    monkeypatch.setattr(reading, "MOST_BYTES", 1_000_000)
    with pytest.raises(InvalidInputError, match="too large: 601x445 pixels of its kind take "
                       "2,674,450 bytes of memory, over 1,000,000; reduce it first, or save it as "
                       "JPEG"):
        read(saved(Image.new("RGB", (601, 445)), "JPEG", progressive=True, subsampling=0))


SIDE = 3000
PROGRESSIVE = {"progressive": True, "subsampling": 0, "exif": b"Exif\0\0" + exif(TURN),
               "icc_profile": LINEAR}
LARGE = {  # mode, format and options
    "opacity": ("RGBA", "PNG", {"compress_level": 1}),
    "progressive, turned, with a profile": ("RGB", "JPEG", PROGRESSIVE),
    "WebP": ("RGB", "WEBP", {"lossless": True, "method": 0, "quality": 0}),
    "AVIF": ("RGB", "AVIF", {"speed": 10}), "TIFF with opacity": ("RGBA", "TIFF", {}),
}
MEASURE = """
import re, sys
from superres.pictures.read import open_source, read_picture
def peak():
    return int(re.search(r"VmHWM:\\s+([0-9]+)", open("/proc/self/status").read())[1]) * 1024
read_picture(sys.argv[2])
before = peak()
read_picture(sys.argv[1])
with open(sys.argv[1], "rb") as file:
    print(peak() - before, open_source(file).needed_bytes())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
@pytest.mark.parametrize("name", LARGE)
def test_reading_takes_the_memory_that_the_limit_counts_and_50_megapixels_are_within_it(name,
                                                                                        tmp_path):
    mode, kind, options = LARGE[name]
    (tmp_path / "large").write_bytes(saved(Image.new(mode, (SIDE, SIDE), "teal"), kind, **options))
    small = {"icc_profile": LINEAR} if "icc_profile" in options else {}
    (tmp_path / "small").write_bytes(saved(PICTURE.convert(mode), kind, **small))
    run = subprocess.run([sys.executable, "-c", MEASURE, tmp_path / "large", tmp_path / "small"],
                         capture_output=True, text=True, check=True)
    used, counted = map(int, run.stdout.split())
    assert used < counted + 16e6  # and the strip that is converted
    assert counted * reading.MAX_PIXELS / SIDE**2 <= reading.MOST_BYTES


def test_command_api_and_page_say_what_is_ignored(tmp_path, capsys):
    task, file = FaceTask(8, 32), tmp_path / "a.png"
    file.write_bytes(png_with(b"eXIf", b"garbage!"))
    line = "metadata ignored: EXIF (damaged"
    assert read_sources(file, task).notes[0].startswith(f"{file}: {line}")
    assert line in crop_of(str(file), task, 8)[1]
    assert upscale(file, tmp_path / "out").done == 1
    assert f"{file}: {line}" in capsys.readouterr().err
