"""Picture files: every layout is decoded as its samples say, or refused by name; damaged metadata harms no pixels."""

from __future__ import annotations

import io
import itertools
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
import tifffile
from picture_files import TIFF_DEFLATE, TIFF_RAW, chunk, exif, libvips, png, segment, tiff
from PIL import Image
from skimage.color import lab2rgb
from skimage.data import astronaut

from superres.errors import InvalidInputError
from superres.tasks import picture_pixels, pictures
from superres.tasks.colour import CURVES, PRIMARIES, SRGB, matrix_profile, srgb_profile
from superres.tasks.faces import area_reduce
from superres.tasks.picture_files import IMAGE_SUFFIXES, formats
from superres.tasks.pictures import read_picture

HEIGHT, WIDTH = 12, 15


def read(data, **options):
    return read_picture(io.BytesIO(data), "a", **options)


def blended(colours, opacity=1.0):
    """Shares of the brightest level, [H, W, 1 or 3], over white, as levels from 0 to 255."""
    return np.broadcast_to((colours * opacity + 1 - opacity) * 255, (HEIGHT, WIDTH, 3))


def agree(data, expected, second=True):
    """The product has the expected levels, and a second decoder those of the product, beside rounding."""
    found = read(data).rgb
    np.testing.assert_allclose(found, expected, rtol=0, atol=1.6)
    if second:
        np.testing.assert_allclose(found, libvips(data), rtol=0, atol=2)


def samples_of(bits, count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**bits, (HEIGHT, WIDTH, count))


TIFF_LAYOUTS = [
    (photometric, bits, extra, planes) for photometric, bits, extra, planes in itertools.product(
        (0, 1, 2), (1, 2, 4, 8, 12, 16), ((), (0,), (2,)), (False, True)) if extra or photometric == 2 or not planes]


@pytest.mark.parametrize(("photometric", "bits", "extra", "planes"), TIFF_LAYOUTS)
def test_every_layout_of_a_tiff_has_the_pixels_that_its_samples_say(photometric, bits, extra, planes):
    count = 3 if photometric == 2 else 1
    samples = samples_of(bits, count + len(extra))
    shares = samples / (2**bits - 1)
    colours = 1 - shares[..., :count] if photometric == 0 else shares[..., :count]
    expected = blended(colours, shares[..., count:] if extra == (2,) else 1.0)
    for order, compression, differences in (("<", TIFF_RAW, False), (">", TIFF_DEFLATE, bits in (8, 16))):
        data = tiff(samples, bits, photometric, extra=extra, planes=planes, order=order, compression=compression,
                    differences=differences)
        # libvips takes every extra sample for opacity, and tifffile unpacks whole bytes only.
        agree(data, expected, second=not extra and bits in (8, 16))
        if bits in (8, 16) and not differences:
            other = tifffile.imread(io.BytesIO(data)).reshape(samples.shape if not planes else (-1, HEIGHT, WIDTH))
            np.testing.assert_array_equal(np.moveaxis(other, 0, -1) if planes else other, samples)


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("planes", [False, True])
def test_colours_that_are_multiplied_by_the_opacity_are_divided_by_it(bits, planes):
    samples = np.sort(samples_of(bits, 4), axis=-1)
    shares = samples / (2**bits - 1)
    data = tiff(samples, bits, 2, extra=(1,), planes=planes)
    np.testing.assert_allclose(read(data).rgb, (shares[..., :3] + 1 - shares[..., 3:]) * 255, rtol=0, atol=2)


@pytest.mark.parametrize(("options", "planes"), [
    ({}, False), ({"tile": (16, 16)}, False), ({"planarconfig": "separate", "tile": (16, 16)}, True),
    ({"bigtiff": True, "planarconfig": "separate"}, True), ({"byteorder": ">", "rowsperstrip": 7}, False)])
def test_tiles_and_big_tiff_are_read(options, planes):
    samples = np.random.default_rng(1).integers(0, 65536, (40, 50, 3), np.uint16)
    file = io.BytesIO()
    tifffile.imwrite(file, np.moveaxis(samples, -1, 0) if planes else samples, photometric="rgb",
                     compression="zlib", **options)
    np.testing.assert_allclose(read(file.getvalue()).rgb, samples / 257, rtol=0, atol=1)


