"""Picture files of any layout from known samples, files that are much work, and libvips, a second
decoder."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from superres.pictures.read import read_picture

TIFF_DEFLATE, TIFF_RAW = 8, 1


def read(data, **options):
    return read_picture(io.BytesIO(data), "a", **options)


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pack(samples, bits, order=">"):
    """Samples [H, N] as rows of bytes; samples of under 8 bits, and of 12, follow each other bit by
    bit."""
    if bits in (8, 16, 32):
        return samples.astype(f"{order}u{bits // 8}").tobytes()
    digits = (samples[..., None] >> np.arange(bits - 1, -1, -1)) & 1
    return np.packbits(digits.reshape(len(samples), -1).astype(np.uint8), axis=1).tobytes()


def tiff(samples, bits, photometric, *, extra=(), planes=False, order="<", compression=TIFF_RAW,
         differences=False, more=()):
    """A TIFF file of samples [H, W, K] in strips of 5 rows; `more` are further tags (number, type,
    values)."""
    height, width, count = samples.shape
    layers = np.moveaxis(samples, -1, 0)[..., None] if planes else samples[None]
    if differences:  # of one pixel and its left neighbour
        layers = np.concatenate([layers[:, :, :1], np.diff(layers, axis=2)], axis=2) % 2**bits
    strips = [pack(layer[top : top + 5].reshape(min(5, height - top), -1), bits, order)
              for layer in layers for top in range(0, height, 5)]
    strips = [zlib.compress(strip) if compression == TIFF_DEFLATE else strip for strip in strips]
    body, offsets = b"", []
    for strip in strips:
        offsets.append(8 + len(body))
        body += strip + bytes(len(strip) % 2)
    tags = [(256, 4, [width]), (257, 4, [height]), (258, 3, [bits] * count),
            (259, 3, [compression]), (262, 3, [photometric]), (273, 4, offsets), (277, 3, [count]),
            (278, 4, [5]), (279, 4, [len(strip) for strip in strips]),
            (284, 3, [2 if planes else 1]), *more]
    tags += [(338, 3, list(extra))] if extra else []
    tags += [(317, 3, [2])] if differences else []
    start = 8 + len(body)
    directory, after = struct.pack(order + "H", len(tags)), b""
    for number, kind, values in sorted(tags):
        value = values if isinstance(values, bytes) else b"".join(
            struct.pack(order + {3: "H", 4: "I"}[kind], one) for one in values)
        size = {2: 1, 3: 2, 4: 4, 7: 1}[kind]
        if len(value) > 4:
            place = start + 2 + 12 * len(tags) + 4 + len(after)
            after += value + bytes(len(value) % 2)
            field = struct.pack(order + "I", place)
        else:
            field = value.ljust(4, b"\0")
        directory += struct.pack(order + "HHI", number, kind, len(value) // size) + field
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "I", start) + body + directory + bytes(4) + after


def chunk(kind, data, checksum=None):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(
        ">I", zlib.crc32(kind + data) if checksum is None else checksum)


def png(samples, bits, colours, *chunks):
    """A PNG file of samples [H, W, K] and colour type `colours`, with further chunks before the
    pixels."""
    height, width, _ = samples.shape
    rows = pack(samples.reshape(height, -1), bits)
    size = len(rows) // height
    raw = b"".join(b"\0" + rows[start : start + size] for start in range(0, len(rows), size))
    head = struct.pack(">IIBBBBB", width, height, bits, colours, 0, 0, 0)
    return b"".join([b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", head), *chunks,
                     chunk(b"IDAT", zlib.compress(raw, 1)), chunk(b"IEND", b"")])


def segment(jpeg, code, data):
    """A JPEG file with one more segment at its start."""
    return jpeg[:2] + bytes([0xFF, code]) + struct.pack(">H", len(data) + 2) + data + jpeg[2:]


def exif(*tags, order=">"):
    """EXIF data of tags (number, type, count, four bytes)."""
    entries = b"".join(struct.pack(order + "HHI", *tag[:3]) + tag[3] for tag in tags)
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "IH", 8, len(tags)) + entries + bytes(4)


def libvips(data):
    """The pixels of a file by libvips, uint8 [H, W, 3], upright, in sRGB and over white; None if it
    cannot read it."""
    import pyvips

    try:
        image = pyvips.Image.new_from_buffer(data, "").autorot()
        if image.get_typeof("icc-profile-data") and image.interpretation != "b-w":
            image = image.icc_transform("srgb", embedded=True, intent="relative",
                                        black_point_compensation=True)
        image = image.colourspace("srgb")
        image = image.flatten(background=[255]) if image.hasalpha() else image
        return image.cast("uchar").numpy()[..., :3]
    except pyvips.Error:
        return None


def many_scans(side, count):
    """Return a valid progressive JPEG, `side` x `side`, whose last scan is repeated `count` times.

    Each repetition takes some 26 bytes, and has the decoder go through all blocks again.
    """
    buffer = io.BytesIO()
    Image.new("L", (side, side), 128).save(buffer, "JPEG", progressive=True, quality=50)
    content = buffer.getvalue()
    # the last scan's header, and the end of the image
    start, end = content.rindex(b"\xff\xda"), len(content) - 2
    return content[:end] + content[start:end] * count + content[end:]
