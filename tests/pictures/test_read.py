"""Picture files: every layout is decoded as its samples and profile say, or refused by name."""

from __future__ import annotations

import io
import itertools
import struct
import zlib

import numpy as np
import pytest
import pyvips
import tifffile
from PIL import Image, ImageCms
from skimage.color import lab2rgb

from superres.errors import InvalidInputError
from superres.pictures.colour import CURVES, PRIMARIES, SRGB, matrix_profile
from tests.pictures.helpers import (
    TIFF_DEFLATE,
    TIFF_RAW,
    chunk,
    exif,
    libvips,
    png,
    read,
    saved,
    tiff,
)

HEIGHT, WIDTH = 12, 15


def blended(colours, opacity=1.0):
    """Shares of the brightest level, [H, W, 1 or 3], over white, as levels from 0 to 255."""
    return np.broadcast_to((colours * opacity + 1 - opacity) * 255, (HEIGHT, WIDTH, 3))


def agree(data, expected, second=True):
    """The product has the expected levels, and a second decoder those of the product, beside
    rounding."""
    found = read(data).rgb
    np.testing.assert_allclose(found, expected, rtol=0, atol=1.6)
    if second:
        np.testing.assert_allclose(found, libvips(data), rtol=0, atol=2)


def samples_of(bits, count, seed=0):
    return np.random.default_rng(seed).integers(0, 2**bits, (HEIGHT, WIDTH, count))


TIFF_LAYOUTS = [
    (photometric, bits, extra, planes) for photometric, bits, extra, planes in itertools.product(
        (0, 1, 2), (1, 2, 4, 8, 12, 16), ((), (0,), (2,)), (False, True)) if extra or photometric
    == 2 or not planes]


@pytest.mark.parametrize(("photometric", "bits", "extra", "planes"), TIFF_LAYOUTS)
def test_every_layout_of_a_tiff_has_the_pixels_that_its_samples_say(photometric, bits, extra,
                                                                    planes):
    count = 3 if photometric == 2 else 1
    samples = samples_of(bits, count + len(extra))
    shares = samples / (2**bits - 1)
    colours = 1 - shares[..., :count] if photometric == 0 else shares[..., :count]
    expected = blended(colours, shares[..., count:] if extra == (2,) else 1.0)
    for order, compression, differences in (("<", TIFF_RAW, False),
                                            (">", TIFF_DEFLATE, bits in (8, 16))):
        data = tiff(samples, bits, photometric, extra=extra, planes=planes, order=order,
                    compression=compression, differences=differences)
        # libvips takes every extra sample for opacity, and tifffile unpacks whole bytes only.
        agree(data, expected, second=not extra and bits in (8, 16))
        if bits in (8, 16) and not differences:
            other = tifffile.imread(io.BytesIO(data)).reshape(samples.shape if not planes
                                                              else (-1, HEIGHT, WIDTH))
            np.testing.assert_array_equal(np.moveaxis(other, 0, -1) if planes else other, samples)


@pytest.mark.parametrize(("bits", "planes"), [(8, False), (8, True), (16, False), (16, True)])
def test_colours_that_are_multiplied_by_the_opacity_are_divided_by_it(bits, planes):
    samples = np.sort(samples_of(bits, 4), axis=-1)
    shares = samples / (2**bits - 1)
    np.testing.assert_allclose(read(tiff(samples, bits, 2, extra=(1,), planes=planes)).rgb,
                               (shares[..., :3] + 1 - shares[..., 3:]) * 255, rtol=0, atol=2)


@pytest.mark.parametrize(("options", "planes"), [
    ({}, False), ({"tile": (16, 16)}, False), ({"planarconfig": "separate", "tile": (16, 16)},
                                               True),
    ({"bigtiff": True, "planarconfig": "separate"}, True),
    ({"byteorder": ">", "rowsperstrip": 7}, False)])
def test_tiles_and_big_tiff_are_read(options, planes):
    samples = np.random.default_rng(1).integers(0, 65536, (40, 50, 3), np.uint16)
    file = io.BytesIO()
    tifffile.imwrite(file, np.moveaxis(samples, -1, 0) if planes else samples, photometric="rgb",
                     compression="zlib", **options)
    np.testing.assert_allclose(read(file.getvalue()).rgb, samples / 257, rtol=0, atol=1)


@pytest.mark.parametrize("options", [{}, {"bigtiff": True}, {"byteorder": ">"}])
@pytest.mark.parametrize(("kinds", "taken"), [
    ((1, 0), 1), ((0, 1), 0), ((1, 3, 2, 0), 2), ((1, 1), 0), (("old", 0), 1), ((), 0),
    ((1, "cut"), 0)])
