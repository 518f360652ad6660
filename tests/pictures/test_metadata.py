"""Metadata that results keep of their inputs, and the mark on what a model drew; read by Pillow and
as raw bytes."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from superres import __version__
from superres.cli.main import run
from superres.config import DecodeConfig
from superres.pipeline.upscaled import Upscaled
from superres.tasks import exif
from superres.tasks.image_files import FORMATS as FORMATS_OF_RESULTS
from superres.tasks.image_files import DrawnImage, encode_png, encode_webp
from superres.tasks.metadata import DRAWN, MAX_BYTES, kept_metadata
from superres.tasks.picture_files import IMAGE_SUFFIXES
from superres.tasks.pictures import Picture, read_picture
from superres.tasks.untrusted import read_origin
from tests.batch.helpers import upscale

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
RECORD = {"checkpoint": "fake@0", "config": {**DecodeConfig().to_dict(), "seed": 3}}
GONE = b"GONE"
"""Stands in every value that must not be kept."""
TEXT = "Grüße aus Köln".encode()
IFD0, EXIF, GPS = 0, 0x8769, 0x8825
KEPT_TAGS = {
    IFD0: {0x010E: TEXT, 0x0132: b"2020:01:02 03:04:05", 0x013B: b"An Artist", 0x8298: b"(c) 2020"},
    EXIF: {0x9003: "2019:01:02 03:04:05", 0x9011: "+01:00", 0x9286: b"ASCII\0\0\0a comment"},
    GPS: {1: "N", 2: (50.0, 56.0, 12.5), 3: "E", 4: (6.0, 57.0, 32.0), 29: "2019:01:02"},
}
GONE_TAGS = {  # XMP (TIFF files get their own), make, model, software, host; maker note, lens, serial numbers, sizes
    IFD0: {0x02BC: GONE, 0x010F: GONE, 0x0110: GONE, 0x0131: GONE, 0x013C: GONE, 0x0112: 1},
    EXIF: {0x927C: GONE * 9, 0xA433: GONE, 0xA434: GONE, 0xA431: GONE, 0xA435: GONE, 0xA420: GONE, 0xA002: 8},
}
XMP = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="GONE">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about="GONE"
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:xmp="http://ns.adobe.com/xap/1.0/" dc:format="GONE"
 xmlns:tiff="http://ns.adobe.com/tiff/1.0/" xmlns:aux="http://ns.adobe.com/exif/1.0/aux/" xmp:CreatorTool="GONE"
 xmlns:photoshop="http://ns.adobe.com/photoshop/1.0/" xmlns:g="http://ns.adobe.com/xap/1.0/g/img/" tiff:Make="GONE"
 xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" photoshop:City="Köln" aux:SerialNumber="GONE"
 Iptc4xmpExt:DigitalSourceType="http://cv.iptc.org/newscodes/digitalsourcetype/digitalCapture" xmp:Rating="4"
 tiff:ImageWidth="4000" xmlns:exif="http://ns.adobe.com/exif/1.0/" exif:PixelXDimension="4000">
<dc:creator><rdf:Seq><rdf:li>An Author</rdf:li><rdf:li>Another</rdf:li></rdf:Seq></dc:creator>
<dc:description><rdf:Alt><rdf:li xml:lang="x-default">Ein Bild &amp; mehr</rdf:li></rdf:Alt></dc:description>
<xmp:Thumbnails><rdf:Alt><rdf:li rdf:parseType="Resource"><g:image>GONE</g:image></rdf:li></rdf:Alt></xmp:Thumbnails>
<Iptc4xmpExt:LocationShown><rdf:Bag><rdf:li rdf:parseType="Resource"><Iptc4xmpExt:City>Bonn</Iptc4xmpExt:City>
<g:image>GONE</g:image><Iptc4xmpExt:DigitalSourceType>GONE</Iptc4xmpExt:DigitalSourceType>
</rdf:li></rdf:Bag></Iptc4xmpExt:LocationShown></rdf:Description></rdf:RDF></x:xmpmeta><?xpacket end="w"?>""".encode()
IPTC = b"".join(struct.pack(">BBBH", 0x1C, 2, number, len(text)) + text for number, text in (
    (0, b"\0\4"), (105, "Überschrift".encode()), (90, b"Aachen"), (25, b"one"), (25, b"two"),
    (55, b"20190102"), (65, GONE), (202, GONE)))