REFUSED = {
    "floating-point samples of 32 bits": {"bits": 32, "more": [(339, 3, [3])]},
    "signed samples of 8 bits": {"bits": 8, "more": [(339, 3, [2])]},
    "samples of 32 bits": {"bits": 32},
    "photometric interpretation 32803": {"bits": 8, "photometric": 32803},
    "compression 34712": {"bits": 12, "compression": 34712},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_tiff_of_unknown_samples_is_refused_by_name(name):
    data = tiff(samples_of(8, 1), **{"photometric": 1, **REFUSED[name]})
    with pytest.raises(InvalidInputError, match=f"a is a TIFF with .*{name}.* cannot be read; save it with 8 bits"):
        read(data)


PNG_LAYOUTS = [*((bits, 0, 1) for bits in (1, 2, 4)),
               *((bits, colours, count) for bits in (8, 16) for colours, count in ((0, 1), (2, 3), (4, 2), (6, 4)))]


@pytest.mark.parametrize(("bits", "colours", "count"), PNG_LAYOUTS)
@pytest.mark.parametrize("has_clear", [False, True])
def test_every_layout_of_a_png_has_the_pixels_that_its_samples_say(bits, colours, count, has_clear):
    samples, chunks = samples_of(bits, count), []
    opacity = samples[..., -1:] / (2**bits - 1) if count in (2, 4) else np.ones((HEIGHT, WIDTH, 1))
    layers = count - (count in (2, 4))
    if has_clear and count == layers:
        clear = samples[3, 4]
        samples[0] = clear
        samples[1] = clear ^ 1  # differs in the lowest bit alone
        opacity = np.where((samples == clear).all(axis=-1, keepdims=True), 0.0, 1.0)
        chunks = [chunk(b"tRNS", clear.astype(">u2").tobytes())]
    data = png(samples, bits, colours, *chunks)
    agree(data, blended(samples[..., :layers] / (2**bits - 1), opacity))
    alpha = read(data).alpha
    assert (alpha is None) == bool((opacity == 1).all())
    if alpha is not None:
        np.testing.assert_allclose(alpha, opacity[..., 0] * 255, rtol=0, atol=1)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_palettes_of_all_depths_have_their_colours_and_opacities(bits):
    numbers = samples_of(bits, 1)
    palette = np.random.default_rng(2).integers(0, 256, (2**bits, 3), np.uint8)
    opacity = np.random.default_rng(3).integers(0, 256, 2**bits - 1, np.uint8)
    data = png(numbers, bits, 3, chunk(b"PLTE", palette.tobytes()), chunk(b"tRNS", opacity.tobytes()))
    shares = np.append(opacity, 255)[numbers] / 255
    agree(data, blended(palette[numbers[..., 0]] / 255, shares))


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def bmp(rgba):
    """A BMP file of 32 bits per pixel that has opacity."""
    pixels = np.ascontiguousarray(rgba[::-1, :, [2, 1, 0, 3]]).tobytes()
    head = struct.pack("<IiiHHIIiiII4I4s", 108, rgba.shape[1], rgba.shape[0], 1, 32, 3, len(pixels), 0, 0, 0, 0,
                       0xFF0000, 0xFF00, 0xFF, 0xFF000000, b"BGRs") + bytes(48)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0, 14 + len(head)) + head + pixels


def test_opacity_that_is_zero_in_all_of_a_bmp_means_nothing():
    rgba = samples_of(8, 4).astype(np.uint8)
    agree(bmp(rgba), blended(rgba[..., :3] / 255, rgba[..., 3:] / 255), second=False)
    rgba[..., 3] = 0
    np.testing.assert_array_equal(read(bmp(rgba)).rgb, rgba[..., :3])


@pytest.mark.parametrize(("kind", "options"), [
    ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {}), ("PNG", {}), ("TIFF", {"compression": "tiff_lzw"})])