def test_the_first_page_of_a_tiff_that_is_no_thumbnail_is_taken(kinds, taken, options):
    pages = [np.full((10 + number, 12, 3), 40 * number, np.uint8)
             for number in range(len(kinds) or 1)]
    with tifffile.TiffWriter(file := io.BytesIO(), **options) as writer:
        for page, kind in zip(pages, kinds or [None], strict=True):
            old = {"extratags": [(255, 3, 1, 2, True)]} if kind == "old" else {}
            writer.write(page, photometric="rgb", subfiletype=kind if isinstance(kind, int) else 0,
                         metadata=None, **old)
    file.seek(0)
    content = file.getvalue()[: tifffile.TiffFile(file).pages[1].offset + 9 if "cut" in kinds
                              else None]
    np.testing.assert_array_equal(read(content).rgb, pages[taken])


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
    with pytest.raises(InvalidInputError, match=f"a is a TIFF with .*{name}.* cannot be read; save "
                       "it with 8 bits"):
        read(data)


PNG_LAYOUTS = [*((bits, 0, 1) for bits in (1, 2, 4)),
               *((bits, colours, count) for bits in (8, 16) for colours,
                 count in ((0, 1), (2, 3), (4, 2), (6, 4)))]


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
    data = png(numbers, bits, 3, chunk(b"PLTE", palette.tobytes()),
               chunk(b"tRNS", opacity.tobytes()))
    shares = np.append(opacity, 255)[numbers] / 255
    agree(data, blended(palette[numbers[..., 0]] / 255, shares))


def bmp(rgba):
    """A BMP file of 32 bits per pixel that has opacity."""
    pixels = np.ascontiguousarray(rgba[::-1, :, [2, 1, 0, 3]]).tobytes()
    head = struct.pack("<IiiHHIIiiII4I4s", 108, rgba.shape[1], rgba.shape[0], 1, 32, 3, len(pixels),
                       0, 0, 0, 0, 0xFF0000, 0xFF00, 0xFF, 0xFF000000, b"BGRs") + bytes(48)
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + len(pixels), 0, 0,
                               14 + len(head)) + head + pixels


def test_opacity_that_is_zero_in_all_of_a_bmp_means_nothing():
    rgba = samples_of(8, 4).astype(np.uint8)
    agree(bmp(rgba), blended(rgba[..., :3] / 255, rgba[..., 3:] / 255), second=False)
    rgba[..., 3] = 0
    np.testing.assert_array_equal(read(bmp(rgba)).rgb, rgba[..., :3])


@pytest.mark.parametrize(("kind", "options"), [
    ("WEBP", {"lossless": True, "exact": True}), ("TIFF", {}), ("PNG", {}),
    ("TIFF", {"compression": "tiff_lzw"})])
def test_opacity_is_read_from_every_format_that_has_it(kind, options):
    rgba = samples_of(8, 4).astype(np.uint8)
    data = saved(Image.fromarray(rgba), kind, **options)
    agree(data, blended(rgba[..., :3] / 255, rgba[..., 3:] / 255))


def test_the_transparent_colour_of_a_gif_is_clear():
    image = Image.fromarray(samples_of(2, 1)[..., 0].astype(np.uint8), "P")
    palette = np.array([[200, 10, 20], [0, 0, 0], [9, 99, 199], [255, 255, 0]])
    image.putpalette(palette.ravel().tolist())
    numbers = np.asarray(image)
    agree(saved(image, "GIF", transparency=2),
          blended(palette[numbers] / 255, (numbers != 2)[..., None]))


@pytest.mark.parametrize("orientation", range(2, 9))
def test_the_orientation_of_exif_is_applied(orientation):
    upright = samples_of(8, 3).astype(np.uint8)
    # how a camera stores it: the inverse of what the tag tells a reader to do
    inverse = ["FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90",
               "TRANSVERSE", "ROTATE_270"]
    stored = Image.fromarray(upright).transpose(Image.Transpose[inverse[orientation - 2]])
    turn = exif((0x0112, 3, 1, bytes([0, orientation, 0, 0])))
    np.testing.assert_array_equal(read(saved(stored, "PNG", exif=b"Exif\0\0" + turn)).rgb, upright)


@pytest.mark.parametrize(("kind", "options"),
                         [("GIF", {}), ("PNG", {}), ("WEBP", {"lossless": True})])
def test_the_first_frame_of_an_animation_is_taken(kind, options):
    first, second = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    data = saved(first, kind, save_all=True, append_images=[second], duration=50, **options)
    assert (read(data).rgb == [255, 0, 0]).all()