FORMATS = ["JPEG", "PNG", "WEBP", "TIFF", "TIFF, big", "HEIF",
           *(["AVIF"] if ".avif" in IMAGE_SUFFIXES else [])]


def tags_of(tags):
    """Return an EXIF block of tags by directory, written by Pillow."""
    block = Image.Exif()
    for name, values in tags.items():
        (block if name == IFD0 else block.get_ifd(name)).update(values)
    return block


def with_thumbnail(block):
    """Return a block as bytes, with a second directory behind its first one, as that of a
    thumbnail."""
    data = block.tobytes()
    count, = struct.unpack_from(">H", data, 14)
    link = 16 + 12 * count
    return (data[:link] + struct.pack(">I", len(data) - 6) + data[link + 4:]
            + struct.pack(">HHHI4sI", 1, 0x010E, 2, 4, GONE, 0))


def photo(form):
    """Return a picture file of a camera with all its metadata."""
    form, _, is_big = form.partition(", ")
    block = tags_of({name: {**KEPT_TAGS[name], **GONE_TAGS.get(name, {})} for name in KEPT_TAGS})
    info, more, buffer = PngInfo(), {"exif": with_thumbnail(block), "xmp": XMP}, io.BytesIO()
    info.add_itxt("XML:com.adobe.xmp", XMP.decode())
    if form == "TIFF":
        block.update({0x02BC: XMP, 0x83BB: IPTC, EXIF: block.get_ifd(EXIF),
                      GPS: block.get_ifd(GPS)})
        more = {"exif": block, "big_tiff": bool(is_big)}
    Image.fromarray(PIXELS).save(buffer, form, pnginfo=info, **more)
    data = buffer.getvalue()
    if form == "JPEG":
        resource = (b"Photoshop 3.0\x008BIM\4\4\0\0" + struct.pack(">I", len(IPTC)) + IPTC
                    + bytes(len(IPTC) % 2))
        data = data[:2] + b"\xff\xed" + struct.pack(">H", len(resource) + 2) + resource + data[2:]
    return data


def opened(data):
    return Image.open(io.BytesIO(data))


def kept_tags(data):
    """Return the tags of a file that should be kept, and the number of its other tags, as Pillow
    reads them."""
    with opened(data) as image:
        block = image.getexif()
        found = {name: dict(block if name == IFD0 else block.get_ifd(name)) for name in KEPT_TAGS}
        found[IFD0] = {tag: value for tag, value in found[IFD0].items() if tag not in (EXIF, GPS)}
    kept = {name: {tag: found[name].pop(tag) for tag in KEPT_TAGS[name]} for name in found}
    return kept, {name: set(others) for name, others in found.items()}


def properties(data):
    """Return the XMP properties of a file, as Pillow reads them."""
    with opened(data) as image:
        image.load()
        return image.getxmp()["xmpmeta"]["RDF"]["Description"]


def mark_of(data):
    return properties(data)["DigitalSourceType"]


@pytest.mark.parametrize("name", ["png", "webp-lossless"])
@pytest.mark.parametrize("form", FORMATS)
def test_what_describes_a_picture_is_kept_and_what_describes_its_file_or_camera_is_not(form, name):
    if form == "HEIF":
        pytest.importorskip("pillow_heif", reason="the heic extra is not "
                            "installed").register_heif_opener()
    given = photo(form)
    assert given.count(GONE) > 12
    picture = read_picture(io.BytesIO(given), form)
    assert picture.notes == ()
    made = FORMATS_OF_RESULTS[name](replace(picture, rgb=PIXELS), RECORD)
    assert GONE not in made
    assert b"digitalCapture" not in made
    assert b"4000" not in made
    before, _ = kept_tags(given)
    after, others = kept_tags(made)
    assert after == before
    # Pillow rewrites the EXIF data of an AVIF file that it reads.
    text = "Gr????e aus K??ln" if form == "AVIF" else TEXT.decode("latin-1")
    assert after[IFD0][0x010E] == text
    assert others == {IFD0: {0x0131} if name != "png" else set(), EXIF: set(), GPS: set()}
    found = properties(made)
    assert found.pop("about") == ""
    has_iptc = form.startswith(("JPEG", "TIFF"))
    assert found.pop("Headline", None) == ("Überschrift" if has_iptc else None)
    assert found.pop("subject", None) == ({"Bag": {"li": ["one", "two"]}} if has_iptc else None)
    assert found.pop("DateCreated", None) == ("2019-01-02" if has_iptc else None)
    assert found.pop("record", None) == (None if name == "png" else json.dumps(RECORD))
    assert found == {
        "City": "Köln", "Rating": "4", "DigitalSourceType": DRAWN,
        "CreatorTool": f"superres {__version__}",
        "creator": {"Seq": {"li": ["An Author", "Another"]}},
        "description": {"Alt": {"li": {"lang": "x-default", "text": "Ein Bild & mehr"}}},
        "LocationShown": {"Bag": {"li": {"parseType": "Resource", "City": "Bonn"}}}}