def test_opacity_is_read_from_every_format_that_has_it(kind, options):
    rgba = samples_of(8, 4).astype(np.uint8)
    data = saved(Image.fromarray(rgba), kind, **options)
    agree(data, blended(rgba[..., :3] / 255, rgba[..., 3:] / 255))


def test_the_transparent_colour_of_a_gif_is_clear():
    image = Image.fromarray(samples_of(2, 1)[..., 0].astype(np.uint8), "P")
    palette = np.array([[200, 10, 20], [0, 0, 0], [9, 99, 199], [255, 255, 0]])
    image.putpalette(palette.ravel().tolist())
    numbers = np.asarray(image)
    agree(saved(image, "GIF", transparency=2), blended(palette[numbers] / 255, (numbers != 2)[..., None]))


@pytest.mark.parametrize(("magic", "most"), [(5, 255), (5, 100), (5, 65535), (5, 4095), (6, 255), (6, 4095), (2, 9)])
def test_netpbm_levels_are_scaled_by_their_maximum(magic, most):
    samples = np.random.default_rng(4).integers(0, most + 1, (HEIGHT, WIDTH, 3 if magic == 6 else 1))
    body = " ".join(map(str, samples.ravel())).encode() if magic == 2 else samples.astype(
        ">u2" if most > 255 else "u1").tobytes()
    data = f"P{magic} {WIDTH} {HEIGHT} {most}\n".encode() + body
    agree(data, blended(samples / most), second=False)


def test_lab_and_cmyk_become_srgb():
    lab = np.random.default_rng(6).integers([90, 0, 0], [160, 30, 30], (HEIGHT, WIDTH, 3))
    np.testing.assert_allclose(read(tiff(lab, 8, 8)).rgb, 255 * lab2rgb(lab * [100 / 255, 1, 1]), rtol=0, atol=5)
    lab[:] = 127, 0, 0  # L* 50
    assert (np.abs(read(tiff(lab, 8, 8)).rgb - 118.6) < 2).all()
    ink = samples_of(8, 4).astype(np.uint8)
    expected = (255 - ink[..., :3]) * (255.0 - ink[..., 3:]) / 255
    for planes in (False, True):
        np.testing.assert_allclose(read(tiff(ink, 8, 5, planes=planes)).rgb, expected, rtol=0, atol=1.6)
    flat = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    assert np.abs(read(saved(flat, "JPEG", quality=100)).rgb.astype(int) - [255, 0, 0]).max() <= 2


# Colours

def profile(gamma, primaries=SRGB, space=None):
    """A profile of one gamma; its name says nothing of it."""
    data = matrix_profile(primaries, (gamma,))
    if space is None:
        return data
    curve = data[data.index(b"para"):][:16]
    head = data[:16] + b"GRAY" + data[20:128]
    white = b"XYZ \0\0\0\0" + np.array([63190, 65536, 54061]).astype(">i4").tobytes()
    return head + struct.pack(">I4sII4sII", 2, b"wtpt", 156, 20, b"kTRC", 176, 16) + white + curve


LINEAR, GREY = profile(1.0), profile(1.0, space="GRAY")
P3 = PRIMARIES[12]


def encoded(shares):
    """Linear shares as sRGB's levels."""
    return 255 * np.where(shares <= 0.0031308, 12.92 * shares, 1.055 * np.maximum(shares, 1e-9) ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(("mode", "icc", "changes"), [
    ("RGB", LINEAR, True), ("L", LINEAR, True), ("L", GREY, True), ("LA", GREY, True), ("RGBA", LINEAR, True),
    ("P", LINEAR, True), ("1", GREY, False), ("RGB", srgb_profile(), False), ("L", srgb_profile(), False),
    ("RGB", profile(2.2), True)])
def test_colours_are_converted_by_the_curves_of_a_profile_whatever_the_mode(mode, icc, changes):
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).convert("RGB").convert(mode)
    plain, found = (read(saved(image, "PNG", **more)).rgb for more in ({}, {"icc_profile": icc}))
    gamma = 2.2 if icc == profile(2.2) else 1.0
    np.testing.assert_allclose(found, encoded((plain / 255) ** gamma) if changes else plain, rtol=0, atol=2)
    assert read(saved(image, "PNG", icc_profile=icc)).has_profile