@pytest.mark.parametrize(("magic", "most"), [(5, 255), (5, 100), (5, 65535), (5, 4095), (6, 255),
                                             (6, 4095), (2, 9)])
def test_netpbm_levels_are_scaled_by_their_maximum(magic, most):
    samples = np.random.default_rng(4).integers(0, most + 1,
                                                (HEIGHT, WIDTH, 3 if magic == 6 else 1))
    body = " ".join(map(str, samples.ravel())).encode() if magic == 2 else samples.astype(
        ">u2" if most > 255 else "u1").tobytes()
    data = f"P{magic} {WIDTH} {HEIGHT} {most}\n".encode() + body
    agree(data, blended(samples / most), second=False)


def test_lab_and_cmyk_become_srgb():
    lab = np.random.default_rng(6).integers([90, 0, 0], [160, 30, 30], (HEIGHT, WIDTH, 3))
    np.testing.assert_allclose(read(tiff(lab, 8, 8)).rgb, 255 * lab2rgb(lab * [100 / 255, 1, 1]),
                               rtol=0, atol=5)
    lab[:] = 127, 0, 0  # L* 50
    assert (np.abs(read(tiff(lab, 8, 8)).rgb - 118.6) < 2).all()
    ink = samples_of(8, 4).astype(np.uint8)
    expected = (255 - ink[..., :3]) * (255.0 - ink[..., 3:]) / 255
    for planes in (False, True):
        np.testing.assert_allclose(read(tiff(ink, 8, 5, planes=planes)).rgb, expected, rtol=0,
                                   atol=1.6)
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


def parameters(kind, *values):
    """A parametric curve of ICC."""
    return (b"para\0\0\0\0" + struct.pack(">HH", kind, 0)
            + np.rint(np.array(values) * 65536).astype(">i4").tobytes())


STANDARD = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
LINEAR, GREY = profile(1.0), profile(1.0, space="GRAY")
P3 = PRIMARIES[12]


def encoded(shares):
    """Linear shares as sRGB's levels."""
    return 255 * np.where(shares <= 0.0031308, 12.92 * shares,
                          1.055 * np.maximum(shares, 1e-9) ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(("mode", "icc", "changes"), [
    ("RGB", LINEAR, True), ("L", LINEAR, True), ("L", GREY, True), ("LA", GREY, True),
    ("RGBA", LINEAR, True), ("P", LINEAR, True), ("1", GREY, False), ("RGB", STANDARD, False),
    ("L", STANDARD, False), ("RGB", profile(2.2), True)])
def test_colours_are_converted_by_the_curves_of_a_profile_whatever_the_mode(mode, icc, changes):
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)
                            * 4).convert("RGB").convert(mode)
    plain, found = (read(saved(image, "PNG", **more)).rgb for more in ({}, {"icc_profile": icc}))
    gamma = 2.2 if icc == profile(2.2) else 1.0
    np.testing.assert_allclose(found, encoded((plain / 255) ** gamma) if changes else plain, rtol=0,
                               atol=2)
    assert read(saved(image, "PNG", icc_profile=icc)).notes == ()


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
    ([GAMMA], encoded(SHARES)), ([chunk(b"gAMA", number(0.5))], encoded(SHARES**2)),
    ([GAMMA, MARK], 255 * SHARES), ([chunk(b"gAMA", number(0.45455))], 255 * SHARES),
    ([WIDE], 255 * SHARES), ([chunk(b"cICP", bytes([1, 8, 0, 1])), MARK], encoded(SHARES)),
    ([chunk(b"cICP", bytes([12, 13, 0, 1]))], 255 * SHARES),
    ([chunk(b"cICP", bytes([1, 13, 0, 1])), GAMMA], 255 * SHARES)])
def test_greys_follow_the_colour_chunks_of_a_png_in_the_standard_s_order(chunks, levels):
    samples = np.rint(SHARES * 255).astype(int)
    np.testing.assert_allclose(read(png(samples, 8, 2, *chunks)).rgb, levels, rtol=0, atol=3)


@pytest.mark.parametrize("chunks", [[chunk(b"cICP", bytes([12, 13, 0, 1]))],
                                    [chunk(b"gAMA", number(0.45455)), WIDE]])
def test_the_primaries_of_a_png_s_chunks_are_those_of_a_profile(chunks):
    samples = samples_of(8, 3)
    curve = CURVES[13] if len(chunks) == 1 else (2.2,)
    other = saved(Image.fromarray(samples.astype(np.uint8)), "PNG",
                  icc_profile=matrix_profile(P3, curve))
    found = read(png(samples, 8, 2, *chunks)).rgb
    np.testing.assert_allclose(found, read(other).rgb, rtol=0, atol=1)
    np.testing.assert_allclose(found, libvips(other), rtol=0, atol=2)
    assert np.abs(found - samples).max() > 20


