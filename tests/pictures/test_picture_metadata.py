"""Picture files whose metadata is damaged, that lack their end, that are large, or whose format
needs more."""

from __future__ import annotations

import functools
import re
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from picture_files import chunk, exif, read, saved, segment, tiff
from PIL import Image
from skimage.data import astronaut
from stress_demo import huge_png

from superres.errors import InvalidInputError
from superres.tasks import pictures
from superres.tasks.colour import SRGB, matrix_profile
from superres.tasks.faces import FaceTask
from superres.tasks.photos import read_sources
from superres.tasks.picture_files import IMAGE_SUFFIXES, formats
from superres.web.crops import crop_of
from tests.batch.helpers import upscale

LINEAR = matrix_profile(SRGB, (1.0,))
UPRIGHT = np.random.default_rng(5).integers(0, 256, (16, 24, 3), np.uint8)
TURNED = Image.fromarray(UPRIGHT).transpose(Image.Transpose.ROTATE_90)
TURN = 0x0112, 3, 1, b"\0\6\0\0"
ILL_TYPED = [
    (tag, kind, *value) for tag in (0x0100, 0x010E, 0x010F, 0x011A, 0x0132, 0x8298, 0x8769, 0x8825,
                                    0xA002)
    for kind in (0, 1, 2, 3, 4, 5, 7, 9, 10, 12, 13, 99) for value in ((1, b"\0\1\2\3"),
                                                                       (7, b"\0\0\0\x08"))]
HOSTS = {
    "PNG": lambda data: png_with(saved(TURNED, "PNG"), b"eXIf", data),
    "JPEG": lambda data: segment(saved(TURNED, "JPEG", quality=100, subsampling=0), 0xE1,
                                 b"Exif\0\0" + data),
    "WEBP": lambda data: saved(TURNED, "WEBP", lossless=True, exif=b"Exif\0\0" + data),
}


LONG = zlib.compress(bytes(20_000_000))


def png_with(data, kind, content, **options):
    return data[:33] + chunk(kind, content, **options) + data[33:]


@pytest.mark.parametrize("host", HOSTS)
def test_ill_typed_exif_tags_cost_neither_pixels_nor_orientation(host):
    expected = read(HOSTS[host](exif(TURN))).rgb
    assert expected.shape == UPRIGHT.shape
    for tag in ILL_TYPED:
        picture = read(HOSTS[host](exif(TURN, tag)))
        np.testing.assert_array_equal(picture.rgb, expected, err_msg=str(tag))
        assert all(note.startswith("metadata ignored: EXIF") for note in picture.notes)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("data", [b"garbage!", b"II*\0\xff\xff\xff\xff", exif(TURN)[:12]])
def test_exif_data_that_cannot_be_read_is_ignored_with_a_line(host, data):
    picture = read(HOSTS[host](data))
    np.testing.assert_array_equal(picture.rgb, read(HOSTS[host](exif())).rgb)
    assert picture.exif is None
    if data == b"garbage!":
        assert [note.partition(" (")[0] for note in picture.notes] == ["metadata ignored: EXIF"]


@pytest.mark.parametrize("more", [[(34665, 4, [5])], [(34665, 4, [99_999])], [(270, 3, [1, 2, 3])],
                                  [(700, 7, b"<x")], [(34853, 4, [8])], [(306, 2, b"\xff\xfe")]])
def test_ill_typed_tags_of_a_tiff_cost_neither_pixels_nor_orientation(more):
    stored = np.asarray(TURNED)
    for bits, levels in ((8, stored), (16, stored.astype(int) * 257)):
        picture = read(tiff(levels, bits, 2, planes=bits == 16, more=[(274, 3, [6]), *more]))
        np.testing.assert_array_equal(picture.rgb, UPRIGHT)


@pytest.mark.parametrize(("kind", "content", "options", "says"), [
    (b"tEXt", b"workflow\0" + b"x" * 20_000_000, {}, 1), (b"zTXt", b"workflow\0\0" + LONG, {}, 0),
    (b"iTXt", b"workflow\0\1\0\0\0" + LONG, {}, 0), (b"iTXt", b"XML:com.adobe.xmp\0\1\0", {}, 1),
    (b"iCCP", b"big\0\0" + LONG, {}, 1), (b"iCCP", b"cut\0\0" + zlib.compress(LINEAR)[:-9], {}, 1),
    (b"tIME", b"?", {}, 0), (b"gAMA", struct.pack(">I", 100_000), {"checksum": 7}, 1),
    (b"tRNS", b"1", {}, 1), (b"acTL", b"", {}, 0), (b"fcTL", b"1", {}, 0), (b"pHYs", b"", {}, 0),
    (b"sRGB", b"", {}, 1), (b"eXIf", exif(TURN), {"checksum": 7}, 1)])