@pytest.mark.parametrize("value", [(2, b"N\0"), (5, bytes(8)), (3, b"\0\1"), (4, bytes(4)),
                                   (12, bytes(8))])
@pytest.mark.parametrize("place", range(3))
def test_a_tag_of_another_type_is_left_out_alone_and_the_picture_says_so(place, value):
    name, tag = ((IFD0, 0x8298), (EXIF, 0x9003), (GPS, 2))[place]
    block = exif.Block(">", {IFD0: {0x010E: (2, b"text\0")}, EXIF: {}, GPS: {}})
    block.directories[name][tag] = value
    data = block.to_bytes()
    read = exif.read_block(data)
    is_right = value[0] == (5 if name == GPS else 2)
    assert read.is_damaged is not is_right
    assert (tag in read.directories.get(name, {})) is is_right
    assert read.directories[IFD0][0x010E] == (2, b"text\0")
    kept_metadata({"exif": data})


def test_damage_anywhere_in_a_block_loses_no_more_than_tags(rng):
    data = bytearray(with_thumbnail(tags_of(KEPT_TAGS)))
    allowed = {name: set(tags) for name, tags in exif.KEPT.items()}
    for _ in range(2000):
        hit = bytearray(data)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            hit[place] = rng.integers(256)
        for block in (bytes(hit), bytes(hit[:rng.integers(len(hit))])):
            metadata = kept_metadata({"exif": block})
            if metadata.exif is not None:
                again = exif.read_block(metadata.exif)
                assert not again.is_damaged
                assert all(set(tags) <= allowed[name] for name, tags in again.directories.items())
                assert again.directories == {
                    name: tags for name, tags in exif.read_block(block).directories.items() if tags
                    or name == IFD0}


def nested(depth):
    return b"<a>" * depth + b"</a>" * depth


RDF = b'<r:RDF xmlns:r="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><r:Description xmlns:d="http://purl.org/dc/elements/1.1/">%b</r:Description></r:RDF>'
LAUGHS = b'<!DOCTYPE a [<!ENTITY b "ha">' + b"".join(
    b'<!ENTITY b%d "%b">' % (n, b"&b%b;" % (b"%d" % (n - 1) if n else b"") * 10)
    for n in range(9)) + b"]>"


@pytest.mark.parametrize("packet", [
    b"", b"no XML", LAUGHS + RDF % b"<d:source>&b8;</d:source>",
    (LAUGHS + RDF % b"").decode().encode("utf-16"),
    b'<!DOCTYPE a SYSTEM "file:///etc/passwd">' + RDF % b"<d:source>x</d:source>",
    RDF % nested(100_000), RDF % (b"<d:source>" + nested(40) + b"</d:source>"),
    RDF % (b"<d:source>" + b"x" * MAX_BYTES + b"</d:source>"),
    b'<?xml version="1.0" encoding="martian"?>' + RDF % b"", b"\xff\xfe\0",
    RDF % b"<d:source>\xff</d:source>",
], ids=range(11))
def test_a_hostile_or_damaged_packet_costs_nothing_but_itself(packet):
    metadata = kept_metadata({"xmp": packet, "photoshop": {0x0404: IPTC}})
    assert [line[:23] for line in metadata.notes] == (["metadata ignored: XMP ("] if packet else [])
    assert "Überschrift".encode() in metadata.xmp
    assert b"source" not in metadata.xmp


def test_a_batch_says_which_metadata_are_damaged(tmp_path, capsys):
    Image.fromarray(PIXELS).save(tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff"
                                 + bytes(9), xmp=b"<broken")
    for metadata in ("strip", "keep"):
        assert upscale(tmp_path / "a.jpg", tmp_path / metadata, metadata=metadata).done == 1
        found = re.findall(r"a\.jpg: metadata ignored: (.*)", capsys.readouterr().err)
        assert [line[:20] for line in found] == ["EXIF (damaged)", "XMP (unclosed token:"]