@pytest.mark.parametrize("change", [
    lambda icc: icc[:200], lambda icc: b"garbage", lambda icc: icc + bytes(17_000_000),
    lambda icc: icc[:16] + b"CMYK" + icc[20:]])
def test_a_profile_that_cannot_be_used_is_ignored_with_a_line(change):
    image = Image.fromarray(samples_of(8, 3).astype(np.uint8))
    picture = read(saved(image, "PNG", icc_profile=change(LINEAR)))
    np.testing.assert_array_equal(picture.rgb, image)
    (note,) = picture.notes
    assert note.startswith("metadata ignored: ")
    assert "\n" not in note


def number(value):
    return struct.pack(">I", round(value * 100_000))


SHARES = (np.arange(HEIGHT * WIDTH) / 255).reshape(HEIGHT, WIDTH, 1).repeat(3, 2)
GAMMA, WIDE = chunk(b"gAMA", number(1)), chunk(b"cHRM", b"".join(map(number, P3)))
MARK = chunk(b"sRGB", b"\0")


@pytest.mark.parametrize(("chunks", "levels"), [
    ([GAMMA], encoded(SHARES)), ([chunk(b"gAMA", number(0.5))], encoded(SHARES**2)), ([GAMMA, MARK], 255 * SHARES),
    ([chunk(b"gAMA", number(0.45455))], 255 * SHARES), ([WIDE], 255 * SHARES),
    ([chunk(b"cICP", bytes([1, 8, 0, 1])), MARK], encoded(SHARES)),
    ([chunk(b"cICP", bytes([12, 13, 0, 1]))], 255 * SHARES),
    ([chunk(b"cICP", bytes([1, 13, 0, 1])), GAMMA], 255 * SHARES)])
def test_greys_follow_the_colour_chunks_of_a_png_in_the_standard_s_order(chunks, levels):
    samples = np.rint(SHARES * 255).astype(int)
    np.testing.assert_allclose(read(png(samples, 8, 2, *chunks)).rgb, levels, rtol=0, atol=3)


@pytest.mark.parametrize("chunks", [[chunk(b"cICP", bytes([12, 13, 0, 1]))], [chunk(b"gAMA", number(0.45455)), WIDE]])
def test_the_primaries_of_a_png_s_chunks_are_those_of_a_profile(chunks):
    samples = samples_of(8, 3)
    curve = CURVES[13] if len(chunks) == 1 else (2.2,)
    other = saved(Image.fromarray(samples.astype(np.uint8)), "PNG", icc_profile=matrix_profile(P3, curve))
    found = read(png(samples, 8, 2, *chunks)).rgb
    np.testing.assert_allclose(found, read(other).rgb, rtol=0, atol=1)
    np.testing.assert_allclose(found, libvips(other), rtol=0, atol=2)
    assert np.abs(found - samples).max() > 20


@pytest.mark.parametrize("chunks", [
    chunk(b"gAMA", number(0)), chunk(b"gAMA", b"1"), chunk(b"cICP", bytes([9, 16, 0, 1])),
    chunk(b"cHRM", bytes(32)) + GAMMA, chunk(b"cHRM", b"".join(map(number, [0.3, 0.3] * 4))) + GAMMA])
def test_impossible_colour_chunks_are_ignored_with_a_line(chunks):
    samples = samples_of(8, 3)
    picture = read(png(samples, 8, 2, chunks))
    assert [note[:17] for note in picture.notes] == ["metadata ignored:"]
    np.testing.assert_array_equal(picture.rgb, samples)


# Metadata