def test_damaged_and_large_chunks_cost_no_pixels_of_a_png(kind, content, options, says):
    picture = read(png_with(saved(Image.fromarray(UPRIGHT), "PNG"), kind, content, **options))
    np.testing.assert_array_equal(picture.rgb, UPRIGHT)
    assert len(picture.notes) == says, picture.notes


@pytest.mark.parametrize("count", [20, 21, 5000])
def test_a_picture_has_at_most_twenty_notes_and_then_their_number(count):
    plain = saved(Image.fromarray(UPRIGHT), "PNG")
    picture = read(plain[:33] + chunk(b"tEXt", b"", 7) * count + plain[33:])
    np.testing.assert_array_equal(picture.rgb, UPRIGHT)
    assert picture.notes[:20] == ("metadata ignored: PNG chunk tEXt (wrong checksum)",) * 20
    assert picture.notes[20:] == ((f"and {count - 20:,} more notes",) if count > 20 else ())


def test_a_picture_whose_metadata_never_ends_is_read_as_far_as_a_limit():
    profile = chunk(b"iCCP", b"a\0\0" + zlib.compress(LINEAR))
    plain, text = saved(Image.fromarray(UPRIGHT), "PNG"), chunk(b"tEXt", b"a\0b")
    first, last = (read(plain[:33] + found + plain[33:]) for found in (profile + text * 1500,
                                                                       text * 1500 + profile))
    assert (first.has_profile, last.has_profile) == (True, False)
    assert last.notes[0] == "metadata ignored: PNG chunk tEXt (after 1,000 others)"
    assert last.notes[20] == "and 481 more notes"


@pytest.mark.parametrize(("code", "data"), [
    (0xE0, b"JFIF\0"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:"), (0xE2, b"MPF\0garbage"),
    (0xEE, b"Adobe"), (0xE2, b"ICC_PROFILE\0\1\2" + LINEAR), (0xE2, b"ICC_PROFILE\0\7"),
    (0xED, b"Photoshop 3.0\0008BIM\4\4"), (0xFE, b"\xff\xd9"), (0xE5, b"")])
def test_damaged_segments_cost_no_pixels_of_a_jpeg(code, data):
    plain = saved(Image.fromarray(UPRIGHT), "JPEG")
    np.testing.assert_array_equal(read(segment(plain, code, data)).rgb, read(plain).rgb)
    np.testing.assert_array_equal(read(plain[:2] + 70_000 * b"\xff" + plain[2:]).rgb,
                                  read(plain).rgb)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0},
                                     {"restart_marker_rows": 1}])
def test_a_jpeg_without_its_end_marker_is_read_and_one_without_pixels_is_refused(options):
    data = saved(Image.fromarray(UPRIGHT), "JPEG", quality=95, **options)
    whole = read(data).rgb
    for missing in (1, 2):
        picture = read(data[:-missing])
        np.testing.assert_array_equal(picture.rgb, whole)
        assert picture.notes == ("the JPEG's end marker is missing; all pixels are there",)
    for missing in (6, 20, 100, 300):
        with pytest.raises(InvalidInputError, match="a is damaged"):
            read(data[:-missing])


def scans_of(jpeg):
    """Where the scans of a JPEG begin, and where the last one ends."""
    return [found.start() for found in re.finditer(rb"\xff[\xda\xd9]", jpeg)]


def sequential_scans():
    """A JPEG of three components, each in a scan of its own, from three grey ones of equal
    tables."""
    greys = [saved(Image.fromarray(UPRIGHT[..., one]), "JPEG", quality=95) for one in range(3)]
    head, data = greys[0][: greys[0].index(b"\xff\xc0")], [grey[grey.index(b"\xff\xda") + 10 : -2]
                                                           for grey in greys]
    tables = greys[0][greys[0].index(b"\xff\xc4") : greys[0].index(b"\xff\xda")]
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, 16, 24, 3) + b"".join(bytes([one, 0x11, 0])
                                                                             for one in (1, 2, 3))
    scans = [b"\xff\xda\0\x08\1" + bytes([one, 0, 0, 63, 0]) + scan for one,
             scan in enumerate(data, 1)]
    return head + frame + tables + b"".join(scans) + b"\xff\xd9"