@pytest.mark.parametrize("format", ["png", "webp-lossless"])
@pytest.mark.parametrize("sheet", [False, True])
@pytest.mark.parametrize("metadata", ["strip", "keep"])
def test_every_picture_of_the_command_is_marked(tmp_path, format, sheet, metadata):
    (tmp_path / "a.jpg").write_bytes(photo("JPEG"))
    assert upscale(tmp_path / "a.jpg", tmp_path / "out", format=format, sheet=sheet,
                   metadata=metadata).done == 1
    (made,) = (path for path in (tmp_path / "out").iterdir() if path.suffix != ".jsonl")
    assert mark_of(made.read_bytes()) == DRAWN
    found = read_origin(made)
    assert (found["mark"], found["tool"]) == (DRAWN, f"superres {__version__}")
    assert found["settings"]["checkpoint"] == "fake@0123abcd"


@pytest.mark.parametrize("ending", [".png", ".webp", ".tif", ".tiff", ".jpg"])
def test_every_picture_of_a_result_is_marked_and_so_are_its_copies(tmp_path, ending):
    result = Upscaled(PIXELS[None], [], 1.0, record=RECORD)
    path = tmp_path / f"a{ending}"
    if ending == ".jpg":
        result.pictures[0].save(path, quality=90)
    else:
        result.save(path)
        assert path.read_bytes() == Path(*result.save(tmp_path / f"b{ending}")).read_bytes()
        np.testing.assert_array_equal(np.asarray(Image.open(path)), PIXELS)
    drawn = result.pictures[0].resize((16, 16)).rotate(90).convert("L").copy()
    copy = pickle.loads(pickle.dumps(drawn))  # noqa: S301 -- our own
    assert isinstance(copy, DrawnImage)
    copy.save(tmp_path / f"c{ending}")
    for made in (path, tmp_path / f"c{ending}"):
        assert mark_of(made.read_bytes()) == DRAWN
        assert read_origin(made)["settings"] == json.loads(json.dumps(RECORD))


def test_a_notebook_shows_marked_pictures():
    assert mark_of(Upscaled(PIXELS[None], [], 1.0)._repr_png_()) == DRAWN


def test_pictures_that_no_model_drew_are_not_marked():
    data = encode_png(Picture(PIXELS), None)
    assert set(re.findall(rb"IHDR|tEXt|iTXt|IDAT|IEND", data)) == {b"IHDR", b"IDAT", b"IEND"}


@pytest.mark.parametrize("make", [
    lambda: encode_png(Picture(PIXELS), RECORD), lambda: encode_webp(Picture(PIXELS), RECORD),
    lambda: encode_webp(read_picture(io.BytesIO(photo("JPEG")), "a"), RECORD)],
                         ids=["png", "webp", "webp, described"])
def test_info_prints_mark_and_settings_of_a_picture(tmp_path, capsys, make):
    (tmp_path / "a").write_bytes(make())
    assert run(["info", str(tmp_path / "a")]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["mark"] == f"trainedAlgorithmicMedia ({DRAWN})"
    assert (lines["checkpoint"], lines["options"], lines["seed"]) == ("fake@0", "defaults", "3")
    assert run(["info", "--json", str(tmp_path / "a")]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == json.loads(json.dumps(RECORD))


def test_info_says_what_a_picture_of_others_lacks_and_what_cannot_be_read(tmp_path, capsys):
    (tmp_path / "a.jpg").write_bytes(photo("JPEG"))
    assert run(["info", str(tmp_path / "a.jpg")]) == 0
    out = capsys.readouterr().out
    assert "digitalCapture" in out
    assert ("settings   none: this picture is not from superres, or another program has removed "
            "them" in out)
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    assert run(["info", str(tmp_path / "a.png")]) == 0
    assert "mark       none" in capsys.readouterr().out
    (tmp_path / "a.txt").write_text("text")
    for name, message in (("a.txt", "is not a picture in PNG, JPEG, WEBP, TIFF"),
                          ("b.png", "cannot be read"), (".", "cannot be read")):
        assert run(["info", str(tmp_path / name)]) == 2
        assert message in capsys.readouterr().err