UPRIGHT = np.random.default_rng(5).integers(0, 256, (16, 24, 3), np.uint8)
TURNED = Image.fromarray(UPRIGHT).transpose(Image.Transpose.ROTATE_90)
TURN = 0x0112, 3, 1, b"\0\6\0\0"
ILL_TYPED = [
    (tag, kind, *value) for tag in (0x0100, 0x010E, 0x010F, 0x011A, 0x0132, 0x8298, 0x8769, 0x8825, 0xA002)
    for kind in (0, 1, 2, 3, 4, 5, 7, 9, 10, 12, 13, 99) for value in ((1, b"\0\1\2\3"), (7, b"\0\0\0\x08"))]
HOSTS = {
    "PNG": lambda data: png_with(saved(TURNED, "PNG"), b"eXIf", data),
    "JPEG": lambda data: segment(saved(TURNED, "JPEG", quality=100, subsampling=0), 0xE1, b"Exif\0\0" + data),
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


@pytest.mark.parametrize("more", [[(34665, 4, [5])], [(34665, 4, [99_999])], [(270, 3, [1, 2, 3])], [(700, 7, b"<x")],
                                  [(34853, 4, [8])], [(306, 2, b"\xff\xfe")]])
def test_ill_typed_tags_of_a_tiff_cost_neither_pixels_nor_orientation(more):
    stored = np.asarray(TURNED)
    for bits, levels in ((8, stored), (16, stored.astype(int) * 257)):
        picture = read(tiff(levels, bits, 2, planes=bits == 16, more=[(274, 3, [6]), *more]))
        np.testing.assert_array_equal(picture.rgb, UPRIGHT)


@pytest.mark.parametrize(("kind", "content", "options", "says"), [
    (b"tEXt", b"workflow\0" + b"x" * 20_000_000, {}, 1), (b"zTXt", b"workflow\0\0" + LONG, {}, 0),
    (b"iTXt", b"workflow\0\1\0\0\0" + LONG, {}, 0), (b"iTXt", b"XML:com.adobe.xmp\0\1\0", {}, 1),
    (b"iCCP", b"big\0\0" + LONG, {}, 1), (b"iCCP", b"cut\0\0" + zlib.compress(LINEAR)[:-9], {}, 1),
    (b"tIME", b"?", {}, 0), (b"gAMA", number(1), {"checksum": 7}, 1), (b"tRNS", b"1", {}, 1), (b"acTL", b"", {}, 0),
    (b"fcTL", b"1", {}, 0), (b"pHYs", b"", {}, 0), (b"sRGB", b"", {}, 1), (b"eXIf", exif(TURN), {"checksum": 7}, 1)])
def test_damaged_and_large_chunks_cost_no_pixels_of_a_png(kind, content, options, says):
    picture = read(png_with(saved(Image.fromarray(UPRIGHT), "PNG"), kind, content, **options))
    np.testing.assert_array_equal(picture.rgb, UPRIGHT)
    assert len(picture.notes) == says, picture.notes


@pytest.mark.parametrize(("code", "data"), [
    (0xE0, b"JFIF\0"), (0xE1, b"http://ns.adobe.com/xap/1.0/\0<x:"), (0xE2, b"MPF\0garbage"), (0xEE, b"Adobe"),
    (0xE2, b"ICC_PROFILE\0\1\2" + LINEAR), (0xE2, b"ICC_PROFILE\0\7"), (0xED, b"Photoshop 3.0\0008BIM\4\4"),
    (0xFE, b"\xff\xd9"), (0xE5, b"")])
def test_damaged_segments_cost_no_pixels_of_a_jpeg(code, data):
    plain = saved(Image.fromarray(UPRIGHT), "JPEG")
    np.testing.assert_array_equal(read(segment(plain, code, data)).rgb, read(plain).rgb)
    np.testing.assert_array_equal(read(plain[:2] + 70_000 * b"\xff" + plain[2:]).rgb, read(plain).rgb)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_rows": 1}])
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


# Suffixes, sizes and memory

def test_every_suffix_is_that_of_a_format_and_the_content_decides():
    image = Image.fromarray(astronaut()).resize((64, 64))
    for kind in formats():
        assert np.abs(read(saved(image, kind)).rgb.astype(int) - np.asarray(image)).mean() < 12, kind
    assert {".jfif", ".jpe", ".mpo", ".apng", ".hif", ".pnm", ".pbm", ".dib", ".avif"} < IMAGE_SUFFIXES
    two = saved(image, "MPO", save_all=True, append_images=[Image.new("RGB", (9, 9))])
    np.testing.assert_array_equal(read(two).rgb, read(saved(image, "JPEG")).rgb)


@pytest.mark.parametrize(("brand", "says"), [("avif", "an AVIF picture, which this Pillow cannot read; pip install"),
                                             ("heic", "a HEIC picture, which needs the extra heic; pip install")])
def test_a_format_that_needs_more_is_named(brand, says, monkeypatch):
    monkeypatch.setattr(pictures, "formats", lambda: ("PNG",))
    with pytest.raises(InvalidInputError, match=f"a is {says}"):
        read(b"\0\0\0\x18ftyp" + brand.encode() + bytes(40))


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_that_would_need_too_much_memory_keeps_its_size_and_its_reduction(orientation, monkeypatch):
    image = Image.fromarray(astronaut()).resize((601, 445))
    file = saved(image, "JPEG", progressive=True, subsampling=0, quality=92, exif=exif_of(orientation))
    exact = read(file)
    monkeypatch.setattr(picture_pixels, "MOST_BYTES", 2_000_000)
    monkeypatch.setattr(pictures, "MOST_BYTES", 2_000_000)
    halved = read(file)
    assert halved.rgb.shape == exact.rgb.shape == ((445, 601, 3) if orientation == 1 else (601, 445, 3))
    assert not np.array_equal(halved.rgb, exact.rgb)
    for side in (8, 32):
        small, expected = (area_reduce(one.rgb, side, side).astype(int) for one in (halved, exact))
        assert np.abs(small - expected).max() <= (1 if side == 8 else 6)
    monkeypatch.setattr(pictures, "MOST_BYTES", 1_000_000)
    with pytest.raises(InvalidInputError, match=r"too large: 601x445 pixels of its kind take \S* bytes of memory, over"):
        read(file)


def exif_of(orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def large_png(colours, count, *chunks):
    packer, row = zlib.compressobj(1), bytes(1) + bytes(range(7 * count)) * 1000
    body = b"".join([*(packer.compress(row) for _ in range(7000)), packer.flush()])
    start = png(np.zeros((1, 1, count), int), 8, colours)[:8]
    return b"".join([start, chunk(b"IHDR", struct.pack(">IIBBBBB", 7000, 7000, 8, colours, 0, 0, 0)), *chunks,
                     chunk(b"IDAT", body), chunk(b"IEND", b"")])


LARGE = {
    "opacity": lambda: large_png(6, 4),
    "palette": lambda: large_png(3, 1, chunk(b"PLTE", bytes(range(21))), chunk(b"tRNS", b"\7\0")),
    "progressive, turned, with a profile": lambda: saved(
        Image.new("RGB", (7000, 7000), "teal"), "JPEG", progressive=True, subsampling=0, exif=exif_of(6),
        icc_profile=LINEAR),
}
MEASURE = """
import sys
from superres.tasks.faces import area_reduce
from superres.tasks.picture_files import IMAGE_SUFFIXES, formats
from superres.tasks.pictures import read_picture
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) * 1024
read_picture(sys.argv[2])
before = peak()
picture = read_picture(sys.argv[1])
print(peak() - before, *picture.rgb.shape)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
@pytest.mark.parametrize("name", LARGE)
def test_a_picture_of_49_megapixels_takes_400_mb_at_most(name, tmp_path):
    (tmp_path / "large").write_bytes(LARGE[name]())
    (tmp_path / "small").write_bytes(saved(Image.fromarray(UPRIGHT), "PNG", icc_profile=LINEAR))
    run = subprocess.run([sys.executable, "-c", MEASURE, tmp_path / "large", tmp_path / "small"], capture_output=True,
                         text=True, check=True)
    used, *shape = map(int, run.stdout.split())
    assert shape == [7000, 7000, 3]
    assert used < 410e6