@pytest.mark.parametrize("chunks", [
    chunk(b"gAMA", number(0)), chunk(b"gAMA", b"1"), chunk(b"cICP", bytes([9, 16, 0, 1])),
    chunk(b"cHRM", bytes(32)) + GAMMA,
    chunk(b"cHRM", b"".join(map(number, [0.3, 0.3] * 4))) + GAMMA])
def test_impossible_colour_chunks_are_ignored_with_a_line(chunks):
    samples = samples_of(8, 3)
    picture = read(png(samples, 8, 2, chunks))
    assert [note[:17] for note in picture.notes] == ["metadata ignored:"]
    np.testing.assert_array_equal(picture.rgb, samples)


def test_inks_follow_their_profile():
    rgb = np.random.default_rng(7).integers(40, 216, (HEIGHT, WIDTH, 3), np.uint8)
    inks = pyvips.Image.new_from_array(
        rgb, interpretation="srgb"
    ).icc_transform("cmyk", input_profile="srgb")
    for file in (inks.tiffsave_buffer(compression="deflate"), inks.jpegsave_buffer(Q=100)):
        assert read(file).notes == ()
        np.testing.assert_allclose(read(file).rgb, libvips(file), rtol=0, atol=4)


DARK = np.linspace(0, 3000, HEIGHT * WIDTH).astype(int).reshape(HEIGHT, WIDTH, 1)
"""Levels of 16 bits, of which 8 bits would keep twelve."""


@pytest.mark.parametrize("colours", [0, 2, 6])
@pytest.mark.parametrize("kind", ["png", "tiff", "tiff, planes"])
@pytest.mark.parametrize("icc", [LINEAR, matrix_profile(P3, CURVES[13])], ids=["linear", "wide"])
def test_a_profile_is_applied_to_all_sixteen_bits(colours, kind, icc):
    count = {0: 1, 2: 3, 6: 4}[colours]
    samples = np.concatenate([np.repeat(DARK, min(count, 3), axis=2) * [1, 2, 3][: min(count, 3)],
                              np.full_like(DARK, 65535)], axis=2)[..., :count]
    if kind == "png":
        data = png(samples, 16, colours, chunk(b"iCCP", b"a\0\0" + zlib.compress(icc)))
    else:
        data = tiff(samples, 16, 2 if colours else 1, extra=(2,) if colours == 6 else (),
                    planes="planes" in kind, more=[(34675, 7, icc)])
    found = read(data)
    if icc == LINEAR:
        expected = encoded(samples[..., :3] / 65535)
        assert len(np.unique(np.rint(expected))) > 50
        np.testing.assert_allclose(found.rgb, np.broadcast_to(expected, found.rgb.shape), rtol=0,
                                   atol=0.6)
    if colours:  # libvips leaves greys as they are
        np.testing.assert_allclose(found.rgb, libvips(data), rtol=0, atol=1)


@pytest.mark.parametrize(("curve", "light"), [
    (b"curv\0\0\0\0" + struct.pack(">I", 0), lambda x: x),
    (b"curv\0\0\0\0" + struct.pack(">IH", 1, 512), lambda x: x**2),
    (b"curv\0\0\0\0" + struct.pack(">I3H", 3, 0, 16384, 65535),
     lambda x: np.interp(x, [0, 0.5, 1], [0, 0.25, 1])),
    (parameters(1, 2, 1.25, -0.25), lambda x: np.maximum(1.25 * x - 0.25, 0) ** 2),
    (parameters(2, 2, 0.75, 0, 0.25), lambda x: (0.75 * x) ** 2 + 0.25),
    (parameters(4, 2, 1, 0, 0.5, 0.25, 0, 0.1), lambda x: np.where(x < 0.25, 0.5 * x + 0.1, x**2))])
def test_every_form_of_a_curve_is_that_of_the_standard(curve, light):
    samples = samples_of(16, 1)
    head = GREY[:128] + struct.pack(">I4sII4sII", 2, b"wtpt", 156, 20, b"kTRC", 176,
                                    len(curve)) + GREY[156:176]
    data = png(samples, 16, 0, chunk(b"iCCP", b"a\0\0" + zlib.compress(head + curve)))
    np.testing.assert_allclose(read(data).rgb[..., :1], encoded(light(samples / 65535)), rtol=0,
                               atol=0.6)