@pytest.mark.parametrize("make", [
    sequential_scans,
    *(functools.partial(saved, Image.fromarray(UPRIGHT).convert(mode), "JPEG", progressive=True,
                        quality=95) for mode in ("L", "RGB", "CMYK"))])
def test_a_jpeg_that_is_cut_between_two_scans_is_refused(make):
    data = make()
    *starts, end = scans_of(data)
    assert len(starts) > 2
    np.testing.assert_array_equal(read(data[:end]).rgb, read(data).rgb)
    for start in starts:
        for cut in (start, start + 1, start + 2, start + 6):
            with pytest.raises(InvalidInputError, match="a is damaged"):
                read(data[:cut])


# Suffixes, sizes and memory

def test_every_suffix_is_that_of_a_format_and_the_content_decides():
    image = Image.fromarray(astronaut()).resize((64, 64))
    for kind in formats():
        assert np.abs(read(saved(image, kind)).rgb.astype(int)
                      - np.asarray(image)).mean() < 12, kind
    assert {".jfif", ".jpe", ".mpo", ".apng", ".hif", ".pnm", ".pbm", ".dib",
            ".avif"} < IMAGE_SUFFIXES
    two = saved(image, "MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))])
    np.testing.assert_array_equal(read(two).rgb, read(saved(image, "JPEG")).rgb)


@pytest.mark.parametrize(("brand", "says"),
                         [("avif", "an AVIF picture, which this Pillow cannot read; pip install"),
                          ("heic", "a HEIC picture, which needs the heic extra; pip install")])
def test_a_format_that_needs_more_is_named(brand, says, monkeypatch):
    monkeypatch.setattr(pictures, "formats", lambda: ("PNG",))
    with pytest.raises(InvalidInputError, match=f"a is {says}"):
        read(b"\0\0\0\x18ftyp" + brand.encode() + bytes(40))


def test_a_picture_that_would_need_too_much_memory_is_refused_with_the_limit_and_the_remedy(
    monkeypatch):
    monkeypatch.setattr(pictures, "MOST_BYTES", 1_000_000)
    with pytest.raises(InvalidInputError, match="too large: 601x445 pixels of its kind take "
                       "2,674,450 bytes of memory, over 1,000,000; reduce it first, or save it as "
                       "JPEG"):
        read(saved(Image.new("RGB", (601, 445)), "JPEG", progressive=True, subsampling=0))


@pytest.mark.parametrize(("side", "size"),
                         [(12_000, "12000x12000"), (50_000, "2,500,000,000 pixels")])
def test_a_picture_of_too_many_pixels_is_refused_with_their_number_and_the_limit(side, size):
    with pytest.raises(InvalidInputError, match=f"too large: {size}, over 50,000,000(?: pixels)?; "
                       "reduce it first$"):
        read(huge_png(side))


def exif_of(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


SIDE = 3000
PROGRESSIVE = {"progressive": True, "subsampling": 0, "exif": exif_of(6), "icc_profile": LINEAR}
LARGE = {  # mode, format and options
    "opacity": ("RGBA", "PNG", {"compress_level": 1}),
    "progressive, turned, with a profile": ("RGB", "JPEG", PROGRESSIVE),
    "WebP": ("RGB", "WEBP", {"lossless": True, "method": 0, "quality": 0}), "AVIF": ("RGB", "AVIF", {"speed": 10}),
    "TIFF with opacity": ("RGBA", "TIFF", {}),
}
MEASURE = """
import sys
from superres.tasks.pictures import open_source, read_picture
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
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
    (tmp_path / "small").write_bytes(saved(Image.fromarray(UPRIGHT).convert(mode), kind, **small))
    run = subprocess.run([sys.executable, "-c", MEASURE, tmp_path / "large", tmp_path / "small"],
                         capture_output=True, text=True, check=True)
    used, counted = map(int, run.stdout.split())
    assert used < counted + 16e6  # and the strip that is converted
    assert counted * pictures.MAX_PIXELS / SIDE**2 <= pictures.MOST_BYTES


def test_command_api_and_page_say_what_is_ignored(tmp_path, capsys):
    task, file = FaceTask(8, 32), tmp_path / "a.png"
    file.write_bytes(png_with(saved(Image.fromarray(UPRIGHT), "PNG"), b"eXIf", b"garbage!"))
    line = "metadata ignored: EXIF (damaged"
    assert read_sources(file, task).notes[0].startswith(f"{file}: {line}")
    assert line in crop_of(str(file), task, 8)[1]
    assert upscale(file, tmp_path / "out").done == 1
    assert f"{file}: {line}" in capsys.readouterr().err
